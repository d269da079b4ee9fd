package store

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"difyrt/runtime/job"
)

// op is one write on its way to the writer.
type op struct {
	what   string
	do     func(context.Context, *statements) error
	result chan error
}

// batch bounds what one transaction holds.
const batch = 128

// writeWithin bounds one transaction, its waiting for other processes included.
const writeWithin = 30 * time.Second

// Insert adds a job that has been made.
func (s *Store) Insert(ctx context.Context, j job.Job) error {
	return s.submit(ctx, "insert job", func(ctx context.Context, st *statements) error {
		_, err := st.insert.ExecContext(ctx, string(j.ID), string(j.Mode), string(j.Status),
			j.CreatedAt.UnixMilli(), toMilli(j.StartedAt), toMilli(j.EndedAt), toCode(j.ExitCode), j.Reason)
		return err
	})
}

// Finish records the end of a job. A row that is at an end already is left as
// it is. A job without a row is job.CodeNotFound.
func (s *Store) Finish(ctx context.Context, id job.ID, e job.End) error {
	if !e.Status.Final() {
		return fmt.Errorf("finish job %s: %q is no final status", id, e.Status)
	}
	return s.submit(ctx, "finish job", func(ctx context.Context, st *statements) error {
		r, err := st.finish.ExecContext(ctx, string(e.Status), toMilli(e.StartedAt), toMilli(e.EndedAt), toCode(e.ExitCode), e.Reason, string(id))
		if err != nil {
			return err
		}
		if n, err := r.RowsAffected(); err != nil || n > 0 {
			return err
		}
		var one int
		if err := st.has.QueryRowContext(ctx, string(id)).Scan(&one); err == sql.ErrNoRows {
			return job.NotFound(string(id))
		} else {
			return err
		}
	})
}

// Delete removes rows and tells how many there were.
func (s *Store) Delete(ctx context.Context, ids ...job.ID) (int, error) {
	var n int // the writer's until it has answered
	err := s.submit(ctx, "delete jobs", func(ctx context.Context, st *statements) error {
		n = 0
		for _, id := range ids {
			r, err := st.delete.ExecContext(ctx, string(id))
			if err != nil {
				return err
			}
			k, err := r.RowsAffected()
			if err != nil {
				return err
			}
			n += int(k)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

// submit hands a write to the writer and waits for its commit. When ctx ends
// while it is queued, the write may still happen.
func (s *Store) submit(ctx context.Context, what string, do func(context.Context, *statements) error) error {
	o := &op{what, do, make(chan error, 1)}
	select {
	case s.queue <- o:
	case <-s.closing:
		return ErrClosed
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", what, ctx.Err())
	}
	select {
	case err := <-o.result:
		return err
	case <-s.done:
		// The writer ended; it may have answered before that.
		select {
		case err := <-o.result:
			return err
		default:
			return ErrClosed
		}
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", what, ctx.Err())
	}
}

// statements are prepared once, on the writer's connection.
type statements struct {
	begin, commit, rollback, insert, finish, has, delete *sql.Stmt
}

func (s *Store) statements(ctx context.Context) (*statements, error) {
	st := &statements{}
	for _, p := range []struct {
		to  **sql.Stmt
		sql string
	}{
		{&st.begin, "BEGIN IMMEDIATE"}, {&st.commit, "COMMIT"}, {&st.rollback, "ROLLBACK"},
		{&st.insert, "INSERT INTO jobs (id, mode, status, created_at, started_at, ended_at, exit_code, reason) VALUES (?,?,?,?,?,?,?,?)"},
		{&st.finish, "UPDATE jobs SET status = ?, started_at = coalesce(?, started_at), ended_at = ?, exit_code = ?, reason = ? WHERE id = ? AND ended_at IS NULL"},
		{&st.has, "SELECT 1 FROM jobs WHERE id = ?"},
		{&st.delete, "DELETE FROM jobs WHERE id = ?"},
	} {
		var err error
		if *p.to, err = s.write.PrepareContext(ctx, p.sql); err != nil {
			return nil, fmt.Errorf("prepare a statement: %w", err)
		}
	}
	return st, nil
}

// writer commits what is queued until the store is closed.
func (s *Store) writer() {
	defer close(s.done)
	var st *statements
	for {
		var ops []*op
		select {
		case o := <-s.queue:
			ops = s.gather([]*op{o})
		case <-s.closing:
			if ops = s.gather(nil); len(ops) == 0 {
				return
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), writeWithin)
		var err error
		if st == nil {
			st, err = s.statements(ctx)
		}
		if err != nil {
			answer(ops, nil, err)
		} else {
			st.run(ctx, ops)
		}
		cancel()
	}
}

// gather takes what is queued now.
func (s *Store) gather(ops []*op) []*op {
	for len(ops) < batch {
		select {
		case o := <-s.queue:
			ops = append(ops, o)
		default:
			return ops
		}
	}
	return ops
}

// run does the writes in one transaction. When that fails, each is tried alone,
// so that a bad one does not take the others with it.
func (st *statements) run(ctx context.Context, ops []*op) {
	if len(ops) > 1 {
		results, err := st.transact(ctx, ops)
		if err == nil {
			answer(ops, results, nil)
			return
		}
	}
	for _, o := range ops {
		results, err := st.transact(ctx, []*op{o})
		answer([]*op{o}, results, err)
	}
}

// transact does all writes or none. A job that is not there is a result, not a
// failure of the transaction.
func (st *statements) transact(ctx context.Context, ops []*op) ([]error, error) {
	if _, err := st.begin.ExecContext(ctx); err != nil {
		return nil, fmt.Errorf("begin: %w", err)
	}
	results := make([]error, len(ops))
	for i, o := range ops {
		err := o.do(ctx, st)
		if err != nil && job.CodeOf(err) != job.CodeNotFound {
			st.undo()
			return nil, fmt.Errorf("%s: %w", o.what, err)
		}
		results[i] = err
	}
	if _, err := st.commit.ExecContext(ctx); err != nil {
		st.undo()
		return nil, fmt.Errorf("commit: %w", err)
	}
	return results, nil
}

// undo ends a failed transaction. SQLite may have done so itself, which is the
// only error there can be, and then there is nothing left to undo.
func (st *statements) undo() {
	ctx, cancel := context.WithTimeout(context.Background(), writeWithin)
	defer cancel()
	st.rollback.ExecContext(ctx)
}

func answer(ops []*op, results []error, err error) {
	for i, o := range ops {
		if err == nil {
			o.result <- results[i]
		} else {
			o.result <- err
		}
	}
}
