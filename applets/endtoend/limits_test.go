package endtoend

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestMaxJobs(t *testing.T) {
	s := start(t, withEnv("SHELLCTL_MAX_JOBS=2"))
	a := s.run("read x", m{"timeout": 0})
	s.run("sleep 600", m{"timeout": 0})
	s.refuse("POST", "/v1/jobs/run", m{"script": "true"}, 429, "too_many_jobs")
	s.terminate(a.JobID, 0)
	if r := s.sh("echo room"); r.Output != "room\n" {
		t.Errorf("%+v", r)
	}
}

func TestMaxSeconds(t *testing.T) {
	s := start(t, withEnv("SHELLCTL_JOB_MAX_SECONDS=1"))
	for _, mode := range modes {
		began := time.Now()
		r := s.sh("echo up; exec sleep 600", m{"mode": mode})
		if r.Status != "terminated" || r.code() != 130 || !strings.HasPrefix(r.Output, "up\n") || !strings.Contains(r.Output, "time limit of 1 s") {
			t.Errorf("%s: %s %d %q", mode, r.Status, r.code(), r.Output)
		}
		if took := time.Since(began); took < time.Second {
			t.Errorf("%s: it took %v", mode, took)
		}
	}
	if r := s.sh("echo quick"); r.Status != "exited" || r.Output != "quick\n" {
		t.Errorf("%+v", r)
	}
}

// At the cap the file ends with a line that says so, and the job goes on.
func TestMaxOutput(t *testing.T) {
	s := start(t, withEnv("SHELLCTL_MAX_OUTPUT_BYTES=100000"))
	for _, mode := range modes {
		r := s.sh("yes xxxxxxxxx | head -c 5000000; echo later > done; exit 7", m{"mode": mode})
		if !strings.HasPrefix(r.Output, strings.Repeat("xxxxxxxxx\n", 10000)) || !strings.HasSuffix(r.Output, "what follows is dropped]\n") || len(r.Output) > 100200 {
			t.Errorf("%s: %d bytes, ends with %.80q", mode, len(r.Output), r.Output[max(0, len(r.Output)-80):])
		}
		if r.Status != "exited" || r.code() != 7 {
			t.Errorf("%s: %s %d", mode, r.Status, r.code())
		}
		if _, err := os.Stat(filepath.Join(s.home, "done")); err != nil {
			t.Errorf("%s: the job did not go on: %v", mode, err)
		}
		if r := s.sh("head -c 100000 /dev/zero | tr '\\0' x", m{"mode": mode}); len(r.Output) != 100000 {
			t.Errorf("%s: just at the cap: %d bytes", mode, len(r.Output))
		}
	}
}

func TestMinFree(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting a file system wants root")
	}
	need(t, "mount", "umount")
	dir := t.TempDir()
	mount(t, dir, "size=8m,mode=700")
	s := start(t, withState(filepath.Join(dir, "state")), withEnv("SHELLCTL_MIN_FREE_BYTES=4000000"))
	silent := s.run("read x; exit 4", m{"timeout": 0})
	for _, mode := range modes {
		r := s.sh("yes some output", m{"mode": mode, "output_limit": 100})
		if r.Status != "failed" || !strings.Contains(r.Output, "must stay") {
			t.Errorf("%s: %s %d, ends with %.100q", mode, r.Status, r.code(), r.Output[max(0, len(r.Output)-100):])
		}
		msg := s.refuse("POST", "/v1/jobs/run", m{"script": "true"}, 507, "insufficient_storage")
		if !strings.Contains(msg, "4000000") {
			t.Errorf("message %q", msg)
		}
		s.call("DELETE", "/v1/jobs/"+r.JobID, nil, nil)
	}
	if r, err := s.follow(s.input(silent.JobID, "\n", 0)); err != nil || r.code() != 4 {
		t.Errorf("a job that writes nothing: %v %+v", err, r)
	}
}

func TestWrongLimits(t *testing.T) {
	for _, env := range []string{"SHELLCTL_MAX_JOBS=-1", "SHELLCTL_MAX_OUTPUT_BYTES=1G", "SHELLCTL_JOB_MAX_SECONDS=1e9", "SHELLCTL_MIN_FREE_BYTES=x", "SHELLCTL_JOB_MAX_SECONDS=9999999999999"} {
		s := newServer(t, withEnv(env))
		s.launch()
		name, _, _ := strings.Cut(env, "=")
		if code := s.wait(); code != 1 || !strings.Contains(s.log.String(), name) {
			t.Errorf("%s: %d %s", env, code, s.log)
		}
	}
}
