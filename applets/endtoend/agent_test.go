package endtoend

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// stubServer is an agent stub that checks what it gets against the contract
// (agent-cli, section 3), and misbehaves where a test replaces a route.
type stubServer struct {
	t      *testing.T
	server *httptest.Server
	mu     sync.Mutex
	routes map[string]http.HandlerFunc // "METHOD /path"; others are an error
	bodies map[string][]map[string]any // what came, by route
	files  map[string]string           // uploaded, by name
}

const (
	stubToken = "eyJ.stub-token"
	reference = "dify-file-ref:eyJyZWNvcmRfaWQiOiIxIn0" // {"record_id":"1"}
)

func newStub(t *testing.T) *stubServer {
	s := &stubServer{t: t, bodies: map[string][]map[string]any{}, files: map[string]string{}}
	s.server = httptest.NewServer(s)
	t.Cleanup(s.server.Close)
	url := s.server.URL
	s.mu.Lock() // the server's goroutines began without it
	defer s.mu.Unlock()
	s.routes = map[string]http.HandlerFunc{
		"POST /agent-stub/connections":            answer(`{"connection_id":"6f9619ff-8b86-d011-b42d-00cf4fc964ff","status":"connected"}`),
		"POST /agent-stub/files/upload-request":   answer(`{"upload_url":"` + url + `/upload?sign=s3cret-url"}`),
		"POST /agent-stub/files/download-request": answer(`{"filename":"report.txt","mime_type":"text/plain","size":7,"download_url":"` + url + `/download"}`),
		"GET /agent-stub/config/manifest":         answer(`{"agent_id":"a","skills":{"items":[{"name":"one"},{"name":"two"}]},"files":{"items":[{"name":"a b.txt"}]},"env_keys":[],"note":"a note"}`),
		"POST /agent-stub/config/push":            answer(`{"result":"pushed"}`),
		"PATCH /agent-stub/config/env":            answer(`{"result":"env"}`),
		"PUT /agent-stub/config/note":             answer(`{"result":"note"}`),
		"POST /upload":                            s.upload,
		"GET /download":                           answer("content"),
		"POST /agent-stub/knowledge/commands":     s.knowledge,
	}
	return s
}

func answer(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, body) }
}

func refuse(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		io.WriteString(w, body)
	}
}

func (s *stubServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key := r.Method + " " + r.URL.Path
	toStub := strings.HasPrefix(r.URL.Path, "/agent-stub")
	if auth := r.Header.Get("Authorization"); toStub != (auth == "Bearer "+stubToken) || !toStub && auth != "" {
		s.t.Errorf("%s with authorization %q", key, auth)
	}
	if toStub && r.Method != "GET" {
		var body map[string]any
		b, err := io.ReadAll(r.Body)
		if err == nil {
			err = json.Unmarshal(b, &body)
		}
		if err != nil || r.Header.Get("Content-Type") != "application/json" {
			s.t.Errorf("%s: %v, %s", key, err, r.Header.Get("Content-Type"))
		}
		r.Body = io.NopCloser(bytes.NewReader(b))
		s.mu.Lock()
		s.bodies[key] = append(s.bodies[key], body)
		s.mu.Unlock()
	}
	if strings.HasSuffix(key, "upload-request") && r.URL.RawQuery != "expose_expiration=true" {
		s.t.Errorf("query %q", r.URL.RawQuery)
	}
	s.mu.Lock()
	h := s.routes[key]
	s.mu.Unlock()
	if h == nil {
		s.t.Errorf("there is no route %s", key)
		h = refuse(404, `{"detail":"no such route"}`)
	}
	h(w, r)
}

