package snapshot

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// item is one entry to be put in its place.
type item struct {
	path   string
	names  []string
	mode   uint32
	mtime  unix.Timespec
	xattrs []xattr
	data   []byte // of a small file
	// hasMode: it was made with its mode.
	hasMode bool
	in      *dir
}

func (it *item) base() string { return it.names[len(it.names)-1] }

// placeError is an error of the home's file system.
type placeError struct {
	path string
	err  error
}

func (e *placeError) Error() string { return fmt.Sprintf("restore %s: %v", shown(e.path), e.err) }
func (e *placeError) Unwrap() error { return e.err }

const (
	writers    = 4
	queued     = 64 // small files between the reader and the writers
	openDirs   = 128
	holeAtom   = 64 << 10 // runs of zeros of this size and place become holes
	copyBuffer = 256 << 10
)

// placer puts entries into the home. The goroutine that calls it makes
// directories, links and large files itself, in order; small files go to writers.
type placer struct {
	ctx     context.Context
	root    *dir
	omit    map[DirID]bool
	cache   map[string]*list.Element // of *openDir, by path
	recent  *list.List               // the last used first
	dirs    []item                   // whose modes and times are set at the end
	known   map[string]int           // a directory's place in dirs
	small   chan *item
	all     sync.WaitGroup
	written atomic.Int64
	buf     []byte

	mu      sync.Mutex
	idle    *sync.Cond
	flying  map[string]struct{} // files that the writers have
	failure error
}

type openDir struct {
	path string
	d    *dir
}

func newPlacer(ctx context.Context, home int, omit []DirID) *placer {
	p := &placer{ctx: ctx, root: newDir(home), omit: map[DirID]bool{}, cache: map[string]*list.Element{}, recent: list.New(),
		known: map[string]int{}, small: make(chan *item, queued), flying: map[string]struct{}{}, buf: make([]byte, copyBuffer)}
	p.idle = sync.NewCond(&p.mu)
	for _, id := range omit {
		p.omit[id] = true
	}
	for range writers {
		p.all.Go(func() {
			for it := range p.small {
				p.landed(it, p.writeSmall(it))
			}
		})
	}
	return p
}

// launch gives a small file to the writers.
func (p *placer) launch(it *item) {
	p.mu.Lock()
	p.flying[it.path] = struct{}{}
	p.mu.Unlock()
	p.small <- it
}

func (p *placer) landed(it *item, err error) {
	it.in.release()
	b := it.data[:0]
	buffers.Put(&b)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.flying, it.path)
	if err != nil && p.failure == nil {
		p.failure = &placeError{it.path, err}
	}
	p.idle.Broadcast()
}

func (p *placer) failed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failure != nil
}

// wait returns when the writers have nothing left, with their first error.
func (p *placer) wait() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.flying) > 0 {
		p.idle.Wait()
	}
	return p.failure
}

// await is wait when a file of this path is on its way.
func (p *placer) await(path string) error {
	p.mu.Lock()
	_, there := p.flying[path]
	p.mu.Unlock()
	if there {
		return p.wait()
	}
	return nil
}

// parent opens the directory that an entry belongs in, and waits for an earlier
// entry of the same path. omitted says that it is one into which nothing is
// written.
func (p *placer) parent(it *item) (omitted bool, err error) {
	if err := p.await(it.path); err != nil {
		return false, err
	}
	it.in, err = p.open(it.names[:len(it.names)-1], true)
	return it.in == nil, err
}

// open opens a directory by its names, each in the one before it, and holds it
// for the caller. Missing ones are made. nil is one that is left alone.
func (p *placer) open(names []string, create bool) (*dir, error) {
	if len(names) == 0 {
		return p.root.hold(), nil
	}
	path := strings.Join(names, "/")
	if e, ok := p.cache[path]; ok {
		p.recent.MoveToFront(e)
		return e.Value.(*openDir).d.hold(), nil
	}
	up, err := p.open(names[:len(names)-1], create)
	if up == nil || err != nil {
		return nil, err
	}
	defer up.release()
	if err := p.await(path); err != nil { // a file by that name is on its way
		return nil, err
	}
	name := names[len(names)-1]
	fd, err := openat(up.fd, name, unix.O_RDONLY|unix.O_DIRECTORY)
	if errors.Is(err, unix.ENOENT) && create {
		if err = unix.Mkdirat(up.fd, name, 0o755); err == nil || errors.Is(err, unix.EEXIST) {
			fd, err = openat(up.fd, name, unix.O_RDONLY|unix.O_DIRECTORY)
		}
	}
	switch {
	case err != nil && isLink(up.fd, name):
		return nil, malformed("%s is a symbolic link, and an entry leads through it", shown(path))
	case err != nil:
		return nil, &placeError{path, err}
	}
	return p.keep(path, fd)
}

