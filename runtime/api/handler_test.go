package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
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
	mu       sync.Mutex
	calls    []string
	run      jobs.RunRequest
	win      jobs.Window
	err      error
	panic    any
	block    chan struct{} // when set, Wait blocks until the context ends or the stop comes
	stopping chan struct{}
	output   string
	delay    time.Duration
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
	return jobs.Result{Job: aJob, OutputPath: "/o", Output: cmp.Or(f.output, "<&>\u2028é"), Offset: 9, Truncated: true}
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
		select {
		case <-f.stopping:
			return f.result(), err
		case <-ctx.Done():
		}
		f.block <- struct{}{}
		return jobs.Result{}, ctx.Err()
	}
	time.Sleep(f.delay)
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
		got := w.Body.String()
		if w.Code != 200 || c.want != "" && strings.TrimSpace(got) != c.want {
			t.Errorf("%s %s: %d %s, want %s", c.method, c.path, w.Code, got, c.want)
		}
		if n, c := w.Header().Get("Content-Length"), w.Header().Get("Cache-Control"); n != strconv.Itoa(w.Body.Len()) || c != "no-store" {
			t.Errorf("length %q of %d, Cache-Control %q", n, w.Body.Len(), c)
		}
		if got := strings.Join(f.calls, ";"); got != c.call {
			t.Errorf("%s %s: called %q, want %q", c.method, c.path, got, c.call)
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

func TestEveryCodeHasItsStatus(t *testing.T) {
	for c, status := range map[job.Code]int{job.CodeInvalidRequest: 400, job.CodeUnauthorized: 401, codeNoRoute: 404, codeMethod: 405, codeBusy: 409, codeMalformed: 400, codeSave: 500, codeRestore: 500, codeHome: 500, job.CodePanic: 500} {
		if got, _ := errorReply(job.Errorf(c, "x"), quiet()); got != status {
			t.Errorf("%s: %d", c, got)
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

func TestAbortPassesThrough(t *testing.T) {
	defer func() {
		if p := recover(); p != http.ErrAbortHandler {
			t.Errorf("%v", p)
		}
	}()
	ask(NewHandler(Config{Jobs: &fake{panic: http.ErrAbortHandler}, Log: quiet()}), "GET", "/v1/jobs", "")
}

// The log tells method, route, status and duration, and nothing that a client sent or got.
func TestLog(t *testing.T) {
	var log strings.Builder
	h := NewHandler(Config{Jobs: &fake{}, Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	ask(h, "POST", "/v1/jobs/run", `{"script":"SECRET","env":{"SECRET":"SECRET"}}`)
	ask(h, "POST", "/v1/jobs/"+string(known)+"/input?SECRET", `{"text":"SECRET"}`)
	ask(h, "POST", "/v1/jobs/run", `{"script":["SECRET"]}`)
	got := log.String()
	for _, want := range []string{"request=1 method=POST route=/v1/jobs/run", "status=200", "request=3", "status=400", "took=", "job=" + string(known)} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in %s", want, got)
		}
	}
	if strings.Contains(got, "SECRET") || strings.Contains(got, aJob.Reason+"<&>") {
		t.Error(got)
	}
}

// A browser's request for another site's page is refused, also without a token;
// a client that is no browser says nothing of origins.
func TestWebPagesFromElsewhere(t *testing.T) {
	for _, c := range []struct {
		head   []string
		status int
	}{
		{nil, 200}, {[]string{"Sec-Fetch-Site", "same-origin"}, 200}, {[]string{"Origin", "http://example.com"}, 200},
		{[]string{"Sec-Fetch-Site", "cross-site"}, 403}, {[]string{"Origin", "https://evil.example"}, 403}, {[]string{"Origin", "null"}, 403},
	} {
		f := &fake{}
		w := ask(NewHandler(Config{Jobs: f, Log: quiet()}), "POST", "/v1/jobs/run", `{"script":"x"}`, c.head...)
		if w.Code != c.status {
			t.Errorf("%v: %d", c.head, w.Code)
		}
		if c.status == 403 {
			wantError(t, fmt.Sprint(c.head), w, 403, codeCrossOrigin)
			if len(f.calls) > 0 {
				t.Errorf("%v: called %v", c.head, f.calls)
			}
		}
	}
}
