package sanitize

import (
	"bytes"
	"strings"
	"testing"
)

func BenchmarkFeed(b *testing.B) {
	for _, c := range []struct{ name, line string }{
		{"plain80", strings.Repeat("the quick brown ", 5)[:78] + "\r\n"},
		{"yes", "y\r\n"},
		{"cjk", strings.Repeat("漢字", 13) + "\r\n"},
		{"accents", strings.Repeat("déjà vu, ", 8) + "\r\n"},
		{"colour", "\x1b[1;32mok\x1b[0m  pkg/name\x1b[2m (cached)\x1b[0m \x1b[38;5;208m12 ms\x1b[m\r\n"},
		{"progress", "\r\x1b[K 42% [=====>      ]"},
		{"title", "\x1b]0;user@host: /work/dir\a$ ls\r\n"},
		{"binary", "\xff\xe2\x82\x00\x01\x80\n"},
		{"longline", "xxxxxxxxxxxxxxxx"},
	} {
		b.Run(c.name, func(b *testing.B) {
			const piece = 4096 // what a PTY gives in one read
			text := bytes.Repeat([]byte(c.line), 1<<20/len(c.line))
			var s Sanitizer
			var out []byte
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				for p := text; len(p) > 0; {
					n := min(piece, len(p))
					out = s.Feed(out[:0], p[:n])
					p = p[n:]
				}
			}
		})
	}
}

// BenchmarkLine is one line of 100 MB.
func BenchmarkLine(b *testing.B) {
	piece := bytes.Repeat([]byte("x"), 4096)
	b.SetBytes(100e6)
	b.ReportAllocs()
	var out []byte
	for b.Loop() {
		var s Sanitizer
		for range 100_000_000 / len(piece) {
			out = s.Feed(out[:0], piece)
		}
		out = s.Close(out[:0])
	}
}

// BenchmarkQuiet is a slow writer: the line is shown after each byte.
func BenchmarkQuiet(b *testing.B) {
	const n = MaxLine
	b.SetBytes(n)
	b.ReportAllocs()
	var out []byte
	for b.Loop() {
		var s Sanitizer
		for range n {
			out = s.Feed(out[:0], []byte("x"))
			out = s.Quiet(out)
		}
	}
}
