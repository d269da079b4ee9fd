package snapshot

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// entry is what a test knows of one entry of a tree.
type entry struct {
	kind  string
	mode  uint32
	mtime int64
	what  string // content, or target
	link  string // the first path of the same file, when it has several
	attrs string
}

// look reads a tree. Names are bytes.
func look(t testing.TB, root string) map[string]entry {
	t.Helper()
	tree := map[string]entry{}
	first := map[DirID]string{}
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		rel := path[len(root)+1:]
		e := entry{mode: st.Mode & 0o7777, mtime: st.Mtim.Nano()}
		switch {
		case d.IsDir():
			e.kind = "dir"
		case d.Type() == os.ModeSymlink:
			e.kind, e.mode = "link", 0
			if e.what, err = os.Readlink(path); err != nil {
				return err
			}
		case d.Type().IsRegular():
			e.kind = "file"
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			e.what = fmt.Sprintf("%d %x", len(b), sha256.Sum256(b))
			if st.Nlink > 1 {
				if e.link = first[idOf(&st)]; e.link == "" {
					first[idOf(&st)], e.link = rel, rel
				}
			}
			if attrs, err := os.OpenFile(path, os.O_RDONLY, 0); err == nil {
				list, _ := userXattrs(int(attrs.Fd()))
				e.attrs = fmt.Sprint(list)
				attrs.Close()
			}
		default:
			e.kind = "other"
		}
		tree[rel] = e
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func same(t testing.TB, got, want map[string]entry) {
	t.Helper()
	names := slices.Sorted(maps.Keys(want))
	for n := range got {
		if _, ok := want[n]; !ok {
			names = append(names, n)
		}
	}
	wrong := 0
	for _, n := range names {
		if got[n] != want[n] && wrong < 10 {
			wrong++
			t.Errorf("%q:\ngot  %+v\nwant %+v", n, got[n], want[n])
		}
	}
}

func save(t testing.TB, home string, o SaveOptions) ([]byte, Saved) {
	t.Helper()
	var b bytes.Buffer
	o.Home = home
	s, err := Save(t.Context(), &b, o)
	if err != nil {
		t.Fatal(err)
	}
	if s.Bytes != int64(b.Len()) || s.SHA256 != sha256.Sum256(b.Bytes()) {
		t.Errorf("%d bytes and %x are told of %d bytes", s.Bytes, s.SHA256, b.Len())
	}
	return b.Bytes(), s
}

func restore(t testing.TB, home string, archive []byte) Restored {
	t.Helper()
	r, err := Restore(t.Context(), bytes.NewReader(archive), RestoreOptions{Home: home})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func put(t testing.TB, path, text string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(text), 0o644))
}

// oddTree holds everything that is hard about a home.
func oddTree(t testing.TB) string {
	t.Helper()
	home := t.TempDir()
	for _, n := range []string{" lead", "trail ", "new\nline", "\xff\xfe", strings.Repeat("n", 255), "ünï😀", "-dash", `back\slash`, "star*", "...", "a=b"} {
		put(t, home+"/names/"+n, n)
		put(t, home+"/names/dir "+n[:min(len(n), 200)]+"/leaf", n)
	}
	must(t, os.MkdirAll(home+"/"+strings.Repeat(strings.Repeat("d", 90)+"/", 20), 0o755))
	put(t, home+"/"+strings.Repeat(strings.Repeat("d", 90)+"/", 20)+"leaf", "deep")
	for _, size := range []int{0, 1, 511, 512, 513, smallFile, smallFile + 1, chunkSize - 1, chunkSize, chunkSize + 1, 3*chunkSize + 17} {
		b := make([]byte, size)
		for i := range b {
			b[i] = byte(i * i >> 3)
		}
		put(t, fmt.Sprintf("%s/sizes/%d", home, size), string(b))
	}
	for _, mode := range []os.FileMode{0o600, 0o444, 0o755, 0o777, 0o400} {
		path := fmt.Sprintf("%s/modes/%o", home, mode)
		put(t, path, "x")
		must(t, os.Chmod(path, mode))
		must(t, os.Mkdir(path+".d", 0o755))
		put(t, path+".d/f", "in "+path)
		must(t, os.Chmod(path+".d", mode|0o500))
	}
	for i, when := range []time.Time{time.Unix(0, 1), time.Unix(-5, 5e8), time.Unix(-1, 999_999_999), time.Unix(1<<33+5, 7), time.Unix(946684800, 123456789)} {
		path := fmt.Sprintf("%s/times/%d", home, i)
		put(t, path, "x")
		must(t, os.Chtimes(path, when, when))
	}
	must(t, os.MkdirAll(home+"/empty/er", 0o710))
	for n, to := range map[string]string{"rel": "names", "dang": "no/where", "abs": "/etc/passwd", "up": "../../..", "self": "self", "long": strings.Repeat("t/", 300) + "end", "raw": "\xff\xfe"} {
		must(t, os.MkdirAll(home+"/links", 0o755))
		must(t, os.Symlink(to, home+"/links/"+n))
	}
	put(t, home+"/hard/b", "hard content")
	must(t, os.Link(home+"/hard/b", home+"/hard/c"))
	must(t, os.Link(home+"/hard/b", home+"/hard/z"))
	must(t, os.Link(home+"/hard/b", home+"/aa hard"))
	put(t, home+"/attrs", "x")
	if err := unix.Setxattr(home+"/attrs", "user.note", []byte("binary \x00\n="), 0); err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		t.Fatal(err)
	}
	return home
}

