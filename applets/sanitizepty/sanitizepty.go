// Package sanitizepty is the applet shellctl-sanitize-pty: a filter from PTY
// bytes to stable UTF-8 text, as a terminal multiplexer's pipe wants it.
package sanitizepty

import (
	"errors"
	"io"
	"os"
	"time"

	"difyrt/applets/cmdline"
	"difyrt/runtime/sanitize"
)

// Main is the applet.
func Main(name string, args []string, s cmdline.Streams) int {
	c := cmdline.New(name, "[--ready-file FILE]", `
Reads what a program wrote to a terminal from standard input and writes it to
standard output as plain text: no escape sequences, one line end, only the last
state of a progress bar. An unfinished line is shown when the input goes quiet.`, s)
	c.After = `
Example:
  printf '10%%\r100%%\033[0m\r\n' | shellctl-sanitize-pty`
	ready := c.Flags.String("ready-file", "", "create `FILE` once input can be taken")
	if code, ok := c.Parse(args); !ok {
		return code
	}
	if c.Flags.NArg() > 0 {
		return c.Wrong("unexpected argument %q", c.Flags.Arg(0))
	}
	if *ready != "" {
		f, err := os.OpenFile(*ready, os.O_WRONLY|os.O_CREATE, 0o600)
		if err != nil {
			return c.Fail(err)
		}
		if err := f.Close(); err != nil {
			return c.Fail(err)
		}
	}
	if err := filter(c.In, c.Out); err != nil {
		return c.Fail(err)
	}
	return cmdline.OK
}

type read struct {
	buf []byte
	err error
}

// filter reads on a goroutine of its own, since a read from an arbitrary input
// cannot be given up when the input goes quiet. Two buffers go round.
func filter(in io.Reader, out io.Writer) error {
	free, full := make(chan []byte, 2), make(chan read, 2)
	for range cap(free) {
		free <- make([]byte, 64<<10)
	}
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		for {
			var buf []byte
			select {
			case buf = <-free:
			case <-stop:
				return
			}
			n, err := in.Read(buf[:cap(buf)])
			full <- read{buf[:n], err}
			if err != nil {
				return
			}
		}
	}()
	var san sanitize.Sanitizer
	var text []byte
	var since time.Time // something has been unshown
	quiet := time.NewTimer(time.Hour)
	defer quiet.Stop()
	for {
		var wake <-chan time.Time
		if san.Pending() {
			if since.IsZero() {
				since = time.Now()
			}
			wait := sanitize.QuietAfter
			if san.Growing() {
				wait = min(wait, time.Until(since.Add(sanitize.GrowingAfter)))
			}
			quiet.Reset(wait)
			wake = quiet.C
		} else {
			since = time.Time{}
		}
		text = text[:0]
		var err error
		select {
		case r := <-full:
			text = san.Feed(text, r.buf)
			free <- r.buf
			if err = r.err; err != nil {
				text = san.Close(text)
			}
		case <-wake:
			text = san.Quiet(text)
			since = time.Time{}
		}
		if len(text) > 0 {
			if _, werr := out.Write(text); werr != nil {
				return werr
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
