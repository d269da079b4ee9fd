package confine

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
)

func TestLevels(t *testing.T) {
	const first = 1<<13 - 1
	for _, want := range []Level{
		{0, 0, 0}, {1, first, 0}, {2, 1<<14 - 1, 0}, {3, 1<<15 - 1, 0}, {4, 1<<15 - 1, 0}, {5, 1<<16 - 1, 0},
		{6, 1<<16 - 1, 3}, {7, 1<<16 - 1, 3}, {8, 1<<16 - 1, 3}, {9, 1<<17 - 1, 3}, {99, 1<<17 - 1, 3},
	} {
		if got := LevelAt(want.ABI); got != want {
			t.Errorf("LevelAt(%d) = %+v, want %+v", want.ABI, got, want)
		}
	}
}

func TestRights(t *testing.T) {
	const dirOnly = ll.AccessFSReadDir | ll.AccessFSMakeReg | ll.AccessFSRefer | ll.AccessFSRemoveFile
	top := LevelAt(99)
	for _, c := range []struct {
		access    Access
		dir       bool
		has, lack uint64
	}{
		{ReadWrite, true, top.FS &^ (ll.AccessFSMakeChar | ll.AccessFSMakeBlock), ll.AccessFSMakeChar | ll.AccessFSMakeBlock},
		{ReadWrite, false, ll.AccessFSWriteFile | ll.AccessFSTruncate, dirOnly},
		{ReadExecute, true, ll.AccessFSReadDir | ll.AccessFSExecute, ll.AccessFSWriteFile | ll.AccessFSTruncate},
		{ReadExecute, false, ll.AccessFSReadFile | ll.AccessFSExecute, dirOnly | ll.AccessFSWriteFile},
		{Device, false, ll.AccessFSReadFile | ll.AccessFSWriteFile | ll.AccessFSIoctlDev, dirOnly | ll.AccessFSExecute},
	} {
		got := c.access.rights(top, c.dir)
		if got&c.has != c.has || got&c.lack != 0 {
			t.Errorf("access %d, directory %v: %b", c.access, c.dir, got)
		}
		for abi := range 10 {
			if r := c.access.rights(LevelAt(abi), c.dir); r&^LevelAt(abi).FS != 0 {
				t.Errorf("access %d at ABI %d asks for rights that it does not handle: %b", c.access, abi, r)
			}
		}
	}
}

func TestPolicyFromEnv(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		want Policy
		bad  string
	}{
		{nil, Policy{Enabled: true, Seccomp: true, RO: defaultRO, Dev: defaultDev}, ""},
		{map[string]string{EnvIsolation: " "}, Policy{Enabled: true, Seccomp: true, RO: defaultRO, Dev: defaultDev}, ""},
		{map[string]string{EnvIsolation: "FALSE", EnvRW: "/a, /b,,", EnvRO: "", EnvDev: "/dev/full"},
			Policy{Seccomp: true, RW: []string{"/a", "/b"}, Dev: []string{"/dev/full"}}, ""},
		{map[string]string{EnvSeccomp: "0", EnvIOURing: "true"}, Policy{Enabled: true, IOURing: true, RO: defaultRO, Dev: defaultDev}, ""},
		{map[string]string{EnvSeccomp: "of"}, Policy{}, EnvSeccomp},
		{map[string]string{EnvMode: "Strict", EnvRO: "", EnvDev: ""}, Policy{Enabled: true, Seccomp: true, Strict: true}, ""},
		{map[string]string{EnvMode: "strict", EnvIsolation: "false"}, Policy{}, EnvMode},
		{map[string]string{EnvMode: "strickt"}, Policy{}, EnvMode},
		{map[string]string{EnvIsolation: "flase"}, Policy{}, EnvIsolation},
		{map[string]string{EnvRW: "/a,b"}, Policy{}, EnvRW},
	} {
		got, err := PolicyFromEnv(func(n string) (string, bool) { v, ok := c.env[n]; return v, ok })
		if c.bad != "" {
			if err == nil || !strings.Contains(err.Error(), c.bad) {
				t.Errorf("%v: %v", c.env, err)
			}
		} else if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%v: %+v, %v", c.env, got, err)
		}
	}
}

