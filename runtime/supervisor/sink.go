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
	grew func(int64)     // called after each growth; nil when nobody asks
	stop <-chan struct{} // closed when what cannot be written is to be dropped
	log  *slog.Logger
	lost error // first error that cost output, beyond remedy
}

func newSink(path string, grew func(int64), stop <-chan struct{}, log *slog.Logger) (*sink, error) {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("create %s: %w", path, err)
	}
	return &sink{fd: fd, grew: grew, stop: stop, log: log}, nil
}

func (s *sink) close() { unix.Close(s.fd) }

func (s *sink) added(n int) {
	size := s.size.Add(int64(n))
	if s.grew != nil {
		s.grew(size)
	}
}

// write appends all of p.
func (s *sink) write(p []byte) {
	for len(p) > 0 {
		n, err := unix.Write(s.fd, p)
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
