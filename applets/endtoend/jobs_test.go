package endtoend

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestTerminal(t *testing.T) {
	s := start(t, withEnv("PAGER=less"))
	r := s.sh("stty size; tty; ps -o sid= -p $$ | tr -d ' '; echo $$; echo $TERM $PAGER $GIT_PAGER; echo x > /dev/tty; stty -F /dev/tty size; : < $(tty) && echo own",
		m{"terminal": m{"cols": 101, "rows": 37}})
	l := strings.Split(r.Output, "\n")
	if len(l) < 8 || l[0] != "37 101" || !strings.HasPrefix(l[1], "/dev/pts/") || l[2] != l[3] ||
		l[4] != "xterm-256color less cat" || l[5] != "x" || l[6] != "37 101" || l[7] != "own" {
		t.Errorf("%q", r.Output)
	}
	if r := s.sh("echo $TERM", m{"env": m{"TERM": "dumb"}}); r.Output != "dumb\n" {
		t.Errorf("TERM of the request: %q", r.Output)
	}
	if r := s.sh("echo \"<$TERM>\"", m{"mode": "stdio"}); r.Output != "<>\n" {
		t.Errorf("TERM in stdio: %q", r.Output)
	}
}

// A process that keeps the terminal open, silent or in full flood, does not keep
// the job, and all that the script wrote is there.
func TestTerminalHeldOpen(t *testing.T) {
	s := start(t)
	want := strings.Repeat("a line of the script\n", 3000)
	write(t, filepath.Join(s.home, "data"), want)
	for name, script := range map[string]string{
		"silent":  "setsid sleep 600 & cat data",
		"flood":   "cat data; setsid yes noise & exit 5",
		"reopens": "exec </dev/null >/dev/null 2>&1; sleep 0.2; exec >/dev/tty; cat data",
	} {
		r := s.sh(script, m{"idle_flush_seconds": 10})
		if !strings.HasPrefix(r.Output, want) || r.Status != "exited" {
			t.Errorf("%s: status %s, %d bytes, want at least %d", name, r.Status, len(r.Output), len(want))
		}
		size := s.view(r.JobID).Offset
		s.sh("true")
		if now := s.view(r.JobID).Offset; now != size {
			t.Errorf("%s: the output of a finished job grew from %d to %d", name, size, now)
		}
	}
}

func TestInputLines(t *testing.T) {
	s := start(t)
	longest := strings.Repeat("x", 4095)
	r := s.run("stty -echo; echo ready; read a; echo ${#a}; read b; echo ${#b}; stty raw; echo raw; head -c 9000 | wc -c; exit 6", m{"idle_flush_seconds": 0.05})
	before := s.view(r.JobID).Offset
	msg := s.refuse("POST", "/v1/jobs/"+r.JobID+"/input", m{"text": "ok\n" + longest + "x\n", "offset": 0, "timeout": 5}, 422, "validation_error")
	if !strings.Contains(msg, "4095") {
		t.Errorf("message %q", msg)
	}
	// Nothing of the refused text was typed, and the terminal is as it was.
	r = s.input(r.JobID, longest+"\n", before, m{"idle_flush_seconds": 0.05})
	if r.Output != "4095\n" {
		t.Errorf("the longest line arrived as %q", r.Output)
	}
	// An unfinished line counts on.
	s.input(r.JobID, strings.Repeat("y", 4000), r.Offset, m{"timeout": 0})
	s.refuse("POST", "/v1/jobs/"+r.JobID+"/input", m{"text": strings.Repeat("y", 96) + "\n", "offset": 0, "timeout": 5}, 422, "validation_error")
	r = s.input(r.JobID, "z\n", r.Offset, m{"idle_flush_seconds": 0.05})
	if !strings.Contains(r.Output, "4001\n") {
		t.Errorf("the unfinished line arrived as %q", r.Output)
	}
	for !strings.Contains(r.Output, "raw") {
		r = s.waitFor(r.JobID, r.Offset, m{"idle_flush_seconds": 0.05})
	}
	// In raw mode there is no such limit.
	f, err := s.follow(s.input(r.JobID, strings.Repeat("w", 9000), r.Offset))
	if err != nil || !strings.Contains(f.Output, "9000") || f.code() != 6 {
		t.Errorf("%v %d %q", err, f.code(), f.Output)
	}
}

