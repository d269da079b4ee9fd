package confine

import "golang.org/x/sys/unix"

// deniedHere are calls that this architecture has besides the common ones.
var deniedHere = []uintptr{unix.SYS_LOOKUP_DCOOKIE, unix.SYS_NFSSERVCTL}
