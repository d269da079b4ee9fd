package endtoend

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// needScope says whether the kernel scopes signals (Landlock ABI 6): then no
// process can leave its job.
func needScope(t *testing.T) {
	t.Helper()
	abi, _, _ := syscall.Syscall(444, 0, 0, 1) // landlock_create_ruleset(2), version
	if int(abi) < 6 {
		t.Skipf("Landlock ABI %d has no signal scope", int(abi))
	}
}

// daemon leaves the script's session and every process that could tell of it,
// with an empty environment.
func daemon(mark string) string {
	return "setsid sh -c '(setsid env -i /bin/sh -c \"trap \\\"\\\" INT TERM HUP; exec /bin/sleep " + mark + "\" >/dev/null 2>&1 </dev/null &)'; " +
		"until pgrep -fx '/bin/sleep " + mark + "' >/dev/null; do sleep 0.02; done; "
}

func (s *server) awaitGone(mark string) {
	s.t.Helper()
	for _, pid := range withArg(mark) {
		awaitDeath(s.t, pid)
	}
}

func TestTerminateReachesDaemons(t *testing.T) {
	needScope(t)
	need(t, "setsid", "pgrep")
	s := start(t)
	for _, mode := range modes {
		mark, other := unique(), unique()
		bystander := s.run(daemon(other)+"echo up; sleep 600", m{"mode": mode, "idle_flush_seconds": 0.05})
		r := s.run(daemon(mark)+"echo up; sleep 600", m{"mode": mode, "idle_flush_seconds": 0.05})
		if r.Output != "up\n" || len(withArg(mark)) != 1 {
			t.Fatalf("%s: %q, %v", mode, r.Output, withArg(mark))
		}
		if v := s.terminate(r.JobID, 0.2); v.Status != "terminated" {
			t.Errorf("%s: %+v", mode, v)
		}
		if left := withArg(mark); len(left) > 0 {
			t.Errorf("%s: left %v", mode, left)
		}
		if len(withArg(other)) != 1 || s.view(bystander.JobID).Status != "running" {
			t.Errorf("%s: another job was hit", mode)
		}
		s.terminate(bystander.JobID, 0)
	}
}

// What a script leaves in the background runs on, is counted, and is ended by
// terminate and delete, also by a server that was not there when it was left.
func TestBackgroundProcessesStayKnown(t *testing.T) {
	needScope(t)
	need(t, "setsid", "pgrep")
	s := start(t)
	end := map[string]func(id string){
		"terminate": func(id string) {
			if v := s.terminate(id, 5); v.Status != "exited" || v.code() != 3 {
				t.Errorf("terminate changed an ended job: %+v", v)
			}
		},
		"delete": func(id string) { s.call("DELETE", "/v1/jobs/"+id, nil, nil) },
		"delete after a restart": func(id string) {
			s.kill()
			s.start()
			s.call("DELETE", "/v1/jobs/"+id, nil, nil)
		},
	}
	for how, do := range end {
		for _, mode := range modes {
			mark, other := unique(), unique()
			r := s.sh(daemon(mark)+"exit 3", m{"mode": mode})
			bystander := s.sh(daemon(other)+"exit 4", m{"mode": mode})
			if r.Status != "exited" || r.code() != 3 || len(withArg(mark)) != 1 {
				t.Fatalf("%s: %s %d, %v", mode, r.Status, r.code(), withArg(mark))
			}
			var record struct{ Left int }
			b, err := os.ReadFile(filepath.Join(s.jobDir(r.JobID), "exit.json"))
			if json.Unmarshal(b, &record); err != nil || record.Left != 1 {
				t.Errorf("record: %v %s", err, b)
			}
			do(r.JobID)
			if left := withArg(mark); len(left) > 0 {
				t.Errorf("%s, %s: left %v", how, mode, left)
			}
			if len(withArg(other)) != 1 {
				t.Errorf("%s, %s: what another job left was hit", how, mode)
			}
			s.call("DELETE", "/v1/jobs/"+bystander.JobID, nil, nil)
			s.awaitGone(other)
		}
	}
}

// A job that forks as fast as it can is ended all the same.
func TestTerminateEndsAForkStorm(t *testing.T) {
	needScope(t)
	s := start(t)
	script := write(t, filepath.Join(s.home, "storm.sh"), `#!/bin/sh
# Twenty lines of descent, each of which dies and is born again all the time.
trap '' INT TERM HUP
storm() { while [ -e on ]; do ( storm_step ) & sleep 0.01; done; }
storm_step() { setsid sh -c 'trap "" TERM; sleep 0.2'; }
for i in 1 2 3 4 5 6 7 8; do storm & done
echo up
wait
`)
	on := write(t, filepath.Join(s.home, "on"), "")
	defer os.Remove(on)
	r := s.run("exec sh "+script, m{"mode": "stdio", "idle_flush_seconds": 0.3})
	if !strings.HasPrefix(r.Output, "up") {
		t.Fatalf("%q", r.Output)
	}
	began := time.Now()
	if v := s.terminate(r.JobID, 0.1); v.Status != "terminated" {
		t.Errorf("%+v", v)
	}
	t.Logf("ended in %v", time.Since(began))
	runner := s.runner()
	for _, pid := range descendants(runner) {
		for _, p := range processes() {
			if p.pid == pid && p.state != 'Z' {
				t.Errorf("left: %+v", p)
			}
		}
	}
	if r := s.sh("echo fine"); r.Output != "fine\n" {
		t.Errorf("%+v", r)
	}
}

// The threads that watch over domains go with them.
func TestNoThreadIsKeptForNothing(t *testing.T) {
	needScope(t)
	need(t, "setsid", "pgrep")
	s := start(t)
	s.sh("true")
	runner := s.runner()
	threads := func() int {
		names, _ := filepath.Glob("/proc/" + strconv.Itoa(runner) + "/task/*")
		return len(names)
	}
	before := threads()
	mark := unique()
	for range 30 {
		s.sh(daemon(mark) + "exit 0")
	}
	if n := threads(); n < before+20 {
		t.Errorf("%d threads for 30 domains with processes, %d before", n, before)
	}
	for _, pid := range withArg(mark) {
		syscall.Kill(pid, syscall.SIGKILL)
	}
	for end := time.Now().Add(patience); threads() > before+8; {
		if time.Now().After(end) {
			t.Fatalf("%d threads, %d before", threads(), before)
		}
		s.sh("true")
	}
}