// A job that does not read its terminal cannot hold the caller.
func TestInputThatIsNotRead(t *testing.T) {
	s := start(t)
	r := s.run("stty -echo; echo up; sleep 600", m{"idle_flush_seconds": 0.05})
	began := time.Now()
	msg := s.refuse("POST", "/v1/jobs/"+r.JobID+"/input", m{"text": strings.Repeat(strings.Repeat("x", 80)+"\n", 3000), "offset": 0, "timeout": 0.5}, 504, "input_timeout")
	if took := time.Since(began); took > patience/2 {
		t.Errorf("it took %v", took)
	}
	if !strings.Contains(msg, "of 243000 bytes") {
		t.Errorf("message %q", msg)
	}
	if v := s.terminate(r.JobID, 1); v.Status != "terminated" {
		t.Errorf("then: %+v", v)
	}
}

func TestConcurrentInputIsNotMixed(t *testing.T) {
	s := start(t)
	r := s.run("stty -echo; echo ready; cat > f; exit 0", m{"idle_flush_seconds": 0.05})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			line := strings.Repeat(string(rune('a'+i)), 1000) + "\n"
			if err := s.try("POST", "/v1/jobs/"+r.JobID+"/input", m{"text": strings.Repeat(line, 20), "offset": 0, "timeout": 20, "idle_flush_seconds": 0.01}, nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	s.input(r.JobID, "\x04", 0, m{"timeout": 0})
	s.done(r.JobID)
	b, err := os.ReadFile(filepath.Join(s.home, "f"))
	if err != nil || len(b) != 8*20*1001 {
		t.Fatalf("%v, %d bytes", err, len(b))
	}
	lines := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
	for i, l := range lines {
		if strings.Trim(l, l[:1]) != "" || i%20 != 0 && l != lines[i-1] {
			t.Fatalf("line %d is mixed: %.40q", i, l)
		}
	}
}

func TestFailedToStart(t *testing.T) {
	s := start(t)
	write(t, filepath.Join(s.home, "file"), "")
	for name, c := range map[string]struct {
		job  m
		says string
	}{
		"interpreter missing":      {m{"script": "#!/no/such/interpreter -x\n"}, "/no/such/interpreter: not found"},
		"interpreter no program":   {m{"script": "#!/etc/passwd\n"}, "/etc/passwd: not executable"},
		"interpreter out of reach": {m{"script": "#!" + bin + "\n"}, "not executable, or not within the job's reach"},
		"home cannot be made":      {m{"script": "true", "env": m{"HOME": filepath.Join(s.home, "file", "home")}}, "make HOME"},
	} {
		r := s.sh("", c.job)
		if r.Status != "failed" || r.ExitCode != nil || !strings.Contains(r.Output, c.says) {
			t.Errorf("%s: %s %d %q", name, r.Status, r.code(), r.Output)
		}
	}
	if r := s.sh("echo fine"); r.Output != "fine\n" {
		t.Errorf("next job: %+v", r)
	}
}

func TestBadRequests(t *testing.T) {
	s := start(t)
	noEntry := filepath.Join(s.home, "noentry")
	os.Mkdir(noEntry, 0o600)
	cases := []struct {
		job    m
		status int
		code   string
		says   string
	}{
		{m{"env": m{"BIG": strings.Repeat("x", 131072)}}, 422, "validation_error", "BIG"},
		{m{"env": manyVariables(40, 60000)}, 422, "validation_error", "environment"},
		{m{"cwd": "/no/such"}, 400, "invalid_cwd", "/no/such"},
		{m{"cwd": write(t, filepath.Join(s.home, "f"), "")}, 400, "invalid_cwd", "not a directory"},
		{m{"env": m{"HOME": "relative"}}, 422, "validation_error", "HOME"},
		{m{"script": strings.Repeat("#", 16<<20+1)}, 413, "payload_too_large", ""},
	}
	if os.Getuid() != 0 {
		cases = append(cases, cases[3])
		cases[len(cases)-1].job, cases[len(cases)-1].says = m{"cwd": noEntry}, "permission denied"
	}
	for _, c := range cases {
		msg := s.refuse("POST", "/v1/jobs/run", with(m{"script": "true"}, c.job), c.status, c.code)
		if !strings.Contains(msg, c.says) {
			t.Errorf("message %q does not say %q", msg, c.says)
		}
	}
	var list struct{ Jobs []m }
	s.call("GET", "/v1/jobs", nil, &list)
	if len(list.Jobs) != 0 {
		t.Errorf("jobs were made: %v", list.Jobs)
	}
	// The largest script is taken, and so is a binary one.
	if r := s.sh("exit 9\n"+strings.Repeat("#", 16<<20-7), m{"mode": "stdio"}); r.code() != 9 {
		t.Errorf("script of 16 MiB: %s %d", r.Status, r.code())
	}
	if r := s.sh("\x7fELF\x00\x01\x02\x00", m{"mode": "stdio"}); r.Status != "exited" || r.code() == 0 {
		t.Errorf("binary script: %s %d", r.Status, r.code())
	}
}

func manyVariables(n, size int) m {
	env := m{}
	for i := range n {
		env[fmt.Sprint("V", i)] = strings.Repeat("v", size)
	}
	return env
}

func TestWaitersHearOfGrowthAndEnd(t *testing.T) {
	s := start(t)
	g := s.gate("gate")
	r := s.run("read x < gate; echo one; read x < gate; echo two; exit 3", m{"timeout": 0})
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			var page result
			if err := s.try("POST", "/v1/jobs/"+r.JobID+"/wait", m{"offset": 0, "timeout": 30, "idle_flush_seconds": 0.1}, &page); err != nil {
				t.Error(err)
			} else if page.Output != "one\n" || page.Done {
				t.Errorf("first page %+v", page)
			} else if err := s.try("POST", "/v1/jobs/"+r.JobID+"/wait", m{"offset": 4, "timeout": 30, "idle_flush_seconds": 20}, &page); err != nil {
				t.Error(err)
			} else if page.Output != "two\n" || !page.Done || page.code() != 3 {
				t.Errorf("last page %+v", page)
			}
		})
	}
	g.open(t, 1)
	for s.view(r.JobID).Offset == 0 {
		s.waitFor(r.JobID, 0, m{"idle_flush_seconds": 0.05})
	}
	time.AfterFunc(500*time.Millisecond, func() { g.open(t, 1) })
	wg.Wait()
}

