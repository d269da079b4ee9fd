// Package api is the HTTP front of the runtime: routes, limits, authentication,
// and the one table of errors. What a request means is decided here; what it
// does, by the job table.
//
// Every answer is JSON, errors too; the exceptions are requests that net/http
// cannot parse (400, 431), which never come to a handler. Fields and codes are
// those of ../../../shared/contract/runtime-http.md and stay as they are: clients
// reject keys that they do not know.
package api

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"difyrt/runtime/job"
	"difyrt/runtime/jobs"
)

// Jobs is what the front needs of the job table. What it passes on is within the
// limits of package jobs. An error that is a *job.Error goes to the client with
// its code and message; any other is answered as an internal one and detailed in
// the log. A call that ends because its context did returns the context's error.
type Jobs interface {
	// Run starts a job and waits for it as Wait does.
	Run(context.Context, jobs.RunRequest) (jobs.Result, error)
	// Wait gives a page of output; CodeInvalidOffset beyond its end.
	Wait(context.Context, job.ID, jobs.Window) (jobs.Result, error)
	// Input types text, then waits; CodeNotRunning, CodeInputUnsupported or
	// CodeInputTimeout when it cannot.
	Input(ctx context.Context, id job.ID, text string, w jobs.Window) (jobs.Result, error)
	// Tail gives the last limit bytes of the output.
	Tail(ctx context.Context, id job.ID, limit int) (jobs.Result, error)
	// Get gives a job's state.
	Get(context.Context, job.ID) (jobs.View, error)
	// List gives at most limit jobs, newest first; an empty status means all.
	List(ctx context.Context, status job.Status, limit int) ([]job.Job, error)
	// Terminate ends a job, by force once grace is over.
	Terminate(ctx context.Context, id job.ID, grace time.Duration) (jobs.View, error)
	// Delete removes a job; a live one only with force, else CodeRunning.
	Delete(ctx context.Context, id job.ID, force bool, grace time.Duration) error
}

// Config is what a handler works with.
type Config struct {
	Token string       // empty: no authentication
	Jobs  Jobs         // must be set
	Log   *slog.Logger // must be set; never sees a script, an environment, input or output
	Info  func() any   // body of GET /v1/info; must be set
	// Snapshots must be set where the snapshot routes are to work.
	Snapshots Snapshots
}

type handler struct {
	jobs      Jobs
	log       *slog.Logger
	info      func() any
	token     *[sha256.Size]byte // digest; nil: no authentication
	big       chan struct{}      // turns for large bodies
	snapshot  chan struct{}      // the turn of a snapshot operation
	snapshots Snapshots
	requests  atomic.Uint64 // so far; numbers them in the log
}

// NewHandler makes the handler of all routes. It is to be served by Serve, whose
// connections have the deadlines that it moves.
func NewHandler(c Config) http.Handler {
	h := &handler{jobs: c.Jobs, log: c.Log, info: c.Info, big: make(chan struct{}, bigAtOnce), snapshot: make(chan struct{}, 1), snapshots: c.Snapshots}
	if c.Token != "" {
		d := sha256.Sum256([]byte(c.Token))
		h.token = &d
	}
	return h
}

var crossOrigin = http.NewCrossOriginProtection()

// ServeHTTP answers every request with JSON.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	clearWriteDeadline(w)
	t := lookup(r.Method, r.URL.EscapedPath())
	log := h.log.With("request", h.requests.Add(1), "method", r.Method, "route", t.pattern)
	body, err := h.answer(w, r, t, log)
	status := http.StatusOK
	if _, sent := body.(streamed); !sent || err != nil {
		status = reply(w, r, body, err, log)
	}
	log.Debug("request", "job", t.id, "status", status, "took", time.Since(began))
}

// answer gives the body of a 200 or an error. A panic is an error too, but for
// the one that asks net/http to drop the connection.
func (h *handler) answer(w http.ResponseWriter, r *http.Request, t target, log *slog.Logger) (body any, err error) {
	defer func() {
		switch p := recover(); p {
		case nil:
		case http.ErrAbortHandler:
			panic(p)
		default:
			log.Error("panic", "panic", p, "stack", string(debug.Stack()))
			body, err = nil, job.Errorf(job.CodePanic, internalMessage)
		}
	}()
	if !t.open && !h.authorized(r) {
		w.Header().Set("WWW-Authenticate", "Bearer") // RFC 9110, 11.6.1
		if r.ContentLength != 0 {
			w.Header().Set("Connection", "close") // or net/http waits for a body that nobody wants
		}
		return nil, job.Errorf(job.CodeUnauthorized, "a valid bearer token is wanted in the Authorization header")
	}
	// Without a token a web page that is open on this machine could start jobs:
	// browsers say where a request comes from, and other clients say nothing.
	if err := crossOrigin.Check(r); err != nil {
		return nil, job.Errorf(codeCrossOrigin, "requests of web pages from elsewhere are refused")
	}
	if t.serve == nil {
		if t.pattern == "" {
			return nil, job.Errorf(codeNoRoute, "there is no route %.100q", r.URL.Path)
		}
		w.Header().Set("Allow", strings.Join(t.allow, ", ")) // RFC 9110, 10.2.1
		return nil, job.Errorf(codeMethod, "%.20s is not a method of %s; use %s", r.Method, t.pattern, strings.Join(t.allow, " or "))
	}
	var id job.ID
	if t.hasID {
		if id, err = job.ParseID(t.id); err != nil {
			return nil, err
		}
	}
	return t.serve(h, w, r, id)
}
