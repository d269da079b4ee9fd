package sanitize

import (
	"strings"
	"testing"
)

// quiet, in the inputs of these tests, stands for a call of Quiet. The byte is
// in no UTF-8.
const quiet = "\xf8"

// filter gives the output for in, fed in pieces of at most n bytes.
func filter(t *testing.T, in string, n int) string {
	t.Helper()
	var s Sanitizer
	var out []byte
	for i, part := range strings.Split(in, quiet) {
		if i > 0 {
			out = checkQuiet(t, &s, out)
		}
		for len(part) > 0 {
			m := min(n, len(part))
			out = s.Feed(out, []byte(part[:m]))
			part = part[m:]
		}
	}
	out = s.Close(out)
	if s.Pending() || len(s.Close(nil)) > 0 {
		t.Errorf("%.80q: something is left after Close", in)
	}
	return string(out)
}

// checkQuiet calls Quiet, and holds Pending to its word.
func checkQuiet(t *testing.T, s *Sanitizer, out []byte) []byte {
	t.Helper()
	was, pending := len(out), s.Pending()
	out = s.Quiet(out)
	if got := len(out) > was; got != pending {
		t.Errorf("Pending is %v, Quiet gave %q", pending, out[was:])
	}
	if s.Pending() || len(s.Quiet(nil)) > 0 {
		t.Errorf("a second Quiet has something to give")
	}
	return out
}

