package endtoend

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// calls tries one system call after the other and prints the names of those
// that fail with EPERM. The numbers are amd64's.
const calls = `
import ctypes, errno, mmap, os, socket
libc = ctypes.CDLL(None, use_errno=True)
P = ctypes.c_void_p
def sc(nr, *a):
    return libc.syscall(ctypes.c_long(nr), *[x if isinstance(x, (P, bytes)) else ctypes.c_long(x) for x in a])
def ia32():
    m = mmap.mmap(-1, 4096, prot=7)
    m.write(b"\x53\xb8\x14\x00\x00\x00\xcd\x80\x5b\xc3")  # push rbx; mov eax, 20 (getpid); int 0x80; pop rbx; ret
    f = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))
    r = f()
    if r < 0: ctypes.set_errno(-r)
    return -1 if r < 0 else r
def sock(family):
    try: socket.socket(family, socket.SOCK_DGRAM).close(); return 0
    except OSError as e: ctypes.set_errno(e.errno); return -1
tries = {
    "control": lambda: sc(39),
    "add_key": lambda: sc(248, b"user", b"difyrt", b"x", 1, -2),
    "keyctl": lambda: sc(250, 0, -1, 0),
    "userfaultfd": lambda: sc(323, 1),
    "io_uring_setup": lambda: sc(425, 1, P(0)),
    "bpf": lambda: sc(321, 9999, P(0), 0),
    "mount": lambda: sc(165, P(0), P(0), P(0), 0, P(0)),
    "umount2": lambda: sc(166, P(0), 0),
    "fsopen": lambda: sc(430, P(0), 0),
    "move_mount": lambda: sc(429, -1, P(0), -1, P(0), 0),
    "open_by_handle_at": lambda: sc(304, -1, P(0), 0),
    "perf_event_open": lambda: sc(298, P(0), 0, -1, -1, 0),
    "finit_module": lambda: sc(313, -1, P(0), 0),
    "kexec_load": lambda: sc(246, 0, 99, P(0), 4),
    "swapon": lambda: sc(167, P(0), 0),
    "x32": lambda: sc(0x40000000 | 39),
    "ia32": ia32,
    "tiocsti": lambda: libc.ioctl(0, ctypes.c_ulong(0x5412), b"x"),
    "tiocsti-high": lambda: libc.ioctl(0, ctypes.c_ulong(0xffff00005412), b"x"),
    "packet": lambda: sock(17), "alg": lambda: sock(38), "vsock": lambda: sock(40),
    "inet": lambda: sock(2), "unix": lambda: sock(1), "netlink": lambda: sock(16),
}
for name, f in tries.items():
    ctypes.set_errno(0)
    if f() < 0 and ctypes.get_errno() == errno.EPERM: print(name)
`

func TestDeniedSystemCalls(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the numbers in the script are amd64's")
	}
	need(t, "python3")
	all := []string{"add_key", "keyctl", "userfaultfd", "io_uring_setup", "bpf", "mount", "umount2", "fsopen", "move_mount", "open_by_handle_at",
		"perf_event_open", "finit_module", "kexec_load", "swapon", "x32", "ia32", "tiocsti", "tiocsti-high", "packet", "alg", "vsock"}
	without := slices.DeleteFunc(slices.Clone(all), func(n string) bool { return n == "io_uring_setup" })
	for _, c := range []struct {
		env  string
		want []string
	}{
		{"", all}, {"SHELLCTL_SECCOMP=true", all}, {"SHELLCTL_ENABLE_PATH_ISOLATION=false", all},
		{"SHELLCTL_SECCOMP_IO_URING=true", without}, {"SHELLCTL_SECCOMP=false SHELLCTL_ENABLE_PATH_ISOLATION=false", nil}, // root keeps its capabilities without Landlock
	} {
		if c.want == nil && os.Getuid() != 0 {
			continue // a plain user's own rights deny most of it too, so that there is no control
		}
		s := start(t, withEnv(strings.Fields(c.env)...))
		write(t, filepath.Join(s.home, "calls.py"), calls)
		r := s.sh("stty -echo; python3 calls.py; exit 0", m{"env": m{"PATH": "/usr/bin:/bin", "SHELLCTL_SECCOMP": "false"}})
		got := strings.Fields(r.Output)
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: denied %v\nwant %v", c.env, got, c.want)
		}
	}
}

