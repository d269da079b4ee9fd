package endtoend

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// bin is the executable under test, in a directory with all its names.
var bin, binDir string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "difyrt-e2e-")
	if err != nil {
		panic(err)
	}
	os.Chmod(dir, 0o755)
	binDir = dir
	bin = filepath.Join(dir, "difyrt")
	args := []string{"build", "-o", bin}
	env := append(os.Environ(), "CGO_ENABLED=0")
	if raceDetector {
		args = append(args, "-race")
		env = append(os.Environ(), "CGO_ENABLED=1")
	}
	cmd := exec.Command("go", append(args, "difyrt")...)
	// A plain user in CI has neither the sources nor a build cache.
	if built := os.Getenv("DIFYRT_TEST_BINARY"); built != "" {
		cmd = exec.Command("cp", built, bin)
	}
	cmd.Env, cmd.Stdout, cmd.Stderr = env, os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "make the executable:", err)
		os.Exit(1)
	}
	if out, err := exec.Command(bin, "install", dir).CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "install: %v: %s\n", err, out)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// patience is the limit of everything that must happen, and mostly does so at once.
const patience = 30 * time.Second

// need fails in CI, and skips elsewhere, when a tool is not on the machine.
func need(t testing.TB, tools ...string) {
	t.Helper()
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			if os.Getenv("CI") != "" {
				t.Fatalf("%s is missing", tool)
			}
			t.Skipf("%s is missing", tool)
		}
	}
}

// server is one `difyrt serve` with directories of its own.
type server struct {
	t           testing.TB
	bin         string
	home, state string
	env, args   []string
	token       string
	listen      string // unix:PATH, or a loopback port that the kernel picks
	attr        *syscall.SysProcAttr
	cmd         *exec.Cmd
	log         *logBuffer
	url         string
	http        *http.Client
	exited      chan struct{}
}

type option func(*server)

func withEnv(kv ...string) option    { return func(s *server) { s.env = append(s.env, kv...) } }
func withArgs(args ...string) option { return func(s *server) { s.args = append(s.args, args...) } }
func withState(dir string) option    { return func(s *server) { s.state = dir } }
func withHome(dir string) option     { return func(s *server) { s.home = dir } }
func withListen(addr string) option  { return func(s *server) { s.listen = addr } }
func withBinary(path string) option  { return func(s *server) { s.bin = path } }
func withToken(token string) option  { return func(s *server) { s.token = token } }

// logBuffer holds what a server logs and lets a test wait for a line.
type logBuffer struct {
	mu   sync.Mutex
	cond *sync.Cond
	b    bytes.Buffer
	eof  bool
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b.Write(p)
	l.cond.Broadcast()
	return len(p), nil
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// await returns the first line that holds what, "" when the server ended without it.
func (l *logBuffer) await(what string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		for line := range strings.SplitSeq(l.b.String(), "\n") {
			if strings.Contains(line, what) {
				return line
			}
		}
		if l.eof {
			return ""
		}
		l.cond.Wait()
	}
}

func newServer(t testing.TB, opts ...option) *server {
	t.Helper()
	dir := scratch(t)
	s := &server{t: t, bin: bin, home: filepath.Join(dir, "home"), state: filepath.Join(dir, "state")}
	for _, o := range opts {
		o(s)
	}
	if err := os.MkdirAll(s.home, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.end)
	return s
}

