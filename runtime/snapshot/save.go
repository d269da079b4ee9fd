package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"golang.org/x/sys/unix"
)

// SaveOptions say what is saved.
type SaveOptions struct {
	Home    string
	Exclude Excluder // nil: nothing but what is always left out
	// Omit names more directories that are left out, wherever they are: the
	// server's state.
	Omit []DirID
}

// Saved is what was saved.
type Saved struct {
	Entries int   // in the archive
	Skipped int   // sockets, fifos, devices
	Read    int64 // bytes of files
	Bytes   int64 // of the archive
	SHA256  [32]byte
}

// Save writes an archive of the home to w. When it returns nil, the last byte of
// a whole archive was written. It ends early with ctx, or when w fails; a w that
// blocks must be ended by its owner. A *HomeError says that there is no home.
func Save(ctx context.Context, w io.Writer, o SaveOptions) (s Saved, err error) {
	fd, err := openHome(o.Home)
	if err != nil {
		return s, err
	}
	home := newDir(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		home.release()
		return s, &HomeError{fmt.Errorf("stat the home: %w", err)}
	}
	enc, err := newEncoder(ctx, w)
	if err != nil {
		home.release()
		return s, fmt.Errorf("start the encoder: %w", err)
	}
	p := newPipeline(enc.ctx, home, idOf(&st), o)
	t := &tarWriter{enc: enc, saved: &s, links: map[DirID]linked{}}
	for f := range p.order {
		<-f.ready
		if err == nil {
			if err = t.entry(f); err != nil {
				enc.cancel(err)
			}
		}
		f.done()
	}
	p.wait()
	if err == nil {
		err = p.err
	}
	if err == nil {
		err = enc.zeros(2 * blockSize) // the end of a tar
	}
	if err != nil {
		enc.cancel(err)
	}
	err = errors.Join(enc.close())
	s.Skipped += p.walker.skipped
	s.Bytes = enc.bytes
	enc.sum.Sum(s.SHA256[:0])
	return s, err
}

// pipeline is the walk and the readers.
type pipeline struct {
	walker *walker
	order  chan *found // in the order of the archive
	work   chan *found // the same, for the readers
	all    sync.WaitGroup
	err    error // of the walk, once all have ended
}

func newPipeline(ctx context.Context, home *dir, id DirID, o SaveOptions) *pipeline {
	p := &pipeline{order: make(chan *found, ahead), work: make(chan *found, ahead)}
	p.walker = &walker{ctx: ctx, exclude: o.Exclude, omit: map[DirID]bool{}, dev: id.Dev, emit: p.emit, buf: make([]byte, 64<<10)}
	for _, d := range o.Omit {
		p.walker.omit[d] = true
	}
	p.all.Go(func() {
		defer close(p.order)
		defer close(p.work)
		p.err = p.walker.walk(home, id, "")
	})
	for range readers {
		p.all.Go(func() {
			for f := range p.work {
				if ctx.Err() == nil {
					f.read()
				} else {
					f.content.fd = -1
				}
				close(f.ready)
			}
		})
	}
	return p
}

// emit hands an entry on. Whoever takes it from order gives back what it holds,
// also when the save has failed, so that emit never waits for ever.
func (p *pipeline) emit(f *found) error {
	f.ready = make(chan struct{})
	p.order <- f
	p.work <- f
	return nil
}

func (p *pipeline) wait() { p.all.Wait() }

// tarWriter writes entries.
type tarWriter struct {
	enc   *encoder
	saved *Saved
	links map[DirID]linked // files with several names that are in the archive
	head  []byte
}

// linked is a file of which more names may come.
type linked struct {
	name string
	left uint64
}

func (t *tarWriter) entry(f *found) error {
	c := &f.content
	if c.err != nil {
		return c.err
	}
	if c.gone {
		return nil
	}
	h := header{name: f.path, kind: f.kind, mode: f.stat.Mode & 0o777, mtime: f.stat.Mtim, link: c.link, xattrs: c.xattrs}
	switch f.kind {
	case kindDir:
		h.name += "/"
	case kindSymlink:
		h.mode = 0o777
	case kindFile:
		h.mode, h.mtime, h.size = c.stat.Mode&0o777, c.stat.Mtim, c.stat.Size
		if c.stat.Nlink > 1 {
			id := idOf(&c.stat)
			if first, ok := t.links[id]; ok {
				h.kind, h.link, h.size, h.xattrs = kindLink, first.name, 0, nil
				if first.left--; first.left == 0 {
					delete(t.links, id)
				} else {
					t.links[id] = first
				}
			} else {
				t.links[id] = linked{f.path, uint64(c.stat.Nlink) - 1}
			}
		}
	}
	t.head = h.append(t.head[:0])
	if _, err := t.enc.Write(t.head); err != nil {
		return err
	}
	t.saved.Entries++
	if h.size == 0 {
		return nil
	}
	t.saved.Read += h.size
	if err := t.body(c, h.size); err != nil {
		return fmt.Errorf("read %s: %w", shown(f.path), err)
	}
	return t.enc.zeros(-h.size & (blockSize - 1))
}

// body writes exactly size bytes, as the header says: what a file has grown by
// is cut off, and zeros stand for what it has lost.
func (t *tarWriter) body(c *content, size int64) error {
	if c.fd < 0 {
		if _, err := t.enc.Write(c.data); err != nil {
			return err
		}
		return t.enc.zeros(size - int64(len(c.data)))
	}
	sparse := c.stat.Blocks*512 < size
	for at := int64(0); at < size; {
		end := size
		if sparse {
			data, hole := extent(c.fd, at, size)
			if err := t.enc.zeros(data - at); err != nil {
				return err
			}
			at, end = data, hole
		}
		n, err := t.copy(c.fd, at, end)
		if err != nil {
			return err
		}
		if at += n; at < end { // it has shrunk
			return t.enc.zeros(size - at)
		}
	}
	return nil
}

// extent finds the next data from at on, and where the hole behind it begins
// (lseek(2), SEEK_DATA). Where the file system does not tell, all is data.
func extent(fd int, at, size int64) (data, hole int64) {
	data, err := unix.Seek(fd, at, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) {
		return size, size
	}
	if err != nil || data < at {
		return at, size
	}
	hole, err = unix.Seek(fd, data, unix.SEEK_HOLE)
	if err != nil || hole <= data {
		hole = size
	}
	return min(data, size), min(hole, size)
}

// copy reads from a file into the archive; it ends early at the file's end.
func (t *tarWriter) copy(fd int, at, end int64) (n int64, err error) {
	for at+n < end {
		room, err := t.enc.space(end - at - n)
		if err != nil {
			return n, err
		}
		k, err := unix.Pread(fd, room, at+n)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return n, err
		}
		if k == 0 {
			return n, nil
		}
		t.enc.advance(k)
		n += int64(k)
	}
	return n, nil
}
