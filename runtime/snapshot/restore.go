package snapshot

import (
	"archive/tar"
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
	x := &extraction{placer: p, tail: &tail{r: z}, seed: maphash.MakeSeed(), made: map[uint64]struct{}{}}
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
	case errors.Is(err, tar.ErrHeader):
		return malformed("it holds no tar, or a damaged one")
	}
	return malformed("%v", err)
}

// tail counts what the tar's reader takes.
type tail struct {
	r io.Reader
	n int
}

func (t *tail) Read(p []byte) (int, error) {
	n, err := t.r.Read(p)
	t.n += n
	return n, err
}

// extraction goes through the tar.
type extraction struct {
	placer  *placer
	tail    *tail
	entries int
	seed    maphash.Seed
	made    map[uint64]struct{} // hashes of the names that a hard link may lead to
}

func (x *extraction) run() error {
	t := tar.NewReader(x.tail)
	for {
		x.tail.n = 0
		h, err := t.Next()
		if err == io.EOF {
			return x.end()
		}
		if err != nil {
			return err
		}
		if x.placer.failed() {
			return x.placer.wait()
		}
		if err := x.entry(t, h); err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, t); err != nil { // of an entry that is left out
			return err
		}
	}
}

// end checks that the tar was ended by a block of zeros, and not by the end of the
// stream behind an entry, of which no whole block was left to read; and that
// nothing but padding follows.
func (x *extraction) end() error {
	if x.tail.n < blockSize {
		return malformed("it ends too early")
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := x.tail.r.Read(buf)
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

func (x *extraction) entry(t *tar.Reader, h *tar.Header) error {
	if h.Typeflag == tar.TypeXGlobalHeader { // a comment, such as git archive's
		return nil
	}
	for k := range h.PAXRecords {
		if strings.HasPrefix(k, "GNU.sparse.") {
			return malformed("%s is a sparse entry", shown(h.Name))
		}
	}
	names, err := split(h.Name)
	if err != nil {
		return err
	}
	path := strings.Join(names, "/")
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeLink:
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		return malformed("%s is a device or a fifo", shown(h.Name))
	case tar.TypeGNUSparse:
		return malformed("%s is a sparse entry", shown(h.Name))
	default:
		return malformed("%s is of the unknown type %q", shown(h.Name), h.Typeflag)
	}
	if path == "" {
		if h.Typeflag == tar.TypeDir { // the home itself, "./"
			return nil
		}
		return malformed("an entry has no name")
	}
	if path == stateDir || strings.HasPrefix(path, stateDir+"/") {
		return nil // the runtime's own, and nobody else's
	}
	it := &item{path: path, names: names, mode: uint32(h.Mode) & 0o777, mtime: timespec(h)}
	for k, v := range h.PAXRecords {
		if name, ok := strings.CutPrefix(k, "SCHILY.xattr."); ok && strings.HasPrefix(name, "user.") {
			it.xattrs = append(it.xattrs, xattr{name, v})
		}
	}
	var skipped bool
	switch h.Typeflag {
	case tar.TypeDir:
		skipped, err = x.placer.directory(it)
	case tar.TypeSymlink:
		if h.Linkname == "" || len(h.Linkname) >= unix.PathMax {
			return malformed("the link %s leads to a name of %d bytes", shown(path), len(h.Linkname))
		}
		skipped, err = x.placer.symlink(it, h.Linkname)
	case tar.TypeLink:
		skipped, err = x.hardLink(it, h.Linkname)
	default:
		skipped, err = x.placer.file(it, t, h.Size)
	}
	if err != nil || skipped {
		return err
	}
	x.entries++
	if h.Typeflag != tar.TypeDir {
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

func timespec(h *tar.Header) unix.Timespec {
	return unix.Timespec{Sec: h.ModTime.Unix(), Nsec: int64(h.ModTime.Nanosecond())}
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
