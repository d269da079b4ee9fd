package endtoend

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// victim is an agent's job that the attacks go for. It listens on a socket in
// its home and on an abstract one.
const victim = `import os, socket, sys
open("secret", "w").write("s3cret")
s = [socket.socket(socket.AF_UNIX) for _ in range(2)]
s[0].bind("sock")
s[1].bind("\0" + sys.argv[1])
for x in s: x.listen(64)
open("pid", "w").write(str(os.getpid()))
print("up", flush=True)
sys.stdin.read()`

const pythonPath = "PATH=/usr/bin:/bin; "

// attack is something that a job must not achieve. Its script exits with 0 when
// it was achieved.
type attack struct {
	name, script string
	// open turns the protection off, which makes the attack work: the control.
	// None is given where it would take more than a setting.
	open string
	// abi is the least Landlock ABI that stops it; below, README says that it works.
	abi int
}

const (
	noLandlock = "SHELLCTL_ENABLE_PATH_ISOLATION=false"
	noSeccomp  = "SHELLCTL_SECCOMP=false"
	onlyRoot   = noLandlock + "\x00" // works for root alone
)

// In the scripts: $V the victim's home, $P its pid, $M the name of its abstract
// socket, $S the state directory, $J the victim's job, $B the directory of the
// executable, $SERVE and $RUNNER pids.
var attacks = []attack{
	{"read another home", `cat $V/secret`, noLandlock, 1},
	{"list another home", `ls $V`, noLandlock, 1},
	{"write in another home", `echo x > $V/new`, noLandlock, 1},
	{"remove from another home", `touch x; rm $V/prey`, noLandlock, 1},
	{"truncate in another home", `/usr/bin/python3 -c 'import os; os.truncate("'$V'/prey", 0)'`, noLandlock, 3},
	{"link another's file into the own home", `ln $V/secret stolen-$$ && cat stolen-$$`, noLandlock, 1},
	{"move another's file into the own home", `mv $V/prey moved-$$`, noLandlock, 1},
	{"through a link in the own home", `ln -s $V s-$$; cat s-$$/secret`, noLandlock, 1},
	{"through the victim's cwd in /proc", `cat /proc/$P/cwd/secret`, noLandlock, 1},
	{"through the victim's root in /proc", `cat /proc/$P/root$V/secret`, noLandlock, 1},
	{"execute from another home", `$V/tool`, noLandlock, 1},

	{"read the job database", `cat $S/jobs.db`, noLandlock, 1},
	{"write the job database", `echo x >> $S/jobs.db`, noLandlock, 1},
	{"read another job's script", `cat $S/jobs/$J/script`, noLandlock, 1},
	{"read another job's output", `cat $S/jobs/$J/output.log`, noLandlock, 1},
	{"write another job's output", `echo x >> $S/jobs/$J/output.log`, noLandlock, 1},
	{"write in the own job directory", `echo x > ${0%/*}/mine`, noLandlock, 1},
	{"take the state's lock away", `rm $S/serve.lock`, noLandlock, 1},
	{"replace the executable", `cp /bin/true $B/new && mv -f $B/new $B/difyrt`, noLandlock, 1},

	{"read another job's environment", `cat /proc/$P/environ`, noLandlock, 1},
	{"read another job's memory", `grep -q . /proc/$P/maps`, noLandlock, 1},
	{"read another job's descriptors", `readlink /proc/$P/fd/0`, noLandlock, 1},
	{"trace another job", `/usr/bin/python3 -c 'import ctypes, sys; sys.exit(ctypes.CDLL(None).ptrace(16, '$P', 0, 0) != 0)'`, noLandlock, 1},
	{"read the server's environment", `cat /proc/$SERVE/environ`, "", 0},
	{"read the runner's memory map", `grep -q . /proc/$RUNNER/maps`, "", 0},
	{"read the server's descriptors", `readlink /proc/$SERVE/fd/0`, "", 0},

	{"signal another job", `kill -0 $P`, noLandlock, 6},
	{"signal the server", `kill -0 $SERVE`, noLandlock, 6},
	{"signal the runner", `kill -0 $RUNNER`, noLandlock, 6},
	{"connect to another job's abstract socket", `/usr/bin/python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect("\x00'$M'")'`, noLandlock, 6},
	{"connect to a socket in another home", `/usr/bin/python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect("'$V'/sock")'`, noLandlock, 9},

	{"make a device in the own home", `mknod d-$$ c 1 3 && echo x > d-$$`, onlyRoot, 1},

	{"user namespace", `unshare -U true`, noSeccomp, 0},
	{"user namespace by clone", `/usr/bin/python3 -c 'import ctypes, os, sys
r = ctypes.CDLL(None).syscall(56, 0x10000011, 0, 0, 0, 0)
if r == 0: os._exit(0)
sys.exit(r < 0)'`, noSeccomp, 0},
	{"mount namespace by clone3", `/usr/bin/python3 -c 'import ctypes, os, struct, sys
a = ctypes.create_string_buffer(struct.pack("8Q", 0x10020000, 0, 0, 0, 17, 0, 0, 0))
r = ctypes.CDLL(None).syscall(435, a, 64)
if r == 0: os._exit(0)
sys.exit(r < 0)'`, noSeccomp, 0},

	{"widen by the request's variables", `cat $V/secret`, "", 1},
}

