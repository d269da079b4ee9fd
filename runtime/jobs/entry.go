package jobs

import (
	"sync"
	"time"

	"difyrt/runtime/job"
)

// entry is a job in memory.
type entry struct {
	order uint64 // of creation

	mu      sync.Mutex
	job     job.Job
	size    int64     // of the output, as the runner told
	grown   time.Time // when it told
	dropped bool      // forgotten before its end
	changed chan struct{}
	saved   chan struct{} // closed when the end is in the store, or the row is gone
	once    sync.Once     // closes saved
}

func newEntry(j job.Job, order uint64) *entry {
	return &entry{order: order, job: j, grown: time.Now(), changed: make(chan struct{}), saved: make(chan struct{})}
}

// state is an entry at one moment; changed is closed at the next one.
type state struct {
	job     job.Job
	size    int64
	grown   time.Time
	dropped bool
	changed <-chan struct{}
}

func (e *entry) state() state {
	e.mu.Lock()
	defer e.mu.Unlock()
	return state{e.job, e.size, e.grown, e.dropped, e.changed}
}

func (e *entry) broadcast() {
	close(e.changed)
	e.changed = make(chan struct{})
}

func (e *entry) running(at time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.job.Status.CanBecome(job.Running) {
		e.job.Status, e.job.StartedAt = job.Running, at
		e.broadcast()
	}
}

func (e *entry) grew(size int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if size > e.size && !e.job.Status.Final() {
		e.size, e.grown = size, time.Now()
		e.broadcast()
	}
}

// finish reports false when the job had ended before.
func (e *entry) finish(end job.End, size int64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.job.Finish(end) {
		return false
	}
	e.size = size
	e.broadcast()
	return true
}

// drop tells those who wait that there is no such job any more.
func (e *entry) drop() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.job.Status.Final() {
		e.dropped = true
		e.broadcast()
	}
}
