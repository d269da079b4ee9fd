package api

import (
	"errors"
	"log/slog"
	"net/http"

	"difyrt/runtime/job"
)

// Codes that only the front knows.
const (
	codeNoRoute     job.Code = "not_found"
	codeMethod      job.Code = "method_not_allowed"
	codeCrossOrigin job.Code = "cross_origin"
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
	codeBusy:                 http.StatusConflict,
	codeMalformed:            http.StatusBadRequest,
	codeCrossOrigin:          http.StatusForbidden,
	job.CodeInputTimeout:     http.StatusGatewayTimeout,
}

// internalMessage is all that a client hears of an error that is not meant for it.
const internalMessage = "internal error; see the server's log"

type errorBody struct {
	Error errorDetail `json:"error"`
}

type errorDetail struct {
	Code    job.Code `json:"code"`
	Message string   `json:"message"`
}

// errorReply puts an error into the client's terms. What is not meant for the
// client is detailed in the log only.
func errorReply(err error, log *slog.Logger) (int, errorBody) {
	var e *job.Error
	if !errors.As(err, &e) {
		log.Error("request failed", "err", err)
		e = job.Errorf(job.CodeInternal, internalMessage)
	}
	status, ok := statusOf[e.Code]
	if !ok {
		status = http.StatusInternalServerError
	}
	return status, errorBody{errorDetail{e.Code, e.Message}}
}
