package supervisor

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"difyrt/runtime/job"
	"difyrt/runtime/unixsock"
)

// Names in the state directory.
const (
	runDir    = "run" // sockets of the runners
	runnerLog = "runner.log"
	socketExt = ".sock"
)

// maxRunnerLog is the size from which the runner's log is begun anew.
const maxRunnerLog = 1 << 20

// How a runner is called; a process with these arguments is taken for one.
const (
	runnerName    = "shellctl-runner"
	superviseFlag = "--supervise"
)

// ListenerFD is the descriptor on which a runner finds its socket.
const ListenerFD = 3

// exeIdentity names the file that this process runs. Two processes with the
// same identity run the same code, also after the file was replaced.
var exeIdentity = sync.OnceValue(func() string {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/exe", &st); err != nil {
		return ""
	}
	return fmt.Sprintf("%d:%d:%d", st.Dev, st.Ino, st.Mtim.Nano())
})

// launch starts a runner in a session of its own and returns its socket's path.
// The socket listens before the runner runs, so that nobody has to wait for it
// to be there.
func launch(stateDir string, log *slog.Logger) (path string, err error) {
	path = filepath.Join(stateDir, runDir, string(job.NewID())+socketExt)
	l, err := unixsock.Listen(path)
	if err != nil {
		return "", fmt.Errorf("make the runner's socket: %w", err)
	}
	defer l.UnixListener.Close() // the name is the runner's
	defer func() {
		if err != nil {
			os.Remove(path)
		}
	}()
	sock, err := l.File()
	if err != nil {
		return "", fmt.Errorf("pass the runner's socket on: %w", err)
	}
	defer sock.Close()
	out, err := openRunnerLog(stateDir)
	if err != nil {
		return "", err
	}
	defer out.Close()
	cmd := exec.Command("/proc/self/exe", superviseFlag, "--state-dir", stateDir, "--socket", path)
	cmd.Args[0] = runnerName
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = out, out
	cmd.ExtraFiles = []*os.File{sock}
	// Nothing of the server's environment: it may hold the token, and a job could
	// read it from /proc.
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return "", fmt.Errorf("start the runner: %w", err)
	}
	log.Info("runner started", "pid", cmd.Process.Pid)
	go func() { // reap it, should it end before us
		err := cmd.Wait()
		log.Debug("runner ended", "pid", cmd.Process.Pid, "how", fmt.Sprint(err))
	}()
	return path, nil
}

func openRunnerLog(stateDir string) (*os.File, error) {
	path := filepath.Join(stateDir, runnerLog)
	flags := os.O_WRONLY | os.O_CREATE | os.O_APPEND | syscall.O_NOFOLLOW
	if st, err := os.Lstat(path); err == nil && st.Size() > maxRunnerLog {
		flags |= os.O_TRUNC
	}
	f, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the runner's log: %w", err)
	}
	return f, nil
}

// logTail gives the last lines of the runner's log, for the server's log when a
// runner has died.
func logTail(stateDir string) string {
	f, err := os.Open(filepath.Join(stateDir, runnerLog))
	if err != nil {
		return ""
	}
	defer f.Close()
	const most = 2 << 10
	if st, err := f.Stat(); err == nil && st.Size() > most {
		f.Seek(-most, io.SeekEnd)
	}
	b, _ := io.ReadAll(io.LimitReader(f, most))
	return strings.ToValidUTF8(string(b), "?")
}