func TestEnviron(t *testing.T) {
	got := Environ(EnvSpec{
		Server:  []string{"PATH=/bin", "HOME=/srv", "SHELLCTL_AUTH_TOKEN=t", "TMUX=x", "TMUX_PANE=1", "PWD=/srv", "OLDPWD=/", "TMP=/var", "TERM=vt100", "BOTH=s", "junk", "A=\xff"},
		Request: map[string]string{"BOTH": "r", "B": "x\ny", "TMPDIR": "/else", "SHELLCTL_X": "mine"},
		Home:    "/home", Cwd: "/work", PTY: true})
	want := []string{"PATH=/bin", "HOME=/srv", "PWD=/work", "TERM=vt100", "A=\xff", "B=x\ny", "BOTH=r", "SHELLCTL_X=mine",
		"PAGER=cat", "GIT_PAGER=cat", "TMPDIR=/work", "TMP=/work", "TEMP=/work"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	got = Environ(EnvSpec{Home: "/home", Cwd: "/home"})
	if want := []string{"HOME=/home", "TMPDIR=/home", "TMP=/home", "TEMP=/home"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestCheckEnviron(t *testing.T) {
	long := "SECRET=" + strings.Repeat("v", maxString)
	if err := CheckEnviron([]string{long}); err == nil || !strings.Contains(err.Error(), "SECRET") || strings.Contains(err.Error(), "vvv") {
		t.Errorf("one long string: %v", err)
	}
	if err := CheckEnviron([]string{long[:maxString]}); err != nil {
		t.Errorf("the longest string: %v", err)
	}
	many := slices.Repeat([]string{strings.Repeat("x", 100_000)}, 100)
	if err := CheckEnviron(many); err == nil {
		t.Error("10 MB were accepted")
	}
	if err := CheckEnviron(many[:10]); err != nil {
		t.Errorf("1 MB: %v", err)
	}
}

func TestParseStat(t *testing.T) {
	line := "42 (a) b) (c) S 7 8 9 34816 42 4194560 1 0 0 0 0 0 0 0 20 0 1 0 123456 1 2"
	got, ok := parseStat(42, []byte(line))
	if want := (Process{42, 7, 8, 9, 'S', 123456}); !ok || got != want {
		t.Errorf("%+v %v", got, ok)
	}
	for _, bad := range []string{"", "42", "42 (x) S 1", strings.Replace(line, "123456", "x", 1)} {
		if _, ok := parseStat(42, []byte(bad)); ok {
			t.Errorf("%q was accepted", bad)
		}
	}
	if p, ok := ReadProcess(os.Getpid()); !ok || p.PPID != os.Getppid() || p.Dead() {
		t.Errorf("this process: %+v %v", p, ok)
	}
}

func TestTreeFollowsDescentSessionsAndMemory(t *testing.T) {
	p := func(pid, ppid, sid int, start uint64, state byte) Process {
		return Process{pid, ppid, pid, sid, state, start}
	}
	tree := NewTree(p(10, 1, 10, 100, 'S'), nil)
	pids := func(list []Process) (out []int) {
		for _, p := range list {
			out = append(out, p.PID)
		}
		slices.Sort(out)
		return out
	}
	first := []Process{p(1, 0, 1, 1, 'S'), p(10, 1, 10, 100, 'S'), p(11, 10, 10, 101, 'S'), p(12, 11, 12, 102, 'S'),
		p(13, 11, 13, 103, 'S'), p(14, 10, 10, 104, 'Z'), p(20, 1, 20, 90, 'S')}
	if got := pids(tree.Look(first)); !slices.Equal(got, []int{10, 11, 12, 13}) {
		t.Errorf("first look: %v", got)
	}
	// The leader and 11 are gone; 12's child 15 and a stranger with the leader's
	// number have come; 13 was reused by somebody else.
	second := []Process{p(1, 0, 1, 1, 'S'), p(10, 1, 10, 200, 'S'), p(12, 1, 12, 102, 'S'), p(13, 1, 13, 203, 'S'), p(15, 12, 12, 105, 'S'), p(16, 10, 10, 201, 'S')}
	if got := pids(tree.Look(second)); !slices.Equal(got, []int{12, 15}) {
		t.Errorf("second look: %v", got)
	}
}

func TestRulesetLeavesOutWhatIsMissing(t *testing.T) {
	level, err := Probe()
	if err != nil {
		t.Skipf("no Landlock here: %s", WhyNot(err))
	}
	dir := t.TempDir()
	os.WriteFile(filepath.Join(dir, "file"), nil, 0o600)
	os.Symlink("loop", filepath.Join(dir, "loop"))
	grants := []Grant{{dir, ReadWrite, true}, {dir + "/file", ReadWrite, true}, {dir + "/file/below", ReadExecute, false},
		{dir + "/none", ReadExecute, false}, {dir + "/loop", Device, false}, {"/dev/null", Device, true}}
	for abi := 1; abi <= level.ABI; abi++ {
		r, err := NewRuleset(LevelAt(abi), grants)
		if err != nil {
			t.Errorf("ABI %d: %v", abi, err)
			continue
		}
		r.Close()
	}
	if _, err := NewRuleset(level, []Grant{{dir + "/none", ReadWrite, true}}); err == nil {
		t.Error("a missing path that must be there was left out")
	}
}

func TestValuesInTheArgumentBlock(t *testing.T) {
	block := "difyrt\x00serve\x00--token\x00t\x00--state-dir\x00/tmp/t\x00-token=tt\x00--tokens\x00no\x00HOME=/t\x00TOKEN=\x00TOKEN=v w\x00XTOKEN=no\x00--token"
	want := []string{"t", "tt", "", "v w"}
	var got []string
	for _, v := range values([]byte(block), []string{"--token", "-token", "TOKEN"}) {
		got = append(got, block[v[0]:v[1]])
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