// upload takes a multipart body whose length was told.
func (s *stubServer) upload(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength <= 0 {
		s.t.Errorf("an upload of length %d", r.ContentLength)
	}
	f, h, err := r.FormFile("file")
	if err != nil {
		s.t.Errorf("upload: %v", err)
		return
	}
	b, _ := io.ReadAll(f)
	s.mu.Lock()
	s.files[h.Filename] = h.Header.Get("Content-Type") + "\n" + string(b)
	s.mu.Unlock()
	fmt.Fprintf(w, `{"id":"id of %s","reference":%q}`, h.Filename, reference)
}

func (s *stubServer) knowledge(w http.ResponseWriter, r *http.Request) {
	var body map[string]any
	json.NewDecoder(r.Body).Decode(&body)
	json.NewEncoder(w).Encode(map[string]any{"version": 1, "command": body["command"], "command_id": body["command_id"], "status": "ok", "data": map[string]any{"spaced": []int{1, 2}}})
}

// route replaces what a route does.
func (s *stubServer) route(key string, h http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.routes[key] = h
}

// got gives the last body of a route.
func (s *stubServer) got(route string) map[string]any {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.bodies[route]
	if len(list) == 0 {
		s.t.Fatalf("nothing came to %s", route)
	}
	return list[len(list)-1]
}

// agent runs dify-agent in a directory.
func (s *stubServer) agent(dir, in string, args ...string) (code int, out, errOut string) {
	s.t.Helper()
	cmd := s.command(dir, args...)
	var o, e bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(in), &o, &e
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		s.t.Fatal(err)
	}
	for what, text := range map[string]string{"token": stubToken, "upload URL": "s3cret-url"} {
		if strings.Contains(o.String()+e.String(), text) {
			s.t.Errorf("%v: the %s is in the output: %s%s", args, what, o.String(), e.String())
		}
	}
	return cmd.ProcessState.ExitCode(), o.String(), e.String()
}

func (s *stubServer) command(dir string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(binDir, "dify-agent"), args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "DIFY_AGENT_STUB_API_BASE_URL="+s.server.URL+"/", "DIFY_AGENT_STUB_AUTH_JWE= "+stubToken+"\n")
	return cmd
}

func (s *stubServer) want(dir, in, out string, args ...string) {
	s.t.Helper()
	if code, got, errOut := s.agent(dir, in, args...); code != 0 || got != out || errOut != "" {
		s.t.Errorf("%v: %d\n%q, want\n%q\n%q", args, code, got, out, errOut)
	}
}

func (s *stubServer) fails(dir, message string, args ...string) {
	s.t.Helper()
	code, out, errOut := s.agent(dir, "", args...)
	if code != 1 || out != "" || !strings.HasPrefix(errOut, "dify-agent: ") || !strings.Contains(errOut, message) || strings.Count(errOut, "\n") != 1 {
		s.t.Errorf("%v: %d %q %q, want %q", args, code, out, errOut, message)
	}
}

func same(t *testing.T, what string, got any, want string) {
	t.Helper()
	if b, _ := json.Marshal(got); string(b) != want {
		t.Errorf("%s: %s, want %s", what, b, want)
	}
}

func TestAgentConnects(t *testing.T) {
	s := newStub(t)
	const id = "6f9619ff-8b86-d011-b42d-00cf4fc964ff"
	for _, c := range []struct {
		args      []string
		out, argv string
	}{
		{[]string{"connect", "a", "--json", "--x"}, "connected " + id + "\n", `["a","--json","--x"]`},
		{[]string{"connect", "--json", "a"}, `{"connection_id":"` + id + `","status":"connected"}` + "\n", `["a"]`},
		{[]string{"connect", "--", "--json", "--"}, "connected " + id + "\n", `["--json","--"]`},
		{[]string{"connect"}, "connected " + id + "\n", `[]`},
		{[]string{"deploy", "--now"}, "connected " + id + "\n", `["deploy","--now"]`},
		{[]string{"--json", "deploy"}, `{"connection_id":"` + id + `","status":"connected"}` + "\n", `["deploy"]`},
	} {
		s.want(t.TempDir(), "", c.out, c.args...)
		body := s.got("POST /agent-stub/connections")
		same(t, fmt.Sprint(c.args), body["argv"], c.argv)
		same(t, "metadata", body["metadata"], "{}")
	}
	s.fails(t.TempDir(), "unknown flag", "--jsno")
}

