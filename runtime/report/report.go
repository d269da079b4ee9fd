// Package report tells an operator what of the isolation is really in force on
// this machine, why what is missing is missing, and what to do about it. It asks
// the kernel and guesses nothing.
package report

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"difyrt/runtime/confine"
	"difyrt/runtime/version"
)

// Report is the answer of GET /v1/info and of `difyrt doctor --json`.
type Report struct {
	Version  string   `json:"version"`
	Kernel   string   `json:"kernel"`
	UID      int      `json:"uid"`
	Mode     string   `json:"isolation"` // strict or best-effort
	Landlock Landlock `json:"landlock"`
	Seccomp  Seccomp  `json:"seccomp"`
	// Subreaper: orphans of a job come to the runner.
	Subreaper bool `json:"subreaper"`
	// Cgroup is the directory of a cgroup v2 in which jobs can have groups, empty
	// when there is none; Controllers are those that the groups would have.
	Cgroup      string            `json:"cgroup"`
	Controllers []string          `json:"cgroup_controllers"`
	Limits      map[string]string `json:"limits"`     // this process's
	JobLimits   confine.Limits    `json:"job_limits"` // what jobs get beside
	State       State             `json:"state"`
	// Refuses: in strict mode no job would be started.
	Refuses bool     `json:"strict_would_refuse"`
	Advice  []string `json:"advice"`
}

// Landlock is what the kernel gives and what of it is used.
type Landlock struct {
	Wanted bool     `json:"wanted"`
	ABI    int      `json:"abi"`
	Absent string   `json:"absent,omitempty"` // why there is none
	Rights []string `json:"rights"`           // in force for a job
}

// Seccomp is the system call filter.
type Seccomp struct {
	Wanted  bool   `json:"wanted"`
	InForce bool   `json:"in_force"`
	Absent  string `json:"absent,omitempty"`
}

// State says where the state directory is.
type State struct {
	Directory string `json:"directory"`
	// InHome: jobs with the server's home as HOME can write in it.
	InHome bool `json:"in_home"`
}

// Gather asks the kernel. stateDir and home are absolute.
func Gather(p confine.Policy, l confine.Limits, stateDir, home string) Report {
	r := Report{Version: version.String(), Kernel: kernel(), UID: os.Geteuid(), Mode: p.Mode(), Limits: limits(), JobLimits: l, Controllers: []string{}, Advice: []string{}}
	advise := func(format string, args ...any) { r.Advice = append(r.Advice, fmt.Sprintf(format, args...)) }

	level, err := confine.Probe()
	r.Landlock = Landlock{Wanted: p.Enabled, ABI: level.ABI, Absent: confine.WhyNot(err), Rights: []string{}}
	switch {
	case !p.Enabled:
		advise("jobs can reach every file of this user: %s is false", confine.EnvIsolation)
	case level.ABI == 0:
		advise("jobs can reach every file of this user: %s", r.Landlock.Absent)
	default:
		r.Landlock.Rights = level.Names()
		if level.ABI < 2 {
			advise("rename and hard links between directories fail in jobs: Landlock ABI 1 cannot allow them (Linux 5.19 can)")
		}
		if level.ABI < 6 {
			advise("jobs can signal each other, and a daemon can outlive its job: Landlock ABI %d has no signal scope (Linux 6.12 has)", level.ABI)
		}
	}
	r.Refuses = level.ABI == 0 || !p.Enabled

	r.Seccomp.Wanted = p.Seccomp
	r.Seccomp.Absent = seccompAbsent()
	r.Seccomp.InForce = p.Seccomp && r.Seccomp.Absent == ""
	if !r.Seccomp.InForce {
		advise("jobs can make every system call: %s", cmp.Or(r.Seccomp.Absent, confine.EnvSeccomp+" is false"))
	}
	if g := confine.FindCgroups(); g != nil {
		r.Cgroup, r.Controllers = g.Dir, append(r.Controllers, g.Controllers...)
	}
	for _, name := range l.Unkept(r.Controllers, r.UID == 0) {
		advise("nothing here can keep %s: give the server a cgroup v2 that it may write in", name)
	}
	r.Subreaper = hasSubreaper()
	if !r.Subreaper {
		advise("orphans of jobs go to init and are not known any more: the kernel has no subreaper")
	}
	if r.UID == 0 {
		advise("jobs run as root: start the server as a user of its own")
	}
	above := confine.AncestorsOf(stateDir)
	r.State = State{Directory: stateDir, InHome: above.Has(home)}
	if r.State.InHome && p.Enabled {
		advise("jobs with HOME %s can read and write the state directory %s: put it elsewhere with --state-dir", home, stateDir)
	}
	for _, path := range slices.Concat(p.RW, p.RO) {
		if above.Has(path) && p.Enabled {
			advise("every job can reach the state directory %s: %s, which is open to jobs, holds it", stateDir, path)
		}
	}
	return r
}

// hasSubreaper asks with an address that is none, which only a kernel that knows
// the question looks at (prctl(2)).
func hasSubreaper() bool {
	return errors.Is(unix.Prctl(unix.PR_GET_CHILD_SUBREAPER, 0, 0, 0, 0), unix.EFAULT)
}

func kernel() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown: " + err.Error()
	}
	return unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:]) + " " + unix.ByteSliceToString(u.Machine[:])
}

// seccompAbsent asks whether a filter could be entered, without entering one: a
// bad address is only looked at by a kernel that has filters (seccomp(2)).
func seccompAbsent() string {
	if confine.NewFilter(false) == nil {
		return "there is no filter for this architecture"
	}
	err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, 0, 0, 0)
	if errors.Is(err, unix.EFAULT) {
		return ""
	}
	return fmt.Sprintf("the kernel refuses filters: %v", err)
}

func limits() map[string]string {
	m := map[string]string{}
	for name, what := range map[string]int{"open_files": unix.RLIMIT_NOFILE, "processes": unix.RLIMIT_NPROC, "file_size": unix.RLIMIT_FSIZE,
		"address_space": unix.RLIMIT_AS, "cpu_seconds": unix.RLIMIT_CPU, "core": unix.RLIMIT_CORE} {
		var r unix.Rlimit
		if err := unix.Getrlimit(what, &r); err != nil {
			m[name] = "unknown: " + err.Error()
			continue
		}
		m[name] = limit(r.Cur) + " of " + limit(r.Max)
	}
	return m
}

func limit(v uint64) string {
	if v == unix.RLIM_INFINITY {
		return "unlimited"
	}
	return fmt.Sprint(v)
}
