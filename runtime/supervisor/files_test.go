package supervisor

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"difyrt/runtime/job"
)

const id = job.ID("0123456789abcdef")

func jobRoot(t *testing.T) (*os.File, string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, string(id)), 0o700); err != nil {
		t.Fatal(err)
	}
	root, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root, filepath.Join(dir, string(id))
}

func openedDir(t *testing.T, path string) int {
	t.Helper()
	fd, err := openDir(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	return fd
}

func TestRecordRoundTrip(t *testing.T) {
	root, dir := jobRoot(t)
	if _, ok, err := ReadRecord(root, id); ok || err != nil {
		t.Errorf("without a record: %v %v", ok, err)
	}
	code := 5
	at := time.Now().Truncate(time.Millisecond)
	if err := writeRecord(openedDir(t, dir), Record{Status: job.Exited, ExitCode: &code, StartedAt: at, EndedAt: at, Size: 9}); err != nil {
		t.Fatal(err)
	}
	r, ok, err := ReadRecord(root, id)
	if !ok || err != nil || r.Status != job.Exited || *r.ExitCode != 5 || !r.EndedAt.Equal(at) || r.Size != 9 {
		t.Errorf("%+v %v %v", r, ok, err)
	}
	if st, err := os.Stat(filepath.Join(dir, recordFile)); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", st, err)
	}
}

func TestRecordsThatAreNone(t *testing.T) {
	root, dir := jobRoot(t)
	path := filepath.Join(dir, recordFile)
	for name, make := range map[string]func() error{
		"junk":     func() error { return os.WriteFile(path, []byte("junk"), 0o600) },
		"running":  func() error { return os.WriteFile(path, []byte(`{"status":"running"}`), 0o600) },
		"endless":  func() error { return os.WriteFile(path, []byte(strings.Repeat(" ", 1<<20)+"{}"), 0o600) },
		"fifo":     func() error { return syscall.Mkfifo(path, 0o600) },
		"symlink":  func() error { return os.Symlink("/etc/passwd", path) },
		"dir":      func() error { return os.Mkdir(path, 0o700) },
		"sibling":  func() error { return os.Symlink("../sibling", path) },
		"dangling": func() error { return os.Symlink("nothing", path) },
	} {
		if err := make(); err != nil {
			t.Fatal(err)
		}
		if _, ok, err := ReadRecord(root, id); ok || err == nil {
			t.Errorf("%s: %v %v", name, ok, err)
		}
		os.Remove(path)
	}
}

func TestSinkDropsOnlyWhenTold(t *testing.T) {
	stop := make(chan struct{})
	var sizes []int64
	s, err := newSink(openedDir(t, t.TempDir()), "f", sinkOptions{grew: func(n int64) { sizes = append(sizes, n) }, stop: stop, log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	s.write([]byte("abc"))
	s.write(nil)
	s.write([]byte("de"))
	if len(sizes) != 2 || sizes[1] != 5 {
		t.Errorf("%v", sizes)
	}
	close(stop)
	if s.again(syscall.ENOSPC) || !errors.Is(s.lost, syscall.ENOSPC) {
		t.Errorf("after the end: %v", s.lost)
	}
	s.close()
}

func TestCommandAndExplain(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, ScriptFile)
	for text, want := range map[string]string{"": shell, "echo": shell, "#": shell, "#!": script, "#!/bin/x y\n": script, "\n#!/x": shell} {
		if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
		path, argv, err := command(dir)
		if path != want || err != nil || argv[len(argv)-1] != script {
			t.Errorf("%q: %s %v %v", text, path, argv, err)
		}
	}
	os.WriteFile(script, []byte("#! /bin/nope -x\n"), 0o700)
	err := explain(syscall.ENOENT, script, []string{script})
	var se *startError
	if !errors.As(err, &se) || se.code != 127 || !strings.Contains(err.Error(), "interpreter /bin/nope: not found") {
		t.Errorf("%v", err)
	}
	os.Remove(script)
	if _, _, err := command(dir); err == nil {
		t.Error("no script, no error")
	}
}

// What another job does to the paths after they were opened changes nothing.
func TestGroundsAreInodes(t *testing.T) {
	dir := t.TempDir()
	home, cwd := filepath.Join(dir, "new", "home"), filepath.Join(dir, "cwd")
	if err := os.Mkdir(cwd, 0o700); err != nil {
		t.Fatal(err)
	}
	g, err := openGrounds(home, cwd)
	if err != nil {
		t.Fatal(err)
	}
	defer g.close()
	for path, name := range map[string]string{home: g.homePath(), cwd: g.cwdPath()} {
		was, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path, path+".moved"); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("/etc", path); err != nil {
			t.Fatal(err)
		}
		if now, err := os.Stat(name); err != nil || !os.SameFile(was, now) {
			t.Errorf("%s is another place now: %v", path, err)
		}
	}
	for _, bad := range []string{filepath.Join(dir, "none"), filepath.Join(dir, "file")} {
		os.WriteFile(filepath.Join(dir, "file"), nil, 0o600)
		var se *startError
		if _, err := openGrounds(dir, bad); !errors.As(err, &se) || se.code != 111 {
			t.Errorf("cwd %s: %v", bad, err)
		}
	}
}