// What is restored is what was saved: content, modes, times to the nanosecond,
// links of both kinds, attributes, names of any bytes.
func TestRoundTrip(t *testing.T) {
	home := oddTree(t)
	archive, saved := save(t, home, SaveOptions{})
	into := t.TempDir()
	got := restore(t, into, archive)
	same(t, look(t, into), look(t, home))
	if got.Entries != saved.Entries || got.BytesWritten != saved.Read {
		t.Errorf("restored %+v, saved %+v", got, saved)
	}
	// Once more over what is there, which changes nothing.
	restore(t, into, archive)
	same(t, look(t, into), look(t, home))
	again, _ := save(t, into, SaveOptions{})
	if !bytes.Equal(again, archive) {
		t.Error("the copy's archive differs")
	}
}

// Random trees come back as they were.
func TestRandomTrees(t *testing.T) {
	for range 20 {
		seed := rand.Uint64()
		r := rand.New(rand.NewPCG(seed, 0))
		home := t.TempDir()
		var files []string
		for i := range 150 {
			dir := home
			for range r.IntN(5) {
				dir += fmt.Sprintf("/d%d", r.IntN(3))
			}
			must(t, os.MkdirAll(dir, 0o755))
			path := fmt.Sprintf("%s/f%d", dir, i)
			switch k := r.IntN(10); {
			case k == 0:
				must(t, os.Symlink(fmt.Sprintf("../x%d", i), path))
			case k == 1 && len(files) > 0:
				must(t, os.Link(files[r.IntN(len(files))], path))
			default:
				b := make([]byte, r.IntN(1<<(4+r.IntN(14))))
				for j := range b {
					b[j] = byte(r.IntN(1 + r.IntN(256)))
				}
				put(t, path, string(b))
				must(t, os.Chmod(path, os.FileMode(0o400|r.IntN(0o400))))
				files = append(files, path)
			}
		}
		archive, _ := save(t, home, SaveOptions{})
		into := t.TempDir()
		restore(t, into, archive)
		if same(t, look(t, into), look(t, home)); t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// The usual tools read our archives, and we read theirs.
func TestOtherTools(t *testing.T) {
	for _, tool := range []string{"tar", "zstd", "python3", "bsdtar"} {
		if _, err := exec.LookPath(tool); err != nil {
			if os.Getenv("CI") != "" {
				t.Fatalf("%s is missing", tool)
			}
			t.Skipf("%s is missing", tool)
		}
	}
	home := oddTree(t)
	archive, _ := save(t, home, SaveOptions{})
	file := filepath.Join(t.TempDir(), "archive.tar.zst")
	must(t, os.WriteFile(file, archive, 0o600))
	want := look(t, home)
	plain := func(tree map[string]entry) map[string]entry { // what every tool keeps
		for n, e := range tree {
			e.attrs = ""
			e.mtime = 0
			tree[n] = e
		}
		return tree
	}
	for name, script := range map[string]string{
		"GNU tar": `tar --zstd -xpf "$0" -C "$1"`,
		"bsdtar":  `zstd -dcq "$0" | bsdtar -xpf - -C "$1"`,
		"Python": `zstd -dcq "$0" > "$1.tar" && python3 -c 'import sys, tarfile
with tarfile.open(sys.argv[1]) as t: t.extractall(sys.argv[2], filter="fully_trusted") if hasattr(tarfile, "data_filter") else t.extractall(sys.argv[2])' "$1.tar" "$1"`,
	} {
		into := t.TempDir()
		cmd := exec.Command("sh", "-c", script, file, into)
		cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", name, err, out)
			continue
		}
		t.Run("ours by "+name, func(t *testing.T) { same(t, plain(look(t, into)), plain(maps.Clone(want))) })
	}
	var complaints bytes.Buffer
	names := exec.Command("tar", "--zstd", "-tf", file)
	names.Stderr = &complaints
	// GNU tar does not know the record that says that names are bytes; all others do.
	complaint := regexp.MustCompile("tar: Ignoring unknown extended header keyword 'hdrcharset'\n")
	if out, err := names.Output(); err != nil || len(complaint.ReplaceAll(complaints.Bytes(), nil)) > 0 || bytes.Count(out, []byte("\n")) < len(want) {
		t.Errorf("tar -t: %v %s", err, complaints.String())
	}
	for name, script := range map[string]string{
		"GNU tar, gnu":   `tar --format=gnu -C "$0" -cf - . | zstd -q`,
		"GNU tar, posix": `tar --format=posix -C "$0" -cf - . | zstd -q`,
		"bsdtar":         `bsdtar -C "$0" -cf - . | zstd -q`,
		"Python": `cd "$0" && python3 -c 'import sys, tarfile
with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as t: t.add(".")' | zstd -q`,
	} {
		cmd := exec.Command("sh", "-c", script, home)
		cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8")
		theirs, err := cmd.Output()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		into := t.TempDir()
		restore(t, into, theirs)
		t.Run("of "+name, func(t *testing.T) { same(t, plain(look(t, into)), plain(maps.Clone(want))) })
	}
}

// Sockets, fifos and devices are left out and counted, other file systems are not
// entered, the runtime's own places never saved.
func TestWhatIsLeftOut(t *testing.T) {
	home := t.TempDir()
	must(t, syscall.Mkfifo(home+"/fifo", 0o600))
	l, err := net.Listen("unix", home+"/sock")
	must(t, err)
	defer l.Close()
	put(t, home+"/kept/f", "x")
	put(t, home+"/.local/share/shellctl/jobs.db", "x")
	put(t, home+"/.local/share/other", "x")
	put(t, home+"/sub/.local/share/shellctl/f", "x")
	put(t, home+"/state/jobs.db", "x")
	state, err := Identify(home + "/state")
	must(t, err)
	want := 2
	if os.Getuid() == 0 {
		must(t, unix.Mknod(home+"/null", unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))))
		want++
		must(t, os.Mkdir(home+"/mount", 0o755))
		must(t, unix.Mount("test", home+"/mount", "tmpfs", 0, "size=64k"))
		defer unix.Unmount(home+"/mount", unix.MNT_DETACH)
		put(t, home+"/mount/elsewhere", "x")
	} else {
		must(t, os.Mkdir(home+"/mount", 0o755))
	}
	archive, s := save(t, home, SaveOptions{Omit: []DirID{state}})
	if s.Skipped != want {
		t.Errorf("%d skipped, want %d", s.Skipped, want)
	}
	got := []string{}
	for _, h := range listing(t, archive) {
		got = append(got, h.Name)
	}
	if names := []string{".local/", ".local/share/", ".local/share/other", "kept/", "kept/f", "mount/", "sub/", "sub/.local/", "sub/.local/share/", "sub/.local/share/shellctl/",
		"sub/.local/share/shellctl/f"}; !slices.Equal(got, names) {
		t.Errorf("%q", got)
	}
}

