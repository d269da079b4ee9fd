package confine

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestLimitsFromEnv(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		want Limits
		bad  string
	}{
		{nil, Limits{}, ""},
		{map[string]string{EnvMaxProcesses: " 100 ", EnvMaxMemory: "5", EnvMaxOpenFiles: "0"}, Limits{Processes: 100, Memory: 5}, ""},
		{map[string]string{EnvMaxCPUPercent: "150", EnvMaxCPUSeconds: "7", EnvMaxFileSize: "8", EnvMaxOpenFiles: "16"},
			Limits{CPUPercent: 150, CPUSeconds: 7, FileSize: 8, OpenFiles: 16}, ""},
		{map[string]string{EnvMaxProcesses: "-1"}, Limits{}, EnvMaxProcesses},
		{map[string]string{EnvMaxMemory: "1G"}, Limits{}, EnvMaxMemory},
		{map[string]string{EnvMaxOpenFiles: "3"}, Limits{}, EnvMaxOpenFiles},
		{map[string]string{EnvMaxCPUPercent: "9223372036854775807"}, Limits{}, EnvMaxCPUPercent},
	} {
		got, err := LimitsFromEnv(func(n string) (string, bool) { v, ok := c.env[n]; return v, ok })
		if c.bad != "" {
			if err == nil || !strings.Contains(err.Error(), c.bad) {
				t.Errorf("%v: %v", c.env, err)
			}
		} else if err != nil || got != c.want {
			t.Errorf("%v: %+v, %v", c.env, got, err)
		}
	}
}

// What a cgroup counts for the job as a whole is not limited a second time for
// each process or for the user.
func TestLimitsAreKeptOnce(t *testing.T) {
	l := Limits{OpenFiles: 1, FileSize: 2, CPUSeconds: 3, Processes: 4, Memory: 5, CPUPercent: 150}
	first := []Rlimit{{unix.RLIMIT_NOFILE, 1}, {unix.RLIMIT_FSIZE, 2}, {unix.RLIMIT_CPU, 3}}
	for _, c := range []struct {
		group    *Cgroup
		rlimits  []Rlimit
		settings []setting
		unkept   []string // for root
	}{
		{nil, append(first[:3:3], Rlimit{unix.RLIMIT_NPROC, 4}, Rlimit{unix.RLIMIT_AS, 5}), nil, []string{EnvMaxProcesses, EnvMaxCPUPercent}},
		{&Cgroup{}, append(first[:3:3], Rlimit{unix.RLIMIT_NPROC, 4}, Rlimit{unix.RLIMIT_AS, 5}), nil, []string{EnvMaxProcesses, EnvMaxCPUPercent}},
		{&Cgroup{controllers: []string{"pids"}}, append(first[:3:3], Rlimit{unix.RLIMIT_AS, 5}), []setting{{"pids", "pids.max", "4"}}, []string{EnvMaxCPUPercent}},
		{&Cgroup{controllers: []string{"pids", "memory", "cpu"}}, first,
			[]setting{{"pids", "pids.max", "4"}, {"memory", "memory.max", "5"}, {"cpu", "cpu.max", "150000 100000"}}, nil},
	} {
		if got := l.Rlimits(c.group); !reflect.DeepEqual(got, c.rlimits) {
			t.Errorf("%+v: rlimits %v", c.group, got)
		}
		if got := c.group.settings(l); !reflect.DeepEqual(got, c.settings) {
			t.Errorf("%+v: settings %v", c.group, got)
		}
		var has []string
		if c.group != nil {
			has = c.group.controllers
		}
		if got := l.Unkept(has, true); !reflect.DeepEqual(got, c.unkept) {
			t.Errorf("%+v: unkept %v", c.group, got)
		}
	}
	if list := (Limits{}).Rlimits(nil); list != nil {
		t.Errorf("no limits: %v", list)
	}
}

func TestFindCgroups(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "unit")
	os.Mkdir(dir, 0o755)
	os.WriteFile(filepath.Join(dir, "cgroup.procs"), nil, 0o644)
	os.WriteFile(filepath.Join(dir, "cgroup.controllers"), []byte("cpuset cpu io pids\n"), 0o644)
	mounts := "24 1 0:22 / /proc rw - proc proc rw\n30 1 0:26 / " + root + " rw - cgroup2 none rw\n"
	for _, own := range []string{"0::/unit\n", "8:pids:/x\n0::/unit/difyrt-main\n"} {
		g := findCgroups([]byte(mounts), []byte(own))
		if want := (&Cgroups{dir, []string{"pids", "cpu"}}); !reflect.DeepEqual(g, want) {
			t.Errorf("%q: %+v", own, g)
		}
	}
	for _, c := range [][2]string{{mounts, "8:pids:/unit\n"}, {mounts, "0::/none\n"}, {"", "0::/unit\n"}} {
		if g := findCgroups([]byte(c[0]), []byte(c[1])); g != nil {
			t.Errorf("%q: %+v", c, g)
		}
	}
}

func TestFindPidsGroups(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"one/pod/ctr", "two/pod"} {
		os.MkdirAll(filepath.Join(root, dir), 0o755)
	}
	for _, dir := range []string{"one/pod", "one/pod/ctr", "two"} {
		os.WriteFile(filepath.Join(root, dir, "pids.max"), []byte("max\n"), 0o644)
	}
	mounts := "30 1 0:26 / " + root + "/one rw - cgroup pids rw,pids\n31 1 0:27 / " + root + "/none rw - cgroup cpu rw,cpu\n" +
		"32 1 0:28 /slice " + root + "/two rw - cgroup2 none rw\n"
	for own, want := range map[string][]string{
		"8:pids:/pod/ctr\n0::/\n": {"one/pod/ctr", "one/pod", "two"}, // the mount shows our own group
		"0::/slice/pod\n":         {"two"},
		"8:cpu:/pod\n":            nil,
	} {
		got := findPidsGroups([]byte(mounts), []byte(own))
		for i := range got {
			got[i] = strings.TrimPrefix(got[i], root+"/")
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %v, want %v", own, got, want)
		}
	}
}

func TestThreadsAreCounted(t *testing.T) {
	all, ok := threadsOfAll()
	own := threadsOf(os.Getuid())
	SpareThreads()
	if more := threadsOf(os.Getuid()); !ok || own < 1 || all < own || more < spareThreads {
		t.Errorf("%d of the machine, %d own, %d later", all, own, more)
	}
	if err := threadRoom(); err != nil {
		t.Errorf("there is no room: %v", err)
	}
}
