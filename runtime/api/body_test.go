package api

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"difyrt/runtime/job"
	"difyrt/runtime/jobs"
)

// pipes is a listener whose connections are in memory, so that their deadlines
// pass on the clock of a synctest bubble.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if c, ok := <-p; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}
func (p pipes) Close() error   { close(p); return nil }
func (p pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "pipe"} }

// onPipe serves and gives one connection, in a bubble.
func onPipe(t *testing.T, h http.Handler, do func(t *testing.T, c net.Conn)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		l := make(pipes)
		done := make(chan error)
		go func() { done <- Serve(ctx, l, h, ServeConfig{Log: quiet(), Grace: time.Minute}) }()
		client, server := net.Pipe()
		l <- server
		do(t, client)
		client.Close()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute) // for the client's side to notice
	})
}

// answer reads the next answer, and how long it took.
func answer(t *testing.T, from *bufio.Reader) (status int, body string, took time.Duration) {
	t.Helper()
	began := time.Now()
	r, err := http.ReadResponse(from, nil)
	if err != nil {
		t.Fatalf("no answer after %v: %v", time.Since(began), err)
	}
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Errorf("answer cut off after %v: %v", time.Since(began), err)
	}
	return r.StatusCode, string(b), time.Since(began)
}

// A body that never comes holds nobody: also not where no handler wants it, and
// whoever has no token.
func TestBodiesThatNeverCome(t *testing.T) {
	for _, c := range []struct {
		what, request string
		status        int
		within        time.Duration
	}{
		{"without a token", "POST /v1/jobs/run HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n", 401, 0},
		{"unknown route", "PUT /x HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer t\r\nContent-Length: 100\r\n\r\n", 404, unreadBody},
		{"not wanted", "GET /v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer t\r\nContent-Length: 100\r\n\r\n", 200, unreadBody},
		{"too large", "POST /v1/jobs/run HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer t\r\nContent-Length: 60000000\r\n\r\n", 413, 0},
		{"wanted", "POST /v1/jobs/run HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer t\r\nContent-Length: 100\r\n\r\n{\"script\":", 400, bodyStall},
		{"in chunks", "POST /v1/jobs/run HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer t\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{\"s\r\n", 400, bodyStall},
		{"OPTIONS *", "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", 401, 0},
	} {
		t.Run(c.what, func(t *testing.T) {
			onPipe(t, NewHandler(Config{Token: "t", Jobs: &fake{}, Log: quiet()}), func(t *testing.T, conn net.Conn) {
				go io.WriteString(conn, c.request)
				if status, body, took := answer(t, bufio.NewReader(conn)); status != c.status || took != c.within || !strings.HasPrefix(body, "{") {
					t.Errorf("%d after %v: %s", status, took, body)
				}
			})
		})
	}
}

