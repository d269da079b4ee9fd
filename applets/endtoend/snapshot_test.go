package endtoend

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
)

// shellctl runs a verb against the server and gives its exit code and output.
func (s *server) shellctl(args ...string) (code int, out, errOut string) {
	s.t.Helper()
	return call(s.t, "", "shellctl", append([]string{args[0], "--server", s.url}, args[1:]...)...)
}

// files lists a tree with its contents.
func files(t testing.TB, root string) string {
	t.Helper()
	out, err := exec.Command("sh", "-c", `cd "$0" && find . -name shellctl -prune -o -type f -print0 -o -type l -print0 | sort -z | xargs -0 -r ls -ld --time-style=full-iso && find . -name shellctl -prune -o -type f -print0 | sort -z | xargs -0 -r sha256sum`, root).Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// A home that is saved from one server comes back on another.
func TestSaveHereRestoreThere(t *testing.T) {
	a, b := start(t), start(t)
	a.sh(`mkdir -p src/deep empty; echo one > src/one; echo two > src/deep/two; ln -s one src/link; ln src/one src/hard; head -c 3000000 /dev/urandom > big; echo log > x.log; chmod 700 src/one`)
	archive := filepath.Join(t.TempDir(), "home.tar.zst")
	if code, out, errOut := a.shellctl("save", "--exclude", "*.log", "-o", archive); code != 0 || out != "" || !strings.Contains(errOut, "saved") || strings.Contains(errOut, "\r") {
		t.Fatalf("save: %d %q %q", code, out, errOut)
	}
	if code, out, errOut := b.shellctl("restore", archive); code != 0 || out != "" || !strings.Contains(errOut, "restored") {
		t.Fatalf("restore: %d %q %q", code, out, errOut)
	}
	os.Remove(filepath.Join(a.home, "x.log"))
	if got, want := files(t, b.home), files(t, a.home); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if list, err := os.ReadDir(filepath.Dir(archive)); err != nil || len(list) != 1 {
		t.Errorf("beside the archive: %v %v", list, err)
	}
	// Without a server, and through pipes.
	third := t.TempDir()
	out, err := exec.Command("sh", "-c", `"$0" save --home "$1" | "$0" restore --home "$2" -`, filepath.Join(binDir, "shellctl"), a.home, third).CombinedOutput()
	if err != nil || files(t, third) != files(t, a.home) {
		t.Errorf("by pipes: %v %s", err, out)
	}
}

// Every archive that is taken while a job rewrites the tree is whole, and can be
// restored.
func TestSaveWhileAJobWrites(t *testing.T) {
	s, other := start(t), start(t)
	job := s.run(`mkdir d; echo up; i=0; while :; do i=$((i+1)); n=d/f$((i%50)); head -c $((i*997%90000)) /dev/zero > $n; mv $n d/g$((i%7)); mkdir -p e/$((i%5)); rm -rf e/$((i*3%5)); ln -sf $n l; done`,
		m{"mode": "stdio", "idle_flush_seconds": 0.1})
	for i := range 50 {
		status, archive, err := s.send(t.Context(), "POST", "/v1/snapshot/save", nil)
		if err != nil || status != 200 {
			t.Fatalf("save %d: %d %v", i, status, err)
		}
		if status, b, err := other.send(t.Context(), "POST", "/v1/snapshot/restore", archive); err != nil || status != 200 && !strings.Contains(string(b), "in its place") {
			t.Fatalf("restore %d: %d %s %v", i, status, b, err)
		}
	}
	if v := s.terminate(job.JobID, 0); v.Status != "terminated" {
		t.Errorf("%+v", v)
	}
}

// A file that the server may not read fails the save, names itself, and leaves no
// archive and no half of one.
func TestUnreadableFile(t *testing.T) {
	s := startAsUser(t)
	s.sh("echo x > readable; echo x > locked; chmod 0 locked")
	dir := t.TempDir()
	code, _, errOut := s.shellctl("save", "-o", filepath.Join(dir, "a"))
	if code != 1 || !strings.Contains(errOut, "locked") && !strings.Contains(errOut, "not whole") {
		t.Errorf("%d %q", code, errOut)
	}
	if list, _ := os.ReadDir(dir); len(list) != 0 {
		t.Errorf("left: %v", list)
	}
	if code, _, errOut := s.shellctl("save", "--exclude", "locked", "-o", filepath.Join(dir, "a")); code != 0 {
		t.Errorf("without it: %d %q", code, errOut)
	}
}

// The client checks what it is told: a snapshot that is not whole fails, and the
// file that was there stays.
func TestSnapshotThatIsNotWhole(t *testing.T) {
	body := []byte("an archive, as far as a client knows")
	digest := fmt.Sprintf("%x", sha256.Sum256(body))
	trailers := func(w http.ResponseWriter, status, sum, bytes string) {
		w.Header().Set("Trailer", "X-Snapshot-Status, X-Snapshot-Sha256, X-Snapshot-Bytes")
		w.Write(body)
		for k, v := range map[string]string{"Status": status, "Sha256": sum, "Bytes": bytes} {
			w.Header().Set("X-Snapshot-"+k, v)
		}
	}
	size := fmt.Sprint(len(body))
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		code   int
		want   string
	}{
		"whole":         {func(w http.ResponseWriter, _ *http.Request) { trailers(w, "ok", digest, size) }, 0, "saved"},
		"no trailers":   {func(w http.ResponseWriter, _ *http.Request) { w.Write(body) }, 1, "not whole"},
		"not ok":        {func(w http.ResponseWriter, _ *http.Request) { trailers(w, "failed", digest, size) }, 1, "not whole"},
		"another sum":   {func(w http.ResponseWriter, _ *http.Request) { trailers(w, "ok", strings.Repeat("0", 64), size) }, 1, "checksum"},
		"another count": {func(w http.ResponseWriter, _ *http.Request) { trailers(w, "ok", digest, "99") }, 1, "of 99 bytes"},
		"broken off": {func(w http.ResponseWriter, _ *http.Request) {
			w.Write(body)
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}, 1, "not whole"},
		"busy": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(409)
			io.WriteString(w, `{"error":{"code":"snapshot_busy","message":"another one"}}`)
		}, 1, "hint"},
		"a proxy's page": {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "<html>", http.StatusBadGateway) }, 1, "502"},
		"elsewhere": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusFound)
		}, 1, "302"},
	} {
		stub := httptest.NewServer(c.answer)
		dir := t.TempDir()
		path := write(t, filepath.Join(dir, "a"), "the last one")
		code, _, errOut := call(t, "", "shellctl", "save", "--server", stub.URL, "-o", path)
		if code != c.code || !strings.Contains(errOut, c.want) {
			t.Errorf("%s: %d %q", name, code, errOut)
		}
		want := "the last one"
		if c.code == 0 {
			want = string(body)
		}
		if b, err := os.ReadFile(path); err != nil || string(b) != want {
			t.Errorf("%s: the file holds %q, %v", name, b, err)
		}
		if list, _ := os.ReadDir(dir); len(list) != 1 {
			t.Errorf("%s: left %v", name, list)
		}
		stub.Close()
	}
}

