package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"difyrt/runtime/job"
)

// Handler hears what happens to jobs. Calls come from one goroutine per runner
// and must not block.
type Handler interface {
	// Grown: a job's output file has this size now.
	Grown(Grown)
	// Ended: a job has ended, and its exit record is on disk.
	Ended(Ended)
	// RunnerGone: a runner died or ended with these jobs unaccounted for. Their
	// exit records may still be there.
	RunnerGone(jobs []Started)
}

// Fleet is a server's view of the runners of one state directory.
type Fleet struct {
	stateDir string
	log      *slog.Logger
	h        Handler

	starting sync.Mutex // held while a runner is started

	mu      sync.Mutex
	current *client // runs this build; nil when there is none
	clients map[*client]bool
	owner   map[job.ID]owned
	left    map[job.ID]*client // ended jobs with processes that still run
	closed  bool
}

type owned struct {
	c  *client
	st Started
}

// How often, and after which pause, a runner that hangs up is tried again.
const (
	hangUps     = 20
	hangUpPause = 50 * time.Millisecond
)

// OpenFleet connects to every runner that lives in the state directory, and
// gives the jobs that they hold. Only one server may do so: hold the state
// directory's lock. Events may reach h before OpenFleet returns.
func OpenFleet(ctx context.Context, stateDir string, log *slog.Logger, h Handler) (*Fleet, []Started, error) {
	f := &Fleet{stateDir: stateDir, log: log, h: h, clients: map[*client]bool{}, owner: map[job.ID]owned{}, left: map[job.ID]*client{}}
	dir := filepath.Join(stateDir, runDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, fmt.Errorf("make the runners' directory: %w", err)
	}
	names, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("look for runners: %w", err)
	}
	var jobs []Started
	for _, n := range names {
		if !strings.HasSuffix(n.Name(), socketExt) {
			continue
		}
		path := filepath.Join(dir, n.Name())
		c, err := f.reach(ctx, path)
		switch {
		case err == nil:
			jobs = append(jobs, c.hello.Jobs...)
		case isDead(err):
			os.Remove(path) // its runner was killed, or has ended
		case errors.Is(err, os.ErrDeadlineExceeded):
			f.Close()
			return nil, nil, fmt.Errorf("the runner at %s does not answer; it may be stopped (continue it with SIGCONT) or hang (SIGKILL ends it, and its jobs are lost): %w", path, err)
		default:
			f.Close()
			return nil, nil, fmt.Errorf("connect to the runner at %s: %w", path, err)
		}
	}
	return f, jobs, nil
}

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

func (f *Fleet) ended(c *client, e Ended) {
	f.mu.Lock()
	delete(f.owner, e.ID)
	if e.Left > 0 {
		f.left[e.ID] = c
	}
	f.leave(c)
	f.mu.Unlock()
	f.h.Ended(e)
}

func (f *Fleet) leftEnded(id job.ID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.left, id)
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

// runner gives the runner for new jobs and starts it when there is none.
func (f *Fleet) runner(ctx context.Context) (*client, error) {
	if c := f.alive(); c != nil {
		return c, nil
	}
	f.starting.Lock()
	defer f.starting.Unlock()
	if c := f.alive(); c != nil {
		return c, nil
	}
	path, err := launch(f.stateDir, f.log)
	if err != nil {
		return nil, err
	}
	c, err := f.connect(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("start the runner: %w (its log: %s)", err, logTail(f.stateDir))
	}
	return c, nil
}

func (f *Fleet) alive() *client {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.current
}

// Spawn starts a job. An error that is ErrGone leaves open whether the job
// began: it must not be started again, and RunnerGone tells of it.
func (f *Fleet) Spawn(ctx context.Context, s Spec) (Started, error) {
	for {
		c, err := f.runner(ctx)
		if err != nil {
			return Started{}, err
		}
		if !f.assign(c, s) {
			continue // it went away just now, and nothing was sent to it
		}
		st, err := c.spawn(ctx, s)
		if job.CodeOf(err) == codeStopping {
			f.unassign(c, s.ID)
			continue
		}
		if err != nil {
			if !errors.Is(err, ErrGone) {
				f.unassign(nil, s.ID)
			}
			return Started{}, err
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if o, ok := f.owner[s.ID]; ok { // not when it has ended already
			o.st = st
			f.owner[s.ID] = o
		}
		return st, nil
	}
}

// assign notes that a job is a runner's before it is asked to start it; false
// when the runner is not there any more.
func (f *Fleet) assign(c *client, s Spec) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.clients[c] {
		return false
	}
	f.owner[s.ID] = owned{c, Started{ID: s.ID, Mode: s.Mode}}
	return true
}

// unassign takes that back; a runner that starts no more jobs gets no more.
func (f *Fleet) unassign(stopping *client, id job.ID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.owner, id)
	if stopping != nil {
		if f.current == stopping {
			f.current = nil
		}
		f.leave(stopping)
	}
}

// stopping is told that a runner starts no more jobs.
func (f *Fleet) stopping(c *client) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c.retiring = true
	if f.current == c {
		f.current = nil
	}
	f.leave(c)
}

// leave closes the connection to a retiring runner when it has answered for its
// last job. The caller holds f.mu.
func (f *Fleet) leave(c *client) {
	if !c.retiring {
		return
	}
	for _, o := range f.owner {
		if o.c == c {
			return
		}
	}
	c.left = true
	c.c.Close()
}

func (f *Fleet) ownerOf(id job.ID) (*client, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if o, ok := f.owner[id]; ok {
		return o.c, nil
	}
	return nil, job.Errorf(job.CodeNotRunning, "job %s is not running", id)
}

// Input types text into a job's terminal, within the timeout.
func (f *Fleet) Input(ctx context.Context, id job.ID, text string, timeout time.Duration) error {
	c, err := f.ownerOf(id)
	if err != nil {
		return err
	}
	return c.input(ctx, id, []byte(text), timeout)
}

// Terminate begins to end a job; Handler.Ended tells when it has ended.
func (f *Fleet) Terminate(ctx context.Context, id job.ID, grace time.Duration) error {
	c, err := f.ownerOf(id)
	if err != nil {
		return err
	}
	return c.terminate(ctx, id, grace)
}

// Sweep kills what an ended job has left running, if there is anything.
func (f *Fleet) Sweep(ctx context.Context, id job.ID) error {
	f.mu.Lock()
	c := f.left[id]
	f.mu.Unlock()
	if c == nil {
		return nil
	}
	err := c.sweep(ctx, id)
	if err == nil {
		f.leftEnded(id)
	}
	return err
}

// Left says whether processes of an ended job still run.
func (f *Fleet) Left(id job.ID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.left[id] != nil
}

// Close leaves the runners to themselves: their jobs go on.
func (f *Fleet) Close() {
	f.mu.Lock()
	f.closed = true
	clients := make([]*client, 0, len(f.clients))
	for c := range f.clients {
		clients = append(clients, c)
	}
	f.mu.Unlock()
	for _, c := range clients {
		c.c.Close()
		<-c.gone
	}
}
