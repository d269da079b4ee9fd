package confine

import "golang.org/x/sys/unix"

// deniedHere are calls that only this architecture has.
var deniedHere = []uintptr{unix.SYS_IOPL, unix.SYS_IOPERM, unix.SYS_USELIB, unix.SYS_LOOKUP_DCOOKIE, unix.SYS_NFSSERVCTL, unix.SYS__SYSCTL, unix.SYS_MODIFY_LDT}