// scratch is a directory that goes with the test. A benchmark's stays until the
// end of the run: some file systems make files slowly for a minute after many
// were deleted (ext4 without a journal looks for inodes that are not recently freed).
func scratch(t testing.TB) string {
	if _, ok := t.(*testing.B); !ok {
		return t.TempDir()
	}
	dir, err := os.MkdirTemp(binDir, "bench-")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// start starts a server and waits until it answers.
func start(t testing.TB, opts ...option) *server {
	t.Helper()
	s := newServer(t, opts...)
	s.start()
	return s
}

func (s *server) start() {
	s.t.Helper()
	s.launch()
	line := s.log.await("msg=serving")
	if line == "" {
		s.t.Fatalf("the server ended at its start: %s", s.log)
	}
	if s.listen == "" {
		_, rest, _ := strings.Cut(line, "listen=")
		addr, _, _ := strings.Cut(rest, " ")
		s.url = "http://" + addr
	}
}

// launch starts the process and does not wait for anything.
func (s *server) launch() {
	s.t.Helper()
	listen := s.listen
	if listen == "" {
		listen = "127.0.0.1:0"
	}
	s.cmd = exec.Command(s.bin, append([]string{"serve", "--listen", listen}, append(s.stateFlag(), s.args...)...)...)
	s.cmd.Dir = s.home
	s.cmd.Env = append([]string{"HOME=" + s.home, "LANG=C.UTF-8", "PATH=" + binDir + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, s.env...)
	s.cmd.SysProcAttr = s.attr
	s.log = &logBuffer{}
	s.log.cond = sync.NewCond(&s.log.mu)
	s.cmd.Stderr = s.log
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	cmd, log, exited := s.cmd, s.log, make(chan struct{})
	s.exited = exited
	go func() {
		cmd.Wait()
		log.mu.Lock()
		log.eof = true
		log.cond.Broadcast()
		log.mu.Unlock()
		close(exited)
	}()
	tr := &http.Transport{MaxIdleConnsPerHost: 128}
	if path, ok := strings.CutPrefix(s.listen, "unix:"); ok {
		s.url = "http://unix"
		tr.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}
	}
	s.http = &http.Client{Transport: tr, Timeout: 2 * time.Minute}
}

// wait gives the exit code of a server that ends.
func (s *server) wait() int {
	s.t.Helper()
	select {
	case <-s.exited:
		return s.cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		s.t.Fatalf("the server did not end: %s", s.log)
		return -1
	}
}

func (s *server) kill() {
	s.t.Helper()
	s.cmd.Process.Kill()
	s.wait()
}

func (s *server) stop() int {
	s.t.Helper()
	s.cmd.Process.Signal(syscall.SIGTERM)
	return s.wait()
}

// end leaves nothing behind: jobs and runners are killed with the server.
func (s *server) end() {
	if s.cmd == nil || s.cmd.Process == nil {
		return
	}
	s.cmd.Process.Kill()
	<-s.exited
	for _, pid := range s.runners() {
		for _, p := range append([]int{pid}, descendants(pid)...) {
			syscall.Kill(p, syscall.SIGKILL)
		}
		awaitDeath(s.t, pid)
	}
	if s.t.Failed() {
		log, _ := os.ReadFile(filepath.Join(s.state, "runner.log"))
		s.t.Logf("server's log:\n%s\nrunner's log:\n%s", s.log, log)
	}
}

// runners finds the runners of the server's state directory.
func (s *server) runners() []int {
	var pids []int
	for _, p := range processes() {
		if len(p.args) > 3 && p.args[0] == "shellctl-runner" && p.args[3] == s.state {
			pids = append(pids, p.pid)
		}
	}
	return pids
}

func (s *server) runner() int {
	s.t.Helper()
	pids := s.runners()
	if len(pids) != 1 {
		s.t.Fatalf("%d runners, want 1", len(pids))
	}
	return pids[0]
}

// m is a JSON object.
type m = map[string]any

type result struct {
	JobID      string `json:"job_id"`
	Done       bool
	Status     string
	ExitCode   *int   `json:"exit_code"`
	OutputPath string `json:"output_path"`
	Output     string
	Offset     int64
	Truncated  bool
}

func (r result) code() int {
	if r.ExitCode == nil {
		return -1
	}
	return *r.ExitCode
}

type view struct {
	JobID     string `json:"job_id"`
	Status    string
	Done      bool
	ExitCode  *int    `json:"exit_code"`
	CreatedAt string  `json:"created_at"`
	StartedAt *string `json:"started_at"`
	EndedAt   *string `json:"ended_at"`
	Offset    int64
}

func (v view) code() int {
	if v.ExitCode == nil {
		return -1
	}
	return *v.ExitCode
}

// send makes a request and gives status and body.
func (s *server) send(ctx context.Context, method, path string, body any) (int, []byte, error) {
	var r io.Reader
	switch b := body.(type) {
	case nil:
	case []byte:
		r = bytes.NewReader(b)
	default:
		j, err := json.Marshal(b)
		if err != nil {
			return 0, nil, err
		}
		r = bytes.NewReader(j)
	}
	req, err := http.NewRequestWithContext(ctx, method, s.url+path, r)
	if err != nil {
		return 0, nil, err
	}
	if s.token != "" {
		req.Header.Set("Authorization", "Bearer "+s.token)
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, b, err
}

// call wants a 200 and decodes it into into.
func (s *server) call(method, path string, body, into any) {
	s.t.Helper()
	if err := s.try(method, path, body, into); err != nil {
		s.t.Fatal(err)
	}
}

// try is call for other goroutines than the test's.
func (s *server) try(method, path string, body, into any) error {
	status, b, err := s.send(context.Background(), method, path, body)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	if status != 200 {
		return fmt.Errorf("%s %s: %d %s", method, path, status, b)
	}
	if into != nil {
		if err := json.Unmarshal(b, into); err != nil {
			return fmt.Errorf("%s %s: %w: %s", method, path, err, b)
		}
	}
	return nil
}

// refuse wants an error of this status and code, and gives its message.
func (s *server) refuse(method, path string, body any, status int, code string) string {
	s.t.Helper()
	got, b, err := s.send(context.Background(), method, path, body)
	if err != nil {
		s.t.Fatal(err)
	}
	var e struct {
		Error struct{ Code, Message string }
	}
	if json.Unmarshal(b, &e); got != status || e.Error.Code != code {
		s.t.Fatalf("%s %s: %d %s, want %d %s", method, path, got, b, status, code)
	}
	return e.Error.Message
}

func with(base m, more ...m) m {
	for _, o := range more {
		for k, v := range o {
			base[k] = v
		}
	}
	return base
}

// run starts a job and comes back with its first page.
func (s *server) run(script string, more ...m) (r result) {
	s.t.Helper()
	s.call("POST", "/v1/jobs/run", with(m{"script": script, "timeout": 20}, more...), &r)
	return r
}

// sh runs a job to its end and gives its last state with the whole output.
func (s *server) sh(script string, more ...m) result {
	s.t.Helper()
	r, err := s.follow(s.run(script, more...))
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

// follow pages a job to its end; the result holds everything from its first page on.
func (s *server) follow(r result) (result, error) {
	all := r.Output
	for end := time.Now().Add(patience); r.Truncated || !r.Done; {
		if time.Now().After(end) {
			return r, fmt.Errorf("job %s not done, status %s, output %.200q", r.JobID, r.Status, all)
		}
		if err := s.try("POST", "/v1/jobs/"+r.JobID+"/wait", m{"offset": r.Offset, "timeout": 5, "output_limit": 524288}, &r); err != nil {
			return r, err
		}
		all += r.Output
	}
	r.Output = all
	return r, nil
}

func (s *server) waitFor(id string, offset int64, more ...m) (r result) {
	s.t.Helper()
	s.call("POST", "/v1/jobs/"+id+"/wait", with(m{"offset": offset, "timeout": 20}, more...), &r)
	return r
}

func (s *server) input(id, text string, offset int64, more ...m) (r result) {
	s.t.Helper()
	s.call("POST", "/v1/jobs/"+id+"/input", with(m{"text": text, "offset": offset, "timeout": 20}, more...), &r)
	return r
}

func (s *server) view(id string) (v view) {
	s.t.Helper()
	s.call("GET", "/v1/jobs/"+id, nil, &v)
	return v
}

// done waits for a job's end and gives the view of it.
func (s *server) done(id string) view {
	s.t.Helper()
	end := time.Now().Add(patience)
	for r := s.waitFor(id, s.view(id).Offset, m{"timeout": 5}); !r.Done; {
		if time.Now().After(end) {
			s.t.Fatalf("job %s is still %s", id, r.Status)
		}
		r = s.waitFor(id, r.Offset, m{"timeout": 5})
	}
	return s.view(id)
}

func (s *server) terminate(id string, grace float64) (v view) {
	s.t.Helper()
	s.call("POST", "/v1/jobs/"+id+"/terminate", m{"grace_seconds": grace}, &v)
	return v
}

func (s *server) jobDir(id string) string { return filepath.Join(s.state, "jobs", id) }

// connections counts the server's established TCP connections. Its descriptors
// are closed to its user, the kernel's table is not (proc_net_tcp).
func (s *server) connections() int {
	s.t.Helper()
	_, port, _ := strings.Cut(strings.TrimPrefix(s.url, "http://"), ":")
	n, err := strconv.Atoi(port)
	if err != nil {
		s.t.Fatal(err)
	}
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		s.t.Fatal(err)
	}
	count := 0
	for line := range strings.SplitSeq(string(table), "\n") {
		f := strings.Fields(line)
		if len(f) > 3 && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", n)) && f[3] == "01" {
			count++
		}
	}
	return count
}

// gate is a fifo in the home: a job that reads it sleeps until open is called.
type gate struct{ path string }

func (s *server) gate(name string) gate {
	s.t.Helper()
	g := gate{filepath.Join(s.home, name)}
	if err := syscall.Mkfifo(g.path, 0o600); err != nil {
		s.t.Fatal(err)
	}
	return g
}

// open lets through n jobs that wait at the gate, or will.
func (g gate) open(t testing.TB, n int) {
	t.Helper()
	f, err := os.OpenFile(g.path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() }) // open until the end, so that late readers find their line
	if _, err := f.WriteString(strings.Repeat("go\n", n)); err != nil {
		t.Fatal(err)
	}
}
