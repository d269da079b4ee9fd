package endtoend

import (
	"os"
	"strings"
	"testing"
)

// The usual devices work in both modes, by every name that they have.
func TestDevices(t *testing.T) {
	need(t, "bash", "stty")
	s := start(t)
	for name, c := range map[string]struct {
		script, want string
		modes        []string
	}{
		"full":        {`{ /bin/echo x >/dev/full; } 2>&1 | grep -o "No space left"; head -c 2 /dev/full | wc -c`, "No space left\n2\n", modes},
		"null, zero":  {`cat /dev/null; head -c 3 /dev/zero | wc -c; echo x >/dev/null`, "3\n", modes},
		"fd":          {`echo a | cat /dev/fd/0; bash -c 'cat <(echo b)'; cat /dev/fd/7 7<<E` + "\nc\nE\n", "a\nb\nc\n", modes},
		"stdin":       {`echo a | cat /dev/stdin; echo b >/dev/stdout; { echo c >/dev/stderr; } 2>&1; echo d | cat /proc/self/fd/0`, "a\nb\nc\nd\n", modes},
		"tty":         {`echo a >/dev/tty; stty size </dev/tty; stty -echo; stty -a | grep -o -e -echo\;*\  | head -1; test -w $(tty) && echo b >$(tty)`, "a\n50 200\n-echo\nb\n", []string{"pty"}},
		"no tty":      {`(echo a >/dev/tty) 2>/dev/null || echo none; tty </dev/null`, "none\nnot a tty\n", []string{"stdio"}},
		"random":      {`[ $(head -c 9 /dev/urandom | wc -c) = 9 ] && [ $(head -c 9 /dev/random | wc -c) = 9 ] && echo both`, "both\n", modes},
		"no ioctl":    {`/usr/bin/python3 -c 'import fcntl, termios; fcntl.ioctl(open("/dev/pts/ptmx"), termios.TIOCGPTN)' 2>&1 | grep -o "Permission denied"`, "Permission denied\n", modes},
		"other files": {`for f in /dev/mem /dev/kmsg /dev/ptmx; do head -c 1 $f 2>/dev/null && echo read $f; done; ls /dev 2>/dev/null; exit 0`, "", modes},
	} {
		for _, mode := range c.modes {
			if r := s.sh(pythonPath+c.script, m{"mode": mode}); strings.ReplaceAll(r.Output, "-echo \n", "-echo\n") != c.want {
				t.Errorf("%s, %s: %q, want %q", name, mode, r.Output, c.want)
			}
		}
	}
}

// /dev/shm is one place for all jobs of the machine, so it is shut by default:
// Python's processes and pipes work without it, its locks, queues and pools say
// that they may not. An operator can open it.
func TestSharedMemory(t *testing.T) {
	need(t, "python3")
	if st, err := os.Stat("/dev/shm"); err != nil || st.Mode().Perm()&0o777 != 0o777 {
		t.Skip("there is no /dev/shm that everybody can write in")
	}
	const pipes = `/usr/bin/python3 -c 'import multiprocessing as m
def f(c): c.send("piped")
a, b = m.Pipe(); p = m.Process(target=f, args=(b,)); p.start(); print(a.recv()); p.join()'`
	const lock = `/usr/bin/python3 -c 'import multiprocessing as m
with m.Pool(2) as p: print(sum(p.map(abs, [-1, -2])))' 2>&1 | tail -1`
	s := start(t)
	if r := s.sh(pipes); r.Output != "piped\n" {
		t.Errorf("pipes: %q", r.Output)
	}
	if r := s.sh(lock); !strings.Contains(r.Output, "Permission denied") {
		t.Errorf("locks: %q", r.Output)
	}
	open := start(t, withEnv("SHELLCTL_LANDLOCK_RW_PATHS=/dev/shm"))
	if r := open.sh(lock); r.Output != "3\n" {
		t.Errorf("locks with /dev/shm: %q", r.Output)
	}
}

// Within the home files move and are linked between directories; between homes
// that a job may write in as well. On ABI 1 the kernel cannot allow it.
func TestMovesBetweenDirectories(t *testing.T) {
	s := start(t, withEnv("SHELLCTL_LANDLOCK_RW_PATHS="+t.TempDir()))
	_, other, _ := strings.Cut(s.env[0], "=")
	script := `set -e; mkdir -p a/b c; echo x > a/b/f; ln a/b/f c/g; mv a/b/f c/h; mv a c/; ln c/g ` + other + `/i; mv c/h ` + other + `/j; cat ` + other + `/i ` + other + `/j; ls c`
	r := s.sh(script, m{"mode": "stdio"})
	if r.Output != "x\nx\na\ng\n" || r.code() != 0 {
		errors, _ := os.ReadFile(s.jobDir(r.JobID) + "/stderr.log")
		t.Errorf("%q %s", r.Output, errors)
	}
}
