package snapshot

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// smallFile is what readers take into memory ahead of the writer, in bytes;
	// of larger files they only open the first.
	smallFile = 64 << 10
	readers   = 4
	ahead     = 64 // entries between the walk and the writer
)

// content is what a reader found in an entry.
type content struct {
	gone   bool        // it vanished, or became something else
	stat   unix.Stat_t // of the opened file
	data   []byte      // of a small file; shorter than stat.Size when it has shrunk
	fd     int         // of any other file, else -1
	link   string
	xattrs []xattr
	err    error
}

var buffers = sync.Pool{New: func() any { b := make([]byte, 0, smallFile); return &b }}

// read fills in an entry's content.
func (f *found) read() {
	f.content.fd = -1
	switch f.kind {
	case kindDir:
		f.content.xattrs, f.content.err = userXattrs(f.in.fd)
	case kindSymlink:
		f.readLink()
	case kindFile:
		f.readFile()
	}
	if f.content.err != nil {
		f.content.err = fmt.Errorf("read %s: %w", shown(f.path), f.content.err)
	}
}

func (f *found) readLink() {
	c := &f.content
	for size := 256; ; size *= 2 {
		b := make([]byte, size)
		n, err := unix.Readlinkat(f.in.fd, f.name, b)
		switch {
		case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL):
			c.gone = true
			return
		case err != nil:
			c.err = err
			return
		case n < size:
			c.link = string(b[:n])
			return
		}
	}
}

func (f *found) readFile() {
	c := &f.content
	fd, err := openat(f.in.fd, f.name, unix.O_RDONLY)
	switch {
	case vanished(err) || errors.Is(err, unix.ENXIO): // ENXIO: a socket by now
		c.gone = true
		return
	case err != nil:
		c.err = err
		return
	}
	c.fd = fd
	if c.err = unix.Fstat(fd, &c.stat); c.err != nil {
		return
	}
	if c.stat.Mode&unix.S_IFMT != unix.S_IFREG {
		c.gone = true
		return
	}
	if c.xattrs, c.err = userXattrs(fd); c.err != nil {
		return
	}
	if c.stat.Size > smallFile || c.stat.Nlink > 1 {
		return
	}
	b := *buffers.Get().(*[]byte)
	c.data, c.err = readFull(fd, b[:c.stat.Size])
	unix.Close(fd)
	c.fd = -1
}

// readFull reads what there is, at most until b is full.
func readFull(fd int, b []byte) ([]byte, error) {
	n := 0
	for n < len(b) {
		k, err := unix.Pread(fd, b[n:], int64(n))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return b[:n], err
		}
		if k == 0 {
			break
		}
		n += k
	}
	return b[:n], nil
}

// done gives back what an entry holds.
func (f *found) done() {
	if f.content.fd >= 0 {
		unix.Close(f.content.fd)
	}
	if f.content.data != nil {
		b := f.content.data[:0]
		buffers.Put(&b)
	}
	f.in.release()
}

// userXattrs reads the attributes of the user namespace (xattr(7)); those of
// others, such as file capabilities, are rights that a snapshot must not carry.
func userXattrs(fd int) (list []xattr, err error) {
	n, err := unix.Flistxattr(fd, nil)
	if n == 0 || errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	names := make([]byte, n+1024)
	if n, err = unix.Flistxattr(fd, names); err != nil {
		return nil, err
	}
	for name := range strings.SplitSeq(string(names[:n]), "\x00") {
		if !strings.HasPrefix(name, "user.") || strings.Contains(name, "=") { // a PAX keyword ends at "="
			continue
		}
		value := make([]byte, 64<<10) // XATTR_SIZE_MAX
		k, err := unix.Fgetxattr(fd, name, value)
		if errors.Is(err, unix.ENODATA) {
			continue
		}
		if err != nil {
			return nil, err
		}
		list = append(list, xattr{name, string(value[:k])})
	}
	return list, nil
}
