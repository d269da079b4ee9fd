package endtoend

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Each limit stops a job that runs into it, and the same job goes through
// without the limit.
func TestKernelLimits(t *testing.T) {
	need(t, "python3", "bash")
	for name, c := range map[string]struct {
		env, script string
		stopped     func(r result) bool
	}{
		"open files": {"SHELLCTL_JOB_MAX_OPEN_FILES=40", `bash -c 'for i in $(seq 60); do eval "exec {fd}</dev/null" || exit 9; done'`,
			func(r result) bool { return r.code() == 9 && strings.Contains(r.Output, "Too many open files") }},
		"file size": {"SHELLCTL_JOB_MAX_FILE_BYTES=100000", "head -c 200000 /dev/zero > big; r=$?; [ $(stat -c %s big) = 200000 ] || exit 9",
			func(r result) bool { return r.code() == 9 }},
		"cpu seconds": {"SHELLCTL_JOB_MAX_CPU_SECONDS=1", "i=0; while [ $i -lt 1500000 ]; do i=$((i+1)); done; echo finished",
			func(r result) bool {
				return r.code() == 128+int(syscall.SIGKILL) || r.code() == 128+int(syscall.SIGXCPU)
			}},
		"memory": {"SHELLCTL_JOB_MAX_MEMORY_BYTES=200000000", `/usr/bin/python3 -c 'b = bytearray(400_000_000); print(len(b))' || exit 9`,
			func(r result) bool { return r.code() == 9 }}, // refused, or killed where a cgroup counts
	} {
		for _, mode := range modes {
			if mode == "stdio" && name == "memory" {
				c.script = "exec 2>&1; " + c.script
			}
			s := start(t, withEnv(c.env))
			if r := s.sh("exec 2>&1; "+c.script, m{"mode": mode}); r.Status != "exited" || !c.stopped(r) {
				t.Errorf("%s, %s: %s %d %q", name, mode, r.Status, r.code(), r.Output)
			}
			// What the job left behind, and the next one, are as limited; the server is not.
			if r := s.sh("echo fine"); r.Output != "fine\n" {
				t.Errorf("%s: afterwards: %+v", name, r)
			}
		}
		s := start(t)
		if r := s.sh("exec 2>&1; " + c.script); r.code() != 0 {
			t.Errorf("%s: control: %d %q", name, r.code(), r.Output)
		}
	}
}

// A limit holds from the first instruction on: a program that forks at once has
// not got a child without it.
func TestLimitsHoldFromTheStart(t *testing.T) {
	s := start(t, withEnv("SHELLCTL_JOB_MAX_OPEN_FILES=77"))
	for range 50 {
		r := s.sh("#!/bin/sh\n(ulimit -n; ulimit -Hn) & wait", m{"mode": "stdio"})
		if r.Output != "77\n77\n" {
			t.Fatalf("%q", r.Output)
		}
	}
}

// A job cannot lift what is set, and leaves no core dump.
func TestLimitsCannotBeLifted(t *testing.T) {
	s := startAsUser(t, withEnv("SHELLCTL_JOB_MAX_OPEN_FILES=64"))
	r := s.sh("(ulimit -n 1000) 2>/dev/null && echo lifted files; ulimit -c; (ulimit -c 1) 2>/dev/null && echo lifted core; ulimit -n",
		m{"env": m{"SHELLCTL_JOB_MAX_OPEN_FILES": "5000"}})
	if r.Output != "0\n64\n" {
		t.Errorf("%q", r.Output)
	}
}

// A job gets no part of the niceness, nor of the signal settings of the server's.
func TestJobsStartWithDefaults(t *testing.T) {
	need(t, "nice", "nohup", "setsid")
	wrapped := write(t, filepath.Join(t.TempDir(), "wrapped"), fmt.Sprintf("#!/bin/sh\ntrap '' INT QUIT TERM USR1 PIPE\numask 077\nexec nice -n 7 %s \"$@\"\n", bin))
	os.Chmod(wrapped, 0o755)
	s := start(t, withBinary(wrapped))
	if os.Getuid() == 0 {
		s.cmd.Process.Signal(syscall.SIGCONT)
	}
	const state = "nice; umask; grep -E 'Sig(Blk|Ign)' /proc/self/status | tr -d '\\t'"
	want := "0\n0022\nSigBlk:0000000000000000\nSigIgn:0000000000000000\n"
	if os.Getuid() != 0 { // who is nicer may not go back
		want = "7" + want[1:]
	}
	for _, mode := range modes {
		if r := s.sh(state, m{"mode": mode}); r.Output != want {
			t.Errorf("%s: %q, want %q", mode, r.Output, want)
		}
	}
}

