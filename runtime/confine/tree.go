package confine

import (
	"bytes"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Process is one row of /proc/PID/stat (proc_pid_stat(5)).
type Process struct {
	PID, PPID, Group, Session int
	State                     byte
	Start                     uint64 // clock ticks after boot: tells a reused PID from the old one
}

// Dead reports a process that only waits to be reaped.
func (p Process) Dead() bool { return p.State == 'Z' || p.State == 'X' }

// Processes reads the whole process table. A process that goes away meanwhile
// is left out.
func Processes() ([]Process, error) {
	d, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	all := make([]Process, 0, len(names))
	for _, n := range names {
		pid, err := strconv.Atoi(n)
		if err != nil {
			continue
		}
		if p, ok := ReadProcess(pid); ok {
			all = append(all, p)
		}
	}
	return all, nil
}

// clockTick is the unit of Process.Start: the kernel reports in USER_HZ, which is
// 100 on every architecture that we build for (proc_pid_stat(5)).
const clockTick = time.Second / 100

// StartedNow bounds the Start of a process that has just been forked, from
// above. It saves the read of its row.
func StartedNow() uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0
	}
	return uint64(ts.Nano() / int64(clockTick))
}

// ReadProcess reads one row; false when there is no such process.
func ReadProcess(pid int) (Process, bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return Process{}, false
	}
	return parseStat(pid, b)
}

// parseStat takes the fields behind the command's name, which may itself hold
// blanks and parentheses.
func parseStat(pid int, b []byte) (Process, bool) {
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return Process{}, false
	}
	f := bytes.Fields(b[i+1:])
	if len(f) < 20 || len(f[0]) != 1 {
		return Process{}, false
	}
	num := func(i int) int { n, _ := strconv.Atoi(string(f[i])); return n }
	start, err := strconv.ParseUint(string(f[19]), 10, 64)
	if err != nil {
		return Process{}, false
	}
	return Process{PID: pid, PPID: num(1), Group: num(2), Session: num(3), State: f[0][0], Start: start}, true
}

// Tree follows the processes that one session leader started, over several
// looks at the process table: by their domain where the kernel can tell it, and
// everywhere by descent, by session, and by having been seen before. It is not
// safe for concurrent use.
type Tree struct {
	warden   *Warden
	sessions map[int]uint64 // session to its leader's Start
	known    map[int]uint64 // PID to Start
}

// NewTree begins with the session leader; only its PID and Start count, and
// Start may be a bound from above. The warden may be nil.
func NewTree(leader Process, w *Warden) *Tree {
	return &Tree{warden: w, sessions: map[int]uint64{leader.PID: leader.Start}, known: map[int]uint64{}}
}

// Look finds the tree's living members in a process table, and remembers them.
func (t *Tree) Look(all []Process) []Process {
	children := make(map[int][]Process, len(all))
	for _, p := range all {
		children[p.PPID] = append(children[p.PPID], p)
		// A session's number is free again once its last process is gone; who
		// has it then started later.
		if start, ok := t.sessions[p.PID]; ok && p.Start > start {
			delete(t.sessions, p.PID)
		}
	}
	held := t.warden.held(all, os.Getpid())
	var todo []Process
	for _, p := range all {
		_, session := t.sessions[p.Session]
		if start, ok := t.known[p.PID]; session || held[p.PID] || (ok && start == p.Start) {
			todo = append(todo, p)
		}
	}
	var members []Process
	seen := make(map[int]bool, len(todo))
	for len(todo) > 0 {
		p := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if seen[p.PID] {
			continue
		}
		seen[p.PID] = true
		t.known[p.PID] = p.Start
		if p.PID == p.Session {
			t.sessions[p.Session] = p.Start
		}
		if !p.Dead() {
			members = append(members, p)
		}
		todo = append(todo, children[p.PID]...)
	}
	return members
}

// Adopted lists the direct children that came to this process as their
// subreaper, and those that its main thread forked; false when the kernel does
// not tell (CONFIG_PROC_CHILDREN).
func Adopted() ([]int, bool) {
	self := strconv.Itoa(os.Getpid())
	b, err := os.ReadFile("/proc/self/task/" + self + "/children")
	if err != nil {
		return nil, false
	}
	var pids []int
	for _, f := range bytes.Fields(b) {
		if pid, err := strconv.Atoi(string(f)); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, true
}

// killRounds bounds how often Kill looks again; each round kills all that it
// sees, so that only a tree which forks faster than that survives it.
const killRounds = 50

// Kill sends SIGKILL to every member until none is left or the deadline has
// passed, and reports whether the tree is gone. Every signal goes through a
// pidfd whose process was checked after it was opened, so that a PID which was
// reused in between is never hit.
func (t *Tree) Kill(deadline time.Time) bool {
	for range killRounds {
		t.warden.KillAll()
		all, err := Processes()
		if err != nil {
			return false
		}
		members := t.Look(all)
		if len(members) == 0 {
			return true
		}
		var fds []unix.PollFd
		for _, p := range members {
			if fd, ok := openPidfd(p); ok {
				if unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil {
					fds = append(fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
				} else {
					unix.Close(fd)
				}
			}
		}
		awaitAll(fds, deadline)
		if time.Now().After(deadline) {
			return false
		}
	}
	return false
}

// openPidfd gives a pidfd that is certain to be this process's.
func openPidfd(p Process) (int, bool) {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return -1, false
	}
	if now, ok := ReadProcess(p.PID); !ok || now.Start != p.Start {
		unix.Close(fd)
		return -1, false
	}
	return fd, true
}

// awaitAll waits until each pidfd's process has exited, and closes them.
func awaitAll(fds []unix.PollFd, deadline time.Time) {
	for i := range fds {
		for {
			ms := int(time.Until(deadline).Milliseconds()) + 1
			if ms <= 0 {
				break
			}
			if _, err := unix.Poll(fds[i:i+1], ms); err != unix.EINTR {
				break
			}
		}
		unix.Close(int(fds[i].Fd))
	}
}