func TestAgentWithoutItsEnvironment(t *testing.T) {
	for env, want := range map[string]string{
		"":                                   "missing required Agent Stub environment variables: DIFY_AGENT_STUB_API_BASE_URL, DIFY_AGENT_STUB_AUTH_JWE",
		"DIFY_AGENT_STUB_AUTH_JWE=x":         "missing required Agent Stub environment variables: DIFY_AGENT_STUB_API_BASE_URL",
		"DIFY_AGENT_STUB_API_BASE_URL=ftp:x": "missing required Agent Stub environment variables: DIFY_AGENT_STUB_AUTH_JWE",
		"DIFY_AGENT_STUB_AUTH_JWE=x DIFY_AGENT_STUB_API_BASE_URL=grpc://h:1":               "http or https",
		"DIFY_AGENT_STUB_AUTH_JWE=x DIFY_AGENT_STUB_API_BASE_URL=http://u:p@h/":            "no user",
		"DIFY_AGENT_STUB_AUTH_JWE=x DIFY_AGENT_STUB_API_BASE_URL=http://h/agent-stub?q=1":  "query",
		"DIFY_AGENT_STUB_AUTH_JWE=x DIFY_AGENT_STUB_API_BASE_URL=http://h/other":           "path",
		"DIFY_AGENT_STUB_AUTH_JWE=x DIFY_AGENT_STUB_API_BASE_URL=http://h/agent-stub/more": "path",
	} {
		cmd := exec.Command(filepath.Join(binDir, "dify-agent"), "config", "manifest")
		cmd.Env = strings.Fields(env)
		out, err := cmd.CombinedOutput()
		if err == nil || cmd.ProcessState.ExitCode() != 1 || !strings.HasPrefix(string(out), "dify-agent: ") || !strings.Contains(string(out), want) {
			t.Errorf("%q: %v %s", env, err, out)
		}
	}
	cmd := exec.Command(filepath.Join(binDir, "dify-agent"), "deploy")
	cmd.Env = []string{}
	if out, err := cmd.CombinedOutput(); err == nil || !strings.HasPrefix(string(out), "Usage: dify-agent") || !strings.Contains(string(out), "\ndify-agent: missing required") {
		t.Errorf("an implicit connect: %v %s", err, out)
	}
}

