package jobs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"difyrt/runtime/confine"
	"difyrt/runtime/job"
	"difyrt/runtime/supervisor"
)

// spawnWithin bounds the start of a job, the runner's own start included.
const spawnWithin = 30 * time.Second

// Run starts a job and waits for it as Wait does. A job that could not be
// started is not an error: it is a failed job, with the reason as its output.
func (t *Table) Run(ctx context.Context, r RunRequest) (Result, error) {
	spec, err := t.spec(r)
	if err != nil {
		return Result{}, err
	}
	e, err := t.admit(job.Job{ID: spec.ID, Mode: r.Mode, Status: job.Starting, CreatedAt: time.Now()})
	if err != nil {
		return Result{}, err
	}
	// The job is the server's from here on, also when its client goes away.
	own, cancel := context.WithTimeout(context.WithoutCancel(ctx), spawnWithin)
	defer cancel()
	if err := t.create(own, e, r.Script); err != nil {
		t.drop(e)
		return Result{}, err
	}
	st, err := t.fleet.Spawn(own, spec)
	switch {
	case err == nil:
		e.running(st.At)
	case errors.Is(err, supervisor.ErrGone):
		// Whether it began is not known; RunnerGone settles it.
	default:
		t.fail(e, err)
	}
	return t.Wait(ctx, spec.ID, r.Window)
}

// spec checks what a request asks for and puts it into the runner's terms.
func (t *Table) spec(r RunRequest) (supervisor.Spec, error) {
	home := r.Env["HOME"]
	if home == "" {
		home = t.c.Home
	}
	if !filepath.IsAbs(home) {
		return supervisor.Spec{}, job.Errorf(job.CodeValidation, "HOME %q is not an absolute path", home)
	}
	cwd, err := t.cwd(r.Cwd)
	if err != nil {
		return supervisor.Spec{}, err
	}
	env := confine.Environ(confine.EnvSpec{Server: t.c.Environ, Request: r.Env, Home: home, Cwd: cwd, PTY: r.Mode == job.PTY})
	if err := confine.CheckEnviron(env); err != nil {
		return supervisor.Spec{}, job.Errorf(job.CodeValidation, "%v", err)
	}
	id := job.NewID()
	return supervisor.Spec{ID: id, Mode: r.Mode, Dir: supervisor.Path(t.dir(id)), Cwd: supervisor.Path(cwd), Home: supervisor.Path(home),
		Env: supervisor.EncodeEnv(env), Cols: r.Cols, Rows: r.Rows, Policy: t.c.Policy, Limits: t.c.Limits}, nil
}

// cwd resolves a request's working directory: the server's home when there is
// none, below it when it is relative.
func (t *Table) cwd(asked string) (string, error) {
	cwd := asked
	if !filepath.IsAbs(cwd) {
		cwd = filepath.Join(t.c.Home, cwd)
	}
	st, err := os.Stat(cwd)
	var why string
	switch {
	case err != nil:
		var pe *os.PathError
		if errors.As(err, &pe) {
			err = pe.Err
		}
		why = err.Error()
	case !st.IsDir():
		why = "not a directory"
	case unix.Faccessat(unix.AT_FDCWD, cwd, unix.X_OK, unix.AT_EACCESS) != nil:
		why = "permission denied"
	default:
		return cwd, nil
	}
	return "", job.Errorf(job.CodeInvalidCwd, "cwd %q: %s", cwd, why)
}

// create makes the job's directory with its script, and its row. When one
// fails, neither stays.
func (t *Table) create(ctx context.Context, e *entry, script string) error {
	id := e.job.ID
	inserted := make(chan error, 1)
	go func() { inserted <- t.store.Insert(ctx, e.job) }()
	ferr := t.writeScript(id, script)
	ierr := <-inserted
	if ferr == nil && ierr == nil {
		return nil
	}
	t.dirs.RemoveAll(string(id))
	if ierr == nil {
		if _, err := t.store.Delete(ctx, id); err != nil {
			t.c.Log.Error("row of a job that was never started stays", "job", id, "err", err)
		}
	}
	err := errors.Join(ferr, ierr)
	t.c.Log.Error("job not created", "job", id, "err", err)
	return job.Errorf(job.CodeInternal, "the job cannot be stored in the state directory: %v", err)
}

// writeScript is done here and not in the runner: a file that is still open for
// writing in a process that forks cannot be executed (ETXTBSY, execve(2)).
func (t *Table) writeScript(id job.ID, script string) error {
	if err := t.dirs.Mkdir(string(id), 0o700); err != nil {
		return fmt.Errorf("make the job's directory: %w", err)
	}
	perm := os.FileMode(0o600)
	if strings.HasPrefix(script, "#!") {
		perm = 0o700
	}
	f, err := t.dirs.OpenFile(string(id)+"/"+supervisor.ScriptFile, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return fmt.Errorf("write the script: %w", err)
	}
	_, err = f.WriteString(script)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write the script: %w", err)
	}
	return nil
}

// fail ends a job that did not come to run; the reason is its output.
func (t *Table) fail(e *entry, cause error) {
	id := e.job.ID
	reason := cause.Error()
	text := "difyrt: the job could not be started: " + reason + "\n"
	size := int64(0)
	f, err := t.dirs.OpenFile(string(id)+"/"+supervisor.OutputFile, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err == nil {
		var n int
		n, err = f.WriteString(text)
		size = int64(n)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.c.Log.Error("reason of a failed job not written", "job", id, "err", err)
	}
	t.end(e, job.End{Status: job.Failed, EndedAt: time.Now(), Reason: reason}, size)
}

// end moves a job to its end and saves it. Clients hear of the end at once: the
// exit record is on disk already, so that a crash before the save loses nothing.
func (t *Table) end(e *entry, end job.End, size int64) {
	if !e.finish(end, size) {
		return
	}
	j := e.state().job
	log := t.c.Log.Info
	if j.Status == job.Failed || j.Status == job.Lost {
		log = t.c.Log.Warn
	}
	attrs := []any{"job", j.ID, "status", j.Status, "mode", j.Mode, "seconds", j.EndedAt.Sub(j.CreatedAt).Seconds(), "bytes", size}
	if j.ExitCode != nil {
		attrs = append(attrs, "code", *j.ExitCode)
	}
	if j.Reason != "" {
		attrs = append(attrs, "reason", j.Reason)
	}
	log("job ended", attrs...)
	t.workers.Go(func() { t.save(e) })
}

// save writes a job's end; what fails is tried again by the collector.
func (t *Table) save(e *entry) {
	j := e.state().job
	ctx, cancel := context.WithTimeout(context.Background(), spawnWithin)
	defer cancel()
	err := t.store.Finish(ctx, j.ID, job.End{Status: j.Status, StartedAt: j.StartedAt, EndedAt: j.EndedAt, ExitCode: j.ExitCode, Reason: j.Reason})
	if err != nil && job.CodeOf(err) != job.CodeNotFound {
		t.c.Log.Error("end of a job not saved; trying again later", "job", j.ID, "err", err)
		return
	}
	t.drop(e)
}

func (t *Table) dir(id job.ID) string {
	return filepath.Join(t.c.StateDir, jobsDir, string(id))
}

// outputPath is what clients are told. The link that it may lead through stands
// in a home, where a job can put something else: then it is not used.
func (t *Table) outputPath(id job.ID) string {
	state := t.c.StateDir
	if t.c.Shown != state {
		if to, err := os.Readlink(t.c.Shown); err == nil && to == state {
			state = t.c.Shown
		}
	}
	return filepath.Join(state, jobsDir, string(id), supervisor.OutputFile)
}
