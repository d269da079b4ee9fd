package jobs

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"time"

	"difyrt/runtime/job"
	"difyrt/runtime/output"
	"difyrt/runtime/supervisor"
)

// Wait gives the page that the window asks for, at the first of: the job has
// ended; more than the limit is there; output is there and none was added for
// IdleFlush; Timeout has passed; the table stops (contract, wait).
func (t *Table) Wait(ctx context.Context, id job.ID, w Window) (Result, error) {
	s, e, err := t.find(ctx, id)
	if err != nil {
		return Result{}, err
	}
	if e == nil {
		return t.page(ctx, s.job, w)
	}
	if w.Offset > s.size {
		// Beyond what the runner told, but perhaps not beyond what is there.
		if size, err := t.size(id); err != nil {
			return Result{}, err
		} else if w.Offset > size {
			return Result{}, invalidOffset(w.Offset, size)
		}
	}
	deadline := time.Now().Add(w.Timeout)
	timer := time.NewTimer(w.Timeout)
	defer timer.Stop()
	held := int64(-1) // the size at which only a part of a character was there
	for {
		left := time.Until(deadline)
		there := s.size - w.Offset
		if s.size == held {
			there = 0
		}
		idle := left
		if there > 0 {
			idle = min(left, w.IdleFlush-time.Since(s.grown))
		}
		if s.job.Status.Final() || there > int64(w.Limit) || idle <= 0 {
			r, err := t.page(ctx, s.job, w)
			if err != nil || r.Offset > w.Offset || s.job.Status.Final() || left <= 0 {
				return r, err
			}
			held = s.size
			continue
		}
		timer.Reset(idle)
		select {
		case <-s.changed:
		case <-timer.C:
		case <-t.stopping:
			return t.page(ctx, s.job, w)
		case <-ctx.Done():
			return Result{}, ctx.Err()
		}
		if s = e.state(); s.dropped {
			return Result{}, job.NotFound(string(id))
		}
	}
}

// Input types text into the job's terminal, then waits as Wait does with what
// is left of the timeout.
func (t *Table) Input(ctx context.Context, id job.ID, text string, w Window) (Result, error) {
	s, e, err := t.find(ctx, id)
	if err != nil {
		return Result{}, err
	}
	if s.job.Mode != job.PTY {
		return Result{}, job.Errorf(job.CodeInputUnsupported, "job %s runs in stdio mode; only pty jobs take input", id)
	}
	if e == nil || s.job.Status.Final() {
		return Result{}, notRunning(s.job)
	}
	if size, err := t.size(id); err != nil {
		return Result{}, err
	} else if w.Offset > size {
		return Result{}, invalidOffset(w.Offset, size)
	}
	start := time.Now()
	within := max(w.Timeout, minTyping)
	typing, cancel := context.WithTimeout(ctx, within+answerWithin)
	defer cancel()
	if err := t.fleet.Input(typing, id, text, within); err != nil {
		if s := e.state(); s.job.Status.Final() {
			return Result{}, notRunning(s.job)
		}
		if typing.Err() != nil && ctx.Err() == nil {
			return Result{}, job.Errorf(job.CodeInputTimeout, "the runner does not answer; whether the text was typed is not known")
		}
		return Result{}, err
	}
	w.Timeout = max(0, w.Timeout-time.Since(start))
	return t.Wait(ctx, id, w)
}

// answerWithin is how long a runner may take to answer beyond the time that the
// request itself may take.
const answerWithin = time.Second

// minTyping lets a call with timeout 0 type at all: a terminal that is read
// takes the text in much less.
const minTyping = 250 * time.Millisecond

// Tail gives the last bytes of the output.
func (t *Table) Tail(ctx context.Context, id job.ID, limit int) (Result, error) {
	s, _, err := t.find(ctx, id)
	if err != nil {
		return Result{}, err
	}
	return t.read(ctx, s.job, 0, func(f io.ReaderAt, size int64) (output.Page, error) {
		p, err := output.Tail(f, size, limit, s.job.Status.Final())
		p.More = false
		return p, err
	})
}

func (t *Table) page(ctx context.Context, j job.Job, w Window) (Result, error) {
	return t.read(ctx, j, w.Offset, func(f io.ReaderAt, size int64) (output.Page, error) {
		if w.Offset > size {
			return output.Page{}, invalidOffset(w.Offset, size)
		}
		return output.Read(f, w.Offset, size, w.Limit, j.Status.Final())
	})
}

// read opens a job's output and makes a Result of what get takes from it. A job
// without a file has no output: it has only just been created, or the job was
// deleted while somebody waited for it. One whose file cannot be read, since the
// job did something to it, has none either; the client must still hear of it.
func (t *Table) read(ctx context.Context, j job.Job, at int64, get func(f io.ReaderAt, size int64) (output.Page, error)) (Result, error) {
	f, size, err := t.open(j.ID)
	if err != nil {
		t.c.Log.Warn("output of a job cannot be read", "job", j.ID, "err", err)
		return Result{Job: j, OutputPath: t.outputPath(j.ID), Offset: at}, nil
	}
	if f != nil {
		defer f.Close()
	} else if _, _, err := t.find(ctx, j.ID); err != nil {
		return Result{}, err
	}
	p, err := get(f, size)
	if err != nil {
		return Result{}, err
	}
	return Result{Job: j, OutputPath: t.outputPath(j.ID),
		Output: p.Text, Offset: p.Next, Truncated: p.More}, nil
}

func (t *Table) open(id job.ID) (*supervisor.Artifact, int64, error) {
	f, err := supervisor.OpenArtifact(t.jobsDir, id, supervisor.OutputFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	return f, f.Size(), nil
}

func (t *Table) size(id job.ID) (int64, error) {
	f, size, err := t.open(id)
	if f != nil {
		f.Close()
	}
	return size, err
}

func invalidOffset(offset, size int64) error {
	return job.Errorf(job.CodeInvalidOffset, "offset %d is beyond the end of the output, which has %d bytes", offset, size)
}

func notRunning(j job.Job) error {
	return job.Errorf(job.CodeNotRunning, "job %s has ended: %s", j.ID, j.Status)
}
