package supervisor

import (
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// sink is an output file that grows at its end.
type sink struct {
	fd   int
	size atomic.Int64
	sinkOptions
	lost    error // first error that cost output, beyond remedy
	checked int64 // size at the last look at the free space
}

type sinkOptions struct {
	grew func(int64)     // called after each growth; nil when nobody asks
	stop <-chan struct{} // closed when what cannot be written is to be dropped
	log  *slog.Logger
	// most bounds the file; what follows is dropped. 0: no bound.
	most int64
	// full says whether jobs must write no more for want of space; nil when
	// nobody asks. It is asked once in a while.
	full func() bool
}

// askEvery is how much a job may write between two looks at the free space.
const askEvery = 256 << 10

func newSink(dir int, name string, o sinkOptions) (*sink, error) {
	fd, err := unix.Openat(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("create %s: %w", name, err)
	}
	return &sink{fd: fd, sinkOptions: o}, nil
}

func (s *sink) close() { unix.Close(s.fd) }

func (s *sink) added(n int) {
	size := s.size.Add(int64(n))
	if s.full != nil && size-s.checked >= askEvery {
		s.checked = size
		if s.full() {
			s.lost = errors.New("output was lost: too little space is left for jobs")
		}
	}
	if s.grew != nil {
		s.grew(size)
	}
}

// atLimit reports a file that has reached its bound to the byte.
func (s *sink) atLimit() bool { return s.most > 0 && s.size.Load() >= s.most }

// room gives how many of n bytes may still be written. When it is none, the file
// has been ended with a line that says so.
func (s *sink) room(n int) int {
	if s.lost != nil {
		return 0
	}
	if s.most == 0 {
		return n
	}
	left := s.most - s.size.Load()
	if left <= 0 {
		s.append(fmt.Appendf(nil, "\n[difyrt: the limit of %d bytes of output is reached; what follows is dropped]\n", s.most))
		s.lost = fmt.Errorf("output was dropped: it reached its limit of %d bytes", s.most)
		return 0
	}
	return int(min(int64(n), left))
}

// write appends p, as far as there is room.
func (s *sink) write(p []byte) {
	for len(p) > 0 {
		n := s.room(len(p))
		if n == 0 {
			return
		}
		s.append(p[:n])
		p = p[n:]
	}
}

func (s *sink) append(p []byte) {
	for len(p) > 0 {
		// At the size that we know: a splice leaves the descriptor's own position alone.
		n, err := unix.Pwrite(s.fd, p, s.size.Load())
		if n > 0 {
			p = p[n:]
			s.added(n)
		}
		if err != nil && !s.again(err) {
			return
		}
	}
}

// retryEvery is how long a full disk is given before the next try: no kernel
// interface tells when space comes back.
const retryEvery = time.Second

// again decides what a failed write means. A full disk stops the job's output,
// as a full pipe would, until there is space again, so that nothing is lost;
// only when the job is to end is the rest dropped. Any other error is final.
func (s *sink) again(err error) bool {
	if s.lost != nil {
		return false
	}
	if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
		return true
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		s.log.Warn("no space for a job's output: the job waits", "err", err)
		t := time.NewTimer(retryEvery)
		defer t.Stop()
		select {
		case <-t.C:
			return true
		case <-s.stop:
		}
	}
	s.lost = fmt.Errorf("output was lost: %w", err)
	s.log.Error("a job's output was lost", "err", err)
	return false
}
