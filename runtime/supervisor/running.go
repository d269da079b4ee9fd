package supervisor

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"difyrt/runtime/confine"
	"difyrt/runtime/job"
)

// running is one job from its start to its exit record.
type running struct {
	spec      Spec
	log       *slog.Logger
	pid       int
	pidfd     int
	dir       int // the job's directory, opened
	leader    confine.Process
	warden    *confine.Warden // nil without a domain
	isolation string
	started   time.Time
	out       *sink
	errOut    *sink     // stdio only
	tty       *terminal // pty only
	pipes     []*pipe   // stdio only

	gone      chan struct{} // closed when the script's process has exited
	drained   chan struct{} // closed when all its output is in the files
	timeLimit *time.Timer   // nil without a limit
	drop      chan struct{} // closed when output that cannot be written is to be dropped
	dropOnce  sync.Once
	owner     owner

	outOfRoom atomic.Bool // ended for want of disk space

	mu         sync.Mutex
	holds      int // what must come to its end before the job has: its process, its output, each termination
	drains     int // terminals and pipes that are still read
	terminated bool
	failure    string // why the runner ended the job itself
	status     unix.WaitStatus
}

// owner is what a job needs of the runner that keeps it.
type owner struct {
	reap   *reaper
	level  confine.Level
	groups *confine.Cgroups  // nil: none
	state  confine.Ancestors // of the state directory
	log    *slog.Logger
	// tooLate says why the job is not wanted any more, if so.
	tooLate func() string
	// started is called before the job can end, grew after each growth of its
	// output file, ended once, when its exit record is on disk.
	started func(*running)
	grew    func(*running, int64)
	ended   func(*running, Record)
	// leftBehind counts what a job left running, and keeps the job when there
	// is something; otherwise the job is dismissed.
	leftBehind func(*running) int
}

// start starts a job. On an error nothing of it is left but its files.
func start(spec Spec, o owner) (_ *running, err error) {
	j := &running{spec: spec, log: o.log.With("job", spec.ID), pidfd: -1, dir: -1, owner: o,
		gone: make(chan struct{}), drained: make(chan struct{}), drop: make(chan struct{})}
	g, err := openGrounds(string(spec.Home), string(spec.Cwd))
	if err != nil {
		return nil, err
	}
	defer g.close()
	exposed := o.state.Has(g.homePath()) || o.state.Has(g.cwdPath())
	if exposed && spec.Policy.Strict {
		return nil, &startError{125, errors.New("isolate the job: the mode is strict, and its HOME or cwd holds the server's state directory")}
	}
	path, argv, err := command(string(spec.Dir))
	if err != nil {
		return nil, err
	}
	if j.dir, err = openDir(string(spec.Dir)); err != nil {
		return nil, &startError{125, err}
	}
	attr := &syscall.ProcAttr{Dir: g.cwdPath(), Env: decodeEnv(spec.Env), Sys: &syscall.SysProcAttr{Setsid: true, PidFD: &j.pidfd}}
	if err := j.open(attr); err != nil {
		j.closeAll()
		return nil, &startError{125, err}
	}
	d, err := newDomain(spec, o.level, o.groups, confine.Place{Home: g.homePath(), Cwd: g.cwdPath(), JobDir: descriptorPath(j.dir), TTY: j.ttyName()})
	if err != nil {
		j.closeAll()
		return nil, err
	}
	defer d.close()
	j.isolation = d.String()
	if exposed && d.rules != nil {
		j.isolation += ", but for the state directory"
	}

	if why := o.tooLate(); why != "" {
		j.closeAll()
		return nil, &startError{125, errors.New(why)}
	}
	j.holds, j.drains = 2, max(1, len(j.pipes))
	j.pid, err = o.reap.fork(func(awaitStop func(int) bool) (pid int, err error) {
		pid, j.warden, err = d.forkExec(path, argv, attr, awaitStop)
		return pid, err
	}, j.exited)
	if err != nil {
		j.closeAll()
		return nil, err
	}
	confine.PreferForOOM(j.pid)
	j.started = time.Now()
	j.leader = confine.Process{PID: j.pid, Start: confine.StartedNow()}
	if max := spec.Limits.MaxSeconds; max > 0 {
		j.timeLimit = time.AfterFunc(time.Duration(max)*time.Second, func() {
			j.terminate(limitGrace, fmt.Sprintf("its time limit of %d s was reached", max))
		})
	}
	o.started(j)
	if j.tty != nil {
		go j.drainTerminal()
	}
	for i, p := range j.pipes {
		p.child.Close()
		go j.drainPipe(p, []*sink{j.out, j.errOut}[i])
	}
	return j, nil
}

