package cmdline

import (
	"context"
	"errors"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// Interrupted is the signal that ended a command.
type Interrupted unix.Signal

func (i Interrupted) Error() string { return "stopped by a signal: " + unix.Signal(i).String() }

// Code is the exit code for an error: that of a signal's death (128 and its
// number), or 1.
func Code(err error) int {
	var i Interrupted
	if errors.As(err, &i) {
		return 128 + int(i)
	}
	return Error
}

// UntilSignal ends the context at SIGINT and SIGTERM, with an Interrupted as its
// cause. done gives the signals back.
func UntilSignal() (ctx context.Context, done func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM)
	over := make(chan struct{})
	go func() {
		select {
		case s := <-signals:
			cancel(Interrupted(s.(unix.Signal)))
		case <-over:
		}
	}()
	return ctx, func() { signal.Stop(signals); close(over); cancel(nil) }
}
