package api

import (
	"errors"
	"math"
	"net/url"
	"strconv"
	"time"

	"difyrt/runtime/job"
)

// fields reads the values of a request. It notes what is wrong and goes on, so
// that a reader of many fields asks for the error once, at the end.
type fields struct {
	members object
	prefix  string // of the names in messages
	*problems
}

// problems are the first of each kind. A wrong type is told before a wrong value,
// wherever the two stand.
type problems struct{ form, value error }

func newFields(o object) *fields { return &fields{members: o, problems: &problems{}} }

// parseFields reads a body that must be a JSON object.
func parseFields(body []byte) (*fields, error) {
	o, err := parseObject(body)
	return newFields(o), err
}

func (p *problems) err() error {
	if p.form != nil {
		return p.form
	}
	return p.value
}

// malformed notes a request that is not put as it must be.
func (p *problems) malformed(format string, args ...any) {
	if p.form == nil {
		p.form = job.Errorf(job.CodeInvalidRequest, format, args...)
	}
}

// invalid notes a value that cannot be taken.
func (p *problems) invalid(code job.Code, format string, args ...any) {
	p.check(job.Errorf(code, format, args...))
}

// check notes an error of the domain; nil is none.
func (p *problems) check(err error) {
	if p.value == nil {
		p.value = err
	}
}

// The kinds of JSON values, by their first byte.
const (
	aString = `"`
	aNumber = "-0123456789"
	anObj   = "{"
)

// get gives the raw value of a field; false when it is absent, null, or of
// another kind.
func (f *fields) get(name, kind, want string) ([]byte, bool) {
	raw := f.members[name]
	if len(raw) == 0 || raw[0] == 'n' {
		return nil, false
	}
	for i := range len(kind) {
		if raw[0] == kind[i] {
			return raw, true
		}
	}
	f.malformed("%s%s must be %s", f.prefix, name, want)
	return nil, false
}

func (f *fields) str(name string) (s string, ok bool) {
	raw, ok := f.get(name, aString, "a string")
	if !ok {
		return "", false
	}
	s, err := text(raw)
	if err != nil {
		f.malformed("%s%s must be a string", f.prefix, name)
	}
	return s, err == nil
}

// object gives the fields of a nested object, none when it is absent.
func (f *fields) object(name, want string) *fields {
	sub := &fields{prefix: name + ".", problems: f.problems}
	raw, ok := f.get(name, anObj, want)
	if !ok {
		return sub
	}
	o, err := members(raw)
	if err != nil {
		f.malformed("%v", err)
	}
	sub.members = o
	return sub
}

// number reads a JSON number of any size; beyond the range of float64 it is an
// infinity, which the limits then clamp.
func (f *fields) number(name string) (float64, bool) {
	raw, ok := f.get(name, aNumber, "a number")
	if !ok {
		return 0, false
	}
	v, err := strconv.ParseFloat(string(raw), 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		f.malformed("%s%s must be a number", f.prefix, name)
		return 0, false
	}
	return v, true
}

// whole also takes 1e3 and 16384.0.
func (f *fields) whole(name string) (float64, bool) {
	v, ok := f.number(name)
	if ok && v != math.Trunc(v) {
		f.malformed("%s%s must be a whole number", f.prefix, name)
		return 0, false
	}
	return v, ok
}

// seconds reads a duration; negative ones are refused, larger than most are clamped.
func (f *fields) seconds(name string, def, most time.Duration) time.Duration {
	v, ok := f.number(name)
	return f.clampSeconds(name, v, ok, def, most)
}

func (f *fields) clampSeconds(name string, v float64, ok bool, def, most time.Duration) time.Duration {
	switch {
	case !ok:
		return def
	case v < 0:
		f.invalid(job.CodeValidation, "%s must not be negative", name)
		return def
	}
	return time.Duration(min(v, most.Seconds()) * float64(time.Second))
}

// limit reads a count of bytes or jobs: 0 and absent are the default, negative
// ones are refused, larger than most are clamped.
func (f *fields) limit(name string, def, most int) int {
	v, ok := f.whole(name)
	return f.clampLimit(name, v, ok, def, most)
}

func (f *fields) clampLimit(name string, v float64, ok bool, def, most int) int {
	switch {
	case !ok || v == 0:
		return def
	case v < 0:
		f.invalid(job.CodeValidation, "%s must not be negative", name)
		return def
	}
	return max(1, int(min(v, float64(most))))
}

// queryLimit is limit for a parameter of the query.
func (f *fields) queryLimit(q url.Values, name string, def, most int) int {
	v, ok := queryNumber(q, name)
	if v > 0 {
		v = math.Trunc(v)
	}
	return f.clampLimit(name, v, ok, def, most)
}

// querySeconds is seconds for a parameter of the query.
func (f *fields) querySeconds(q url.Values, name string, def, most time.Duration) time.Duration {
	v, ok := queryNumber(q, name)
	return f.clampSeconds(name, v, ok, def, most)
}

// queryNumber ignores what is no number (client.md, 2.3).
func queryNumber(q url.Values, name string) (float64, bool) {
	v, err := strconv.ParseFloat(q.Get(name), 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) || math.IsNaN(v) {
		return 0, false
	}
	return v, true
}
