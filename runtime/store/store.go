// Package store keeps the job table in SQLite.
//
// Writes go through one goroutine that commits whatever is queued in one
// transaction, so that many jobs at once cost little more than one. The file is
// in WAL mode with synchronous NORMAL (https://sqlite.org/wal.html): a crash of
// the program loses nothing, a crash of the machine at most the last moments.
// Other processes may open the same file; runner-exit does.
package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"sync"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"difyrt/runtime/job"
)

// Options are how a store is opened.
type Options struct {
	// BusyTimeout is how long a write waits for another process; 0 means 5 s.
	BusyTimeout time.Duration
	// MustExist makes a missing database an error instead of creating one.
	MustExist bool
}

// Store is an open job table. It is safe for concurrent use.
type Store struct {
	read  *sql.DB
	write *sql.Conn // owned by the writer goroutine
	wdb   *sql.DB

	get, list, listStatus, live, expired *sql.Stmt

	queue   chan *op
	done    chan struct{} // the writer has ended
	closing chan struct{}
	once    sync.Once
}

// Open opens the job table at path and creates it if need be. A file that is
// damaged or not ours is reported (ErrCorrupt, ErrNewer) and left untouched.
func Open(ctx context.Context, path string, o Options) (*Store, error) {
	s, err := open(ctx, path, o)
	if err != nil {
		return nil, fmt.Errorf("open the job table: %w", err)
	}
	return s, nil
}

func open(ctx context.Context, path string, o Options) (*Store, error) {
	if o.BusyTimeout == 0 {
		o.BusyTimeout = 5 * time.Second
	}
	fresh, err := look(ctx, path, o.BusyTimeout)
	if err != nil {
		return nil, err
	}
	if fresh {
		if o.MustExist {
			return nil, fmt.Errorf("%s: %w", path, os.ErrNotExist)
		}
		// Made here, so that it is closed to others; SQLite gives its side files
		// the same mode.
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		f.Close()
	}
	pragmas := busyPragma(o.BusyTimeout) + "&_pragma=journal_mode(wal)&_pragma=synchronous(normal)&_pragma=cache_size(-256)&_pragma=journal_size_limit(4194304)"
	s := &Store{queue: make(chan *op, 256), done: make(chan struct{}), closing: make(chan struct{})}
	if s.wdb, err = sql.Open("sqlite", dsn(path, "mode=rw"+pragmas)); err != nil {
		return nil, err
	}
	s.wdb.SetMaxOpenConns(1)
	if s.read, err = sql.Open("sqlite", dsn(path, "mode=rw"+pragmas)); err != nil {
		return nil, errors.Join(err, s.wdb.Close())
	}
	s.read.SetMaxOpenConns(2)
	s.read.SetMaxIdleConns(1)
	if err := s.prepare(ctx); err != nil {
		s.read.Close()
		s.wdb.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	go s.writer()
	return s, nil
}

func (s *Store) prepare(ctx context.Context) (err error) {
	if s.write, err = s.wdb.Conn(ctx); err != nil {
		return err
	}
	if err := migrate(ctx, s.write, migrations); err != nil {
		return err
	}
	const columns = "SELECT id, mode, status, created_at, started_at, ended_at, exit_code, reason FROM jobs "
	for _, p := range []struct {
		to  **sql.Stmt
		sql string
	}{
		{&s.get, columns + "WHERE id = ?"},
		{&s.list, columns + "ORDER BY seq DESC LIMIT ?"},
		{&s.listStatus, columns + "WHERE status = ? ORDER BY seq DESC LIMIT ?"},
		{&s.live, columns + "WHERE ended_at IS NULL ORDER BY seq"},
		{&s.expired, "SELECT id FROM jobs WHERE ended_at IS NOT NULL AND ended_at <= ? ORDER BY ended_at LIMIT ?"},
	} {
		if *p.to, err = s.read.PrepareContext(ctx, p.sql); err != nil {
			return err
		}
	}
	return nil
}

// Close commits what is queued and closes the database.
func (s *Store) Close() error {
	s.once.Do(func() { close(s.closing) })
	<-s.done
	return errors.Join(s.read.Close(), s.write.Close(), s.wdb.Close())
}

// Get gives one row; job.CodeNotFound when there is none.
func (s *Store) Get(ctx context.Context, id job.ID) (job.Job, error) {
	j, err := scan(s.get.QueryRowContext(ctx, string(id)))
	if errors.Is(err, sql.ErrNoRows) {
		return j, job.NotFound(string(id))
	}
	return j, s.wrap("read job", err)
}

// List gives at most limit rows, newest first, of one status or ("") of all.
func (s *Store) List(ctx context.Context, status job.Status, limit int) ([]job.Job, error) {
	if status == "" {
		return s.rows(s.list.QueryContext(ctx, limit))
	}
	return s.rows(s.listStatus.QueryContext(ctx, string(status), limit))
}

// Live gives the rows of jobs that have not ended, oldest first.
func (s *Store) Live(ctx context.Context) ([]job.Job, error) {
	return s.rows(s.live.QueryContext(ctx))
}

// Expired gives at most limit jobs that ended at or before a time, oldest first.
func (s *Store) Expired(ctx context.Context, before time.Time, limit int) ([]job.ID, error) {
	rows, err := s.expired.QueryContext(ctx, before.UnixMilli(), limit)
	if err != nil {
		return nil, s.wrap("list old jobs", err)
	}
	defer rows.Close()
	var ids []job.ID
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return nil, s.wrap("list old jobs", err)
		}
		ids = append(ids, job.ID(id))
	}
	return ids, s.wrap("list old jobs", rows.Err())
}

