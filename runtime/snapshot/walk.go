package snapshot

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Excluder decides what is left out: path is relative to the home. What is in an
// excluded directory is not asked for. *ignore.Matcher is one.
type Excluder interface {
	Match(path string, dir bool) bool
}

// dir is an open directory, in which names are looked up. It is closed when
// nobody needs it any more.
type dir struct {
	fd   int
	refs atomic.Int32
}

func newDir(fd int) *dir {
	d := &dir{fd: fd}
	d.refs.Store(1)
	return d
}

func (d *dir) hold() *dir { d.refs.Add(1); return d }

func (d *dir) release() {
	if d.refs.Add(-1) == 0 {
		unix.Close(d.fd)
	}
}

// found is an entry that the walk came by.
type found struct {
	path string
	name string // in
	in   *dir   // released by whoever takes the entry
	kind byte
	stat unix.Stat_t // of a directory, the opened one's; else what the look said
	// made by the readers: see read.go
	content content
	ready   chan struct{}
}

// walker goes through a home in order and hands on what is to be saved.
type walker struct {
	ctx     context.Context
	exclude Excluder       // may be nil
	omit    map[DirID]bool // directories that are left out
	dev     uint64         // the home's file system; others are not entered
	emit    func(*found) error
	skipped int
	levels  []*level
	buf     []byte // for listings
}

// level is a directory on the way down. Those far up are closed, so that a tree
// of any depth takes a bounded number of descriptors, and opened again from below.
type level struct {
	d  *dir // nil while it is closed
	id DirID
}

const openLevels = 64

// batch bounds the names of one directory that are in memory, and in order.
const batch = 100_000

// walk saves what is in the directory, which it releases.
func (w *walker) walk(d *dir, id DirID, path string) (err error) {
	l := &level{d, id}
	w.levels = append(w.levels, l)
	if n := len(w.levels) - openLevels; n > 0 {
		if up := w.levels[n-1]; up.d != nil {
			up.d.release()
			up.d = nil
		}
	}
	defer func() {
		w.levels = w.levels[:len(w.levels)-1]
		if l.d != nil {
			err = errors.Join(err, w.reopenUp(l))
			l.d.release()
		}
	}()
	var place int64
	for {
		names, more, err := w.list(l.d.fd, &place)
		if err != nil {
			return fmt.Errorf("list %s: %w", shown(path), err)
		}
		slices.Sort(names)
		for _, name := range names {
			if w.ctx.Err() != nil {
				return context.Cause(w.ctx)
			}
			if err := w.entry(l, path, name); err != nil {
				return err
			}
		}
		if !more {
			return nil
		}
	}
}

// reopenUp opens the level above l again, when it was closed, and makes sure that
// it is still the one: a job may have moved l away.
func (w *walker) reopenUp(l *level) error {
	if len(w.levels) == 0 {
		return nil
	}
	up := w.levels[len(w.levels)-1]
	if up.d != nil {
		return nil
	}
	fd, err := openat(l.d.fd, "..", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return fmt.Errorf("go back up: %w", err)
	}
	up.d = newDir(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("go back up: %w", err)
	}
	if idOf(&st) != up.id {
		return errors.New("a directory was moved elsewhere while it was saved")
	}
	return nil
}

// list reads names, from place on, which it moves; more says that there may be
// others behind them.
func (w *walker) list(fd int, place *int64) (names []string, more bool, err error) {
	if _, err := unix.Seek(fd, *place, unix.SEEK_SET); err != nil {
		return nil, false, err
	}
	for len(names) < batch {
		n, err := unix.ReadDirent(fd, w.buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, false, err
		}
		if n <= 0 {
			return names, false, nil
		}
		_, _, names = unix.ParseDirent(w.buf[:n], -1, names)
	}
	*place, err = unix.Seek(fd, 0, unix.SEEK_CUR)
	return names, true, err
}

// entry decides the fate of one name.
func (w *walker) entry(l *level, path, name string) error {
	full := name
	if path != "" {
		full = path + "/" + name
	}
	var st unix.Stat_t
	switch err := unix.Fstatat(l.d.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); {
	case errors.Is(err, unix.ENOENT): // it has vanished
		return nil
	case err != nil:
		return fmt.Errorf("stat %s: %w", shown(full), err)
	}
	isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
	if full == stateDir || isDir && w.omit[idOf(&st)] || w.exclude != nil && w.exclude.Match(full, isDir) {
		return nil
	}
	f := &found{path: full, name: name, stat: st}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return w.directory(l, f)
	case unix.S_IFREG:
		f.kind = kindFile
	case unix.S_IFLNK:
		f.kind = kindSymlink
	default: // a socket, a fifo, a device
		w.skipped++
		return nil
	}
	f.in = l.d.hold()
	return w.emit(f)
}

func (w *walker) directory(l *level, f *found) error {
	fd, err := openat(l.d.fd, f.name, unix.O_RDONLY|unix.O_DIRECTORY)
	switch {
	case vanished(err):
		return nil
	case err != nil:
		return fmt.Errorf("open %s: %w", shown(f.path), err)
	}
	d := newDir(fd)
	if err := unix.Fstat(fd, &f.stat); err != nil {
		d.release()
		return fmt.Errorf("stat %s: %w", shown(f.path), err)
	}
	id := idOf(&f.stat)
	f.kind, f.in = kindDir, d.hold()
	if err := w.emit(f); err != nil {
		d.release()
		return err
	}
	if id.Dev != w.dev { // the mount point is kept, empty
		d.release()
		return nil
	}
	return w.walk(d, id, f.path)
}

// vanished reports that a name is gone, or something else by now: then the walk
// has come too late for it.
func vanished(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// openat opens a name in a directory and never follows a link or waits for the
// other end of a fifo.
func openat(dirfd int, name string, flags int) (int, error) {
	for {
		fd, err := unix.Openat(dirfd, name, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}
