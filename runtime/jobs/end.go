package jobs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"difyrt/runtime/job"
	"difyrt/runtime/supervisor"
)

// endWithin bounds how long a terminated job may take beyond its grace until
// its end is known: the hunt for its processes, and a slow disk.
const endWithin = 15 * time.Second

// Terminate ends a job: interrupt, and when it is gone or the grace over, kill
// what is left. It returns when the job has ended. A job that has ended before
// stays as it is; processes that it left in the background are killed.
func (t *Table) Terminate(ctx context.Context, id job.ID, grace time.Duration) (View, error) {
	s, e, err := t.find(ctx, id)
	if err != nil {
		return View{}, err
	}
	if e == nil || s.job.Status.Final() {
		return t.view(s), t.sweepUp(ctx, id)
	}
	limit, cancel := context.WithTimeout(ctx, grace+endWithin)
	defer cancel()
	late := job.Errorf(job.CodeInternal, "job %s has not ended %v after its grace: its runner does not answer, or a process of it hangs in the kernel", id, endWithin)
	asked := false
	for !s.job.Status.Final() {
		if s.job.Status == job.Running && !asked {
			asked = true
			// A job that is not running any more is about to be reported.
			err := t.fleet.Terminate(limit, id, grace)
			if limit.Err() != nil && ctx.Err() == nil {
				return View{}, late
			}
			if err != nil && job.CodeOf(err) != job.CodeNotRunning && !errors.Is(err, supervisor.ErrGone) {
				return View{}, err
			}
		}
		select {
		case <-s.changed:
		case <-limit.Done():
			if ctx.Err() != nil {
				return View{}, ctx.Err()
			}
			return View{}, late
		}
		s = e.state()
	}
	return t.view(s), nil
}

// sweepUp kills what an ended job has left running.
func (t *Table) sweepUp(ctx context.Context, id job.ID) error {
	ctx, cancel := context.WithTimeout(ctx, endWithin)
	defer cancel()
	if err := t.fleet.Sweep(ctx, id); err != nil && !errors.Is(err, supervisor.ErrGone) {
		return fmt.Errorf("end what job %s left running: %w", id, err)
	}
	return nil
}

// Delete removes a job, its row and its directory, and kills what it left
// running. A live one is refused unless force is set; then it is terminated first.
func (t *Table) Delete(ctx context.Context, id job.ID, force bool, grace time.Duration) error {
	s, e, err := t.find(ctx, id)
	if err != nil {
		return err
	}
	if !s.job.Status.Final() {
		if !force {
			return job.Errorf(job.CodeRunning, "job %s is %s; terminate it first or delete it with force=true", id, s.job.Status)
		}
		if _, err := t.Terminate(ctx, id, grace); err != nil {
			return err
		}
	}
	if err := t.sweepUp(ctx, id); err != nil {
		return err
	}
	n, err := t.remove(ctx, id)
	if err != nil {
		return err
	}
	if e != nil {
		t.drop(e) // its end need not be saved any more
	}
	if n == 0 {
		return job.NotFound(string(id)) // another call was faster
	}
	return nil
}

// remove deletes files first: on a full disk it is their space that lets the
// database write. A job whose files cannot be removed keeps its row, so that it
// is not said to be gone. A row that stays without its files, after a crash or a failure
// in between, is removed with the next call or by the collector.
func (t *Table) remove(ctx context.Context, ids ...job.ID) (int, error) {
	t.mu.Lock()
	for _, id := range ids {
		t.deleting[id] = true
	}
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		for _, id := range ids {
			delete(t.deleting, id)
		}
	}()
	var failed []error
	gone := make([]job.ID, 0, len(ids))
	for _, id := range ids {
		if ctx.Err() != nil {
			failed = append(failed, ctx.Err())
			break
		}
		if err := t.dirs.RemoveAll(string(id)); err != nil {
			failed = append(failed, fmt.Errorf("remove the files of job %s: %w", id, err))
			continue
		}
		gone = append(gone, id)
	}
	n, err := t.store.Delete(ctx, gone...)
	return n, errors.Join(append(failed, err)...)
}