func TestFilter(t *testing.T) {
	for _, group := range []struct {
		name  string
		cases [][2]string
	}{
		{"line ends", [][2]string{
			{"", ""}, {"abc", "abc"}, {"abc\n", "abc\n"}, {"a\r\nb\r\n", "a\nb\n"},
			{"\n\n\n", "\n\n\n"}, {"\r\n\r\n", "\n\n"}, {"a\r\n\nb", "a\n\nb"},
			{" lead and trail \n", " lead and trail \n"}, {"a\r\r\nb\r\r\r\n", "a\nb\n"},
			{"a\n\rb\n\rc", "a\nb\nc"},
		}},
		{"tab", [][2]string{
			{"a\tb\t\tc\n", "a\tb\t\tc\n"}, {"\t\x1b[1m\tx\n", "\t\tx\n"},
		}},
		{"carriage return", [][2]string{
			{"10%\r20%\r100%\n", "100%\n"}, {"long line\rX\n", "X\n"}, {"a\nb\rc\nd\n", "a\nc\nd\n"},
			{"abc\r", "abc"}, {"abc\r\x1b[31m\n", "abc\n"}, {"abc\r\x1b[31mx", "x"}, {"abc\r\tx", "\tx"},
			{"abc\r\xff", "\ufffd"}, {"abc\ré", "é"}, {"abc\r\x00\a\n", "abc\n"}, {"\rabc\r\r", "abc"},
		}},
		{"erase in line", [][2]string{
			{"50%\x1b[K\r100%\x1b[K\r\n", "100%\n"}, {"x\r\x1b[2Kdone\n", "done\n"},
			{"abc\x1b[K\n", "abc\n"}, {"abc\x1b[0K\n", "abc\n"}, {"abc\r\x1b[K\n", "\n"}, {"abc\r\x1b[0K\n", "\n"},
			{"abc\x1b[1Kd\n", "d\n"}, {"abc\x1b[2Kd\n", "d\n"}, {"abc\x1b[?2Kd\n", "d\n"}, {"abc\r\x1b[?K\n", "\n"},
			{"abc\x1b[3K\n", "abc\n"}, {"abc\x1b[>2K\n", "abc\n"}, {"abc\x1b[2 K\n", "abc\n"},
			{"abc\x1b[2;0K\n", "\n"}, {"abc\x1b[;2K\n", "abc\n"}, {"abc\x1b[02K\n", "\n"},
			{"abc\x1b[99999999999999999999999999992K\n", "abc\n"}, {"abc\u009b2K\n", "\n"},
		}},
		{"backspace", [][2]string{
			{"abc\b\bX\n", "aX\n"}, {"é😀\bx\n", "éx\n"}, {"a\n\b\bb\n", "a\nb\n"}, {"\b\ba\n", "a\n"},
			{"abc\r\b\n", "abc\n"}, {"abc\b \bd\n", "abd\n"}, {"a\xff\b\n", "a\n"}, {"a\t\b\n", "a\n"},
		}},
		{"control sequences", [][2]string{
			{"a\x1b[31mred\x1b[0m\n", "ared\n"}, {"\x1b[2J\x1b[Hx\n", "x\n"},
			{"\x1b[?25l\x1b[?1049hx\x1b[?25h\n", "x\n"}, {"a\x1b[38;2;1;2;3mb\x1b[38:5:9mc\n", "abc\n"},
			{"a\x1b[>c\x1b[ qb\n", "ab\n"}, {"a\x1b[!pb\x1b[=1;1cb\n", "abb\n"},
			{"\x1b[31", ""}, {"a\x1b[", "a"}, {"a\x1b[m", "a"}, {"a\u009b31mb", "ab"},
			{"a\x1b[3\x1b[1mb", "ab"}, {"a\x1b[3\x18b", "ab"}, {"a\x1b[3\x1ab", "ab"},
			{"a\x1b[3\x7f1mb", "ab"}, {"a\x1b[3éb", "aéb"}, {"a\x1b[3\u009b1mb", "ab"}, {"a\x1b[\xffb", "a\ufffdb"},
		}},
		{"controls inside of sequences", [][2]string{
			{"a\x1b[3\n1mb", "a\nb"}, {"abc\x1b[3\r1mb", "b"}, {"ab\x1b[3\b1mc", "ac"}, {"a\x1b[3\t1mb", "a\tb"},
			{"a\x1b\n[1mb", "a\nb"}, {"a\x1b(\nBb", "a\nb"}, {"a\x1b[3\a1mb", "ab"},
		}},
		{"strings", [][2]string{
			{"a\x1b]0;title\ab\n", "ab\n"}, {"a\x1b]0;title\x1b\\b\n", "ab\n"}, {"\x1b]2;\ax\n", "x\n"},
			{"a\x1b]8;;http://x/y?z=1\x1b\\link\x1b]8;;\x1b\\b\n", "alinkb\n"},
			{"x\x1b]0;tïtle 😀\ay\n", "xy\n"}, {"a\x1bPq#0;2;0\x1b\\b\n", "ab\n"}, {"a\x1b_Gf=24;AAAA\x1b\\b\n", "ab\n"},
			{"a\x1b^private\x1b\\b\n", "ab\n"}, {"a\x1bXstring\x1b\\b\n", "ab\n"},
			{"a\x1bP\x1b\\b\x1b_\x1b\\c\n", "abc\n"}, {"a\x1bPx\ay\x1b\\b", "ab"}, {"a\x1bPx\ny\x1b\\b", "ab"},
			{"a\x1b]0;t\u009cb", "ab"}, {"a\x1bPt\u009cb", "ab"}, {"a\u009d0;t\u009cb\u0090t\ac\u009cd", "abd"},
			{"\u0098s\u009ca\u009es\u009cb\u009fs\u009cc", "abc"}, {"a\x1b]t\x18b\x1b]t\x1ac", "abc"},
			{"a\x1b]t\x1b[1mb", "ab"}, {"a\x1b]t\x1bPu\x1b\\b", "ab"}, {"a\x1b]never ends\n", "a"},
			{"a\x1b]\xdc\x9c\ab", "ab"}, {"a\x1b]\xc2\xc2\x9cb", "ab"}, {"a\x1b]\xc2\ab", "ab"}, {"a\x1bP\u0085\x9cb\x1b\\c", "ac"},
		}},
		{"escape sequences", [][2]string{
			{"a\x1b(Bb\x1b)0c\x1b*Ad\x1b+Be\n", "abcde\n"}, {"a\x1b=b\x1b>c\n", "abc\n"}, {"a\x1b7b\x1b8c\n", "abc\n"},
			{"a\x1bMb\x1bDc\n", "abc\n"}, {"a\x1b#8b\x1b%Gc\n", "abc\n"}, {"a\x1b", "a"}, {"a\x1b\x1b\x1bcb", "ab"},
			{"a\x1béb", "aéb"}, {"a\x1b( Bb", "ab"}, {"a\x1b$(Cb", "ab"},
		}},
		{"controls", [][2]string{
			{"a\x00b\n", "ab\n"}, {"a\ab\n", "ab\n"}, {"a\x0eb\x0fc\n", "abc\n"}, {"a\x05b\x06c\n", "abc\n"},
			{"a\u0085b\u0080c\n", "abc\n"}, {"a\vb\fc\x7fd\n", "abcd\n"}, {"a\x18b\x1ac", "abc"}, {"a\u009cb", "ab"},
		}},
		{"UTF-8", [][2]string{
			{"a\xffb\n", "a\ufffdb\n"}, {"\x80\n", "\ufffd\n"}, {"\xff\xfe\n", "\ufffd\ufffd\n"}, {"\xc0A\n", "\ufffdA\n"},
			{"ok é € 😀 \u200d\u0301\n", "ok é € 😀 \u200d\u0301\n"}, {"é€😀ÿ\u07ff\u0800\uffff\U00010000\U0010ffff", "é€😀ÿ\u07ff\u0800\uffff\U00010000\U0010ffff"},
			{"\xe2\x82", "\ufffd\ufffd"}, {"\xe2\x82A", "\ufffd\ufffdA"}, {"\xe2\x82\n", "\ufffd\ufffd\n"},
			{"\xe2\x82é", "\ufffd\ufffdé"}, {"\xf0\x9f\x98\xe2\x82\xac", "\ufffd\ufffd\ufffd€"}, {"\xed\xa0\x80", "\ufffd\ufffd\ufffd"},
			{"\xe0\x80", "\ufffd\ufffd"}, {"\xf4\x90", "\ufffd\ufffd"}, {"\x9b31m", "\ufffd31m"}, {"\ufffd", "\ufffd"},
		}},
		{"quiet", [][2]string{
			{"Name: " + quiet + "bob\r\nhello\r\n", "Name: bob\nhello\n"},
			{"prompt> " + quiet + "\rprompt> ls" + quiet + "\r\n", "prompt> ls\n"},
			{"prompt> " + quiet + "\r\x1b[Kprompt> ls\n", "prompt> ls\n"},
			{"10%" + quiet + "\r20%\r\n", "10%\n20%\n"}, {"10%\r" + quiet + "20%\r" + quiet + "\n", "10%\n20%\n"},
			{"10%" + quiet + "\r20%" + quiet + "\r30%", "10%\n20%\n30%"},
			{"abc" + quiet + "\b\n", "abc\nab\n"}, {"abc" + quiet + "\b" + quiet + "\n", "abc\nab\n"},
			{"abc" + quiet + "\b" + quiet + "cd" + quiet + "\n", "abcd\n"}, {"abc" + quiet + "\b", "abc\nab"},
			{"abc" + quiet + "\r\x1b[K\n", "abc\n"}, {"abc" + quiet + "\x1b[2K" + quiet, "abc"},
			{"abc" + quiet + "\bX" + quiet + "Y\n", "abc\nabX" + "Y\n"}, {"é" + quiet + "\bè\n", "é\nè\n"},
			{"abc" + quiet + "\r" + quiet + "\n", "abc\n"}, {"abc" + quiet + "\n" + quiet + "abc", "abc\nabc"},
			{"\xe2" + quiet + "\x82" + quiet + "\xac\n", "€\n"}, {"a\x1b[3" + quiet + "1mb", "ab"},
			{quiet + "a" + quiet + quiet, "a"}, {"a\n" + quiet + "\n", "a\n\n"},
		}},
	} {
		t.Run(group.name, func(t *testing.T) {
			for _, c := range group.cases {
				for _, n := range []int{1, 2, 3, len(c[0]) + 1} {
					if got := filter(t, c[0], n); got != c[1] {
						t.Errorf("%q in pieces of %d: got %q, want %q", c[0], n, got, c[1])
					}
				}
			}
		})
	}
}

