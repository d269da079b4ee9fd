package cmdline

import (
	"bytes"
	"testing"
	"time"
)

func TestProgressLine(t *testing.T) {
	for _, c := range []struct {
		total, done int64
		took        time.Duration
		want        string
	}{
		{0, 0, 0, "saving 0 B, 0 B/s"},
		{0, 1500, time.Second, "saving 1.5 kB, 1.5 kB/s"},
		{0, 123_456_789, 10 * time.Second, "saving 123 MB, 12.3 MB/s"},
		{200_000_000, 50_000_000, 5 * time.Second, "saving [#######-----------------------]  25 % of 200 MB, 10.0 MB/s, 15s left"},
		{100, 100, 2 * time.Second, "saving [##############################] 100 % of 100 B, 50 B/s, 0s left"},
		{100, 150, 2 * time.Second, "saving [##############################] 100 % of 100 B, 75 B/s, 0s left"},
	} {
		p := &Progress{what: "saving", total: c.total, done: c.done}
		if got := p.line(c.took); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

// What is piped shows nothing.
func TestNoProgressInAPipe(t *testing.T) {
	var err bytes.Buffer
	p := Streams{Err: &err}.NewProgress("saving", 10)
	p.Write(make([]byte, 10))
	p.End()
	if err.Len() > 0 || p.done != 10 {
		t.Errorf("%q, %d", err.String(), p.done)
	}
}