func TestAgentUploads(t *testing.T) {
	s := newStub(t)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "re port.txt"), "some text")
	s.want(dir, "", `{"transfer_method":"tool_file","reference":"`+reference+`","public_download_url":"`+s.server.URL+`/download"}`+"\n", "file", "upload", "re port.txt")
	if got := s.files["re port.txt"]; got != "text/plain\nsome text" {
		t.Errorf("uploaded %q", got)
	}
	same(t, "request", s.got("POST /agent-stub/files/upload-request"), `{"filename":"re port.txt","mimetype":"text/plain"}`)
	same(t, "request", s.got("POST /agent-stub/files/download-request"), `{"file":{"reference":"`+reference+`","transfer_method":"tool_file"},"for_frontend":true}`)
	s.want(dir, "", `{"transfer_method":"tool_file","reference":"`+reference+`"}`+"\n", "file", "upload", "re port.txt", "--no-download-link")
	s.want(dir, "", `{"transfer_method":"tool_file","reference":"`+reference+`","public_download_url":"`+s.server.URL+`/download"}`+"\n", "file", "public-url", reference)

	s.fails(dir, "local file not found: none", "file", "upload", "none")
	s.fails(dir, "local file not found: .", "file", "upload", ".")
	s.fails(dir, "invalid reference", "file", "public-url", "dify-file-ref:e30")
	s.fails(dir, "at most 1", "file", "upload", "a", "b")

	// The file is uploaded, and only its URL cannot be had.
	s.route("POST /agent-stub/files/download-request", refuse(503, `{"detail":"no files here"}`))
	code, out, errOut := s.agent(dir, "", "file", "upload", "re port.txt")
	if code != 1 || out != `{"transfer_method":"tool_file","reference":"`+reference+`"}`+"\n" || !strings.Contains(errOut, "HTTP 503: no files here") ||
		!strings.Contains(errOut, "dify-agent file public-url '"+reference+"'") {
		t.Errorf("%d %q %q", code, out, errOut)
	}
	for body, want := range map[string]string{`{}`: "missing reference", `{"reference":"x"}`: "invalid reference", `{"reference":"dify-file-ref:eyJyZWNvcmRfaWQiOiIifQ"}`: "invalid reference",
		`nonsense`: "JSON", strings.Repeat(" ", 1<<20) + "{}": "larger"} {
		s.route("POST /upload", answer(body))
		s.fails(dir, want, "file", "upload", "re port.txt")
	}
	s.route("POST /upload", refuse(413, "too\x1b[31m large"))
	s.fails(dir, "upload failed with status 413: too [31m large", "file", "upload", "re port.txt")
	for body, want := range map[string]string{`{}`: "no upload_url", `{"upload_url":"file:///etc/passwd"}`: "no http", `{"upload_url":"http://u:p@h/"}`: "no http"} {
		s.route("POST /agent-stub/files/upload-request", answer(body))
		s.fails(dir, want, "file", "upload", "re port.txt")
	}
}

// An upload of 50 MiB is streamed.
func TestAgentUploadsInConstantMemory(t *testing.T) {
	s := newStub(t)
	dir := t.TempDir()
	if err := exec.Command("truncate", "-s", "50M", filepath.Join(dir, "big.bin")).Run(); err != nil {
		t.Fatal(err)
	}
	s.route("POST /upload", func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		if n != r.ContentLength || n < 50<<20 {
			t.Errorf("%d of %d bytes", n, r.ContentLength)
		}
		fmt.Fprintf(w, `{"reference":%q}`, reference)
	})
	cmd := s.command(dir, "file", "upload", "big.bin", "--no-download-link")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	if peak := cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss; peak > 40<<10 && !raceDetector {
		t.Errorf("peak memory %d kB", peak)
	}
}

