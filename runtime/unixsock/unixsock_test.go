package unixsock

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestListen(t *testing.T) {
	long := filepath.Join(t.TempDir(), strings.Repeat("d", 200))
	if err := os.Mkdir(long, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(t.TempDir(), "s"), filepath.Join(long, "s")} {
		l, err := Listen(path)
		if err != nil {
			t.Fatal(err)
		}
		if st, err := os.Stat(path); err != nil || st.Mode() != fs.ModeSocket|0o600 {
			t.Errorf("%v %v", st.Mode(), err)
		}
		if l.Addr().String() != path {
			t.Errorf("address %v", l.Addr())
		}
		if _, err := Listen(path); !errors.Is(err, unix.EADDRINUSE) {
			t.Errorf("a live socket: %v", err)
		}
		l.UnixListener.Close() // as if its process had died
		if _, err := Dial(t.Context(), path); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("a dead socket: %v", err)
		}
		if l, err = Listen(path); err != nil {
			t.Fatal(err)
		}
		c, err := Dial(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		l.Close()
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the socket is left behind: %v", err)
		}
	}
}

func TestListenWhereItMustNot(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, dir, filepath.Join(file, "x"), filepath.Join(dir, "none", "x")} {
		if l, err := Listen(path); err == nil {
			l.Close()
			t.Errorf("%s: no error", path)
		}
	}
	if b, _ := os.ReadFile(file); string(b) != "precious" {
		t.Error("the file was touched")
	}
}
