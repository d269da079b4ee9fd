package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"difyrt/runtime/confine"
	"difyrt/runtime/job"
)

// Config is what a runner is started with.
type Config struct {
	Listener net.Listener // its socket; closed when Serve returns
	StateDir string
	Version  string
	Log      *slog.Logger
}

// firstContact is how long a runner that nobody has ever talked to stays.
const firstContact = 30 * time.Second

// stopGrace is what jobs get when the runner itself is told to stop.
const stopGrace = 5 * time.Second

// leaveWithin is how long a stopping runner waits for its servers to leave.
const leaveWithin = 3 * time.Second

// Serve is the runner. It returns nil when ctx has ended and every job with it,
// or by itself when no server is connected and no process of a job is left.
// The caller's goroutine must be locked to the process's main thread, so that
// no job's domain ever gets hold of that thread (package confine).
func Serve(ctx context.Context, c Config) error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		c.Log.Warn("orphans of jobs will not come to the runner", "err", err)
	}
	confine.SpareThreads()
	level, err := confine.Probe()
	if err != nil {
		c.Log.Warn("jobs run without Landlock", "why", confine.WhyNot(err))
	}
	s := &server{c: c, starts: starts{}, pid: os.Getpid(), level: level, state: confine.AncestorsOf(c.StateDir), jobs: map[job.ID]*running{}, leaders: map[int]bool{},
		book: book{map[job.ID]*running{}, map[int]job.ID{}}, conns: map[*serverConn]bool{}, idle: make(chan struct{}, 1), gone: make(chan struct{}, 1)}
	s.told = sync.NewCond(&s.mu)
	s.reap = newReaper(s.checkIdle, s.orphanReaped)
	go s.reap.run()
	go s.accept()
	lonely := time.AfterFunc(firstContact, func() { s.met(nil); s.checkIdle() })
	defer lonely.Stop()

	select {
	case <-ctx.Done():
		s.stop()
	case <-s.idle:
	}
	return c.Listener.Close()
}

type server struct {
	c      Config
	pid    int
	level  confine.Level
	groups cgroups
	state  confine.Ancestors
	reap   *reaper
	gone   chan struct{} // has one element when a connection has ended
	idle   chan struct{} // has one element when the runner has nothing left to do

	mu       sync.Mutex
	starts   starts
	stopping bool
	master   *serverConn // the last that said hello: jobs are started for it alone
	jobs     map[job.ID]*running
	leaders  map[int]bool // processes of the jobs
	book     book
	conns    map[*serverConn]bool
	hadConn  bool       // somebody was here, or nobody came in time
	retired  bool       // ends with its last job, connected or not
	busy     int        // starts under way, and ended jobs of which nobody has been told yet
	untold   int        // jobs whose end has not been told
	told     *sync.Cond // untold has become 0

	recording sync.Mutex // one runner-exit at a time
}

func (s *server) accept() {
	for {
		c, err := s.c.Listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			s.c.Log.Error("accept on the runner's socket", "err", err)
			return
		}
		if err := admit(c); err != nil {
			s.c.Log.Warn("connection refused", "why", err)
			c.Close()
			continue
		}
		sc := newServerConn(c)
		s.met(sc)
		go func() {
			s.talk(sc)
			s.left(sc)
		}()
	}
}

func (s *server) met(c *serverConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hadConn = true
	if c != nil {
		s.conns[c] = true
	}
}

func (s *server) left(c *serverConn) {
	c.close()
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
	select {
	case s.gone <- struct{}{}:
	default:
	}
	s.checkIdle()
}

// checkIdle ends the runner when nothing is left to do for it. Processes that
// jobs left behind keep it: it is their reaper.
func (s *server) checkIdle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hadConn && len(s.jobs) == 0 && s.busy == 0 && (s.retired || len(s.conns) == 0) && s.reap.empty() {
		select {
		case s.idle <- struct{}{}:
		default:
		}
	}
}

// stop ends every job and waits for their records.
func (s *server) stop() {
	s.mu.Lock()
	s.stopping = true
	s.mu.Unlock()
	s.awaitStarts()
	s.mu.Lock()
	live := slices.Collect(maps.Values(s.jobs))
	conns := slices.Collect(maps.Keys(s.conns))
	s.mu.Unlock()
	s.c.Log.Info("told to stop: ending all jobs", "jobs", len(live))
	for _, c := range conns {
		if c.subscribed() {
			c.send(message{Stopping: true})
		}
	}
	for _, j := range live {
		j.terminate(stopGrace, "the runner was told to stop")
	}
	s.mu.Lock()
	for s.untold > 0 {
		s.told.Wait()
	}
	over := slices.Collect(maps.Keys(s.book.jobs))
	s.mu.Unlock()
	for _, id := range over {
		_ = s.sweep(id) // it has said in the log what it could not end
	}
	// What a server sent before it heard of the stop is still answered.
	limit := time.NewTimer(leaveWithin)
	defer limit.Stop()
	for {
		s.mu.Lock()
		n := len(s.conns)
		s.mu.Unlock()
		if n == 0 {
			return
		}
		select {
		case <-s.gone:
		case <-limit.C:
			return
		}
	}
}