// What a stub calls a file stays in the directory, and takes no name that is taken.
func TestAgentDownloads(t *testing.T) {
	s := newStub(t)
	dir := t.TempDir()
	for i, want := range []string{"in/report.txt", "in/report (1).txt", "in/report (2).txt"} {
		s.want(dir, "", want+"\n", "file", "download", "local_file", "ref", "--to", "in")
		if b, err := os.ReadFile(filepath.Join(dir, want)); err != nil || string(b) != "content" {
			t.Errorf("%d: %q %v", i, b, err)
		}
	}
	same(t, "request", s.got("POST /agent-stub/files/download-request"), `{"file":{"reference":"ref","transfer_method":"local_file"},"for_frontend":false}`)
	s.want(dir, "", "report.txt\n", "file", "download", "remote_url", "http://x/y")
	same(t, "request", s.got("POST /agent-stub/files/download-request"), `{"file":{"transfer_method":"remote_url","url":"http://x/y"},"for_frontend":false}`)
	s.fails(dir, "transfer method", "file", "download", "carrier_pigeon", "x")
	named := func(name string) {
		b, _ := json.Marshal(name)
		s.route("POST /agent-stub/files/download-request", answer(`{"filename":`+string(b)+`,"download_url":"`+s.server.URL+`/download"}`))
	}
	for name, want := range map[string]string{"../../evil": "evil", "/etc/passwd": "passwd", `..\..\evil2`: "evil2", "..": "downloaded", "": "downloaded (1)", "a\nb\x00c": "abc", "con": "con",
		"x/": "downloaded (2)", ".hidden": ".hidden", strings.Repeat("n", 300) + ".txt": strings.Repeat("n", 251) + ".txt", "  sp  ": "sp"} {
		named(name)
		code, out, errOut := s.agent(dir, "", "file", "download", "tool_file", "ref", "--to", "odd")
		if got := strings.TrimSuffix(out, "\n"); code != 0 || !strings.HasPrefix(want, "downloaded") && got != "odd/"+want || !strings.HasPrefix(got, "odd/") || strings.Count(got, "/") != 1 {
			t.Errorf("%q: %d %q %q", name, code, out, errOut)
		}
	}
	if list, _ := os.ReadDir(filepath.Dir(dir)); len(list) != 1 {
		t.Errorf("outside: %v", list)
	}
	// A link that has the name is not written through.
	os.Symlink(filepath.Join(dir, "target"), filepath.Join(dir, "odd", "link"))
	named("link")
	s.want(dir, "", "odd/link (1)\n", "file", "download", "tool_file", "ref", "--to", "odd")

	before, _ := os.ReadDir(filepath.Join(dir, "in"))
	s.route("POST /agent-stub/files/download-request", answer(`{"filename":"f","size":7,"download_url":"`+s.server.URL+`/download"}`))
	for what, h := range map[string]http.HandlerFunc{
		"with status 404": refuse(404, "gone"),
		"announced with":  answer("longer than it should be"),
		"EOF": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "7")
			io.WriteString(w, "con")
		},
		"no http or https": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "file:///etc/passwd")
			w.WriteHeader(302)
		},
		"too many redirects": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/download", http.StatusFound) },
	} {
		s.route("GET /download", h)
		s.fails(dir, what, "file", "download", "tool_file", "ref", "--to", "in")
	}
	if after, _ := os.ReadDir(filepath.Join(dir, "in")); len(after) != len(before) {
		t.Errorf("left in the directory: %v", after)
	}
}

// zipOf makes an archive; a name that ends in "@" is a symbolic link.
func zipOf(entries ...string) string {
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for i := 0; i < len(entries); i += 2 {
		h := &zip.FileHeader{Name: strings.TrimSuffix(entries[i], "@"), Method: zip.Deflate}
		if h.Name != entries[i] {
			h.SetMode(os.ModeSymlink | 0o777)
		}
		f, _ := w.CreateHeader(h)
		io.WriteString(f, entries[i+1])
	}
	w.Close()
	return b.String()
}

