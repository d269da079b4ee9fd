package api

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"difyrt/runtime/job"
	"difyrt/runtime/snapshot"
	"difyrt/runtime/snapshot/ignore"
)

// Snapshots is how snapshots are made (contract, Snapshots).
type Snapshots struct {
	Home    string           // $HOME; empty when it is not set
	Omit    []snapshot.DirID // never saved nor written to
	Timeout time.Duration    // of a whole operation; must be set
}

const (
	codeBusy      job.Code = "snapshot_busy"
	codeSave      job.Code = "snapshot_failed"
	codeRestore   job.Code = "restore_failed"
	codeMalformed job.Code = "archive_malformed"
	codeHome      job.Code = "home_unavailable"
)

// excludesBody bounds the body of save, in bytes: as many patterns as may be,
// each byte of them written as an escape.
const excludesBody = 6*ignore.MaxBytes + 16*ignore.MaxPatterns

// streamed is the body of an answer that was sent already.
type streamed struct{}

// operation takes the gate and gives the context of a snapshot: it ends with the
// client, or with the deadline, and then nothing reads or writes the connection
// any more. end gives the gate back.
func (h *handler) operation(w http.ResponseWriter, r *http.Request) (ctx context.Context, end func(), err error) {
	select {
	case h.snapshot <- struct{}{}:
	default:
		w.Header().Set("Connection", "close") // or net/http reads a body that nobody wants
		return nil, nil, job.Errorf(codeBusy, "another snapshot operation is running")
	}
	ctx, cancel := context.WithTimeoutCause(r.Context(), h.snapshots.Timeout, fmt.Errorf("it took longer than %v", h.snapshots.Timeout))
	c := http.NewResponseController(w)
	stop := context.AfterFunc(ctx, func() {
		_ = c.SetReadDeadline(time.Now())
		_ = c.SetWriteDeadline(time.Now())
	})
	return ctx, func() { stop(); cancel(); <-h.snapshot }, nil
}

func (h *handler) save(w http.ResponseWriter, r *http.Request, _ job.ID) (any, error) {
	ctx, end, err := h.operation(w, r)
	if err != nil {
		return nil, err
	}
	defer end()
	b, done, err := h.body(w, r, excludesBody)
	defer done()
	if err != nil {
		return nil, err
	}
	exclude, err := decodeExcludes(b)
	if err != nil {
		return nil, err
	}
	out := &stream{ctx: ctx, w: w, c: http.NewResponseController(w)}
	began := time.Now()
	saved, err := snapshot.Save(ctx, out, snapshot.SaveOptions{Home: h.snapshots.Home, Exclude: exclude, Omit: h.snapshots.Omit})
	if err != nil && !out.begun {
		return nil, snapshotError(ctx, err, codeSave)
	}
	if err != nil {
		h.log.Warn("snapshot broken off", "err", err, "bytes", saved.Bytes, "took", time.Since(began))
		panic(http.ErrAbortHandler) // the client sees a stream without an end
	}
	h.log.Info("snapshot saved", "entries", saved.Entries, "skipped", saved.Skipped, "read", saved.Read, "bytes", saved.Bytes, "took", time.Since(began))
	head := w.Header()
	head.Set("X-Snapshot-Status", "ok")
	head.Set("X-Snapshot-Sha256", hex.EncodeToString(saved.SHA256[:]))
	head.Set("X-Snapshot-Bytes", strconv.FormatInt(saved.Bytes, 10))
	return streamed{}, nil
}

// decodeExcludes reads the body of save: empty, or an object.
func decodeExcludes(b []byte) (snapshot.Excluder, error) {
	var body map[string]json.RawMessage
	var patterns []string
	if len(b) > 0 {
		if err := json.Unmarshal(b, &body); err != nil || body == nil {
			return nil, job.Errorf(job.CodeInvalidRequest, "the body is not a JSON object")
		}
	}
	if list, ok := body["excludes"]; ok {
		if err := json.Unmarshal(list, &patterns); err != nil {
			return nil, job.Errorf(job.CodeInvalidRequest, "excludes must be a list of strings")
		}
	}
	m, err := ignore.Compile(patterns)
	if err != nil {
		return nil, job.Errorf(job.CodeInvalidRequest, "excludes: %v", err)
	}
	return m, nil
}

// stream sends an answer of unknown length. Its head goes out with the first
// bytes, so that until then there can be an error instead.
type stream struct {
	ctx   context.Context
	w     http.ResponseWriter
	c     *http.ResponseController
	begun bool
}

func (s *stream) Write(p []byte) (n int, err error) {
	if !s.begun {
		s.begun = true
		head := s.w.Header()
		head.Set("Content-Type", "application/octet-stream")
		head.Set("Cache-Control", "no-store")
		head.Set("Trailer", "X-Snapshot-Status, X-Snapshot-Sha256, X-Snapshot-Bytes")
		s.w.WriteHeader(http.StatusOK)
	}
	for n < len(p) {
		if s.ctx.Err() != nil { // whose end has set a deadline that must stay
			return n, context.Cause(s.ctx)
		}
		_ = s.c.SetWriteDeadline(time.Now().Add(writeStall))
		if s.ctx.Err() != nil {
			_ = s.c.SetWriteDeadline(time.Now())
		}
		k, err := s.w.Write(p[n:min(len(p), n+writePiece)])
		n += k
		if err != nil {
			return n, fmt.Errorf("send the snapshot: %w", err)
		}
	}
	return n, nil
}

func (h *handler) restore(w http.ResponseWriter, r *http.Request, _ job.ID) (any, error) {
	ctx, end, err := h.operation(w, r)
	if err != nil {
		return nil, err
	}
	defer end()
	c := http.NewResponseController(w)
	in := &stallReader{r.Body, c, time.Now().Add(h.snapshots.Timeout)}
	began := time.Now()
	got, err := snapshot.Restore(ctx, in, snapshot.RestoreOptions{Home: h.snapshots.Home, Omit: h.snapshots.Omit})
	if err != nil {
		h.log.Warn("snapshot not restored", "err", err, "entries", got.Entries, "bytes", got.BytesWritten, "took", time.Since(began))
		w.Header().Set("Connection", "close") // or net/http reads what is left of the body
		return nil, snapshotError(ctx, err, codeRestore)
	}
	h.log.Info("snapshot restored", "entries", got.Entries, "bytes", got.BytesWritten, "took", time.Since(began))
	return got, in.noDeadline()
}

// snapshotError gives a snapshot's failure its code.
func snapshotError(ctx context.Context, err error, other job.Code) error {
	var m *snapshot.MalformedError
	var home *snapshot.HomeError
	switch {
	case errors.As(err, &m):
		return job.Errorf(codeMalformed, "%v", err)
	case errors.As(err, &home):
		return job.Errorf(codeHome, "%v", err)
	case errors.Is(ctx.Err(), context.Canceled): // the client has gone away
		return ctx.Err()
	}
	return job.Errorf(other, "%v", err)
}
