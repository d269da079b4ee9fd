package output

import (
	"bytes"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// plain is what all pages together must say: text, in the simplest way.
func plain(b []byte) string {
	return string([]rune(string(b)))
}

// file is an output file that checks how it is read.
type file struct {
	t     *testing.T
	data  []byte
	size  int64 // nothing beyond it may be asked for
	limit int   // at most 7 bytes more may be asked for
	reads int
}

func (f *file) ReadAt(p []byte, off int64) (int, error) {
	if f.reads++; f.reads > 1 {
		f.t.Errorf("more than one read for one page")
	}
	if off+int64(len(p)) > f.size || len(p)-7 > f.limit {
		f.t.Errorf("read of %d bytes at %d, size %d, limit %d", len(p), off, f.size, f.limit)
	}
	return bytes.NewReader(f.data).ReadAt(p, off)
}

// page reads a page, and checks what holds of every page.
func page(t *testing.T, data []byte, off int64, limit int, final bool) Page {
	t.Helper()
	size := int64(len(data))
	p, err := Read(&file{t: t, data: data, size: size, limit: max(limit, 1)}, off, size, limit, final)
	if err != nil {
		t.Fatal(err)
	}
	rest := data[off:]
	_, first := utf8.DecodeRune(rest)
	held := !final && p.Next < size && !utf8.FullRune(data[p.Next:])
	switch n := p.Next - off; {
	case n < 0 || p.Next > size:
		t.Fatalf("%q at %d, limit %d: next is %d", data, off, limit, p.Next)
	case n > int64(max(limit, first)):
		t.Fatalf("%q at %d, limit %d: page of %d bytes", data, off, limit, n)
	case n == 0 && off < size && !held:
		t.Fatalf("%q at %d, limit %d: no advance", data, off, limit)
	case p.More != (p.Next < size && !held):
		t.Fatalf("%q at %d, limit %d, final %v: more is %v at %d", data, off, limit, final, p.More, p.Next)
	case p.Text != plain(rest[:n]):
		t.Fatalf("%q at %d, limit %d: text %q for %d bytes", data, off, limit, p.Text, n)
	}
	return p
}

// pages puts all pages together.
func pages(t *testing.T, data []byte, limit int) string {
	t.Helper()
	var text strings.Builder
	for off, more := int64(0), true; more; {
		p := page(t, data, off, limit, true)
		text.WriteString(p.Text)
		off, more = p.Next, p.More
	}
	return text.String()
}

var samples = []string{
	"", "a", "line\n", "aé€😀b߿ࠀ￿𐀀cé€😀😀€éd€€€éé😀e\n", "\ufffd\ufffd",
	"ab\xff\xfe\x80cd\xc0\n\xffe\xf5\xf5\xf5f\n\x80",
	"\xe2\x82", "\xe2\x82\xe2\x82\xac\xe2", "\xf0\x9f\x98", "\xf0\x9f\x98\xf0\x9f\x98\x80\xf0\x9f\x98",
	"\x80\x80\x80\x80\x80\x80\x80\x80", "😀\x80\x80\x80\x80", "\xed\xa0\x80\xe0\x80\x80\xf4\x90\x80\x80", "é\xc3",
}

func TestPagesAreTheWhole(t *testing.T) {
	for _, s := range samples {
		for limit := range 24 {
			if got, want := pages(t, []byte(s), limit+1), plain([]byte(s)); got != want {
				t.Errorf("%q, limit %d: got %q, want %q", s, limit+1, got, want)
			}
		}
	}
}

func TestRead(t *testing.T) {
	for _, c := range []struct {
		data  string
		off   int64
		limit int
		final bool
		want  Page
	}{
		{"123456789\n", 0, 9, false, Page{"123456789", 9, true}},
		{"123456789\n", 0, 10, false, Page{"123456789\n", 10, false}},
		{"123456789\n", 0, 11, false, Page{"123456789\n", 10, false}},
		{"123456789\n", 0, 1, false, Page{"1", 1, true}},
		{"123456789\n", 0, math.MaxInt, false, Page{"123456789\n", 10, false}},
		{"123456789\n", 10, 5, true, Page{"", 10, false}},
		{"123456789\n", 99, 5, true, Page{"", 99, false}},
		{"123456789\n", 8, 0, true, Page{"9", 9, true}},
		{"123456789\n", 8, -5, true, Page{"9", 9, true}},
		// The first character whole, the last not cut.
		{"😀😀", 0, 1, true, Page{"😀", 4, true}},
		{"😀😀", 0, 7, true, Page{"😀", 4, true}},
		{"a😀", 0, 4, true, Page{"a", 1, true}},
		// Inside a character.
		{"😀a", 2, 9, true, Page{"\ufffd\ufffda", 5, false}},
		// The beginning of a character at the file's end.
		{"a\xf0\x9f\x98", 0, 9, false, Page{"a", 1, false}},
		{"a\xf0\x9f\x98", 0, 1, false, Page{"a", 1, false}},
		{"a\xf0\x9f\x98", 0, 2, false, Page{"a", 1, false}},
		{"a\xf0\x9f\x98", 1, 2, false, Page{"", 1, false}},
		{"a\xf0\x9f\x98", 0, 9, true, Page{"a\ufffd\ufffd\ufffd", 4, false}},
		{"a\xf0\x9f\x98", 0, 2, true, Page{"a\ufffd", 2, true}},
		{"😀\xf0\x9f\x98", 0, 1, false, Page{"😀", 4, false}},
		{"😀\xf0\x9f\x98", 0, 1, true, Page{"😀", 4, true}},
		{"😀\xf0\x9f\x98\x80", 0, 1, false, Page{"😀", 4, true}},
		// One that cannot become whole is not waited for.
		{"\xe0\x80", 0, 9, false, Page{"\ufffd\ufffd", 2, false}},
		{"\xff", 0, 9, false, Page{"\ufffd", 1, false}},
	} {
		size := int64(len(c.data))
		got, err := Read(&file{t: t, data: []byte(c.data), size: size, limit: max(c.limit, 1)}, c.off, size, c.limit, c.final)
		if err != nil || got != c.want {
			t.Errorf("Read(%q, %d, limit %d, final %v) = %+v, %v, want %+v", c.data, c.off, c.limit, c.final, got, err, c.want)
		}
	}
}

func TestTail(t *testing.T) {
	const s = "aé€😀bé€😀"
	for n := range len(s) + 3 {
		want := s
		for len(want) > n {
			_, size := utf8.DecodeRuneInString(want)
			want = want[size:]
		}
		got, err := Tail(&file{t: t, data: []byte(s), size: int64(len(s)), limit: n}, int64(len(s)), n, true)
		if err != nil || got != (Page{Text: want, Next: int64(len(s))}) {
			t.Errorf("tail %d: %+v, %v, want %q", n, got, err, want)
		}
	}
	for _, c := range []struct {
		data  string
		limit int
		final bool
		want  Page
	}{
		{"", 5, true, Page{"", 0, false}},
		{"line1\nline2\n", 6, true, Page{"line2\n", 12, false}},
		{"line1\nline2\n", 8, true, Page{"1\nline2\n", 12, false}},
		{"line1\nline2\n", 0, true, Page{"", 12, false}},
		{"line1\nline2\n", -1, true, Page{"", 12, false}},
		{"line1\nline2\n", math.MaxInt, true, Page{"line1\nline2\n", 12, false}},
		{"a\x80\x80\x80\x80", 3, true, Page{"\ufffd\ufffd\ufffd", 5, false}},
		{"😀\x80\x80", 3, true, Page{"\ufffd\ufffd", 6, false}},
		{"\xf0\x9f\x98b", 2, true, Page{"\ufffdb", 4, false}},
		{"ab\xf0\x9f\x98", 4, false, Page{"b", 2, false}},
		{"ab\xf0\x9f\x98", 2, false, Page{"", 2, false}},
		{"ab\xf0\x9f\x98", 2, true, Page{"\ufffd\ufffd", 5, false}},
	} {
		size := int64(len(c.data))
		got, err := Tail(&file{t: t, data: []byte(c.data), size: size, limit: max(c.limit, 0)}, size, c.limit, c.final)
		if err != nil || got != c.want {
			t.Errorf("Tail(%q, limit %d, final %v) = %+v, %v, want %+v", c.data, c.limit, c.final, got, err, c.want)
		}
	}
}

// TestFile reads a real file, which was truncated to less than the caller knows.
func TestFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "output")
	if err := os.WriteFile(name, []byte("short\xf0\x9f"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, c := range []struct {
		off   int64
		final bool
		want  Page
	}{
		{0, true, Page{"short\ufffd\ufffd", 7, false}},
		{0, false, Page{"short", 5, false}},
		{5, false, Page{"", 5, false}},
		{7, true, Page{"", 7, false}},
		{50, true, Page{"", 50, false}},
	} {
		if got, err := Read(f, c.off, 1000, 100, c.final); err != nil || got != c.want {
			t.Errorf("Read at %d, final %v: %+v, %v, want %+v", c.off, c.final, got, err, c.want)
		}
	}
	if got, err := Tail(f, 10, 6, true); err != nil || got != (Page{"t\ufffd\ufffd", 7, false}) {
		t.Errorf("Tail: %+v, %v", got, err)
	}
	if got, err := Tail(f, 1000, 6, true); err != nil || got.Text != "" {
		t.Errorf("Tail beyond the end: %+v, %v", got, err)
	}
}

type broken struct{}

func (broken) ReadAt([]byte, int64) (int, error) { return 1, io.ErrClosedPipe }

func TestErrors(t *testing.T) {
	if _, err := Read(broken{}, 0, 10, 10, true); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("Read: %v", err)
	}
	if _, err := Tail(broken{}, 10, 10, true); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("Tail: %v", err)
	}
	if _, err := Read(broken{}, -1, 10, 10, true); err == nil {
		t.Error("no error for a negative offset")
	}
}

