package endtoend

import (
	"encoding/json"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
)

func TestShellctlRuns(t *testing.T) {
	s := start(t, withToken("t"), withArgs("--token", "t"))
	file := write(t, filepath.Join(t.TempDir(), "token"), "t\n")
	verb := func(in string, args ...string) (int, string, string) {
		t.Helper()
		return call(t, in, "shellctl", append([]string{args[0], "--server", s.url, "--token-file", file}, args[1:]...)...)
	}
	for _, c := range []struct {
		in   string
		args []string
		code int
		out  string
	}{
		{"", []string{"run", "--", "echo", "hello;", "exit", "3"}, 3, "hello\n"},
		{"echo from stdin; pwd", []string{"run", "--cwd", "/", "-"}, 0, "from stdin\n/\n"},
		{"", []string{"run", "--env", "A=x y", "--stdio", "--", `echo "$A"; tty`}, 1, "x y\nnot a tty\n"},
		{"", []string{"run", "--", "seq 200000 | tail -1; for i in 1 2 3; do echo $i; sleep 0.1; done"}, 0, "200000\n1\n2\n3\n"},
		{"", []string{"run", "--timeout", "300ms", "--", "echo up; sleep 600"}, 124, "up\n"},
		{"", []string{"run", "--", "kill -9 $$"}, 137, ""},
	} {
		if code, out, errOut := verb(c.in, c.args...); code != c.code || out != c.out {
			t.Errorf("%v: %d %q %q", c.args, code, out, errOut)
		}
	}
	if code, out, _ := verb("", "run", "--", "seq 150000"); code != 0 || len(out) != 938895 || !strings.HasSuffix(out, "\n150000\n") {
		t.Errorf("long output: %d, %d bytes", code, len(out))
	}

	_, out, _ := verb("", "run", "--detach", "--", `printf "Name: "; read n; echo "Hello $n"; sleep 600`)
	id := strings.TrimSpace(out)
	if code, out, errOut := verb("", "status", id[:6]); code != 0 || !strings.HasPrefix(out, id+" running") {
		t.Errorf("status: %d %q %q", code, out, errOut)
	}
	s.waitFor(id, 0) // the question is there
	if code, _, errOut := verb("", "send", "--enter", id, "Ada", "L."); code != 0 {
		t.Errorf("send: %d %q", code, errOut)
	}
	s.waitFor(id, 6)
	for end := time.Now().Add(patience); ; {
		_, out, _ := verb("", "logs", id[:8])
		if out == "Name: Ada L.\nHello Ada L.\n" {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("logs: %q", out)
		}
	}
	if _, out, _ := verb("", "logs", "--tail", "4", id); out != " L.\n" {
		t.Errorf("tail: %q", out)
	}
	var list struct{ Jobs []view }
	if code, out, _ := verb("", "ps", "--json", "--status", "running"); code != 0 || json.Unmarshal([]byte(out), &list) != nil || len(list.Jobs) != 1 || list.Jobs[0].JobID != id {
		t.Errorf("ps: %d %q", code, out)
	}
	if _, out, _ := verb("", "ps"); !strings.HasPrefix(out, "JOB ") || strings.Count(out, "\n") != 9 || !strings.Contains(out, id+"  running") {
		t.Errorf("ps: %q", out)
	}
	if code, _, errOut := verb("", "rm", id); code != 1 || !strings.Contains(errOut, "job_running") {
		t.Errorf("rm of a running job: %d %q", code, errOut)
	}
	if code, _, _ := verb("", "send", "--key", "C-c", id); code != 0 {
		t.Errorf("send: %d", code)
	}
	if code, _, _ := verb("", "wait", id); code != 130 {
		t.Errorf("wait: %d", code)
	}
	if code, _, _ := verb("", "logs", "-f", id); code != 0 {
		t.Errorf("logs of a job that has ended: %d", code)
	}
	_, out, _ = verb("", "run", "--detach", "--", "sleep 600")
	if code, out, _ := verb("", "stop", "--grace", "1s", strings.TrimSpace(out)); code != 0 || !strings.Contains(out, "terminated") {
		t.Errorf("stop: %d %q", code, out)
	}
	if code, out, _ := verb("", "prune"); code != 0 || out != "removed 9\n" {
		t.Errorf("prune: %d %q", code, out)
	}
	if code, out, _ := verb("", "info"); code != 0 || !strings.Contains(out, `"landlock"`) {
		t.Errorf("info: %d %q", code, out)
	}
	for _, c := range [][]string{{"status", "xyz"}, {"status", "0123"}, {"status", strings.Repeat("0", 16)}, {"send", id, "x"}} {
		if code, _, errOut := verb("", c...); code != 1 || !strings.HasPrefix(errOut, "shellctl ") {
			t.Errorf("%v: %d %q", c, code, errOut)
		}
	}
	if code, _, errOut := call(t, "", "shellctl", "ps", "--server", s.url); code != 1 || !strings.Contains(errOut, "hint: give the server's token") {
		t.Errorf("without the token: %d %q", code, errOut)
	}
}