func TestLongLine(t *testing.T) {
	full := strings.Repeat("x", MaxLine)
	wide := strings.Repeat("x", MaxLine-1)
	for name, c := range map[string][2]string{
		"held":                     {full + "\ry\n", "y\n"},
		"frozen":                   {full + "y\n", full + "y\n"},
		"restarted":                {full + "y\rz\n", full + "\nz\n"},
		"restarted and not ended":  {full + "y\rz", full + "\nz"},
		"cleared":                  {full + "y\x1b[2K\n", full + "\n"},
		"restarted in vain":        {full + "y\r\n", full + "y\n"},
		"frozen twice":             {full + full + "y\b\b\b\n", full + full + "\n"},
		"not cut inside":           {wide + "é\r\x1b[Kz\n", wide + "\nz\n"},
		"quiet":                    {full + "y" + quiet + "z\n", full + "yz\n"},
		"quiet, restarted":         {full + "y" + quiet + "\rz" + quiet + "\rzz\n", full + "y\nzz\n"},
		"quiet, changed":           {full + "yy" + quiet + "\bz\n", full + "yy\nyz\n"},
		"quiet, taken back":        {full + "yy" + quiet + "\b\b\n", full + "yy\n"},
		"shown, then overflowing":  {full + quiet + "y\n", full + "y\n"},
		"shown, then frozen anew":  {full + quiet + "\r" + wide + "é\n", full + "\n" + wide + "é\n"},
		"restarted before a quiet": {full + "y\r\x1b[K" + quiet + "z" + quiet + "z\n", full + "\nzz\n"},
		"whole line in one piece":  {full + full + "\n", full + full + "\n"},
	} {
		for _, n := range []int{1000, 4096, 1 << 20} {
			if got := filter(t, c[0], n); got != c[1] {
				t.Errorf("%s, in pieces of %d: got %d bytes ending in %q, want %d ending in %q",
					name, n, len(got), got[max(0, len(got)-20):], len(c[1]), c[1][max(0, len(c[1])-20):])
			}
		}
	}
}

