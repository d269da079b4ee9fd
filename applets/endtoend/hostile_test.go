package endtoend

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// askRunner is a program that says hello to every runner's socket that it finds
// below a state directory, and prints whether it was answered.
const askRunner = `import socket, glob, struct, json, sys
for path in sorted(glob.glob(sys.argv[1] + "/run/*.sock")):
    s = socket.socket(socket.AF_UNIX)
    m = json.dumps({"seq": 1, "op": "hello"}).encode()
    try:
        s.connect(path)
        s.sendall(struct.pack(">I", len(m)) + m)
        print("answer" if s.recv(4) else "closed")
    except OSError:
        print("closed")
`

// After an upgrade two runners live. A job of either is refused by both, and so
// is one of another state directory's runner.
func TestNoRunnerListensToAnyJob(t *testing.T) {
	need(t, "python3")
	one, two := filepath.Join(t.TempDir(), "difyrt"), filepath.Join(t.TempDir(), "difyrt")
	copyFile(t, bin, one)
	copyFile(t, bin, two)
	home := t.TempDir()
	file := write(t, filepath.Join(home, "ask.py"), askRunner)
	s := start(t, withBinary(one), withHome(home), withState(filepath.Join(home, "state")))
	path := m{"env": m{"PATH": "/usr/bin:/bin"}}
	old := s.run("read x; python3 ask.py "+s.state, path, m{"timeout": 0})
	s.stop()
	s.bin = two
	s.start()
	s.sh("true") // starts the second runner
	if n := len(s.runners()); n != 2 {
		t.Fatalf("%d runners", n)
	}
	if out, err := exec.Command("python3", file, s.state).CombinedOutput(); err != nil || string(out) != "answer\nanswer\n" {
		t.Fatalf("from outside: %v %s", err, out)
	}
	if r, err := s.follow(s.input(old.JobID, "\n", 0)); err != nil || !strings.HasSuffix(r.Output, "closed\nclosed\n") {
		t.Errorf("a job of the old runner: %v %q", err, r.Output)
	}
	other := start(t, withHome(home))
	if r := other.sh("python3 ask.py "+s.state, path); strings.Contains(r.Output, "answer") || !strings.Contains(r.Output, "closed\n") {
		t.Errorf("a job of another state directory: %q", r.Output)
	}
}

// A job that can write in its own directory cannot make its runner hang, or
// write elsewhere.
func TestRecordsInAHostileDirectory(t *testing.T) {
	home := t.TempDir()
	s := start(t, withHome(home), withState(filepath.Join(home, "state")))
	target := filepath.Join(t.TempDir(), "target")
	if err := os.Mkdir(target, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, trick := range map[string]string{
		"fifo":      "mkfifo exit.json.tmp exit.json",
		"links":     "ln -s " + target + "/x exit.json; ln -s " + target + "/y exit.json.tmp",
		"directory": "mkdir -p exit.json/x exit.json.tmp",
		"moved":     "cd ..; d=$(basename $(dirname $0)); mv $d $d.moved; ln -s " + target + " $d",
	} {
		r := s.sh("cd $(dirname $0) && { "+trick+"; }; exit 3", m{"mode": "stdio", "output_limit": 10})
		if r.Status != "exited" || r.code() != 3 || r.JobID == "" {
			t.Errorf("%s: %s %d", name, r.Status, r.code())
		}
	}
	if list, err := os.ReadDir(target); err != nil || len(list) > 0 {
		t.Errorf("written elsewhere: %v %v", list, err)
	}
	if r := s.sh("echo fine"); r.Output != "fine\n" {
		t.Errorf("%+v", r)
	}
}

// A server that is killed in the middle of starts harms no job: each that began
// ends as it would have, and is reported so.
func TestServerKilledAmongStarts(t *testing.T) {
	s := start(t)
	for range 5 {
		s.sh("true") // the last runner may have ended in between, with nothing to do
		runner := s.runner()
		syscall.Kill(runner, syscall.SIGSTOP) // so that the starts are under way for certain
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				s.try("POST", "/v1/jobs/run", m{"script": "echo start; sleep 0.2; echo end; exit 3", "timeout": 0}, nil)
			})
		}
		var list struct{ Jobs []view }
		for end := time.Now().Add(patience); len(list.Jobs) < 20 && time.Now().Before(end); {
			s.call("GET", "/v1/jobs?status=starting&limit=200", nil, &list)
		}
		s.kill()
		wg.Wait()
		time.AfterFunc(100*time.Millisecond, func() { syscall.Kill(runner, syscall.SIGCONT) })
		s.start()
		for i, j := range list.Jobs {
			if status, _, _ := s.send(t.Context(), "GET", "/v1/jobs/"+j.JobID, nil); status == 404 {
				list.Jobs[i].JobID = "" // killed before its row was written
				continue
			}
			v := s.done(j.JobID)
			r := s.waitFor(j.JobID, 0)
			ran := v.Status == "exited" && v.code() == 3 && r.Output == "start\nend\n"
			never := v.Status == "lost" && r.Output == ""
			if !ran && !never {
				t.Errorf("job %s: %s %d %q", j.JobID, v.Status, v.code(), r.Output)
			}
		}
		for _, p := range processes() {
			if len(p.args) > 1 && strings.HasPrefix(p.args[1], s.state+"/jobs/") && p.state != 'Z' {
				t.Errorf("a process without a job: %+v", p)
			}
		}
		for _, j := range list.Jobs {
			if j.JobID != "" {
				s.call("DELETE", "/v1/jobs/"+j.JobID, nil, nil)
			}
		}
	}
}

