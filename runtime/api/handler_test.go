package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"difyrt/runtime/job"
	"difyrt/runtime/jobs"
)

const known = job.ID("0123456789abcdef")

// fake notes what it is asked and answers with what it is told.
type fake struct {
	mu    sync.Mutex
	calls []string
	run   jobs.RunRequest
	win   jobs.Window
	err   error
	panic any
	block chan struct{} // when set, Wait blocks until the context ends
}

func (f *fake) call(format string, args ...any) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, fmt.Sprintf(format, args...))
	if f.panic != nil {
		panic(f.panic)
	}
	return f.err
}

var code = 3
var aJob = job.Job{ID: known, Mode: job.PTY, Status: job.Exited, CreatedAt: time.Unix(1700000000, 5e8), EndedAt: time.Unix(1700000009, 0), ExitCode: &code}

func (f *fake) result() jobs.Result {
	return jobs.Result{Job: aJob, OutputPath: "/o", Output: "<&>\u2028é", Offset: 9, Truncated: true}
}
func (f *fake) Run(_ context.Context, r jobs.RunRequest) (jobs.Result, error) {
	f.run = r
	return f.result(), f.call("run")
}
func (f *fake) Wait(ctx context.Context, id job.ID, w jobs.Window) (jobs.Result, error) {
	f.win = w
	err := f.call("wait %s", id)
	if f.block != nil {
		f.block <- struct{}{}
		<-ctx.Done()
		f.block <- struct{}{}
		return jobs.Result{}, ctx.Err()
	}
	return f.result(), err
}
func (f *fake) Input(_ context.Context, id job.ID, text string, w jobs.Window) (jobs.Result, error) {
	f.win = w
	return f.result(), f.call("input %s %q", id, text)
}
func (f *fake) Tail(_ context.Context, id job.ID, limit int) (jobs.Result, error) {
	return f.result(), f.call("tail %s %d", id, limit)
}
func (f *fake) Get(_ context.Context, id job.ID) (jobs.View, error) {
	return jobs.View{Job: aJob, Offset: 7}, f.call("get %s", id)
}
func (f *fake) List(_ context.Context, s job.Status, limit int) ([]job.Job, error) {
	return []job.Job{aJob}, f.call("list %s %d", s, limit)
}
func (f *fake) Terminate(_ context.Context, id job.ID, grace time.Duration) (jobs.View, error) {
	return jobs.View{Job: aJob}, f.call("terminate %s %v", id, grace)
}
func (f *fake) Delete(_ context.Context, id job.ID, force bool, grace time.Duration) error {
	return f.call("delete %s %v %v", id, force, grace)
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func ask(h http.Handler, method, path, body string, head ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	for i := 0; i < len(head); i += 2 {
		r.Header.Set(head[i], head[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// wantError checks the form of an error, and gives its message.
func wantError(t *testing.T, what string, w *httptest.ResponseRecorder, status int, code job.Code) string {
	t.Helper()
	var b struct {
		Error *struct{ Code, Message string }
	}
	d := json.NewDecoder(w.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(&b); err != nil || b.Error == nil {
		t.Errorf("%s: no error body: %v", what, err)
		return ""
	}
	if w.Code != status || b.Error.Code != string(code) || b.Error.Message == "" || w.Header().Get("Content-Type") != "application/json" {
		t.Errorf("%s: %d %+v %q, want %d %s", what, w.Code, *b.Error, w.Header().Get("Content-Type"), status, code)
	}
	return b.Error.Message
}

func TestRoutesAndBodies(t *testing.T) {
	result := `{"job_id":"0123456789abcdef","done":true,"status":"exited","exit_code":3,"output_path":"/o","output":"<&>\u2028é","offset":9,"truncated":true}`
	view := func(offset int) string {
		return fmt.Sprintf(`{"job_id":"0123456789abcdef","status":"exited","done":true,"exit_code":3,"created_at":"2023-11-14T22:13:20Z","started_at":null,"ended_at":"2023-11-14T22:13:29Z","offset":%d}`, offset)
	}
	id := "/v1/jobs/" + string(known)
	for _, c := range []struct{ method, path, body, call, want string }{
		{"GET", "/healthz", "", "", `{"status":"ok"}`},
		{"GET", "/v1/info", "", "", `{"a":1}`},
		{"POST", "/v1/jobs/run", `{"script":"x"}`, "run", result},
		{"POST", id + "/wait", `{}`, "wait 0123456789abcdef", result},
		{"POST", id + "/input", `{"text":"a\n\u0003"}`, `input 0123456789abcdef "a\n\x03"`, result},
		{"POST", id + "/input", `{"text":""}`, `input 0123456789abcdef ""`, result},
		{"GET", id + "/log/tail", "", "tail 0123456789abcdef 16384", result},
		{"GET", id + "/log/tail?output_limit=9999999", "", "tail 0123456789abcdef 524288", result},
		{"GET", id + "/log/tail?output_limit=nope", "", "tail 0123456789abcdef 16384", result},
		{"GET", id, "", "get 0123456789abcdef", view(7)},
		{"GET", "/v1/jobs", "", "list  50", `{"jobs":[{"job_id":"0123456789abcdef","status":"exited","created_at":"2023-11-14T22:13:20Z","started_at":null,"ended_at":"2023-11-14T22:13:29Z"}]}`},
		{"GET", "/v1/jobs?status=lost&limit=1e9", "", "list lost 200", ""},
		{"GET", "/v1/jobs?status=&limit=0", "", "list  50", ""},
		{"POST", id + "/terminate", "", "terminate 0123456789abcdef 10s", view(0)},
		{"POST", id + "/terminate", `{"grace_seconds":0.5}`, "terminate 0123456789abcdef 500ms", view(0)},
		{"POST", id + "/terminate", `{"grace_seconds":1e300}`, "terminate 0123456789abcdef 5m0s", view(0)},
		{"DELETE", id, "", "delete 0123456789abcdef false 10s", `{"job_id":"0123456789abcdef","deleted":true}`},
		{"DELETE", id + "?force=true&grace_seconds=2.5", "", "delete 0123456789abcdef true 2.5s", ""},
		{"DELETE", id + "?force=yes&grace_seconds=x", "", "delete 0123456789abcdef false 10s", ""},
	} {
		f := &fake{}
		w := ask(NewHandler(Config{Jobs: f, Log: quiet(), Info: func() any { return map[string]int{"a": 1} }}), c.method, c.path, c.body)
		if got := strings.TrimSpace(w.Body.String()); w.Code != 200 || c.want != "" && got != c.want {
			t.Errorf("%s %s: %d %s, want %s", c.method, c.path, w.Code, got, c.want)
		}
		if got := strings.Join(f.calls, ";"); got != c.call {
			t.Errorf("%s %s: called %q, want %q", c.method, c.path, got, c.call)
		}
	}
}

func TestRunRequests(t *testing.T) {
	f := &fake{}
	h := NewHandler(Config{Jobs: f, Log: quiet()})
	def := jobs.RunRequest{Script: "x", Mode: job.PTY, Cols: 200, Rows: 50, Window: jobs.Window{Limit: 16384, Timeout: 30 * time.Second, IdleFlush: 500 * time.Millisecond}}
	change := func(do func(*jobs.RunRequest)) jobs.RunRequest { r := def; do(&r); return r }
	for body, want := range map[string]jobs.RunRequest{
		`{"script":"x"}`: def,
		`{"script":"x","Script":"y","MODE":"stdio","zz":[{}],"timeout":null,"env":null,"terminal":null,"cwd":null}`: def,
		`{"script":"y","script":"x"}`:                                        def,
		`{"script":"x","timeout":0,"output_limit":0,"idle_flush_seconds":0}`: change(func(r *jobs.RunRequest) { r.Window.Timeout = 0 }),
		`{"script":"x","timeout":1e300,"output_limit":1e300,"idle_flush_seconds":0.25}`: change(func(r *jobs.RunRequest) {
			r.Window = jobs.Window{Limit: 524288, Timeout: 600 * time.Second, IdleFlush: 250 * time.Millisecond}
		}),
		`{"script":"x","output_limit":1e3,"terminal":{"cols":80.0}}`:                 change(func(r *jobs.RunRequest) { r.Window.Limit, r.Cols = 1000, 80 }),
		`{"script":"x","mode":"stdio","cwd":"/w","terminal":{"cols":1,"rows":4096}}`: change(func(r *jobs.RunRequest) { r.Mode, r.Cwd, r.Cols, r.Rows = job.Stdio, "/w", 1, 4096 }),
	} {
		if w := ask(h, "POST", "/v1/jobs/run", body); w.Code != 200 {
			t.Errorf("%s: %d %s", body, w.Code, w.Body)
		}
		if got := f.run; fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s:\n got %+v\nwant %+v", body, got, want)
		}
	}
	ask(h, "POST", "/v1/jobs/run", `{"script":"a\u0000b","env":{"A":"x\ny","B":""}}`)
	if f.run.Script != "a\x00b" || len(f.run.Env) != 2 || f.run.Env["A"] != "x\ny" {
		t.Errorf("%+v", f.run)
	}
}

func TestRefusedRequests(t *testing.T) {
	deep := strings.Repeat("[", 20000) + strings.Repeat("]", 20000)
	id := "/v1/jobs/" + string(known)
	run, wait := "/v1/jobs/run", id+"/wait"
	for _, c := range []struct {
		method, path, body string
		status             int
		code               job.Code
	}{
		{"POST", run, "", 400, "invalid_request"}, {"POST", run, "{", 400, "invalid_request"}, {"POST", run, "[]", 400, "invalid_request"},
		{"POST", run, "null", 400, "invalid_request"}, {"POST", run, `{"script":"x"} {}`, 400, "invalid_request"},
		{"POST", run, `{"script":"x"`, 400, "invalid_request"}, {"POST", run, "{\"script\":\"\xff\"}", 400, "invalid_request"},
		{"POST", run, `{"x":` + deep + `}`, 400, "invalid_request"}, {"POST", run, deep, 400, "invalid_request"},
		{"POST", run, `{"script":""}`, 400, "invalid_request"}, {"POST", run, `{"Script":"x"}`, 400, "invalid_request"},
		{"POST", run, `{"script":null}`, 400, "invalid_request"}, {"POST", run, `{"script":5}`, 400, "invalid_request"},
		{"POST", run, `{"script":"x","timeout":"5"}`, 400, "invalid_request"}, {"POST", run, `{"script":"x","timeout":[]}`, 400, "invalid_request"},
		{"POST", run, `{"script":"x","output_limit":1.5}`, 400, "invalid_request"}, {"POST", run, `{"script":"x","env":["A=B"]}`, 400, "invalid_request"},
		{"POST", run, `{"script":"x","env":{"A":1}}`, 400, "invalid_request"}, {"POST", run, `{"script":"x","terminal":{"cols":"80"}}`, 400, "invalid_request"},
		{"POST", run, `{"script":"x","terminal":{"cols":80.5}}`, 400, "invalid_request"},
		{"POST", run, `{"script":"x","timeout":-1}`, 422, "validation_error"}, {"POST", run, `{"script":"x","output_limit":-1e300}`, 422, "validation_error"},
		{"POST", run, `{"script":"x","idle_flush_seconds":-0.1}`, 422, "validation_error"}, {"POST", run, `{"script":"x","mode":"x"}`, 422, "validation_error"},
		{"POST", run, `{"script":"x","terminal":{"rows":0}}`, 422, "validation_error"}, {"POST", run, `{"script":"x","terminal":{"cols":4097}}`, 422, "validation_error"},
		{"POST", run, `{"script":"x","env":{"":"v"}}`, 422, "validation_error"}, {"POST", run, `{"script":"x","env":{"A":"\u0000"}}`, 422, "validation_error"},
		{"POST", run, `{"script":"x","cwd":"/a\u0000b"}`, 400, "invalid_cwd"},
		{"POST", run, `{"script":"` + strings.Repeat("x", 16<<20+1) + `"}`, 413, "payload_too_large"},
		{"POST", wait, strings.Repeat(" ", 64<<10+1), 413, "payload_too_large"},
		{"POST", wait, "", 400, "invalid_request"}, {"POST", wait, `{"offset":-1}`, 400, "invalid_offset"}, {"POST", wait, `{"offset":1e300}`, 400, "invalid_offset"},
		{"POST", wait, `{"offset":0.5}`, 400, "invalid_request"}, {"POST", wait, `{"offset":"0"}`, 400, "invalid_request"},
		{"POST", id + "/input", `{}`, 400, "invalid_request"}, {"POST", id + "/input", `{"text":null}`, 400, "invalid_request"},
		{"POST", id + "/input", `{"text":"` + strings.Repeat("x", 16<<20+1) + `"}`, 413, "payload_too_large"},
		{"POST", id + "/terminate", `{`, 400, "invalid_request"}, {"POST", id + "/terminate", `null`, 400, "invalid_request"},
		{"POST", id + "/terminate", `{"grace_seconds":-1}`, 422, "validation_error"},
		{"DELETE", id + "?force=true&grace_seconds=-1", "", 422, "validation_error"},
		{"GET", id + "/log/tail?output_limit=-1", "", 422, "validation_error"}, {"GET", "/v1/jobs?limit=-1", "", 422, "validation_error"},
		{"GET", "/v1/jobs?status=nope", "", 422, "validation_error"},
		{"GET", "/v1/jobs/nope", "", 404, "job_not_found"}, {"GET", "/v1/jobs/..%2f..%2fetc", "", 404, "job_not_found"},
		{"POST", "/v1/jobs/%20" + string(known) + "/wait", "{", 404, "job_not_found"}, {"GET", "/v1/jobs/", "", 404, "job_not_found"},
		{"GET", "/", "", 404, "not_found"}, {"GET", "/v1/jobs/run/x", "", 404, "not_found"}, {"GET", "//healthz", "", 404, "not_found"},
		{"GET", "/v1/../healthz", "", 404, "not_found"}, {"GET", "/healthz/", "", 404, "not_found"},
		{"POST", "/healthz", "", 405, "method_not_allowed"}, {"GET", run, "", 405, "method_not_allowed"}, {"DELETE", run, "", 405, "method_not_allowed"},
		{"PATCH", id, "", 405, "method_not_allowed"}, {"GET", wait, "", 405, "method_not_allowed"}, {"GET", "/v1/snapshot/save", "", 405, "method_not_allowed"},
		{"POST", "/v1/snapshot/save", "", 501, "not_implemented"}, {"POST", "/v1/snapshot/restore", "x", 501, "not_implemented"},
	} {
		f := &fake{}
		w := ask(NewHandler(Config{Jobs: f, Log: quiet()}), c.method, c.path, c.body)
		wantError(t, fmt.Sprintf("%s %s %.60s", c.method, c.path, c.body), w, c.status, c.code)
		if len(f.calls) > 0 {
			t.Errorf("%s %s %.60s: called %v", c.method, c.path, c.body, f.calls)
		}
		if c.status == 405 && w.Header().Get("Allow") == "" {
			t.Errorf("%s %s: no Allow", c.method, c.path)
		}
	}
}

func TestErrorsOfTheTable(t *testing.T) {
	for c, status := range map[job.Code]int{job.CodeInvalidCwd: 400, job.CodeInvalidOffset: 400, job.CodeNotFound: 404, job.CodeNotRunning: 409,
		job.CodeInputUnsupported: 409, job.CodeRunning: 409, job.CodeTooLarge: 413, job.CodeValidation: 422, job.CodeInputTimeout: 504, job.CodeInternal: 500, job.CodeTooManyJobs: 429, job.CodeNoSpace: 507, "new": 500} {
		h := NewHandler(Config{Jobs: &fake{err: fmt.Errorf("wrapped: %w", job.Errorf(c, "message"))}, Log: quiet()})
		if msg := wantError(t, string(c), ask(h, "GET", "/v1/jobs/"+string(known), ""), status, c); msg != "message" {
			t.Errorf("message %q", msg)
		}
	}
}

func TestInternalErrorsAreOnlyLogged(t *testing.T) {
	var log strings.Builder
	for _, f := range []*fake{{err: errors.New("detail-of-the-disk")}, {panic: "detail-of-the-disk"}} {
		log.Reset()
		h := NewHandler(Config{Jobs: f, Log: slog.New(slog.NewTextHandler(&log, nil))})
		want := job.CodeInternal
		if f.panic != nil {
			want = job.CodePanic
		}
		msg := wantError(t, "internal", ask(h, "GET", "/v1/jobs/"+string(known), ""), 500, want)
		if strings.Contains(msg, "detail") || !strings.Contains(log.String(), "detail-of-the-disk") {
			t.Errorf("message %q, log %q", msg, log.String())
		}
	}
}

func TestToken(t *testing.T) {
	f := &fake{}
	h := NewHandler(Config{Token: "tok-EN", Jobs: f, Log: quiet()})
	for head, good := range map[string]bool{"Bearer tok-EN": true, "bearer tok-EN": true, "": false, "Bearer": false, "Bearer ": false, "Bearer tok-EN ": false,
		"Bearer tok-en": false, "Bearer tok-E": false, "Bearer tok-EN tok-EN": false, "Basic tok-EN": false, "tok-EN": false, "Bearer  tok-EN": false} {
		w := ask(h, "GET", "/v1/jobs", "", "Authorization", head)
		if good != (w.Code == 200) {
			t.Errorf("%q: %d", head, w.Code)
		}
		if !good {
			wantError(t, head, w, 401, job.CodeUnauthorized)
		}
	}
	calls := len(f.calls)
	// Before anything else: unknown routes, wrong methods, bad ids and bodies.
	for _, c := range routes {
		path := strings.Replace(c.pattern, "{id}", "nope", 1)
		for _, method := range []string{"GET", "POST", "PUT", "DELETE"} {
			w := ask(h, method, path+"?token=tok-EN", "{")
			if open := c.open && method == c.method; open && w.Code != 200 || !open && w.Code != 401 {
				t.Errorf("%s %s without a token: %d", method, path, w.Code)
			}
		}
	}
	if w := ask(h, "GET", "/nope", ""); w.Code != 401 {
		t.Errorf("unknown route without a token: %d", w.Code)
	}
	if len(f.calls) != calls {
		t.Errorf("called: %v", f.calls[calls:])
	}
}

// A client that hangs up ends its wait at once, and a stop ends without it.
func TestDisconnectAndStop(t *testing.T) {
	f := &fake{block: make(chan struct{})}
	l, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, l, NewHandler(Config{Jobs: f, Log: quiet()}), quiet(), time.Second) }()

	client, hangUp := context.WithCancel(t.Context())
	r, _ := http.NewRequestWithContext(client, "POST", "http://"+l.Addr().String()+"/v1/jobs/"+string(known)+"/wait", strings.NewReader(`{}`))
	go http.DefaultClient.Do(r)
	<-f.block // in Wait
	hangUp()
	<-f.block // its context has ended

	// A body that never ends blocks nobody else.
	pr, pw := io.Pipe()
	slow, _ := http.NewRequestWithContext(t.Context(), "POST", "http://"+l.Addr().String()+"/v1/jobs/run", pr)
	go http.DefaultClient.Do(slow)
	pw.Write([]byte(`{"script":`))
	resp, err := http.Get("http://" + l.Addr().String() + "/healthz")
	if err != nil || resp.StatusCode != 200 {
		t.Errorf("%v %v", resp, err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("stop: %v", err)
	}
	pw.Close()
}

func TestLargeBodiesTakeTurns(t *testing.T) {
	h := NewHandler(Config{Jobs: &fake{}, Log: quiet()}).(*handler)
	body := `{"script":"` + strings.Repeat("x", bigBody) + `"}`
	for range 10 {
		if w := ask(h, "POST", "/v1/jobs/run", body); w.Code != 200 {
			t.Fatalf("%d", w.Code)
		}
	}
	for range cap(h.big) {
		h.big <- struct{}{}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := httptest.NewRequestWithContext(ctx, "POST", "/v1/jobs/run", strings.NewReader(body))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r) // gives up with its client
	if w := ask(h, "POST", "/v1/jobs/run", `{"script":"small"}`); w.Code != 200 {
		t.Errorf("a small body waits for large ones: %d", w.Code)
	}
}

func TestListen(t *testing.T) {
	for _, addr := range []string{"nonsense", "127.0.0.1:99999", "127.0.0.1:x", "unix:", "unix:/no/such/dir/s"} {
		if l, err := Listen(addr); err == nil {
			l.Close()
			t.Errorf("%s: no error", addr)
		}
	}
}

func TestMethodsOfEveryPattern(t *testing.T) {
	if got := methods("/v1/jobs/{id}"); !slices.Equal(got, []string{"DELETE", "GET"}) {
		t.Errorf("%v", got)
	}
}

func FuzzRunRequest(f *testing.F) {
	f.Add([]byte(`{"script":"echo","env":{"A":"b"},"mode":"stdio","terminal":{"cols":80,"rows":24},"timeout":1.5,"output_limit":10,"idle_flush_seconds":0.1,"cwd":"/"}`))
	f.Add([]byte(`{"script":"\ud800","timeout":1e999}`))
	f.Add([]byte(`[`))
	f.Fuzz(func(t *testing.T, b []byte) {
		fields := parseFields(b)
		r := fields.runRequest()
		if fields.err != nil {
			if c := job.CodeOf(fields.err); statusOf[c] == 0 || statusOf[c] >= 500 {
				t.Fatalf("%v", fields.err)
			}
			return
		}
		w := r.Window
		if r.Script == "" || r.Cols < 1 || r.Cols > 4096 || r.Rows < 1 || r.Rows > 4096 || w.Limit < 1 || w.Limit > jobs.MaxOutputLimit ||
			w.Timeout < 0 || w.Timeout > jobs.MaxTimeout || w.IdleFlush <= 0 {
			t.Fatalf("out of bounds: %+v", r)
		}
	})
}

func BenchmarkRunRequest(b *testing.B) {
	body := []byte(`{"script":"echo hello","mode":"stdio","timeout":30,"output_limit":16384,"idle_flush_seconds":0.5,"env":{"HOME":"/home/a","A":"b"}}`)
	for b.Loop() {
		f := parseFields(body)
		if f.runRequest(); f.err != nil {
			b.Fatal(f.err)
		}
	}
}

func BenchmarkResultOf16KiB(b *testing.B) {
	r := jobs.Result{Job: aJob, OutputPath: "/o", Output: strings.Repeat("a line of output, é\n", 800)}
	b.SetBytes(int64(len(r.Output)))
	for b.Loop() {
		if _, err := encode(toResult(r)); err != nil {
			b.Fatal(err)
		}
	}
}