func TestLostLastLines(t *testing.T) {
	if testing.Short() {
		t.Skip("short")
	}
	s := start(t)
	var want strings.Builder
	for i := range 2000 {
		fmt.Fprintln(&want, i+1)
	}
	var wg sync.WaitGroup
	for c := range 4 {
		wg.Go(func() {
			for range 50 {
				var r result
				if err := s.try("POST", "/v1/jobs/run", m{"script": "seq 1 2000", "mode": modes[c%2], "output_limit": 100000, "idle_flush_seconds": 20}, &r); err != nil {
					t.Error(err)
				} else if r.Output != want.String() || !r.Done || r.code() != 0 {
					t.Errorf("%s: %d bytes of %d, status %s", modes[c%2], len(r.Output), want.Len(), r.Status)
				}
			}
		})
	}
	wg.Wait()
}

func TestEnvironmentOfJobs(t *testing.T) {
	s := start(t, withEnv("SHELLCTL_X=1", "TMUX_PANE=%1", "PWD=/somewhere", "BAD=\xff\xfe", "OLDPWD=/old"))
	for _, mode := range modes {
		r := s.sh("env -0 > e", m{"mode": mode, "env": m{"A": "line\nline", "Q": `'"$`}})
		b, err := os.ReadFile(filepath.Join(s.home, "e"))
		if err != nil || r.code() != 0 {
			t.Fatal(err, r)
		}
		env := "\x00" + string(b)
		for _, want := range []string{"A=line\nline", `Q='"$`, "BAD=\xff\xfe", "HOME=" + s.home, "TMPDIR=" + s.home} {
			if !strings.Contains(env, "\x00"+want+"\x00") {
				t.Errorf("%s: %q is missing", mode, want)
			}
		}
		for _, not := range []string{"SHELLCTL_", "TMUX", "/somewhere", "OLDPWD=/old"} {
			if strings.Contains(env, not) {
				t.Errorf("%s: %q is there", mode, not)
			}
		}
	}
}

