package supervisor

import (
	"maps"
	"slices"
	"time"

	"difyrt/runtime/confine"
	"difyrt/runtime/job"
)

// An agent may start a server in the background and let its script end. Such
// processes live on, and the runner keeps knowing whose they are, so that
// terminate and delete still end them.

// book is what the runner keeps of ended jobs with living processes.
type book struct {
	jobs map[job.ID]*running
	// owners names the direct children of the runner that are known to be left
	// over, so that each is attributed once and its death is noticed.
	owners map[int]job.ID
}

// leftBehind counts the processes that outlived a job's script, and takes the
// job into the book when there are any. The common case of none costs the read
// of one small file.
func (s *server) leftBehind(j *running) int {
	adopted, known := confine.Adopted()
	s.mu.Lock()
	adopted = slices.DeleteFunc(adopted, func(pid int) bool {
		_, attributed := s.book.owners[pid]
		return attributed || s.leaders[pid]
	})
	s.mu.Unlock()
	if known && (len(adopted) == 0 || j.warden.Scoped() && !j.warden.HoldsAny(adopted)) {
		return 0
	}
	all, err := confine.Processes()
	if err != nil {
		s.c.Log.Warn("processes that a job left behind are not counted", "job", j.spec.ID, "err", err)
		return 0
	}
	members := confine.NewTree(j.leader, j.warden).Look(all)
	if len(members) > 0 {
		s.mu.Lock()
		s.book.jobs[j.spec.ID] = j
		s.attribute(j.spec.ID, members)
		s.mu.Unlock()
		for _, p := range members { // who died before it was noted is noticed now
			if _, alive := confine.ReadProcess(p.PID); !alive {
				s.orphanReaped(p.PID)
			}
		}
	}
	return len(members)
}

// attribute notes the direct children among a job's processes. The caller holds s.mu.
func (s *server) attribute(id job.ID, members []confine.Process) {
	for _, p := range members {
		if p.PPID == s.pid {
			s.book.owners[p.PID] = id
		}
	}
}

// orphanReaped is told of every child's death that is not a job's leader's.
func (s *server) orphanReaped(pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, ok := s.book.owners[pid]
	if !ok {
		return
	}
	delete(s.book.owners, pid)
	for _, other := range s.book.owners {
		if other == id {
			return
		}
	}
	go s.lookAgain(id)
}

// lookAgain closes a job's page in the book when its last process has gone; a
// child of that one may have come in its place.
func (s *server) lookAgain(id job.ID) {
	s.mu.Lock()
	j := s.book.jobs[id]
	s.mu.Unlock()
	if j == nil {
		return
	}
	all, err := confine.Processes()
	if err != nil {
		return
	}
	members := confine.NewTree(j.leader, j.warden).Look(all)
	if len(members) == 0 {
		s.forget(id)
		return
	}
	s.mu.Lock()
	s.attribute(id, members)
	s.mu.Unlock()
}

// forget takes a job out of the book.
func (s *server) forget(id job.ID) {
	s.mu.Lock()
	j := s.book.jobs[id]
	delete(s.book.jobs, id)
	maps.DeleteFunc(s.book.owners, func(_ int, o job.ID) bool { return o == id })
	conns := slices.Collect(maps.Keys(s.conns))
	s.mu.Unlock()
	if j == nil {
		return
	}
	j.dismiss()
	for _, c := range conns {
		if c.subscribed() {
			c.send(message{LeftEnded: id})
		}
	}
}

// sweep kills what an ended job has left behind.
func (s *server) sweep(id job.ID) error {
	s.mu.Lock()
	j := s.book.jobs[id]
	s.mu.Unlock()
	if j == nil {
		return nil
	}
	if !confine.NewTree(j.leader, j.warden).Kill(time.Now().Add(killWithin)) {
		s.c.Log.Error("processes of an ended job are still there", "job", id)
		return job.Errorf(job.CodeInternal, "processes of job %s hang in the kernel, or fork faster than they can be killed", id)
	}
	s.forget(id)
	return nil
}
