// Package stub is the client of the agent stub, by which an agent inside a job
// reaches the platform that runs it (contract, agent-cli, sections 1 to 3). The
// stub is hostile as far as this package is concerned: its answers are bounded,
// its names are made safe, and what it sends goes nowhere but where it was asked
// for. The token is in no output, no error and no URL.
package stub

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode"
)

// The variables that a job gets (contract, section 1).
const (
	EnvURL   = "DIFY_AGENT_STUB_API_BASE_URL"
	EnvToken = "DIFY_AGENT_STUB_AUTH_JWE"
)

// Limits of requests and answers.
const (
	callWithin = 30 * time.Second
	maxAnswer  = 16 << 20 // of a JSON answer, in bytes
	maxShown   = 2 << 10  // of a body in an error
)

// ErrNoEnvironment says that the variables are not set; its text names them.
var ErrNoEnvironment = errors.New("missing required Agent Stub environment variables")

// Client calls one stub.
type Client struct {
	base, token string
	api, data   *http.Client // the stub itself; URLs that it hands out
}

// FromEnv makes a client of what a lookup such as os.Getenv gives.
func FromEnv(get func(string) string) (*Client, error) {
	base, token := strings.TrimSpace(get(EnvURL)), strings.TrimSpace(get(EnvToken))
	var missing []string
	for name, v := range map[string]string{EnvURL: base, EnvToken: token} {
		if v == "" {
			missing = append(missing, name)
		}
	}
	if len(missing) == 2 {
		missing = []string{EnvURL, EnvToken}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("%w: %s", ErrNoEnvironment, strings.Join(missing, ", "))
	}
	base, err := baseURL(base)
	if err != nil {
		return nil, err
	}
	if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, fmt.Errorf("%s holds characters that no token has", EnvToken)
	}
	t := &http.Transport{Proxy: http.ProxyFromEnvironment}
	return &Client{
		base: base, token: token,
		// A redirect would take the token elsewhere.
		api: &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
		data: &http.Client{Transport: t, CheckRedirect: func(r *http.Request, via []*http.Request) error {
			if len(via) >= 5 {
				return errors.New("too many redirects")
			}
			return checkURL(r.URL)
		}},
	}, nil
}

// baseURL checks the stub's address and gives it with its path.
func baseURL(s string) (string, error) {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return "", fmt.Errorf("%s must be an http or https URL", EnvURL)
	}
	if u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || strings.HasSuffix(s, "#") {
		return "", fmt.Errorf("%s must have no user, query or fragment", EnvURL)
	}
	switch strings.TrimSuffix(u.Path, "/") {
	case "", "/agent-stub":
	default:
		return "", fmt.Errorf("%s must have no path but /agent-stub", EnvURL)
	}
	return u.Scheme + "://" + u.Host + "/agent-stub", nil
}

// checkURL refuses what the stub may not send us to.
func checkURL(u *url.URL) error {
	if u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return errors.New("it is no http or https URL")
	}
	if u.User != nil {
		return errors.New("it holds a user")
	}
	return nil
}

// Error is an answer of the stub's that is no success.
type Error struct {
	Status  int
	Code    string
	Message string
}

func (e *Error) Error() string {
	if e.Code == "agent_stub_authorization_expired" {
		return "the Agent Stub token has expired: it lasts 5 minutes and cannot be renewed from inside; run the command again in a new shell tool call"
	}
	return fmt.Sprintf("HTTP %d: %s", e.Status, e.Message)
}

// call sends JSON, or nothing, and gives the body of a success.
func (c *Client) call(ctx context.Context, method, path string, body any, within time.Duration, limit int64) ([]byte, error) {
	var b []byte
	if body != nil {
		var err error
		if b, err = json.Marshal(body); err != nil {
			return nil, fmt.Errorf("encode the request: %w", err)
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("the Agent Stub did not answer within %v", within))
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(b))
	if err != nil {
		return nil, errors.New("the request cannot be made")
	}
	r.Header.Set("Authorization", "Bearer "+c.token)
	r.Header.Set("Accept", "application/json")
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.api.Do(r)
	if err != nil {
		return nil, fmt.Errorf("reach the Agent Stub: %w", plain(ctx, err))
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return nil, answerError(resp)
	}
	answer, err := readAll(resp.Body, limit)
	if err != nil {
		return nil, fmt.Errorf("read the Agent Stub's answer: %w", plain(ctx, err))
	}
	return answer, nil
}

// decode is call for an answer of which a few fields count.
func (c *Client) decode(ctx context.Context, method, path string, body, into any) error {
	answer, err := c.call(ctx, method, path, body, callWithin, maxAnswer)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(answer, into); err != nil {
		return errors.New("the Agent Stub's answer is not the JSON that was expected")
	}
	return nil
}

// plain takes the URL out of an error, and puts the context's cause in its place
// where that is the reason.
func plain(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

// readAll reads at most limit bytes; more is an error.
func readAll(r io.Reader, limit int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("it is larger than %d bytes", limit)
	}
	return b, err
}

// answerError puts a failed answer into words.
func answerError(resp *http.Response) error {
	b, _ := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	var body struct{ Detail json.RawMessage }
	e := &Error{Status: resp.StatusCode}
	if json.Unmarshal(b, &body) == nil {
		var detail struct{ Code, Message string }
		if json.Unmarshal(body.Detail, &e.Message) != nil && json.Unmarshal(body.Detail, &detail) == nil {
			e.Code, e.Message = detail.Code, detail.Message
		}
	}
	if e.Message == "" {
		e.Message = string(b)
	}
	if e.Message = printable(e.Message); e.Message == "" {
		e.Message = http.StatusText(resp.StatusCode)
	}
	return e
}

// printable makes foreign text fit for a terminal, on one line and of bounded length.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(s[:min(len(s), maxShown)], "?"))
	return strings.Join(strings.Fields(s), " ")
}

// Connection is what the stub says of a connection.
type Connection struct {
	ID     string `json:"connection_id"`
	Status string `json:"status"`
}

// Connect tells the stub of a command line.
func (c *Client) Connect(ctx context.Context, argv []string) (got Connection, err error) {
	body := map[string]any{"argv": append([]string{}, argv...), "metadata": map[string]any{}}
	if err := c.decode(ctx, "POST", "/connections", body, &got); err != nil {
		return got, err
	}
	if got.ID == "" {
		return got, errors.New("the Agent Stub's answer holds no connection_id")
	}
	return got, nil
}
