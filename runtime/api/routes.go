package api

import (
	"net/http"

	"difyrt/runtime/job"
	"difyrt/runtime/jobs"
)

func (h *handler) health(http.ResponseWriter, *http.Request, job.ID) (any, error) {
	return healthBody{"ok"}, nil
}

func (h *handler) about(http.ResponseWriter, *http.Request, job.ID) (any, error) {
	return h.info(), nil
}

func (h *handler) run(w http.ResponseWriter, r *http.Request, _ job.ID) (any, error) {
	req, err := h.readRun(w, r)
	if err != nil {
		return nil, err
	}
	res, err := h.jobs.Run(r.Context(), req)
	return toResult(res), err
}

// readRun lets go of the body before the job is waited for.
func (h *handler) readRun(w http.ResponseWriter, r *http.Request) (jobs.RunRequest, error) {
	b, done, err := h.body(w, r, largeBody)
	defer done()
	if err != nil {
		return jobs.RunRequest{}, err
	}
	return decodeRun(b)
}

func (h *handler) wait(w http.ResponseWriter, r *http.Request, id job.ID) (any, error) {
	b, done, err := h.body(w, r, smallBody)
	defer done()
	if err != nil {
		return nil, err
	}
	win, err := decodeWait(b)
	if err != nil {
		return nil, err
	}
	res, err := h.jobs.Wait(r.Context(), id, win)
	return toResult(res), err
}

func (h *handler) input(w http.ResponseWriter, r *http.Request, id job.ID) (any, error) {
	text, win, err := h.readInput(w, r)
	if err != nil {
		return nil, err
	}
	res, err := h.jobs.Input(r.Context(), id, text, win)
	return toResult(res), err
}

// readInput lets go of the body as readRun does.
func (h *handler) readInput(w http.ResponseWriter, r *http.Request) (string, jobs.Window, error) {
	b, done, err := h.body(w, r, largeBody)
	defer done()
	if err != nil {
		return "", jobs.Window{}, err
	}
	return decodeInput(b)
}

func (h *handler) tail(_ http.ResponseWriter, r *http.Request, id job.ID) (any, error) {
	f := newFields(nil)
	limit := f.queryLimit(r.URL.Query(), "output_limit", jobs.DefaultOutputLimit, jobs.MaxOutputLimit)
	if err := f.err(); err != nil {
		return nil, err
	}
	res, err := h.jobs.Tail(r.Context(), id, limit)
	return toResult(res), err
}

func (h *handler) get(_ http.ResponseWriter, r *http.Request, id job.ID) (any, error) {
	v, err := h.jobs.Get(r.Context(), id)
	return toView(v), err
}

func (h *handler) list(_ http.ResponseWriter, r *http.Request, _ job.ID) (any, error) {
	q, f := r.URL.Query(), newFields(nil)
	limit := f.queryLimit(q, "limit", jobs.DefaultListLimit, jobs.MaxListLimit)
	status := job.Status(q.Get("status"))
	if status != "" {
		_, err := job.ParseStatus(string(status))
		f.check(err)
	}
	if err := f.err(); err != nil {
		return nil, err
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
	grace, err := decodeGrace(b)
	if err != nil {
		return nil, err
	}
	v, err := h.jobs.Terminate(r.Context(), id, grace)
	return toView(v), err
}

func (h *handler) delete(_ http.ResponseWriter, r *http.Request, id job.ID) (any, error) {
	q, f := r.URL.Query(), newFields(nil)
	grace := f.querySeconds(q, "grace_seconds", jobs.DefaultGrace, jobs.MaxGrace)
	if err := f.err(); err != nil {
		return nil, err
	}
	err := h.jobs.Delete(r.Context(), id, q.Get("force") == "true", grace)
	return deletedBody{id, true}, err
}
