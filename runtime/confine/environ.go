package confine

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// internalPrefixes name the variables that are the runtime's own business and
// never come to a job from the server's environment (contract, Environment).
var internalPrefixes = []string{"SHELLCTL_", "TMUX"}

// terminalDefaults hold in pty mode, where neither side sets them.
var terminalDefaults = []string{"TERM=xterm-256color", "PAGER=cat", "GIT_PAGER=cat"}

// tempNames point to the cwd, whatever anybody says.
var tempNames = []string{"TMPDIR", "TMP", "TEMP"}

// EnvSpec is what a job's environment is made of.
type EnvSpec struct {
	Server  []string          // the server's environment, NAME=value
	Request map[string]string // laid over it, verbatim
	Home    string            // HOME where neither has one
	Cwd     string
	PTY     bool
}

// Environ gives the job's environment, sorted by where it comes from: the
// server's variables in their order, then the request's by name, then ours.
func Environ(s EnvSpec) []string {
	out := make([]string, 0, len(s.Server)+len(s.Request)+8)
	seen := make(map[string]bool, cap(out))
	add := func(name, kv string) {
		if !seen[name] {
			seen[name] = true
			out = append(out, kv)
		}
	}
	for _, n := range tempNames {
		seen[n] = true
	}
	for _, kv := range s.Server {
		name, _, ok := strings.Cut(kv, "=")
		if !ok || internal(name) || name == "OLDPWD" {
			continue
		}
		if _, over := s.Request[name]; over {
			continue
		}
		if name == "PWD" { // the server's own would lie to the job
			kv = "PWD=" + s.Cwd
		}
		add(name, kv)
	}
	for _, name := range slices.Sorted(maps.Keys(s.Request)) {
		add(name, name+"="+s.Request[name])
	}
	add("HOME", "HOME="+s.Home)
	if s.PTY {
		for _, kv := range terminalDefaults {
			name, _, _ := strings.Cut(kv, "=")
			add(name, kv)
		}
	}
	for _, n := range tempNames {
		out = append(out, n+"="+s.Cwd)
	}
	return out
}

func internal(name string) bool {
	for _, p := range internalPrefixes {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return false
}

// Limits of execve(2), "Limits on size of arguments and environment".
const (
	maxString  = 32*4096 - 1 // MAX_ARG_STRLEN, less the final NUL
	stackLimit = 8 << 20     // _STK_LIM
	minTotal   = 128 << 10   // ARG_MAX, which the kernel always grants
	slack      = 16 << 10    // argv, the file name, an interpreter's line
)

// CheckEnviron tells whether execve(2) will take this environment, so that a
// job which could never start is refused with a reason. It names the variable
// and never its value.
func CheckEnviron(env []string) error {
	total, limit := 0, envLimit()
	for _, kv := range env {
		if len(kv) > maxString {
			name, _, _ := strings.Cut(kv, "=")
			return fmt.Errorf("env variable %.64q is %d bytes long; the kernel takes at most %d bytes of NAME=value", name, len(kv), maxString)
		}
		total += len(kv) + 1 + 8 // its NUL and its pointer
	}
	if total > limit {
		return fmt.Errorf("the job's environment takes %d bytes (server's and request's together); the kernel takes at most %d", total, limit)
	}
	return nil
}

func envLimit() int {
	limit := stackLimit / 4 * 3
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_STACK, &r); err == nil && r.Cur/4 < uint64(limit) {
		limit = int(r.Cur / 4)
	}
	return max(limit, minTotal) - slack
}
