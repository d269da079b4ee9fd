// Package snapshot saves a home into one stream and lays such a stream over a
// home: a plain tar in zstd, which `tar --zstd` reads (contract, Snapshots).
//
// # The archive
//
// Headers are ustar, with PAX records where that is too narrow (pax(1)): long or
// non-UTF-8 names (with hdrcharset=BINARY), times to the nanosecond, extended
// attributes of the user namespace as SCHILY.xattr.*. Owners are not recorded.
// Entries come in the order of their names' bytes, directories before what is in
// them; of a file with several names the first is the file, the others are hard
// links to it. Holes are written as the zeros that they read as, so that every
// reader of tar takes them; but the stream of zstd frames (RFC 8878 lets frames
// follow each other) holds one of a few bytes for each long run of zeros, and it
// costs next to nothing to write. Restore makes holes of zeros again.
//
// # The home is hostile
//
// Jobs work in it meanwhile. Nothing here goes by a path twice: directories are
// held open and every name is looked up in its directory, without following
// links. What changes under our hands is saved as it is found; what a job makes
// of the tree during a restore can hurt the home and nothing else.
package snapshot

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// stateDir is the runtime's own place in a home, and neither saved nor restored.
const stateDir = ".local/share/shellctl"

// DirID names a directory, whatever its path is.
type DirID struct{ Dev, Ino uint64 }

// Identify looks at a directory.
func Identify(path string) (DirID, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return DirID{}, fmt.Errorf("stat %s: %w", path, err)
	}
	return DirID{uint64(st.Dev), st.Ino}, nil
}

func idOf(st *unix.Stat_t) DirID { return DirID{uint64(st.Dev), st.Ino} }

// openHome opens the directory that a snapshot is of.
func openHome(home string) (int, error) {
	fd, err := unix.Open(home, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &HomeError{fmt.Errorf("open the home %s: %w", home, err)}
	}
	return fd, nil
}

// HomeError says that there is no home (contract: home_unavailable).
type HomeError struct{ Err error }

func (e *HomeError) Error() string { return e.Err.Error() }
func (e *HomeError) Unwrap() error { return e.Err }

// shown makes a path fit for a message: it may be any bytes, and of any length.
func shown(path string) string {
	const most = 200
	if len(path) > most {
		return fmt.Sprintf("%q…", path[:most])
	}
	return fmt.Sprintf("%q", path)
}
