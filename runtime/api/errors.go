package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"difyrt/runtime/job"
)

// Codes that only the front knows.
const (
	codeNoRoute        job.Code = "not_found"
	codeMethod         job.Code = "method_not_allowed"
	codeNotImplemented job.Code = "not_implemented"
)

// statusOf maps each code to its HTTP status (contract, Errors). A code that is
// not here is 500.
var statusOf = map[job.Code]int{
	job.CodeInvalidRequest:   http.StatusBadRequest,
	job.CodeInvalidCwd:       http.StatusBadRequest,
	job.CodeInvalidOffset:    http.StatusBadRequest,
	job.CodeUnauthorized:     http.StatusUnauthorized,
	job.CodeNotFound:         http.StatusNotFound,
	codeNoRoute:              http.StatusNotFound,
	codeMethod:               http.StatusMethodNotAllowed,
	job.CodeNotRunning:       http.StatusConflict,
	job.CodeInputUnsupported: http.StatusConflict,
	job.CodeRunning:          http.StatusConflict,
	job.CodeTooLarge:         http.StatusRequestEntityTooLarge,
	job.CodeValidation:       http.StatusUnprocessableEntity,
	job.CodeTooManyJobs:      http.StatusTooManyRequests,
	job.CodeNoSpace:          http.StatusInsufficientStorage,
	codeNotImplemented:       http.StatusNotImplemented,
	job.CodeInputTimeout:     http.StatusGatewayTimeout,
}

type errorBody struct {
	Error struct {
		Code    job.Code `json:"code"`
		Message string   `json:"message"`
	} `json:"error"`
}

// fail answers with an error. What is not meant for the client is detailed in
// the log only.
func (h *handler) fail(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil && errors.Is(err, context.Cause(r.Context())) {
		h.log.Debug("client went away", "method", r.Method, "err", err)
		return
	}
	var je *job.Error
	if !errors.As(err, &je) {
		h.log.Error("request failed", "method", r.Method, "path", r.URL.Path, "err", err)
		je = job.Errorf(job.CodeInternal, "internal error; see the server's log")
	}
	var body errorBody
	body.Error.Code, body.Error.Message = je.Code, je.Message
	status, ok := statusOf[je.Code]
	if !ok {
		status = http.StatusInternalServerError
	}
	h.write(w, r, status, body)
}

// write sends a JSON body. It is encoded first, so that an answer is whole or an error.
func (h *handler) write(w http.ResponseWriter, r *http.Request, status int, body any) {
	b, err := encode(body)
	if err != nil {
		h.log.Error("answer not encoded", "path", r.URL.Path, "err", err)
		status, b = http.StatusInternalServerError, []byte(`{"error":{"code":"internal_error","message":"internal error; see the server's log"}}`)
	}
	head := w.Header()
	head.Set("Content-Type", "application/json")
	head.Set("Cache-Control", "no-store")
	setWriteDeadline(w)
	w.WriteHeader(status)
	if _, err := w.Write(b); err != nil {
		h.log.Debug("answer not sent", "path", r.URL.Path, "err", err)
	}
}

func encode(v any) ([]byte, error) {
	var b buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return b, err
}

type buffer []byte

func (b *buffer) Write(p []byte) (int, error) {
	*b = append(*b, p...)
	return len(p), nil
}
