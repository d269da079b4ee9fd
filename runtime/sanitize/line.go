package sanitize

import "unicode/utf8"

// MaxLine is how many bytes of a line are held back at most. When a character
// would not fit any more, what is held is given out for good, and later changes
// of the line reach only what follows.
const MaxLine = 64 << 10

// line is the unfinished line: its state on the terminal, and beside it what
// the output's last line says already.
type line struct {
	content []byte // as on the terminal, without the part that was frozen
	cr      bool   // a CR came: the next printing character clears the line

	shown []byte // as in the output
	agree int    // content[:agree] equals shown[:agree]

	redrawn bool // something of the line was taken back or cleared

	// frozen: before content and shown there is text that was given out for
	// good because the line grew too long.
	frozen bool
	// apart: the output's last line is not empty and has nothing to do with
	// content, so that content belongs on a line of its own.
	apart bool
}

// fresh reports whether nothing of the line has come or been shown.
func (l *line) fresh() bool {
	return len(l.content)|len(l.shown) == 0 && !l.cr && !l.frozen && !l.apart
}

// text adds t, which is whole characters that print, or tabs.
func (l *line) text(dst, t []byte) []byte {
	if l.cr {
		l.cr = false
		l.clear()
	}
	for len(t) > MaxLine-len(l.content) {
		// The cut is where character after character would come to it, or else
		// the result would depend on how the input was cut.
		n := MaxLine - len(l.content)
		for !utf8.RuneStart(t[n]) {
			n--
		}
		l.content = append(l.content, t[:n]...)
		dst = l.freeze(dst)
		t = t[n:]
	}
	l.content = append(l.content, t...)
	return dst
}

// clear empties the line.
func (l *line) clear() {
	l.redrawn = l.redrawn || len(l.content) > 0
	l.content = l.content[:0]
	l.agree = 0
	if l.frozen {
		l.frozen = false
		l.apart = true
		l.shown = l.shown[:0]
	}
}

// backspace takes back the last character. After a CR the cursor is at the
// line's start, where there is nothing to take back.
func (l *line) backspace() {
	if l.cr {
		return
	}
	_, size := utf8.DecodeLastRune(l.content)
	l.redrawn = l.redrawn || size > 0
	l.content = l.content[:len(l.content)-size]
	l.agree = min(l.agree, len(l.content))
}

// erase is EL, erase in line (ECMA-48 8.3.41). Text stands before the cursor
// only, unless a CR came; so "to the end" is nothing or everything.
func (l *line) erase(part int) {
	switch part {
	case 0:
		if l.cr {
			l.clear()
		}
	case 1, 2:
		l.clear()
	}
}

// compare moves agree on as far as it goes. Each byte is looked at once, since
// agree goes back only with content.
func (l *line) compare() {
	for l.agree < min(len(l.content), len(l.shown)) && l.content[l.agree] == l.shown[l.agree] {
		l.agree++
	}
}

// unshown reports whether the line says more than, or other than, a beginning
// of what was shown. One that merely became shorter is likely to be typed anew,
// and waits. It needs compare to have been called.
func (l *line) unshown() bool {
	return l.agree < len(l.content)
}

// show gives out what is unshown: the rest if the line still begins with what
// was shown, or else the whole line below it.
func (l *line) show(dst []byte) []byte {
	if !l.unshown() {
		return dst
	}
	if l.agree < len(l.shown) || l.apart {
		return l.showAnew(dst)
	}
	rest := l.content[l.agree:]
	l.shown = append(l.shown, rest...)
	l.agree = len(l.content)
	return append(dst, rest...)
}

func (l *line) showAnew(dst []byte) []byte {
	l.shown = append(l.shown[:0], l.content...)
	l.agree = len(l.content)
	l.frozen, l.apart = false, false
	dst = append(dst, '\n')
	return append(dst, l.content...)
}

// settle gives out the line's last state, also when it became shorter than what
// was shown. An emptied one needs no line of its own. The caller forgets the
// line then.
func (l *line) settle(dst []byte) []byte {
	l.compare()
	if l.agree < len(l.shown) && len(l.content) > 0 || l.apart && l.unshown() {
		dst = append(dst, '\n')
		l.agree = 0
	}
	return append(dst, l.content[l.agree:]...)
}

func (l *line) freeze(dst []byte) []byte {
	dst = l.settle(dst)
	*l = line{content: l.content[:0], shown: l.shown[:0], frozen: true}
	return dst
}

func (l *line) end(dst []byte) []byte {
	dst = l.settle(dst)
	*l = line{content: l.content[:0], shown: l.shown[:0]}
	return append(dst, '\n')
}