// talk serves one connection until it ends.
func (s *server) talk(c *serverConn) {
	for {
		var r request
		if err := c.read(&r); err != nil {
			return
		}
		switch {
		case r.Op == opHello:
			// Nothing may go out between the subscription and the answer.
			c.write.Lock()
			c.sendLocked(s.hello(c, r.Seq))
			c.write.Unlock()
		case r.Op == opSpawn && r.Spawn != nil:
			s.begin() // before this connection can end
			go func() {
				defer s.end()
				st, err := s.spawn(c, *r.Spawn)
				c.send(message{Seq: r.Seq, Started: st, Error: toWire(err)})
			}()
		case r.Op == opInput && r.Input != nil:
			go func() {
				deadline := time.Now().Add(r.Input.Timeout)
				c.send(message{Seq: r.Seq, Error: toWire(s.input(r.Input, deadline))})
			}()
		case r.Op == opTerminate && r.Terminate != nil:
			j, err := s.find(r.Terminate.ID)
			if err == nil {
				j.terminate(r.Terminate.Grace, "")
			}
			c.send(message{Seq: r.Seq, Error: toWire(err)})
		case r.Op == opSweep && r.Sweep != nil:
			go func() {
				c.send(message{Seq: r.Seq, Error: toWire(s.sweep(r.Sweep.ID))})
			}()
		case r.Op == opRetire:
			s.mu.Lock()
			s.retired = true
			s.mu.Unlock()
			c.send(message{Seq: r.Seq})
			s.checkIdle()
		default:
			c.send(message{Seq: r.Seq, Error: toWire(fmt.Errorf("the runner does not know the operation %q", r.Op))})
		}
	}
}

// hello introduces the runner and subscribes the connection. Starts that are
// under way are waited for, unless they hang, and those that an earlier server
// asked for and that were not begun are not begun any more: the new one could not
// know of them.
func (s *server) hello(c *serverConn, seq uint64) message {
	s.mu.Lock()
	s.master = c
	s.mu.Unlock()
	s.awaitStarts()
	s.mu.Lock()
	defer s.mu.Unlock()
	h := Hello{Protocol: Protocol, Version: s.c.Version, PID: s.pid, Exe: exeIdentity(), ABI: s.level.ABI}
	for _, j := range s.jobs {
		h.Jobs = append(h.Jobs, j.startedAs())
	}
	h.Stopping = s.stopping
	h.Left = slices.Collect(maps.Keys(s.book.jobs))
	c.subscribe()
	return message{Seq: seq, Hello: &h}
}

// begin and end bracket what the runner must not end in the middle of.
func (s *server) begin() {
	s.mu.Lock()
	s.busy++
	s.mu.Unlock()
}

func (s *server) end() {
	s.mu.Lock()
	s.busy--
	s.mu.Unlock()
	s.checkIdle()
}

func (s *server) spawn(c *serverConn, spec Spec) (*Started, error) {
	u, err := s.beginStart(c)
	if err != nil {
		return nil, err
	}
	j, err := start(spec, owner{reap: s.reap, level: s.level, groups: s.groupsFor(spec.Limits), state: s.state, log: s.c.Log, tooLate: func() string { return s.tooLate(u) }, grew: s.grew, ended: s.ended, started: s.add, leftBehind: s.leftBehind})
	if tooLate := s.endStart(u); err == nil && tooLate != "" {
		j.terminate(0, tooLate)
		err = job.Errorf(job.CodeInternal, "%s", tooLate)
	}
	if err != nil {
		return nil, err
	}
	st := j.startedAs()
	return &st, nil
}

func (s *server) add(j *running) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.untold++
	s.jobs[j.spec.ID] = j
	s.leaders[j.pid] = true
}

func (s *server) find(id job.ID) (*running, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j, ok := s.jobs[id]; ok {
		return j, nil
	}
	return nil, job.Errorf(job.CodeNotRunning, "job %s has ended", id)
}

func (s *server) input(a *inputArgs, deadline time.Time) error {
	j, err := s.find(a.ID)
	if err != nil {
		return err
	}
	return j.input(a.Text, deadline)
}

func (s *server) grew(j *running, size int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.grew(j.spec.ID, size)
	}
}

// ended takes a job off the list and tells every server; where there is none,
// the end is recorded in the database on its behalf.
func (s *server) ended(j *running, r Record) {
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.untold--; s.untold == 0 {
			s.told.Broadcast()
		}
	}()
	s.mu.Lock()
	s.busy++
	delete(s.jobs, j.spec.ID)
	delete(s.leaders, j.pid)
	conns := slices.Collect(maps.Keys(s.conns))
	s.mu.Unlock()
	told := false
	for _, c := range conns {
		if c.subscribed() {
			c.forget(j.spec.ID)
			told = c.send(message{Ended: &Ended{ID: j.spec.ID, Record: r}}) || told
		}
	}
	if !told {
		if err := s.recordExit(j.spec.ID, r); err != nil {
			s.c.Log.Warn("exit not in the database; the next server takes it from the record", "job", j.spec.ID, "err", err)
		}
	}
	s.end()
}
