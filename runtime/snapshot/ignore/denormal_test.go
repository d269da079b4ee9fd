package ignore

import (
	"math/rand/v2"
	"strings"
	"testing"

	gitignore "github.com/denormal/go-gitignore"
)

// A second opinion. That library differs from git in ways which are known, and
// lists that show one of them are not compared.
func TestAgainstDenormal(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 1))
	compared, differ := 0, 0
	for compared < 5000 {
		list := randomList(r)
		if strings.ContainsFunc(strings.Join(list, ""), func(c rune) bool { return c >= 0x80 || strings.ContainsRune(unlike, c) }) || known(list) {
			continue
		}
		m, err := Compile(list)
		if err != nil {
			t.Fatal(err)
		}
		g := gitignore.New(strings.NewReader(strings.Join(list, "\n")+"\n"), "/top", nil)
		for _, e := range []string{"a", "b", "ab", "aa", "a/b", "a/ab", "ab/a", "b/a/ab", ".", "-", "a.b"} {
			for _, dir := range []bool{false, true} {
				theirs := false
				if match := g.Relative(e, dir); match != nil {
					theirs = match.Ignore()
				}
				compared++
				if ours := m.Match(e, dir); ours != theirs && !inside(m, e) {
					differ++
					if differ < 10 {
						t.Errorf("seed %d: %q on %q, directory %v: denormal %v, ours %v", seed, list, e, dir, theirs, ours)
					}
				}
			}
		}
	}
}

// unlike are characters that it treats otherwise than git: classes and escapes
// go to another matcher, and ends of lines are trimmed in another way.
const unlike = `[]\?! #` + "\r"

// known tells lists with patterns on which it is wrong: the lone slash, at which
// it panics; an anchored pattern with a star, which it lets match in directories
// below; double stars that do not fill a name; and many stars, for which it takes
// exponential time.
func known(list []string) bool {
	for _, p := range list {
		switch {
		case strings.Trim(p, "/") == "" && p != "", strings.Contains(p, "//"), strings.Contains(p, "**"),
			strings.Count(p, "*") > 2, strings.Contains(p, "/") && strings.Contains(p, "*"):
			return true
		}
	}
	return false
}

// inside reports an entry whose directory is excluded: a walk does not come there,
// and the two do not agree on what is to be said of it.
func inside(m *Matcher, path string) bool {
	for i := range len(path) {
		if path[i] == '/' && m.Match(path[:i], true) {
			return true
		}
	}
	return false
}

// The differences are real: this is why it does not decide what a client's
// request excludes.
func TestDenormalIsWrong(t *testing.T) {
	say := func(pattern, path string) (ignored bool, failed any) {
		defer func() { failed = recover() }()
		match := gitignore.New(strings.NewReader(pattern+"\n"), "/top", nil).Relative(path, false)
		return match != nil && match.Ignore(), nil
	}
	m, _ := Compile([]string{"/*.log"})
	if ignored, _ := say("/*.log", "sub/x.log"); !ignored || m.Match("sub/x.log", false) {
		t.Errorf("an anchored pattern in a directory below: %v, ours %v", ignored, m.Match("sub/x.log", false))
	}
	if _, failed := say("/", "a"); failed == nil {
		t.Error("the lone slash does not make it panic any more")
	}
}
