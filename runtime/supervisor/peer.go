package supervisor

import (
	"errors"
	"fmt"
	"net"
	"os"

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

// notBelow walks up from pid and fails when it meets ancestor on the way, or
// cannot see the way.
func notBelow(pid, ancestor int) error {
	for p := pid; p > 1; {
		if p == ancestor {
			return fmt.Errorf("process %d belongs to a job", pid)
		}
		row, ok := confine.ReadProcess(p)
		if !ok {
			return fmt.Errorf("process %d has gone away", pid)
		}
		p = row.PPID
	}
	return nil
}
