package sanitize

import (
	"strings"
	"unicode/utf8"
)

// model says what the Sanitizer does in the plainest way: it has the whole
// input, decodes it into characters, and keeps the line as characters. It is
// what the fuzz tests compare with.
type model struct {
	in   []byte
	at   int // decided so far
	out  strings.Builder
	mode string // "", or what kind of sequence is open: ESC, I, CSI, OSC, string
	args string // of the control sequence

	line   []rune
	size   int // of line in bytes
	cr     bool
	prior  string // frozen text at the start of the output's last line
	shown  string // the output's last line after prior
	parted bool   // line no longer begins with prior
}

// run decides what can be decided of in[:end]; or all of it at the input's end.
func (m *model) run(end int, last bool) {
	for m.at < end && (last || utf8.FullRune(m.in[m.at:end])) {
		r, size := utf8.DecodeRune(m.in[m.at:end])
		m.at += size
		m.take(r)
	}
}

func (m *model) take(r rune) {
	str := m.mode == "OSC" || m.mode == "string"
	switch {
	case m.mode != "" && (r == 0x18 || r == 0x1a):
		m.mode = ""
	case r == 0x1b:
		m.mode = "ESC"
	case str:
		if r == 0x9c || r == 7 && m.mode == "OSC" {
			m.mode = ""
		}
	case r < 0x20:
		m.control(r)
	case 0x80 <= r && r <= 0x9f:
		m.mode = kind(r - 0x40)
		m.args = ""
	case r == 0x7f:
	case m.mode == "" || r > 0x7f:
		m.mode = ""
		m.print(r)
	case m.mode == "ESC" && r > 0x2f:
		m.mode = kind(r)
		m.args = ""
	case m.mode == "ESC":
		m.mode = "I"
	case m.mode == "I":
		if r > 0x2f {
			m.mode = ""
		}
	case m.mode == "CSI" && r < 0x40:
		m.args += string(r)
	default:
		m.mode = ""
		if r == 'K' {
			m.erase()
		}
	}
}

func kind(r rune) string {
	switch r {
	case '[':
		return "CSI"
	case ']':
		return "OSC"
	case 'P', 'X', '^', '_':
		return "string"
	}
	return ""
}

func (m *model) control(r rune) {
	switch r {
	case '\n':
		m.settle()
		m.out.WriteByte('\n')
		m.prior, m.shown, m.parted = "", "", false
		m.line, m.size, m.cr = nil, 0, false
	case '\r':
		m.cr = true
	case '\t':
		m.print(r)
	case '\b':
		if n := len(m.line); n > 0 && !m.cr {
			m.size -= utf8.RuneLen(m.line[n-1])
			m.line = m.line[:n-1]
		}
	}
}

func (m *model) print(r rune) {
	if m.cr {
		m.cr = false
		m.clear()
	}
	if m.size+utf8.RuneLen(r) > MaxLine {
		m.settle()
		m.prior, m.shown, m.parted = "x", "", false
		m.line, m.size = nil, 0
	}
	m.line = append(m.line, r)
	m.size += utf8.RuneLen(r)
}

func (m *model) clear() {
	m.line, m.size = nil, 0
	m.parted = m.prior != "" || m.parted
}

func (m *model) erase() {
	if strings.Trim(m.args, "0123456789;?") != "" {
		return
	}
	first, _, _ := strings.Cut(strings.ReplaceAll(m.args, "?", ""), ";")
	switch strings.TrimLeft(first, "0") {
	case "":
		if m.cr {
			m.clear()
		}
	case "1", "2":
		m.clear()
	}
}

// show gives out the line if it is not a beginning of what was shown.
func (m *model) show(line string) {
	switch {
	case line == "":
	case m.parted, !strings.HasPrefix(line, m.shown):
		m.out.WriteString("\n" + line)
		m.prior, m.parted, m.shown = "", false, line
	default:
		m.out.WriteString(line[len(m.shown):])
		m.shown = line
	}
}

func (m *model) quiet() {
	line := string(m.line)
	if m.parted || !strings.HasPrefix(m.shown, line) {
		m.show(line)
	}
}

func (m *model) settle() {
	m.show(string(m.line))
}