// Whoever waits for a job that is deleted hears that it has ended or that there
// is none, and never anything else.
func TestDeleteUnderWaiters(t *testing.T) {
	s := start(t)
	for i := range 10 {
		mark := unique()
		r := s.run("echo some output; trap '' INT TERM HUP; sleep "+mark, m{"mode": modes[i%2], "idle_flush_seconds": 0.05})
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				status, b, err := s.send(t.Context(), "POST", "/v1/jobs/"+r.JobID+"/wait", m{"offset": r.Offset, "timeout": 30})
				if ended := status == 200 && strings.Contains(string(b), `"status":"terminated"`); err != nil || !ended && status != 404 {
					t.Errorf("%v %d %s", err, status, b)
				}
			})
			wg.Go(func() {
				status, b, err := s.send(t.Context(), "DELETE", "/v1/jobs/"+r.JobID+"?force=true&grace_seconds=0.1", nil)
				if err != nil || status != 200 && status != 404 {
					t.Errorf("%v %d %s", err, status, b)
				}
			})
		}
		wg.Wait()
		s.refuse("GET", "/v1/jobs/"+r.JobID, nil, 404, "job_not_found")
		if left := withArg(mark); len(left) > 0 {
			t.Errorf("processes left: %v", left)
		}
		if _, err := os.Stat(s.jobDir(r.JobID)); !os.IsNotExist(err) {
			t.Errorf("the directory is left: %v", err)
		}
	}
}

// Processes that left the script's session are killed with the job.
func TestTerminateReachesOtherSessions(t *testing.T) {
	need(t, "setsid")
	s := start(t)
	for _, mode := range modes {
		mark := unique()
		r := s.run("setsid sh -c \"trap '' INT TERM HUP; setsid sleep "+mark+" & sleep "+mark+"\" & until [ $(pgrep -cf 'sleep "+mark+"') -ge 2 ]; do sleep 0.05; done; echo up; wait",
			m{"mode": mode, "idle_flush_seconds": 0.05})
		if r.Output != "up\n" || len(withArg(mark)) < 2 {
			t.Fatalf("%s: %q, %v", mode, r.Output, withArg(mark))
		}
		if v := s.terminate(r.JobID, 0.2); v.Status != "terminated" {
			t.Errorf("%s: %+v", mode, v)
		}
		if left := withArg(mark); len(left) > 0 {
			t.Errorf("%s: left %v", mode, left)
		}
	}
}

// Dots that come faster than a terminal goes quiet are shown all the same; of a
// bar that is redrawn only the last state.
func TestBusyLines(t *testing.T) {
	s := start(t)
	dots := s.run("while [ ! -e stop ]; do printf .; sleep 0.05; done; echo; exit 3", m{"timeout": 10, "idle_flush_seconds": 0.05})
	if dots.Done || strings.Trim(dots.Output, ".") != "" || dots.Output == "" {
		t.Errorf("dots: %q", dots.Output)
	}
	bar := s.run("i=0; while [ ! -e stop ]; do i=$((i+1)); printf '\\r%d%%' $i; sleep 0.05; done; printf '\\r100%%\\n'", m{"timeout": 2.5})
	if bar.Output != "" {
		t.Errorf("bar: %q", bar.Output)
	}
	write(t, filepath.Join(s.home, "stop"), "")
	if f, err := s.follow(bar); err != nil || f.Output != "100%\n" {
		t.Errorf("bar: %v %q", err, f.Output)
	}
	if f, err := s.follow(dots); err != nil || strings.Trim(f.Output, ".") != "\n" || f.code() != 3 {
		t.Errorf("dots: %v %q", err, f.Output)
	}
}
