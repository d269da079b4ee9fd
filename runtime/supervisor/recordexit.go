package supervisor

import (
	"fmt"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"difyrt/runtime/job"
)

// recordWithin bounds one runner-exit.
const recordWithin = 15 * time.Second

// recordExit puts an end into the job table while no server is there to do it.
// The runner opens no database: the applet runner-exit does, in a process of
// its own, which the reaper waits for like for any other child.
func (s *server) recordExit(id job.ID, r Record) error {
	s.recording.Lock()
	defer s.recording.Unlock()
	argv := []string{"shellctl-runner-exit", "--state-dir", s.c.StateDir, "--job-id", string(id),
		"--exit-code", strconv.Itoa(*r.ExitCode), "--status", string(r.Status),
		"--started-at", r.StartedAt.UTC().Format(time.RFC3339Nano), "--ended-at", r.EndedAt.UTC().Format(time.RFC3339Nano)}
	null, err := devNull()
	if err != nil {
		return err
	}
	pidfd := -1
	attr := &syscall.ProcAttr{Dir: "/", Env: []string{}, Files: []uintptr{null, 2, 2}, Sys: &syscall.SysProcAttr{PidFD: &pidfd}}
	exited := make(chan unix.WaitStatus, 1)
	if _, err := s.reap.fork(func(func(int) bool) (int, error) { return syscall.ForkExec("/proc/self/exe", argv, attr) },
		func(ws unix.WaitStatus) { exited <- ws }); err != nil {
		return fmt.Errorf("start runner-exit: %w", err)
	}
	defer unix.Close(pidfd)
	t := time.AfterFunc(recordWithin, func() { unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0) })
	defer t.Stop()
	if code := exitCode(<-exited); code != 0 {
		return fmt.Errorf("runner-exit ended with %d; its message is in the runner's log", code)
	}
	return nil
}
