package supervisor

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"difyrt/runtime/job"
	"difyrt/runtime/sanitize"
)

// afterExit bounds what is still read once the script has exited while another
// process keeps the terminal open and writes on. The kernel holds less than
// this for one terminal (8 KiB of flip buffers, rounded up, and N_TTY's 4 KiB),
// so that all that the script wrote is within it.
const afterExit = 256 << 10

// terminal is the master side of a job's PTY.
type terminal struct {
	master *os.File
	raw    syscall.RawConn
	// slave stays open on our side while the script runs. Without it, a script
	// that closes its own descriptors would look like the end (EIO), though it
	// can open /dev/tty again.
	slave *os.File
	name  string

	exited atomic.Bool
	san    sanitize.Sanitizer

	typing chan struct{} // held by whoever types
	line   int           // bytes typed since the last line end; owned by the holder of typing
}

func openTerminal(cols, rows uint16) (*terminal, error) {
	m, s, err := pty.Open()
	if err != nil {
		return nil, fmt.Errorf("open a terminal: %w", err)
	}
	defer m.Close()
	if err := pty.Setsize(m, &pty.Winsize{Cols: cols, Rows: rows}); err != nil {
		s.Close()
		return nil, fmt.Errorf("set the terminal's size: %w", err)
	}
	// pty's ioctls left m in blocking mode. A descriptor of our own, set to
	// non-blocking first, is one that the network poller takes.
	fd, err := unix.FcntlInt(m.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("set up the terminal: %w", err)
	}
	t := &terminal{master: os.NewFile(uintptr(fd), "/dev/ptmx"), slave: s, name: s.Name(), typing: make(chan struct{}, 1)}
	if t.raw, err = t.master.SyscallConn(); err != nil {
		t.close()
		return nil, fmt.Errorf("set up the terminal: %w", err)
	}
	return t, nil
}

func (t *terminal) close() {
	t.master.Close()
	t.slave.Close()
}

// foreground gives the terminal's foreground process group, 0 if there is none.
func (t *terminal) foreground() (pgid int) {
	t.raw.Control(func(fd uintptr) {
		pgid, _ = unix.IoctlGetInt(int(fd), unix.TIOCGPGRP)
	})
	return pgid
}

// leaderExited makes drain come to its end. Safe from any goroutine.
func (t *terminal) leaderExited() {
	t.exited.Store(true)
	t.master.SetReadDeadline(time.Unix(1, 0))
}

// chunks are the buffers between terminals and files. A job that is silent holds none.
var chunks = sync.Pool{New: func() any { return &chunk{in: make([]byte, 64<<10)} }}

type chunk struct{ in, out []byte }

// drain copies what the job writes, sanitised, into the file until the script
// has exited and what it wrote is there. It then closes our side of the slave
// and reports whether the master is at its end; if not, another process still
// holds the terminal, and the caller goes on with discard.
func (t *terminal) drain(out *sink) (atEnd bool) {
	armed := false
	var since time.Time // something has been unshown
	for {
		// The deadline is set before exited is read; leaderExited does it the
		// other way round, so that its wake-up cannot be overwritten.
		if t.san.Pending() {
			now := time.Now()
			if since.IsZero() {
				since = now
			}
			quiet := now.Add(sanitize.QuietAfter)
			if late := since.Add(sanitize.GrowingAfter); t.san.Growing() && late.Before(quiet) {
				quiet = late
			}
			t.master.SetReadDeadline(quiet)
			armed = true
		} else {
			since = time.Time{}
			if armed {
				t.master.SetReadDeadline(time.Time{})
				armed = false
			}
		}
		if t.exited.Load() {
			return t.last(out)
		}
		var c *chunk
		var n int
		var rerr error
		err := t.raw.Read(func(fd uintptr) bool {
			c = chunks.Get().(*chunk)
			n, rerr = readAvailable(int(fd), c.in)
			if n == 0 && rerr == unix.EAGAIN {
				chunks.Put(c)
				c = nil
				return false
			}
			return true
		})
		if c != nil {
			t.feed(out, c, n)
			chunks.Put(c)
		}
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			if !t.exited.Load() {
				out.write(t.san.Quiet(nil))
				since = time.Time{}
			}
		case err != nil, n == 0 && rerr != nil:
			// The master fails only when the terminal is gone for good.
			out.write(t.san.Close(nil))
			t.slave.Close()
			return true
		}
	}
}

func (t *terminal) feed(out *sink, c *chunk, n int) {
	c.out = t.san.Feed(c.out[:0], c.in[:n])
	if len(c.out) > 0 {
		out.write(c.out)
	}
}

// last reads what is left after the exit. A read that finds nothing first lets
// the kernel finish what it still moves between the two sides (n_tty_read,
// tty_buffer_flush_work), so that EAGAIN really means "read all".
func (t *terminal) last(out *sink) (atEnd bool) {
	t.slave.Close()
	c := chunks.Get().(*chunk)
	defer chunks.Put(c)
	for got := 0; got < afterExit; {
		var n int
		var rerr error
		err := t.raw.Control(func(fd uintptr) { n, rerr = readAvailable(int(fd), c.in) })
		got += n
		t.feed(out, c, n)
		if err != nil || rerr != nil {
			atEnd = err != nil || rerr != unix.EAGAIN
			break
		}
	}
	out.write(t.san.Close(c.out[:0]))
	return atEnd
}

