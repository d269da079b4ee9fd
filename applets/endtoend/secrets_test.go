package endtoend

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const secret = "s3cret-t0ken-of-this-test"

// The token is in no place that another process of the same user can read. Each
// way of giving it is tried, and the control shows that the place is readable
// when the token is not hidden.
func TestTokenCannotBeRead(t *testing.T) {
	file := write(t, filepath.Join(t.TempDir(), "token"), secret+"\n")
	for name, o := range map[string][]option{
		"flag":        {withArgs("--token", secret)},
		"flag=":       {withArgs("--token=" + secret)},
		"environment": {withEnv("SHELLCTL_AUTH_TOKEN=" + secret)},
		"file":        {withArgs("--token-file", file)},
	} {
		s := start(t, append(o, withToken(secret))...)
		s.sh("true")
		for what, pid := range map[string]int{"serve": s.cmd.Process.Pid, "runner": s.runner()} {
			for _, place := range []string{"cmdline", "environ"} {
				b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, place))
				if os.Getuid() == 0 && err != nil {
					t.Fatal(err)
				}
				if bytes.Contains(b, []byte(secret)) {
					t.Errorf("%s: the token is in the %s of %s", name, place, what)
				}
			}
			status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
			if len(status) == 0 {
				t.Errorf("%s is not readable at all", what)
			}
		}
	}
	control := exec.Command("/bin/sh", "-c", "echo up; read x")
	control.Env = []string{"SHELLCTL_AUTH_TOKEN=" + secret}
	in, err := control.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := control.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := control.Start(); err != nil {
		t.Fatal(err)
	}
	defer control.Wait()
	defer in.Close()
	out.Read(make([]byte, 3)) // now it is in its program
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", control.Process.Pid))
	if err != nil || !bytes.Contains(b, []byte(secret)) {
		t.Errorf("control: %v %q", err, b)
	}
}

// A process of the same user, unconfined, cannot open the memory, environment
// or descriptors of serve and runner.
func TestProcessesAreClosedToTheirUser(t *testing.T) {
	s := startAsUser(t)
	mark := unique()
	s.run("exec sleep "+mark, m{"timeout": 0, "mode": "stdio"})
	for len(withArg(mark)) == 0 {
		s.sh("true")
	}
	try := func(pid int, place string) error {
		cmd := exec.Command("head", "-c", "1", "/proc/"+strconv.Itoa(pid)+"/"+place)
		if place == "fd" {
			cmd = exec.Command("ls", "/proc/"+strconv.Itoa(pid)+"/fd")
		}
		cmd.SysProcAttr = s.attr
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	for _, place := range []string{"environ", "maps", "fd"} {
		if err := try(withArg(mark)[0], place); err != nil {
			t.Errorf("control: %s of a job: %v", place, err)
		}
		for what, pid := range map[string]int{"serve": s.cmd.Process.Pid, "runner": s.runner()} {
			if err := try(pid, place); err == nil || !strings.Contains(err.Error(), "ermission denied") {
				t.Errorf("%s of %s: %v", place, what, err)
			}
		}
	}
}