// Progress keeps a slow body alive, but not for ever.
func TestDrippingBody(t *testing.T) {
	f := &fake{}
	onPipe(t, NewHandler(Config{Jobs: f, Log: quiet()}), func(t *testing.T, conn net.Conn) {
		body := `{"script":"slow"}`
		go func() {
			fmt.Fprintf(conn, "POST /v1/jobs/run HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", len(body))
			for i := range body {
				time.Sleep(bodyStall - time.Second)
				io.WriteString(conn, body[i:i+1])
			}
		}()
		if status, text, took := answer(t, bufio.NewReader(conn)); status != 200 || took < 8*time.Minute {
			t.Errorf("%d after %v: %s", status, took, text)
		}
	})
	onPipe(t, NewHandler(Config{Jobs: f, Log: quiet()}), func(t *testing.T, conn net.Conn) {
		go func() {
			_, err := io.WriteString(conn, "POST /v1/jobs/run HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
			for err == nil {
				time.Sleep(time.Second)
				_, err = io.WriteString(conn, " ")
			}
		}()
		if status, _, took := answer(t, bufio.NewReader(conn)); status != 400 || took != bodyWithin {
			t.Errorf("%d after %v", status, took)
		}
	})
}

// A client may take its time with a large answer and then ask again on the same
// connection, also after a wait that was longer than every deadline.
func TestSlowReaderGetsItAll(t *testing.T) {
	f := &fake{output: strings.Repeat("0123456789abcdef", jobs.MaxOutputLimit/16), delay: 9 * time.Minute}
	onPipe(t, NewHandler(Config{Jobs: f, Log: quiet()}), func(t *testing.T, conn net.Conn) {
		from := bufio.NewReader(slowly{conn})
		for range 2 {
			go io.WriteString(conn, "POST /v1/jobs/"+string(known)+"/wait HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
			if status, body, took := answer(t, from); status != 200 || len(body) < jobs.MaxOutputLimit || took < 9*time.Minute+writeStall {
				t.Errorf("%d, %d bytes after %v", status, len(body), took)
			}
		}
	})
}

// slowly takes 4 KiB a second.
type slowly struct{ net.Conn }

func (s slowly) Read(p []byte) (int, error) {
	time.Sleep(time.Second)
	return s.Conn.Read(p[:min(len(p), 4<<10)])
}

// A client that reads nothing of its answer is let go.
func TestDeadReader(t *testing.T) {
	f := &fake{output: strings.Repeat("0123456789abcdef", jobs.MaxOutputLimit/16)}
	onPipe(t, NewHandler(Config{Jobs: f, Log: quiet()}), func(t *testing.T, conn net.Conn) {
		io.WriteString(conn, "GET /v1/jobs/"+string(known)+"/log/tail HTTP/1.1\r\nHost: x\r\n\r\n")
		time.Sleep(writeStall + time.Second)
		if n, err := conn.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("%d %v", n, err)
		}
	})
}

func TestLargeBodiesTakeTurns(t *testing.T) {
	f := &fake{}
	h := NewHandler(Config{Jobs: f, Log: quiet()}).(*handler)
	large := `{"script":"` + strings.Repeat("x", bigBody) + `"}`
	chunked := func(ctx context.Context, body string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(ctx, "POST", "/v1/jobs/run", io.MultiReader(strings.NewReader(body)))
		r.ContentLength = -1
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	for range 3 { // turns are given back
		if w := ask(h, "POST", "/v1/jobs/run", large); w.Code != 200 || len(f.run.Script) != bigBody {
			t.Fatalf("%d", w.Code)
		}
		if w := chunked(t.Context(), large); w.Code != 200 || len(f.run.Script) != bigBody {
			t.Fatalf("in chunks: %d", w.Code)
		}
	}
	r := httptest.NewRequest("POST", "/v1/jobs/"+string(known)+"/terminate", io.MultiReader(strings.NewReader(strings.Repeat(" ", smallBody+1))))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	wantError(t, "in chunks", w, 413, job.CodeTooLarge)
	for range cap(h.big) {
		h.big <- struct{}{}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	calls := len(f.calls)
	chunked(ctx, large) // gives up with its client
	if len(f.calls) != calls {
		t.Error("a large body did not wait for its turn")
	}
	if w := ask(h, "POST", "/v1/jobs/run", `{"script":"small"}`); w.Code != 200 {
		t.Errorf("a small body waits for large ones: %d", w.Code)
	}
	if w := chunked(t.Context(), `{"script":"small"}`); w.Code != 200 {
		t.Errorf("a small body in chunks waits for large ones: %d", w.Code)
	}
	<-h.big
	if w := ask(h, "POST", "/v1/jobs/run", large); w.Code != 200 {
		t.Errorf("a free turn is not taken: %d", w.Code)
	}
}

// Escapes make a body three times as long as its script, and there is room for it.
func TestLargestScript(t *testing.T) {
	const room = largeBody - 3*jobs.MaxScript // for the other fields
	if room < 1<<20 {
		t.Errorf("%d bytes are left", room)
	}
	f := &fake{}
	h := NewHandler(Config{Jobs: f, Log: quiet()})
	for script, n := range map[string]int{strings.Repeat("x", jobs.MaxScript): jobs.MaxScript, strings.Repeat(`\u00e9`, 1<<17): 1 << 18} {
		if w := ask(h, "POST", "/v1/jobs/run", `{"script":"`+script+`"}`); w.Code != 200 || len(f.run.Script) != n {
			t.Errorf("%d, %d bytes", w.Code, len(f.run.Script))
		}
	}
}
