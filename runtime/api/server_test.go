package api

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A client that hangs up ends its wait at once.
func TestDisconnect(t *testing.T) {
	f := &fake{block: make(chan struct{})}
	base, stop := serve(t, f, time.Second)
	client, hangUp := context.WithCancel(t.Context())
	r, _ := http.NewRequestWithContext(client, "POST", base+"/v1/jobs/"+string(known)+"/wait", strings.NewReader(`{}`))
	go http.DefaultClient.Do(r)
	<-f.block // in Wait
	hangUp()
	began := time.Now()
	<-f.block // its context has ended
	if d := time.Since(began); d > time.Second {
		t.Errorf("it took %v", d)
	}
	stop()
}

// Bodies that never end block nobody else, not even as many as there are turns.
func TestSlowClientsBlockNobody(t *testing.T) {
	base, stop := serve(t, &fake{}, 100*time.Millisecond)
	for range 2 * bigAtOnce {
		pr, pw := io.Pipe()
		defer pw.Close()
		slow, _ := http.NewRequestWithContext(t.Context(), "POST", base+"/v1/jobs/run", pr)
		go http.DefaultClient.Do(slow)
		io.WriteString(pw, `{"script":`)
	}
	r, err := http.Post(base+"/v1/jobs/run", "application/json", io.MultiReader(strings.NewReader(`{"script":"x"}`)))
	if err != nil || r.StatusCode != 200 {
		t.Fatalf("%v %v", r, err)
	}
	r.Body.Close()
	stop()
}

// Waiters that the table lets go are answered during the stop.
func TestStopAnswersWaiters(t *testing.T) {
	f := &fake{block: make(chan struct{}), stopping: make(chan struct{})}
	base, stop := serve(t, f, 5*time.Second)
	got := make(chan error)
	go func() {
		r, err := http.Post(base+"/v1/jobs/"+string(known)+"/wait", "application/json", strings.NewReader(`{}`))
		if err == nil {
			r.Body.Close()
			if r.StatusCode != 200 {
				err = errors.New(r.Status)
			}
		}
		got <- err
	}()
	<-f.block
	go func() {
		time.Sleep(50 * time.Millisecond) // the stop has begun
		close(f.stopping)
	}()
	stop()
	if err := <-got; err != nil {
		t.Error(err)
	}
}

// Waiters that nobody lets go are cut off after the grace.
func TestStopCutsOff(t *testing.T) {
	f := &fake{block: make(chan struct{}, 2)}
	base, stop := serve(t, f, 50*time.Millisecond)
	go http.Post(base+"/v1/jobs/"+string(known)+"/wait", "application/json", strings.NewReader(`{}`))
	<-f.block
	began := time.Now()
	stop()
	<-f.block // its context has ended
	if d := time.Since(began); d > 2*time.Second {
		t.Errorf("it took %v", d)
	}
}

func TestListenerThatFails(t *testing.T) {
	l, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if err := Serve(t.Context(), l, http.NotFoundHandler(), ServeConfig{Log: quiet(), Grace: time.Second}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("%v", err)
	}
}

// serve gives the server's address, and a stop that must be clean.
func serve(t *testing.T, f *fake, grace time.Duration) (base string, stop func()) {
	t.Helper()
	return serveAs(t, f, ServeConfig{Grace: grace})
}

func serveAs(t *testing.T, f *fake, c ServeConfig) (base string, stop func()) {
	t.Helper()
	l, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		c.Log = quiet()
		done <- Serve(ctx, l, NewHandler(Config{Jobs: f, Log: quiet()}), c)
	}()
	scheme := "http://"
	if c.TLS != nil {
		scheme = "https://"
	}
	return scheme + l.Addr().String(), func() {
		t.Helper()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("stop: %v", err)
		}
	}
}

func TestListenTCP(t *testing.T) {
	l, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := Listen(l.Addr().String()); err == nil || !strings.Contains(err.Error(), "in use") || !strings.Contains(err.Error(), l.Addr().String()) {
		t.Errorf("an address twice: %v", err)
	}
	for _, addr := range []string{"", "nonsense", "127.0.0.1:99999", "127.0.0.1:-1", "127.0.0.1:x", "unix:", "unix:/no/such/dir/s"} {
		if l, err := Listen(addr); err == nil {
			l.Close()
			t.Errorf("%q: no error", addr)
		} else if addr != "" && !strings.Contains(err.Error(), addr) {
			t.Errorf("%q: %v", addr, err)
		}
	}
}

func TestListenUnix(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	long := filepath.Join(dir, strings.Repeat("d", 120))
	if err := os.Mkdir(long, 0o700); err != nil {
		t.Fatal(err)
	}
	stale, err := net.Listen("unix", "stale")
	if err != nil {
		t.Fatal(err)
	}
	stale.(*net.UnixListener).SetUnlinkOnClose(false)
	stale.Close()
	defer syscall.Umask(syscall.Umask(0)) // the mode is not owed to it
	for _, path := range []string{filepath.Join(dir, "s"), "relative", "stale", filepath.Join(long, "s")} {
		l, err := Listen("unix:" + path)
		if err != nil {
			t.Fatal(err)
		}
		if st, err := os.Lstat(path); err != nil || st.Mode() != fs.ModeSocket|0o600 {
			t.Errorf("%s: %v %v", path, st.Mode(), err)
		}
		if _, err := Listen("unix:" + path); err == nil || !strings.Contains(err.Error(), "in use") {
			t.Errorf("%s, which is live: %v", path, err)
		}
		l.Close()
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left behind: %v", path, err)
		}
	}
	if err := os.WriteFile("file", []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"file", "."} {
		if l, err := Listen("unix:" + path); err == nil {
			l.Close()
			t.Errorf("%s: no error", path)
		}
	}
	if b, _ := os.ReadFile("file"); string(b) != "precious" {
		t.Error("the file was touched")
	}
}
