package snapshot

import (
	"bytes"
	"io"
	"math"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// tarReader reads a tar: ustar, pax and GNU's (pax(1); GNU tar, "Basic Tar
// Format"). It is ours because archive/tar's reader takes eleven microseconds for
// an entry, as much as the kernel takes to make the file, and because it must be
// told what is wrong with an archive that others bear with. archive/tar is its
// oracle in the tests.
type tarReader struct {
	r     io.Reader
	left  int64 // of the entry's content
	pad   int64
	block [blockSize]byte
	meta  []byte
}

// maxMeta bounds a PAX header or a GNU long name, in bytes.
const maxMeta = 1 << 20

// More type flags.
const (
	kindOldFile = 0
	kindChar    = '3'
	kindBlock   = '4'
	kindFifo    = '6'
	kindCont    = '7' // a file, says pax(1), where there are no contiguous ones
	kindGlobal  = 'g'
	kindLongTo  = 'K' // GNU: the target of the next entry
	kindLong    = 'L' // GNU: its name
	kindSparse  = 'S'
)

// member is what the archive says of an entry.
type member struct {
	header
	sparse bool
}

// overrides are what extended headers say of the next entry.
type overrides struct {
	path, link, mtime, size *string
	longName, longLink      *string
	xattrs                  []xattr
	sparse                  bool
}

// next goes to the next entry; io.EOF is the mark at the end of the tar. Other
// errors are *MalformedError or the reader's own.
func (t *tarReader) next() (m *member, err error) {
	var o overrides
	for {
		if err := t.skip(); err != nil {
			return nil, err
		}
		if err := t.full(t.block[:]); err != nil {
			return nil, err
		}
		if t.block == [blockSize]byte{} {
			return nil, io.EOF
		}
		m, err := t.parse()
		if err != nil {
			return nil, err
		}
		switch m.kind {
		case kindPAX, kindGlobal, kindLong, kindLongTo:
			if err := t.extended(m, &o); err != nil {
				return nil, err
			}
		default:
			return m, t.complete(m, &o)
		}
	}
}

// Read reads the entry's content.
func (t *tarReader) Read(p []byte) (int, error) {
	if t.left == 0 {
		return 0, io.EOF
	}
	n, err := t.r.Read(p[:min(int64(len(p)), t.left)])
	t.left -= int64(n)
	if err == io.EOF && t.left > 0 {
		err = malformed("it ends too early")
	}
	return n, err
}

// skip goes behind the entry's content.
func (t *tarReader) skip() error {
	n := t.left + t.pad
	t.left, t.pad = 0, 0
	if n == 0 {
		return nil
	}
	if n < blockSize {
		return t.full(t.block[:n])
	}
	_, err := io.CopyN(io.Discard, t.r, n)
	return early(err)
}

func (t *tarReader) full(b []byte) error {
	_, err := io.ReadFull(t.r, b)
	return early(err)
}

func early(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return malformed("it ends too early")
	}
	return err
}

// parse reads the header block.
func (t *tarReader) parse() (*member, error) {
	b := t.block[:]
	sum, err := number(b[148:156])
	if err != nil || !checksum(b, sum) {
		return nil, malformed("it holds no tar, or a damaged one")
	}
	m := &member{header: header{name: text(b[:100]), link: text(b[157:257]), kind: b[156]}}
	// The prefix is ustar's; GNU has other things there.
	if string(b[257:263]) == "ustar\x00" {
		if prefix := text(b[345:500]); prefix != "" {
			m.name = prefix + "/" + m.name
		}
	}
	var mode int64
	for _, f := range []struct {
		to   *int64
		from []byte
	}{{&mode, b[100:108]}, {&m.size, b[124:136]}, {&m.mtime.Sec, b[136:148]}} {
		if *f.to, err = number(f.from); err != nil {
			return nil, malformed("a number of %s is none", shown(m.name))
		}
	}
	m.mode = uint32(mode) & 0o777
	return m, t.size(m)
}

// size prepares for the content that a header announces.
func (t *tarReader) size(m *member) error {
	if m.size < 0 {
		return malformed("%s has a negative size", shown(m.name))
	}
	switch m.kind {
	case kindLink, kindSymlink, kindDir, kindChar, kindBlock, kindFifo: // they have none, whatever they say
		m.size = 0
	}
	t.left, t.pad = m.size, -m.size&(blockSize-1)
	return nil
}

// extended reads a header that is about the next entry.
func (t *tarReader) extended(m *member, o *overrides) error {
	if m.size > maxMeta {
		return malformed("an extended header of %d bytes", m.size)
	}
	if int64(cap(t.meta)) < m.size {
		t.meta = make([]byte, m.size)
	}
	b := t.meta[:m.size]
	t.left = 0
	if err := t.full(b); err != nil {
		return err
	}
	switch s := text(b); m.kind {
	case kindLong:
		o.longName = &s
	case kindLongTo:
		o.longLink = &s
	case kindPAX:
		return o.pax(b)
	}
	return nil // a global header is a comment to us, such as git archive's
}

