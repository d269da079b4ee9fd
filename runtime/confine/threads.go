package confine

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// A Go program that wants a thread and gets none ends on the spot. A job that
// forks without end, in a container with a limit on processes, would so take the
// runner with it, and the runner every other job. Hence some threads are made in
// time and stand idle, and no job is started when the limit is near.

const (
	spareThreads = 12 // made at a time
	usedThreads  = 6  // wardens after which more are made: each takes one for good
	leastRoom    = 24 // threads that must be free for a job to be started
)

// SpareThreads makes threads that the program finds idle when it wants some and
// can get none any more. Where the limit is near already it makes none.
func SpareThreads() {
	if threadRoom() != nil {
		return
	}
	var locked sync.WaitGroup
	release := make(chan struct{})
	for range spareThreads {
		locked.Add(1)
		go func() {
			runtime.LockOSThread() // each has a thread of its own now
			locked.Done()
			<-release
			runtime.UnlockOSThread() // and the thread stays
		}()
	}
	locked.Wait()
	close(release)
}

var wardens atomic.Int64

// claimThread is called for each thread that will not come back.
func claimThread() error {
	if err := threadRoom(); err != nil {
		return err
	}
	if wardens.Add(1)%usedThreads == 0 {
		go SpareThreads()
	}
	return nil
}

// threadRoom gives an error when a limit on processes and threads is near: that
// of a cgroup that can be seen from here, of the user (getrlimit(2),
// RLIMIT_NPROC), or of the machine.
func threadRoom() error {
	for _, dir := range pidsGroups() {
		max, ok := readNumber(filepath.Join(dir, "pids.max"))
		if !ok { // "max"
			continue
		}
		if now, ok := readNumber(filepath.Join(dir, "pids.current")); ok && now+leastRoom > max {
			return near(now, max, "the container")
		}
	}
	all, ok := threadsOfAll()
	if !ok {
		return nil
	}
	if max := machineThreads(); all+leastRoom > max {
		return near(all, max, "the machine")
	}
	var l unix.Rlimit
	if os.Getuid() == 0 || unix.Getrlimit(unix.RLIMIT_NPROC, &l) != nil || uint64(all)+leastRoom <= l.Cur {
		return nil // there are not that many on the whole machine
	}
	if own := threadsOf(os.Getuid()); uint64(own)+leastRoom > l.Cur {
		return near(own, int64(l.Cur), "the user")
	}
	return nil
}

// near is EAGAIN, as a fork would give it.
func near(now, max int64, whose string) error {
	return fmt.Errorf("no more processes: %s has %d of at most %d: %w", whose, now, max, unix.EAGAIN)
}

// pidsGroups are the cgroups with a pids controller that this process is in, of
// both versions, as far up as can be seen.
var pidsGroups = sync.OnceValue(func() (dirs []string) {
	mounts, err1 := os.ReadFile("/proc/self/mountinfo")
	own, err2 := os.ReadFile("/proc/self/cgroup")
	if errors.Join(err1, err2) != nil {
		return nil
	}
	return findPidsGroups(mounts, own)
})

func findPidsGroups(mounts, own []byte) (dirs []string) {
	groups := groupsOf(own)
	for _, m := range parseMounts(mounts) {
		var path string
		switch {
		case m.kind == "cgroup2":
			path = groups[unified]
		case m.kind == "cgroup" && slices.Contains(strings.Split(m.options, ","), pidsController):
			path = groups[pidsController]
		}
		if path == "" {
			continue
		}
		for dir := m.below(path); dir == m.point || strings.HasPrefix(dir, m.point+"/"); dir = filepath.Dir(dir) {
			if _, err := os.Stat(filepath.Join(dir, "pids.max")); err == nil {
				dirs = append(dirs, dir)
			}
		}
	}
	return dirs
}

func readNumber(path string) (int64, bool) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(string(bytes.TrimSpace(b)), 10, 64)
	return n, err == nil
}

// threadsOfAll counts the machine's threads: the number behind the slash in
// proc_loadavg(5).
func threadsOfAll() (int64, bool) {
	fd := loadavg()
	var b [128]byte
	n, err := unix.Pread(fd, b[:], 0)
	if err != nil {
		return 0, false
	}
	_, rest, ok := bytes.Cut(b[:n], []byte("/"))
	number, _, _ := bytes.Cut(rest, []byte(" "))
	all, err := strconv.ParseInt(string(number), 10, 64)
	return all, ok && err == nil
}

// loadavg stays open: it is read for each job.
var loadavg = sync.OnceValue(func() int {
	fd, err := unix.Open("/proc/loadavg", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	return fd
})

var machineThreads = sync.OnceValue(func() int64 {
	least := int64(1) << 22 // PID_MAX_LIMIT
	for _, name := range []string{"threads-max", "pid_max"} {
		if n, ok := readNumber("/proc/sys/kernel/" + name); ok {
			least = min(least, n)
		}
	}
	return least
})

// threadsOf counts a user's threads, which takes a look at every process.
func threadsOf(uid int) (n int64) {
	all, err := Processes()
	if err != nil {
		return 0
	}
	for _, p := range all {
		dir := "/proc/" + strconv.Itoa(p.PID)
		var st unix.Stat_t
		if unix.Stat(dir+"/task", &st) != nil {
			continue
		}
		// An undumpable process's directory is root's, but then it may be ours.
		if int(st.Uid) == uid || int(st.Uid) == 0 && uidOf(dir) == uid {
			n += int64(st.Nlink) - 2 // a directory a thread
		}
	}
	return n
}

func uidOf(dir string) int {
	b, err := os.ReadFile(dir + "/status")
	if err != nil {
		return -1
	}
	_, rest, _ := strings.Cut(string(b), "\nUid:\t")
	real, _, _ := strings.Cut(rest, "\t")
	uid, err := strconv.Atoi(real)
	if err != nil {
		return -1
	}
	return uid
}
