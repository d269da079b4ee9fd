package supervisor

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"difyrt/runtime/confine"
)

// limitGrace is what a job gets that has reached its time limit.
const limitGrace = 10 * time.Second

// outOfSpace ends the job when too little space is left below its directory. It
// is asked by the job's own writes, so that only jobs that write are ended.
func (j *running) outOfSpace() bool {
	free, err := confine.Free(string(j.spec.Dir))
	if err != nil || free >= j.spec.Limits.MinFree {
		return false
	}
	if j.outOfRoom.CompareAndSwap(false, true) {
		j.log.Warn("a job that writes output is ended: too little space is left", "free", free, "least", j.spec.Limits.MinFree)
		j.terminate(0, fmt.Sprintf("only %d bytes are free, and %d must stay", free, j.spec.Limits.MinFree))
	}
	return true
}

// killWithin bounds how long the processes of a tree are hunted once they get
// SIGKILL. What is not gone by then hangs in the kernel or forks faster than it
// can be killed; the job ends without it, and the log says so.
const killWithin = 5 * time.Second

// drainWithin bounds how long a killed job's pipes may stay open: a process
// that slipped away may hold them.
const drainWithin = time.Second

// terminate ends the job: interrupt, at half of the grace a request to end, and
// as soon as the script's process is gone or the grace is over, SIGKILL for all
// that is left. It returns at once; the job's end tells that it is done. A job
// that has ended already is left alone. why is what the job's output says of it
// when it was not a client that asked.
func (j *running) terminate(grace time.Duration, why string) {
	if !j.hold() {
		return
	}
	j.mu.Lock()
	j.terminated = true
	if j.failure == "" {
		j.failure = why
	}
	j.mu.Unlock()
	go func() {
		defer j.release()
		// The first look comes before the first signal: descent is only to be
		// seen while the parents live.
		tree := confine.NewTree(j.leader, j.warden)
		if all, err := confine.Processes(); err == nil {
			tree.Look(all)
		}
		j.askToEnd(grace)
		j.killTree(tree)
	}()
}

func (j *running) askToEnd(grace time.Duration) {
	if grace <= 0 {
		return
	}
	ask, over := time.NewTimer(grace/2), time.NewTimer(grace)
	defer ask.Stop()
	defer over.Stop()
	j.interrupt(unix.SIGINT)
	for {
		select {
		case <-j.gone:
			return
		case <-ask.C:
			j.interrupt(unix.SIGTERM)
			if j.tty != nil {
				j.interrupt(unix.SIGHUP) // an interactive shell ignores the others
			}
		case <-over.C:
			return
		}
	}
}

// interrupt signals the script's process group and, where another group has
// the terminal, that one too. As long as the script's process is not reaped its
// number is its group's; afterwards it is not touched here.
func (j *running) interrupt(sig unix.Signal) {
	select {
	case <-j.gone:
		return
	default:
	}
	if j.tty != nil {
		if pgid := j.tty.foreground(); pgid > 1 && pgid != j.pid {
			unix.Kill(-pgid, sig)
		}
	}
	unix.Kill(-j.pid, sig)
}

// killTree kills whatever the job started and is still there.
func (j *running) killTree(tree *confine.Tree) {
	j.dropOnce.Do(func() { close(j.drop) })
	// The pidfd hits the script's process even where /proc cannot be read.
	unix.PidfdSendSignal(j.pidfd, unix.SIGKILL, nil, 0)
	if !tree.Kill(time.Now().Add(killWithin)) {
		j.log.Error("processes of a terminated job are still there", "pid", j.pid)
	}
	t := time.NewTimer(drainWithin)
	defer t.Stop()
	select {
	case <-j.drained:
	case <-t.C:
		for _, p := range j.pipes {
			p.giveUp()
		}
	}
}
