// Package runner is the applet shellctl-runner: the supervisor of all jobs of a
// state directory, and in its other form one job in the foreground.
package runner

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"difyrt/applets/cmdline"
	"difyrt/runtime/confine"
	"difyrt/runtime/supervisor"
	"difyrt/runtime/version"
)

// badUsage is the contract's exit code for a wrong call.
const badUsage = 125

// Main is the applet. It must run on the process's main thread, locked to it.
func Main(name string, args []string, s cmdline.Streams) int {
	c := cmdline.New(name, "JOB_DIR JOB_ID CWD", `
Runs the job of a job directory in the foreground: waits for JOB_DIR/start-gate,
reads JOB_DIR/script and JOB_DIR/.job-env.json, isolates the job, runs it in CWD,
writes runner-exit-code and runner-ended-at, and exits with the job's code.

Exit codes of its own: 125 bad usage or a broken job directory, 111 no such CWD,
126 not executable, 127 not found.

With --supervise it is the runner that 'serve' starts by itself; there is no
need to call that by hand.`, s)
	supervise := c.Flags.Bool("supervise", false, "be the runner of a state directory; its socket is descriptor 3")
	state := c.Flags.String("state-dir", "", "with --supervise: the state `DIR`")
	socket := c.Flags.String("socket", "", "with --supervise: `PATH` of the socket, removed at the end")
	if code, ok := c.Parse(args); !ok {
		if code == cmdline.Usage {
			return badUsage
		}
		return code
	}
	if err := errors.Join(confine.SealDescriptors(), confine.NoCoreDumps()); err != nil {
		c.Fail(err)
		return badUsage
	}
	if *supervise {
		if *state == "" || c.Flags.NArg() > 0 {
			c.Wrong("--supervise wants --state-dir and no arguments")
			return badUsage
		}
		return serve(c, *state, *socket)
	}
	if c.Flags.NArg() != 3 {
		c.Wrong("JOB_DIR, JOB_ID and CWD are wanted, got %d arguments", c.Flags.NArg())
		return badUsage
	}
	return supervisor.OneShot(c.Flags.Arg(0), c.Flags.Arg(1), c.Flags.Arg(2), c.Err)
}

// The runner lives for weeks with a heap of a few hundred KB: collect early.
const gcPercent = 40

func serve(c *cmdline.Command, state, socket string) int {
	debug.SetGCPercent(gcPercent)
	unix.Umask(0o022) // the jobs'; what the runner itself makes has its modes set
	if err := confine.Conceal(); err != nil {
		return c.Fail(err)
	}
	log := slog.New(slog.NewTextHandler(c.Err, nil)).With("pid", os.Getpid())
	f := os.NewFile(supervisor.ListenerFD, "runner socket")
	l, err := net.FileListener(f)
	if err != nil {
		return c.Fail(err)
	}
	f.Close()
	if socket != "" {
		defer os.Remove(socket)
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	caught := catchRest()
	defer signal.Stop(caught)
	if err := supervisor.Serve(ctx, supervisor.Config{Listener: l, StateDir: state, Version: version.Version, Log: log}); err != nil {
		log.Error("runner ends", "err", err)
		return cmdline.Error
	}
	return cmdline.OK
}

// catchRest takes the signals that must neither end the runner nor be ignored
// in it: execve(2) resets caught signals to their default and keeps ignored ones
// ignored, so that a server that was started by nohup would start jobs that
// cannot be interrupted. SIGXFSZ comes from a file size limit, which is an
// ordinary write error here.
func catchRest() chan os.Signal {
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGPIPE, unix.SIGALRM, unix.SIGUSR1, unix.SIGUSR2,
		unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU, unix.SIGXFSZ, unix.SIGCONT)
	go func() {
		for range caught {
		}
	}()
	return caught
}
