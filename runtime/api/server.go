package api

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// Limits of a connection beyond those of a body. There is no limit to a whole
// request: a wait may last for ten minutes.
const (
	headerWithin = 10 * time.Second
	idleWithin   = 120 * time.Second
	maxHeader    = 64 << 10 // bytes
)

var http1 = func() (p http.Protocols) { p.SetHTTP1(true); return }()

// ServeConfig is how Serve treats connections.
type ServeConfig struct {
	Log   *slog.Logger  // must be set
	Grace time.Duration // for open requests when the server is stopped
	// MaxConnections bounds connections, 0 means DefaultConnections.
	MaxConnections int
	TLS            *KeyPair // nil: none
}

// Serve answers requests on l until ctx ends; open requests then get the grace to
// finish, and are cut off after it. It returns nil once ctx has ended, and else
// what made the listener fail.
//
// The end of ctx is not the end of a request's context: a waiter whose context
// ended could not be answered. Whoever ends ctx lets the waiters go, as
// jobs.Table.Stop does.
func Serve(ctx context.Context, l net.Listener, h http.Handler, c ServeConfig) error {
	conns := limitConnections(l, cmp.Or(c.MaxConnections, DefaultConnections()))
	l = conns
	if c.TLS != nil {
		l = tls.NewListener(l, c.TLS.config())
	}
	// Ends whatever is still under way when Serve returns.
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	s := &http.Server{
		Handler:                      conns.busy(h),
		ConnState:                    conns.state,
		ConnContext:                  conns.remember,
		Protocols:                    &http1,
		BaseContext:                  func(net.Listener) context.Context { return base },
		ReadHeaderTimeout:            headerWithin,
		IdleTimeout:                  idleWithin,
		MaxHeaderBytes:               maxHeader,
		DisableGeneralOptionsHandler: true, // "OPTIONS *" is no exception
		ErrorLog:                     slog.NewLogLogger(c.Log.Handler(), slog.LevelDebug),
	}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		conns.closeSilent()
		within, cancel := context.WithTimeout(base, c.Grace)
		defer cancel()
		if err := s.Shutdown(within); err != nil {
			c.Log.Warn("requests were cut off by the stop", "err", err, "close", s.Close())
		}
	})
	err := s.Serve(l)
	if stop() { // it ended by itself
		return errors.Join(fmt.Errorf("serve on %s: %w", l.Addr(), err), s.Close())
	}
	<-stopped
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve on %s: %w", l.Addr(), err)
}
