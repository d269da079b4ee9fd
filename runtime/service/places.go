package service

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"difyrt/runtime/confine"
)

// Places are the directories of a server.
type Places struct {
	Home string // the server's own
	// State is where the state directory is.
	State string
	// Shown is the name by which clients are told of files in it. By default that
	// is the contract's place in the home, which is a link then: the state itself
	// lies outside, where no job with this HOME can reach it, since Landlock
	// cannot take a hole out of a tree that it opens.
	Shown string
}

// FindPlaces gives the places for the state directory that was asked for, or the
// default ones. It makes nothing.
func FindPlaces(asked string) (Places, error) {
	home, err := ownHome()
	if err != nil {
		return Places{}, err
	}
	if asked != "" {
		asked, err = filepath.Abs(asked)
		return Places{home, asked, asked}, err
	}
	named := defaultState(home)
	p := Places{home, named, named}
	if below(named, home) || confine.AncestorsOf(filepath.Dir(named)).Has(home) {
		if dir := outside(named, home); dir != "" {
			p.State = dir
		}
	}
	return p, nil
}

// below goes by the names: what the path leads through may be a job's links.
func below(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}

// ownHome is the server's: $HOME, else what the user database says.
func ownHome() (string, error) {
	h := os.Getenv("HOME")
	if h == "" {
		u, err := user.Current()
		if err != nil || u.HomeDir == "" {
			return "", errors.New("no home directory: set HOME")
		}
		h = u.HomeDir
	}
	if !filepath.IsAbs(h) {
		return "", fmt.Errorf("HOME %q is not an absolute path", h)
	}
	return filepath.Clean(h), nil
}

// defaultState is the contract's (Environment, XDG_DATA_HOME).
func defaultState(home string) string {
	if x := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(x) {
		return filepath.Join(x, "shellctl")
	}
	return filepath.Join(home, ".local", "share", "shellctl")
}

// outside gives a place for the state of the server whose default is named that
// is outside of its home and ours alone; empty when there is none. It depends on
// nothing that a job can write, or a job could choose it.
func outside(named, home string) string {
	parent, base := "/var/tmp", fmt.Sprintf("difyrt-%d", os.Geteuid())
	if os.Geteuid() == 0 {
		parent, base = "/var/lib", "difyrt"
	}
	dir := filepath.Join(parent, base)
	if confine.AncestorsOf(dir).Has(home) {
		return ""
	}
	switch err := oursAlone(dir); {
	case errors.Is(err, fs.ErrNotExist):
		if unix.Faccessat(unix.AT_FDCWD, parent, unix.W_OK|unix.X_OK, unix.AT_EACCESS) != nil {
			return ""
		}
	case err != nil:
		return ""
	}
	sum := sha256.Sum256([]byte(named))
	return filepath.Join(dir, fmt.Sprintf("%s-%x", plain(filepath.Base(home)), sum[:6]))
}

// plain keeps of a name what reads well in another.
func plain(name string) string {
	name = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.' {
			return r
		}
		return -1
	}, name)
	return name[:min(len(name), 40)]
}

// oursAlone refuses a directory that another user could have made or can change.
func oursAlone(dir string) error {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return &fs.PathError{Op: "lstat", Path: dir, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return fmt.Errorf("%s is not a directory that only this user can write in", dir)
	}
	return nil
}

// link makes Shown lead to State. Where something else stands already it stays,
// and the state is shown by its own name; the error says why.
func (p *Places) link() error {
	if p.Shown == p.State {
		return nil
	}
	named := p.Shown
	p.Shown = p.State
	// In a root: a job may have made links of the directories on the way.
	root, err := os.OpenRoot(p.Home)
	if err != nil {
		return fmt.Errorf("open the home: %w", err)
	}
	defer root.Close()
	rel, err := filepath.Rel(p.Home, named)
	if err != nil {
		return fmt.Errorf("link %s: %w", named, err)
	}
	if err := root.MkdirAll(filepath.Dir(rel), 0o755); err != nil {
		return fmt.Errorf("link %s: %w", named, err)
	}
	if err := root.Symlink(p.State, rel); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("link %s: %w", named, err)
	}
	if to, err := root.Readlink(rel); err != nil || to != p.State {
		return fmt.Errorf("%s is in the way: move it away to find the state there again", named)
	}
	p.Shown = named
	return nil
}
