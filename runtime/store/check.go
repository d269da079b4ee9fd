package store

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"
)

// Errors that a caller branches on. They come wrapped with the path and advice.
var (
	// ErrCorrupt: the file is no SQLite database, or is damaged.
	ErrCorrupt = errors.New("database is damaged")
	// ErrNewer: the database was made by a newer version, or by another program.
	ErrNewer = errors.New("database is not of this version")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("store is closed")
)

const advice = "move the file away to start with an empty job table"

// look tells whether the file at path can be ours, before anything could write
// to it: first its header (https://sqlite.org/fileformat.html), then, through a
// read-only connection, what a write-ahead log beside it adds, and whether its
// pages hang together. fresh says that there is nothing yet.
func look(ctx context.Context, path string, busy time.Duration) (fresh bool, err error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return false, err
	}
	if !st.Mode().IsRegular() {
		return false, fmt.Errorf("%s is not a regular file", path)
	}
	if st.Size() == 0 {
		return true, nil
	}
	var h [100]byte
	if _, err := io.ReadFull(f, h[:]); err != nil || string(h[:16]) != "SQLite format 3\x00" {
		return false, fmt.Errorf("%w: %s is not an SQLite file; %s", ErrCorrupt, path, advice)
	}
	// SQLite itself reads what is cut off from the last page as zeros.
	if size := pageSize(h[16:18]); size < 512 || st.Size()%size != 0 {
		return false, fmt.Errorf("%w: %s ends in the middle of a page; %s", ErrCorrupt, path, advice)
	}
	if err := ours(path, int(binary.BigEndian.Uint32(h[60:])), int(binary.BigEndian.Uint32(h[68:]))); err != nil {
		return false, err
	}
	return false, inspect(ctx, path, busy)
}

// pageSize decodes the header's field, in which 1 stands for 65536.
func pageSize(b []byte) int64 {
	if n := int64(binary.BigEndian.Uint16(b)); n != 1 {
		return n
	}
	return 1 << 16
}

// ours judges a database by its version and its owner.
func ours(path string, version, owner int) error {
	if version > len(migrations) {
		return fmt.Errorf("%w: %s has version %d, this build knows up to %d; use the newer build, or %s", ErrNewer, path, version, len(migrations), advice)
	}
	if owner != 0 && owner != applicationID || owner == 0 && version != 0 {
		return fmt.Errorf("%w: %s belongs to another program; %s", ErrNewer, path, advice)
	}
	return nil
}

// It takes no lock on a file without a log, so that a verdict only counts when
// nobody, such as a runner-exit, has touched the file meanwhile.
func inspect(ctx context.Context, path string, busy time.Duration) error {
	for {
		before := fingerprint(path)
		err := inspectOnce(ctx, path, busy)
		if !errors.Is(err, ErrCorrupt) || ctx.Err() != nil || before == fingerprint(path) {
			return err
		}
	}
}

// fingerprint changes when somebody writes to a database or begins to.
func fingerprint(path string) (f struct {
	changed time.Time
	size    int64
	log     bool
}) {
	if st, err := os.Stat(path); err == nil {
		f.changed, f.size = st.ModTime(), st.Size()
	}
	_, err := os.Lstat(path + "-wal")
	f.log = err == nil
	return f
}

func inspectOnce(ctx context.Context, path string, busy time.Duration) error {
	// Without a log beside it the file is all there is, and can be read in a way
	// that makes no side files.
	mode := "mode=ro&immutable=1"
	if _, err := os.Lstat(path + "-wal"); err == nil {
		mode = "mode=ro"
	}
	db, err := sql.Open("sqlite", dsn(path, mode+busyPragma(busy)))
	if err != nil {
		return err
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	var version, owner int
	var check string
	err = db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version)
	if err == nil {
		err = db.QueryRowContext(ctx, "PRAGMA application_id").Scan(&owner)
	}
	if err == nil {
		if err := ours(path, version, owner); err != nil {
			return err
		}
		err = db.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&check)
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case isCorrupt(err):
		return fmt.Errorf("%w: %s: %w; %s", ErrCorrupt, path, err, advice)
	case err != nil:
		return fmt.Errorf("read %s: %w", path, err)
	case check != "ok":
		return fmt.Errorf("%w: %s: %s; %s", ErrCorrupt, path, check, advice)
	}
	return nil
}
