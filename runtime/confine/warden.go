package confine

import (
	"fmt"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// Warden is a thread of this process inside a job's domain. The job is forked
// from it, and as long as it lives it can tell the domain's processes from all
// others, and end them: with signals scoped (ABI 6), a signal from inside the
// domain reaches the domain and nothing else, and a process can no more leave
// its domain than forge one. Descent and sessions, which a process can leave,
// are not needed then.
//
// The thread can never go back. It is parked while nobody calls, and ended by
// Close.
type Warden struct {
	mu     sync.Mutex  // held for each call
	calls  chan func() // nil once it is closed
	scoped bool
	group  *Cgroup // the job's, which tells its processes apart as well
}

// NewWarden starts a thread, puts it into the ruleset's domain and under the
// filter, either of which may be nil, and has it run first, which is to fork the
// job: a call of its own would cost another change of threads. The ruleset may be
// closed afterwards; the cgroup, which may be nil too, is removed by Close.
func NewWarden(l Level, rs *Ruleset, f Filter, g *Cgroup, first func()) (*Warden, error) {
	if err := claimThread(); err != nil {
		return nil, err
	}
	calls := make(chan func())
	w := &Warden{calls: calls, group: g}
	entered := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := restrict(rs, f)
		if err == nil && rs != nil && l.Scoped&scopeSignal != 0 {
			// The kernel took the scope when the ruleset was made. As root this
			// also sees that the way out is shut; a plain user could not tell.
			w.scoped = unix.Kill(1, 0) == unix.EPERM
		}
		if err == nil {
			first()
		}
		entered <- err
		if err != nil {
			return
		}
		for f := range calls {
			f()
		}
	}()
	if err := <-entered; err != nil {
		return nil, err
	}
	return w, nil
}

func restrict(rs *Ruleset, f Filter) error {
	// Of this thread alone (setpriority(2), "C library/kernel differences"). A
	// server that was started with a lower priority may not go back: then its
	// jobs cannot either.
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, 0)
	if rs == nil && f == nil {
		return nil
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	if rs != nil {
		if err := dropCapabilities(); err != nil {
			return err
		}
		if err := rs.enter(); err != nil {
			return err
		}
	}
	if f != nil {
		return f.enter()
	}
	return nil
}

// Do runs f on the thread, one at a time; after Close it does nothing.
func (w *Warden) Do(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.calls == nil {
		return
	}
	done := make(chan struct{})
	w.calls <- func() {
		defer close(done)
		f()
	}
	<-done
}

// Close ends the thread, and the cgroup when it is empty.
func (w *Warden) Close() {
	w.group.Remove()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.calls != nil {
		close(w.calls)
		w.calls = nil
	}
}

// Scoped reports whether the warden knows its domain's processes from others.
func (w *Warden) Scoped() bool { return w != nil && w.scoped }

// KillAll sends SIGKILL to every process of the domain in one step of the
// kernel, so that none can fork out of it. It does nothing without a scope and
// without a cgroup.
func (w *Warden) KillAll() {
	if w != nil {
		w.group.Kill()
	}
	if w.Scoped() {
		// The error says only that the last one looked at is not of the domain.
		w.Do(func() { _ = unix.Kill(-1, unix.SIGKILL) })
	}
}

// HoldsAny reports whether one of the processes belongs to the domain.
func (w *Warden) HoldsAny(pids []int) (yes bool) {
	w.Do(func() {
		for _, pid := range pids {
			if pid > 0 && unix.Kill(pid, 0) == nil {
				yes = true
			}
		}
	})
	return yes
}

// held marks which processes belong to the domain.
func (w *Warden) held(all []Process, self int) map[int]bool {
	in := map[int]bool{}
	if w != nil {
		for _, pid := range w.group.Members() {
			in[pid] = true
		}
	}
	if w.Scoped() {
		w.Do(func() {
			for _, p := range all {
				// This process is always allowed to itself.
				if p.PID != self && unix.Kill(p.PID, 0) == nil {
					in[p.PID] = true
				}
			}
		})
	}
	return in
}
