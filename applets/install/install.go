// Package install is the applet that gives the one executable its names.
package install

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"difyrt/applets/cmdline"
)

// Main links each of names in a directory to this executable.
func Main(name string, args []string, s cmdline.Streams, names []string) int {
	c := cmdline.New(name, "[--force] DIR", `
Makes a symbolic link in DIR for every installed command name, all of them to
this executable. Links of an earlier install are replaced.`, s)
	c.After = `
Example:
  difyrt install /usr/local/bin`
	force := c.Flags.Bool("force", false, "replace also what is no link")
	if code, ok := c.Parse(args); !ok {
		return code
	}
	if c.Flags.NArg() != 1 {
		return c.Wrong("one directory is wanted, got %d", c.Flags.NArg())
	}
	exe, err := os.Executable()
	if err != nil {
		return c.Fail(err)
	}
	dir := c.Flags.Arg(0)
	for _, n := range names {
		if err := link(exe, dir, n, *force); err != nil {
			return c.Fail(err)
		}
		fmt.Fprintf(c.Out, "%s -> %s\n", filepath.Join(dir, n), exe)
	}
	return cmdline.OK
}

// link replaces a link in one step, so that the name is never missing.
func link(exe, dir, name string, force bool) error {
	path := filepath.Join(dir, name)
	st, err := os.Lstat(path)
	switch {
	case err == nil && st.Mode()&fs.ModeSymlink == 0 && !force:
		return fmt.Errorf("%s is there and is no link; --force replaces it", path)
	case err == nil && os.SameFile(stat(exe), st):
		return fmt.Errorf("%s is this executable itself", path)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	tmp := path + ".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(exe, tmp); err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		os.Remove(tmp)
		return err
	}
	return nil
}

func stat(path string) fs.FileInfo {
	st, err := os.Stat(path)
	if err != nil {
		return nil
	}
	return st
}