// FuzzPages puts pages of one file together, each with a limit of its own.
func FuzzPages(f *testing.F) {
	for _, s := range samples {
		f.Add([]byte(s), []byte{1, 3})
	}
	f.Fuzz(func(t *testing.T, data, limits []byte) {
		if len(limits) == 0 {
			limits = []byte{1}
		}
		var text strings.Builder
		for i, off, more := 0, int64(0), true; more; i++ {
			p := page(t, data, off, int(limits[i%len(limits)]), true)
			text.WriteString(p.Text)
			off, more = p.Next, p.More
		}
		if got, want := text.String(), plain(data); got != want {
			t.Fatalf("%q, limits %v: got %q, want %q", data, limits, got, want)
		}
	})
}

// FuzzGrowing reads a file while it grows, and after that to its end.
func FuzzGrowing(f *testing.F) {
	for _, s := range samples {
		f.Add([]byte(s), 1, 2)
		f.Add([]byte(s), 3, 1)
	}
	f.Fuzz(func(t *testing.T, data []byte, step, limit int) {
		step, limit = max(step, 1), max(limit, 1)
		var text strings.Builder
		off := int64(0)
		for size := 0; size < len(data); {
			size += min(step, len(data)-size)
			for more := true; more; {
				p := page(t, data[:size], off, limit, false)
				text.WriteString(p.Text)
				off, more = p.Next, p.More
			}
		}
		for more := true; more; {
			p := page(t, data, off, limit, true)
			text.WriteString(p.Text)
			off, more = p.Next, p.More
		}
		if got, want := text.String(), plain(data); got != want {
			t.Fatalf("%q, step %d, limit %d: got %q, want %q", data, step, limit, got, want)
		}
	})
}

