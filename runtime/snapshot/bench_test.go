package snapshot

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// smallFiles is a tree of 20,000 files of 4 KiB: lines of words, as code is.
func smallFiles(b testing.TB) string {
	b.Helper()
	home := b.TempDir()
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 20_000 {
		dir := filepath.Join(home, fmt.Sprintf("d%d/e%d", i/1000, i%1000/50))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			b.Fatal(err)
		}
		var text []byte
		for len(text) < 4096 {
			text = fmt.Appendf(text, "%s%x := call(%d, %q)\n", "\t\t"[:r.IntN(3)], r.IntN(5000), r.IntN(100), strconv.Itoa(r.IntN(1e6)))
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("file%d.go", i)), text[:4096], 0o644); err != nil {
			b.Fatal(err)
		}
	}
	return home
}

// bigTree is about a GiB of source code and binaries, of what every machine with
// Go has; DIFYRT_BENCH_MB makes it smaller.
func bigTree(b testing.TB) string {
	b.Helper()
	most := int64(1024)
	if n, err := strconv.ParseInt(os.Getenv("DIFYRT_BENCH_MB"), 10, 64); err == nil {
		most = n
	}
	home := b.TempDir()
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		b.Fatal(err)
	}
	total := int64(0)
	for _, from := range []string{string(root[:len(root)-1]), "/usr/lib", "/usr/share", "/usr/bin"} {
		filepath.WalkDir(from, func(path string, d os.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() || total > most<<20 {
				return nil
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return nil
			}
			total += int64(len(text))
			to := filepath.Join(home, path)
			os.MkdirAll(filepath.Dir(to), 0o755)
			return os.WriteFile(to, text, 0o644)
		})
	}
	return home
}

// counter counts what is written.
type counter int64

func (c *counter) Write(p []byte) (int, error) { *c += counter(len(p)); return len(p), nil }

func BenchmarkSave(b *testing.B) {
	for name, make := range map[string]func(testing.TB) string{"20000x4K": smallFiles, "1GiB": bigTree} {
		b.Run(name, func(b *testing.B) {
			home := make(b)
			var ours, theirs, plain time.Duration
			var size, theirSize counter
			var peak int64
			run := func(f func() error) time.Duration {
				began := time.Now()
				if err := f(); err != nil {
					b.Fatal(err)
				}
				return time.Since(began)
			}
			tarZstd := func() error {
				cmd := exec.Command("sh", "-c", `tar -C "$0" -cf - . | zstd -q -3 -T0`, home)
				theirSize = 0
				cmd.Stdout = &theirSize
				return cmd.Run()
			}
			run(tarZstd) // everything is in the page cache now
			for b.Loop() {
				theirs += run(tarZstd)
				stop := watchMemory(&peak)
				ours += run(func() error {
					size = 0
					_, err := Save(b.Context(), &size, SaveOptions{Home: home})
					return err
				})
				stop()
				plain += run(func() error { return onePass(home) })
			}
			b.ReportMetric(float64(ours)/float64(theirs), "time_of_tar_zstd")
			b.ReportMetric(float64(size)/float64(theirSize), "size_of_tar_zstd")
			b.ReportMetric(float64(plain)/float64(ours), "times_one_thread")
			b.ReportMetric(float64(peak)/1e6, "peak_growth_MB")
			b.ReportMetric(ours.Seconds()/float64(b.N), "save_s")
		})
	}
}

// onePass is the shape of the system that we replace: one walk, one encoder.
func onePass(home string) error {
	e, err := zstd.NewWriter(io.Discard, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedDefault))
	if err != nil {
		return err
	}
	err = filepath.WalkDir(home, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		h := header{name: path[len(home):], kind: kindFile, mode: 0o644, size: st.Size(), mtime: unix.NsecToTimespec(st.ModTime().UnixNano())}
		if d.IsDir() {
			h.size = 0
		}
		e.Write(h.append(nil))
		if !d.Type().IsRegular() {
			return nil
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		n, err := io.Copy(e, f)
		e.Write(pad(nil, int(n)))
		return err
	})
	if err != nil {
		return err
	}
	return e.Close()
}

// watchMemory samples the process's resident memory, and keeps its highest growth.
func watchMemory(peak *int64) (stop func()) {
	resident := func() int64 {
		b, _ := os.ReadFile("/proc/self/statm")
		var size, res int64
		fmt.Sscan(string(b), &size, &res)
		return res * int64(os.Getpagesize())
	}
	before := resident()
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				*peak = max(*peak, resident()-before)
			case <-done:
				return
			}
		}
	}()
	return func() { close(done); <-ended }
}

func BenchmarkRestore(b *testing.B) {
	for name, make := range map[string]func(testing.TB) string{"20000x4K": smallFiles, "1GiB": bigTree} {
		b.Run(name, func(b *testing.B) {
			archive := filepath.Join(b.TempDir(), "archive")
			f, err := os.Create(archive)
			if err != nil {
				b.Fatal(err)
			}
			if _, err := Save(b.Context(), f, SaveOptions{Home: make(b)}); err != nil {
				b.Fatal(err)
			}
			f.Close()
			var ours, theirs time.Duration
			var peak int64
			// Directories stay until the end: some file systems make files slowly
			// after many were deleted.
			for b.Loop() {
				home := b.TempDir()
				cmd := exec.Command("sh", "-c", `zstd -dcq "$0" | tar -x -C "$1"`, archive, home)
				began := time.Now()
				if out, err := cmd.CombinedOutput(); err != nil {
					b.Fatal(err, string(out))
				}
				theirs += time.Since(began)
				home = b.TempDir()
				in, err := os.Open(archive)
				if err != nil {
					b.Fatal(err)
				}
				stop := watchMemory(&peak)
				began = time.Now()
				if _, err := Restore(b.Context(), in, RestoreOptions{Home: home}); err != nil {
					b.Fatal(err)
				}
				ours += time.Since(began)
				stop()
				in.Close()
			}
			b.ReportMetric(float64(ours)/float64(theirs), "time_of_zstd_tar")
			b.ReportMetric(float64(peak)/1e6, "peak_growth_MB")
			b.ReportMetric(ours.Seconds()/float64(b.N), "restore_s")
		})
	}
}
