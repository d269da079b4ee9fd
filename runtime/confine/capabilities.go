package confine

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// rootKeeps are the capabilities that root's job keeps (capabilities(7)): those
// that work on its own files and processes. Others reach past Landlock, such as
// CAP_PERFMON, by which every process's environment can be read, CAP_MKNOD,
// CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH.
const rootKeeps = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FOWNER | 1<<unix.CAP_FSETID |
	1<<unix.CAP_KILL | 1<<unix.CAP_SETGID | 1<<unix.CAP_SETUID | 1<<unix.CAP_SETPCAP | 1<<unix.CAP_SETFCAP |
	1<<unix.CAP_NET_BIND_SERVICE | 1<<unix.CAP_NET_RAW | 1<<unix.CAP_AUDIT_WRITE

// dropCapabilities takes the others from what the calling thread, and all that
// it forks, can get by an exec. A plain user's exec gets none, since
// no_new_privs is set.
func dropCapabilities() error {
	if os.Geteuid() != 0 {
		return nil
	}
	for c := range uintptr(64) {
		if rootKeeps&(1<<c) != 0 {
			continue
		}
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) {
			return nil // beyond the last that the kernel knows
		}
		if err != nil && !errors.Is(err, unix.EPERM) { // without CAP_SETPCAP there is none to give on
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	return nil
}
