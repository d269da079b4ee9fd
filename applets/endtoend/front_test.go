package endtoend

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func (s *server) dial(t testing.TB) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	return c
}

// A thousand connections that say nothing, or drip a header, keep nobody else
// from being served, and neither do more of them than the server takes.
func TestIdleConnections(t *testing.T) {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil || l.Cur < 4096 {
		t.Skipf("the test itself wants 4096 descriptors, it has %d", l.Cur)
	}
	for name, args := range map[string][]string{"default": nil, "limit": {"--max-connections", "50"}} {
		s := start(t, withArgs(args...))
		// A connection that idles may be closed when there are too many.
		s.http.Transport.(*http.Transport).DisableKeepAlives = true
		before := s.memory(t)
		for i := range 1000 {
			c := s.dial(t)
			switch i % 3 {
			case 1:
				io.WriteString(c, "POST /v1/jobs/run HTTP/1.1\r\nHost: x\r\nX-Slow: ")
			case 2:
				io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
			}
			if i%100 == 99 {
				if r := s.sh("echo served"); r.Output != "served\n" {
					t.Fatalf("%s, %d: %+v", name, i, r)
				}
			}
		}
		if args != nil && s.connections() > 60 {
			t.Errorf("%d connections with a limit of 50", s.connections())
		}
		if grown := s.memory(t) - before; grown > 64<<20 && !raceDetector {
			t.Errorf("%s: memory grew by %d bytes", name, grown)
		}
	}
}

// memory is the server's resident memory, in bytes.
func (s *server) memory(t testing.TB) int64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", s.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	var size, resident int64
	fmt.Sscan(string(b), &size, &resident)
	return resident * int64(os.Getpagesize())
}

// What is no HTTP, or lies about its length, is answered with an error or hung
// up on. It starts no job, and what follows it is not taken for a request.
func TestLyingRequests(t *testing.T) {
	s := start(t)
	const job = `{"script":"touch lied","timeout":0}`
	post := "POST /v1/jobs/run HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
	for name, raw := range map[string]string{
		"garbage":                "\x00\xff\x16\x03\x01 garbage\r\n\r\n" + post + "Content-Length: 35\r\n\r\n" + job,
		"bad chunk size":         post + "Transfer-Encoding: chunked\r\n\r\nzz\r\n" + job + "\r\n0\r\n\r\n",
		"huge chunk size":        post + "Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n" + job + "\r\n0\r\n\r\n",
		"chunk without end":      post + "Transfer-Encoding: chunked\r\n\r\n23\r\n" + job + "X\r\n0\r\n\r\n",
		"two lengths":            post + "Content-Length: 35\r\nContent-Length: 3\r\n\r\n" + job,
		"length and two codings": post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n23\r\n" + job + "\r\n0\r\n\r\n",
		"negative length":        post + "Content-Length: -35\r\n\r\n" + job,
		"length with a sign":     post + "Content-Length: +35\r\n\r\n" + job,
		"bare line feed header":  "POST /v1/jobs/run HTTP/1.1\r\nHost: x\r\nContent-Length : 35\r\n\r\n" + job,
		"no host":                "POST /v1/jobs/run HTTP/1.1\r\nContent-Length: 35\r\n\r\n" + job,
		"header flood":           "GET /healthz HTTP/1.1\r\nHost: x\r\n" + strings.Repeat("X-A: "+strings.Repeat("a", 1000)+"\r\n", 200) + "\r\n",
		"long path":              "GET /" + strings.Repeat("a", 200_000) + " HTTP/1.1\r\nHost: x\r\n\r\n",
		"short body":             post + "Content-Length: 350\r\n\r\n" + job,
		"HTTP/2 preface":         "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
	} {
		c := s.dial(t)
		go func() {
			io.WriteString(c, raw)
			c.(*net.TCPConn).CloseWrite()
		}()
		in := bufio.NewReader(c)
		for {
			r, err := http.ReadResponse(in, nil)
			if err != nil {
				break
			}
			if r.StatusCode < 400 {
				t.Errorf("%s: %s", name, r.Status)
			}
			io.Copy(io.Discard, r.Body)
		}
		c.Close()
	}
	// The control: the same job, told honestly.
	if _, err := os.Stat(filepath.Join(s.home, "lied")); err == nil {
		t.Error("a job was started")
	}
	c := s.dial(t)
	fmt.Fprintf(c, "%sContent-Length: %d\r\n\r\n%s", post, len(job), job)
	if r, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || r.StatusCode != 200 {
		t.Errorf("control: %v %v", err, r)
	}
	if r := s.sh("until [ -e lied ]; do sleep 0.01; done; echo honest"); r.Output != "honest\n" {
		t.Errorf("control: %+v", r)
	}
}

