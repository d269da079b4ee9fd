package output

import (
	"strings"
	"unicode/utf8"
)

// around gives the beginning and end of the character that b[:at] has only a
// part of; or at twice, if there is none. It need not know where characters
// begin: a first byte is never a later one of another character.
func around(b []byte, at int) (begin, end int) {
	for i := at - 1; i >= max(at-(utf8.UTFMax-1), 0); i-- {
		if !utf8.RuneStart(b[i]) {
			continue
		}
		if _, size := utf8.DecodeRune(b[i:]); i+size > at {
			return i, i + size
		}
		break
	}
	return at, at
}

// whole gives the length of b without the beginning of a character at its end
// that may yet become whole.
func whole(b []byte) int {
	for i := len(b) - 1; i >= max(len(b)-(utf8.UTFMax-1), 0); i-- {
		if !utf8.RuneStart(b[i]) {
			continue
		}
		if !utf8.FullRune(b[i:]) {
			return i
		}
		break
	}
	return len(b)
}

const replacement = string(utf8.RuneError)

// text copies b, with U+FFFD for each byte that is not UTF-8.
func text(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	var t strings.Builder
	t.Grow(len(b) + len(b)/8)
	good := 0 // b[good:i] is UTF-8
	for i := 0; i < len(b); {
		_, size := utf8.DecodeRune(b[i:])
		if size == 1 && b[i] >= utf8.RuneSelf {
			t.Write(b[good:i])
			t.WriteString(replacement)
			good = i + 1
		}
		i += size
	}
	t.Write(b[good:])
	return t.String()
}
