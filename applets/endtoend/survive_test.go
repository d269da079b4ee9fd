package endtoend

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

var modes = []string{"pty", "stdio"}

// fifty starts fifty jobs that wait at the gate in the middle of their output.
func fifty(s *server, gate string) []result {
	s.t.Helper()
	jobs := make([]result, 50)
	errs := make([]error, len(jobs))
	var wg sync.WaitGroup
	for i := range jobs {
		wg.Go(func() {
			errs[i] = s.try("POST", "/v1/jobs/run", m{"script": fmt.Sprintf("echo first %d; read x < %s; echo last %d; exit %d", i, gate, i, i),
				"mode": modes[i%2], "idle_flush_seconds": 0.05, "timeout": 20}, &jobs[i])
		})
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			s.t.Fatal(err)
		}
		if want := fmt.Sprintf("first %d\n", i); jobs[i].Output != want || jobs[i].Done {
			s.t.Fatalf("job %d: output %q, done %v", i, jobs[i].Output, jobs[i].Done)
		}
	}
	return jobs
}

func TestServerKilledAmongFiftyJobs(t *testing.T) {
	s := start(t)
	g := s.gate("gate")
	jobs := fifty(s, g.path)
	runner := s.runner()
	s.kill()
	g.open(t, 25) // half of them end while no server is there
	awaitRecords(t, s, jobs, 25)
	s.start()
	if got := s.runner(); got != runner {
		t.Errorf("runner %d was replaced by %d", runner, got)
	}
	g.open(t, 25)
	for i, j := range jobs {
		j.Output = ""
		j.Offset, j.Done = 0, false
		r, err := s.follow(j)
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("first %d\nlast %d\n", i, i); r.Output != want || r.Status != "exited" || r.code() != i {
			t.Errorf("job %d: %s %d %q", i, r.Status, r.code(), r.Output)
		}
	}
}

// awaitRecords waits until n of the jobs have an exit record.
func awaitRecords(t *testing.T, s *server, jobs []result, n int) {
	t.Helper()
	var dirs []string
	for _, j := range jobs {
		dirs = append(dirs, s.jobDir(j.JobID))
	}
	awaitChange(t, func() bool {
		have := 0
		for _, dir := range dirs {
			if _, err := os.Stat(filepath.Join(dir, "exit.json")); err == nil {
				have++
			}
		}
		return have >= n
	}, dirs...)
}

func TestRunnerKilledAmongFiftyJobs(t *testing.T) {
	s := start(t)
	g := s.gate("gate")
	mark := unique()
	stubborn := s.run("trap '' HUP PIPE TERM INT; echo up; while :; do sleep "+mark+"; done", m{"mode": "stdio", "idle_flush_seconds": 0.05})
	jobs := append(fifty(s, g.path), stubborn)
	old := s.runner()

	waiter := make(chan result, 1)
	go func() {
		var r result
		s.try("POST", "/v1/jobs/"+jobs[0].JobID+"/wait", m{"offset": jobs[0].Offset, "timeout": 30}, &r)
		waiter <- r
	}()
	syscall.Kill(old, syscall.SIGKILL)
	if line := s.log.await("a runner died"); line == "" {
		t.Error("the server did not say that the runner died")
	}
	for _, j := range jobs {
		if v := s.done(j.JobID); v.Status != "lost" || v.ExitCode != nil {
			t.Errorf("job %s is %s with %d", j.JobID, v.Status, v.code())
		}
	}
	if r := <-waiter; r.Status != "lost" {
		t.Errorf("the waiter heard %q", r.Status)
	}
	if left := withArg(mark); len(left) > 0 {
		t.Errorf("a lost job still runs: %v", left)
	}
	if r := s.sh("echo new; exit 3"); r.Output != "new\n" || r.code() != 3 {
		t.Errorf("next job: %+v", r)
	}
	if now := s.runner(); now == old {
		t.Error("no new runner")
	}
}

func TestRunnerAndServerKilled(t *testing.T) {
	s := start(t)
	mark := unique()
	j := s.run("echo up; sleep "+mark, m{"mode": "stdio", "idle_flush_seconds": 0.05})
	runner := s.runner()
	s.kill()
	syscall.Kill(runner, syscall.SIGKILL)
	awaitDeath(t, runner)
	s.start()
	if v := s.view(j.JobID); v.Status != "lost" || v.Offset != 3 {
		t.Errorf("job: %+v", v)
	}
	if left := withArg(mark); len(left) > 0 {
		t.Errorf("the lost job still runs: %v", left)
	}
	if r := s.sh("echo new"); r.Output != "new\n" {
		t.Errorf("next job: %+v", r)
	}
}

