package confine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The controllers of cgroup v2 that bound a job (cgroups(7)).
const (
	pidsController   = "pids"
	memoryController = "memory"
	cpuController    = "cpu"
)

// Names of our own groups below the one that was delegated.
const (
	mainGroup = "difyrt-main" // serve, runner and whoever was in the delegated group itself
	jobPrefix = "difyrt-job-"
)

// Cgroups is a cgroup v2 directory that was delegated to us: each job gets a
// group below it (Documentation/admin-guide/cgroup-v2.rst, "Delegation").
type Cgroups struct {
	Dir         string
	Controllers []string // of pids, memory and cpu, those that jobs' groups have or could have
}

// FindCgroups gives the cgroup of this process when it can be written, else nil.
func FindCgroups() *Cgroups {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil
	}
	return findCgroups(mounts, own)
}

func findCgroups(mounts, own []byte) *Cgroups {
	path := groupsOf(own)[unified]
	if filepath.Base(path) == mainGroup {
		path = filepath.Dir(path)
	}
	for _, m := range parseMounts(mounts) {
		if m.kind != "cgroup2" || path == "" {
			continue
		}
		dir := m.below(path)
		if unix.Access(dir, unix.W_OK) == nil && unix.Access(filepath.Join(dir, "cgroup.procs"), unix.W_OK) == nil {
			return &Cgroups{dir, usable(dir)}
		}
	}
	return nil
}

// usable lists which of our controllers the delegated group could give on.
func usable(dir string) (list []string) {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return nil
	}
	there := strings.Fields(string(b))
	for _, c := range []string{pidsController, memoryController, cpuController} {
		if slices.Contains(there, c) {
			list = append(list, c)
		}
	}
	return list
}

// Prepare readies the directory for jobs and removes what an earlier runner left
// of theirs. A group with processes of its own cannot give controllers on, so
// what is in it moves into a group beside the jobs'. Controllers that the kernel
// will not give are taken off the list; the error says which and why.
func (g *Cgroups) Prepare() error {
	stale, _ := filepath.Glob(filepath.Join(g.Dir, jobPrefix+"*"))
	for _, dir := range stale {
		unix.Rmdir(dir) // one that has processes stays, and is its own runner's
	}
	given, err := os.ReadFile(filepath.Join(g.Dir, "cgroup.subtree_control"))
	if err != nil {
		return fmt.Errorf("read the delegated cgroup: %w", err)
	}
	var missing []string
	for _, c := range g.Controllers {
		if !slices.Contains(strings.Fields(string(given)), c) {
			missing = append(missing, c)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	err = g.moveOut()
	for _, c := range missing {
		if werr := writeTo(g.Dir, "cgroup.subtree_control", "+"+c); werr != nil {
			err = errors.Join(err, fmt.Errorf("give controller %s to jobs: %w", c, werr))
			g.Controllers = slices.DeleteFunc(g.Controllers, func(x string) bool { return x == c })
		}
	}
	return err
}

func (g *Cgroups) moveOut() error {
	main := filepath.Join(g.Dir, mainGroup)
	if err := os.Mkdir(main, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("make the server's own cgroup: %w", err)
	}
	b, err := os.ReadFile(filepath.Join(g.Dir, "cgroup.procs"))
	if err != nil {
		return fmt.Errorf("read the delegated cgroup: %w", err)
	}
	for _, pid := range strings.Fields(string(b)) {
		// Kernel threads and what has just ended cannot be moved.
		if err := writeTo(main, "cgroup.procs", pid); err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("move process %s into the server's own cgroup: %w", pid, err)
		}
	}
	return nil
}

// Cgroup is the group of one job. A nil one is no group.
type Cgroup struct {
	dir         string
	controllers []string
	procs       *os.File // opened before the job's thread is confined; nil once entered
}

// New makes the group of a job, with its limits set. Remove it.
func (g *Cgroups) New(id string, l Limits) (*Cgroup, error) {
	if g == nil {
		return nil, nil
	}
	c := &Cgroup{dir: filepath.Join(g.Dir, jobPrefix+id), controllers: g.Controllers}
	err := os.Mkdir(c.dir, 0o755)
	if err == nil {
		c.procs, err = os.OpenFile(filepath.Join(c.dir, "cgroup.procs"), os.O_WRONLY, 0)
	}
	if err != nil {
		c.Remove()
		return nil, fmt.Errorf("make the job's cgroup: %w", err)
	}
	for _, s := range c.settings(l) {
		if err := writeTo(c.dir, s.file, s.value); err != nil {
			c.Remove()
			return nil, fmt.Errorf("set the job's %s: %w", s.file, err)
		}
	}
	return c, nil
}

type setting struct{ controller, file, value string }

// settings are what the limits come to with the controllers that there are.
func (c *Cgroup) settings(l Limits) (list []setting) {
	for _, s := range []struct {
		setting
		limit int64
	}{
		{setting{pidsController, "pids.max", strconv.FormatInt(l.Processes, 10)}, l.Processes},
		{setting{memoryController, "memory.max", strconv.FormatInt(l.Memory, 10)}, l.Memory},
		{setting{cpuController, "cpu.max", fmt.Sprintf("%d %d", l.CPUPercent*cpuPeriod/100, cpuPeriod)}, l.CPUPercent},
	} {
		if s.limit > 0 && c.Has(s.controller) {
			list = append(list, s.setting)
		}
	}
	return list
}

const cpuPeriod = 100_000 // microseconds, the kernel's default

// Has reports whether the group has this controller.
func (c *Cgroup) Has(controller string) bool {
	return c != nil && slices.Contains(c.controllers, controller)
}

// Enter moves a process into the group; what it forks from then on is in there.
// It can be called once, also on a thread that is confined.
func (c *Cgroup) Enter(pid int) error {
	_, err := c.procs.WriteString(strconv.Itoa(pid))
	c.procs.Close()
	c.procs = nil
	if err != nil {
		return fmt.Errorf("put the job into its cgroup: %w", err)
	}
	return nil
}

// Members lists the group's processes, those below it as well: a job with a
// cgroup namespace could make groups of its own.
func (c *Cgroup) Members() (pids []int) {
	if c == nil {
		return nil
	}
	filepath.WalkDir(c.dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil
		}
		b, _ := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		for _, f := range strings.Fields(string(b)) {
			if pid, err := strconv.Atoi(f); err == nil {
				pids = append(pids, pid)
			}
		}
		return nil
	})
	return pids
}

// Kill sends SIGKILL to every process of the group in one step (Linux 5.14).
func (c *Cgroup) Kill() {
	if c != nil {
		_ = writeTo(c.dir, "cgroup.kill", "1") // older kernels: the callers go on by other means
	}
}

// Remove takes the group away when its last process is gone; before that it
// does nothing.
func (c *Cgroup) Remove() {
	if c == nil {
		return
	}
	if c.procs != nil {
		c.procs.Close()
	}
	unix.Rmdir(c.dir)
}

// writeTo writes with one write to a file that exists, as cgroup files want it.
func writeTo(dir, name, value string) error {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(value)
	return err
}
