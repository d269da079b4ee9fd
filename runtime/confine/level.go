package confine

import (
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

const (
	scopeAbstract = ll.ScopeAbstractUnixSocket
	scopeSignal   = ll.ScopeSignal
)

// Level is what one Landlock ABI version lets a ruleset handle.
type Level struct {
	ABI    int    // 0: no Landlock
	FS     uint64 // file-system rights that can be handled
	Scoped uint64 // scopes that can be closed
}

// steps lists what each ABI version added
// (Documentation/userspace-api/landlock.rst, "Previous limitations"). Network
// rights (4, 10) and audit flags (7) are not used: a job keeps its network.
var steps = []Level{
	{ABI: 1, FS: ll.AccessFSExecute | ll.AccessFSWriteFile | ll.AccessFSReadFile | ll.AccessFSReadDir |
		ll.AccessFSRemoveDir | ll.AccessFSRemoveFile | ll.AccessFSMakeChar | ll.AccessFSMakeDir |
		ll.AccessFSMakeReg | ll.AccessFSMakeSock | ll.AccessFSMakeFifo | ll.AccessFSMakeBlock | ll.AccessFSMakeSym},
	{ABI: 2, FS: ll.AccessFSRefer},
	{ABI: 3, FS: ll.AccessFSTruncate},
	{ABI: 5, FS: ll.AccessFSIoctlDev},
	{ABI: 6, Scoped: scopeAbstract | scopeSignal},
	{ABI: 9, FS: ll.AccessFSResolveUnix},
}

// names of the rights and scopes, as the kernel's documentation has them.
var (
	fsNames = []string{"execute", "write_file", "read_file", "read_dir", "remove_dir", "remove_file", "make_char", "make_dir",
		"make_reg", "make_sock", "make_fifo", "make_block", "make_sym", "refer", "truncate", "ioctl_dev", "resolve_unix"}
	scopeNames = []string{"scope_abstract_unix_socket", "scope_signal"}
)

// Names lists what the level handles.
func (l Level) Names() []string {
	return append(named(l.FS, fsNames), named(l.Scoped, scopeNames)...)
}

func named(bits uint64, names []string) (list []string) {
	for i, n := range names {
		if bits&(1<<i) != 0 {
			list = append(list, n)
		}
	}
	return list
}

// LevelAt gives everything that a kernel with this ABI version can handle.
// Versions beyond the table are as good as its last row.
func LevelAt(abi int) Level {
	l := Level{ABI: abi}
	for _, s := range steps {
		if s.ABI <= abi {
			l.FS |= s.FS
			l.Scoped |= s.Scoped
		}
	}
	return l
}

// Probe asks the kernel for its Landlock ABI. The error says why there is none:
// unix.ENOSYS (not built, or blocked by a seccomp filter that says so),
// unix.EOPNOTSUPP (built, but not enabled at boot), unix.EPERM (blocked).
func Probe() (Level, error) {
	abi, err := ll.LandlockGetABIVersion()
	if err != nil {
		return Level{}, err
	}
	return LevelAt(abi), nil
}

// WhyNot puts the error of Probe into words that tell an operator what to do.
func WhyNot(err error) string {
	switch err {
	case nil:
		return ""
	case unix.ENOSYS:
		return "the kernel has no Landlock (it is older than 5.13, was built without it, or a seccomp profile hides it)"
	case unix.EOPNOTSUPP:
		return "Landlock is built into the kernel but not enabled (add it to the lsm= boot parameter)"
	case unix.EPERM:
		return "Landlock is blocked, most likely by a seccomp profile of the container"
	}
	return "Landlock is not usable: " + err.Error()
}