// A fork bomb ends at the limit, the server and its runner go on, and terminate
// ends every part of it.
func TestForkBomb(t *testing.T) {
	needScope(t)
	if os.Getuid() == 0 {
		t.Run("root", func(t *testing.T) {
			s := start(t, withEnv("SHELLCTL_JOB_MAX_PROCESSES=100"))
			if !strings.Contains(s.log.String(), "SHELLCTL_JOB_MAX_PROCESSES") {
				t.Errorf("no word about a limit that root's jobs do not have: %s", s.log)
			}
		})
	}
	s := startAsUser(t, withEnv("SHELLCTL_JOB_MAX_PROCESSES=150"))
	r := s.run(`bomb() { sleep 300 & bomb; }; exec 2>&1; bomb`, m{"mode": "stdio", "timeout": 20, "idle_flush_seconds": 0.3})
	if !strings.Contains(r.Output, "fork") && !strings.Contains(r.Output, "esource") {
		t.Errorf("%s %q", r.Status, r.Output)
	}
	if v := s.terminate(r.JobID, 0.1); !v.Done {
		t.Errorf("%+v", v)
	}
	if r := s.sh("echo fine; (echo two) | cat"); r.Output != "fine\ntwo\n" {
		t.Errorf("%+v", r)
	}
}

// Without a signal scope it is the job's cgroup that knows a daemon which has
// left the session, its parents and its environment behind.
func TestCgroupReachesDaemons(t *testing.T) {
	need(t, "setsid", "pgrep", "python3")
	s := start(t, withBinary(withoutLandlock(t, syscall.ENOSYS)))
	mark, other := unique(), unique()
	r := s.sh(daemon(mark) + "echo up")
	if s.isolation(r.JobID) != "seccomp, cgroup" {
		t.Skip("there is no cgroup v2 here that the server may write in")
	}
	bystander := s.run(daemon(other)+"echo up; sleep 600", m{"idle_flush_seconds": 0.05})
	s.terminate(r.JobID, 0)
	if left := withArg(mark); len(left) > 0 {
		t.Errorf("left %v", left)
	}
	if len(withArg(other)) != 1 || s.view(bystander.JobID).Status != "running" {
		t.Error("another job was hit")
	}
	s.terminate(bystander.JobID, 0)
	if left := withArg(other); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

// A job that uses up all processes that the user may have ends neither the
// runner nor other jobs. New jobs are refused with the reason until it is gone.
func TestNoProcessIsLeft(t *testing.T) {
	needScope(t)
	need(t, "prlimit")
	limit := 150
	if os.Getuid() != 0 {
		limit += threadsOfUser(t)
	}
	dir := t.TempDir()
	for p := dir; p != "/" && p != os.TempDir(); p = filepath.Dir(p) {
		os.Chmod(p, 0o755)
	}
	wrapped := write(t, filepath.Join(dir, "wrapped"), fmt.Sprintf("#!/bin/sh\nexec prlimit --nproc=%d:%d %s \"$@\"\n", limit, limit, bin))
	os.Chmod(wrapped, 0o755)
	s := startAsUser(t, withBinary(wrapped))
	bystander := s.run("read x; exit 4", m{"timeout": 0})
	bomb := s.run("exec 2>&1; bomb() { sleep 300 & bomb; }; while :; do (bomb); done", m{"mode": "stdio", "timeout": 20, "output_limit": 300})
	if bomb.Output == "" {
		t.Fatalf("the bomb says nothing: %+v", bomb)
	}
	runner := s.runner()
	for range 20 {
		if r := s.sh("true"); r.Status != "failed" || !strings.Contains(r.Output, "no more processes") {
			t.Errorf("%s %q", r.Status, r.Output)
		}
	}
	if v := s.terminate(bomb.JobID, 0.1); v.Status != "terminated" {
		t.Errorf("%+v", v)
	}
	if r := s.sh("echo fine | cat"); r.Output != "fine\n" || s.runner() != runner {
		t.Errorf("%+v", r)
	}
	if r, err := s.follow(s.input(bystander.JobID, "\n", 0)); err != nil || r.code() != 4 {
		t.Errorf("the bystander: %v %+v", err, r)
	}
}

// threadsOfUser counts what the user's limit counts.
func threadsOfUser(t *testing.T) (n int) {
	t.Helper()
	tasks, _ := filepath.Glob("/proc/[0-9]*/task/*")
	for _, task := range tasks {
		if b, err := os.ReadFile(task + "/status"); err == nil && strings.Contains(string(b), fmt.Sprintf("\nUid:\t%d\t", os.Getuid())) {
			n++
		}
	}
	return n
}
