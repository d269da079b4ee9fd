package confine

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// The variables of the server's environment that choose the isolation
// (contract, Environment). A request's env never reaches them.
const (
	EnvIsolation = "SHELLCTL_ENABLE_PATH_ISOLATION"
	EnvRW        = "SHELLCTL_LANDLOCK_RW_PATHS"
	EnvRO        = "SHELLCTL_LANDLOCK_RO_PATHS"
	EnvDev       = "SHELLCTL_LANDLOCK_RW_DEV_PATHS"
	EnvMode      = "SHELLCTL_ISOLATION"        // strict or best-effort
	EnvSeccomp   = "SHELLCTL_SECCOMP"          // false: no system call filter
	EnvIOURing   = "SHELLCTL_SECCOMP_IO_URING" // true: io_uring is allowed
)

var (
	defaultRO = []string{"/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/proc",
		"/opt/dify-agent-tools", "/opt/homebrew", "/snap"}
	defaultDev = []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/urandom", "/dev/random", "/dev/tty"}
)

// Policy is what an operator allows every job beyond its own Home, cwd, job
// directory and terminal. It travels from the server to the runner with each
// job, so its JSON form may only grow.
type Policy struct {
	Enabled bool `json:"enabled"` // Landlock
	Seccomp bool `json:"seccomp,omitempty"`
	IOURing bool `json:"io_uring,omitempty"`
	// Strict: a job is refused when its files cannot be kept apart. Otherwise it
	// runs with what the kernel has.
	Strict bool     `json:"strict,omitempty"`
	RW     []string `json:"rw,omitempty"`
	RO     []string `json:"ro,omitempty"`
	Dev    []string `json:"dev,omitempty"`
}

// Mode names the choice of Strict as EnvMode has it.
func (p Policy) Mode() string {
	if p.Strict {
		return modeStrict
	}
	return modeBestEffort
}

const modeStrict, modeBestEffort = "strict", "best-effort"

// PolicyFromEnv reads the policy from a lookup such as os.LookupEnv. A value
// that it does not understand is an error: a typing mistake must not open jobs
// up in silence.
func PolicyFromEnv(lookup func(string) (string, bool)) (Policy, error) {
	p := Policy{Enabled: true, Seccomp: true}
	for name, to := range map[string]*bool{EnvIsolation: &p.Enabled, EnvSeccomp: &p.Seccomp, EnvIOURing: &p.IOURing} {
		v, _ := lookup(name)
		if v = strings.ToLower(strings.TrimSpace(v)); v == "" {
			continue
		}
		on, err := strconv.ParseBool(v)
		if err != nil {
			return p, fmt.Errorf("%s is %q: use true or false", name, v)
		}
		*to = on
	}
	switch v, _ := lookup(EnvMode); strings.ToLower(strings.TrimSpace(v)) {
	case "", modeBestEffort:
	case modeStrict:
		p.Strict = true
		if !p.Enabled {
			return p, fmt.Errorf("%s=%s contradicts %s=false", EnvMode, modeStrict, EnvIsolation)
		}
	default:
		return p, fmt.Errorf("%s is %q: use %s or %s", EnvMode, v, modeStrict, modeBestEffort)
	}
	for _, l := range []struct {
		name string
		to   *[]string
		def  []string
	}{{EnvRW, &p.RW, nil}, {EnvRO, &p.RO, defaultRO}, {EnvDev, &p.Dev, defaultDev}} {
		v, ok := lookup(l.name)
		if !ok {
			*l.to = l.def
			continue
		}
		for path := range strings.SplitSeq(v, ",") {
			path = strings.TrimSpace(path)
			if path == "" {
				continue
			}
			if !filepath.IsAbs(path) {
				return p, fmt.Errorf("%s holds %q: paths must be absolute", l.name, path)
			}
			*l.to = append(*l.to, path)
		}
	}
	return p, nil
}

// Place is where one job lives: what it is given beside the policy.
type Place struct {
	Home, Cwd, JobDir string
	TTY               string // its own terminal; empty on pipes
}

// Grants lists everything that a job in this place may reach.
func (p Policy) Grants(at Place) []Grant {
	g := make([]Grant, 0, 4+len(p.RW)+len(p.RO)+len(p.Dev))
	g = append(g,
		Grant{at.Home, ReadWrite, true},
		Grant{at.Cwd, ReadWrite, true},
		Grant{at.JobDir, ReadExecute, true})
	if at.TTY != "" {
		g = append(g, Grant{at.TTY, Device, false})
	}
	for _, l := range []struct {
		paths  []string
		access Access
	}{{p.RW, ReadWrite}, {p.RO, ReadExecute}, {p.Dev, Device}} {
		for _, path := range l.paths {
			g = append(g, Grant{path, l.access, false})
		}
	}
	return g
}