// open makes the job's files and the descriptors that become its 0, 1 and 2.
func (j *running) open(attr *syscall.ProcAttr) (err error) {
	o := sinkOptions{stop: j.drop, log: j.log, most: j.spec.Limits.MaxOutput}
	if j.spec.Limits.MinFree > 0 {
		o.full = j.outOfSpace
	}
	public := o
	public.grew = func(size int64) { j.owner.grew(j, size) }
	if j.out, err = newSink(j.dir, OutputFile, public); err != nil {
		return err
	}
	if j.spec.Mode == job.PTY {
		if j.tty, err = openTerminal(j.spec.Cols, j.spec.Rows); err != nil {
			return err
		}
		fd := j.tty.slave.Fd()
		attr.Files = []uintptr{fd, fd, fd}
		attr.Sys.Setctty = true
		return nil
	}
	if j.errOut, err = newSink(j.dir, StderrFile, o); err != nil {
		return err
	}
	null, err := devNull()
	if err != nil {
		return err
	}
	attr.Files = []uintptr{null}
	for range 2 {
		p, err := openPipe()
		if err != nil {
			return err
		}
		j.pipes = append(j.pipes, p)
		attr.Files = append(attr.Files, p.child.Fd())
	}
	return nil
}

// devNull is opened once for all jobs.
var devNull = sync.OnceValues(func() (uintptr, error) {
	fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open /dev/null: %w", err)
	}
	return uintptr(fd), nil
})

func (j *running) ttyName() string {
	if j.tty == nil {
		return ""
	}
	return j.tty.name
}

// closeAll gives back what a job holds that never came to run.
func (j *running) closeAll() {
	for _, s := range []*sink{j.out, j.errOut} {
		if s != nil {
			s.close()
		}
	}
	if j.tty != nil {
		j.tty.close()
	}
	for _, p := range j.pipes {
		p.close()
	}
	j.dismiss()
	unix.Close(j.dir)
}

// exited is told by the reaper, once.
func (j *running) exited(ws unix.WaitStatus) {
	j.mu.Lock()
	j.status = ws
	j.mu.Unlock()
	close(j.gone)
	if j.tty != nil {
		j.tty.leaderExited()
	}
	j.release()
}

func (j *running) drainTerminal() {
	atEnd := j.tty.drain(j.out)
	j.drainOver()
	if !atEnd {
		j.tty.discard()
	}
	j.tty.master.Close()
}

func (j *running) drainPipe(p *pipe, out *sink) {
	p.drain(out)
	j.drainOver()
}

func (j *running) drainOver() {
	j.mu.Lock()
	j.drains--
	last := j.drains == 0
	j.mu.Unlock()
	if last {
		close(j.drained)
		j.release()
	}
}

// hold delays the job's end; false when it has ended already.
func (j *running) hold() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.holds == 0 {
		return false
	}
	j.holds++
	return true
}

func (j *running) release() {
	j.mu.Lock()
	j.holds--
	last := j.holds == 0
	j.mu.Unlock()
	if last {
		go j.finish() // the caller may be the reaper, which must not wait for a disk
	}
}

// finish writes the exit record and tells the owner.
func (j *running) finish() {
	code := exitCode(j.status)
	r := Record{Status: job.Exited, ExitCode: &code, StartedAt: j.started, EndedAt: time.Now(), Size: j.out.size.Load(), Isolation: j.isolation}
	if j.timeLimit != nil {
		j.timeLimit.Stop()
	}
	switch {
	case j.outOfRoom.Load():
		r.Status = job.Failed
	case j.terminated:
		r.Status = job.Terminated
	}
	if err := errors.Join(j.out.lost, j.lostStderr()); err != nil {
		r.Reason = err.Error()
	}
	if j.failure != "" {
		r.Reason = j.failure
		j.out.append([]byte("\n[difyrt: the job was ended: " + j.failure + "]\n"))
		r.Size = j.out.size.Load()
	}
	j.out.close()
	if j.errOut != nil {
		j.errOut.close()
	}
	unix.Close(j.pidfd)
	if r.Left = j.owner.leftBehind(j); r.Left == 0 {
		j.dismiss()
	}
	err := writeRecord(j.dir, r)
	if err != nil {
		j.log.Error("exit record not written; trying again", "err", err)
	}
	j.owner.ended(j, r)
	j.recordAgain(r, err)
	unix.Close(j.dir)
}

// recordAgain tries on while the disk is full: until then only a server that is
// there knows the end. It gives up when the job has been deleted.
func (j *running) recordAgain(r Record, err error) {
	for errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		time.Sleep(retryEvery) // nothing tells when space comes back
		err = writeRecord(j.dir, r)
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		j.log.Error("exit record not written", "err", err)
	}
}

// dismiss ends the warden's thread: nothing of the job is left to watch.
func (j *running) dismiss() {
	if j.warden != nil {
		j.warden.Close()
	}
}

func (j *running) lostStderr() error {
	if j.errOut == nil {
		return nil
	}
	return j.errOut.lost
}

// startedAs says what a client is told of a running job.
func (j *running) startedAs() Started {
	return Started{ID: j.spec.ID, PID: j.pid, Start: j.leader.Start, At: j.started, Mode: j.spec.Mode, Size: j.out.size.Load()}
}

// input types text into the job's terminal.
func (j *running) input(text []byte, deadline time.Time) error {
	if j.tty == nil {
		return job.Errorf(job.CodeInputUnsupported, "the job runs in stdio mode; only pty jobs take input")
	}
	return j.tty.write(text, deadline)
}
