package supervisor

import (
	"time"

	"difyrt/runtime/job"
)

// A start opens directories that a client named, and one of them may lie on a
// file system whose server is dead: then it hangs, for ever perhaps, and must
// hurt nobody else.
const (
	// awaitWithin is how long a new server's hello, and a stop, wait for starts.
	awaitWithin = 2 * time.Second
	// startWithin is how long a start may take. It is less than a server waits for
	// it, which then says that the job has failed.
	startWithin = 20 * time.Second
)

// underWay is a start between its request and its answer.
type underWay struct {
	began     time.Time
	done      chan struct{}
	abandoned bool // nobody waits for it any more, and its job must not run
}

// starts are those under way. The server's mu guards them.
type starts map[*underWay]struct{}

// beginStart refuses what the new server, or nobody, could know of.
func (s *server) beginStart(c *serverConn) (*underWay, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return nil, job.Errorf(codeStopping, "the runner was told to stop")
	}
	if c != s.master {
		return nil, job.Errorf(codeStopping, "another server has come")
	}
	u := &underWay{began: time.Now(), done: make(chan struct{})}
	s.starts[u] = struct{}{}
	return u, nil
}

// endStart says why a job that was started must not run on, if so.
func (s *server) endStart(u *underWay) (tooLate string) {
	s.mu.Lock()
	delete(s.starts, u)
	close(u.done)
	s.mu.Unlock()
	return s.tooLate(u)
}

func (s *server) tooLate(u *underWay) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case u.abandoned:
		return "its server went away while it was being started"
	case time.Since(u.began) > startWithin:
		return "its start took too long: its HOME or cwd, or its interpreter, did not answer"
	}
	return ""
}

// awaitStarts waits for the starts that are under way, and gives those up that
// hang: their jobs are ended as soon as they run.
func (s *server) awaitStarts() {
	s.mu.Lock()
	all := make([]*underWay, 0, len(s.starts))
	for u := range s.starts {
		all = append(all, u)
	}
	s.mu.Unlock()
	limit := time.NewTimer(awaitWithin)
	defer limit.Stop()
	for _, u := range all {
		select {
		case <-u.done:
			continue
		case <-limit.C:
		}
		s.mu.Lock()
		for _, u := range all {
			if _, there := s.starts[u]; there {
				u.abandoned = true
			}
		}
		s.mu.Unlock()
		return
	}
}
