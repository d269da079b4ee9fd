package supervisor

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"difyrt/runtime/confine"
)

// domain is what a job is started in; each part is nil where the policy or the
// kernel has none of it.
type domain struct {
	level   confine.Level
	rules   *confine.Ruleset
	calls   confine.Filter
	group   *confine.Cgroup
	rlimits []confine.Rlimit
}

func newDomain(spec Spec, level confine.Level, groups *confine.Cgroups, at confine.Place) (d domain, err error) {
	policy := spec.Policy
	d.level = level
	if policy.Strict && level.ABI == 0 {
		return d, &startError{125, errors.New("isolate the job: the mode is strict, and there is no Landlock here; 'difyrt doctor' says why")}
	}
	if policy.Enabled && level.ABI > 0 {
		if d.rules, err = confine.NewRuleset(level, policy.Grants(at)); err != nil {
			return d, &startError{125, fmt.Errorf("isolate the job: %w", err)}
		}
	}
	if policy.Seccomp {
		d.calls = confine.NewFilter(policy.IOURing)
	}
	if d.group, err = groups.New(string(spec.ID), spec.Limits); err != nil {
		d.close()
		return d, &startError{125, fmt.Errorf("limit the job: %w", err)}
	}
	d.rlimits = spec.Limits.Rlimits(d.group)
	return d, nil
}

// String says what is in force, for the exit record.
func (d domain) String() string {
	var parts []string
	if d.rules != nil {
		parts = append(parts, "landlock "+strconv.Itoa(d.level.ABI))
	}
	if d.calls != nil {
		parts = append(parts, "seccomp")
	}
	if d.group != nil {
		parts = append(parts, "cgroup")
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

func (d domain) close() {
	if d.rules != nil {
		d.rules.Close()
	}
}

// watched reports whether the job gets a warden.
func (d domain) watched() bool { return d.rules != nil || d.calls != nil || d.held() }

// held reports whether the job must stand still at its first instruction until
// what cannot be inherited from a thread of ours has been set on it.
func (d domain) held() bool { return d.group != nil || len(d.rlimits) > 0 }

// forkExec starts a process in the domain, with a warden beside it; where there
// is no domain there is no warden. awaitStop waits for a stop of the child.
func (d domain) forkExec(path string, argv []string, attr *syscall.ProcAttr, awaitStop func(pid int) bool) (pid int, w *confine.Warden, err error) {
	attr.Sys.Ptrace = d.held()
	fork := func() {
		if pid, err = syscall.ForkExec(path, argv, attr); err != nil {
			err = explain(err, path, argv)
		} else if d.held() {
			err = d.limit(pid, awaitStop)
		}
	}
	if !d.watched() {
		fork()
		return pid, nil, err
	}
	w, werr := confine.NewWarden(d.level, d.rules, d.calls, d.group, fork)
	if werr != nil {
		d.group.Remove()
		return 0, nil, &startError{125, fmt.Errorf("start the job: %w", werr)}
	}
	if err != nil {
		w.Close()
		return 0, nil, err
	}
	return pid, w, nil
}

// limit is called on the thread that forked the child, which traces it: the
// child stops when its exec is done (ptrace(2), PTRACE_TRACEME), and has forked
// nothing yet that would not inherit the limits.
func (d domain) limit(pid int, awaitStop func(pid int) bool) (err error) {
	if !awaitStop(pid) {
		return nil // it was killed, and its end is told as any other's
	}
	if d.group != nil {
		err = d.group.Enter(pid)
	}
	for _, r := range d.rlimits {
		if err == nil {
			err = r.Set(pid)
		}
	}
	if err == nil {
		err = syscall.PtraceDetach(pid)
	}
	if err == nil || errors.Is(err, unix.ESRCH) {
		return nil
	}
	unix.Kill(pid, unix.SIGKILL)
	return &startError{125, fmt.Errorf("limit the job: %w", err)}
}

// cgroups are looked for when the first job wants one.
type cgroups struct {
	once sync.Once
	all  *confine.Cgroups
}

// groupsFor gives the cgroups that a job is to have one of: when one of its
// limits is kept better so, or when the kernel has no signal scope, by which a
// domain's processes are told from others. A group costs a start two calls into
// the cgroup file system and a stop at the exec, and is not made for nothing.
func (s *server) groupsFor(l confine.Limits) *confine.Cgroups {
	if !l.WantCgroups() && s.level.ABI >= scopeABI {
		return nil
	}
	s.groups.once.Do(func() {
		g := confine.FindCgroups()
		if g == nil {
			return
		}
		if err := g.Prepare(); err != nil {
			s.c.Log.Warn("not every limit can be kept by cgroups", "cgroup", g.Dir, "controllers", g.Controllers, "err", err)
		}
		s.groups.all = g
	})
	return s.groups.all
}

const scopeABI = 6
