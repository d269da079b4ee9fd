// Package output gives windows over a job's output file as text.
//
// The file is bytes, and grows while it is read; what clients get is text, in
// pages. The windows are made so that pages, put together, are the same text as
// the whole file at once, whatever their sizes: no page splits a character, and
// a byte that is not UTF-8 is one U+FFFD in whatever page it comes. Offsets
// count the file's bytes, not the text's, so that a page's end is the next
// page's beginning.
package output

import (
	"io"
	"unicode/utf8"
)

// Page is one window of an output file.
type Page struct {
	Text string // valid UTF-8; each byte that was not is one U+FFFD
	Next int64  // where the window ends, in bytes from the file's start
	More bool   // more text follows in the file as it is now
}

// Read gives the page of f that begins at off and has at most limit bytes, or
// one character if the first is longer; a limit below 1 counts as 1. The page's
// text is longer than its bytes where they are not UTF-8.
//
// The caller says how large the file is, and nothing beyond size is read. A page
// advances whenever off is below size, with one exception: unless final, which
// says that the file will not grow any more, the beginning of a character at the
// file's end is left for later, and does not count as More. So Next may be off
// and the text empty.
//
// An off inside a character is no error; the character's other bytes are then
// bad ones. At or beyond size the page is empty. A file that turns out shorter
// than size ends where it ends. Errors are those of f.ReadAt, and a negative off.
func Read(f io.ReaderAt, off, size int64, limit int, final bool) (Page, error) {
	// Beyond the limit there is the rest of a character that is longer, or the
	// bytes that tell whether one that begins within it is whole, and then as
	// many as tell whether more follows than the beginning of another.
	const ahead = 2*utf8.UTFMax - 1
	limit = max(limit, 1)
	w, err := read(f, off, min(size-off-ahead, int64(limit))+ahead)
	if err != nil {
		return Page{Next: off}, err
	}
	defer w.free()
	b := w.bytes
	if !final {
		b = b[:whole(b)]
	}
	n := len(b)
	if n > limit {
		n, _ = around(b, limit)
	}
	if n == 0 && len(b) > 0 {
		_, n = utf8.DecodeRune(b)
	}
	return Page{Text: text(b[:n]), Next: off + int64(n), More: n < len(b)}, nil
}

// Tail gives the page of f that ends at size and has at most limit bytes, less
// those at its beginning that are the end of a character. Bad bytes there are
// kept. It may be empty if the last character is longer than limit. More is
// always false. For size, final and errors see [Read]; Next is size, unless the
// beginning of a character is left for later or the file ends earlier.
func Tail(f io.ReaderAt, size int64, limit int, final bool) (Page, error) {
	start := max(size-int64(max(limit, 0)), 0)
	// A character reaches into the page from at most so far before it.
	from := max(start-(utf8.UTFMax-1), 0)
	w, err := read(f, from, size-from)
	if err != nil {
		return Page{Next: size}, err
	}
	defer w.free()
	b := w.bytes
	if !final {
		b = b[:whole(b)]
	}
	_, n := around(b, min(int(start-from), len(b)))
	return Page{Text: text(b[n:]), Next: from + int64(len(b))}, nil
}
