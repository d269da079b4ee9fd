package store

import (
	"context"
	"database/sql"
	"fmt"
)

// applicationID marks a database as this program's (PRAGMA application_id).
const applicationID = 0x64796a62

// migrations bring a database from version i to version i+1 (PRAGMA
// user_version). Steps are only ever added at the end.
//
// Times are unix milliseconds, NULL for "not yet". A row's order is its seq. The
// store learns of a job when it is made and when it has ended; that it runs is
// not written.
var migrations = []string{
	`CREATE TABLE jobs (
		seq        INTEGER PRIMARY KEY AUTOINCREMENT,
		id         TEXT NOT NULL UNIQUE,
		mode       TEXT NOT NULL,
		status     TEXT NOT NULL,
		created_at INTEGER NOT NULL,
		started_at INTEGER,
		ended_at   INTEGER,
		exit_code  INTEGER,
		reason     TEXT NOT NULL DEFAULT ''
	) STRICT;
	CREATE INDEX jobs_status ON jobs (status, seq);
	CREATE INDEX jobs_ended ON jobs (ended_at) WHERE ended_at IS NOT NULL;
	CREATE INDEX jobs_live ON jobs (seq) WHERE ended_at IS NULL;
	PRAGMA application_id = 1685678690;`,
}

// migrate brings the database to the newest version, each step in a transaction
// that also sets the version, so that a crash leaves no half step and two
// openers do not meet in one.
func migrate(ctx context.Context, c *sql.Conn, steps []string) error {
	for {
		if _, err := c.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
			return fmt.Errorf("begin: %w", err)
		}
		var v int
		err := c.QueryRowContext(ctx, "PRAGMA user_version").Scan(&v)
		if err == nil && v < len(steps) {
			_, err = c.ExecContext(ctx, steps[v]+fmt.Sprintf("PRAGMA user_version = %d", v+1))
		}
		if err != nil {
			c.ExecContext(ctx, "ROLLBACK")
			return fmt.Errorf("migrate from version %d: %w", v, err)
		}
		if _, err := c.ExecContext(ctx, "COMMIT"); err != nil {
			c.ExecContext(ctx, "ROLLBACK")
			return fmt.Errorf("commit: %w", err)
		}
		if v >= len(steps)-1 {
			return nil
		}
	}
}