// A token is asked for before a body is: the client is told at once, and no
// "100 Continue" invites the body.
func TestNoTokenNoWork(t *testing.T) {
	s := start(t, withToken("t"), withArgs("--token", "t"))
	for _, head := range []string{"Content-Length: 40000000\r\nExpect: 100-continue\r\n", "Transfer-Encoding: chunked\r\n", "Content-Length: 40000000\r\n"} {
		c := s.dial(t)
		fmt.Fprintf(c, "POST /v1/jobs/run HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer wrong\r\n%s\r\n", head)
		r, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || r.StatusCode != 401 {
			t.Errorf("%q: %v %v", head, err, r)
		}
	}
	c := s.dial(t)
	fmt.Fprint(c, "POST /v1/jobs/run HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer t\r\nContent-Length: 17\r\nExpect: 100-continue\r\n\r\n")
	if line, err := bufio.NewReader(c).ReadString('\n'); err != nil || !strings.Contains(line, "100 Continue") {
		t.Errorf("control: %v %q", err, line)
	}
}

// A client that asks and asks and never reads is let go, and others do not
// notice it.
func TestClientThatNeverReads(t *testing.T) {
	s := start(t)
	big := s.sh("head -c 400000 /dev/zero | tr '\\0' x", m{"mode": "stdio"})
	before := s.memory(t)
	for range 20 {
		c := s.dial(t)
		go func() {
			for range 50 {
				if _, err := fmt.Fprintf(c, "GET /v1/jobs/%s/log/tail?output_limit=400000 HTTP/1.1\r\nHost: x\r\n\r\n", big.JobID); err != nil {
					return
				}
			}
		}()
	}
	for range 20 {
		if r := s.sh("echo served"); r.Output != "served\n" {
			t.Fatalf("%+v", r)
		}
	}
	if grown := s.memory(t) - before; grown > 100<<20 && !raceDetector {
		t.Errorf("memory grew by %d bytes", grown)
	}
}

// serve says what is wrong with its TLS files, and warns of an open door.
func TestDoors(t *testing.T) {
	dir := t.TempDir()
	junk := write(t, filepath.Join(dir, "junk"), "junk")
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--tls-cert", junk}, 2, "go together"},
		{[]string{"--tls-cert", junk, "--tls-key", junk}, 1, "TLS certificate"},
		{[]string{"--tls-cert", filepath.Join(dir, "none"), "--tls-key", junk}, 1, "no such file"},
		{[]string{"--listen", "unix:" + dir + "/s", "--tls-cert", junk, "--tls-key", junk}, 2, "unix socket"},
		{[]string{"--max-connections", "-1"}, 2, "negative"},
	} {
		s := newServer(t, withArgs(c.args...))
		s.launch()
		if code := s.wait(); code != c.code || !strings.Contains(s.log.String(), c.want) {
			t.Errorf("%v: %d %s", c.args, code, s.log)
		}
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--listen", "0.0.0.0:0"}, "set a token"},
		{[]string{"--listen", ":0"}, "set a token"},
		{[]string{"--listen", "0.0.0.0:0", "--token", "t"}, "in clear"},
		{[]string{"--listen", "127.0.0.1:0"}, ""},
		{[]string{"--listen", "localhost:0"}, ""},
	} {
		s := newServer(t, withArgs(c.args...))
		s.start()
		for _, text := range []string{"set a token", "in clear"} {
			if strings.Contains(s.log.String(), text) != (text == c.want) {
				t.Errorf("%v: want %q: %s", c.args, c.want, s.log)
			}
		}
	}
}
