package snapshot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"math"
	"strings"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// RestoreOptions say where to.
type RestoreOptions struct {
	Home string
	// Omit names directories into which nothing is written, wherever they are: the
	// server's state.
	Omit []DirID
}

// Restored counts what was restored.
type Restored struct {
	Entries      int   `json:"entries"`
	BytesWritten int64 `json:"bytes_written"` // of files' content
}

// MalformedError says what is wrong with an archive (contract:
// archive_malformed). Any other error of Restore but a *HomeError is that of the
// home's file system, of the reader, or of the context.
type MalformedError struct{ Reason string }

func (e *MalformedError) Error() string { return "the archive is malformed: " + e.Reason }

func malformed(format string, args ...any) error {
	return &MalformedError{fmt.Sprintf(format, args...)}
}

// maxWindow bounds a zstd frame's window (contract, Snapshots).
const maxWindow = 64 << 20

// Restore lays an archive over the home. It is no transaction: after an error
// what was restored so far is there. A reader that blocks must be ended by its
// owner when ctx ends.
//
// The rules: a file or link of the archive takes the place of any file or link,
// and of an empty directory; a directory takes the place of anything but a
// directory, which it is laid over. A directory with entries is never replaced.
// No name is ever looked up through a symbolic link. The last of two entries with
// one name wins. Missing parents are made.
func Restore(ctx context.Context, r io.Reader, o RestoreOptions) (got Restored, err error) {
	home, err := openHome(o.Home)
	if err != nil {
		return got, err
	}
	in := &source{ctx: ctx, r: r}
	z, err := zstd.NewReader(in, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderMaxMemory(math.MaxInt64), zstd.WithDecoderConcurrency(0))
	if err != nil {
		unix.Close(home)
		return got, in.blame(err)
	}
	defer z.Close()
	p := newPlacer(ctx, home, o.Omit)
	x := &extraction{placer: p, tar: &tarReader{r: z}, seed: maphash.MakeSeed(), made: map[uint64]struct{}{}}
	err = x.run()
	if err != nil {
		err = in.blame(err)
	}
	// Also after an error: directories that were opened up for writing get their
	// modes back.
	if ferr := p.finish(); err == nil {
		err = ferr
	}
	return Restored{x.entries, p.written.Load()}, err
}

// source remembers the reader's own error, which says nothing about the archive.
type source struct {
	ctx context.Context
	r   io.Reader
	err error
}

func (s *source) Read(p []byte) (int, error) {
	if s.ctx.Err() != nil {
		s.err = context.Cause(s.ctx)
		return 0, s.err
	}
	n, err := s.r.Read(p)
	if err != nil && err != io.EOF {
		s.err = fmt.Errorf("read the archive: %w", err)
		err = s.err
	}
	return n, err
}

// blame decides whose fault an error is.
func (s *source) blame(err error) error {
	var m *MalformedError
	var place *placeError
	switch {
	case errors.As(err, &m):
		return err
	case errors.As(err, &place):
		return err
	case s.ctx.Err() != nil:
		return context.Cause(s.ctx)
	case s.err != nil:
		return s.err
	case errors.Is(err, zstd.ErrWindowSizeExceeded):
		return malformed("its window is larger than %d MiB", maxWindow>>20)
	case errors.Is(err, zstd.ErrUnknownDictionary):
		return malformed("it wants a dictionary")
	case errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF):
		return malformed("it ends too early")
	}
	return malformed("%v", err)
}

// extraction goes through the tar.
type extraction struct {
	placer  *placer
	tar     *tarReader
	entries int
	seed    maphash.Seed
	made    map[uint64]struct{} // hashes of the names that a hard link may lead to
}

func (x *extraction) run() error {
	for {
		m, err := x.tar.next()
		if err == io.EOF {
			return x.end()
		}
		if err != nil {
			return err
		}
		if x.placer.failed() {
			return x.placer.wait()
		}
		if err := x.entry(m); err != nil {
			return err
		}
	}
}

// end checks that nothing but padding follows the end of the tar.
func (x *extraction) end() error {
	buf := make([]byte, 32<<10)
	for {
		n, err := x.tar.r.Read(buf)
		if !allZero(buf[:n]) {
			return malformed("something follows the end of the tar")
		}
		if err == io.EOF {
			return x.placer.wait()
		}
		if err != nil {
			return err
		}
	}
}

func (x *extraction) entry(m *member) error {
	names, err := split(m.name)
	if err != nil {
		return err
	}
	switch m.kind {
	case kindFile, kindDir, kindSymlink, kindLink:
		if m.sparse {
			return malformed("%s is a sparse entry", shown(m.name))
		}
	case kindChar, kindBlock, kindFifo:
		return malformed("%s is a device or a fifo", shown(m.name))
	case kindSparse:
		return malformed("%s is a sparse entry", shown(m.name))
	default:
		return malformed("%s is of the unknown type %q", shown(m.name), m.kind)
	}
	path := strings.Join(names, "/")
	if path == "" {
		if m.kind == kindDir { // the home itself, "./"
			return nil
		}
		return malformed("an entry has no name")
	}
	if path == stateDir || strings.HasPrefix(path, stateDir+"/") {
		return nil // the runtime's own, and nobody else's
	}
	it := &item{path: path, names: names, mode: m.mode, mtime: m.mtime, xattrs: m.xattrs}
	var skipped bool
	switch m.kind {
	case kindDir:
		skipped, err = x.placer.directory(it)
	case kindSymlink:
		if m.link == "" || len(m.link) >= unix.PathMax {
			return malformed("the link %s leads to a name of %d bytes", shown(path), len(m.link))
		}
		skipped, err = x.placer.symlink(it, m.link)
	case kindLink:
		skipped, err = x.hardLink(it, m.link)
	default:
		skipped, err = x.placer.file(it, x.tar, m.size)
	}
	if err != nil || skipped {
		return err
	}
	x.entries++
	if m.kind != kindDir {
		x.made[maphash.String(x.seed, path)] = struct{}{}
	}
	return nil
}

func (x *extraction) hardLink(it *item, to string) (skipped bool, err error) {
	target, err := split(to)
	if err != nil {
		return false, err
	}
	if _, ok := x.made[maphash.String(x.seed, strings.Join(target, "/"))]; !ok || len(target) == 0 {
		return false, malformed("the hard link %s leads to %s, which is not an earlier file of the archive", shown(it.path), shown(to))
	}
	return x.placer.link(it, target)
}

// split takes a name apart, and refuses what could lead out of the home.
func split(name string) (names []string, err error) {
	if strings.HasPrefix(name, "/") {
		return nil, malformed("%s is an absolute name", shown(name))
	}
	if strings.ContainsRune(name, 0) {
		return nil, malformed("%s holds a NUL", shown(name))
	}
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "" || part == ".":
		case part == "..":
			return nil, malformed("%s climbs up", shown(name))
		case len(part) > unix.NAME_MAX:
			return nil, malformed("%s has a part of %d bytes", shown(name), len(part))
		default:
			names = append(names, part)
		}
	}
	return names, nil
}

func allZero(b []byte) bool {
	for len(b) > 0 {
		n := min(len(b), len(zeroBlock))
		if !bytes.Equal(b[:n], zeroBlock[:n]) {
			return false
		}
		b = b[n:]
	}
	return true
}

var zeroBlock [64 << 10]byte