// A runner that is told to stop while jobs come ends, and the jobs that come go
// to the next one.
func TestRunnerStoppedWhileJobsCome(t *testing.T) {
	s := start(t)
	s.sh("true")
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				var r result
				if err := s.try("POST", "/v1/jobs/run", m{"script": "echo x", "idle_flush_seconds": 10}, &r); err != nil {
					t.Error(err)
				} else if whole := r.Status == "exited" && r.Output == "x\n"; !whole && r.Status != "terminated" && r.Status != "exited" {
					t.Errorf("%s %q", r.Status, r.Output)
				}
			}
		})
	}
	for range 5 {
		old := s.runners()
		for _, pid := range old {
			syscall.Kill(pid, syscall.SIGTERM)
			awaitDeath(t, pid)
		}
		s.sh("true")
	}
	close(stop)
	wg.Wait()
}

// A runner that hangs cannot hold a call beyond its time.
func TestRunnerThatHangs(t *testing.T) {
	s := start(t)
	r := s.run("read x; exit 5", m{"timeout": 0})
	runner := s.runner()
	syscall.Kill(runner, syscall.SIGSTOP)
	began := time.Now()
	s.refuse("POST", "/v1/jobs/"+r.JobID+"/input", m{"text": "\n", "offset": 0, "timeout": 0.2}, 504, "input_timeout")
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("input took %v", took)
	}
	if page := s.waitFor(r.JobID, 0, m{"timeout": 0.1}); page.Done {
		t.Errorf("%+v", page)
	}
	syscall.Kill(runner, syscall.SIGCONT)
	if v := s.done(r.JobID); v.code() != 5 {
		t.Errorf("%+v", v)
	}
}

// Half a character is no answer: a waiter sleeps on until the rest comes.
func TestHalfACharacterIsWaitedFor(t *testing.T) {
	s := start(t)
	for _, limit := range []int{1, 100} {
		r := s.run(`printf '\342'; sleep 1; printf '\202\254'; sleep 600`, m{"mode": "stdio", "timeout": 0})
		answers := 0
		for offset := int64(0); offset == 0; answers++ {
			page := s.waitFor(r.JobID, 0, m{"timeout": 10, "output_limit": limit, "idle_flush_seconds": 0.05})
			if page.Output != "" && page.Output != "€" {
				t.Fatalf("%+v", page)
			}
			offset = page.Offset
		}
		if answers != 1 {
			t.Errorf("limit %d: %d answers until the character was whole", limit, answers)
		}
		s.terminate(r.JobID, 0)
	}
}

// A disk that a job has filled is freed by deleting, whatever is unsaved.
func TestFullDiskIsFreedByDeleting(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting a file system wants root")
	}
	need(t, "mount", "umount")
	dir := t.TempDir()
	mount(t, dir, "size=3m,mode=700")
	s := start(t, withState(filepath.Join(dir, "state")), withArgs("--gc-interval", "200ms"))
	done := s.sh("head -c 500000 /dev/zero | tr '\\0' x", m{"mode": "stdio", "output_limit": 10})
	filler := s.run("yes", m{"mode": "stdio", "timeout": 0})
	awaitBlockedWriter(t, s.runner())
	if v := s.terminate(filler.JobID, 0); v.Status != "terminated" {
		t.Errorf("%+v", v)
	}
	for _, id := range []string{done.JobID, filler.JobID} {
		s.call("DELETE", "/v1/jobs/"+id, nil, nil)
	}
	if r := s.sh("echo space"); r.Output != "space\n" {
		t.Errorf("%+v", r)
	}
}

func TestPathsThatAreNotUTF8(t *testing.T) {
	dir := t.TempDir()
	home, state := dir+"/h\xffome", dir+"/st\xffate"
	s := start(t, withHome(home), withState(state))
	r := s.sh("echo made > file; pwd | od -An -tx1 | tr -d ' \\n' | grep -c ff")
	if r.Output != "1\n" {
		t.Errorf("%s %q", r.Status, r.Output)
	}
	if list, _ := os.ReadDir(dir); len(list) != 2 {
		t.Errorf("directories: %q", list)
	}
	if b, err := os.ReadFile(home + "/file"); err != nil || string(b) != "made\n" {
		t.Errorf("%v %q", err, b)
	}
}