func TestAgentPullsSkills(t *testing.T) {
	s := newStub(t)
	dir := t.TempDir()
	archive := zipOf("SKILL.md", "# Skill\n", "bin/run.sh", "echo")
	s.route("POST /agent-stub/files/download-request", answer(`{"filename":"x","download_url":"`+s.server.URL+`/download"}`))
	s.route("GET /download", answer(archive))
	s.want(dir, "", ".dify_conf/skills/one\n# Skill\n\n.dify_conf/skills/two\n# Skill\n", "config", "skills", "pull")
	s.want(dir, "", ".dify_conf/skills/one\n# Skill\n", "config", "skill", "pull", "one")
	same(t, "request", s.got("POST /agent-stub/files/download-request"), `{"config":{"kind":"skill","name":"one"},"for_frontend":false}`)
	s.want(dir, "", `{"items":[{"name":"one","archive_path":"k/one.zip","directory_path":"k/one","skill_md":"# Skill\n"}]}`+"\n", "config", "skills", "pull", "--json", "one", "--to", "k")
	if b, err := os.ReadFile(filepath.Join(dir, "k/one.zip")); err != nil || string(b) != archive {
		t.Errorf("the archive: %v", err)
	}
	// A second pull takes the place of the first.
	write(t, filepath.Join(dir, "k/one/stale"), "x")
	s.route("GET /download", answer(zipOf("other.txt", "x")))
	s.want(dir, "", `{"items":[{"name":"one","archive_path":"k/one.zip","directory_path":"k/one","skill_md":""}]}`+"\n", "config", "skills", "pull", "--json", "one", "--to", "k")
	if list, _ := os.ReadDir(filepath.Join(dir, "k/one")); len(list) != 1 || list[0].Name() != "other.txt" {
		t.Errorf("%v", list)
	}
	s.fails(dir, "no name of a skill", "config", "skills", "pull", "../evil")

	many := make([]string, 0, 40_000)
	for i := range 20_000 {
		many = append(many, fmt.Sprintf("f%d", i), "")
	}
	for what, archive := range map[string]string{
		"leaves the directory":    zipOf("../evil", "x"),
		"leaves the directory ":   zipOf("a/../../evil", "x"),
		"leaves the directory  ":  zipOf("/etc/evil", "x"),
		"leaves the directory   ": zipOf(`..\evil`, "x"),
		"is no file":              zipOf("link@", "/etc/passwd"),
		"twice":                   zipOf("a", "x", "a", "y"),
		"bomb":                    zipOf("zeros", strings.Repeat("\x00", 40<<20)),
		"20000 entries":           zipOf(many...),
		"read the archive":        "no zip",
	} {
		s.route("GET /download", answer(archive))
		s.fails(dir, strings.TrimSpace(what), "config", "skills", "pull", "one", "--to", "k")
	}
	if _, err := os.Stat(filepath.Join(dir, "k/one/other.txt")); err != nil {
		t.Errorf("the last good one is gone: %v", err)
	}
	if list, _ := filepath.Glob(filepath.Join(dir, "k/.*")); len(list) != 0 {
		t.Errorf("left: %v", list)
	}
	// Every failure is told, in the order of the names.
	s.route("POST /agent-stub/files/download-request", refuse(404, `{"detail":{"code":"x","message":"no such skill"}}`))
	code, out, errOut := s.agent(dir, "", "config", "skills", "pull", "b", "a", "c")
	if i, j, k := strings.Index(errOut, "skill b"), strings.Index(errOut, "skill a"), strings.Index(errOut, "skill c"); code != 1 || out != "" || i < 0 || j < i || k < j || !strings.Contains(errOut, "HTTP 404: no such skill") {
		t.Errorf("%d %q %q", code, out, errOut)
	}
	s.route("GET /agent-stub/config/manifest", answer(`{"skills":{"items":[]},"files":{}}`))
	s.want(dir, "", `{"items":null}`+"\n", "config", "skills", "pull", "--json")
}

