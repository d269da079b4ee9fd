package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"difyrt/runtime/job"
)

// How often, and after which pause, a runner that hangs up is tried again.
const (
	hangUps     = 20
	hangUpPause = 50 * time.Millisecond
)

// reach is connect for a runner that may be ending: then it is refused at the
// next try. One that lives and hangs up must not be taken for dead: its jobs would be.
func (f *Fleet) reach(ctx context.Context, path string) (*client, error) {
	for try := 0; ; try++ {
		c, err := f.connect(ctx, path)
		if !errors.Is(err, ErrGone) || try == hangUps {
			return c, err
		}
		time.Sleep(hangUpPause) // nothing tells when it has ended
	}
}

// isDead tells the errors of a socket that nobody listens on.
func isDead(err error) bool {
	return errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist)
}

// connect dials a runner and takes it into the fleet.
func (f *Fleet) connect(ctx context.Context, path string) (*client, error) {
	c, err := dial(ctx, path, func(c *client) events {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.clients[c] = true
		for _, st := range c.hello.Jobs {
			f.owner[st.ID] = owned{c, st}
		}
		for _, id := range c.hello.Left {
			f.left[id] = c
		}
		c.retiring = c.hello.Stopping
		if c.hello.Exe == exeIdentity() && f.current == nil && !c.retiring {
			f.current = c
		}
		return events{grown: f.h.Grown, ended: func(e Ended) { f.ended(c, e) },
			stopping: func() { f.stopping(c) }, leftEnded: f.leftEnded, gone: f.gone}
	})
	if err != nil {
		return nil, err
	}
	f.log.Debug("connected to a runner", "pid", c.hello.PID, "version", c.hello.Version, "jobs", len(c.hello.Jobs))
	f.mu.Lock()
	retire := f.current != c && !c.retiring
	f.leave(c)
	f.mu.Unlock()
	if retire {
		f.log.Info("a runner of another build keeps its jobs and ends with them", "pid", c.hello.PID, "version", c.hello.Version, "jobs", len(c.hello.Jobs))
		if err := c.retire(ctx); err != nil && !errors.Is(err, ErrGone) {
			return nil, fmt.Errorf("retire the runner: %w", err)
		}
	}
	return c, nil
}

// gone is told that a connection has ended. That is not yet the end of the
// runner: it gives up a server that does not read for a while, as one that was
// stopped. So it is dialed again, and only one that nobody answers for is dead.
func (f *Fleet) gone(c *client) {
	f.mu.Lock()
	delete(f.clients, c)
	if f.current == c {
		f.current = nil
	}
	maps.DeleteFunc(f.left, func(_ job.ID, o *client) bool { return o == c })
	closed, left := f.closed, c.left
	f.mu.Unlock()
	if closed {
		return
	}
	if left {
		f.log.Info("a runner ends", "pid", c.hello.PID)
		return
	}
	again, err := f.again(c)
	f.mu.Lock()
	var jobs []Started
	for id, o := range f.owner { // those that it still has are again's by now
		if o.c == c {
			jobs = append(jobs, o.st)
			delete(f.owner, id)
		}
	}
	f.mu.Unlock()
	switch {
	case again != nil:
		f.log.Warn("the connection to a runner was lost and is there again", "pid", c.hello.PID, "jobs", len(again.hello.Jobs))
		for _, st := range again.hello.Jobs {
			f.h.Grown(Grown{st.ID, st.Size})
		}
	case errors.Is(err, errClosed):
		return
	case len(jobs) > 0:
		f.log.Error("a runner died", "pid", c.hello.PID, "jobs", len(jobs), "its_log", logTail(f.stateDir))
	default:
		f.log.Info("a runner ended", "pid", c.hello.PID)
	}
	f.h.RunnerGone(jobs)
}

// errClosed ends the search for a runner when the server stops.
var errClosed = errors.New("the fleet is closed")

// again connects anew to the runner of a connection that has ended, for as long
// as it lives.
func (f *Fleet) again(c *client) (*client, error) {
	for {
		n, err := f.reach(context.Background(), c.path)
		f.mu.Lock()
		closed := f.closed
		f.mu.Unlock()
		switch {
		case closed:
			if n != nil {
				n.c.Close()
			}
			return nil, errClosed
		case err == nil:
			return n, nil
		case isDead(err):
			os.Remove(c.path)
			return nil, err
		}
		f.log.Error("a runner does not answer; trying on", "pid", c.hello.PID, "err", err)
		time.Sleep(time.Second) // a process that is stopped or hangs tells nobody
	}
}