// discard reads on for processes that the job left behind with the terminal
// open, so that they do not block on it, until the last one closes it.
func (t *terminal) discard() {
	t.master.SetReadDeadline(time.Time{})
	for {
		var rerr error
		err := t.raw.Read(func(fd uintptr) bool {
			c := chunks.Get().(*chunk)
			defer chunks.Put(c)
			_, rerr = readAvailable(int(fd), c.in)
			return rerr != unix.EAGAIN
		})
		if errors.Is(err, os.ErrDeadlineExceeded) { // leaderExited's, set late
			t.master.SetReadDeadline(time.Time{})
			continue
		}
		if err != nil || rerr != nil {
			return
		}
	}
}

// readAvailable reads until buf is full or nothing is left: a terminal gives
// at most 4 KiB a read, and the file wants larger writes. It returns an error
// only from the read that gave nothing.
func readAvailable(fd int, buf []byte) (int, error) {
	n := 0
	for n < len(buf) {
		m, err := unix.Read(fd, buf[n:])
		if err == unix.EINTR {
			continue
		}
		if m > 0 {
			n += m
			continue
		}
		if err == nil {
			err = unix.EIO // end of file: a terminal has none but its hang-up
		}
		return n, err
	}
	return n, nil
}

// maxLine is what a terminal in canonical mode holds of one line, without its
// end (N_TTY_BUF_SIZE; termios(3), "Canonical and noncanonical mode").
const maxLine = 4095

// write types text. A line feed is typed as Enter, which is a carriage return.
// Either all of it is delivered before the deadline, or an error says how much was.
func (t *terminal) write(text []byte, deadline time.Time) error {
	timeout := time.NewTimer(time.Until(deadline))
	defer timeout.Stop()
	select {
	case t.typing <- struct{}{}:
	case <-timeout.C:
		return job.Errorf(job.CodeInputTimeout, "another input to the job is still being typed; nothing of this one was")
	}
	defer func() { <-t.typing }()

	typed := make([]byte, len(text))
	for i, c := range text {
		if c == '\n' {
			c = '\r'
		}
		typed[i] = c
	}
	tio, err := t.checkLines(typed)
	if err != nil {
		return err
	}
	t.master.SetWriteDeadline(deadline)
	n, err := t.master.Write(typed)
	t.line = lineAfter(tio, t.line, typed[:n])
	if err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return job.Errorf(job.CodeInputTimeout, "the job did not read its terminal in time: %d of %d bytes were typed", n, len(typed))
		}
		if errors.Is(err, os.ErrClosed) {
			return job.Errorf(job.CodeNotRunning, "the job's terminal is closed")
		}
		return fmt.Errorf("write to the terminal: %w", err)
	}
	return nil
}

// checkLines refuses what a terminal in canonical mode would cut in silence, and
// gives the terminal's mode.
func (t *terminal) checkLines(text []byte) (*unix.Termios, error) {
	var tio *unix.Termios
	var err error
	if cerr := t.raw.Control(func(fd uintptr) { tio, err = unix.IoctlGetTermios(int(fd), unix.TCGETS) }); cerr != nil {
		return nil, job.Errorf(job.CodeNotRunning, "the job's terminal is closed")
	}
	if err != nil {
		return nil, fmt.Errorf("ask the terminal for its mode: %w", err)
	}
	if tio.Lflag&unix.ICANON == 0 {
		return tio, nil
	}
	line := t.line
	for _, c := range text {
		if endsLine(tio, c) {
			line = 0
		} else if line++; line > maxLine {
			return nil, job.Errorf(job.CodeValidation,
				"a line of the input is longer than %d bytes, which the job's terminal would cut: send it in shorter lines, or let the job read a file", maxLine)
		}
	}
	return tio, nil
}

// lineAfter gives the length of the unfinished line when text was typed.
func lineAfter(tio *unix.Termios, line int, text []byte) int {
	if tio.Lflag&unix.ICANON == 0 {
		return 0
	}
	for _, c := range text {
		if line++; endsLine(tio, c) {
			line = 0
		}
	}
	return line
}

// endsLine tells the characters after which the terminal's line buffer is empty
// again: line ends, end of file, kill, and the three that signal.
func endsLine(tio *unix.Termios, c byte) bool {
	switch c {
	case '\r':
		return tio.Iflag&unix.ICRNL != 0
	case '\n':
		return tio.Iflag&unix.INLCR == 0
	}
	if c == 0 { // _POSIX_VDISABLE
		return false
	}
	if c == tio.Cc[unix.VEOF] || c == tio.Cc[unix.VEOL] || c == tio.Cc[unix.VEOL2] || c == tio.Cc[unix.VKILL] {
		return true
	}
	return tio.Lflag&unix.ISIG != 0 && tio.Lflag&unix.NOFLSH == 0 &&
		(c == tio.Cc[unix.VINTR] || c == tio.Cc[unix.VQUIT] || c == tio.Cc[unix.VSUSP])
}
