package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"difyrt/runtime/confine"
)

// admit lets only servers talk to the runner. Its socket is closed to other
// users, but jobs run as the same user, and Landlock does not stop a connection
// to a socket by its path before ABI 9. Every process of a job descends from the
// runner, which is its subreaper, and no server does.
func admit(c net.Conn) error {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return errors.New("not a unix socket")
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var cerr error
	if err := raw.Control(func(fd uintptr) { cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return err
	}
	if cerr != nil {
		return fmt.Errorf("peer of a connection: %w", cerr)
	}
	if int(cred.Uid) != os.Geteuid() && cred.Uid != 0 {
		return fmt.Errorf("process %d belongs to user %d", cred.Pid, cred.Uid)
	}
	return notBelow(int(cred.Pid), os.Getpid())
}

// notBelow walks up from pid to the nearest process that self descends from too,
// and fails when a runner, this one or any other, stands on the way: then pid is
// a process of one of its jobs. Also when it cannot see the way.
func notBelow(pid, self int) error {
	mine, err := ancestors(self)
	if err != nil {
		return err
	}
	way, err := ancestors(pid)
	if err != nil {
		return err
	}
	for _, p := range append([]int{pid}, way...) {
		switch {
		case p == self:
			return fmt.Errorf("process %d belongs to a job", pid)
		case slices.Contains(mine, p):
			return nil
		case isRunner(p):
			return fmt.Errorf("process %d belongs to a job of the runner %d", pid, p)
		}
	}
	return nil
}

// walks bounds how often ancestors begins anew.
const walks = 100

// ancestors gives the processes above pid, nearest first. A parent that ends
// while the way is walked, as a killed server's process does, makes it begin
// anew: the way has changed.
func ancestors(pid int) ([]int, error) {
	for range walks {
		var up []int
		p := pid
		for p > 1 {
			row, ok := confine.ReadProcess(p)
			if !ok && hidden() {
				return up, nil
			}
			if !ok {
				break
			}
			p = row.PPID
			up = append(up, p)
		}
		if p <= 1 {
			return up, nil
		}
		if p == pid {
			break
		}
	}
	return nil, fmt.Errorf("process %d has gone away", pid)
}

// hidden reports a /proc that shows a user only what he may trace (hidepid, proc(5)).
// Servers and runners are not to be seen there, not even by each other. The way up
// then ends at the first of them: this runner's own jobs are still known, and those
// of another runner are not.
func hidden() bool {
	_, seen := confine.ReadProcess(1)
	return !seen
}

// isRunner knows a runner by the arguments that launch gives it. A job can make
// others take it for one, and gains nothing by that.
func isRunner(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	if err != nil {
		return false
	}
	return bytes.HasPrefix(b, []byte(runnerName+"\x00"+superviseFlag+"\x00"))
}
