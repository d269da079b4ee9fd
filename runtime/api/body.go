package api

import (
	"errors"
	"io"
	"net/http"
	"time"

	"difyrt/runtime/job"
)

const (
	// largeBody bounds run and input: a script of 16 MiB is three times as long
	// when a client writes every character beyond ASCII as an escape.
	largeBody = 49 << 20
	smallBody = 64 << 10

	// Bodies of more than bigBody, or of unknown length, are in memory only
	// bigAtOnce at a time.
	bigBody   = 1 << 20
	bigAtOnce = 2
)

const (
	// bodyStall is how long a client may pause in the middle of its body.
	bodyStall = 30 * time.Second
	// writeStall is how long a client may leave an answer unread.
	writeStall = 30 * time.Second
)

// body reads a request's body within its limit. A large one first waits for its
// turn; done gives the turn on and must be called when the body is no longer used.
func (h *handler) body(w http.ResponseWriter, r *http.Request, limit int64) (b []byte, done func(), err error) {
	done = func() {}
	tooLarge := job.Errorf(job.CodeTooLarge, "the body is larger than %d bytes", limit)
	if r.ContentLength > limit {
		return nil, done, tooLarge
	}
	if r.ContentLength < 0 && limit > bigBody || r.ContentLength > bigBody {
		select {
		case h.big <- struct{}{}:
			done = func() { <-h.big }
		case <-r.Context().Done():
			return nil, done, r.Context().Err()
		}
	}
	c := http.NewResponseController(w)
	in := stallReader{http.MaxBytesReader(w, r.Body, limit), c}
	if n := r.ContentLength; n > 0 {
		b = make([]byte, n)
		_, err = io.ReadFull(in, b)
	} else if n < 0 {
		b, err = io.ReadAll(in)
	}
	// A test's recorder has no deadlines; a connection has.
	if derr := c.SetReadDeadline(time.Time{}); derr != nil && !errors.Is(derr, http.ErrNotSupported) && err == nil {
		err = derr
	}
	var max *http.MaxBytesError
	switch {
	case errors.As(err, &max):
		return nil, done, tooLarge
	case err != nil:
		return nil, done, job.Errorf(job.CodeInvalidRequest, "the body could not be read to its end")
	}
	return b, done, nil
}

// stallReader moves the read deadline on with each read.
type stallReader struct {
	r io.Reader
	c *http.ResponseController
}

func (s stallReader) Read(p []byte) (int, error) {
	if err := s.c.SetReadDeadline(time.Now().Add(bodyStall)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return 0, err
	}
	return s.r.Read(p)
}

// clearWriteDeadline forgets the deadline of the connection's last answer: it may
// be over, and a "100 Continue" may be the first thing written for this request.
func clearWriteDeadline(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
}

func setWriteDeadline(w http.ResponseWriter) {
	// It fails only where there is no connection to write to.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeStall))
}
