package snapshot

import (
	"fmt"
	"strconv"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// header is one entry of a tar as save writes it.
type header struct {
	name   string // ends with a slash for a directory
	kind   byte   // the type flag
	mode   uint32 // permission bits
	size   int64
	mtime  unix.Timespec
	link   string
	xattrs []xattr
}

// xattr is one extended attribute.
type xattr struct{ name, value string }

// Type flags (pax(1), ustar Header Block).
const (
	kindFile    = '0'
	kindLink    = '1'
	kindSymlink = '2'
	kindDir     = '5'
	kindPAX     = 'x'
)

const (
	blockSize = 512
	nameField = 100
	maxOctal  = 1<<33 - 1 // of size and mtime: eleven digits
)

// append adds the entry's blocks: the PAX records, where there are any, and the
// ustar header.
func (h *header) append(b []byte) []byte {
	if pax := h.records(); len(pax) > 0 {
		x := header{name: "PaxHeaders/entry", kind: kindPAX, mode: 0o644, size: int64(len(pax))}
		b = x.block(b)
		b = append(b, pax...)
		b = pad(b, len(pax))
	}
	return h.block(b)
}

// pad adds what is missing to whole blocks behind n bytes.
func pad(b []byte, n int) []byte {
	var zero [blockSize]byte
	return append(b, zero[:-n&(blockSize-1)]...)
}

// records are what the ustar header cannot hold.
func (h *header) records() (b []byte) {
	raw := false
	text := func(key, value string) {
		if narrow(value) {
			return
		}
		raw = raw || !utf8.ValidString(value)
		b = appendRecord(b, key, value)
	}
	text("path", h.name)
	text("linkpath", h.link)
	if raw { // names are bytes, and not to be converted
		b = append(appendRecord(nil, "hdrcharset", "BINARY"), b...)
	}
	if h.size > maxOctal {
		b = appendRecord(b, "size", strconv.FormatInt(h.size, 10))
	}
	if h.mtime.Nsec != 0 || h.mtime.Sec < 0 || h.mtime.Sec > maxOctal {
		b = appendRecord(b, "mtime", decimal(h.mtime))
	}
	for _, x := range h.xattrs {
		b = appendRecord(b, "SCHILY.xattr."+x.name, x.value)
	}
	return b
}

// narrow reports whether the ustar header can hold a name.
func narrow(s string) bool {
	if len(s) > nameField {
		return false
	}
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// appendRecord adds "LENGTH KEY=VALUE\n"; the length counts itself.
func appendRecord(b []byte, key, value string) []byte {
	rest := len(key) + len(value) + 3
	n := rest + len(strconv.Itoa(rest))
	n = rest + len(strconv.Itoa(n))
	b = strconv.AppendInt(b, int64(n), 10)
	b = append(b, ' ')
	b = append(b, key...)
	b = append(b, '=')
	b = append(b, value...)
	return append(b, '\n')
}

// decimal writes a time in seconds.
func decimal(t unix.Timespec) string {
	sec, nsec, sign := t.Sec, t.Nsec, ""
	if sec < 0 && nsec > 0 { // two seconds before, and half a second after that
		sec, nsec = sec+1, 1e9-nsec
	}
	if sec < 0 || sec == 0 && t.Sec < 0 {
		sec, sign = -sec, "-"
	}
	return fmt.Sprintf("%s%d.%09d", sign, sec, nsec)
}

// block adds the ustar header. What does not fit is in the records.
func (h *header) block(b []byte) []byte {
	at := len(b)
	b = append(b, make([]byte, blockSize)...)
	f := b[at:]
	copy(f[:nameField], h.name)
	octal(f[100:108], uint64(h.mode))
	octal(f[108:116], 0) // owner and group: nobody's
	octal(f[116:124], 0)
	if h.size <= maxOctal {
		octal(f[124:136], uint64(h.size))
	} else {
		octal(f[124:136], 0)
	}
	octal(f[136:148], uint64(min(max(h.mtime.Sec, 0), maxOctal)))
	f[156] = h.kind
	copy(f[157:157+nameField], h.link)
	copy(f[257:265], "ustar\x0000")
	sum := uint64(8 * ' ')
	for _, c := range f {
		sum += uint64(c)
	}
	octal(f[148:155], sum)
	f[155] = ' '
	return b
}

// octal fills a field with digits and a NUL.
func octal(f []byte, v uint64) {
	for i := len(f) - 2; i >= 0; i-- {
		f[i] = '0' + byte(v&7)
		v >>= 3
	}
}
