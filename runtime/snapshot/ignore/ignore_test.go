package ignore

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// tree is a list of entries; directories end with a slash.
type tree []string

// alphabet of names and patterns: few letters, so that they meet.
const letters = "aab.-]ü"

func randomName(r *rand.Rand) string {
	runes := []rune(letters)
	b := []rune{}
	for range 1 + r.IntN(3) {
		b = append(b, runes[r.IntN(len(runes))])
	}
	switch r.IntN(30) {
	case 0:
		return "#" + string(b)
	case 1:
		return "!" + string(b)
	case 2:
		return string(b) + " "
	case 3:
		return `\` + string(b)
	case 4:
		return "*" + string(b)
	case 5:
		return "[" + string(b)
	case 6:
		return "\xff" + string(b)
	}
	if s := string(b); s != "." && s != ".." {
		return s
	}
	return "x"
}

func randomTree(r *rand.Rand) tree {
	var t tree
	seen := map[string]bool{}
	var fill func(at string, depth int)
	fill = func(at string, depth int) {
		for range 2 + r.IntN(5) {
			n := at + randomName(r)
			if seen[n] {
				continue
			}
			seen[n] = true
			if depth < 4 && r.IntN(2) == 0 {
				t = append(t, n+"/")
				fill(n+"/", depth+1)
			} else {
				t = append(t, n)
			}
		}
	}
	fill("", 0)
	return t
}

func randomPattern(r *rand.Rand) string {
	pieces := []string{"a", "b", "ab", ".", "-", "]", "ü", "*", "*", "**", "/", "/", "**/", "/**", "/**/", "?", "[ab]", "[!a]", "[^b]", "[a-b]", "[]a]", "[]-a]", "[a",
		"[[:alpha:]]", "[[:punct:]-]", "[[:nope:]]", "[[:alpha]", "[[:]", "[\\]a]", "[a-\\b]", "[b-a]", "[-a]", "[a-]", "[!]", `\a`, `\*`, `\`, " ", `\ `, "#", "!", "***", "aa", "\xff", "\r"}
	var b strings.Builder
	if r.IntN(5) == 0 {
		b.WriteString("!")
	}
	for range r.IntN(6) + r.IntN(2) {
		b.WriteString(pieces[r.IntN(len(pieces))])
	}
	if r.IntN(5) == 0 {
		b.WriteString("/")
	}
	return b.String()
}

func randomList(r *rand.Rand) []string {
	list := make([]string, 1+r.IntN(6))
	for i := range list {
		list[i] = randomPattern(r)
	}
	return list
}

// repository is a directory in which git is asked.
type repository struct{ dir string }

func newRepository(t testing.TB, entries tree) repository {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.Command("git", "init", "-q", dir).CombinedOutput(); err != nil {
		t.Fatalf("git init: %v: %s", err, out)
	}
	for _, e := range entries {
		path := filepath.Join(dir, e)
		var err error
		if strings.HasSuffix(e, "/") {
			err = os.MkdirAll(path, 0o755)
		} else {
			err = os.WriteFile(path, nil, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return repository{dir}
}

// excluded asks git for each entry. It gives what decides an entry itself: a
// pattern that matches the entry or a directory above, the last word of which is
// the nearest; since a walk goes top down, entries in excluded directories are
// left out on both sides.
func (g repository) excluded(t testing.TB, list []string, entries tree) map[string]bool {
	t.Helper()
	if err := os.WriteFile(filepath.Join(g.dir, ".git/info/exclude"), []byte(strings.Join(list, "\n")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	var in bytes.Buffer
	for _, e := range entries {
		in.WriteString(strings.TrimSuffix(e, "/") + "\x00")
	}
	cmd := exec.Command("git", "-c", "core.excludesFile=/dev/null", "check-ignore", "--no-index", "--stdin", "-z", "-v", "-n")
	cmd.Dir, cmd.Stdin = g.dir, &in
	out, err := cmd.Output()
	if ee, ok := err.(*exec.ExitError); err != nil && (!ok || ee.ExitCode() != 1) {
		t.Fatalf("git check-ignore: %v", err)
	}
	f := bytes.Split(out, []byte{0})
	got := map[string]bool{}
	for i := 0; i+3 < len(f); i += 4 {
		// source, line, pattern, path; a pattern that negates is told as well
		got[string(f[i+3])] = len(f[i+2]) > 0 && f[i+2][0] != '!'
	}
	return got
}

// walk gives what Match excludes, top down.
func walk(m *Matcher, entries tree) map[string]bool {
	got := map[string]bool{}
	for _, e := range entries {
		path, dir := strings.CutSuffix(e, "/")
		up := ""
		for i := range len(path) {
			if path[i] == '/' && got[path[:i]] {
				up = path[:i]
				break
			}
		}
		got[path] = up != "" || m.Match(path, dir)
	}
	return got
}

// The answers are git's, for random lists over random trees. DIFYRT_IGNORE_LISTS
// makes more of them.
func TestAgainstGit(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Fatal("git is missing")
	}
	lists := 2000
	if n, err := strconv.Atoi(os.Getenv("DIFYRT_IGNORE_LISTS")); err == nil {
		lists = n
	}
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	const perTree = 100
	wrong := 0
	for n := 0; n < lists && wrong < 10; n += perTree {
		entries := randomTree(r)
		g := newRepository(t, entries)
		for range perTree {
			list := randomList(r)
			m, err := Compile(list)
			if err != nil {
				t.Fatal(err)
			}
			want, got := g.excluded(t, list, entries), walk(m, entries)
			for _, e := range entries {
				if p := strings.TrimSuffix(e, "/"); want[p] != got[p] {
					t.Errorf("seed %d: %q on %q: git says %v, we say %v", seed, list, e, want[p], got[p])
					wrong++
				}
			}
		}
	}
}

func TestLimits(t *testing.T) {
	for _, c := range []struct {
		list []string
		ok   bool
	}{
		{slices.Repeat([]string{"a"}, MaxPatterns), true},
		{slices.Repeat([]string{""}, MaxPatterns+1), false},
		{[]string{strings.Repeat("a", MaxBytes)}, true},
		{[]string{strings.Repeat("a", MaxBytes), "b"}, false},
	} {
		if _, err := Compile(c.list); (err == nil) != c.ok {
			t.Errorf("%d patterns: %v", len(c.list), err)
		}
	}
}

func TestLinesAndNUL(t *testing.T) {
	for _, c := range []struct {
		list []string
		path string
		dir  bool
		want bool
	}{
		{[]string{"a\nb"}, "b", false, true},
		{[]string{"a\r\nb"}, "a", false, true},
		{[]string{"a\x00b"}, "a", false, true},
		{[]string{"\ufeffa"}, "a", false, true},
		{[]string{"x", "\ufeffa"}, "a", false, false},
		{nil, "a", false, false},
		{[]string{"fo**/baz"}, "foo/bar/baz", false, true}, // git's reading
		{[]string{"dir/**"}, "dir", true, false},
		{[]string{"a/"}, "a", false, false},
	} {
		m, err := Compile(c.list)
		if err != nil || m.Match(c.path, c.dir) != c.want {
			t.Errorf("%q on %q: want %v, %v", c.list, c.path, c.want, err)
		}
	}
}

func FuzzMatch(f *testing.F) {
	f.Add("*a*a*a*a*b", strings.Repeat("a", 100))
	f.Add("**/a/**/[[:alpha:]]", "a/a/a")
	f.Add("[]-a]\\", "]")
	f.Fuzz(func(t *testing.T, list, path string) {
		m, err := Compile(strings.Split(list, "\x01"))
		if err != nil {
			return
		}
		for _, dir := range []bool{true, false} {
			// A list that is followed by everything's negation excludes nothing.
			m.Match(path, dir)
			all, err := Compile(append(strings.Split(list, "\x01"), "*", "!*"))
			if err == nil && all.Match(path, dir) {
				t.Errorf("%q on %q: the last pattern does not win", list, path)
			}
		}
	})
}

// Patterns that make a matcher with backtracking try for ages, and lists as long
// as may be.
func BenchmarkMatch(b *testing.B) {
	long := strings.Repeat("a", 200)
	for name, c := range map[string]struct {
		list []string
		path string
	}{
		"stars":        {[]string{strings.Repeat("*a", 100) + "b"}, long},
		"double-stars": {[]string{strings.Repeat("**/a/", 50) + "b"}, strings.Repeat("a/", 200) + "a"},
		"usual":        {[]string{"*.log", "node_modules/", "/build", ".cache", "*.py[co]", "!keep.log"}, "src/pkg/module/file.go"},
		"10000-names":  {names(MaxPatterns, "%d"), "src/pkg/12x"},
		"10000-stars":  {names(MaxPatterns, "*%d"), "src/pkg/12x"},
	} {
		b.Run(name, func(b *testing.B) {
			m, err := Compile(c.list)
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				m.Match(c.path, false)
			}
		})
	}
}

func names(n int, format string) (list []string) {
	for i := range n {
		list = append(list, fmt.Sprintf(format, i))
	}
	return list
}