// What a cut input left in the terminal counts against the next one.
func TestInputAfterACutOne(t *testing.T) {
	s := start(t)
	s.gate("gate") // and nobody opens it
	r := s.run("stty -echo; echo up; read x < gate; while read l; do echo ${#l}; done", m{"idle_flush_seconds": 0.05})
	s.refuse("POST", "/v1/jobs/"+r.JobID+"/input", m{"text": strings.Repeat(strings.Repeat("a", 99)+"\n", 200) + strings.Repeat("b", 4000), "offset": 0, "timeout": 0.2}, 504, "input_timeout")
	status, b, err := s.send(t.Context(), "POST", "/v1/jobs/"+r.JobID+"/input", m{"text": strings.Repeat("c", 4090) + "\n", "offset": 0, "timeout": 0.2})
	if err != nil || status == 200 {
		t.Errorf("%v %d %s", err, status, b)
	}
}

// A server that was stopped for so long that its runner gave it up finds the
// runner again, and every job with it.
func TestServerStoppedForLong(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes what a runner's patience takes")
	}
	s := start(t)
	quiet := s.run("read x; exit 5", m{"timeout": 0})
	chatty := s.run("i=0; while [ ! -e enough ]; do i=$((i+1)); echo $i; sleep 0.002; done; exit 6", m{"timeout": 0})
	short := s.run("sleep 5; echo meanwhile; exit 7", m{"timeout": 0})
	runner := s.runner()
	s.cmd.Process.Signal(syscall.SIGSTOP)
	for end := time.Now().Add(patience); ; { // until the runner has hung up
		if n := len(fds(runner, "socket:")); n < 2 || time.Now().After(end) {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	s.cmd.Process.Signal(syscall.SIGCONT)
	write(t, filepath.Join(s.home, "enough"), "")
	s.waitFor(quiet.JobID, 0, m{"timeout": 1})
	if f, err := s.follow(s.input(quiet.JobID, "\n", 0)); err != nil || f.code() != 5 {
		t.Errorf("quiet job: %v %s %d", err, f.Status, f.code())
	}
	for id, code := range map[string]int{chatty.JobID: 6, short.JobID: 7} {
		if v := s.done(id); v.Status != "exited" || v.code() != code {
			t.Errorf("%s %d, want exit %d", v.Status, v.code(), code)
		}
	}
	if s.runner() != runner {
		t.Error("the runner was replaced")
	}
}

// The row of a job that still runs may be at its end; the server starts.
func TestRowThatHasEndedBeforeItsJob(t *testing.T) {
	s := start(t)
	mark := unique()
	r := s.run("exec sleep "+mark, m{"timeout": 0})
	s.kill()
	if code, _, errOut := call(t, "", "shellctl-runner-exit", "--state-dir", s.state, "--job-id", r.JobID, "--exit-code", "0", "--ended-at", "2026-01-02T03:04:05Z"); code != 0 {
		t.Fatal(errOut)
	}
	s.start()
	if v := s.view(r.JobID); v.Status != "exited" {
		t.Errorf("%+v", v)
	}
	if out := s.sh("echo fine"); out.Output != "fine\n" {
		t.Errorf("%+v", out)
	}
}

// A job with living processes is not collected, so that they can be ended.
func TestJobWithProcessesIsKept(t *testing.T) {
	needScope(t)
	need(t, "setsid", "pgrep")
	s := start(t, withArgs("--retention", "100ms", "--gc-interval", "100ms"))
	mark := unique()
	kept := s.sh(daemon(mark)+"exit 3", m{"mode": "stdio"})
	for range 3 {
		other := s.sh("true")
		awaitChange(t, func() bool { _, err := os.Stat(s.jobDir(other.JobID)); return err != nil }, filepath.Join(s.state, "jobs"))
	}
	if len(withArg(mark)) != 1 {
		t.Fatal("the process is gone")
	}
	s.call("DELETE", "/v1/jobs/"+kept.JobID, nil, nil)
	if len(withArg(mark)) != 0 {
		t.Error("the process is still there")
	}
}

// A job that cannot be removed is not said to be gone, and can be removed once
// what kept it is over.
func TestDeleteThatFails(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("a directory that its owner cannot empty wants an attribute that only root sets")
	}
	need(t, "mount", "umount")
	s := start(t)
	r := s.sh("true")
	busy := filepath.Join(s.jobDir(r.JobID), "busy")
	if err := os.Mkdir(busy, 0o700); err != nil {
		t.Fatal(err)
	}
	mount(t, busy, "size=64k")
	s.refuse("DELETE", "/v1/jobs/"+r.JobID, nil, 500, "internal_error")
	if v := s.view(r.JobID); v.Status != "exited" {
		t.Errorf("%+v", v)
	}
	if err := syscall.Unmount(busy, 0); err != nil {
		t.Fatal(err)
	}
	s.call("DELETE", "/v1/jobs/"+r.JobID, nil, nil)
	if _, err := os.Stat(s.jobDir(r.JobID)); err == nil {
		t.Error("the directory is still there")
	}
}