// What agents do every day works under the filter and in the domain.
func TestOrdinaryWorkGoesOn(t *testing.T) {
	need(t, "python3", "git", "gcc", "tmux", "go")
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	root := strings.TrimSpace(string(goroot))
	// Terminals of its own, which tmux makes, are not in the default list: /dev/pts
	// would show a job the terminals of all others.
	devices := "SHELLCTL_LANDLOCK_RW_DEV_PATHS=/dev/null,/dev/zero,/dev/urandom,/dev/random,/dev/tty,/dev/ptmx,/dev/pts"
	s := start(t, withEnv(devices, "SHELLCTL_LANDLOCK_RO_PATHS=/usr,/bin,/sbin,/lib,/lib64,/etc,/proc,/sys,"+root))
	work := map[string]string{
		"python":   `/usr/bin/python3 -c 'import threading, subprocess, socket, ssl, sqlite3; t = threading.Thread(target=print, args=("thread",)); t.start(); t.join(); print(subprocess.check_output(["echo", "sub"], text=True), end="")'`,
		"sockets":  `/usr/bin/python3 -c 'import socket; a = socket.create_server(("127.0.0.1", 0)); b = socket.create_connection(a.getsockname()); print(socket.getaddrinfo("localhost", 80) != [])'`,
		"git":      `git init -q r && cd r && git config user.email a@b && git config user.name a && echo x > f && git add f && git commit -qm m && git clone -q . ../c && git -C ../c log --oneline | wc -l`,
		"gcc":      `printf 'int main(void){return 7;}' > m.c && gcc m.c -o m && { ./m || [ $? = 7 ]; }`,
		"go":       `export GOCACHE=$PWD/gc GOFLAGS=-buildvcs=false GOTOOLCHAIN=local; mkdir g && cd g && printf 'module g\n' > go.mod && printf 'package main\nfunc main(){println("go")}\n' > m.go && ` + root + `/bin/go build -o g . && ./g`,
		"tmux":     `export TMUX_TMPDIR=$PWD; tmux -f /dev/null new-session -d 'echo inside > t; sleep 600' && until [ -s t ]; do sleep 0.05; done; tmux kill-server`,
		"ptrace":   `/usr/bin/python3 -c 'import ctypes, os, signal; pid = os.fork(); pid or (ctypes.CDLL(None).ptrace(0, 0, 0, 0), os.kill(os.getpid(), signal.SIGSTOP), os._exit(3)); os.waitpid(pid, 0); assert ctypes.CDLL(None).ptrace(7, pid, 0, 0) == 0; assert os.waitpid(pid, 0)[1] == 768'`,
		"shell":    `bash -c 'set -o pipefail; cat <(seq 5) | sort -rn | head -1'; mkfifo p; (echo x > p &); cat p; (exec 3<>/dev/null); nice true; timeout 1 true; stty size; umask 077; ulimit -c 0`,
		"hardlink": `mkdir -p a b; echo x > a/f; ln a/f b/g; mv a/f b/h; cat b/g b/h`,
	}
	if _, err := exec.LookPath("node"); err == nil {
		work["node"] = `node -e 'const {Worker} = require("worker_threads"); new Worker("require(\"http\").createServer().listen(0, \"127.0.0.1\", function () { process.exit(0) })", {eval: true}).on("exit", c => process.exit(c))'`
	}
	path := "/usr/bin:/bin:/usr/local/bin"
	for name, script := range work {
		for _, mode := range modes {
			if mode == "stdio" && strings.Contains(script, "stty") || mode == "pty" && name == "go" { // it takes long
				continue
			}
			dir := filepath.Join(s.home, name+"-"+mode)
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if r := s.sh("set -e\n"+script, m{"mode": mode, "cwd": dir, "env": m{"PATH": path}}); r.code() != 0 {
				t.Errorf("%s (%s): %d %s", name, mode, r.code(), r.Output)
			}
		}
	}
}
