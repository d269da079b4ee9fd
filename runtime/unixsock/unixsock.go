// Package unixsock opens unix stream sockets by name: closed to other users,
// also below directories whose path is too long for a socket address.
package unixsock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxSunPath is what sockaddr_un holds of a path, with its NUL (unix(7)).
const maxSunPath = 108

// shortPath gives a name for path that fits into a socket address. A path that
// is too long is named through an open descriptor of its directory; done must
// be called once the name is no longer used.
func shortPath(path string) (short string, done func(), err error) {
	if len(path) < maxSunPath {
		return path, func() {}, nil
	}
	dir := filepath.Dir(path)
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	return "/proc/self/fd/" + strconv.Itoa(fd) + "/" + filepath.Base(path), func() { unix.Close(fd) }, nil
}

// Dial connects to the socket at path. ECONNREFUSED means that nobody listens
// on it any more.
func Dial(ctx context.Context, path string) (net.Conn, error) {
	short, done, err := shortPath(path)
	if err != nil {
		return nil, err
	}
	defer done()
	var d net.Dialer
	return d.DialContext(ctx, "unix", short)
}

// Listener is a listening socket that Close removes from its directory. Its
// UnixListener, closed alone, leaves the name to whoever has a duplicate.
type Listener struct {
	*net.UnixListener
	path string
}

// Addr names the socket by the path that it was asked for.
func (l *Listener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }

// Close closes and removes the socket.
func (l *Listener) Close() error {
	err := l.UnixListener.Close()
	if err == nil {
		err = os.Remove(l.path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return err
}

// Listen makes a socket at path that only its owner can connect to. A socket
// that nobody listens on is replaced; anything else that is there is an error.
func Listen(path string) (*Listener, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if err := clear(path); err != nil {
		return nil, err
	}
	short, done, err := shortPath(path)
	if err != nil {
		return nil, err
	}
	defer done()
	// The mode that a socket has before bind(2) is what its name gets, so that
	// there is no moment in which others could connect.
	c := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		if cerr := raw.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }); cerr != nil {
			return cerr
		}
		return err
	}}
	l, err := c.Listen(context.Background(), "unix", short)
	if err != nil {
		return nil, err
	}
	u := l.(*net.UnixListener)
	u.SetUnlinkOnClose(false)
	return &Listener{u, path}, nil
}

// clear removes a socket that a dead process left behind.
func clear(path string) error {
	st, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if st.Mode()&fs.ModeSocket == 0 {
		return fmt.Errorf("%s is there and is no socket", path)
	}
	c, err := Dial(context.Background(), path)
	if err == nil {
		c.Close()
		return fmt.Errorf("%s: %w", path, unix.EADDRINUSE)
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return err
	}
	return os.Remove(path)
}
