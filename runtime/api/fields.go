package api

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
	"time"
	"unicode/utf8"

	"difyrt/runtime/job"
	"difyrt/runtime/jobs"
)

// fields is a request's JSON object, taken apart once. Names are matched to the
// letter, which encoding/json does not do for structs, and a field is only decoded
// when it is asked for. The first error stays.
type fields struct {
	raw map[string]json.RawMessage
	err error
}

// parseFields wants exactly one JSON object.
func parseFields(body []byte) *fields {
	f := &fields{}
	switch trimmed := bytes.TrimLeft(body, " \t\r\n"); {
	case len(trimmed) == 0:
		f.err = job.Errorf(job.CodeInvalidRequest, "the body is empty; a JSON object is wanted")
	case trimmed[0] != '{':
		f.err = job.Errorf(job.CodeInvalidRequest, "the body is not a JSON object")
	case !utf8.Valid(trimmed):
		f.err = job.Errorf(job.CodeInvalidRequest, "the body is not UTF-8")
	default:
		if err := json.Unmarshal(trimmed, &f.raw); err != nil {
			f.err = job.Errorf(job.CodeInvalidRequest, "the body is not a JSON object: %v", err)
		}
	}
	return f
}

func (f *fields) wrong(code job.Code, format string, args ...any) {
	if f.err == nil {
		f.err = job.Errorf(code, format, args...)
	}
}

// get decodes a field; false when it is absent or null.
func (f *fields) get(name string, into any, want string) bool {
	raw, ok := f.raw[name]
	if !ok || string(raw) == "null" || f.err != nil {
		return false
	}
	if err := json.Unmarshal(raw, into); err != nil {
		f.wrong(job.CodeInvalidRequest, "%s must be %s", name, want)
		return false
	}
	return true
}

func (f *fields) str(name string) (s string, ok bool) {
	ok = f.get(name, &s, "a string")
	return s, ok
}

// number reads a JSON number of any size; beyond the range of float64 it is an
// infinity, which the limits then clamp.
func (f *fields) number(name string) (float64, bool) {
	var n json.Number
	if raw := f.raw[name]; len(raw) > 0 && raw[0] == '"' { // json.Number also takes strings
		f.wrong(job.CodeInvalidRequest, "%s must be a number", name)
		return 0, false
	}
	if !f.get(name, &n, "a number") {
		return 0, false
	}
	v, _ := strconv.ParseFloat(n.String(), 64)
	return v, true
}

// seconds reads a duration; negative ones are refused, larger than most are clamped.
func (f *fields) seconds(name string, def, most time.Duration) time.Duration {
	v, ok := f.number(name)
	if !ok {
		return def
	}
	return f.clampSeconds(name, v, most)
}

func (f *fields) clampSeconds(name string, v float64, most time.Duration) time.Duration {
	if v < 0 || math.IsNaN(v) {
		f.wrong(job.CodeValidation, "%s must not be negative", name)
		return 0
	}
	return time.Duration(min(v, most.Seconds()) * float64(time.Second))
}

// limit reads a number of bytes or jobs: 0 and absent are the default.
func (f *fields) limit(name string, def, most int) int {
	v, ok := f.number(name)
	if !ok {
		return def
	}
	return f.clampLimit(name, v, def, most)
}

func (f *fields) clampLimit(name string, v float64, def, most int) int {
	switch {
	case v < 0:
		f.wrong(job.CodeValidation, "%s must not be negative", name)
	case v == 0:
		return def
	case v != math.Trunc(v) && !math.IsInf(v, 0):
		f.wrong(job.CodeInvalidRequest, "%s must be a whole number", name)
	}
	return int(min(v, float64(most)))
}

func (f *fields) offset() int64 {
	v, ok := f.number("offset")
	if !ok {
		return 0
	}
	switch {
	case v < 0:
		f.wrong(job.CodeInvalidOffset, "offset must not be negative")
	case v >= math.MaxInt64:
		f.wrong(job.CodeInvalidOffset, "offset %g is beyond the end of any output", v)
	case v != math.Trunc(v):
		f.wrong(job.CodeInvalidRequest, "offset must be a whole number")
	}
	return int64(v)
}

// window reads the fields that run, wait and input share, but for the offset.
func (f *fields) window() jobs.Window {
	w := jobs.Window{
		Timeout:   f.seconds("timeout", jobs.DefaultTimeout, jobs.MaxTimeout),
		Limit:     f.limit("output_limit", jobs.DefaultOutputLimit, jobs.MaxOutputLimit),
		IdleFlush: f.seconds("idle_flush_seconds", 0, jobs.MaxTimeout),
	}
	if w.IdleFlush == 0 {
		w.IdleFlush = jobs.DefaultIdleFlush
	}
	return w
}

func (f *fields) grace() time.Duration {
	return f.seconds("grace_seconds", jobs.DefaultGrace, jobs.MaxGrace)
}

// runRequest reads the body of run. Wrong types are found before wrong values.
func (f *fields) runRequest() jobs.RunRequest {
	r := jobs.RunRequest{Cols: jobs.DefaultCols, Rows: jobs.DefaultRows}
	r.Script, _ = f.str("script")
	r.Cwd, _ = f.str("cwd")
	f.get("env", &r.Env, "an object of strings")
	mode, _ := f.str("mode")
	var terminal map[string]json.RawMessage
	f.get("terminal", &terminal, "an object with cols and rows")
	t := &fields{raw: terminal, err: f.err}
	cols, hasCols := t.number("cols")
	rows, hasRows := t.number("rows")
	f.err = t.err
	if f.err == nil && r.Script == "" {
		f.wrong(job.CodeInvalidRequest, "script must not be empty")
	}
	r.Window = f.window()
	if hasCols {
		r.Cols = f.side("terminal.cols", cols)
	}
	if hasRows {
		r.Rows = f.side("terminal.rows", rows)
	}
	if f.err != nil {
		return r
	}
	if len(r.Script) > jobs.MaxScript {
		f.wrong(job.CodeTooLarge, "the script has %d bytes; at most %d are taken", len(r.Script), jobs.MaxScript)
	} else if bytes.IndexByte([]byte(r.Cwd), 0) >= 0 {
		f.wrong(job.CodeInvalidCwd, "cwd holds NUL")
	} else if m, err := job.ParseMode(mode); err != nil {
		f.err = err
	} else {
		r.Mode, f.err = m, job.CheckEnv(r.Env)
	}
	return r
}

func (f *fields) side(name string, v float64) uint16 {
	if v < 1 || v > jobs.MaxTerminalSide {
		f.wrong(job.CodeValidation, "%s must be 1 to %d", name, jobs.MaxTerminalSide)
		return 0
	}
	if v != math.Trunc(v) {
		f.wrong(job.CodeInvalidRequest, "%s must be a whole number", name)
	}
	return uint16(v)
}
