package service

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// lockFile is locked by the server that serves the state directory, and holds
// its PID for whoever wonders.
const lockFile = "serve.lock"

// prepareState makes the state directory, closed to others.
func prepareState(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return fmt.Errorf("make the state directory: %w", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("make the state directory: %w", err)
	}
	st, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	if st.Mode().Perm()&0o077 != 0 {
		if err := os.Chmod(dir, 0o700); err != nil {
			return fmt.Errorf("close the state directory to others: %w", err)
		}
	}
	return nil
}

// lockState makes this process the only server of the state directory. The
// lock goes with the process, however it ends (flock(2)).
func lockState(dir string) (unlock func(), err error) {
	path := filepath.Join(dir, lockFile)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the state directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			var b [16]byte
			n, _ := f.Read(b[:])
			return nil, fmt.Errorf("state directory %s is already served by process %s: stop that server, or choose another directory with --state-dir",
				dir, strings.TrimSpace(string(b[:n])))
		}
		return nil, fmt.Errorf("lock the state directory: %w", err)
	}
	// What tidies /var/tmp leaves a directory that is locked alone (tmpfiles.d(5), "Age").
	d, err := os.Open(dir)
	if err == nil {
		err = unix.Flock(int(d.Fd()), unix.LOCK_SH)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock the state directory: %w", err)
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = fmt.Fprintf(f, "%d\n", os.Getpid())
	}
	if err != nil {
		f.Close()
		d.Close()
		return nil, fmt.Errorf("write %s: %w", path, err)
	}
	return func() { f.Close(); d.Close() }, nil
}