// An upgrade replaces the file under a running system. Jobs of the old runner
// go on, new jobs get a runner of the new build, and the old one ends with its
// last job.
func TestUpgradeLosesNoJob(t *testing.T) {
	one, two := filepath.Join(t.TempDir(), "difyrt"), filepath.Join(t.TempDir(), "difyrt")
	copyFile(t, bin, one)
	copyFile(t, bin, two)
	s := start(t, withBinary(one))
	old := s.run("echo old; read x; echo got $x; exit 4", m{"idle_flush_seconds": 0.05})
	oldRunner := s.runner()
	if code := s.stop(); code != 0 {
		t.Errorf("exit %d", code)
	}
	if err := os.Rename(two, one); err != nil {
		t.Fatal(err)
	}
	s.start()
	s.run("echo new; sleep 600", m{"idle_flush_seconds": 0.05})
	if n := len(s.runners()); n != 2 {
		t.Fatalf("%d runners, want the old one and the new one", n)
	}
	r, err := s.follow(s.input(old.JobID, "text\n", 0))
	if err != nil || r.Output != "old\ntext\ngot text\n" || r.code() != 4 {
		t.Errorf("old job: %v %d %q", err, r.code(), r.Output)
	}
	awaitDeath(t, oldRunner)
	if n := len(s.runners()); n != 1 {
		t.Errorf("%d runners are left", n)
	}
}

func copyFile(t testing.TB, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestRunnerEndsWhenNothingIsLeft(t *testing.T) {
	s := start(t)
	s.sh("true")
	runner := s.runner()
	if code := s.stop(); code != 0 {
		t.Errorf("exit %d", code)
	}
	awaitDeath(t, runner)
	if left, _ := filepath.Glob(filepath.Join(s.state, "run", "*")); len(left) > 0 {
		t.Errorf("sockets are left: %v", left)
	}
}

func TestRunnerKeepsToItself(t *testing.T) {
	s := start(t)
	s.sh("true")
	runner := s.runner()
	for _, p := range processes() {
		if p.pid == runner && (p.session != runner || p.ppid != s.cmd.Process.Pid) {
			t.Errorf("runner: %+v, server %d", p, s.cmd.Process.Pid)
		}
	}
	socks, _ := filepath.Glob(filepath.Join(s.state, "run", "*.sock"))
	if len(socks) != 1 {
		t.Fatalf("sockets: %v", socks)
	}
	st, err := os.Stat(socks[0])
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("socket: %v %v", st.Mode(), err)
	}
	env, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", runner))
	if strings.Contains(string(env), "HOME=") {
		t.Errorf("the runner has the server's environment: %q", env)
	}
}

// A job may reach the runner's socket, and is not listened to. The same words
// from outside are answered.
func TestRunnerDoesNotListenToJobs(t *testing.T) {
	need(t, "python3")
	home := t.TempDir()
	s := start(t, withHome(home), withState(filepath.Join(home, "state")))
	file := write(t, filepath.Join(home, "ask.py"), askRunner)
	s.sh("true")
	if out, err := exec.Command("python3", file, s.state).CombinedOutput(); err != nil || string(out) != "answer\n" {
		t.Fatalf("from outside: %v %s", err, out)
	}
	for _, how := range []string{"python3 ask.py " + s.state, "setsid python3 ask.py " + s.state, "(setsid python3 ask.py " + s.state + " > out &); until grep -q . out; do sleep 0.05; done; cat out"} {
		if r := s.sh(how, m{"env": m{"PATH": "/usr/bin:/bin"}}); strings.Contains(r.Output, "answer") || !strings.Contains(r.Output, "closed\n") {
			t.Errorf("%s: %q", how, r.Output)
		}
	}
}

// The runner is the subreaper of its jobs: an orphan comes to it, and leaves no zombie.
func TestOrphansAreReaped(t *testing.T) {
	s := start(t)
	mark := unique()
	// The script waits until the process has its final name.
	s.sh("setsid sleep "+mark+" >/dev/null 2>&1 & while ! grep -q sleep /proc/$!/comm; do :; done", m{"mode": "stdio"})
	pids := withArg(mark)
	if len(pids) != 1 {
		t.Fatalf("background processes: %v", pids)
	}
	runner := s.runner()
	for _, p := range processes() {
		if p.pid == pids[0] && p.ppid != runner {
			t.Errorf("the orphan's parent is %d, not the runner", p.ppid)
		}
	}
	s.stop() // the runner stays as long as the orphan lives
	syscall.Kill(pids[0], syscall.SIGKILL)
	awaitDeath(t, runner)
}