// Known says which of the jobs have a row.
func (s *Store) Known(ctx context.Context, ids []job.ID) (map[job.ID]bool, error) {
	known := map[job.ID]bool{}
	for _, id := range ids {
		_, err := s.Get(ctx, id)
		if err != nil && job.CodeOf(err) != job.CodeNotFound {
			return nil, err
		}
		known[id] = err == nil
	}
	return known, nil
}

func (s *Store) rows(rows *sql.Rows, err error) ([]job.Job, error) {
	if err != nil {
		return nil, s.wrap("list jobs", err)
	}
	defer rows.Close()
	list := []job.Job{}
	for rows.Next() {
		j, err := scan(rows)
		if err != nil {
			return nil, s.wrap("list jobs", err)
		}
		list = append(list, j)
	}
	return list, s.wrap("list jobs", rows.Err())
}

// scan reads a row of the columns that prepare names.
func scan(row interface{ Scan(...any) error }) (job.Job, error) {
	var j job.Job
	var id, mode, status string
	var created int64
	var started, ended, code sql.NullInt64
	if err := row.Scan(&id, &mode, &status, &created, &started, &ended, &code, &j.Reason); err != nil {
		return job.Job{}, err
	}
	j.ID, j.Mode, j.Status = job.ID(id), job.Mode(mode), job.Status(status)
	j.CreatedAt, j.StartedAt, j.EndedAt = time.UnixMilli(created), fromMilli(started), fromMilli(ended)
	if code.Valid {
		c := int(code.Int64)
		j.ExitCode = &c
	}
	return j, nil
}

func (s *Store) wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	select {
	case <-s.closing:
		return ErrClosed
	default:
		return fmt.Errorf("%s: %w", what, err)
	}
}

func fromMilli(n sql.NullInt64) time.Time {
	if !n.Valid {
		return time.Time{}
	}
	return time.UnixMilli(n.Int64)
}

func toMilli(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UnixMilli()
}

func toCode(c *int) any {
	if c == nil {
		return nil
	}
	return *c
}

// dsn names a file so that no character of its path is taken for syntax.
func dsn(path, query string) string {
	return "file:" + (&url.URL{Path: path}).EscapedPath() + "?" + query
}

// busyPragma comes before every other one: they too may meet another process,
// which recovers the log or closes it.
func busyPragma(d time.Duration) string {
	return fmt.Sprintf("&_pragma=busy_timeout(%d)", d.Milliseconds())
}

func isCorrupt(err error) bool {
	var e *sqlite.Error
	return errors.As(err, &e) && (e.Code()&0xff == sqlite3.SQLITE_CORRUPT || e.Code()&0xff == sqlite3.SQLITE_NOTADB)
}
