package confine

import (
	"fmt"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The system call filter of a job: everything is allowed but what no agent's
// work needs and what is mostly of use to an attacker (seccomp(2)). A denied
// call fails with EPERM.
//
// The filter is put together here and not by a library: those that were looked
// at let a foreign architecture through when the default is to allow, and that
// is the first thing that must be shut.

// deniedEverywhere are denied on every architecture.
var deniedEverywhere = []uintptr{
	// kernel code
	unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE, unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD,
	unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN,
	// tricks with memory and handles
	unix.SYS_USERFAULTFD, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_KCMP,
	// key rings, which are shared beyond a process
	unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL,
	// the mount family
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_MOVE_MOUNT, unix.SYS_OPEN_TREE, unix.SYS_FSOPEN,
	unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_MOUNT_SETATTR,
	// other namespaces and roots
	unix.SYS_SETNS, unix.SYS_CHROOT,
	// the machine
	unix.SYS_REBOOT, unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_ACCT, unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD,
	unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME, unix.SYS_SYSLOG, unix.SYS_VHANGUP,
	unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_CLOCK_ADJTIME, unix.SYS_ADJTIMEX,
}

var ioURing = []uintptr{unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER}

// families are the address families that a job may open sockets of.
var families = []uint32{unix.AF_UNSPEC, unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK}

// deniedIoctls push input into a terminal as if it had been typed.
var deniedIoctls = []uint32{unix.TIOCSTI, tioclinux}

const tioclinux = 0x541c // ioctl_console(2); not in the unix package

// namespaces are the flags that make new namespaces (clone(2), unshare(2)). In a
// user namespace a job would be root before much of the kernel; what such a
// namespace is good for, mounts, is denied anyway. 0x80 is a new time namespace
// in unshare, and a part of the signal's number in clone.
const (
	namespaces  = unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP
	newTimeOnly = unix.CLONE_NEWTIME
)

// auditArch is what the kernel calls the architecture that we were built for
// (linux/audit.h).
func auditArch() (uint32, bool) {
	switch runtime.GOARCH {
	case "amd64":
		return unix.AUDIT_ARCH_X86_64, true
	case "arm64":
		return unix.AUDIT_ARCH_AARCH64, true
	}
	return 0, false
}

// Offsets in struct seccomp_data (seccomp(2)); both architectures are little endian.
const (
	offNumber = 0
	offArch   = 4
	offArg0   = 16
	offArg1   = 24

	x32Bit = 0x40000000 // calls of the x32 ABI, which AUDIT_ARCH_X86_64 covers too
)

// Filter is a system call filter, ready to be entered.
type Filter []unix.SockFilter

// NewFilter makes the filter; io_uring is denied unless it is allowed. It is nil
// on an architecture that it does not know.
func NewFilter(allowIOURing bool) Filter {
	arch, ok := auditArch()
	if !ok {
		return nil
	}
	denied := slices.Concat(deniedEverywhere, deniedHere)
	if !allowIOURing {
		denied = append(denied, ioURing...)
	}
	f := Filter{
		load(offArch),
		jump(unix.BPF_JEQ, arch, 1, 0),
		ret(deny),
		load(offNumber),
		jump(unix.BPF_JGE, x32Bit, 0, 1),
		ret(deny),
	}
	for _, nr := range denied {
		f = append(f, jump(unix.BPF_JEQ, uint32(nr), 0, 1), ret(deny))
	}
	// Its flags are in memory, where a filter cannot look: programs fall back to
	// clone, as on a kernel before 5.3.
	f = append(f, jump(unix.BPF_JEQ, unix.SYS_CLONE3, 0, 1), ret(absent))
	f = f.flags(unix.SYS_CLONE, namespaces)
	f = f.flags(unix.SYS_UNSHARE, namespaces|newTimeOnly)
	f = f.argument(unix.SYS_IOCTL, offArg1, deniedIoctls, deny, allow)
	f = f.argument(unix.SYS_SOCKET, offArg0, families, allow, deny)
	f = f.argument(unix.SYS_SOCKETPAIR, offArg0, families, allow, deny)
	return append(f, ret(allow))
}

const (
	allow  = unix.SECCOMP_RET_ALLOW
	deny   = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
	absent = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
)

// argument decides a call by one argument's low half, which is all that the
// kernel looks at in an int and in an ioctl's request.
func (f Filter) argument(nr uintptr, offset uint32, values []uint32, match, other uint32) Filter {
	f = append(f, jump(unix.BPF_JEQ, uint32(nr), 0, uint8(2*len(values)+2)), load(offset))
	for _, v := range values {
		f = append(f, jump(unix.BPF_JEQ, v, 0, 1), ret(match))
	}
	return append(f, ret(other))
}

// flags denies a call whose first argument has one of the flags.
func (f Filter) flags(nr uintptr, denied uint32) Filter {
	return append(f, jump(unix.BPF_JEQ, uint32(nr), 0, 4), load(offArg0),
		jump(unix.BPF_JSET, denied, 0, 1), ret(deny), ret(allow))
}

func load(offset uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
}

func jump(how uint16, k uint32, yes, no uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | how | unix.BPF_K, Jt: yes, Jf: no, K: k}
}

func ret(what uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: what}
}

// enter puts the calling thread, and all that it forks, under the filter for
// good. no_new_privs must be set.
func (f Filter) enter() error {
	prog := unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}
	if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&prog)), 0, 0); err != nil {
		return fmt.Errorf("enter the system call filter: %w", err)
	}
	return nil
}
