package endtoend

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func write(t testing.TB, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// plainUser is who the server runs as where a test is about a user without
// rights: nobody that is likely to have processes here.
const plainUser = 54321

// startAsUser starts a server as a plain user, also when the tests are root's.
func startAsUser(t testing.TB, opts ...option) *server {
	t.Helper()
	if os.Getuid() != 0 {
		return start(t, opts...)
	}
	dir := t.TempDir()
	for p := dir; p != "/" && p != os.TempDir(); p = filepath.Dir(p) {
		if err := os.Chmod(p, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	home := filepath.Join(dir, "home")
	if err := os.Mkdir(home, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{dir, home} {
		if err := os.Chown(d, plainUser, plainUser); err != nil {
			t.Fatal(err)
		}
	}
	s := newServer(t, append([]option{withHome(home), withState(filepath.Join(dir, "state"))}, opts...)...)
	s.attr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: plainUser, Gid: plainUser}}
	s.start()
	return s
}

type process struct {
	pid, ppid, session int
	state              byte
	args               []string
}

func processes() []process {
	var all []process
	names, _ := filepath.Glob("/proc/[0-9]*")
	for _, n := range names {
		pid, _ := strconv.Atoi(filepath.Base(n))
		b, err := os.ReadFile(n + "/stat")
		i := bytes.LastIndexByte(b, ')')
		if err != nil || i < 0 {
			continue
		}
		f := strings.Fields(string(b[i+1:]))
		p := process{pid: pid, state: f[0][0]}
		p.ppid, _ = strconv.Atoi(f[1])
		p.session, _ = strconv.Atoi(f[3])
		line, _ := os.ReadFile(n + "/cmdline")
		p.args = strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
		all = append(all, p)
	}
	return all
}

func descendants(root int) (pids []int) {
	kids := map[int][]int{}
	for _, p := range processes() {
		kids[p.ppid] = append(kids[p.ppid], p.pid)
	}
	for todo := []int{root}; len(todo) > 0; todo = todo[1:] {
		pids = append(pids, kids[todo[0]]...)
		todo = append(todo, kids[todo[0]]...)
	}
	return pids
}

// withArg finds living processes that have this word on their command line.
func withArg(arg string) (pids []int) {
	for _, p := range processes() {
		for _, a := range p.args {
			if a == arg && p.state != 'Z' && p.pid != os.Getpid() {
				pids = append(pids, p.pid)
			}
		}
	}
	return pids
}

// awaitDeath sleeps on a pidfd until the process is gone.
func awaitDeath(t testing.TB, pid int) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for end := time.Now().Add(patience); ; {
		n, err := unix.Poll(fds, int(time.Until(end).Milliseconds()))
		if err == unix.EINTR {
			continue
		}
		if n != 1 {
			t.Fatalf("process %d does not die", pid)
		}
		return
	}
}

// unique is a number of seconds for sleep(1) that no other process sleeps for.
func unique() string {
	return fmt.Sprintf("%d.%09d", 3000+os.Getpid()%1000, time.Now().UnixNano()%1e9)
}

// awaitFile sleeps on inotify until the file's text holds what.
func awaitFile(t testing.TB, path, what string) {
	t.Helper()
	awaitChange(t, func() bool {
		b, err := os.ReadFile(path)
		return err == nil && strings.Contains(string(b), what)
	}, filepath.Dir(path))
}

// awaitEmpty sleeps until the directory has no entries.
func awaitEmpty(t testing.TB, dir string) {
	t.Helper()
	awaitChange(t, func() bool {
		list, err := os.ReadDir(dir)
		return err == nil && len(list) == 0
	}, dir)
}

// awaitChange looks again at each change in one of the directories until ok.
func awaitChange(t testing.TB, ok func() bool, dirs ...string) {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for _, dir := range dirs {
		if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_CREATE|unix.IN_MODIFY|unix.IN_MOVED_TO|unix.IN_CLOSE_WRITE|unix.IN_DELETE); err != nil {
			t.Fatal(err)
		}
	}
	buf := make([]byte, 64<<10)
	for end := time.Now().Add(patience); !ok(); {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if n, err := unix.Poll(fds, int(time.Until(end).Milliseconds())); n == 0 || err != nil && err != unix.EINTR {
			t.Fatalf("what was awaited in %s never came", dirs)
		}
		unix.Read(fd, buf)
	}
}

// stateFlag is empty for a server on its default state directory.
func (s *server) stateFlag() []string {
	if s.state == "" {
		return nil
	}
	return []string{"--state-dir", s.state}
}
