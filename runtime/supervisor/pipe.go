package supervisor

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// pipe is our end of a job's standard output or error.
type pipe struct {
	r     *os.File
	raw   syscall.RawConn
	child *os.File // the job's end, closed once the job has it
	over  atomic.Bool
}

func openPipe() (*pipe, error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("open a pipe: %w", err)
	}
	// Only our end is non-blocking: the flag belongs to the open file, and the
	// job must find an ordinary pipe.
	if err := unix.SetNonblock(p[0], true); err != nil {
		unix.Close(p[0])
		unix.Close(p[1])
		return nil, fmt.Errorf("set up a pipe: %w", err)
	}
	t := &pipe{r: os.NewFile(uintptr(p[0]), "pipe"), child: os.NewFile(uintptr(p[1]), "pipe")}
	var err error
	if t.raw, err = t.r.SyscallConn(); err != nil {
		t.close()
		return nil, fmt.Errorf("set up a pipe: %w", err)
	}
	return t, nil
}

func (p *pipe) close() {
	p.r.Close()
	p.child.Close()
}

// giveUp makes drain end although the pipe is not at its end.
func (p *pipe) giveUp() {
	p.over.Store(true)
	p.r.SetReadDeadline(time.Unix(1, 0))
}

// spliceChunk is the most that one splice(2) moves.
const spliceChunk = 1 << 20

// drain moves bytes from the pipe to the file inside the kernel until the last
// process that holds the pipe has closed it.
func (p *pipe) drain(out *sink) {
	defer p.r.Close()
	var plain bool // the file system cannot take a splice
	for {
		var werr error
		done := false
		err := p.raw.Read(func(fd uintptr) bool {
			for {
				n, err := p.move(int(fd), out, plain)
				switch {
				case n > 0 && !p.over.Load():
					continue
				case n > 0:
					done = true
					return true
				case err == unix.EAGAIN:
					return false
				case err == unix.EINTR:
					continue
				case err == unix.EINVAL && !plain:
					plain = true
					continue
				case err == nil:
					done = true
					return true
				default:
					werr = err
					return true
				}
			}
		})
		if done || err != nil {
			return
		}
		if werr != nil && !out.again(werr) {
			p.swallow()
			return
		}
	}
}

func (p *pipe) move(fd int, out *sink, plain bool) (int64, error) {
	// A file that is just full is only cut when there is more to come, which
	// takes a read to know.
	if plain || out.atLimit() {
		c := chunks.Get().(*chunk)
		defer chunks.Put(c)
		n, err := unix.Read(fd, c.in)
		if n > 0 {
			out.write(c.in[:n])
			if out.lost != nil {
				return 0, errNoRoom
			}
		}
		return int64(n), err
	}
	room := out.room(spliceChunk)
	if room == 0 {
		return 0, errNoRoom
	}
	off := out.size.Load()
	n, err := unix.Splice(fd, nil, out.fd, &off, room, unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
	if n > 0 {
		out.added(int(n))
	}
	return n, err
}

// errNoRoom ends the copy into a file that takes no more.
var errNoRoom = errors.New("no room in the file")

// swallow reads to the end of a pipe whose bytes have nowhere to go, so that
// the job does not block on it.
func (p *pipe) swallow() {
	c := chunks.Get().(*chunk)
	defer chunks.Put(c)
	for {
		if n, err := p.r.Read(c.in); n == 0 || err != nil {
			return
		}
	}
}