// pax reads the records of a PAX header.
func (o *overrides) pax(b []byte) error {
	for len(b) > 0 {
		space := bytes.IndexByte(b[:min(len(b), 20)], ' ')
		if space < 0 {
			return malformed("a PAX record without a length")
		}
		n, err := strconv.Atoi(string(b[:space]))
		if err != nil || n <= space+1 || n > len(b) || b[n-1] != '\n' {
			return malformed("a PAX record of a wrong length")
		}
		key, value, ok := bytes.Cut(b[space+1:n-1], []byte("="))
		if !ok {
			return malformed("a PAX record without a value")
		}
		b = b[n:]
		var to **string
		switch k := string(key); {
		case k == "path":
			to = &o.path
		case k == "linkpath":
			to = &o.link
		case k == "mtime":
			to = &o.mtime
		case k == "size":
			to = &o.size
		case strings.HasPrefix(k, "GNU.sparse."):
			o.sparse = true
		case strings.HasPrefix(k, "SCHILY.xattr.user."):
			o.xattrs = append(o.xattrs, xattr{strings.TrimPrefix(k, "SCHILY.xattr."), string(value)})
		}
		if to == nil {
			continue
		}
		if *to = nil; len(value) > 0 { // an empty one takes an earlier one back
			if bytes.IndexByte(value, 0) >= 0 {
				return malformed("a PAX record %s holds a NUL", key)
			}
			s := string(value)
			*to = &s
		}
	}
	return nil
}

// complete lays what extended headers said over the entry's own header.
func (t *tarReader) complete(m *member, o *overrides) error {
	for _, s := range []struct {
		to   *string
		from *string
	}{{&m.name, o.longName}, {&m.link, o.longLink}, {&m.name, o.path}, {&m.link, o.link}} {
		if s.from != nil {
			*s.to = *s.from
		}
	}
	switch {
	case m.kind == kindOldFile && strings.HasSuffix(m.name, "/"):
		m.kind = kindDir
	case m.kind == kindOldFile, m.kind == kindCont:
		m.kind = kindFile
	}
	m.xattrs, m.sparse = o.xattrs, o.sparse || m.kind == kindSparse
	if o.size != nil {
		n, err := strconv.ParseInt(*o.size, 10, 64)
		if err != nil {
			return malformed("the size of %s is no number", shown(m.name))
		}
		m.size = n
	}
	if o.mtime != nil {
		ts, ok := parseDecimal(*o.mtime)
		if !ok {
			return malformed("the time of %s is no number", shown(m.name))
		}
		m.mtime = ts
	}
	return t.size(m)
}

// text is a field up to its NUL.
func text(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}

// number reads digits, or GNU's form of large and negative numbers: the first bit
// set, and behind it a number in base 256.
func number(b []byte) (int64, error) {
	if b[0]&0x80 != 0 {
		return base256(b)
	}
	b = bytes.Trim(b, " \x00")
	var n int64
	for _, c := range b {
		if c < '0' || c > '7' || n >= 1<<60 {
			return 0, strconv.ErrSyntax
		}
		n = n<<3 | int64(c-'0')
	}
	return n, nil
}

func base256(b []byte) (int64, error) {
	negative := b[0]&0x40 != 0
	var n uint64
	for i, c := range b {
		if negative {
			c = ^c
		}
		if i == 0 {
			c &= 0x7f
		}
		if n>>55 != 0 {
			return 0, strconv.ErrRange
		}
		n = n<<8 | uint64(c)
	}
	if negative {
		return ^int64(n), nil
	}
	return int64(n), nil
}

// checksum compares a header's, which some programs have made of signed bytes.
func checksum(b []byte, want int64) bool {
	var unsigned, signed int64
	for i, c := range b {
		if i >= 148 && i < 156 {
			c = ' '
		}
		unsigned += int64(c)
		signed += int64(int8(c))
	}
	return want == unsigned || want == signed
}

// parseDecimal reads a time in seconds with a fraction; what is smaller than a
// nanosecond is cut off, towards the past.
func parseDecimal(s string) (t unix.Timespec, ok bool) {
	if strings.ContainsAny(s, "eE") { // as Python writes very small ones
		f, err := strconv.ParseFloat(s, 64)
		if err != nil || math.Abs(f) > 1<<53 {
			return t, false
		}
		s = strconv.FormatFloat(f, 'f', 9, 64)
	}
	whole, fraction, _ := strings.Cut(s, ".")
	sec, err := strconv.ParseInt(whole, 10, 64)
	if err != nil || strings.ContainsFunc(fraction, func(r rune) bool { return r < '0' || r > '9' }) {
		return t, false
	}
	digits := (fraction + "000000000")[:9]
	nsec, _ := strconv.ParseInt(digits, 10, 64)
	if strings.HasPrefix(whole, "-") && nsec > 0 {
		sec, nsec = sec-1, 1e9-nsec
	}
	return unix.Timespec{Sec: sec, Nsec: nsec}, true
}
