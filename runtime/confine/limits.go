package confine

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// The variables of the server's environment that bound what jobs may use.
const (
	EnvMaxJobs    = "SHELLCTL_MAX_JOBS"         // jobs at a time
	EnvMaxSeconds = "SHELLCTL_JOB_MAX_SECONDS"  // run time of a job
	EnvMaxOutput  = "SHELLCTL_MAX_OUTPUT_BYTES" // of each output file of a job
	EnvMinFree    = "SHELLCTL_MIN_FREE_BYTES"   // space that jobs must leave

	EnvMaxOpenFiles  = "SHELLCTL_JOB_MAX_OPEN_FILES"
	EnvMaxProcesses  = "SHELLCTL_JOB_MAX_PROCESSES"
	EnvMaxFileSize   = "SHELLCTL_JOB_MAX_FILE_BYTES"
	EnvMaxCPUSeconds = "SHELLCTL_JOB_MAX_CPU_SECONDS"
	EnvMaxMemory     = "SHELLCTL_JOB_MAX_MEMORY_BYTES"
	EnvMaxCPUPercent = "SHELLCTL_JOB_MAX_CPU_PERCENT" // 100 is one core
)

// Limits bound what jobs may use; 0 is no limit. Like Policy they travel with
// each job, and their JSON form may only grow.
type Limits struct {
	MaxJobs    int64 `json:"-"`                     // the server's own business
	MaxSeconds int64 `json:"max_seconds,omitempty"` // then the job is terminated
	MaxOutput  int64 `json:"max_output,omitempty"`  // bytes; what follows is dropped, and the job goes on
	MinFree    int64 `json:"min_free,omitempty"`    // bytes; below it a job that writes output is ended as failed

	// The kernel's own, of each process (getrlimit(2)).
	OpenFiles  int64 `json:"open_files,omitempty"`
	FileSize   int64 `json:"file_size,omitempty"`   // bytes
	CPUSeconds int64 `json:"cpu_seconds,omitempty"` // of processor time
	// Of the job as a whole where it has a cgroup with that controller. Else
	// Processes bounds all processes of the user as this job may add to them, and
	// not root's; Memory bounds the address space of each process; CPUPercent
	// nothing.
	Processes  int64 `json:"processes,omitempty"`
	Memory     int64 `json:"memory,omitempty"` // bytes
	CPUPercent int64 `json:"cpu_percent,omitempty"`
}

// LimitsFromEnv reads the limits from a lookup such as os.LookupEnv.
func LimitsFromEnv(lookup func(string) (string, bool)) (Limits, error) {
	var l Limits
	for name, to := range map[string]*int64{
		EnvMaxJobs: &l.MaxJobs, EnvMaxSeconds: &l.MaxSeconds, EnvMaxOutput: &l.MaxOutput, EnvMinFree: &l.MinFree,
		EnvMaxOpenFiles: &l.OpenFiles, EnvMaxProcesses: &l.Processes, EnvMaxFileSize: &l.FileSize, EnvMaxCPUSeconds: &l.CPUSeconds,
		EnvMaxMemory: &l.Memory, EnvMaxCPUPercent: &l.CPUPercent,
	} {
		v, _ := lookup(name)
		if v = strings.TrimSpace(v); v == "" {
			continue
		}
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil || n < 0 || name == EnvMaxSeconds && n > int64((1<<63-1)/time.Second) || name == EnvMaxCPUPercent && n > maxPercent {
			return l, fmt.Errorf("%s is %q: use a whole number, 0 for no limit", name, v)
		}
		*to = n
	}
	if l.OpenFiles > 0 && l.OpenFiles < minOpenFiles {
		return l, fmt.Errorf("%s is %d: with less than %d no program starts", EnvMaxOpenFiles, l.OpenFiles, minOpenFiles)
	}
	return l, nil
}

const (
	maxPercent   = 100 * 1 << 20
	minOpenFiles = 16 // a shell, its script, a few libraries
)

// Rlimit is one resource limit, soft and hard (setrlimit(2)).
type Rlimit struct {
	Resource int
	Max      uint64
}

// Rlimits lists what is to be set on a job's first process, from which the
// others inherit it. What its cgroup bounds is left to that.
func (l Limits) Rlimits(g *Cgroup) []Rlimit {
	var list []Rlimit
	for _, r := range []struct {
		resource int
		max      int64
		inCgroup bool
	}{
		{unix.RLIMIT_NOFILE, l.OpenFiles, false},
		{unix.RLIMIT_FSIZE, l.FileSize, false},
		{unix.RLIMIT_CPU, l.CPUSeconds, false},
		{unix.RLIMIT_NPROC, l.Processes, g.Has(pidsController)},
		{unix.RLIMIT_AS, l.Memory, g.Has(memoryController)},
	} {
		if r.max > 0 && !r.inCgroup {
			list = append(list, Rlimit{r.resource, uint64(r.max)})
		}
	}
	return list
}

// Set puts the limit on a process. A hard limit that is lower already stays.
func (r Rlimit) Set(pid int) error {
	var old unix.Rlimit
	err := unix.Prlimit(pid, r.Resource, nil, &old)
	if err == nil {
		max := min(r.Max, old.Max)
		err = unix.Prlimit(pid, r.Resource, &unix.Rlimit{Cur: max, Max: max}, nil)
	}
	if err != nil {
		return fmt.Errorf("set resource limit %d: %w", r.Resource, err)
	}
	return nil
}

// Unkept lists the variables of limits that are wanted and that nothing can keep
// when jobs' cgroups have these controllers.
func (l Limits) Unkept(controllers []string, root bool) (names []string) {
	if l.Processes > 0 && root && !slices.Contains(controllers, pidsController) {
		names = append(names, EnvMaxProcesses)
	}
	if l.CPUPercent > 0 && !slices.Contains(controllers, cpuController) {
		names = append(names, EnvMaxCPUPercent)
	}
	return names
}

// WantCgroups reports whether a cgroup would keep one of the limits better.
func (l Limits) WantCgroups() bool { return l.Processes > 0 || l.Memory > 0 || l.CPUPercent > 0 }

// NoCoreDumps keeps this process and all that it starts from leaving core dumps:
// a job's would fill its home with what it had in memory.
func NoCoreDumps() error {
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("turn core dumps off: %w", err)
	}
	return nil
}

// PreferForOOM makes a job's process, and what it forks from then on, the kernel's
// first choice when memory runs out, before this process (proc_pid_oom_score_adj(5)).
// It is a help and no promise: where it cannot be written nothing changes.
func PreferForOOM(pid int) {
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/oom_score_adj", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	_, _ = unix.Write(fd, jobOOMScore())
}

const oomStep, oomMost = 300, 1000

var jobOOMScore = sync.OnceValue(func() []byte {
	b, _ := os.ReadFile("/proc/self/oom_score_adj")
	own, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	return []byte(strconv.Itoa(min(own+oomStep, oomMost)))
})

// Free gives the bytes that an unprivileged process can still write below dir.
func Free(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("free space of %s: %w", dir, err)
	}
	return int64(st.Bavail) * st.Bsize, nil
}
