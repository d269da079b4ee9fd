package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

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
