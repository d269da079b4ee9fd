package service

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
)

// Places gives the server's home and its state directory, which is the one asked
// for or else the default.
func Places(asked string) (home, state string, err error) {
	if home, err = ownHome(); err != nil {
		return "", "", err
	}
	if asked == "" {
		asked = stateDir(home)
	}
	state, err = filepath.Abs(asked)
	return home, state, err
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

func stateDir(home string) string {
	if x := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(x) {
		return filepath.Join(x, "shellctl")
	}
	return filepath.Join(home, ".local", "share", "shellctl")
}
