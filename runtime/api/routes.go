package api

import (
	"errors"
	"math"
	"net/http"
	"strconv"

	"difyrt/runtime/job"
	"difyrt/runtime/jobs"
)

func (h *handler) health(http.ResponseWriter, *http.Request, job.ID) (any, error) {
	return healthBody{"ok"}, nil
}

func (h *handler) about(http.ResponseWriter, *http.Request, job.ID) (any, error) {
	return h.info(), nil
}

// notYet answers for routes that a client knows and this version lacks.
func (h *handler) notYet(http.ResponseWriter, *http.Request, job.ID) (any, error) {
	return nil, job.Errorf(codeNotImplemented, "this version of the runtime has no snapshots yet")
}

func (h *handler) run(w http.ResponseWriter, r *http.Request, _ job.ID) (any, error) {
	req, err := h.decodeRun(w, r)
	if err != nil {
		return nil, err
	}
	res, err := h.jobs.Run(r.Context(), req)
	return toResult(res), err
}

// decodeRun lets go of the body before the job is waited for.
func (h *handler) decodeRun(w http.ResponseWriter, r *http.Request) (jobs.RunRequest, error) {
	b, done, err := h.body(w, r, largeBody)
	defer done()
	if err != nil {
		return jobs.RunRequest{}, err
	}
	f := parseFields(b)
	req := f.runRequest()
	return req, f.err
}

func (h *handler) wait(w http.ResponseWriter, r *http.Request, id job.ID) (any, error) {
	b, done, err := h.body(w, r, smallBody)
	defer done()
	if err != nil {
		return nil, err
	}
	f := parseFields(b)
	win := f.window()
	win.Offset = f.offset()
	if f.err != nil {
		return nil, f.err
	}
	res, err := h.jobs.Wait(r.Context(), id, win)
	return toResult(res), err
}

func (h *handler) input(w http.ResponseWriter, r *http.Request, id job.ID) (any, error) {
	text, win, err := h.decodeInput(w, r)
	if err != nil {
		return nil, err
	}
	res, err := h.jobs.Input(r.Context(), id, text, win)
	return toResult(res), err
}

func (h *handler) decodeInput(w http.ResponseWriter, r *http.Request) (string, jobs.Window, error) {
	b, done, err := h.body(w, r, largeBody)
	defer done()
	if err != nil {
		return "", jobs.Window{}, err
	}
	f := parseFields(b)
	text, ok := f.str("text")
	win := f.window()
	win.Offset = f.offset()
	switch {
	case f.err == nil && !ok:
		f.wrong(job.CodeInvalidRequest, "text is missing")
	case len(text) > jobs.MaxScript:
		f.wrong(job.CodeTooLarge, "the text has %d bytes; at most %d are taken", len(text), jobs.MaxScript)
	}
	return text, win, f.err
}

func (h *handler) tail(w http.ResponseWriter, r *http.Request, id job.ID) (any, error) {
	var f fields
	limit := f.queryLimit(r, "output_limit", jobs.DefaultOutputLimit, jobs.MaxOutputLimit)
	if f.err != nil {
		return nil, f.err
	}
	res, err := h.jobs.Tail(r.Context(), id, limit)
	return toResult(res), err
}

func (h *handler) get(w http.ResponseWriter, r *http.Request, id job.ID) (any, error) {
	v, err := h.jobs.Get(r.Context(), id)
	return toView(v), err
}

func (h *handler) list(w http.ResponseWriter, r *http.Request, _ job.ID) (any, error) {
	var f fields
	limit := f.queryLimit(r, "limit", jobs.DefaultListLimit, jobs.MaxListLimit)
	var status job.Status
	if s := r.URL.Query().Get("status"); s != "" && f.err == nil {
		status, f.err = job.ParseStatus(s)
	}
	if f.err != nil {
		return nil, f.err
	}
	list, err := h.jobs.List(r.Context(), status, limit)
	return toList(list), err
}

func (h *handler) terminate(w http.ResponseWriter, r *http.Request, id job.ID) (any, error) {
	b, done, err := h.body(w, r, smallBody)
	defer done()
	if err != nil {
		return nil, err
	}
	f := &fields{}
	if len(b) > 0 { // no body means the defaults
		f = parseFields(b)
	}
	grace := f.grace()
	if f.err != nil {
		return nil, f.err
	}
	v, err := h.jobs.Terminate(r.Context(), id, grace)
	return toView(v), err
}

func (h *handler) delete(w http.ResponseWriter, r *http.Request, id job.ID) (any, error) {
	var f fields
	grace := jobs.DefaultGrace
	if v, ok := queryNumber(r, "grace_seconds"); ok {
		grace = f.clampSeconds("grace_seconds", v, jobs.MaxGrace)
	}
	if f.err != nil {
		return nil, f.err
	}
	err := h.jobs.Delete(r.Context(), id, r.URL.Query().Get("force") == "true", grace)
	return deletedBody{id, true}, err
}

func (f *fields) queryLimit(r *http.Request, name string, def, most int) int {
	v, ok := queryNumber(r, name)
	if !ok {
		return def
	}
	return f.clampLimit(name, math.Trunc(v), def, most)
}

// queryNumber ignores what is no number (client.md, 2.3).
func queryNumber(r *http.Request, name string) (float64, bool) {
	v, err := strconv.ParseFloat(r.URL.Query().Get(name), 64)
	return v, (err == nil || errors.Is(err, strconv.ErrRange)) && !math.IsNaN(v)
}
