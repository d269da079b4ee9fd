package supervisor

import (
	"errors"
	"sync"

	"golang.org/x/sys/unix"
)

// reaper is the one owner of wait(2) in the runner: it reaps jobs and every
// orphan that comes to the runner as their subreaper, and tells each job's
// owner of its exit. One owner is what makes a PID safe to name: nobody else
// can free it.
type reaper struct {
	mu       sync.Mutex
	forked   *sync.Cond
	forks    uint64 // forks that are over
	ticket   uint64 // forks that began
	inflight int
	waiting  map[int]func(unix.WaitStatus)
	// early holds exits that came before their fork was registered: a child may
	// be dead before fork returns here. It is only filled while a fork is under way.
	early map[int]earlyExit
	// stopped are forked children that stand still at their first instruction.
	stopped   map[int]bool
	news      *sync.Cond // something was added to early or stopped
	childless bool
	onEmpty   func()    // called when the last child is gone
	onOrphan  func(int) // called for each reaped child that nobody waits for
}

type earlyExit struct {
	status unix.WaitStatus
	ticket uint64
}

func newReaper(onEmpty func(), onOrphan func(int)) *reaper {
	r := &reaper{waiting: map[int]func(unix.WaitStatus){}, early: map[int]earlyExit{}, stopped: map[int]bool{}, childless: true, onEmpty: onEmpty, onOrphan: onOrphan}
	r.forked, r.news = sync.NewCond(&r.mu), sync.NewCond(&r.mu)
	return r
}

// fork runs start, which must fork one child, and calls exited once with the
// child's status. exited runs on the reaper's goroutine or, for a child that
// was faster than us, on a new one; it must not block. When start makes the child
// stop at its exec, it learns from awaitStop that the child does; false says that
// the child has died instead.
func (r *reaper) fork(start func(awaitStop func(pid int) bool) (pid int, err error), exited func(unix.WaitStatus)) (int, error) {
	r.mu.Lock()
	r.inflight++
	ticket := r.ticket
	r.ticket++
	r.mu.Unlock()

	pid, err := start(func(pid int) bool { return r.awaitStop(pid, ticket) })

	r.mu.Lock()
	defer r.mu.Unlock()
	r.inflight--
	if err == nil {
		// An entry that is older than this fork is of an earlier owner of the PID.
		if e, ok := r.early[pid]; ok && e.ticket > ticket {
			go exited(e.status)
		} else {
			r.waiting[pid] = exited
		}
		delete(r.early, pid)
		r.forks++
		r.childless = false
		r.forked.Signal()
	}
	if r.inflight == 0 {
		clear(r.early)
	}
	return pid, err
}

func (r *reaper) awaitStop(pid int, ticket uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forks++ // there is a child to wait for
	r.childless = false
	r.forked.Signal()
	for {
		if r.stopped[pid] {
			delete(r.stopped, pid)
			return true
		}
		if e, ok := r.early[pid]; ok && e.ticket > ticket {
			return false
		}
		r.news.Wait()
	}
}

// empty reports whether the process has no child at all, dead or alive.
func (r *reaper) empty() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.childless && r.inflight == 0
}

// run reaps for ever; it owns one thread, which sleeps in wait4(2).
func (r *reaper) run() {
	for {
		r.mu.Lock()
		forks := r.forks
		r.mu.Unlock()

		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, 0, nil)
		switch {
		case errors.Is(err, unix.ECHILD):
			r.mu.Lock()
			if forks == r.forks {
				r.childless = true
				r.mu.Unlock()
				r.onEmpty()
				r.mu.Lock()
			}
			for forks == r.forks {
				r.forked.Wait()
			}
			r.mu.Unlock()
		case err != nil: // EINTR
		default:
			r.reaped(pid, ws)
		}
	}
}

func (r *reaper) reaped(pid int, ws unix.WaitStatus) {
	r.mu.Lock()
	if ws.Stopped() { // only of a child that we trace are stops told
		r.stopped[pid] = true
		r.news.Broadcast()
		r.mu.Unlock()
		return
	}
	exited, ok := r.waiting[pid]
	delete(r.waiting, pid)
	if !ok && r.inflight > 0 {
		r.early[pid] = earlyExit{ws, r.ticket}
		r.news.Broadcast()
	}
	r.mu.Unlock()
	if ok {
		exited(ws)
	} else {
		r.onOrphan(pid)
	}
}

// exitCode is the one place where a signalled death becomes 128+n.
func exitCode(ws unix.WaitStatus) int {
	if ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return ws.ExitStatus()
}
