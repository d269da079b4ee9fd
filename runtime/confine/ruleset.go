package confine

import (
	"errors"
	"fmt"

	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// Access is how much a Grant gives.
type Access int

const (
	// ReadExecute: read, list and execute.
	ReadExecute Access = iota
	// ReadWrite: everything that Landlock can deny but the making of devices, by
	// which root's job would reach every disk.
	ReadWrite
	// Device: read, write and ioctl on a device file.
	Device
)

const (
	readExecuteFS = ll.AccessFSExecute | ll.AccessFSReadFile | ll.AccessFSReadDir
	deviceFS      = ll.AccessFSReadFile | ll.AccessFSWriteFile | ll.AccessFSTruncate | ll.AccessFSIoctlDev
	// fileFS are the rights that mean something on a file. Any other right in a
	// rule for a file is EINVAL (landlock_add_rule(2)).
	fileFS = ll.AccessFSExecute | ll.AccessFSWriteFile | ll.AccessFSReadFile |
		ll.AccessFSTruncate | ll.AccessFSIoctlDev | ll.AccessFSResolveUnix
)

// rights gives the file-system rights of an access on an inode of the kind that
// isDir says, within what the level can handle.
func (a Access) rights(l Level, isDir bool) uint64 {
	var r uint64
	switch a {
	case ReadExecute:
		r = readExecuteFS
	case Device:
		r = deviceFS
	case ReadWrite:
		r = ^uint64(ll.AccessFSMakeChar | ll.AccessFSMakeBlock)
	}
	if !isDir {
		r &= fileFS
	}
	return r & l.FS
}

// Grant opens one path, and for a directory everything below it.
type Grant struct {
	Path   string
	Access Access
	// Must says that a path which cannot be opened is an error; otherwise it is
	// left out of the rules (contract, Environment).
	Must bool
}

// Ruleset is a Landlock ruleset, ready to be entered. Close it.
type Ruleset struct{ fd int }

// NewRuleset makes one ruleset with file-system rights and scopes together. Two
// rulesets, one after the other, would deny every rename and link between
// directories (EXDEV). The level must have come from Probe.
func NewRuleset(l Level, grants []Grant) (*Ruleset, error) {
	fd, err := ll.LandlockCreateRuleset(&ll.RulesetAttr{HandledAccessFS: l.FS, Scoped: l.Scoped}, 0)
	if err != nil {
		return nil, fmt.Errorf("create Landlock ruleset: %w", err)
	}
	r := &Ruleset{fd}
	for _, g := range grants {
		if err := r.add(l, g); err != nil {
			r.Close()
			return nil, err
		}
	}
	return r, nil
}

func (r *Ruleset) add(l Level, g Grant) error {
	p, err := unix.Open(g.Path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		if g.Must || !unreachable(err) {
			return fmt.Errorf("open %s for a Landlock rule: %w", g.Path, err)
		}
		return nil
	}
	defer unix.Close(p)
	var st unix.Stat_t
	if err := unix.Fstat(p, &st); err != nil {
		return fmt.Errorf("stat %s for a Landlock rule: %w", g.Path, err)
	}
	access := g.Access.rights(l, st.Mode&unix.S_IFMT == unix.S_IFDIR)
	if access == 0 {
		return nil
	}
	if err := ll.LandlockAddPathBeneathRule(r.fd, &ll.PathBeneathAttr{AllowedAccess: access, ParentFd: p}, 0); err != nil {
		return fmt.Errorf("add Landlock rule for %s: %w", g.Path, err)
	}
	return nil
}

// unreachable tells errors of a path that a job could not reach either from
// errors that leave the rules incomplete.
func unreachable(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) ||
		errors.Is(err, unix.EACCES) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENAMETOOLONG)
}

// enter puts the calling thread into the ruleset's domain, for good.
// no_new_privs must be set.
func (r *Ruleset) enter() error {
	if err := ll.LandlockRestrictSelf(r.fd, 0); err != nil {
		return fmt.Errorf("enter Landlock domain: %w", err)
	}
	return nil
}

// Close gives the ruleset's descriptor back; threads in its domain stay there.
func (r *Ruleset) Close() {
	unix.Close(r.fd)
}
