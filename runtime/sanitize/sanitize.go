// Package sanitize turns what a program wrote to a terminal into text that
// reads well in a file.
//
// A terminal is a screen: a program may colour it, move about on it, and draw
// the same line a hundred times. A file only grows. The sanitizer keeps the
// text and the line ends, drops everything that merely steers a terminal, and
// of a line that was redrawn gives the last state only. What comes out is
// always valid UTF-8 whose only control characters are line feed and tab.
//
// To know a line's last state it holds the line back until its end. A prompt
// has no end, so the caller, who has the clock, calls Quiet once the terminal
// has been silent for a while, and gets what is there so far. Nothing given out
// is ever taken back; if the program changes a line already shown, the changed
// line comes out once more below it.
//
// The rules, in the order in which bytes meet them:
//
//   - A byte that is not UTF-8 becomes one U+FFFD. A character cut by the end of
//     a piece waits for its rest.
//   - Escape sequences and control strings vanish (ECMA-48 5.3 to 5.6); so does
//     one that the input ends in. Control characters that draw nothing vanish.
//   - LF ends the line. CR returns to its start: the next printing character or
//     tab clears it, but an LF that comes first keeps it.
//   - BS takes back the last character. EL (CSI K) clears the line, or, in its
//     form "from the cursor to the end", does so only after a CR.
//
// The result depends on the bytes and on where Quiet was called among them,
// never on how the input was cut into pieces.
package sanitize

import "unicode/utf8"

// A Sanitizer filters one stream. The zero value is ready to use. It is not
// safe for concurrent use, knows no time and never fails. It keeps at most the
// unfinished line (see [MaxLine]) and what was shown of it.
type Sanitizer struct {
	line
	state state
	csi   parameters

	// held is the beginning of a character whose rest has not come; state is
	// ground whenever there is one.
	held  [utf8.UTFMax]byte
	nheld int
}

const replacement = string(utf8.RuneError)

// Feed consumes p, appends to dst what has become final, and returns the
// extended dst. It keeps no reference to p or dst. The output of one call is
// at most three times as long as p plus what was held back.
func (s *Sanitizer) Feed(dst, p []byte) []byte {
	if s.nheld > 0 {
		dst, p = s.complete(dst, p)
	}
	for len(p) > 0 {
		switch {
		case s.state != ground:
			dst, p = s.skip(dst, p)
			continue
		case s.fresh():
			dst, p = wholeLines(dst, p)
		}
		n := textLen(p)
		if n > 0 {
			dst = s.text(dst, p[:n])
			p = p[n:]
		}
		switch {
		case len(p) == 0:
		case p[0] < utf8.RuneSelf:
			dst = s.control(dst, p[0])
			p = p[1:]
		default:
			dst, p = s.character(dst, p)
		}
	}
	s.compare()
	return dst
}

// Quiet appends what the unfinished line has to show so far, such as a prompt,
// and returns the extended dst. A second call with nothing fed between appends
// nothing. The caller decides when the terminal has been silent for long enough.
func (s *Sanitizer) Quiet(dst []byte) []byte {
	return s.show(dst)
}

// Pending reports whether [Sanitizer.Quiet] would append anything, so that a
// caller need arm its timer only then. It costs one comparison.
func (s *Sanitizer) Pending() bool {
	return s.unshown()
}

// Growing reports whether text was only ever added to the unfinished line, as by
// a program that prints a dot for each step: such a line may be shown although
// the terminal does not go quiet, while of one that is redrawn the last state is
// wanted.
func (s *Sanitizer) Growing() bool {
	return !s.redrawn && !s.cr
}

// Close ends the input: it appends the unfinished line, without a line end, and
// one U+FFFD for each byte of a cut character, and returns the extended dst. An
// unfinished sequence vanishes. The Sanitizer is then as good as new.
func (s *Sanitizer) Close(dst []byte) []byte {
	dst = s.giveUp(dst)
	dst = s.settle(dst)
	*s = Sanitizer{}
	return dst
}

// control executes a control character of the C0 set, or DEL, as far as it
// means something to a line. Sequences execute the controls inside them too, as
// xterm does.
func (s *Sanitizer) control(dst []byte, c byte) []byte {
	switch c {
	case '\n':
		return s.end(dst)
	case '\r':
		s.cr = true
	case '\b':
		s.backspace()
	case '\t':
		return s.text(dst, []byte{'\t'})
	case esc:
		s.state = escape
	}
	return dst
}

// character consumes the character at the start of p, which begins with a byte
// outside of ASCII.
func (s *Sanitizer) character(dst, p []byte) (_, rest []byte) {
	r, size := utf8.DecodeRune(p)
	switch {
	case size > 1 && isC1(r):
		s.introduce(r)
	case size > 1:
		dst = s.text(dst, p[:size])
	case !utf8.FullRune(p):
		s.nheld = copy(s.held[:], p)
		return dst, nil
	default:
		dst = s.text(dst, []byte(replacement))
	}
	return dst, p[size:]
}

// complete adds bytes of p to the held character until it is whole, or found
// never to become so.
func (s *Sanitizer) complete(dst, p []byte) (_, rest []byte) {
	for len(p) > 0 {
		s.held[s.nheld] = p[0]
		c := s.held[:s.nheld+1]
		if !utf8.FullRune(c) {
			s.nheld++
			p = p[1:]
			continue
		}
		if !utf8.Valid(c) {
			// The new byte is not at fault: it may begin something good.
			return s.giveUp(dst), p
		}
		s.nheld = 0
		dst, _ = s.character(dst, c)
		return dst, p[1:]
	}
	return dst, p
}

// giveUp replaces the held beginning of a character: a first byte and those
// that may follow it are, without the rest, bad bytes one and all.
func (s *Sanitizer) giveUp(dst []byte) []byte {
	for ; s.nheld > 0; s.nheld-- {
		dst = s.text(dst, []byte(replacement))
	}
	return dst
}