// listing reads an archive with the library.
func listing(t testing.TB, archive []byte) (all []*tar.Header) {
	t.Helper()
	z, err := zstd.NewReader(bytes.NewReader(archive))
	must(t, err)
	defer z.Close()
	r := tar.NewReader(z)
	for {
		h, err := r.Next()
		if err == io.EOF {
			return all
		}
		must(t, err)
		if h.Uid != 0 || h.Gid != 0 || h.Uname != "" || h.Gname != "" {
			t.Errorf("%s has an owner", h.Name)
		}
		all = append(all, h)
	}
}

type without func(path string, dir bool) bool

func (w without) Match(path string, dir bool) bool { return w(path, dir) }

// When the first name of a file is excluded, the next one is the file.
func TestHardLinkWhoseFirstNameIsExcluded(t *testing.T) {
	home := t.TempDir()
	put(t, home+"/a", "content")
	must(t, os.Link(home+"/a", home+"/b"))
	must(t, os.Link(home+"/a", home+"/c"))
	archive, _ := save(t, home, SaveOptions{Exclude: without(func(p string, _ bool) bool { return p == "a" })})
	into := t.TempDir()
	restore(t, into, archive)
	tree := look(t, into)
	if tree["b"].link != "b" || tree["c"].link != "b" || len(tree) != 2 {
		t.Errorf("%+v", tree)
	}
}