func isLink(in int, name string) bool {
	var st unix.Stat_t
	return unix.Fstatat(in, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK
}

// keep takes an open directory into the cache, and closes the one that was not
// used for longest.
func (p *placer) keep(path string, fd int) (*dir, error) {
	d := newDir(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		d.release()
		return nil, &placeError{path, err}
	}
	if p.omit[idOf(&st)] {
		d.release()
		return nil, nil
	}
	p.cache[path] = p.recent.PushFront(&openDir{path, d})
	if p.recent.Len() > openDirs {
		p.forget(p.recent.Back())
	}
	return d.hold(), nil
}

func (p *placer) forget(e *list.Element) {
	o := p.recent.Remove(e).(*openDir)
	delete(p.cache, o.path)
	o.d.release()
}

// directory makes a directory, or opens up the one that is there; its mode and
// time are set at the end, since what comes into it needs the one and changes
// the other.
func (p *placer) directory(it *item) (omitted bool, err error) {
	if omitted, err := p.parent(it); omitted || err != nil {
		return omitted, err
	}
	defer it.in.release()
	if e, ok := p.cache[it.path]; ok {
		p.forget(e)
	}
	fd, err := makeDir(it.in.fd, it.base())
	if err != nil {
		return false, &placeError{it.path, err}
	}
	d, err := p.keep(it.path, fd)
	if d == nil || err != nil {
		return d == nil, err
	}
	defer d.release()
	if err := unix.Fchmod(fd, it.mode|0o700); err != nil {
		return false, &placeError{it.path, err}
	}
	it.in = nil
	if at, ok := p.known[it.path]; ok {
		p.dirs[at] = *it
	} else {
		p.known[it.path] = len(p.dirs)
		p.dirs = append(p.dirs, *it)
	}
	return false, nil
}

// makeDir opens a directory, which it makes in place of anything else.
func makeDir(in int, name string) (int, error) {
	for range 3 { // a job may be busy with the same name
		err := unix.Mkdirat(in, name, 0o700)
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return -1, err
		}
		fd, err := openat(in, name, unix.O_RDONLY|unix.O_DIRECTORY)
		if errors.Is(err, unix.EACCES) { // it is shut; its owner may open it
			if unix.Fchmodat(in, name, 0o700, unix.AT_SYMLINK_NOFOLLOW) == nil {
				fd, err = openat(in, name, unix.O_RDONLY|unix.O_DIRECTORY)
			}
		}
		if err == nil {
			return fd, nil
		}
		if !vanished(err) {
			return -1, err
		}
		if err := unix.Unlinkat(in, name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			return -1, err
		}
	}
	return -1, errors.New("the name keeps changing")
}

// replace makes something by a name, in place of a file, a link or an empty
// directory.
func replace(in int, name string, make func() error) error {
	for range 3 { // a job may be busy with the same name
		err := make()
		if !errors.Is(err, unix.EEXIST) {
			return err
		}
		err = unix.Unlinkat(in, name, 0)
		if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) {
			err = unix.Unlinkat(in, name, unix.AT_REMOVEDIR)
		}
		if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
			return errors.New("a directory that is not empty is in its place")
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return errors.New("the name keeps changing")
}

func (p *placer) symlink(it *item, to string) (omitted bool, err error) {
	return p.place(it, func() error {
		if err := unix.Symlinkat(to, it.in.fd, it.base()); err != nil {
			return err
		}
		times := []unix.Timespec{it.mtime, it.mtime}
		return unix.UtimesNanoAt(it.in.fd, it.base(), times, unix.AT_SYMLINK_NOFOLLOW)
	})
}

func (p *placer) link(it *item, target []string) (omitted bool, err error) {
	if err := p.await(strings.Join(target, "/")); err != nil {
		return false, err
	}
	from, err := p.open(target[:len(target)-1], false)
	if from == nil || err != nil {
		return from == nil, err
	}
	defer from.release()
	if it.path == strings.Join(target, "/") {
		return false, nil // a link to itself is there already
	}
	return p.place(it, func() error { // without AT_SYMLINK_FOLLOW a link is linked, not followed
		return unix.Linkat(from.fd, target[len(target)-1], it.in.fd, it.base(), 0)
	})
}

func (p *placer) place(it *item, make func() error) (omitted bool, err error) {
	if omitted, err := p.parent(it); omitted || err != nil {
		return omitted, err
	}
	defer it.in.release()
	p.dropTree(it.path)
	if err := replace(it.in.fd, it.base(), make); err != nil {
		return false, &placeError{it.path, err}
	}
	return false, nil
}

// dropTree forgets what is known of a directory that may be replaced now.
func (p *placer) dropTree(path string) {
	if e, ok := p.cache[path]; ok {
		p.forget(e)
	}
	if at, ok := p.known[path]; ok {
		p.dirs[at].names = nil // nothing is set at the end
		delete(p.known, path)
	}
}

