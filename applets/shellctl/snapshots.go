package shellctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"difyrt/applets/cmdline"
	"difyrt/runtime/snapshot"
	"difyrt/runtime/snapshot/ignore"
)

func save(name string, args []string, s cmdline.Streams) int {
	c := cmdline.New(name, "[flags]", `
Writes a snapshot of the server's home, a tar in zstd. The file gets its name only
when the snapshot is whole and its checksum right; a file of that name is replaced.`, s)
	c.After = `
Examples:
  shellctl save -o home.tar.zst
  shellctl save --exclude node_modules/ --exclude '*.log' -o home.tar.zst
  shellctl save --home /home/ada > home.tar.zst
` + remoteHelp
	r := remoteFlags(c)
	var excludes []string
	c.Flags.Func("exclude", "`PATTERN` of what to leave out, as in a .gitignore; can be given again", func(p string) error {
		excludes = append(excludes, p)
		return nil
	})
	output := c.Flags.String("o", "-", "`FILE` to write, - for standard output")
	home := c.Flags.String("home", "", "save this `DIR` itself, without a server")
	if code, ok := c.Parse(args); !ok {
		return code
	}
	switch {
	case c.Flags.NArg() > 0:
		return c.Wrong("unexpected argument %q", c.Flags.Arg(0))
	case *output == "-" && cmdline.Terminal(s.Out):
		return c.Wrong("a snapshot is not for a terminal: name a file with -o")
	}
	ctx, stop := cmdline.UntilSignal()
	defer stop()
	from := func(w io.Writer) (int64, error) {
		cl, err := r.client()
		if err != nil {
			return 0, err
		}
		return cl.Save(ctx, w, excludes)
	}
	if *home != "" {
		from = func(w io.Writer) (int64, error) { return saveHere(ctx, w, *home, excludes) }
	}
	p := s.NewProgress("saving", 0)
	n, err := into(*output, s, func(w io.Writer) (int64, error) { return from(io.MultiWriter(w, p)) })
	p.End()
	if err != nil {
		return fail(c, err)
	}
	if *output != "-" {
		fmt.Fprintf(c.Err, "saved %s in %s\n", cmdline.Bytes(n), *output)
	}
	return cmdline.OK
}

func saveHere(ctx context.Context, w io.Writer, home string, excludes []string) (int64, error) {
	m, err := ignore.Compile(excludes)
	if err != nil {
		return 0, err
	}
	saved, err := snapshot.Save(ctx, w, snapshot.SaveOptions{Home: home, Exclude: m})
	return saved.Bytes, err
}

// into writes a file that has its name only once it is whole.
func into(path string, s cmdline.Streams, write func(io.Writer) (int64, error)) (n int64, err error) {
	if path == "-" {
		return write(s.Out)
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".part-*")
	if err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	n, err = write(f)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	return n, err
}

func restore(name string, args []string, s cmdline.Streams) int {
	c := cmdline.New(name, "[flags] FILE", `
Lays a snapshot over the server's home: files of the same name are replaced, others
stay. FILE can be - for standard input. What was restored before an error stays.`, s)
	c.After = `
Examples:
  shellctl restore home.tar.zst
  shellctl restore --home /home/ada - < home.tar.zst
` + remoteHelp
	r := remoteFlags(c)
	home := c.Flags.String("home", "", "restore to this `DIR` itself, without a server")
	if code, ok := c.Parse(args); !ok {
		return code
	}
	if c.Flags.NArg() != 1 {
		return c.Wrong("one file is wanted, got %d", c.Flags.NArg())
	}
	in, size, err := open(c.Flags.Arg(0), s)
	if err != nil {
		return fail(c, err)
	}
	defer in.Close()
	ctx, stop := cmdline.UntilSignal()
	defer stop()
	p := s.NewProgress("restoring", size)
	entries, written, err := restoreFrom(ctx, io.TeeReader(in, p), size, *home, r)
	p.End()
	if err != nil {
		return fail(c, err)
	}
	fmt.Fprintf(c.Err, "restored %d entries, %s\n", entries, cmdline.Bytes(written))
	return cmdline.OK
}

func restoreFrom(ctx context.Context, in io.Reader, size int64, home string, r remote) (int, int64, error) {
	if home != "" {
		got, err := snapshot.Restore(ctx, in, snapshot.RestoreOptions{Home: home})
		return got.Entries, got.BytesWritten, err
	}
	cl, err := r.client()
	if err != nil {
		return 0, 0, err
	}
	got, err := cl.Restore(ctx, in, size)
	return got.Entries, got.BytesWritten, err
}

// open gives the file and its size, -1 when it has none.
func open(path string, s cmdline.Streams) (io.ReadCloser, int64, error) {
	if path == "-" {
		return io.NopCloser(s.In), -1, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	if st, err := f.Stat(); err == nil && st.Mode().IsRegular() {
		return f, st.Size(), nil
	}
	return f, -1, nil
}
