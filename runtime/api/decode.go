package api

import (
	"math"
	"strconv"
	"strings"
	"time"

	"difyrt/runtime/job"
	"difyrt/runtime/jobs"
)

// decodeRun reads the body of run. What it gives holds nothing of the body.
func decodeRun(body []byte) (jobs.RunRequest, error) {
	f, err := parseFields(body)
	if err != nil {
		return jobs.RunRequest{}, err
	}
	var r jobs.RunRequest
	if r.Script, _ = f.str("script"); r.Script == "" {
		f.malformed("script must be a string that is not empty")
	}
	f.size("script", r.Script)
	if r.Cwd, _ = f.str("cwd"); strings.Contains(r.Cwd, "\x00") {
		f.invalid(job.CodeInvalidCwd, "cwd holds NUL")
	}
	r.Env = f.env()
	mode, _ := f.str("mode")
	r.Mode, err = job.ParseMode(mode)
	f.check(err)
	terminal := f.object("terminal", "an object with cols and rows")
	r.Cols = terminal.side("cols", jobs.DefaultCols)
	r.Rows = terminal.side("rows", jobs.DefaultRows)
	r.Window = f.window()
	return r, f.err()
}

// decodeWait reads the body of wait.
func decodeWait(body []byte) (jobs.Window, error) {
	f, err := parseFields(body)
	if err != nil {
		return jobs.Window{}, err
	}
	w := f.window()
	w.Offset = f.offset()
	return w, f.err()
}

// decodeInput reads the body of input. A text that is there and empty types nothing.
func decodeInput(body []byte) (string, jobs.Window, error) {
	f, err := parseFields(body)
	if err != nil {
		return "", jobs.Window{}, err
	}
	text, ok := f.str("text")
	if !ok {
		f.malformed("text is missing")
	}
	f.size("text", text)
	w := f.window()
	w.Offset = f.offset()
	return text, w, f.err()
}

// decodeGrace reads the body of terminate, which may be left out.
func decodeGrace(body []byte) (time.Duration, error) {
	if len(body) == 0 {
		return jobs.DefaultGrace, nil
	}
	f, err := parseFields(body)
	if err != nil {
		return 0, err
	}
	return f.seconds("grace_seconds", jobs.DefaultGrace, jobs.MaxGrace), f.err()
}

// size bounds a script, and a text just as well.
func (f *fields) size(name, s string) {
	if len(s) > jobs.MaxScript {
		f.invalid(job.CodeTooLarge, "%s has %d bytes; at most %d are taken", name, len(s), jobs.MaxScript)
	}
}

// window reads the fields that run, wait and input share, but for the offset.
func (f *fields) window() jobs.Window {
	w := jobs.Window{
		Timeout:   f.seconds("timeout", jobs.DefaultTimeout, jobs.MaxTimeout),
		Limit:     f.limit("output_limit", jobs.DefaultOutputLimit, jobs.MaxOutputLimit),
		IdleFlush: f.seconds("idle_flush_seconds", jobs.DefaultIdleFlush, jobs.MaxTimeout),
	}
	if w.IdleFlush == 0 {
		w.IdleFlush = jobs.DefaultIdleFlush
	}
	return w
}

// offset is exact in all of its 63 bits, which a float64 is not.
func (f *fields) offset() int64 {
	v, ok := f.whole("offset")
	switch {
	case !ok:
		return 0
	case v < 0:
		f.invalid(job.CodeInvalidOffset, "offset must not be negative")
		return 0
	}
	if n, err := strconv.ParseInt(string(f.members["offset"]), 10, 64); err == nil {
		return n
	}
	if v >= math.MaxInt64 {
		f.invalid(job.CodeInvalidOffset, "offset %g is beyond the end of any output", v)
		return 0
	}
	return int64(v) // written as 1e3 or 5.0
}

// env reads the variables. One that is null is refused: it could be meant to be
// empty or to be unset.
func (f *fields) env() map[string]string {
	const want = "an object of strings"
	o := f.object("env", want)
	env := make(map[string]string, len(o.members))
	for name := range o.members {
		value, ok := o.str(name)
		if !ok {
			f.malformed("env must be %s", want)
			return nil
		}
		env[name] = value
	}
	f.check(job.CheckEnv(env))
	return env
}

// side reads a side of the terminal, in characters.
func (f *fields) side(name string, def uint16) uint16 {
	v, ok := f.whole(name)
	switch {
	case !ok:
		return def
	case v < 1 || v > jobs.MaxTerminalSide:
		f.invalid(job.CodeValidation, "%s%s must be 1 to %d", f.prefix, name, jobs.MaxTerminalSide)
		return def
	}
	return uint16(v)
}
