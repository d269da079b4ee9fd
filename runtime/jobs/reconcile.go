package jobs

import (
	"context"
	"fmt"
	"time"

	"difyrt/runtime/job"
	"difyrt/runtime/supervisor"
)

// reconcile brings rows, runners and exit records to agreement: what a runner
// holds is running, what has a record has ended as the record says, and the rest
// is lost. What is on disk without a row is removed.
func (t *Table) reconcile(ctx context.Context) error {
	rows, err := t.store.Live(ctx)
	if err != nil {
		return err
	}
	for _, j := range rows {
		t.add(j)
	}
	fleet, held, err := supervisor.OpenFleet(ctx, t.c.StateDir, t.c.Log, t)
	if err != nil {
		return err
	}
	t.fleet = fleet
	running := map[job.ID]bool{}
	for _, st := range held {
		running[st.ID] = true
		if err := t.adopt(ctx, st); err != nil {
			fleet.Close()
			return err
		}
	}
	for _, j := range rows {
		if e := t.entry(j.ID); e != nil && !running[j.ID] {
			t.settle(e, supervisor.Started{ID: j.ID})
		}
	}
	if len(rows)+len(held) > 0 {
		t.c.Log.Info("jobs of an earlier server", "running", len(held), "unfinished_rows", len(rows))
	}
	return nil
}

// adopt takes over a job that a runner holds. One without a row can only be
// there when the database was removed; it gets a new one.
func (t *Table) adopt(ctx context.Context, st supervisor.Started) error {
	e := t.entry(st.ID)
	if e == nil {
		if _, ended, _ := supervisor.ReadRecord(t.jobsDir, st.ID); ended {
			return nil
		}
		if j, err := t.store.Get(ctx, st.ID); err == nil {
			t.c.Log.Warn("a job runs that has ended by its row; it is left alone", "job", st.ID, "status", j.Status, "pid", st.PID)
			return nil
		}
		j := job.Job{ID: st.ID, Mode: st.Mode, Status: job.Starting, CreatedAt: st.At}
		e = t.add(j) // before its end can be told
		if err := t.store.Insert(ctx, j); err != nil {
			return fmt.Errorf("adopt job %s: %w", st.ID, err)
		}
	}
	size, err := t.size(st.ID)
	if err != nil {
		t.c.Log.Warn("output of a running job cannot be read", "job", st.ID, "err", err)
	}
	e.running(st.At)
	e.grew(size)
	return nil
}

// settle ends a job that no runner holds: as its exit record says, or as lost,
// and then nothing of it is left to run on unseen.
func (t *Table) settle(e *entry, st supervisor.Started) {
	id := e.job.ID
	r, ended, err := supervisor.ReadRecord(t.jobsDir, id)
	if err != nil {
		t.c.Log.Error("exit record not read", "job", id, "err", err)
	}
	if ended {
		t.end(e, r.End(), r.Size)
		return
	}
	supervisor.KillLeftover(t.dir(id), st)
	size, err := t.size(id)
	if err != nil {
		t.c.Log.Warn("output of a lost job cannot be read", "job", id, "err", err)
	}
	t.end(e, job.End{Status: job.Lost, EndedAt: time.Now(), Reason: "its runner died and nothing recorded how it ended"}, size)
}

// Grown, Ended and RunnerGone make the table the runners' listener.
var _ supervisor.Handler = (*Table)(nil)

// Grown is called when a job's output has grown.
func (t *Table) Grown(g supervisor.Grown) {
	if e := t.entry(g.ID); e != nil {
		e.grew(g.Size)
	}
}

// Ended is called when a job has ended.
func (t *Table) Ended(d supervisor.Ended) {
	if e := t.entry(d.ID); e != nil {
		t.end(e, d.End(), d.Size)
	}
	if d.Left > 0 {
		t.c.Log.Info("a job left processes running", "job", d.ID, "processes", d.Left)
	}
}

// RunnerGone is called when a runner died with jobs.
func (t *Table) RunnerGone(jobs []supervisor.Started) {
	for _, st := range jobs {
		if e := t.entry(st.ID); e != nil {
			t.settle(e, st)
		}
	}
}
