package sanitize

// state says inside which kind of sequence the parser is.
type state uint8

const (
	ground       state = iota // in none: text
	escape                    // after ESC
	intermediate              // in ESC I..I F, such as a charset selection (ECMA-35 13.2)
	sequence                  // in a control sequence, after CSI (ECMA-48 5.4)
	command                   // in an OSC string, which xterm lets BEL end as well
	message                   // in a DCS, SOS, PM or APC string (ECMA-48 5.6)

	// In a string, after what may be the first byte of ST in UTF-8.
	commandC2
	messageC2

	states

	// execute: the byte is a C0 control that does its work; the sequence goes on.
	execute = states
	// reread: the byte is no part of the sequence, which ends before it.
	reread = states + 1
)

const esc = 0x1b

// A rule says which state the bytes from lo to hi lead to. A later rule
// overrides an earlier one; a byte in no rule vanishes and changes nothing.
type rule struct {
	in     state
	lo, hi byte
	to     state
}

// rules are those of ECMA-48, with C0 controls inside of sequences as in xterm.
// A character outside of ASCII is no part of a sequence, and ends it; inside of
// a string it is content, but for ST, U+009C. The bytes of ST are C2 and 9C,
// and since C2 only ever begins a character, nothing else contains them.
var rules = []rule{
	{escape, 0x00, 0x1f, execute},
	{escape, 0x20, 0x2f, intermediate},
	{escape, 0x30, 0x7e, ground},
	{escape, '[', '[', sequence},
	{escape, ']', ']', command},
	{escape, 'P', 'P', message}, // DCS
	{escape, 'X', 'X', message}, // SOS
	{escape, '^', '_', message}, // PM, APC
	{escape, 0x80, 0xff, reread},

	{intermediate, 0x00, 0x1f, execute},
	{intermediate, 0x30, 0x7e, ground},
	{intermediate, 0x80, 0xff, reread},

	{sequence, 0x00, 0x1f, execute},
	{sequence, 0x40, 0x7e, ground},
	{sequence, 0x80, 0xff, reread},

	{command, '\a', '\a', ground},
	{command, 0xc2, 0xc2, commandC2},
	{message, 0xc2, 0xc2, messageC2},

	{commandC2, 0x00, 0xff, command},
	{commandC2, '\a', '\a', ground},
	{commandC2, 0xc2, 0xc2, commandC2},
	{commandC2, 0x9c, 0x9c, ground},
	{messageC2, 0x00, 0xff, message},
	{messageC2, 0xc2, 0xc2, messageC2},
	{messageC2, 0x9c, 0x9c, ground},
}

// abort holds in every sequence: CAN and SUB end it, ESC begins another. The
// ESC \ that ends a string is so an escape sequence like any other.
var abort = map[byte]state{0x18: ground, 0x1a: ground, esc: escape}

// next is the rules spread out: the state after a state and a byte.
var next = spread()

func spread() (next [states][256]state) {
	for in := range states {
		for c := range next[in] {
			next[in][c] = in
		}
	}
	for _, r := range rules {
		for c := int(r.lo); c <= int(r.hi); c++ {
			next[r.in][c] = r.to
		}
	}
	for in := escape; in < states; in++ {
		for c, to := range abort {
			next[in][c] = to
		}
	}
	return next
}

// isC1 reports whether r is a control of the C1 set, which UTF-8 writes in two
// bytes. Its single bytes are not UTF-8, and no controls.
func isC1(r rune) bool {
	return 0x80 <= r && r <= 0x9f
}

// introduce acts on a control of the C1 set as on ESC and the byte that stand
// for the same control in seven bits (ECMA-48 5.3).
func (s *Sanitizer) introduce(r rune) {
	s.enter(next[escape][r-0x40])
}

func (s *Sanitizer) enter(to state) {
	s.state = to
	s.csi = parameters{}
}

// skip consumes bytes of p until the sequence ends.
func (s *Sanitizer) skip(dst, p []byte) (_, rest []byte) {
	for i, c := range p {
		in := s.state
		switch to := next[in][c]; {
		case to == execute:
			dst = s.control(dst, c)
		case to == reread:
			s.state = ground
			return dst, p[i:]
		case to == ground:
			s.state = ground
			if in == sequence {
				s.dispatch(c)
			}
			return dst, p[i+1:]
		case to != in:
			s.enter(to)
		case in == sequence:
			s.csi.add(c)
		}
	}
	return dst, nil
}

// dispatch executes the control sequence that ends in final. Of all of them
// only EL changes what a line says.
func (s *Sanitizer) dispatch(final byte) {
	if final == 'K' && !s.csi.foreign {
		s.erase(s.csi.first)
	}
}

// parameters are what stands between CSI and the final byte, as far as EL needs
// it: xterm takes its first parameter, and 0 if there is none.
type parameters struct {
	first   int  // stays small, whatever the number of digits
	further bool // the first is complete
	foreign bool // something else than EL and DECSEL
}

func (a *parameters) add(c byte) {
	switch {
	case '0' <= c && c <= '9':
		if !a.further {
			a.first = min(a.first*10+int(c-'0'), 99)
		}
	case c == ';':
		a.further = true
	case c == '?': // DECSEL, selective erase, is to a line the same as EL
	case c != 0x7f:
		a.foreign = true
	}
}