// An excluded directory is not entered: nobody asks for what is in it.
func TestExcludedDirectoryIsNotEntered(t *testing.T) {
	home := t.TempDir()
	put(t, home+"/out/in", "x")
	put(t, home+"/f", "x")
	archive, _ := save(t, home, SaveOptions{Exclude: without(func(p string, dir bool) bool {
		if strings.HasPrefix(p, "out/") {
			t.Errorf("asked for %s", p)
		}
		return p == "out" && dir
	})})
	if l := listing(t, archive); len(l) != 1 {
		t.Errorf("%d entries", len(l))
	}
}

// A hole is never read, is a plain run of zeros to every reader, and is a hole
// again after a restore.
func TestSparseFile(t *testing.T) {
	home := t.TempDir()
	f, err := os.Create(home + "/sparse")
	must(t, err)
	size := int64(4 << 30)
	if raceDetector { // which makes zeros slow
		size = 256 << 20
	}
	must(t, f.Truncate(size))
	data := bytes.Repeat([]byte("data"), 1<<18)
	places := []int64{0, size/4 + 12345, size - int64(len(data))}
	for _, at := range places {
		_, err := f.WriteAt(data, at)
		must(t, err)
	}
	must(t, f.Close())
	began := time.Now()
	archive, s := save(t, home, SaveOptions{})
	t.Logf("saved in %v, %d bytes", time.Since(began), len(archive))
	if s.Read != size || len(archive) > 1<<20 {
		t.Errorf("%d bytes for %d", len(archive), s.Read)
	}
	into := t.TempDir()
	began = time.Now()
	restore(t, into, archive)
	t.Logf("restored in %v", time.Since(began))
	var st unix.Stat_t
	must(t, unix.Stat(into+"/sparse", &st))
	if st.Size != size || st.Blocks*512 > 16<<20 {
		t.Errorf("size %d, on disk %d", st.Size, st.Blocks*512)
	}
	g, err := os.Open(into + "/sparse")
	must(t, err)
	defer g.Close()
	b := make([]byte, len(data))
	for _, at := range places {
		if _, err := g.ReadAt(b, at); err != nil || !bytes.Equal(b, data) {
			t.Errorf("at %d: %v", at, err)
		}
	}
}

