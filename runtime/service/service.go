// Package service is everything that `serve` is, wired together: the state
// directory and its lock, the store, the job table and the HTTP front.
package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"time"

	"difyrt/runtime/api"
	"difyrt/runtime/confine"
	"difyrt/runtime/jobs"
	"difyrt/runtime/report"
	"difyrt/runtime/snapshot"
	"difyrt/runtime/store"
)

// Config is what a server is started with. See the flags of the applet serve.
type Config struct {
	Listen string // host:port or unix:PATH
	Places Places
	Token  string       // empty: no authentication
	TLS    *api.KeyPair // nil: none
	// MaxConnections bounds those of clients, 0 is the default.
	MaxConnections int
	Environ        []string
	Policy         confine.Policy
	Limits         confine.Limits
	Retention      time.Duration
	GCEvery        time.Duration
	Log            *slog.Logger
	// SnapshotHome is what snapshots are of: $HOME, empty when it is not set.
	SnapshotHome    string
	SnapshotTimeout time.Duration
}

// stopWithin is how long open requests get at the end; waiters go at once.
const stopWithin = 4 * time.Second

// Run serves until ctx ends. Jobs go on when it returns.
func Run(ctx context.Context, c Config) error {
	began := time.Now()
	confine.SpareThreads()
	dir := c.Places.State
	if err := prepareState(dir); err != nil {
		return err
	}
	unlock, err := lockState(dir)
	if err != nil {
		return err
	}
	defer unlock()
	if err := c.Places.link(); err != nil {
		c.Log.Warn("clients are told of output files by another path than usual", "state_dir", dir, "why", err)
	}
	c.warn()

	// Clients that come while the table is loaded wait in the socket's queue.
	l, err := api.Listen(c.Listen)
	if err != nil {
		return err
	}
	defer l.Close()
	st, err := store.Open(ctx, filepath.Join(dir, jobs.DatabaseFile), store.Options{})
	if err != nil {
		return err
	}
	table, err := jobs.Open(ctx, jobs.Config{StateDir: dir, Shown: c.Places.Shown, Home: c.Places.Home, Environ: c.Environ, Policy: c.Policy, Limits: c.Limits,
		Retention: c.Retention, GCEvery: c.GCEvery, Log: c.Log}, st)
	if err != nil {
		return errors.Join(err, st.Close())
	}
	go func() {
		<-ctx.Done()
		table.Stop()
	}()
	c.Log.Info("serving", "listen", address(l), "state_dir", dir, "auth", c.Token != "", "tls", c.TLS != nil, "ready_ms", time.Since(began).Milliseconds())
	state, err := snapshot.Identify(dir)
	if err != nil {
		return errors.Join(err, table.Close())
	}
	h := api.NewHandler(api.Config{Token: c.Token, Jobs: table, Log: c.Log,
		Snapshots: api.Snapshots{Home: c.SnapshotHome, Omit: []snapshot.DirID{state}, Timeout: c.SnapshotTimeout},
		Info:      func() any { return report.Gather(c.Policy, c.Limits, dir, c.Places.Home) }})
	err = api.Serve(ctx, l, h, api.ServeConfig{Log: c.Log, Grace: stopWithin, MaxConnections: c.MaxConnections, TLS: c.TLS})
	if cerr := table.Close(); cerr != nil {
		err = errors.Join(err, fmt.Errorf("close the job table: %w", cerr))
	}
	c.Log.Info("stopped; running jobs go on")
	return err
}

func address(l net.Listener) string {
	a := l.Addr()
	if a.Network() == "unix" {
		return "unix:" + a.String()
	}
	return a.String()
}

// warn says once, at the start, what an operator should know.
func (c Config) warn() {
	r := report.Gather(c.Policy, c.Limits, c.Places.State, c.Places.Home)
	c.Log.Info("jobs get", "landlock_abi", r.Landlock.ABI, "landlock", r.Landlock.Wanted, "seccomp", r.Seccomp.InForce, "cgroup", r.Cgroup)
	for _, advice := range r.Advice {
		c.Log.Warn(advice)
	}
	if c.Token == "" && beyond(c.Listen) {
		c.Log.Warn("anybody who can reach this address can run commands here: set a token", "listen", c.Listen)
	} else if c.TLS == nil && beyond(c.Listen) {
		c.Log.Warn("the token and all output cross the network in clear: set --tls-cert and --tls-key, or put a proxy in front", "listen", c.Listen)
	}
}

// beyond reports whether other machines could reach the address.
func beyond(listen string) bool {
	if strings.HasPrefix(listen, "unix:") {
		return false
	}
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return true
	}
	ip := net.ParseIP(host)
	return host != "localhost" && (ip == nil || !ip.IsLoopback())
}
