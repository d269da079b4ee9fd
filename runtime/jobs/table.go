package jobs

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"difyrt/runtime/confine"
	"difyrt/runtime/job"
	"difyrt/runtime/store"
	"difyrt/runtime/supervisor"
)

// Names in the state directory.
const (
	jobsDir = "jobs"
	// DatabaseFile is the store's file; runner-exit opens it too.
	DatabaseFile = "jobs.db"
)

// Config is what a table works with.
type Config struct {
	StateDir  string // absolute; its lock is held by the caller
	Shown     string // the name of StateDir that clients are told; a link to it, or the same
	Home      string // the server's home, default HOME and cwd of a job
	Environ   []string
	Policy    confine.Policy
	Limits    confine.Limits
	Retention time.Duration // how long a finished job is kept
	GCEvery   time.Duration
	Log       *slog.Logger
}

// Table is the job table of one state directory.
type Table struct {
	c         Config
	store     *store.Store
	fleet     *supervisor.Fleet
	dirs      *os.Root // of all jobs; what is made and removed there
	jobsDir   *os.File // the same directory; what is read there
	stopping  chan struct{}
	untilStop context.Context // ends with stopping
	stopNow   context.CancelFunc
	stopOnce  sync.Once
	workers   sync.WaitGroup // saves, and the collector

	mu       sync.Mutex
	live     map[job.ID]*entry
	deleting map[job.ID]bool // their files are going, or gone, and their rows are next
	order    uint64
}

// Open loads the table, connects to the runners that are alive, and brings both
// to agreement. It owns st from then on.
func Open(ctx context.Context, c Config, st *store.Store) (*Table, error) {
	dir := filepath.Join(c.StateDir, jobsDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the jobs' directory: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open the jobs' directory: %w", err)
	}
	handle, err := root.Open(".")
	if err != nil {
		root.Close()
		return nil, fmt.Errorf("open the jobs' directory: %w", err)
	}
	t := &Table{c: c, store: st, dirs: root, jobsDir: handle, stopping: make(chan struct{}), live: map[job.ID]*entry{}, deleting: map[job.ID]bool{}}
	t.untilStop, t.stopNow = context.WithCancel(context.Background())
	if err := t.reconcile(ctx); err != nil {
		t.stopNow()
		root.Close()
		handle.Close()
		return nil, err
	}
	t.workers.Go(t.collect)
	return t, nil
}

// Stop lets every waiter go with what there is. Calls still work.
func (t *Table) Stop() { t.stopOnce.Do(func() { close(t.stopping); t.stopNow() }) }

func (t *Table) isStopping() bool {
	select {
	case <-t.stopping:
		return true
	default:
		return false
	}
}

// Close leaves running jobs to their runner and closes the store. No call may
// be under way or follow.
func (t *Table) Close() error {
	t.Stop()
	t.fleet.Close()
	t.workers.Wait()
	t.dirs.Close()
	t.jobsDir.Close()
	return t.store.Close()
}

// add takes a job into memory.
func (t *Table) add(j job.Job) *entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.addLocked(j)
}

// admit is add for a new job, which must find a place.
func (t *Table) admit(j job.Job) (*entry, error) {
	if least := t.c.Limits.MinFree; least > 0 {
		free, err := confine.Free(t.c.StateDir)
		if err != nil {
			return nil, err
		}
		if free < least {
			return nil, job.Errorf(job.CodeNoSpace, "only %d bytes are free in the state directory, and %d must stay: remove jobs or make space", free, least)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if most := t.c.Limits.MaxJobs; most > 0 {
		n := int64(0)
		for _, e := range t.live {
			if !e.state().job.Status.Final() {
				n++
			}
		}
		if n >= most {
			return nil, job.Errorf(job.CodeTooManyJobs, "%d jobs run, which is as many as may: try again when one has ended", n)
		}
	}
	return t.addLocked(j), nil
}

func (t *Table) addLocked(j job.Job) *entry {
	t.order++
	e := newEntry(j, t.order)
	t.live[j.ID] = e
	return e
}

func (t *Table) entry(id job.ID) *entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.live[id]
}

// drop forgets an entry; from then on the store answers for the job.
func (t *Table) drop(e *entry) {
	t.mu.Lock()
	delete(t.live, e.job.ID)
	t.mu.Unlock()
	e.once.Do(func() { close(e.saved) })
	e.drop()
}

// find gives a job's state, from memory or from the store. changed is nil for a
// job that will not change any more.
func (t *Table) find(ctx context.Context, id job.ID) (state, *entry, error) {
	t.mu.Lock()
	e, going := t.live[id], t.deleting[id]
	t.mu.Unlock()
	if going {
		return state{}, nil, job.NotFound(string(id))
	}
	if e != nil {
		return e.state(), e, nil
	}
	j, err := t.store.Get(ctx, id)
	if err != nil {
		return state{}, nil, err
	}
	return state{job: j}, nil, nil
}

// Get gives the state of a job.
func (t *Table) Get(ctx context.Context, id job.ID) (View, error) {
	s, _, err := t.find(ctx, id)
	if err != nil {
		return View{}, err
	}
	return t.view(s), nil
}

// view never fails: a job may have done something to its own files, and must be
// seen and ended all the same.
func (t *Table) view(s state) View {
	size, err := t.size(s.job.ID)
	if err != nil {
		t.c.Log.Warn("output of a job cannot be read", "job", s.job.ID, "err", err)
		size = s.size
	}
	return View{Job: s.job, Offset: size}
}

// List gives jobs, newest first, of one status or ("") of all.
func (t *Table) List(ctx context.Context, status job.Status, limit int) ([]job.Job, error) {
	if status != "" && !status.Final() {
		return t.listLive(status, limit), nil
	}
	if err := t.awaitSaves(ctx); err != nil {
		return nil, err
	}
	list, err := t.store.List(ctx, status, limit)
	if err != nil {
		return nil, err
	}
	for i, j := range list {
		if e := t.entry(j.ID); e != nil {
			list[i] = e.state().job
		}
	}
	return list, nil
}

// listLive answers from memory: every job that has not ended is there, and the
// store does not know which of them run.
func (t *Table) listLive(status job.Status, limit int) []job.Job {
	t.mu.Lock()
	entries := slices.Collect(maps.Values(t.live))
	t.mu.Unlock()
	slices.SortFunc(entries, func(a, b *entry) int { return cmp.Compare(b.order, a.order) })
	list := []job.Job{}
	for _, e := range entries {
		if j := e.state().job; j.Status == status && len(list) < limit {
			list = append(list, j)
		}
	}
	return list
}

// awaitSaves returns when every end that a client may have seen is in the store.
func (t *Table) awaitSaves(ctx context.Context) error {
	t.mu.Lock()
	var ended []*entry
	for _, e := range t.live {
		if e.state().job.Status.Final() {
			ended = append(ended, e)
		}
	}
	t.mu.Unlock()
	limit := time.NewTimer(time.Second) // a store that fails must not block the list
	defer limit.Stop()
	for _, e := range ended {
		select {
		case <-e.saved:
		case <-limit.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
