// Package client calls the runtime's HTTP API (contract, runtime-http).
package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// Default is where a server listens that was told nothing.
const Default = "http://127.0.0.1:8765"

// Client calls one server. Its zero value is none; make it with New.
type Client struct {
	base, token string
	http        *http.Client
}

// dialWithin is how long a server may take to accept.
const dialWithin = 10 * time.Second

// New makes a client of a server at http://…, https://… or unix:PATH; the token
// may be empty.
func New(server, token string) (*Client, error) {
	dial := &net.Dialer{Timeout: dialWithin}
	t := &http.Transport{Proxy: http.ProxyFromEnvironment, DialContext: dial.DialContext}
	c := &Client{base: strings.TrimSuffix(server, "/"), token: token, http: &http.Client{Transport: t}}
	if path, ok := strings.CutPrefix(server, "unix:"); ok {
		c.base = "http://runtime"
		t.Proxy = nil
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return dial.DialContext(ctx, "unix", path) }
	} else if !strings.HasPrefix(server, "http://") && !strings.HasPrefix(server, "https://") {
		return nil, fmt.Errorf("server %q is neither http://HOST:PORT, https://… nor unix:PATH", server)
	}
	// A token must not follow to another host, and no route redirects.
	c.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return c, nil
}

// Error is an answer of the server's that is no success.
type Error struct {
	Status  int // of HTTP
	Code    string
	Message string
}

func (e *Error) Error() string { return fmt.Sprintf("the server says: %s (%s)", e.Message, e.Code) }

// maxError bounds what is read of an error's body, in bytes.
const maxError = 64 << 10

// do sends a request; an answer that is not 200 is an *Error. The caller closes
// the body.
func (c *Client) do(ctx context.Context, method, path string, body io.Reader, size int64) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return nil, err
	}
	r.ContentLength = size
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.http.Do(r)
	if err != nil {
		return nil, fmt.Errorf("reach the server: %w", errors.Unwrap(err)) // without the URL around it
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(io.LimitReader(resp.Body, maxError))
	var e struct{ Error Error }
	if json.Unmarshal(b, &e) != nil || e.Error.Code == "" {
		return nil, fmt.Errorf("the server answers %s, and not as the runtime does", resp.Status)
	}
	e.Error.Status = resp.StatusCode
	return nil, &e.Error
}
