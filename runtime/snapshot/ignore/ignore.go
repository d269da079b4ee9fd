// Package ignore decides what a list of exclude patterns leaves out of a tree:
// exactly what git says of a path whose patterns stand in a .gitignore at the
// tree's top (gitignore(5), and `git check-ignore` where that leaves a question).
// It is pure, and no pattern makes it slow: matching one path takes time in
// proportion to the pattern's length times the path's, at most.
package ignore

import (
	"fmt"
	"strings"
)

// Limits of a list.
const (
	MaxPatterns = 10_000
	MaxBytes    = 64 << 10 // of all patterns together
)

// Matcher is a compiled list.
type Matcher struct {
	rules []rule
	// Most patterns are a name or *.suffix; those are found without looking at
	// each: the index of the last rule for a basename.
	names map[string]int
	other []int // indices of the rules that must be tried, ascending
}

// rule is one line.
type rule struct {
	pattern string
	negate  bool
	dirOnly bool
	anchor  bool // the pattern matches the whole path, not just the last name
	literal bool // no special characters
	never   bool
	prefix  string  // in front of the first special character
	tokens  []token // of the rest
}

// Compile takes patterns, each as one line of a .gitignore would be: comments,
// blanks and escapes mean there what they mean in a file. A line feed inside of a
// pattern begins another line. Nothing is a wrong pattern; what git cannot match
// matches nothing. The error says which limit the list is beyond.
func Compile(patterns []string) (*Matcher, error) {
	total := 0
	for _, p := range patterns {
		total += len(p)
	}
	if len(patterns) > MaxPatterns {
		return nil, fmt.Errorf("%d patterns are more than %d", len(patterns), MaxPatterns)
	}
	if total > MaxBytes {
		return nil, fmt.Errorf("%d bytes of patterns are more than %d", total, MaxBytes)
	}
	m := &Matcher{names: map[string]int{}}
	for i, p := range patterns {
		if i == 0 {
			p = strings.TrimPrefix(p, "\ufeff") // as at the beginning of a file
		}
		for line := range strings.SplitSeq(p, "\n") {
			m.add(line)
		}
	}
	return m, nil
}

func (m *Matcher) add(line string) {
	line, _, _ = strings.Cut(line, "\x00") // where git's strings end
	if strings.HasPrefix(line, "#") {
		return
	}
	line = trimBlanks(strings.TrimSuffix(line, "\r"))
	var r rule
	if rest, ok := strings.CutPrefix(line, "!"); ok {
		r.negate, line = true, rest
	}
	if line == "" {
		return
	}
	if n := len(line); line[n-1] == '/' {
		r.dirOnly, line = true, line[:n-1]
	}
	// A slash anywhere but at the end ties the pattern to the top.
	r.anchor = strings.Contains(line, "/")
	line = strings.TrimPrefix(line, "/")
	r.pattern = line
	first := strings.IndexAny(line, `*?[\`)
	if r.literal = first < 0; !r.literal {
		// Like git, which looks whether stars fill a name only behind the prefix:
		// fo**/x is fo followed by a true double star.
		var ok bool
		r.prefix = line[:first]
		r.tokens, ok = parse(line[first:])
		r.never = !ok
	}
	i := len(m.rules)
	m.rules = append(m.rules, r)
	if r.literal && !r.anchor && !r.dirOnly {
		m.names[line] = i
	} else {
		m.other = append(m.other, i)
	}
}

// trimBlanks takes blanks from the end, but for one that a backslash keeps.
func trimBlanks(s string) string {
	end := 0 // behind the last character that stays
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case ' ':
		case '\\':
			i++
			end = min(i+1, len(s))
		default:
			end = i + 1
		}
	}
	return s[:end]
}

// Match reports whether an entry is excluded. path is relative to the top, with
// no slash at its ends; its names may be any bytes. The caller goes top down and
// does not enter what is excluded.
func (m *Matcher) Match(path string, dir bool) bool {
	base := path[strings.LastIndexByte(path, '/')+1:]
	last, ok := m.names[base]
	if !ok {
		last = -1
	}
	for i := len(m.other) - 1; i >= 0 && m.other[i] > last; i-- {
		if m.rules[m.other[i]].match(path, base, dir) {
			last = m.other[i]
		}
	}
	return last >= 0 && !m.rules[last].negate
}

func (r *rule) match(path, base string, dir bool) bool {
	if r.dirOnly && !dir {
		return false
	}
	switch {
	case r.anchor && r.literal:
		return path == r.pattern
	case r.literal:
		return base == r.pattern
	case r.never:
		return false
	}
	text := base
	if r.anchor {
		text = path
	}
	text, ok := strings.CutPrefix(text, r.prefix)
	return ok && wild(r.tokens, text)
}
