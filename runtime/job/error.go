package job

import (
	"errors"
	"fmt"
)

// Code is the machine-readable half of an error that a client may see. The
// HTTP front maps each to a status (contract, Errors); everything that is not
// an *Error is internal to the client and detailed only in the log.
type Code string

// The codes of the contract's error table, and ours beyond it.
const (
	CodeInvalidRequest   Code = "invalid_request"
	CodeInvalidCwd       Code = "invalid_cwd"
	CodeInvalidOffset    Code = "invalid_offset"
	CodeUnauthorized     Code = "unauthorized"
	CodeNotFound         Code = "job_not_found"
	CodeNotRunning       Code = "job_not_running"
	CodeInputUnsupported Code = "input_unsupported"
	CodeRunning          Code = "job_running"
	CodeValidation       Code = "validation_error"
	CodeTooLarge         Code = "payload_too_large"
	// CodeInputTimeout: the job did not read its terminal in time, and only a
	// part of the input could be typed.
	CodeInputTimeout Code = "input_timeout"
	// CodeTooManyJobs: as many jobs run as may.
	CodeTooManyJobs Code = "too_many_jobs"
	// CodeNoSpace: too little disk space is left for new jobs.
	CodeNoSpace  Code = "insufficient_storage"
	CodeInternal Code = "internal_error"
	CodePanic    Code = "internal_panic"
)

// Error is an error whose code and message are meant for the client.
type Error struct {
	Code    Code
	Message string
}

func (e *Error) Error() string { return e.Message }

// Errorf makes an Error from a message for the client.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// NotFound is the error of an identifier that names no job.
func NotFound(id string) *Error {
	if len(id) > 40 {
		id = id[:40] + "…"
	}
	return Errorf(CodeNotFound, "there is no job %q", id)
}

// CodeOf gives the code of the first *Error in err's chain, CodeInternal when
// there is none.
func CodeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return CodeInternal
}
