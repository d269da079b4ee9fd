package supervisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"difyrt/runtime/confine"
	"difyrt/runtime/job"
)

// OneShot runs one job in the foreground, on the terminal or pipes that it was
// given, as a terminal multiplexer calls it (contract, Commands), and returns
// the exit code that the program is to end with. The caller's goroutine must be
// locked to the process's main thread (package confine).
func OneShot(dir, id, cwd string, stderr io.Writer) int {
	code, err := oneShot(dir, id, cwd, stderr)
	if err != nil {
		fmt.Fprintf(stderr, "shellctl-runner: %v\n", err)
	}
	return code
}

func oneShot(dir, id, cwd string, stderr io.Writer) (int, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return 125, err
	}
	if st, err := os.Stat(dir); err != nil || !st.IsDir() {
		return 125, fmt.Errorf("job directory %s: not a directory", dir)
	}
	if cwd, err = filepath.Abs(cwd); err != nil {
		return 125, err
	}
	if err := awaitFile(dir, gateFile); err != nil {
		return 125, err
	}
	code, err := runOnce(dir, id, cwd, stderr)
	var se *startError
	if errors.As(err, &se) {
		code = se.code
	}
	return code, errors.Join(err, writeOneShotRecord(dir, code, time.Now()))
}

func runOnce(dir, id, cwd string, stderr io.Writer) (int, error) {
	env, err := readJobEnv(dir)
	if err != nil {
		return 125, err
	}
	policy, err := confine.PolicyFromEnv(os.LookupEnv)
	if err != nil {
		return 125, err
	}
	home := env["HOME"]
	if home == "" {
		home = os.Getenv("HOME")
	}
	if home == "" {
		return 125, errors.New("HOME is not set")
	}
	g, err := openGrounds(home, cwd)
	if err != nil {
		return 125, err
	}
	defer g.close()
	path, argv, err := command(dir)
	if err != nil {
		return 125, err
	}
	level, err := confine.Probe()
	if policy.Enabled && err != nil {
		fmt.Fprintf(stderr, "shellctl-runner: warning: job %s runs without isolation: %s\n", id, confine.WhyNot(err))
	}
	tty := isTerminal(0)
	limits, err := confine.LimitsFromEnv(os.LookupEnv)
	if err != nil {
		return 125, err
	}
	d, err := newDomain(Spec{ID: job.ID(id), Policy: policy, Limits: limits}, level, nil, confine.Place{Home: g.homePath(), Cwd: g.cwdPath(), JobDir: dir, TTY: ttyPath(tty)})
	if err != nil {
		return 125, err
	}
	defer d.close()
	environ := confine.Environ(confine.EnvSpec{Server: os.Environ(), Request: env, Home: home, Cwd: cwd, PTY: tty})

	// The terminal's signals reach the job by themselves; we outlive them to
	// record how it ended. What is sent to us alone is passed on.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGHUP)
	defer signal.Stop(signals)
	pid, w, err := d.forkExec(path, argv, &syscall.ProcAttr{Dir: g.cwdPath(), Env: environ, Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{}}, stops)
	if err != nil {
		return 125, err
	}
	if w != nil {
		w.Close()
	}
	go func() {
		for s := range signals {
			if s == unix.SIGTERM || s == unix.SIGHUP {
				unix.Kill(pid, s.(unix.Signal))
			}
		}
	}()
	for {
		var ws unix.WaitStatus
		if _, err := unix.Wait4(pid, &ws, 0, nil); err == nil {
			return exitCode(ws), nil
		} else if !errors.Is(err, unix.EINTR) {
			return 125, fmt.Errorf("wait for the job: %w", err)
		}
	}
}

// stops waits until a traced child stands still; false when it died instead. A
// death is left to be told to whoever waits for the job.
func stops(pid int) bool {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WSTOPPED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return err == nil && info.Code == cldTrapped
		}
	}
}

const cldTrapped = 4 // sigaction(2), CLD_TRAPPED; not in the unix package

// readJobEnv reads the job's own variables: a JSON object of strings.
func readJobEnv(dir string) (map[string]string, error) {
	b, err := os.ReadFile(filepath.Join(dir, jobEnvFile))
	if err != nil {
		return nil, fmt.Errorf("broken job directory: %w", err)
	}
	env := map[string]string{}
	if err := json.Unmarshal(b, &env); err != nil {
		return nil, fmt.Errorf("broken job directory: %s: %w", jobEnvFile, err)
	}
	if err := job.CheckEnv(env); err != nil {
		return nil, fmt.Errorf("broken job directory: %s: %w", jobEnvFile, err)
	}
	return env, nil
}

func isTerminal(fd int) bool {
	_, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	return err == nil
}

// ttyPath names the terminal on descriptor 0.
func ttyPath(tty bool) string {
	if !tty {
		return ""
	}
	path, err := os.Readlink("/proc/self/fd/0")
	if err != nil {
		return ""
	}
	return path
}

// awaitFile sleeps until dir holds an entry of this name (inotify(7)).
func awaitFile(dir, name string) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("watch %s: %w", dir, err)
	}
	defer unix.Close(fd)
	const what = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF
	if _, err := unix.InotifyAddWatch(fd, dir, what); err != nil {
		return fmt.Errorf("watch %s: %w", dir, err)
	}
	buf := make([]byte, 64*(unix.SizeofInotifyEvent+unix.NAME_MAX+1))
	for {
		// Looked for after the watch is set, so that it cannot be missed.
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			return nil
		}
		n, err := unix.Read(fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("watch %s: %w", dir, err)
		}
		if gone(buf[:max(n, 0)]) {
			return fmt.Errorf("job directory %s went away before %s came", dir, name)
		}
	}
}

// gone looks for the end of the watched directory in inotify events.
func gone(b []byte) bool {
	for len(b) >= unix.SizeofInotifyEvent {
		e := (*unix.InotifyEvent)(unsafe.Pointer(&b[0]))
		if e.Mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_IGNORED) != 0 {
			return true
		}
		size := unix.SizeofInotifyEvent + int(e.Len)
		if size > len(b) {
			break
		}
		b = b[size:]
	}
	return false
}
