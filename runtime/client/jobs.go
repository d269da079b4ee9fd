package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// MaxPage is the largest page of output that a server gives, in bytes.
const MaxPage = 512 << 10

// Job is the state of a job. Times are RFC 3339, nil for "not yet".
type Job struct {
	ID        string  `json:"job_id"`
	Status    string  `json:"status"`
	Done      bool    `json:"done"`
	ExitCode  *int    `json:"exit_code"`
	CreatedAt string  `json:"created_at"`
	StartedAt *string `json:"started_at"`
	EndedAt   *string `json:"ended_at"`
	Offset    int64   `json:"offset"` // the size of its output
}

// Page is a piece of a job's output, and its state.
type Page struct {
	ID        string `json:"job_id"`
	Done      bool   `json:"done"`
	Status    string `json:"status"`
	ExitCode  *int   `json:"exit_code"`
	Output    string `json:"output"`
	Offset    int64  `json:"offset"` // to ask for next
	Truncated bool   `json:"truncated"`
}

// RunRequest starts a job; zero values are the server's defaults.
type RunRequest struct {
	Script   string            `json:"script"`
	Cwd      string            `json:"cwd,omitempty"`
	Env      map[string]string `json:"env,omitempty"`
	Mode     string            `json:"mode,omitempty"` // pty or stdio
	Terminal *Terminal         `json:"terminal,omitempty"`
}

// Terminal is the size of a job's terminal.
type Terminal struct {
	Cols int `json:"cols"`
	Rows int `json:"rows"`
}

// call sends JSON and reads JSON.
func (c *Client) call(ctx context.Context, method, path string, body, into any) error {
	var b []byte
	if body != nil {
		var err error
		if b, err = json.Marshal(body); err != nil {
			return err
		}
	}
	resp, err := c.do(ctx, method, path, bytes.NewReader(b), int64(len(b)))
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	defer resp.Body.Close()
	// A page is at most six times as long when every byte is an escape.
	if err := json.NewDecoder(io.LimitReader(resp.Body, 8*MaxPage)).Decode(into); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("read the server's answer: %w", err)
	}
	return nil
}

// Health asks whether a server is there.
func (c *Client) Health(ctx context.Context) error {
	var answer struct{ Status string }
	return c.call(ctx, "GET", "/healthz", nil, &answer)
}

// Run starts a job and comes back at once.
func (c *Client) Run(ctx context.Context, r RunRequest) (p Page, err error) {
	err = c.call(ctx, "POST", "/v1/jobs/run", struct {
		RunRequest
		Timeout int `json:"timeout"`
	}{r, 0}, &p)
	return p, err
}

// Wait gives the output from an offset on, as soon as there is some or the job
// has ended, and at the latest after within.
func (c *Client) Wait(ctx context.Context, id string, offset int64, within time.Duration) (p Page, err error) {
	err = c.call(ctx, "POST", "/v1/jobs/"+id+"/wait", map[string]any{"offset": offset, "timeout": within.Seconds(), "output_limit": MaxPage, "idle_flush_seconds": 0.05}, &p)
	return p, err
}

// Input types text into a pty job's terminal.
func (c *Client) Input(ctx context.Context, id, text string, offset int64) error {
	var p Page
	return c.call(ctx, "POST", "/v1/jobs/"+id+"/input", map[string]any{"text": text, "offset": offset, "timeout": 0}, &p)
}

// Tail gives the last bytes of a job's output.
func (c *Client) Tail(ctx context.Context, id string, bytes int) (p Page, err error) {
	err = c.call(ctx, "GET", "/v1/jobs/"+id+"/log/tail?output_limit="+strconv.Itoa(bytes), nil, &p)
	return p, err
}

// Get gives a job's state.
func (c *Client) Get(ctx context.Context, id string) (j Job, err error) {
	err = c.call(ctx, "GET", "/v1/jobs/"+id, nil, &j)
	return j, err
}

// List gives the newest jobs, of one status or ("") of all.
func (c *Client) List(ctx context.Context, status string) ([]Job, error) {
	var list struct{ Jobs []Job }
	q := url.Values{"limit": {"200"}}
	if status != "" {
		q.Set("status", status)
	}
	err := c.call(ctx, "GET", "/v1/jobs?"+q.Encode(), nil, &list)
	return list.Jobs, err
}

// Terminate ends a job, by force once the grace is over.
func (c *Client) Terminate(ctx context.Context, id string, grace time.Duration) (j Job, err error) {
	err = c.call(ctx, "POST", "/v1/jobs/"+id+"/terminate", map[string]float64{"grace_seconds": grace.Seconds()}, &j)
	return j, err
}

// Delete removes a job, with force also one that runs.
func (c *Client) Delete(ctx context.Context, id string, force bool) error {
	var answer struct{ Deleted bool }
	return c.call(ctx, "DELETE", "/v1/jobs/"+id+"?force="+strconv.FormatBool(force), nil, &answer)
}

// Info gives the server's report of itself.
func (c *Client) Info(ctx context.Context) (report json.RawMessage, err error) {
	err = c.call(ctx, "GET", "/v1/info", nil, &report)
	return report, err
}

const idDigits = 16

// Resolve makes a job's whole identifier of a prefix that only it has.
func (c *Client) Resolve(ctx context.Context, prefix string) (string, error) {
	prefix = strings.ToLower(prefix)
	if prefix == "" || len(prefix) > idDigits || strings.Trim(prefix, "0123456789abcdef") != "" {
		return "", fmt.Errorf("%q is no job's identifier, which has %d hexadecimal digits", prefix, idDigits)
	}
	if len(prefix) == idDigits {
		return prefix, nil
	}
	list, err := c.List(ctx, "")
	if err != nil {
		return "", err
	}
	var found []string
	for _, j := range list {
		if strings.HasPrefix(j.ID, prefix) {
			found = append(found, j.ID)
		}
	}
	switch len(found) {
	case 0:
		return "", fmt.Errorf("there is no job %s", prefix)
	case 1:
		return found[0], nil
	}
	return "", fmt.Errorf("%s could be %s", prefix, strings.Join(found, " or "))
}