// stage is a server with a victim on it.
func stage(t *testing.T, user bool, env ...string) (s *server, prefix string) {
	t.Helper()
	dir := t.TempDir()
	exe := filepath.Join(dir, "bin", "difyrt")
	os.Mkdir(filepath.Dir(exe), 0o755)
	copyFile(t, bin, exe)
	for p := dir; p != "/" && p != os.TempDir(); p = filepath.Dir(p) {
		os.Chmod(p, 0o755)
	}
	begin := start
	if user {
		begin = startAsUser
		os.Chown(filepath.Dir(exe), plainUser, plainUser)
	}
	s = begin(t, withBinary(exe), withEnv(env...))
	prey := filepath.Join(filepath.Dir(s.home), "victim")
	mark := unique()
	r := s.run("cd; touch prey; cp /bin/true tool; exec /usr/bin/python3 -c '"+victim+"' "+mark, m{"env": m{"HOME": prey}, "idle_flush_seconds": 0.05})
	if r.Output != "up\n" {
		t.Fatalf("the victim: %+v", r)
	}
	pid, err := os.ReadFile(filepath.Join(prey, "pid"))
	if err != nil {
		t.Fatal(err)
	}
	return s, pythonPath + fmt.Sprintf("V=%s P=%s M=%s S=%s J=%s B=%s SERVE=%d RUNNER=%d; exec 2>&1\n",
		prey, pid, mark, s.state, r.JobID, filepath.Dir(exe), s.cmd.Process.Pid, s.runner())
}

// Every attack is tried by a job with another home: it fails where it is to be
// stopped, and works where its protection is turned off.
func TestAttacks(t *testing.T) {
	need(t, "python3", "unshare")
	abi, _, _ := syscall.Syscall(444, 0, 0, 1) // landlock_create_ruleset(2), version
	users := map[string]bool{"plain user": true}
	if os.Getuid() == 0 {
		users["root"] = false
	}
	for who, user := range users {
		t.Run(who, func(t *testing.T) {
			guarded, prefix := stage(t, user)
			widened := m{"env": m{"SHELLCTL_LANDLOCK_RW_PATHS": "/", "SHELLCTL_ENABLE_PATH_ISOLATION": "false", "SHELLCTL_ISOLATION": "best-effort",
				"SHELLCTL_LANDLOCK_RO_PATHS": "/", "SHELLCTL_SECCOMP": "false"}}
			for _, a := range attacks {
				r := guarded.sh(prefix+a.script, widened)
				if achieved := r.code() == 0; achieved != (int(abi) < a.abi) {
					t.Errorf("%s: achieved: %v, at ABI %d; it is stopped from %d on: %q", a.name, achieved, abi, a.abi, r.Output)
				}
			}
			for _, a := range attacks {
				if a.open == "" || a.open == onlyRoot && user {
					continue
				}
				if why := noControl(a, user); why != "" {
					t.Logf("no control for %q: %s", a.name, why)
					continue
				}
				// A stage of its own: what the attack does to it stays.
				open, prefix := stage(t, user, strings.TrimSuffix(a.open, "\x00"))
				if r := open.sh(prefix + a.script); r.code() != 0 {
					t.Errorf("control: %s: %d %q", a.name, r.code(), r.Output)
				}
				open.end()
			}
		})
	}
}

// noControl says why an attack does not work on this machine even without us.
func noControl(a attack, user bool) string {
	if strings.Contains(a.name, "trace") {
		if b, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope"); err == nil && b[0] != '0' {
			return "Yama's ptrace_scope"
		}
	}
	if a.open == noSeccomp {
		if os.Getenv("GOARCH") == "arm64" {
			return "the numbers in the scripts are amd64's"
		}
		// Landlock forbids mounts but not namespaces, so that the kernel's own
		// settings decide.
		if b, err := os.ReadFile("/proc/sys/kernel/unprivileged_userns_clone"); user && err == nil && b[0] == '0' {
			return "unprivileged_userns_clone"
		}
		if b, err := os.ReadFile("/proc/sys/user/max_user_namespaces"); err == nil && strings.TrimSpace(string(b)) == "0" {
			return "max_user_namespaces"
		}
	}
	return ""
}

