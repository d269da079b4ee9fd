package jobs

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"difyrt/runtime/job"
)

// collectBatch bounds the jobs that one round of the collector removes at once.
const collectBatch = 500

// collect removes finished jobs after their retention, until the table stops.
// Stray directories are looked for at the start and once more when those of then
// have become old enough.
func (t *Table) collect() {
	t.sweep()
	again := time.NewTimer(t.c.Retention + t.c.GCEvery)
	defer again.Stop()
	tick := time.NewTicker(t.c.GCEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-again.C:
			t.sweep()
			continue
		case <-t.stopping:
			return
		}
		t.saveAgain()
		if n, err := t.collectOnce(); err != nil {
			t.c.Log.Error("old jobs not removed", "removed", n, "err", err)
		} else if n > 0 {
			t.c.Log.Info("old jobs removed", "removed", n)
		}
	}
}

func (t *Table) collectOnce() (removed int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), max(t.c.GCEvery, time.Minute))
	defer cancel()
	defer context.AfterFunc(t.untilStop, cancel)() // a stop does not wait for a long collection
	for {
		ids, err := t.store.Expired(ctx, time.Now().Add(-t.c.Retention), collectBatch)
		// A job whose processes run on is kept, so that they can still be ended.
		ids = slices.DeleteFunc(ids, t.fleet.Left)
		if err != nil || len(ids) == 0 || t.isStopping() {
			return removed, err
		}
		n, err := t.remove(ctx, ids...)
		removed += n
		if err != nil {
			return removed, err
		}
	}
}

// saveAgain tries the ends that could not be saved.
func (t *Table) saveAgain() {
	t.mu.Lock()
	var unsaved []*entry
	for _, e := range t.live {
		if s := e.state(); s.job.Status.Final() && time.Since(s.job.EndedAt) > spawnWithin {
			unsaved = append(unsaved, e)
		}
	}
	t.mu.Unlock()
	for _, e := range unsaved {
		t.save(e)
	}
}

// directories names everything that is in the jobs' directory now.
func (t *Table) directories() ([]string, error) {
	d, err := t.dirs.Open(".")
	if err != nil {
		return nil, fmt.Errorf("read the jobs' directory: %w", err)
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil && err != io.EOF {
		return nil, fmt.Errorf("read the jobs' directory: %w", err)
	}
	return names, nil
}

// sweep removes directories of jobs that have no row: a server was killed in
// the middle of a deletion or of a creation, or an operator put the database
// away. They stay as long as a finished job would.
func (t *Table) sweep() {
	names, err := t.directories()
	if err != nil {
		t.c.Log.Error("stray job directories not looked for", "err", err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ids := make([]job.ID, 0, len(names))
	for _, n := range names {
		id, err := job.ParseID(n)
		if err != nil || t.entry(id) != nil {
			continue
		}
		if st, err := t.dirs.Lstat(n); err == nil && time.Since(st.ModTime()) > t.c.Retention {
			ids = append(ids, id)
		}
	}
	known, err := t.store.Known(ctx, ids)
	if err != nil {
		t.c.Log.Error("stray job directories not looked for", "err", err)
		return
	}
	for _, id := range ids {
		if known[id] {
			continue
		}
		if err := t.dirs.RemoveAll(string(id)); err != nil {
			t.c.Log.Error("stray job directory stays", "job", id, "err", err)
		} else {
			t.c.Log.Info("stray job directory removed", "job", id)
		}
	}
}
