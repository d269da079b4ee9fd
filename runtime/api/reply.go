package api

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"time"

	"difyrt/runtime/job"
)

const (
	// writeStall is how long a client may leave a piece of an answer unread.
	writeStall = 30 * time.Second
	writePiece = 64 << 10
	// unreadBody is how long net/http may wait for a body that no handler read,
	// before it sends the answer: without it, for ever.
	unreadBody = 5 * time.Second
)

// reply sends a handler's body or error and gives the status, 0 when there was
// nobody left to send it to.
func reply(w http.ResponseWriter, r *http.Request, body any, err error, log *slog.Logger) int {
	status := http.StatusOK
	if err != nil {
		if gone := r.Context().Err(); gone != nil && errors.Is(err, gone) {
			log.Debug("client went away", "err", err)
			return 0
		}
		status, body = errorReply(err, log)
	}
	// Encoded first, so that an answer is whole or an error.
	b, err := encode(body)
	if err != nil {
		log.Error("answer not encoded", "err", err)
		status, b = http.StatusInternalServerError, []byte(`{"error":{"code":"`+job.CodeInternal+`","message":"`+internalMessage+`"}}`)
	}
	head := w.Header()
	head.Set("Content-Type", "application/json")
	head.Set("Content-Length", strconv.Itoa(len(b)))
	head.Set("Cache-Control", "no-store")
	send(w, status, b, log)
	return status
}

// send writes an answer in pieces, each with a deadline of its own, so that slow
// clients get all of it and dead ones are let go.
func send(w http.ResponseWriter, status int, b []byte, log *slog.Logger) {
	c := http.NewResponseController(w)
	// Deadlines fail only where there is no connection to write to.
	_ = c.SetReadDeadline(time.Now().Add(unreadBody))
	w.WriteHeader(status)
	for piece := range slices.Chunk(b, writePiece) {
		_ = c.SetWriteDeadline(time.Now().Add(writeStall))
		if _, err := w.Write(piece); err != nil {
			log.Debug("answer not sent", "err", err)
			return
		}
	}
}

// clearWriteDeadline forgets the deadline of the connection's last answer: it may
// be over, and a "100 Continue" may be the first thing written for this request.
func clearWriteDeadline(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // see send
}

func encode(v any) ([]byte, error) {
	var b buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return b, err
}

// buffer grows once: the encoder writes all of its text at a time.
type buffer []byte

func (b *buffer) Write(p []byte) (int, error) {
	*b = append(*b, p...)
	return len(p), nil
}