// FuzzTail compares with the characters of the whole file.
func FuzzTail(f *testing.F) {
	for _, s := range samples {
		f.Add([]byte(s), 1, true)
		f.Add([]byte(s), 4, false)
	}
	f.Fuzz(func(t *testing.T, data []byte, limit int, final bool) {
		limit = max(limit, 0)
		size := int64(len(data))
		got, err := Tail(&file{t: t, data: data, size: size, limit: limit}, size, limit, final)
		if err != nil {
			t.Fatal(err)
		}
		at, end := 0, 0 // what is skipped, and where the whole characters end
		for end < len(data) && (final || utf8.FullRune(data[end:])) {
			_, n := utf8.DecodeRune(data[end:])
			if end += n; end-n < len(data)-limit {
				at = end
			}
		}
		if want := (Page{Text: plain(data[at:end]), Next: int64(end)}); got != want {
			t.Fatalf("%q, limit %d, final %v: got %+v, want %+v", data, limit, final, got, want)
		}
	})
}

func BenchmarkRead(b *testing.B) {
	for name, piece := range map[string]string{
		"ascii": "the quick brown fox jumps over it\n", "cjk": "漢字かな交じり文\n", "bad": "bad \xff bytes \xc3 here\n", "hostile": "\xe2\x82",
	} {
		for _, limit := range []int{16 << 10, 512 << 10} {
			b.Run(name+map[bool]string{true: "/16K", false: "/512K"}[limit < 1<<19], func(b *testing.B) {
				f := bytes.NewReader(bytes.Repeat([]byte(piece), 1<<20/len(piece)))
				b.SetBytes(int64(limit))
				b.ReportAllocs()
				for b.Loop() {
					if _, err := Read(f, 0, f.Size(), limit, false); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
