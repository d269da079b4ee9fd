package endtoend

import (
	"context"
	"crypto/sha256"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func TestStopWithBlockedWaiters(t *testing.T) {
	s := start(t)
	r := s.run("read x; exit 5", m{"timeout": 0})
	var wg sync.WaitGroup
	ready := make(chan struct{}, 100)
	for range 100 {
		wg.Go(func() {
			ready <- struct{}{}
			var page result
			if err := s.try("POST", "/v1/jobs/"+r.JobID+"/wait", m{"offset": 0, "timeout": 600}, &page); err == nil && page.Status != "running" {
				t.Errorf("a waiter got %+v", page)
			}
		})
	}
	for range 100 {
		<-ready
	}
	began := time.Now()
	if code := s.stop(); code != 0 {
		t.Errorf("exit %d: %s", code, s.log)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the stop took %v", took)
	}
	wg.Wait()
	s.start()
	if f, err := s.follow(s.input(r.JobID, "\n", 0)); err != nil || f.code() != 5 {
		t.Errorf("the job after the restart: %v %+v", err, f)
	}
}

// A waiter whose client went away is gone: its connection, and so its goroutine.
func TestWaiterWhoseClientWentAway(t *testing.T) {
	s := start(t)
	r := s.run("sleep 600", m{"timeout": 0})
	sockets := func() int { return s.connections() }
	before := sockets()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() { s.send(ctx, "POST", "/v1/jobs/"+r.JobID+"/wait", m{"offset": 0, "timeout": 600}) })
	}
	for end := time.Now().Add(patience); sockets() < before+40; {
		if time.Now().After(end) {
			t.Fatal("the waiters never came")
		}
	}
	cancel()
	wg.Wait()
	for end := time.Now().Add(patience); sockets() > before+2; {
		if time.Now().After(end) {
			t.Fatalf("%d sockets are left of %d at first", sockets(), before)
		}
	}
	if v := s.view(r.JobID); v.Status != "running" {
		t.Errorf("the job is %s", v.Status)
	}
}