func TestRunnerToldToStopEndsItsJobs(t *testing.T) {
	s := start(t)
	mark := unique()
	j := s.run("echo up; exec sleep "+mark, m{"idle_flush_seconds": 0.05})
	runner := s.runner()
	syscall.Kill(runner, syscall.SIGTERM)
	awaitDeath(t, runner)
	if v := s.done(j.JobID); v.Status != "terminated" || v.code() != 130 {
		t.Errorf("job: %s %d", v.Status, v.code())
	}
	if left := withArg(mark); len(left) > 0 {
		t.Errorf("processes left: %v", left)
	}
}

func TestLongStateDirectory(t *testing.T) {
	s := start(t, withState(filepath.Join(t.TempDir(), strings.Repeat("a-long-name/", 20), "state")))
	if r := s.sh("echo far"); r.Output != "far\n" {
		t.Errorf("%+v", r)
	}
	s.kill()
	s.start()
	if r := s.sh("echo again"); r.Output != "again\n" {
		t.Errorf("%+v", r)
	}
}

func TestSecondServerOfAStateDirectory(t *testing.T) {
	s := start(t)
	two := newServer(t, withState(s.state))
	two.launch()
	if code := two.wait(); code != 1 || !strings.Contains(two.log.String(), "already served by process "+fmt.Sprint(s.cmd.Process.Pid)) {
		t.Errorf("exit %d: %s", code, two.log)
	}
	if r := s.sh("echo fine"); r.Output != "fine\n" {
		t.Errorf("%+v", r)
	}
	s.stop()
	two.start()
}

func TestNohupDoesNotReachJobs(t *testing.T) {
	need(t, "nohup")
	s := newServer(t)
	wrapper := filepath.Join(t.TempDir(), "wrapped")
	if err := os.WriteFile(wrapper, []byte("#!/bin/sh\ntrap '' HUP INT TSTP TTIN TTOU\nexec nohup "+bin+" \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	s.bin = wrapper
	s.start()
	for _, mode := range modes {
		r := s.sh("grep SigIgn /proc/self/status; grep SigBlk /proc/self/status", m{"mode": mode})
		if want := "SigIgn:\t0000000000000000\nSigBlk:\t0000000000000000\n"; r.Output != want {
			t.Errorf("%s: %q", mode, r.Output)
		}
	}
}

func TestJobHasThreeDescriptors(t *testing.T) {
	s := newServer(t)
	// A parent that leaves descriptors open, as many do.
	wrapper := filepath.Join(t.TempDir(), "wrapped")
	if err := os.WriteFile(wrapper, []byte("#!/bin/bash\nexec 7</etc/passwd 251</etc/passwd "+bin+" \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	s.bin = wrapper
	s.start()
	for _, mode := range modes {
		r := s.sh("cd /proc/$$/fd && echo *", m{"mode": mode})
		// dash keeps its script open on 10 and reads this directory by 3.
		if r.Output != "0 1 10 2 3\n" {
			t.Errorf("%s: %q", mode, r.Output)
		}
	}
}

// What ends while no server is there is in the job table all the same: the
// runner has runner-exit put it there. The exit record is taken away, so that
// the next server cannot have it from that.
func TestRunnerRecordsExitsForAnAbsentServer(t *testing.T) {
	s := start(t)
	g := s.gate("gate")
	plain := s.run("read x < gate; exit 6", m{"timeout": 0})
	killed := s.run("read x < gate; kill -9 $$", m{"timeout": 0, "mode": "stdio"})
	runner := s.runner()
	s.kill()
	g.open(t, 2)
	awaitDeath(t, runner) // it ends when the last exit is recorded
	for _, r := range []result{plain, killed} {
		if err := os.Remove(filepath.Join(s.jobDir(r.JobID), "exit.json")); err != nil {
			t.Fatal(err)
		}
	}
	s.start()
	for r, code := range map[*result]int{&plain: 6, &killed: 137} {
		if v := s.view(r.JobID); v.Status != "exited" || v.code() != code || v.StartedAt == nil || v.EndedAt == nil {
			t.Errorf("%+v, want exit %d", v, code)
		}
	}
}
