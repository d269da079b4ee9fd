// Package api is the HTTP front of the runtime: routes, limits, authentication,
// and the one table of errors. What a request means is decided here; what it
// does, by the job table.
package api

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"log/slog"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"difyrt/runtime/job"
	"difyrt/runtime/jobs"
)

// Jobs is what the front needs of the job table. Errors that are meant for the
// client are *job.Error.
type Jobs interface {
	Run(context.Context, jobs.RunRequest) (jobs.Result, error)
	Wait(context.Context, job.ID, jobs.Window) (jobs.Result, error)
	Input(context.Context, job.ID, string, jobs.Window) (jobs.Result, error)
	Tail(ctx context.Context, id job.ID, limit int) (jobs.Result, error)
	Get(context.Context, job.ID) (jobs.View, error)
	List(ctx context.Context, status job.Status, limit int) ([]job.Job, error)
	Terminate(ctx context.Context, id job.ID, grace time.Duration) (jobs.View, error)
	Delete(ctx context.Context, id job.ID, force bool, grace time.Duration) error
}

// Config is what a handler works with.
type Config struct {
	Token string // empty: no authentication
	Jobs  Jobs
	Log   *slog.Logger
	Info  func() any // body of GET /v1/info
}

type handler struct {
	jobs  Jobs
	log   *slog.Logger
	info  func() any
	token *[sha256.Size]byte // digest; nil: no authentication
	big   chan struct{}      // turns for large bodies
}

// NewHandler makes the handler of all routes.
func NewHandler(c Config) http.Handler {
	h := &handler{jobs: c.Jobs, log: c.Log, info: c.Info, big: make(chan struct{}, bigAtOnce)}
	if c.Token != "" {
		d := sha256.Sum256([]byte(c.Token))
		h.token = &d
	}
	return h
}

// route is one row of the table of routes. Its handler gives the body of a 200.
type route struct {
	method  string
	pattern string // segments; {id} stands for a job's identifier
	open    bool   // needs no token
	serve   func(*handler, http.ResponseWriter, *http.Request, job.ID) (any, error)
}

// routes are looked through in order: a literal stands before the {id} that it
// could be taken for.
var routes = []route{
	{"GET", "/healthz", true, (*handler).health},
	{"GET", "/v1/info", false, (*handler).about},
	{"POST", "/v1/jobs/run", false, (*handler).run},
	{"GET", "/v1/jobs", false, (*handler).list},
	{"GET", "/v1/jobs/{id}", false, (*handler).get},
	{"DELETE", "/v1/jobs/{id}", false, (*handler).delete},
	{"POST", "/v1/jobs/{id}/wait", false, (*handler).wait},
	{"POST", "/v1/jobs/{id}/input", false, (*handler).input},
	{"GET", "/v1/jobs/{id}/log/tail", false, (*handler).tail},
	{"POST", "/v1/jobs/{id}/terminate", false, (*handler).terminate},
	{"POST", "/v1/snapshot/save", false, (*handler).notYet},
	{"POST", "/v1/snapshot/restore", false, (*handler).notYet},
}

// ServeHTTP answers every request with JSON.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	clearWriteDeadline(w)
	rt, id, err := h.find(r)
	defer func() {
		if p := recover(); p != nil {
			if p == http.ErrAbortHandler {
				panic(p)
			}
			h.log.Error("panic", "method", r.Method, "route", rt.pattern, "panic", p, "stack", string(debug.Stack()))
			h.fail(w, r, job.Errorf(job.CodePanic, "internal error; see the server's log"))
		}
	}()
	var body any
	if err == nil {
		body, err = rt.serve(h, w, r, id)
	}
	if err != nil {
		h.log.Debug("request refused", "method", r.Method, "route", rt.pattern, "code", job.CodeOf(err), "took", time.Since(began))
		addHeaders(w, rt, err)
		h.fail(w, r, err)
		return
	}
	h.write(w, r, http.StatusOK, body)
	h.log.Debug("request", "method", r.Method, "route", rt.pattern, "job", id, "took", time.Since(began))
}

// find matches the route, in the order: token, path, method, identifier.
func (h *handler) find(r *http.Request) (rt route, id job.ID, err error) {
	rt, raw := lookup(r.Method, r.URL.EscapedPath())
	if !rt.open {
		if err := h.authorize(r); err != nil {
			return rt, "", err
		}
	}
	switch {
	case rt.pattern == "":
		return rt, "", job.Errorf(codeNoRoute, "there is no route %.100q", r.URL.Path)
	case rt.serve == nil:
		return rt, "", job.Errorf(codeMethod, "%.20s is not a method of %s; use %s", r.Method, rt.pattern, strings.Join(methods(rt.pattern), " or "))
	case strings.Contains(rt.pattern, "{id}"):
		id, err = job.ParseID(raw)
	}
	return rt, id, err
}

// lookup gives the row of a request and the segment that stands for {id}. A row
// without serve means a known path with another method, one without pattern an
// unknown path.
func lookup(method, path string) (rt route, raw string) {
	segments := strings.Split(path, "/")
	for _, c := range routes {
		v, ok := match(c.pattern, segments)
		if !ok || rt.pattern != "" && rt.pattern != c.pattern {
			continue
		}
		if c.method == method {
			return c, v
		}
		rt, raw = route{pattern: c.pattern}, v
	}
	return rt, raw
}

// match compares a pattern to the segments of a path, which are still escaped,
// and gives the segment that stands for {id}.
func match(pattern string, segments []string) (id string, ok bool) {
	parts := strings.Split(pattern, "/")
	if len(parts) != len(segments) {
		return "", false
	}
	for i, p := range parts {
		s, err := url.PathUnescape(segments[i])
		if err != nil {
			return "", false
		}
		if p == "{id}" {
			id = s
		} else if p != s {
			return "", false
		}
	}
	return id, true
}

func methods(pattern string) (list []string) {
	for _, c := range routes {
		if c.pattern == pattern {
			list = append(list, c.method)
		}
	}
	slices.Sort(list)
	return list
}

// addHeaders adds what an error's status wants (RFC 9110, 10.2.1 and 11.6.1).
func addHeaders(w http.ResponseWriter, rt route, err error) {
	switch job.CodeOf(err) {
	case codeMethod:
		w.Header().Set("Allow", strings.Join(methods(rt.pattern), ", "))
	case job.CodeUnauthorized:
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
}

// authorize compares digests, so that the time it takes tells nothing of the token.
func (h *handler) authorize(r *http.Request) error {
	if h.token == nil {
		return nil
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	got := sha256.Sum256([]byte(token))
	if !strings.EqualFold(scheme, "Bearer") || subtle.ConstantTimeCompare(got[:], h.token[:]) != 1 {
		return job.Errorf(job.CodeUnauthorized, "a valid bearer token is wanted in the Authorization header")
	}
	return nil
}
