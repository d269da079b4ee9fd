package ignore

import "strings"

// token is one step of a pattern.
type token struct {
	kind kind
	c    byte     // of a literal
	set  *charset // of a class
	// skip says that a double star may also stand for no directory at all: then
	// the slash behind it goes with it.
	skip bool
}

type kind uint8

const (
	literal kind = iota
	anyChar
	class
	star       // any text without a slash
	doubleStar // any text
)

// parse makes tokens of a pattern. false says that it can match nothing: a class
// without an end, or with a name that there is none of, or a lone backslash at
// the end.
func parse(p string) (list []token, ok bool) {
	for i := 0; i < len(p); {
		switch c := p[i]; c {
		case '\\':
			if i+1 == len(p) {
				return nil, false
			}
			list = append(list, token{kind: literal, c: p[i+1]})
			i += 2
		case '?':
			list = append(list, token{kind: anyChar})
			i++
		case '*':
			begin := i
			for i < len(p) && p[i] == '*' {
				i++
			}
			t := token{kind: star}
			// Two stars mean more only where they fill a whole name.
			if rest := p[i:]; i-begin > 1 && (begin == 0 || p[begin-1] == '/') &&
				(rest == "" || rest[0] == '/' || strings.HasPrefix(rest, `\/`)) {
				t = token{kind: doubleStar, skip: strings.HasPrefix(rest, "/")}
			}
			list = append(list, t)
		case '[':
			set, n := parseClass(p[i:])
			if n == 0 {
				return nil, false
			}
			list = append(list, token{kind: class, set: set})
			i += n
		default:
			list = append(list, token{kind: literal, c: c})
			i++
		}
	}
	return list, true
}

// charset is a set of bytes.
type charset [4]uint64

func (s *charset) add(c byte)      { s[c>>6] |= 1 << (c & 63) }
func (s *charset) has(c byte) bool { return s[c>>6]&(1<<(c&63)) != 0 }

// parseClass reads a class from its bracket on, and gives its length, 0 when it
// is none. What stands first may be a closing bracket; a class never matches a
// slash.
func parseClass(p string) (*charset, int) {
	s, i, negate := &charset{}, 1, false
	at := func(i int) byte { // 0 is the end: patterns hold no NUL that could match
		if i < len(p) {
			return p[i]
		}
		return 0
	}
	if at(i) == '!' || at(i) == '^' {
		negate, i = true, i+1
	}
	var before byte // that a range can begin with; 0 for none
	for first := true; first || at(i) != ']'; first = false {
		c := at(i)
		switch {
		case c == 0:
			return nil, 0
		case c == '\\':
			i++
			if c = at(i); c == 0 {
				return nil, 0
			}
			s.add(c)
		case c == '-' && before != 0 && at(i+1) != 0 && at(i+1) != ']':
			i++
			to := at(i)
			if to == '\\' {
				i++
				if to = at(i); to == 0 {
					return nil, 0
				}
			}
			for x := int(before); x <= int(to); x++ {
				s.add(byte(x))
			}
			c = 0
		case c == '[' && at(i+1) == ':':
			end := strings.IndexByte(p[i+2:], ']')
			if end < 0 {
				return nil, 0
			}
			name, ok := strings.CutSuffix(p[i+2:i+2+end], ":")
			if !ok { // an ordinary bracket
				s.add('[')
				break
			}
			in := named[name]
			if in == nil {
				return nil, 0
			}
			for x := range 128 {
				if in(byte(x)) {
					s.add(byte(x))
				}
			}
			i += 2 + end
			c = 0
		default:
			s.add(c)
		}
		before = c
		i++
	}
	if negate {
		for k := range s {
			s[k] = ^s[k]
		}
	}
	s['/'>>6] &^= 1 << ('/' & 63)
	return s, i + 1
}

// named are the POSIX classes, of ASCII as git's are.
var named = map[string]func(byte) bool{
	"alnum":  func(c byte) bool { return isAlpha(c) || isDigit(c) },
	"alpha":  isAlpha,
	"blank":  func(c byte) bool { return c == ' ' || c == '\t' },
	"cntrl":  func(c byte) bool { return c < 0x20 || c == 0x7f },
	"digit":  isDigit,
	"graph":  func(c byte) bool { return c > 0x20 && c < 0x7f },
	"lower":  func(c byte) bool { return c >= 'a' && c <= 'z' },
	"print":  func(c byte) bool { return c >= 0x20 && c < 0x7f },
	"punct":  func(c byte) bool { return c > 0x20 && c < 0x7f && !isAlpha(c) && !isDigit(c) },
	"space":  func(c byte) bool { return c == ' ' || c >= '\t' && c <= '\r' },
	"upper":  func(c byte) bool { return c >= 'A' && c <= 'Z' },
	"xdigit": func(c byte) bool { return isDigit(c) || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F' },
}

func isAlpha(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }
func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// wild matches the whole text. It follows all ways at once, so that stars never
// make it try again: a set holds the places in the pattern that the text read so
// far can have led to.
func wild(list []token, text string) bool {
	var space [2][64]bool
	now, next := space[0][:], space[1][:]
	if len(list)+1 > len(now) {
		now, next = make([]bool, len(list)+1), make([]bool, len(list)+1)
	}
	enter(list, now, 0)
	for i := range len(text) {
		c, alive := text[i], false
		clear(next)
		for at, here := range now[:len(list)] {
			if !here {
				continue
			}
			t := &list[at]
			to := -1
			switch t.kind {
			case star, doubleStar:
				// It goes on, or ends here. It does not begin anew, so that it cannot
				// skip the slash behind it in the middle of a name.
				if c != '/' || t.kind == doubleStar {
					next[at] = true
					enter(list, next, at+1)
					alive = true
				}
			case literal:
				if t.c == c {
					to = at + 1
				}
			case anyChar:
				if c != '/' {
					to = at + 1
				}
			case class:
				if t.set.has(c) {
					to = at + 1
				}
			}
			if to >= 0 {
				enter(list, next, to)
				alive = true
			}
		}
		if !alive {
			return false
		}
		now, next = next, now
	}
	return now[len(list)]
}

// enter adds a place, and those that can be reached from it without any text.
func enter(list []token, set []bool, at int) {
	for {
		set[at] = true
		if at == len(list) {
			return
		}
		switch t := &list[at]; {
		case t.kind == doubleStar && t.skip:
			set[at+1] = true
			at += 2
		case t.kind == star || t.kind == doubleStar:
			at++
		default:
			return
		}
	}
}
