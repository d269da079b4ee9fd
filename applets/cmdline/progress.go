package cmdline

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Progress shows on a terminal how far a long work is. Elsewhere it shows nothing.
type Progress struct {
	out         io.Writer // nil: none
	what        string
	total, done int64 // bytes; total is 0 when it is not known
	began, last time.Time
}

// redrawEvery is how often the line is drawn.
const redrawEvery = 100 * time.Millisecond

// NewProgress begins. total may be 0 or less.
func (s Streams) NewProgress(what string, total int64) *Progress {
	p := &Progress{what: what, total: max(total, 0), began: time.Now()}
	if Terminal(s.Err) {
		p.out = s.Err
	}
	return p
}

// Terminal reports whether a stream is one.
func Terminal(stream any) bool {
	f, ok := stream.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// Write counts.
func (p *Progress) Write(b []byte) (int, error) {
	p.done += int64(len(b))
	if now := time.Now(); p.out != nil && now.Sub(p.last) >= redrawEvery {
		p.last = now
		fmt.Fprint(p.out, "\r\x1b[K"+p.line(now.Sub(p.began)))
	}
	return len(b), nil
}

// line is what stands on the terminal after a time.
func (p *Progress) line(took time.Duration) string {
	rate := float64(p.done) / max(took.Seconds(), 0.001)
	line := fmt.Sprintf("%s %s", p.what, Bytes(p.done))
	if p.total > 0 {
		share := min(float64(p.done)/float64(p.total), 1)
		const width = 30
		full := int(share * width)
		line = fmt.Sprintf("%s [%s%s] %3.0f %% of %s", p.what, strings.Repeat("#", full), strings.Repeat("-", width-full), share*100, Bytes(p.total))
	}
	line += fmt.Sprintf(", %s/s", Bytes(int64(rate)))
	if p.total > 0 && rate > 0 && took > time.Second {
		left := time.Duration(float64(p.total-p.done) / rate * float64(time.Second))
		line += fmt.Sprintf(", %v left", max(left, 0).Round(time.Second))
	}
	return line
}

// End takes the line away.
func (p *Progress) End() {
	if p.out != nil {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}

// Bytes writes a size for people.
func Bytes(n int64) string {
	units := []string{"B", "kB", "MB", "GB", "TB"}
	f, i := float64(n), 0
	for f >= 999.5 && i < len(units)-1 {
		f, i = f/1000, i+1
	}
	if i == 0 || f >= 99.5 {
		return fmt.Sprintf("%.0f %s", f, units[i])
	}
	return fmt.Sprintf("%.1f %s", f, units[i])
}
