package sanitize

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

// textLen gives the length of the text that p begins with: whole characters
// that print, and tabs.
func textLen(p []byte) int {
	i := 0
	for {
		i += printableLen(p[i:])
		if i == len(p) {
			return i
		}
		if p[i] == '\t' {
			i++
			continue
		}
		n := beyondLen(p[i:])
		if n == 0 {
			return i
		}
		i += n
	}
}

// In a word of eight bytes, one of each.
const (
	ones   = 0x0101010101010101
	spaces = ' ' * ones
	highs  = 0x80 * ones
)

// printableLen gives the length of the run of printable ASCII, space to ~, that
// p begins with. It looks at eight bytes at a time: of a byte in the run neither
// itself, nor itself less a space, nor itself plus one has the high bit. A
// borrow or carry comes only from a byte outside the run, and spoils only bytes
// after it.
func printableLen(p []byte) int {
	i := 0
	for ; i+8 <= len(p); i += 8 {
		w := binary.LittleEndian.Uint64(p[i:])
		if other := (w | (w - spaces) | (w + ones)) & highs; other != 0 {
			return i + bits.TrailingZeros64(other)/8
		}
	}
	for ; i < len(p) && ' ' <= p[i] && p[i] <= '~'; i++ {
	}
	return i
}

// beyondLen gives the length of the run of whole characters beyond ASCII and
// the C1 controls that p begins with.
func beyondLen(p []byte) int {
	i := 0
	for i < len(p) && p[i] >= utf8.RuneSelf {
		r, size := utf8.DecodeRune(p[i:])
		if size == 1 || isC1(r) {
			break
		}
		i += size
	}
	return i
}

// wholeLines appends the whole lines of text that p begins with, and gives the
// rest of p. Nearly all output comes this way; what need not be held back is not.
func wholeLines(dst, p []byte) (_, rest []byte) {
	for {
		n := printableLen(p)
		end := lineEnd(p[n:])
		if end == 0 {
			n += textLen(p[n:])
			end = lineEnd(p[n:])
		}
		if end == 0 {
			return dst, p
		}
		dst = append(dst, p[:n+1]...)
		dst[len(dst)-1] = '\n' // where the CR may be
		p = p[n+end:]
	}
}

// lineEnd gives the length of the LF or CR LF that p begins with, or 0.
func lineEnd(p []byte) int {
	switch {
	case len(p) > 0 && p[0] == '\n':
		return 1
	case len(p) > 1 && p[0] == '\r' && p[1] == '\n':
		return 2
	}
	return 0
}
