package confine

import (
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Ancestors are a directory and all those above it, by identity: a name can be
// a link, and one directory can have many names.
type Ancestors map[inode]bool

type inode struct{ dev, ino uint64 }

// AncestorsOf looks at an absolute path, as far as it exists.
func AncestorsOf(dir string) Ancestors {
	for {
		real, err := filepath.EvalSymlinks(dir)
		if err == nil || dir == "/" {
			dir = real
			break
		}
		dir = filepath.Dir(dir)
	}
	a := Ancestors{}
	for {
		var st unix.Stat_t
		if unix.Stat(dir, &st) == nil {
			a[inode{uint64(st.Dev), st.Ino}] = true
		}
		if dir == "/" || dir == "." || dir == "" {
			return a
		}
		dir = filepath.Dir(dir)
	}
}

// Has reports whether the directory at path is one of them, so that a rule which
// opens it opens them all.
func (a Ancestors) Has(path string) bool {
	var st unix.Stat_t
	return unix.Stat(path, &st) == nil && a[inode{uint64(st.Dev), st.Ino}]
}
