package api

import (
	"bytes"
	"encoding/json"
	"unicode/utf8"

	"difyrt/runtime/job"
)

// object is a JSON object taken apart by one level. Its values are pieces of the
// body, as they stand there: a script of many megabytes is copied once, when it is
// decoded. Names are as the client wrote them, which encoding/json would match
// without regard to case when it fills a struct. Of a name that is there twice,
// the last counts.
type object map[string][]byte

// maxMembers bounds the memory that an object takes besides its body.
const maxMembers = 1 << 16

// parseObject wants exactly one JSON object, in UTF-8. Everything else is
// CodeInvalidRequest; nesting ends where encoding/json ends it, at 10,000.
func parseObject(body []byte) (object, error) {
	b := bytes.Trim(body, space)
	switch {
	case len(b) == 0:
		return nil, job.Errorf(job.CodeInvalidRequest, "the body is empty; a JSON object is wanted")
	case b[0] != '{':
		return nil, job.Errorf(job.CodeInvalidRequest, "the body is not a JSON object")
	case !utf8.Valid(b): // encoding/json would take U+FFFD in its place
		return nil, job.Errorf(job.CodeInvalidRequest, "the body is not UTF-8")
	case !json.Valid(b):
		return nil, job.Errorf(job.CodeInvalidRequest, "the body is not a JSON object: %v", json.Unmarshal(b, new(struct{})))
	}
	return members(b)
}

// members takes an object apart that is known to be valid JSON.
func members(b []byte) (object, error) {
	o := object{}
	for i := skip(b, 1, space); b[i] != '}'; i = skip(b, i, space+",") {
		name, err := text(b[i:valueEnd(b, i)])
		if err != nil {
			return nil, err
		}
		i = skip(b, valueEnd(b, i), space+":")
		end := valueEnd(b, i)
		o[name] = b[i:end]
		if len(o) > maxMembers {
			return nil, job.Errorf(job.CodeInvalidRequest, "an object in the body has more than %d members", maxMembers)
		}
		i = end
	}
	return o, nil
}

const space = " \t\r\n"

func skip(b []byte, i int, chars string) int {
	for bytes.IndexByte([]byte(chars), b[i]) >= 0 {
		i++
	}
	return i
}

// valueEnd gives the place behind the value that begins at b[i].
func valueEnd(b []byte, i int) int {
	for depth := 0; ; {
		switch b[i] {
		case '"':
			i = stringEnd(b, i)
		case '{', '[':
			depth++
			i++
		case '}', ']':
			depth--
			i++
		case ',', ':', ' ', '\t', '\r', '\n': // only between brackets
			i++
		default: // a number, true, false, null
			i += bytes.IndexAny(b[i:], ",]}"+space)
		}
		if depth == 0 {
			return i
		}
	}
}

func stringEnd(b []byte, i int) int {
	for i++; b[i] != '"'; i++ {
		if b[i] == '\\' {
			i++
		}
	}
	return i + 1
}

// text decodes a string; a surrogate without its other half is U+FFFD.
func text(raw []byte) (string, error) {
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw[1 : len(raw)-1]), nil
	}
	var s string
	err := json.Unmarshal(raw, &s)
	return s, err
}
