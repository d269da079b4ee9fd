package api

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"time"

	"difyrt/runtime/job"
)

const (
	// largeBody bounds run and input, in bytes: a script of 16 MiB is three times
	// as long when a client writes every character beyond ASCII as an escape.
	largeBody = 49 << 20
	smallBody = 64 << 10

	// Bodies of more than bigBody are in memory only bigAtOnce at a time.
	bigBody   = 1 << 20
	bigAtOnce = 2
)

const (
	// bodyStall is how long a client may pause in the middle of its body, and
	// bodyWithin how long all of it may take: a client that drips must not keep
	// a turn for ever.
	bodyStall  = 30 * time.Second
	bodyWithin = 10 * time.Minute
)

// body reads a request's body within its limit. What goes beyond bigBody waits
// for its turn; done gives the turn on and must be called when the body is no
// longer used.
func (h *handler) body(w http.ResponseWriter, r *http.Request, limit int64) (b []byte, done func(), err error) {
	done = func() {}
	tooLarge := job.Errorf(job.CodeTooLarge, "the body is larger than %d bytes", limit)
	if r.ContentLength > limit {
		return nil, done, tooLarge
	}
	in := &stallReader{http.MaxBytesReader(w, r.Body, limit), http.NewResponseController(w), time.Now().Add(bodyWithin)}
	var buf bytes.Buffer
	buf.Grow(int(min(max(r.ContentLength, 0), smallBody)) + bytes.MinRead)
	// The turn is not taken by the announced length: small bodies that come in
	// chunks would wait for slow large ones.
	n, err := buf.ReadFrom(io.LimitReader(in, bigBody))
	if err == nil && n == bigBody && r.ContentLength != n {
		select {
		case h.big <- struct{}{}:
			done = func() { <-h.big }
		case <-r.Context().Done():
			return nil, done, r.Context().Err()
		}
		in.until = time.Now().Add(bodyWithin)
		buf.Grow(int(max(r.ContentLength-n, 0)) + bytes.MinRead)
		_, err = buf.ReadFrom(in)
	}
	var over *http.MaxBytesError
	switch derr := in.noDeadline(); {
	case errors.As(err, &over):
		return nil, done, tooLarge
	case err != nil:
		w.Header().Set("Connection", "close") // or net/http waits for the rest
		return nil, done, job.Errorf(job.CodeInvalidRequest, "the body could not be read to its end")
	case derr != nil:
		return nil, done, derr
	}
	return buf.Bytes(), done, nil
}

// stallReader moves the read deadline on with each read, at most to until.
type stallReader struct {
	r     io.Reader
	c     *http.ResponseController
	until time.Time
}

func (s *stallReader) Read(p []byte) (int, error) {
	d := time.Now().Add(bodyStall)
	if s.until.Before(d) {
		d = s.until
	}
	if err := s.deadline(d); err != nil {
		return 0, err
	}
	return s.r.Read(p)
}

// noDeadline is for the time after the body, in which net/http reads on to notice
// that the client hangs up.
func (s *stallReader) noDeadline() error { return s.deadline(time.Time{}) }

// deadline knows that a test's recorder has no deadlines; a connection has.
func (s *stallReader) deadline(t time.Time) error {
	if err := s.c.SetReadDeadline(t); !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}