// file reads a file's content, and writes it, if it is large.
func (p *placer) file(it *item, r io.Reader, size int64) (omitted bool, err error) {
	if omitted, err := p.parent(it); omitted || err != nil {
		return omitted, err
	}
	p.dropTree(it.path)
	if size <= smallFile {
		b := *buffers.Get().(*[]byte)
		it.data = b[:size]
		if _, err := io.ReadFull(r, it.data); err != nil {
			it.in.release()
			return false, short(err)
		}
		p.launch(it)
		return false, nil
	}
	defer it.in.release()
	fd, err := create(it)
	if err != nil {
		return false, &placeError{it.path, err}
	}
	defer unix.Close(fd)
	if err := p.copy(it, fd, r, size); err != nil {
		return false, err
	}
	if err := it.finish(fd); err != nil {
		return false, &placeError{it.path, err}
	}
	return false, nil
}

func short(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// create makes the file anew: what has the name so far may have others, or be
// open in a job.
func create(it *item) (fd int, err error) {
	mode := uint32(0o600)
	if it.mode&umask() == 0 {
		mode, it.hasMode = it.mode, true
	}
	err = replace(it.in.fd, it.base(), func() (err error) {
		fd, err = unix.Openat(it.in.fd, it.base(), unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
		return err
	})
	return fd, err
}

func (p *placer) writeSmall(it *item) error {
	fd, err := create(it)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := writeFull(fd, it.data); err != nil {
		return err
	}
	p.written.Add(int64(len(it.data)))
	return it.finish(fd)
}

// copy writes a large file; runs of zeros become holes.
func (p *placer) copy(it *item, fd int, r io.Reader, size int64) error {
	hole := int64(0) // that was not written so far
	for left := size; left > 0; {
		b := p.buf[:min(left, int64(len(p.buf)))]
		if _, err := io.ReadFull(r, b); err != nil {
			return short(err)
		}
		if p.ctx.Err() != nil {
			return context.Cause(p.ctx)
		}
		left -= int64(len(b))
		for len(b) > 0 {
			n := min(len(b), holeAtom)
			if n == holeAtom && allZero(b[:n]) {
				hole += int64(n)
			} else {
				if hole > 0 {
					if _, err := unix.Seek(fd, hole, unix.SEEK_CUR); err != nil {
						return &placeError{it.path, err}
					}
					hole = 0
				}
				if err := writeFull(fd, b[:n]); err != nil {
					return &placeError{it.path, err}
				}
			}
			p.written.Add(int64(n))
			b = b[n:]
		}
	}
	if hole > 0 {
		if err := unix.Ftruncate(fd, size); err != nil {
			return &placeError{it.path, err}
		}
	}
	return nil
}

func writeFull(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := unix.Write(fd, b)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// finish gives an open file or directory what belongs to it beside its content.
func (it *item) finish(fd int) error {
	for _, x := range it.xattrs {
		err := unix.Fsetxattr(fd, x.name, []byte(x.value), 0)
		if err != nil && !errors.Is(err, unix.EOPNOTSUPP) { // a file system without them
			return fmt.Errorf("set %s: %w", x.name, err)
		}
	}
	if !it.hasMode {
		if err := unix.Fchmod(fd, it.mode); err != nil {
			return err
		}
	}
	times := [2]unix.Timespec{it.mtime, it.mtime}
	// utimensat(2) without a path, which the unix package does not offer.
	if _, _, e := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(fd), 0, uintptr(unsafe.Pointer(&times)), 0, 0, 0); e != 0 {
		return fmt.Errorf("set its time: %w", e)
	}
	return nil
}

// finish ends the writers and gives directories their modes and times, the
// deepest first.
func (p *placer) finish() error {
	close(p.small)
	p.all.Wait()
	err := p.failure
	slices.SortStableFunc(p.dirs, func(a, b item) int { return len(b.names) - len(a.names) })
	for _, it := range p.dirs {
		if it.names == nil || p.ctx.Err() != nil { // those that are not shut again are open to their owner alone
			continue
		}
		d, derr := p.open(it.names, false)
		if d != nil {
			derr = it.finish(d.fd)
			d.release()
		}
		if derr != nil && err == nil {
			err = &placeError{it.path, derr}
		}
	}
	for p.recent.Len() > 0 {
		p.forget(p.recent.Back())
	}
	p.root.release()
	return err
}

// umask is the process's, which only the kernel's report tells without a change
// (umask(2)); all bits where that cannot be read.
var umask = sync.OnceValue(func() uint32 {
	b, err := os.ReadFile("/proc/self/status")
	_, rest, ok := strings.Cut(string(b), "\nUmask:\t")
	line, _, _ := strings.Cut(rest, "\n")
	n, nerr := strconv.ParseUint(line, 8, 32)
	if err != nil || !ok || nerr != nil {
		return 0o777
	}
	return uint32(n)
})