// fds lists a process's descriptors whose target begins with prefix.
func fds(pid int, prefix string) (list []string) {
	names, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/fd/*")
	for _, n := range names {
		if to, err := os.Readlink(n); err == nil && strings.HasPrefix(to, prefix) {
			list = append(list, to)
		}
	}
	return list
}

func TestLogsHoldNoSecrets(t *testing.T) {
	const script, value, output, typed, token = "scr1pt-secret", "env-s3cret", "0utput-secret", "typ3d-secret", "t0ken-secret"
	for _, format := range []string{"text", "json"} {
		s := newServer(t, withToken(token), withArgs("--log-format", format, "--log-level", "debug"), withEnv("SHELLCTL_AUTH_TOKEN="+token), withListen("unix:"+filepath.Join(t.TempDir(), "s")))
		s.launch()
		if s.log.await("serving") == "" {
			t.Fatal(s.log)
		}
		r := s.run("# "+script+"\nread x; echo "+output, m{"env": m{"V": value}, "timeout": 0})
		s.input(r.JobID, typed+"\n", 0)
		s.refuse("POST", "/v1/jobs/"+r.JobID+"/wait", m{"offset": 1 << 40}, 400, "invalid_offset")
		s.done(r.JobID)
		s.stop()
		log := s.log.String()
		if strings.Contains(log, `{"time"`) != (format == "json") {
			t.Errorf("the log is not %s: %s", format, log)
		}
		runnerLog, _ := os.ReadFile(filepath.Join(s.state, "runner.log"))
		for _, secret := range []string{script, value, output, typed, token} {
			if strings.Contains(log+string(runnerLog), secret) {
				t.Errorf("%s is in the %s log", secret, format)
			}
		}
	}
}

func TestWrongStarts(t *testing.T) {
	dir := t.TempDir()
	file := write(t, filepath.Join(dir, "file"), "x")
	for name, c := range map[string]struct {
		opts []option
		code int
		says string
	}{
		"unknown flag":         {[]option{withArgs("--nope")}, 2, "nope"},
		"argument":             {[]option{withArgs("what")}, 2, "what"},
		"two tokens":           {[]option{withArgs("--token", "a", "--token-file", file)}, 2, "exclude"},
		"no token file":        {[]option{withArgs("--token-file", dir+"/none")}, 1, "none"},
		"log format":           {[]option{withArgs("--log-format", "xml")}, 2, "xml"},
		"retention":            {[]option{withArgs("--retention", "-1s")}, 2, "retention"},
		"snapshot timeout":     {[]option{withEnv("SHELLCTL_SNAPSHOT_TIMEOUT=soon")}, 1, "SHELLCTL_SNAPSHOT_TIMEOUT"},
		"snapshot timeout 0":   {[]option{withEnv("SHELLCTL_SNAPSHOT_TIMEOUT=0s")}, 1, "SHELLCTL_SNAPSHOT_TIMEOUT"},
		"isolation":            {[]option{withEnv("SHELLCTL_ENABLE_PATH_ISOLATION=flase")}, 1, "flase"},
		"relative path":        {[]option{withEnv("SHELLCTL_LANDLOCK_RW_PATHS=a,/b")}, 1, "absolute"},
		"state dir is a file":  {[]option{withState(file)}, 1, "state directory"},
		"state dir below file": {[]option{withState(file + "/x")}, 1, "state directory"},
		"port":                 {[]option{withListen("127.0.0.1:99999")}, 1, "99999"},
	} {
		s := newServer(t, c.opts...)
		s.launch()
		if code := s.wait(); code != c.code || !strings.Contains(s.log.String(), c.says) {
			t.Errorf("%s: exit %d, %q", name, code, s.log)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := newServer(t, withListen(l.Addr().String()))
	s.launch()
	if code := s.wait(); code != 1 || !strings.Contains(s.log.String(), "in use") {
		t.Errorf("port in use: exit %d, %q", code, s.log)
	}
}

func TestDatabaseThatIsNoneOfOurs(t *testing.T) {
	s := start(t)
	s.sh("true")
	s.stop()
	db := filepath.Join(s.state, "jobs.db")
	good, err := os.ReadFile(db)
	if err != nil {
		t.Fatal(err)
	}
	newer := append([]byte(nil), good...)
	newer[63] = 99 // user_version, the last of its four bytes
	for name, b := range map[string][]byte{"garbage": []byte(strings.Repeat("garbage ", 1000)), "newer": newer, "truncated": good[:len(good)-2000]} {
		for _, side := range []string{"-wal", "-shm"} {
			os.Remove(db + side)
		}
		if err := os.WriteFile(db, b, 0o600); err != nil {
			t.Fatal(err)
		}
		s.launch()
		if code := s.wait(); code != 1 || !strings.Contains(s.log.String(), "jobs.db") {
			t.Errorf("%s: exit %d, %q", name, code, s.log)
		}
		after, err := os.ReadFile(db)
		if err != nil || sha256.Sum256(after) != sha256.Sum256(b) {
			t.Errorf("%s: the file was changed (%v)", name, err)
		}
	}
}

func TestReadOnlyAndFullStateDirectory(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting a file system wants root")
	}
	need(t, "mount", "umount")
	dir := t.TempDir()
	mount(t, dir, "size=2m,mode=700")
	s := start(t, withState(filepath.Join(dir, "state")))
	s.sh("true")
	fill(t, filepath.Join(dir, "filler"))
	msg := s.refuse("POST", "/v1/jobs/run", m{"script": "echo x\n" + strings.Repeat("#", 1<<20)}, 500, "internal_error")
	if !strings.Contains(msg, "no space left") {
		t.Errorf("message %q", msg)
	}
	if err := os.Remove(filepath.Join(dir, "filler")); err != nil {
		t.Fatal(err)
	}
	if r := s.sh("echo space"); r.Output != "space\n" {
		t.Errorf("after space came back: %+v", r)
	}
	// A job whose output meets a full disk waits, and loses nothing.
	for _, mode := range modes {
		g := s.gate("gate-" + mode)
		r := s.run("read x < "+g.path+"; head -c 300000 /dev/zero | tr '\\0' x; echo; echo end", m{"mode": mode, "timeout": 0})
		fill(t, filepath.Join(dir, "filler"))
		g.open(t, 1)
		awaitBlockedWriter(t, s.runner())
		os.Remove(filepath.Join(dir, "filler"))
		if f, err := s.follow(r); err != nil || f.Output != strings.Repeat("x", 300000)+"\nend\n" {
			t.Errorf("%s: %v, %d bytes, %s", mode, err, len(f.Output), f.Status)
		}
	}
	s.stop()

	ro := t.TempDir()
	mount(t, ro, "ro")
	two := newServer(t, withState(filepath.Join(ro, "state")))
	two.launch()
	if code := two.wait(); code != 1 || !strings.Contains(two.log.String(), "read-only") {
		t.Errorf("read-only: exit %d, %q", code, two.log)
	}
}

func mount(t *testing.T, dir, options string) {
	t.Helper()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", options, "difyrt-test", dir).CombinedOutput(); err != nil {
		t.Fatalf("mount: %v: %s", err, out)
	}
	t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
}

// awaitBlockedWriter waits until a process of a job sleeps in its write.
func awaitBlockedWriter(t *testing.T, runner int) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		for _, pid := range descendants(runner) {
			if b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/syscall"); strings.HasPrefix(string(b), "1 0x1 ") { // write(2) to 1, amd64
				return
			}
		}
	}
	t.Fatal("no writer is blocked")
}

// fill takes all the space that is left.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 64 << 10; size > 0; {
		if _, err := f.Write(make([]byte, size)); err != nil {
			size /= 2
		}
	}
}

func TestOldJobsAreRemoved(t *testing.T) {
	s := start(t, withArgs("--retention", "1s", "--gc-interval", "100ms"))
	live := s.run("echo up; sleep 600", m{"idle_flush_seconds": 0.05})
	old := s.sh("echo old")
	if s.log.await("old jobs removed") == "" {
		t.Fatal("nothing was removed")
	}
	s.refuse("GET", "/v1/jobs/"+old.JobID, nil, 404, "job_not_found")
	if _, err := os.Stat(s.jobDir(old.JobID)); !os.IsNotExist(err) {
		t.Errorf("the directory is still there: %v", err)
	}
	if v := s.view(live.JobID); v.Status != "running" {
		t.Errorf("the live job is %s", v.Status)
	}
}

func TestStrayDirectoryIsRemovedAtTheStart(t *testing.T) {
	s := start(t)
	kept := s.sh("echo kept")
	s.kill()
	stray, fresh, other := s.jobDir("00112233445566aa"), s.jobDir("00112233445566bb"), s.jobDir("not-a-job")
	for _, dir := range []string{stray, fresh, other} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	old := time.Now().Add(-time.Hour)
	os.Chtimes(stray, old, old)
	os.Chtimes(other, old, old)
	os.Chtimes(s.jobDir(kept.JobID), old, old)
	s.start()
	if s.log.await("stray job directory removed") == "" {
		t.Fatal("the stray directory stays")
	}
	for what, dir := range map[string]string{"what is no job's": other, "what is new": fresh, "a job with a row": s.jobDir(kept.JobID)} {
		if _, err := os.Stat(dir); err != nil {
			t.Errorf("%s was removed: %v", what, err)
		}
	}
	if r := s.waitFor(kept.JobID, 0); r.Output != "kept\n" {
		t.Errorf("%+v", r)
	}
}

// A job that can write in its own directory (its HOME holds the state directory)
// cannot make the server read another file for it, or hang.
func TestJobThatTricksTheServer(t *testing.T) {
	home := t.TempDir()
	s := start(t, withHome(home), withState(filepath.Join(home, "state")))
	secret := write(t, filepath.Join(t.TempDir(), "secret"), "do-not-read-me\n")
	for name, trick := range map[string]string{
		"symlink":   "ln -s " + secret + " output.log",
		"directory": "mkdir output.log",
		"fifo":      "mkfifo output.log",
	} {
		r := s.run("cd $(dirname $0); rm -f output.log; "+trick+"; exit 0", m{"mode": "stdio", "timeout": 0})
		for !s.view(r.JobID).Done {
		}
		_, b, err := s.send(context.Background(), "POST", "/v1/jobs/"+r.JobID+"/wait", m{"offset": 0, "timeout": 1})
		if err != nil || strings.Contains(string(b), "do-not-read-me") {
			t.Errorf("%s: %v %s", name, err, b)
		}
		s.call("DELETE", "/v1/jobs/"+r.JobID, nil, nil)
	}
	if _, err := os.Stat(secret); err != nil {
		t.Error(err)
	}
}