// By default a job whose HOME is the server's own reaches neither the database
// nor another job's files, though clients find them below that HOME.
func TestStateIsOutsideOfTheHome(t *testing.T) {
	s := newServer(t)
	s.args = nil
	s.state = "" // the default
	s.start()
	defer func() {
		for _, dir := range []string{s.state} {
			os.RemoveAll(dir)
		}
	}()
	link := filepath.Join(s.home, ".local/share/shellctl")
	to, err := os.Readlink(link)
	if err != nil {
		t.Fatal(err)
	}
	s.state = to // so that the runner is found at the end
	secret := s.sh("echo of another job")
	if want := filepath.Join(link, "jobs", secret.JobID, "output.log"); secret.OutputPath != want {
		t.Errorf("output_path %s, want %s", secret.OutputPath, want)
	}
	if b, err := os.ReadFile(secret.OutputPath); err != nil || string(b) != "of another job\n" {
		t.Errorf("a client on this machine reads %q %v", b, err)
	}
	const try = `for f in jobs.db jobs/$J/output.log jobs/$J/script serve.lock; do cat $HOME/.local/share/shellctl/$f && echo read $f; done; ls $HOME/.local/share/shellctl/ && echo list; echo x >> $HOME/.local/share/shellctl/jobs.db && echo wrote; exit 0`
	r := s.sh("exec 2>/dev/null; J="+secret.JobID+"; "+try, m{"mode": "stdio"})
	if r.Output != "" {
		t.Errorf("a job reached the state: %q", r.Output)
	}
	// The control: a state directory in the home is open, and the server says so.
	open := newServer(t)
	open.state = filepath.Join(open.home, ".local/share/shellctl")
	open.start()
	if !strings.Contains(open.log.String(), "can read and write the state directory") {
		t.Errorf("no warning: %s", open.log)
	}
	id := open.sh("true").JobID
	if r := open.sh("J="+id+"; "+try, m{"mode": "stdio"}); !strings.Contains(r.Output, "read jobs.db") || !strings.Contains(r.Output, "wrote") {
		t.Errorf("control: %q", r.Output)
	}
	// In strict mode such a job is refused.
	strict := newServer(t, withEnv("SHELLCTL_ISOLATION=strict"))
	strict.state = filepath.Join(strict.home, "state")
	strict.start()
	if r := strict.sh("true"); r.Status != "failed" || !strings.Contains(r.Output, "state directory") {
		t.Errorf("strict: %+v", r)
	}
	if r := strict.sh("echo fine", m{"env": m{"HOME": t.TempDir()}, "cwd": t.TempDir()}); r.Output != "fine\n" {
		t.Errorf("strict, elsewhere: %+v", r)
	}

	// What a job makes of the link gains it nothing: the server goes on with its
	// own state, also after a restart, and names it.
	fake := t.TempDir()
	s.sh("cd $HOME/.local/share && rm shellctl && mkdir -p shellctl/jobs && echo junk > shellctl/jobs.db")
	if r := s.sh("echo x"); r.OutputPath != filepath.Join(s.state, "jobs", r.JobID, "output.log") {
		t.Errorf("output_path %s", r.OutputPath)
	}
	s.stop()
	state := s.state
	s.state = ""
	s.start()
	s.state = state
	if v := s.view(secret.JobID); v.Status != "exited" {
		t.Errorf("after the restart: %+v", v)
	}
	s.sh("cd $HOME/.local && mv share away && ln -s " + fake + " share")
	s.stop()
	s.state = ""
	s.start()
	s.state = state
	if v := s.view(secret.JobID); v.Status != "exited" {
		t.Errorf("after the second restart: %+v", v)
	}
	if list, err := os.ReadDir(fake); err != nil || len(list) > 0 {
		t.Errorf("written through a job's link: %v %v", list, err)
	}
}

// Two hundred jobs with a home each, and the server writes its state afterwards
// as before: no domain of theirs has caught a thread of its.
func TestServerIsNeverConfined(t *testing.T) {
	s := start(t)
	dir := t.TempDir()
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			var r result
			home := filepath.Join(dir, strconv.Itoa(i))
			err := s.try("POST", "/v1/jobs/run", m{"script": "echo $HOME > own; ls .. 2>/dev/null; cat own", "cwd": dir, "env": m{"HOME": home}, "mode": modes[i%2]}, &r)
			if err == nil {
				r, err = s.follow(r)
			}
			if err != nil || r.code() != 0 {
				t.Errorf("%d: %v %+v", i, err, r)
			}
		})
	}
	wg.Wait()
	for range 5 {
		if r := s.sh("echo after"); r.Output != "after\n" {
			t.Fatalf("%+v", r)
		}
	}
	var list struct{ Jobs []view }
	s.call("GET", "/v1/jobs?limit=200", nil, &list)
	for _, j := range list.Jobs {
		s.call("DELETE", "/v1/jobs/"+j.JobID, nil, nil)
	}
	for _, pid := range []int{s.cmd.Process.Pid, s.runner()} {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
		for _, task := range tasks {
			if b, err := os.ReadFile(task); err == nil && strings.Contains(string(b), "Seccomp:\t2") {
				t.Errorf("a thread of process %d is under a job's filter: %s", pid, task)
			}
		}
	}
}
