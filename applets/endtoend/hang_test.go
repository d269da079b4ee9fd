package endtoend

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// deadMount mounts a file system whose server never answers, as that of a dead
// NFS server: whoever looks into it hangs until release.
func deadMount(t *testing.T, dir string) (release func()) {
	t.Helper()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("a file system that hangs wants FUSE: %v", err)
	}
	if err := unix.Mount("dead", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)); err != nil {
		unix.Close(fd)
		t.Skipf("a file system that hangs wants FUSE: %v", err)
	}
	done := false
	release = func() {
		if !done {
			done = true
			unix.Close(fd) // everything that hangs fails now (ENOTCONN)
			unix.Unmount(dir, unix.MNT_DETACH)
		}
	}
	t.Cleanup(release)
	return release
}

// A job whose HOME hangs hurts nobody else: other jobs start, a new server is
// welcomed, a runner can be stopped.
func TestStartThatHangs(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting wants root")
	}
	dead := filepath.Join(t.TempDir(), "dead")
	if err := os.Mkdir(dead, 0o755); err != nil {
		t.Fatal(err)
	}
	release := deadMount(t, dead)
	s := start(t)
	s.sh("true")
	runner := s.runner()
	// Its request waits as long as the start hangs.
	hung := make(chan error, 1)
	go func() {
		hung <- s.try("POST", "/v1/jobs/run", m{"script": "touch " + s.home + "/ran", "env": m{"HOME": filepath.Join(dead, "home")}, "timeout": 0}, nil)
	}()
	var list struct{ Jobs []view }
	for len(list.Jobs) == 0 {
		s.call("GET", "/v1/jobs?status=starting", nil, &list)
	}
	if r := s.sh("echo beside"); r.Output != "beside\n" {
		t.Errorf("%+v", r)
	}
	s.kill()
	<-hung
	began := time.Now()
	s.start()
	if r := s.sh("echo after"); r.Output != "after\n" || s.runner() != runner {
		t.Errorf("%+v", r)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the new server was ready after %v", took)
	}
	if v := s.view(list.Jobs[0].JobID); v.Status != "lost" {
		t.Errorf("the job that hung: %+v", v)
	}
	release()
	if r := s.sh("echo still"); r.Output != "still\n" {
		t.Errorf("%+v", r)
	}
	if _, err := os.Stat(filepath.Join(s.home, "ran")); err == nil {
		t.Error("the job ran after it was lost")
	}
}
