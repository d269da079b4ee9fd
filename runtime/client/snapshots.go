package client

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// ErrNotWhole says that a snapshot ended before its end, or is not what was sent.
var ErrNotWhole = errors.New("the snapshot is not whole")

// Save writes an archive of the server's home to w. Only when it returns nil is
// the archive whole, which the server's trailers are compared for: else
// ErrNotWhole, or the error that kept it from beginning.
func (c *Client) Save(ctx context.Context, w io.Writer, excludes []string) (bytesWritten int64, err error) {
	body, err := json.Marshal(map[string][]string{"excludes": append([]string{}, excludes...)})
	if err != nil {
		return 0, err
	}
	resp, err := c.do(ctx, "POST", "/v1/snapshot/save", bytes.NewReader(body), int64(len(body)))
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	sum := sha256.New()
	out := &remembers{w: w}
	n, err := io.Copy(io.MultiWriter(sum, out), resp.Body)
	switch {
	case out.err != nil:
		return n, out.err
	case ctx.Err() != nil:
		return n, context.Cause(ctx)
	case err != nil:
		return n, fmt.Errorf("%w: it broke off after %d bytes: %w", ErrNotWhole, n, err)
	}
	t := resp.Trailer
	if t.Get("X-Snapshot-Status") != "ok" {
		return n, fmt.Errorf("%w: the server does not say that it is", ErrNotWhole)
	}
	if want := t.Get("X-Snapshot-Bytes"); want != strconv.FormatInt(n, 10) {
		return n, fmt.Errorf("%w: %d of %s bytes came", ErrNotWhole, n, want)
	}
	if want := t.Get("X-Snapshot-Sha256"); want != hex.EncodeToString(sum.Sum(nil)) {
		return n, fmt.Errorf("%w: its checksum is wrong", ErrNotWhole)
	}
	return n, nil
}

// remembers keeps a writer's error apart from the reader's.
type remembers struct {
	w   io.Writer
	err error
}

func (r *remembers) Write(p []byte) (int, error) {
	n, err := r.w.Write(p)
	if err != nil {
		r.err = err
	}
	return n, err
}

// Restored is what a server restored.
type Restored struct {
	Entries      int   `json:"entries"`
	BytesWritten int64 `json:"bytes_written"`
}

// Restore lays an archive over the server's home. size is its length, -1 when it
// is not known.
func (c *Client) Restore(ctx context.Context, r io.Reader, size int64) (got Restored, err error) {
	resp, err := c.do(ctx, "POST", "/v1/snapshot/restore", io.NopCloser(r), size)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return got, err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxError)).Decode(&got); err != nil {
		return got, fmt.Errorf("read the server's answer: %w", err)
	}
	return got, nil
}
