package sanitize

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"
)

// long are bytes that in the fuzz tests' inputs stand for a great deal of text,
// so that the fuzzer comes to lines longer than [MaxLine]. They are in no UTF-8;
// 0xff remains for that.
var long = strings.NewReplacer(
	"\xfc", strings.Repeat("x", 30_000),
	"\xfd", strings.Repeat("é", 16_000),
	"\xfe", strings.Repeat("y", MaxLine-30_001),
)

// FuzzFilter compares with the model. A byte of cuts is the length of a piece,
// times two, plus one if Quiet is called after it.
func FuzzFilter(f *testing.F) {
	for _, in := range []string{
		"Name: bob\r\nhello\r\n",
		"10%\r20%\r\x1b[K100%\x1b[2K\n",
		"a\x1b[38;2;1;2;3mb\x1b]0;tïtle\a\x1bPq\x1b\\c\x1b(B\u009b1K\u009dt\u009cd\b\b\r\n",
		"é€😀\xe2\x82\xff\xf0\x9f\x98\r\r\n\xc2",
		"prompt> l\bls\r\x1b[Kprompt> ls -l\b\b\b\r\n",
		"\xfc\xfd\ry\b\b\n", "\xfc\xfex\xe9\r\x1b[Kz\xfc\xfc\xfd\bq\n", "\xfd\xfd\xfd\xfd\xfd\r\xfd\xfd\xfd\xfd\xff",
	} {
		f.Add([]byte(in), []byte{})
		f.Add([]byte(in), []byte{3})
		f.Add([]byte(in), []byte{2})
		f.Add([]byte(in), []byte{9, 4, 13, 255, 6})
	}
	f.Fuzz(func(t *testing.T, in, cuts []byte) {
		if len(in) > 1000 || len(cuts) > 32 {
			return
		}
		in = []byte(long.Replace(string(in)))
		if len(in) > 4*MaxLine {
			return
		}
		var s Sanitizer
		var out []byte
		m := model{in: in}
		for i, at := 0, 0; at < len(in); i++ {
			n, quiet := len(in), false
			if len(cuts) > 0 {
				cut := cuts[i%len(cuts)]
				n, quiet = int(cut/2), cut%2 == 1
				if i >= len(cuts) { // The same over again, but soon in bigger pieces.
					n *= i * i
				}
			}
			n = min(max(n, 1), len(in)-at)
			out = s.Feed(out, in[at:at+n])
			at += n
			if quiet {
				out = checkQuiet(t, &s, out)
				m.run(at, false)
				m.quiet()
			}
		}
		out = s.Close(out)
		m.run(len(in), true)
		m.settle()
		if want := m.out.String(); string(out) != want {
			t.Fatalf("%d bytes %.200q, cuts %v\n got %d bytes %.200q\nwant %d bytes %.200q", len(in), in, cuts, len(out), out, len(want), want)
		}
		checkText(t, out)
	})
}

// checkText checks what is promised of any output.
func checkText(t *testing.T, out []byte) {
	t.Helper()
	if !utf8.Valid(out) {
		t.Fatalf("output is not UTF-8: %.200q", out)
	}
	if i := bytes.IndexFunc(out, func(r rune) bool {
		return r < ' ' && r != '\n' && r != '\t' || r == 0x7f || isC1(r)
	}); i >= 0 {
		t.Fatalf("output has a control at %d: %.200q", i, out[i:])
	}
}

// FuzzSplit checks that the cuts of the input do not matter, without Quiet.
func FuzzSplit(f *testing.F) {
	f.Add([]byte("a\x1b[31mr\x1b[0m\x1b]0;title\ab\x1b]2;x\x1b\\c\x1b[?2004hd\r\nnext\r\n"), 1)
	f.Add([]byte("é€\r😀\b\xe2\x82\u009b2K\u009dx\u009c\r\r\n"), 1)
	f.Add([]byte("10%\r20%\x1b[3\n4m\r\n"), 3)
	f.Fuzz(func(t *testing.T, in []byte, n int) {
		var whole, parts Sanitizer
		want := whole.Close(whole.Feed(nil, in))
		var got []byte
		for p := in; len(p) > 0; {
			m := min(max(n, 1), len(p))
			got = parts.Feed(got, p[:m])
			p = p[m:]
		}
		got = parts.Close(got)
		if !bytes.Equal(got, want) {
			t.Fatalf("%q in pieces of %d: got %q, whole %q", in, n, got, want)
		}
		checkText(t, got)
	})
}