// TestReadyAgain checks that Close forgets all of a stream.
func TestReadyAgain(t *testing.T) {
	full := strings.Repeat("x", MaxLine+1)
	for _, rest := range []string{"\x1b[3", "\x1b]0;", "\xe2\x82", "abc\r", full, full + "\ry", "\x1b(", "\x1b]\xc2"} {
		var s Sanitizer
		s.Feed(nil, []byte(rest))
		s.Quiet(nil)
		s.Close(nil)
		if got := string(s.Close(s.Feed(nil, []byte("1m\x82b")))); got != "1m\ufffdb" {
			t.Errorf("after %.20q: got %q", rest, got)
		}
	}
}

func TestAllocations(t *testing.T) {
	in := []byte("plain\r\n\x1b[32mgreen\x1b[0m é\r\nprogress 1\rprogress 2\r\nprompt> ")
	var s Sanitizer
	out := make([]byte, 0, 1024)
	if n := testing.AllocsPerRun(100, func() {
		out = s.Feed(out[:0], in)
		out = s.Quiet(out)
		out = s.Feed(out, []byte("\n"))
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestGrowing(t *testing.T) {
	for _, c := range []struct {
		in   string
		want bool
	}{
		{"", true}, {"...", true}, {"a\x1b[1mb", true}, {"a\r", false}, {"a\rb", false}, {"ab\b", false}, {"a\x1b[2Kb", false},
		{"a\rb\nc", true}, {"\b", true}, {"\ra", true},
	} {
		var s Sanitizer
		s.Feed(nil, []byte(c.in))
		if got := s.Growing(); got != c.want {
			t.Errorf("%q: %v", c.in, got)
		}
	}
}