// Ctrl-C ends a save at once, with 130 and without a file. The terminal shows how
// far it is.
func TestSaveIsInterrupted(t *testing.T) {
	begun := make(chan struct{})
	stub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for range 3 {
			w.Write(bytes.Repeat([]byte("x"), 100_000))
			w.(http.Flusher).Flush()
			time.Sleep(150 * time.Millisecond) // a slow home
		}
		close(begun)
		<-r.Context().Done()
	}))
	defer stub.Close()
	dir := t.TempDir()
	cmd := exec.Command(filepath.Join(binDir, "shellctl"), "save", "--server", stub.URL, "-o", filepath.Join(dir, "a"))
	tty, err := pty.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	shown := make(chan string)
	go func() {
		b, _ := io.ReadAll(tty)
		shown <- string(b)
	}()
	<-begun
	tty.Write([]byte{3})
	err = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 128+int(syscall.SIGINT) {
		t.Errorf("exit %d, %v", code, err)
	}
	if out := <-shown; !strings.Contains(out, "saving") || !strings.Contains(out, "kB/s") {
		t.Errorf("the terminal shows %q", out)
	}
	if list, _ := os.ReadDir(dir); len(list) != 0 {
		t.Errorf("left: %v", list)
	}
}

// A client that goes away in the middle, of either operation, frees the turn at
// once, and a second one is told that it is busy.
func TestOneSnapshotAtATime(t *testing.T) {
	s := start(t)
	s.sh("head -c 60000000 /dev/urandom > big")
	busy := func() bool {
		status, _, err := s.send(t.Context(), "POST", "/v1/snapshot/restore", []byte("x"))
		if err != nil {
			t.Fatal(err)
		}
		return status == 409
	}
	for _, path := range []string{"/v1/snapshot/save", "/v1/snapshot/restore"} {
		h := s.hold(path)
		for end := time.Now().Add(patience); !busy(); {
			select {
			case <-h.refused: // the question came first
				h = s.hold(path)
			case <-time.After(20 * time.Millisecond):
			}
			if time.Now().After(end) {
				t.Fatalf("%s never held the turn", path)
			}
		}
		h.leave()
		began := time.Now()
		for busy() {
			if time.Since(began) > 5*time.Second {
				t.Fatalf("%s still holds the turn", path)
			}
		}
	}
}

// held is a snapshot operation whose client has stopped in the middle.
type held struct {
	refused chan struct{} // closed when it was told that it is busy
	leave   func()        // hangs up
}

func (s *server) hold(path string) held {
	ctx, cancel := context.WithCancel(context.Background())
	h := held{refused: make(chan struct{})}
	pr, pw := io.Pipe()
	var body io.Reader
	if strings.HasSuffix(path, "restore") {
		body = pr
		go pw.Write([]byte{0x28, 0xb5}) // and no more
	}
	req, err := http.NewRequestWithContext(ctx, "POST", s.url+path, body)
	if err != nil {
		s.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		resp, err := s.http.Do(req)
		if err != nil {
			return
		}
		defer resp.Body.Close()
		if resp.StatusCode == 409 {
			close(h.refused)
			return
		}
		<-ctx.Done() // nothing is read
	}()
	h.leave = func() {
		cancel()
		pw.Close()
		<-ended
	}
	s.t.Cleanup(h.leave)
	return h
}
