package endtoend

import (
	"bytes"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// call runs a command of ours to its end.
func call(t testing.TB, stdin string, name string, args ...string) (code int, out, errOut string) {
	t.Helper()
	cmd := exec.Command(filepath.Join(binDir, name), args...)
	var o, e bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &o, &e
	cmd.Env = []string{"HOME=" + t.TempDir(), "PATH=/usr/bin:/bin"}
	if err := cmd.Run(); err != nil {
		if _, ok := err.(*exec.ExitError); !ok {
			t.Fatal(err)
		}
	}
	return cmd.ProcessState.ExitCode(), o.String(), e.String()
}

var applets = map[string]string{"serve": "shellctl", "sanitize-pty": "shellctl-sanitize-pty",
	"runner-exit": "shellctl-runner-exit", "runner": "shellctl-runner", "cli": "dify-agent"}

func TestEveryNameHasHelpAndVersion(t *testing.T) {
	for short, installed := range applets {
		for _, c := range [][]string{{"difyrt", short}, {"difyrt", installed}, {installed}} {
			for _, flag := range []string{"--help", "--version"} {
				code, out, errOut := call(t, "", c[0], append(c[1:], flag)...)
				if code != 0 || out == "" || errOut != "" {
					t.Errorf("%v %s: exit %d, stdout %q, stderr %q", c, flag, code, out, errOut)
				}
			}
		}
	}
}

func TestAloneListsAppletsAndUnknownExits2(t *testing.T) {
	_, alone, _ := call(t, "", "difyrt")
	code, _, unknown := call(t, "", "difyrt", "frobnicate")
	if code != 2 || !strings.Contains(unknown, "frobnicate") {
		t.Errorf("exit %d, stderr %q", code, unknown)
	}
	for short, installed := range applets {
		for _, text := range []string{alone, unknown} {
			if !strings.Contains(text, short) || !strings.Contains(text, installed) {
				t.Errorf("%s or %s is not listed in %q", short, installed, text)
			}
		}
	}
}

func TestExecutableIsStatic(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector links dynamically")
	}
	f, err := elf.Open(bin)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("the executable has a %v segment", p.Type)
		}
	}
}

func TestInstall(t *testing.T) {
	dir := t.TempDir()
	for range 2 { // the second replaces the links of the first
		if code, _, errOut := call(t, "", "difyrt", "install", dir); code != 0 {
			t.Fatalf("exit %d: %s", code, errOut)
		}
	}
	for _, name := range applets {
		if got, err := filepath.EvalSymlinks(filepath.Join(dir, name)); err != nil || got != bin {
			t.Errorf("%s leads to %q (%v), want %q", name, got, err, bin)
		}
	}
	write(t, filepath.Join(dir, "precious"), "x")
	os.Rename(filepath.Join(dir, "precious"), filepath.Join(dir, "shellctl"))
	if code, _, errOut := call(t, "", "difyrt", "install", dir); code != 1 || !strings.Contains(errOut, "--force") {
		t.Errorf("a file in the way: exit %d, %q", code, errOut)
	}
	if code, _, _ := call(t, "", "difyrt", "install", "--force", dir); code != 0 {
		t.Errorf("--force: exit %d", code)
	}
	if code, _, _ := call(t, "", "difyrt", "install", filepath.Join(dir, "missing")); code != 1 {
		t.Errorf("a missing directory: exit %d", code)
	}
}

// The reference's way: the one-shot runner in a tmux pane, its output piped
// through the filter, the exit recorded by runner-exit, all on a job that a
// server has made.
func TestUnderTmux(t *testing.T) {
	need(t, "tmux")
	s := start(t)
	// A row to record into: a live job whose runner and server are then killed.
	id := s.run("sleep 600", m{"timeout": 0}).JobID
	runner := s.runner()
	s.kill()
	for _, p := range append([]int{runner}, descendants(runner)...) { // the runner first: it must record nothing
		syscall.Kill(p, syscall.SIGKILL)
	}
	awaitDeath(t, runner)

	jd := filepath.Join(t.TempDir(), "job")
	if err := os.Mkdir(jd, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, jd+"/script", `printf '\033[1;32mgreen\033[0m\n'; printf '10%%\r100%%\r\n'; printf 'Name: '; read x; echo "got $x in $PWD"; exit 7`)
	write(t, jd+"/.job-env.json", `{"HOME":"`+s.home+`"}`)
	sock, log, rdy, after := filepath.Join(jd, "tm"), filepath.Join(jd, "log"), filepath.Join(jd, "rdy"), filepath.Join(jd, "after")
	tmux := func(args ...string) {
		t.Helper()
		cmd := exec.Command("tmux", append([]string{"-u", "-S", sock, "-f", "/dev/null"}, args...)...)
		cmd.Env = []string{"PATH=" + binDir + ":/usr/bin:/bin", "HOME=" + s.home, "LANG=C.UTF-8"}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("tmux %s: %v: %s", args[0], err, out)
		}
	}
	tmux("new-session", "-d", "-x", "80", "-y", "24", "-s", "j",
		"shellctl-runner "+jd+" "+id+" "+s.home+"; shellctl-runner-exit --state-dir "+s.state+" --job-id "+id+
			" --exit-code $(cat "+jd+"/runner-exit-code) --ended-at $(cat "+jd+"/runner-ended-at) > "+after+" 2>&1; echo \"exit $?\" >> "+after)
	t.Cleanup(func() { exec.Command("tmux", "-S", sock, "kill-server").Run() })
	tmux("pipe-pane", "-t", "j", "exec shellctl-sanitize-pty --ready-file "+rdy+" >> "+log)
	awaitFile(t, rdy, "")
	write(t, jd+"/start-gate", "")
	awaitFile(t, log, "Name: ") // a prompt, shown because the pane is quiet
	tmux("send-keys", "-t", "j", "bob", "Enter")
	awaitFile(t, after, "exit 0\n")
	got, _ := os.ReadFile(log)
	if want := "green\n100%\nName: bob\ngot bob in " + s.home + "\n"; string(got) != want {
		t.Errorf("log %q, want %q", got, want)
	}
	s.start()
	if v := s.view(id); v.Status != "exited" || v.code() != 7 {
		t.Errorf("after runner-exit the job is %s with %d", v.Status, v.code())
	}
}
