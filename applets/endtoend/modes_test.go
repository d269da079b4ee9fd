package endtoend

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// withoutLandlock makes a program that runs difyrt on a kernel which answers
// Landlock's first call with an error, by a filter of its own.
func withoutLandlock(t *testing.T, errno syscall.Errno) string {
	t.Helper()
	need(t, "python3")
	path := filepath.Join(t.TempDir(), "wrapped")
	if err := os.WriteFile(path, fmt.Appendf(nil, `#!/usr/bin/env python3
import ctypes, os, struct, sys
ins = [(0x20, 0, 0, 0), (0x15, 0, 1, 444), (0x06, 0, 0, 0x00050000 | %d), (0x06, 0, 0, 0x7fff0000)]
prog = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *i) for i in ins))
class F(ctypes.Structure): _fields_ = [("len", ctypes.c_ushort), ("p", ctypes.c_void_p)]
f = F(len(ins), ctypes.addressof(prog))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, ctypes.byref(f), 0, 0) == 0
os.execv(%q, ["difyrt"] + sys.argv[1:])
`, int(errno), bin), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestStrictAndBestEffort(t *testing.T) {
	for errno, why := range map[syscall.Errno]string{syscall.ENOSYS: "older than 5.13", syscall.EOPNOTSUPP: "not enabled", syscall.EPERM: "blocked"} {
		wrapped := withoutLandlock(t, errno)
		for _, mode := range []string{"strict", "best-effort", ""} {
			cmd := exec.Command(wrapped, "doctor")
			cmd.Env = append(os.Environ(), "SHELLCTL_ISOLATION="+mode)
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), why) || !strings.Contains(string(out), "strict would refuse") {
				t.Errorf("doctor, %v: %v %s", errno, err, out)
			}
			s := start(t, withBinary(wrapped), withEnv("SHELLCTL_ISOLATION="+mode))
			if n := strings.Count(s.log.String(), why); n != 1 {
				t.Errorf("%s: %d warnings: %s", mode, n, s.log)
			}
			r := s.sh("echo ran; ls / >/dev/null && echo saw")
			if mode == "strict" {
				if r.Status != "failed" || r.ExitCode != nil || !strings.Contains(r.Output, "strict") || strings.Contains(r.Output, "ran\n") {
					t.Errorf("strict: %s %q", r.Status, r.Output)
				}
				continue
			}
			if r.Output != "ran\nsaw\n" {
				t.Errorf("%q: %s %q", mode, r.Status, r.Output)
			}
			if got := strings.TrimSuffix(s.isolation(r.JobID), ", cgroup"); got != "seccomp" {
				t.Errorf("%q: the record says %q", mode, got)
			}
		}
	}
}

// isolation is what a job's exit record says was in force.
func (s *server) isolation(id string) string {
	s.t.Helper()
	var record struct{ Isolation string }
	b, err := os.ReadFile(filepath.Join(s.jobDir(id), "exit.json"))
	if err == nil {
		err = json.Unmarshal(b, &record)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return record.Isolation
}

func TestInfoSaysWhatIsInForce(t *testing.T) {
	abi, _, errno := syscall.Syscall(444, 0, 0, 1) // landlock_create_ruleset(2), version
	if errno != 0 {
		t.Skipf("no Landlock here: %v", errno)
	}
	type info struct {
		Landlock struct {
			Wanted bool
			ABI    int
			Rights []string
		}
		Seccomp struct {
			InForce bool `json:"in_force"`
		}
		State   struct{ Directory string }
		Refuses bool `json:"strict_would_refuse"`
	}
	for env, want := range map[string]string{
		"SHELLCTL_ISOLATION=strict":            fmt.Sprintf("landlock %d, seccomp", abi),
		"SHELLCTL_SECCOMP=false":               fmt.Sprintf("landlock %d", abi),
		"SHELLCTL_ENABLE_PATH_ISOLATION=false": "seccomp",
	} {
		s := start(t, withEnv(env), withToken("t"), withArgs("--token", "t"))
		var i info
		s.call("GET", "/v1/info", nil, &i)
		if i.Landlock.ABI != int(abi) || i.Landlock.Wanted == strings.Contains(env, "ENABLE") || len(i.Landlock.Rights) == 0 == i.Landlock.Wanted ||
			i.Seccomp.InForce == strings.Contains(env, "SECCOMP") || i.State.Directory != s.state || i.Refuses == i.Landlock.Wanted {
			t.Errorf("%s: %+v", env, i)
		}
		if got := s.isolation(s.sh("true").JobID); got != want {
			t.Errorf("%s: the record says %q, want %q", env, got, want)
		}
		s.token = ""
		s.refuse("GET", "/v1/info", nil, 401, "unauthorized")
	}
	for _, args := range [][]string{{"doctor"}, {"doctor", "--json"}} {
		code, out, errOut := call(t, "", "difyrt", args...)
		if code != 0 || !strings.Contains(out, "seccomp") || errOut != "" {
			t.Errorf("%v: %d %s %s", args, code, out, errOut)
		}
	}
}