// Ctrl-C interrupts the job, and a second one kills it; its code comes through.
func TestShellctlPassesInterruptsOn(t *testing.T) {
	s := start(t)
	for script, want := range map[string]int{
		"trap 'exit 7' INT; echo up; while :; do sleep 0.05; done": 7,
		"trap '' INT TERM; echo up; while :; do sleep 0.05; done":  137,
	} {
		cmd := exec.Command(filepath.Join(binDir, "shellctl"), "run", "--server", s.url, "--", script)
		tty, err := pty.Start(cmd)
		if err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 64)
		for got := ""; !strings.Contains(got, "up"); {
			n, err := tty.Read(buf)
			if err != nil {
				t.Fatal(err)
			}
			got += string(buf[:n])
		}
		go io.Copy(io.Discard, tty)
		cmd.Process.Signal(syscall.SIGINT)
		if want == 137 {
			time.Sleep(200 * time.Millisecond) // the first has arrived, and done nothing
			cmd.Process.Signal(syscall.SIGINT)
		}
		cmd.Wait()
		tty.Close()
		if code := cmd.ProcessState.ExitCode(); code != want {
			t.Errorf("%s: exit %d, want %d", script, code, want)
		}
	}
}

// Without a server, run has one of its own, and leaves nothing of it.
func TestShellctlRunsWithoutAServer(t *testing.T) {
	if c, err := net.Dial("tcp", "127.0.0.1:8765"); err == nil {
		c.Close()
		t.Skip("something serves at the default place")
	}
	tmp, home := t.TempDir(), t.TempDir()
	for script, want := range map[string]int{"echo here; pwd; exit 5": 5, "true": 0} {
		cmd := exec.Command(filepath.Join(binDir, "shellctl"), "run", "--", script)
		cmd.Env = []string{"HOME=" + home, "TMPDIR=" + tmp, "PATH=" + os.Getenv("PATH")}
		var errOut strings.Builder
		cmd.Stderr = &errOut
		out, _ := cmd.Output()
		if code := cmd.ProcessState.ExitCode(); code != want || want == 5 && string(out) != "here\n"+home+"\n" || !strings.Contains(errOut.String(), "private") {
			t.Errorf("%s: %d %q %q", script, code, out, errOut.String())
		}
	}
	if list, _ := os.ReadDir(tmp); len(list) != 0 {
		t.Errorf("left: %v", list)
	}
	if code, _, errOut := call(t, "", "shellctl", "ps"); code != 1 || !strings.Contains(errOut, "hint: is the server running") {
		t.Errorf("other verbs: %d %q", code, errOut)
	}
	for _, p := range processes() {
		for _, a := range p.args {
			if strings.HasPrefix(a, tmp) && p.state != 'Z' && p.args[0] != "shellctl-runner" { // the runner is on its way
				t.Errorf("left: %v", p.args)
			}
		}
	}
}
