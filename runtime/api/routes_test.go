package api

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"difyrt/runtime/job"
	"difyrt/runtime/jobs"
)

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

func TestWindows(t *testing.T) {
	f := &fake{}
	h := NewHandler(Config{Jobs: f, Log: quiet()})
	def := jobs.Window{Limit: 16384, Timeout: 30 * time.Second, IdleFlush: 500 * time.Millisecond}
	change := func(do func(*jobs.Window)) jobs.Window { w := def; do(&w); return w }
	for body, want := range map[string]jobs.Window{
		`{}`: def,
		`{"offset":null,"timeout":null,"output_limit":null,"idle_flush_seconds":null,"Offset":7}`: def,
		`{"offset":9007199254740993,"timeout":0}`:                                                 change(func(w *jobs.Window) { w.Offset, w.Timeout = 1<<53+1, 0 }),
		`{"offset":9223372036854775807}`:                                                          change(func(w *jobs.Window) { w.Offset = 1<<63 - 1 }),
		`{"offset":1e3,"output_limit":1e-0}`:                                                      change(func(w *jobs.Window) { w.Offset, w.Limit = 1000, 1 }),
		`{"offset":-0,"output_limit":524289,"timeout":600.5}`:                                     change(func(w *jobs.Window) { w.Limit, w.Timeout = 524288, 600*time.Second }),
		`{"timeout":0.25,"idle_flush_seconds":9e9}`:                                               change(func(w *jobs.Window) { w.Timeout, w.IdleFlush = 250*time.Millisecond, 600*time.Second }),
		`{"idle_flush_seconds":1e-3,"offset":2.0,"timeout":-0}`:                                   change(func(w *jobs.Window) { w.Offset, w.Timeout, w.IdleFlush = 2, 0, time.Millisecond }),
	} {
		for path, body := range map[string]string{"/wait": body, "/input": `{"text":"","offset":0,` + body[1:]} {
			if body == `{"text":"","offset":0,}` {
				continue
			}
			if w := ask(h, "POST", "/v1/jobs/"+string(known)+path, body); w.Code != 200 || f.win != want {
				t.Errorf("%s %s: %d %+v, want %+v", path, body, w.Code, f.win, want)
			}
		}
	}
}

// Not even a record that already holds a code shows it before the end.
func TestExitCodeOnlyAtTheEnd(t *testing.T) {
	for _, s := range []job.Status{job.Created, job.Starting, job.Running, job.Exited, job.Terminated, job.Failed, job.Lost} {
		j := aJob
		j.Status = s
		result, view := toResult(jobs.Result{Job: j}), toView(jobs.View{Job: j})
		if final := s.Final(); final != (result.ExitCode != nil) || final != (view.ExitCode != nil) || final != result.Done || final != view.Done {
			t.Errorf("%s: %+v %+v", s, result, view)
		}
	}
	if b, err := encode(toList(nil)); err != nil || string(b) != "{\"jobs\":[]}\n" {
		t.Errorf("%s %v", b, err)
	}
}

func TestLookup(t *testing.T) {
	for path, want := range map[string]string{
		"/v1/jobs/run": "/v1/jobs/run", "/v1/jobs/%72un": "/v1/jobs/run", "/v1/jobs/RUN": "/v1/jobs/{id}", "/v1/jobs/a%2fb": "/v1/jobs/{id}",
		"/v1/jobs/run/wait": "/v1/jobs/{id}/wait", "/v1/jobs": "/v1/jobs", "/v1/jobs/": "/v1/jobs/{id}", "/v1//jobs": "", "": "", "*": "", "/%zz": "",
		"/v1/jobs/%7Bid%7D": "/v1/jobs/{id}", "/v1/jobs/x/log": "", "/v1/jobs/x/log/tail/": "",
	} {
		if got := lookup("ANY", path); got.pattern != want || got.serve != nil {
			t.Errorf("%q leads to %q", path, got.pattern)
		}
	}
	if got := lookup("PUT", "/v1/jobs/a%2f..").target(); got != "a/.. GET DELETE" {
		t.Error(got)
	}
	if got := lookup("DELETE", "/v1/jobs/run"); !slices.Equal(got.allow, []string{"POST"}) {
		t.Errorf("%v", got.allow)
	}
}

func (t target) target() string { return t.id + " " + strings.Join(t.allow, " ") }