// Files that change in every way while they are read never break the stream.
func TestTreeThatChanges(t *testing.T) {
	home := t.TempDir()
	for i := range 200 {
		put(t, fmt.Sprintf("%s/d%d/f%d", home, i%7, i), strings.Repeat("x", i*977))
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for i := 0; ctx.Err() == nil; i++ {
			path := fmt.Sprintf("%s/d%d/f%d", home, i%7, i%200)
			switch i % 6 {
			case 0:
				os.WriteFile(path, make([]byte, i%300_000), 0o644)
			case 1:
				os.Truncate(path, int64(i%1000))
			case 2:
				os.Remove(path)
			case 3:
				os.Remove(path)
				syscall.Mkfifo(path, 0o600)
			case 4:
				os.Rename(fmt.Sprintf("%s/d%d", home, i%7), home+"/moved")
				os.Rename(home+"/moved", fmt.Sprintf("%s/d%d", home, i%7))
			case 5:
				os.Remove(path)
				os.Symlink("/etc", path)
			}
		}
	}()
	rounds := 50
	if raceDetector {
		rounds = 10
	}
	for range rounds {
		archive, s := save(t, home, SaveOptions{})
		into := t.TempDir()
		if got := restore(t, into, archive); got.Entries != s.Entries {
			t.Errorf("%d of %d entries", got.Entries, s.Entries)
		}
	}
	stop()
	<-ended
}

func TestUnreadableFileFailsTheSave(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("root reads everything; the end-to-end tests try it as a plain user")
	}
	home := t.TempDir()
	put(t, home+"/locked", "x")
	must(t, os.Chmod(home+"/locked", 0))
	_, err := Save(t.Context(), io.Discard, SaveOptions{Home: home})
	if err == nil || !strings.Contains(err.Error(), "locked") {
		t.Errorf("%v", err)
	}
}

// brokenWriter fails, or ends the context, after some bytes.
type brokenWriter struct {
	left int
	stop func()
}

func (w *brokenWriter) Write(p []byte) (int, error) {
	if w.left -= len(p); w.left > 0 {
		return len(p), nil
	}
	if w.stop != nil {
		w.stop()
		return len(p), nil
	}
	return 0, errors.New("the client is gone")
}

// A save that ends early leaves nothing open and nobody running.
func TestSaveThatEndsEarly(t *testing.T) {
	home := t.TempDir()
	for i := range 300 {
		b := make([]byte, 100_000)
		for j := range b {
			b[j] = byte(rand.Uint32())
		}
		put(t, fmt.Sprintf("%s/d%d/f%d", home, i%9, i), string(b))
	}
	descriptors := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		return len(list)
	}
	Save(t.Context(), io.Discard, SaveOptions{Home: home}) // starts what stays
	before, goroutines := descriptors(), runtime.NumGoroutine()
	for i := range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		w := &brokenWriter{left: 1 + i*1_000_000}
		if i%2 == 0 {
			w.stop = cancel
		}
		if s, err := Save(ctx, w, SaveOptions{Home: home}); err == nil {
			t.Errorf("%d: %+v", i, s)
		}
		cancel()
	}
	if n := descriptors(); n > before {
		t.Errorf("%d descriptors, %d before", n, before)
	}
	for end := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > goroutines; runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), goroutines)
		}
	}
}

func TestNoHome(t *testing.T) {
	dir := t.TempDir()
	put(t, dir+"/file", "x")
	for _, home := range []string{"", dir + "/none", dir + "/file"} {
		var h *HomeError
		if _, err := Save(t.Context(), io.Discard, SaveOptions{Home: home}); !errors.As(err, &h) {
			t.Errorf("save of %q: %v", home, err)
		}
		if _, err := Restore(t.Context(), strings.NewReader(""), RestoreOptions{Home: home}); !errors.As(err, &h) {
			t.Errorf("restore to %q: %v", home, err)
		}
	}
}

// A tree deeper than any path can be, and than descriptors reach, is saved and
// restored.
func TestDeepTree(t *testing.T) {
	home := t.TempDir()
	fd, err := unix.Open(home, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	must(t, err)
	name := strings.Repeat("d", 200)
	const depth = 300 // 60,000 bytes of path
	for range depth {
		must(t, unix.Mkdirat(fd, name, 0o755))
		next, err := openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY)
		must(t, err)
		unix.Close(fd)
		fd = next
	}
	unix.Close(fd)
	archive, s := save(t, home, SaveOptions{})
	into := t.TempDir()
	if got := restore(t, into, archive); got.Entries != depth || s.Entries != depth {
		t.Errorf("%d and %d entries", s.Entries, got.Entries)
	}
	for _, dir := range []string{home, into} { // too deep for os.RemoveAll's paths
		if out, err := exec.Command("rm", "-rf", dir).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	}
}