func TestAgentConfiguration(t *testing.T) {
	s := newStub(t)
	dir := t.TempDir()
	s.want(dir, "", s.manifestText(), "config", "manifest")
	s.want(dir, "", ".dify_conf/files/a b.txt\n", "config", "files", "pull")
	s.want(dir, "", `{"items":[{"name":"a b.txt","path":"d/a b.txt"}]}`+"\n", "config", "file", "pull", "a b.txt", "--to", "d", "--json")

	skill := filepath.Join(dir, "my-skill")
	for _, f := range []string{"SKILL.md", "lib/code.py", ".git/config", "node_modules/x/y", "lib/__pycache__/z", ".DS_Store", ".DIFY-SKILL-FULL.zip"} {
		os.MkdirAll(filepath.Dir(filepath.Join(skill, f)), 0o755)
		write(t, filepath.Join(skill, f), "text of "+f)
	}
	s.want(dir, "", `{"result":"pushed"}`+"\n", "config", "skills", "push", "my-skill/")
	same(t, "push", s.got("POST /agent-stub/config/push"), `{"files":[],"skills":[{"file_ref":{"id":"id of my-skill.zip","kind":"tool_file"},"name":"my-skill"}]}`)
	kind, body, _ := strings.Cut(s.files["my-skill.zip"], "\n")
	z, err := zip.NewReader(strings.NewReader(body), int64(len(body)))
	if err != nil || kind != "application/zip" {
		t.Fatal(kind, err)
	}
	var names []string
	for _, f := range z.File {
		names = append(names, f.Name)
	}
	if !slices.Equal(names, []string{"SKILL.md", "lib/code.py"}) {
		t.Errorf("packed %v", names)
	}
	os.Symlink("SKILL.md", filepath.Join(skill, "link"))
	s.fails(dir, "symbolic link", "config", "skills", "push", "my-skill")
	s.fails(dir, "no SKILL.md", "config", "skills", "push", "my-skill/lib")
	s.fails(dir, "no name of a skill", "config", "skills", "push", filepath.Join(dir, "My Skill"))
	if left, _ := filepath.Glob(filepath.Join(os.TempDir(), "skill-archive-*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}

	write(t, filepath.Join(dir, "style.css"), "b {}")
	s.want(dir, "", `{"result":"pushed"}`+"\n", "config", "files", "push", "style.css")
	same(t, "push", s.got("POST /agent-stub/config/push"), `{"files":[{"file_ref":{"id":"id of style.css","kind":"tool_file"},"name":"style.css"}],"skills":[]}`)
	s.want(dir, "", `{"result":"pushed"}`+"\n", "config", "files", "delete", "a", "b")
	same(t, "push", s.got("POST /agent-stub/config/push"), `{"files":[{"file_ref":null,"name":"a"},{"file_ref":null,"name":"b"}],"skills":[]}`)
	s.want(dir, "", `{"result":"pushed"}`+"\n", "config", "skills", "delete", "a")
	same(t, "push", s.got("POST /agent-stub/config/push"), `{"files":[],"skills":[{"file_ref":null,"name":"a"}]}`)

	s.want(dir, "A=1\n", `{"result":"env"}`+"\n", "config", "env", "push", "-")
	same(t, "env", s.got("PATCH /agent-stub/config/env"), `{"env_text":"A=1\n"}`)
	s.want(dir, "", filepath.Join(dir, ".dify_conf/note.md")+"\n", "config", "note", "pull")
	s.want(dir, "", `{"result":"note"}`+"\n", "config", "note", "push")
	same(t, "note", s.got("PUT /agent-stub/config/note"), `{"note":"a note"}`)
	s.fails(dir, "no such file", "config", "note", "push", "none")

	for body, want := range map[string]string{`{"detail":"plain"}`: "HTTP 409: plain", `{"detail":{"code":"c","message":"deep"}}`: "HTTP 409: deep", `<html>`: "HTTP 409: <html>", ``: "HTTP 409: Conflict",
		`{"detail":{"code":"agent_stub_authorization_expired","message":"m"}}`: "lasts 5 minutes"} {
		s.route("POST /agent-stub/config/push", refuse(409, body))
		s.fails(dir, want, "config", "files", "delete", "a")
	}
	s.route("POST /agent-stub/config/push", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	})
	s.fails(dir, "HTTP 307", "config", "files", "delete", "a")
}

func (s *stubServer) manifestText() string {
	w := httptest.NewRecorder()
	s.routes["GET /agent-stub/config/manifest"](w, nil)
	return w.Body.String() + "\n"
}

func TestAgentKnowledge(t *testing.T) {
	s := newStub(t)
	dir := t.TempDir()
	const id = "6f9619ff-8b86-4011-b42d-00cf4fc964ff"
	s.want(dir, "", `{"command":"search","command_id":"`+id+`","data":{"spaced":[1,2]},"status":"ok","version":1}`+"\n",
		"knowledge", "search", "--query", "x y", "--space", "s", "--limit", "50", "--command-id", id, "--image-file-id", id, "--image-file-id", reference, "--json")
	same(t, "search", s.got("POST /agent-stub/knowledge/commands"),
		`{"command":"search","command_id":"`+id+`","image_file_ids":["`+id+`","`+reference+`"],"limit":50,"query":"x y","space":"s","version":1}`)
	for _, name := range []string{"spaces", "capabilities", "ls", "tree", "cat", "stat", "open", "images"} {
		if code, out, errOut := s.agent(dir, "", "knowledge", name); code != 0 || !strings.Contains(out, `"command":"`+name+`"`) {
			t.Errorf("%s: %d %q %q", name, code, out, errOut)
		}
	}
	s.agent(dir, "", "knowledge", "tree", "--depth", "4")
	body := s.got("POST /agent-stub/knowledge/commands")
	if id, _ := body["command_id"].(string); len(id) != 36 || id[14] != '4' || body["depth"] != 4.0 || body["path"] != "/knowledge" {
		t.Errorf("%v", body)
	}
	for _, c := range [][]string{{"1 to 50", "ls", "--limit", "51"}, {"1 to 4", "tree", "--depth", "0"}, {"wants --query", "search"}, {"not defined", "spaces", "--query", "x"}, {"UUID", "spaces", "--command-id", "x"},
		{"more than 4", "search", "--query", "x", "--image-file-id", id, "--image-file-id", id, "--image-file-id", id, "--image-file-id", id, "--image-file-id", id},
		{"neither", "search", "--query", "x", "--image-file-id", "x"}, {"24576 bytes", "search", "--query", strings.Repeat("x", 24<<10)}, {"version", "spaces", "--protocol-version", "2"}, {"unknown command", "dance"}} {
		s.fails(dir, c[0], append([]string{"knowledge"}, c[1:]...)...)
	}
	for body, want := range map[string]string{`{"version":1,"command":"ls","command_id":"x","status":"ok"}`: "another command", `[]`: "JSON", strings.Repeat(" ", 64<<10) + `{}`: "larger"} {
		s.route("POST /agent-stub/knowledge/commands", answer(body))
		s.fails(dir, want, "knowledge", "ls")
	}
	s.route("POST /agent-stub/knowledge/commands", func(w http.ResponseWriter, r *http.Request) {
		var b map[string]any
		json.NewDecoder(r.Body).Decode(&b)
		json.NewEncoder(w).Encode(map[string]any{"version": 1, "command": "ls", "command_id": b["command_id"], "status": "failed"})
	})
	s.fails(dir, `status "failed"`, "knowledge", "ls")
}

// A signal ends a request at once, with the code that says so.
func TestAgentIsInterrupted(t *testing.T) {
	s := newStub(t)
	for sig, code := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143} {
		begun := make(chan struct{})
		s.route("POST /agent-stub/knowledge/commands", func(_ http.ResponseWriter, r *http.Request) {
			close(begun)
			<-r.Context().Done()
		})
		cmd := s.command(t.TempDir(), "knowledge", "ls")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		<-begun
		began := time.Now()
		cmd.Process.Signal(sig)
		cmd.Wait()
		if got := cmd.ProcessState.ExitCode(); got != code || time.Since(began) > 5*time.Second {
			t.Errorf("%v: exit %d after %v", sig, got, time.Since(began))
		}
	}
}

// The help of every command is in the dump, says what the command is for, and
// shows an example.
func TestAgentHelp(t *testing.T) {
	cmd := exec.Command(filepath.Join(binDir, "dify-agent"), "__dump-cli-help")
	cmd.Env = []string{}
	out, err := cmd.Output()
	var all map[string]string
	if err != nil || json.Unmarshal(out, &all) != nil || len(all) < 30 {
		t.Fatalf("%v %d %.200s", err, len(all), out)
	}
	for path, want := range all {
		cmd := exec.Command(filepath.Join(binDir, "dify-agent"), append(strings.Fields(path)[1:], "--help")...)
		cmd.Env = []string{}
		got, err := cmd.Output()
		if err != nil || string(got) != want || strings.Contains(want, "ARGUMENTS") == strings.Contains(want, "Example:") {
			t.Errorf("%s: %v\n%s\nin the dump:\n%s", path, err, got, want)
		}
	}
}
