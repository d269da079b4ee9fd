package stub

import (
	"archive/zip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Limits of a skill's archive. What is in it may be two hundred times as large as
// the archive, as text is at most, beyond an allowance.
const (
	maxEntries   = 10_000
	maxExtracted = 512 << 20
	maxRatio     = 200
	freeBytes    = 8 << 20
)

// skillText is the file that makes a directory a skill.
const skillText = "SKILL.md"

// extract unpacks an archive into a directory below root, in place of an earlier
// one, and only when all of it is good.
func extract(archive *os.File, root *os.Root, name string) (err error) {
	st, err := archive.Stat()
	if err != nil {
		return err
	}
	z, err := zip.NewReader(archive, st.Size())
	if err != nil {
		return fmt.Errorf("read the archive: %w", err)
	}
	if len(z.File) > maxEntries {
		return fmt.Errorf("the archive has %d entries, more than %d", len(z.File), maxEntries)
	}
	part := fmt.Sprintf(".%s.%d.part", name, os.Getpid())
	if err := errors.Join(root.RemoveAll(part), root.Mkdir(part, 0o755)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.RemoveAll(part)) }()
	into, err := root.OpenRoot(part)
	if err != nil {
		return err
	}
	defer into.Close()
	left := min(int64(maxExtracted), st.Size()*maxRatio+freeBytes)
	for _, f := range z.File {
		if err := extractOne(f, into, &left); err != nil {
			return err
		}
	}
	if err := root.RemoveAll(name); err != nil {
		return err
	}
	return root.Rename(part, name)
}

func extractOne(f *zip.File, into *os.Root, left *int64) error {
	name := f.Name
	if strings.ContainsAny(name, "\\\x00") || path.IsAbs(name) || slices.Contains(strings.Split(name, "/"), "..") {
		return fmt.Errorf("the archive's entry %q leaves the directory", printable(name))
	}
	clean := path.Clean(name)
	switch mode := f.Mode(); {
	case clean == ".":
		return nil
	case mode.IsDir() || strings.HasSuffix(name, "/"):
		return into.MkdirAll(clean, 0o755)
	case !mode.IsRegular():
		return fmt.Errorf("the archive's entry %q is no file", printable(name))
	}
	if err := into.MkdirAll(path.Dir(clean), 0o755); err != nil {
		return err
	}
	in, err := f.Open()
	if err != nil {
		return fmt.Errorf("read the archive's entry %q: %w", printable(name), err)
	}
	defer in.Close()
	out, err := into.OpenFile(clean, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("the archive has %q twice", printable(name))
	}
	if err != nil {
		return err
	}
	n, err := io.Copy(out, io.LimitReader(in, *left+1))
	if err = errors.Join(err, out.Close()); err != nil {
		return fmt.Errorf("extract %q: %w", printable(name), err)
	}
	if *left -= n; *left < 0 {
		return errors.New("the archive holds more than it may: it is a bomb, or no skill")
	}
	return nil
}

// What a skill's archive leaves out.
var (
	skipDirs  = []string{".git", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".venv", "node_modules"}
	skipFiles = []string{".DS_Store", ".DIFY-SKILL-FULL.zip"}
)

// packSkill makes a temporary archive of a directory; done removes it.
func packSkill(dir string) (path string, done func(), err error) {
	if st, err := os.Lstat(filepath.Join(dir, skillText)); err != nil || !st.Mode().IsRegular() {
		return "", nil, fmt.Errorf("%s is no skill: it has no %s", dir, skillText)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", nil, err
	}
	defer root.Close()
	f, err := os.CreateTemp("", "skill-archive-*.zip")
	if err != nil {
		return "", nil, err
	}
	done = func() { os.Remove(f.Name()) }
	if err = errors.Join(pack(f, root, dir), f.Close()); err != nil {
		done()
		return "", nil, err
	}
	return f.Name(), done, nil
}

func pack(to io.Writer, root *os.Root, dir string) error {
	w := zip.NewWriter(to)
	err := fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case name == ".":
			return nil
		case d.IsDir() && slices.Contains(skipDirs, d.Name()):
			return fs.SkipDir
		case d.IsDir() || slices.Contains(skipFiles, d.Name()):
			return nil
		case d.Type() == fs.ModeSymlink:
			return fmt.Errorf("%s is a symbolic link, which a skill cannot hold", filepath.Join(dir, name))
		case !d.Type().IsRegular():
			return fmt.Errorf("%s is no regular file", filepath.Join(dir, name))
		}
		in, err := root.Open(name)
		if err != nil {
			return err
		}
		defer in.Close()
		st, err := in.Stat()
		if err != nil {
			return err
		}
		out, err := w.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Deflate, Modified: st.ModTime()})
		if err == nil {
			_, err = io.Copy(out, in)
		}
		return err
	})
	return errors.Join(err, w.Close())
}
