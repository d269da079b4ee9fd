// Package job is the domain of the data plane: what a job is, which states it
// passes through, and the errors that every layer above speaks in. It imports
// nothing of ours and nothing of the outside world, so that the store, the
// supervisor and the HTTP front can all agree on it.
//
// A job is one script and the process tree it starts. Its life is
//
//	created → starting → running → exited | terminated | failed | lost
//
// and the four last states are final: a record that reached one of them is
// never changed again, whoever reports what.
package job

import (
	"crypto/rand"
	"encoding/hex"
	"strings"
	"time"
)

// ID names a job: 16 lower-case hexadecimal digits (contract, Jobs). A value of
// this type that came out of ParseID or NewID is safe as a file name.
type ID string

// NewID draws a random identifier from the kernel's generator.
func NewID() ID {
	var b [8]byte
	rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	return ID(hex.EncodeToString(b[:]))
}

// ParseID accepts exactly the form of an ID. Anything else is CodeNotFound and
// not a validation error: an identifier that no job can have names no job
// (contract, Errors).
func ParseID(s string) (ID, error) {
	if len(s) != 16 {
		return "", NotFound(s)
	}
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return "", NotFound(s)
		}
	}
	return ID(s), nil
}

// Mode says how a job's standard streams are wired (contract, Modes).
type Mode string

const (
	// PTY gives the job a terminal of its own; its output is sanitised text.
	PTY Mode = "pty"
	// Stdio gives it the null device and two pipes; its output is bytes as written.
	Stdio Mode = "stdio"
)

// ParseMode accepts the two modes; the empty string is PTY, the default.
func ParseMode(s string) (Mode, error) {
	switch Mode(s) {
	case "", PTY:
		return PTY, nil
	case Stdio:
		return Stdio, nil
	}
	return "", Errorf(CodeValidation, "mode %q is neither %q nor %q", s, PTY, Stdio)
}

// Status is a state of a job's life.
type Status string

// The states, in the order of a job's life. See the package comment.
const (
	Created    Status = "created"
	Starting   Status = "starting"
	Running    Status = "running"
	Exited     Status = "exited"
	Terminated Status = "terminated"
	Failed     Status = "failed"
	Lost       Status = "lost"
)

// rank orders the states; equal ranks exclude each other.
var rank = map[Status]int{
	Created: 1, Starting: 2, Running: 3,
	Exited: 4, Terminated: 4, Failed: 4, Lost: 4,
}

// ParseStatus accepts one of the seven states.
func ParseStatus(s string) (Status, error) {
	if rank[Status(s)] == 0 {
		return "", Errorf(CodeValidation, "status %q is not one of created, starting, running, exited, terminated, failed, lost", s)
	}
	return Status(s), nil
}

// Final reports whether a job in this state has ended for good.
func (s Status) Final() bool { return rank[s] == 4 }

// CanBecome reports whether a job may pass from s to t: forward only, skipping
// states is allowed, and a final state is never left.
func (s Status) CanBecome(t Status) bool {
	return rank[s] != 0 && rank[t] > rank[s]
}

// Job is the record of one job. Zero times mean "not yet".
type Job struct {
	ID        ID
	Mode      Mode
	Status    Status
	CreatedAt time.Time
	StartedAt time.Time
	EndedAt   time.Time
	// ExitCode is the code of the script's process, 128+n when signal n ended
	// it; nil as long as there is none, and for ever in a job that failed to
	// start or was lost.
	ExitCode *int
	// Reason says in words why a job failed or was lost; empty otherwise.
	Reason string
}

// End is how a job came to its end, as the supervisor or an exit record tells it.
type End struct {
	Status    Status // one of the final states
	StartedAt time.Time
	EndedAt   time.Time
	ExitCode  *int
	Reason    string
}

// Finish moves the job to the end e. It reports false, and changes nothing,
// when the job is at an end already.
func (j *Job) Finish(e End) bool {
	if !j.Status.CanBecome(e.Status) || !e.Status.Final() {
		return false
	}
	j.Status, j.EndedAt, j.ExitCode, j.Reason = e.Status, e.EndedAt, e.ExitCode, e.Reason
	if !e.StartedAt.IsZero() {
		j.StartedAt = e.StartedAt
	}
	return true
}

// CheckEnv accepts what can be an environment: names that are not empty and
// hold neither "=" nor NUL, values without NUL (environ(7)). The error names
// the variable and never its value.
func CheckEnv(env map[string]string) error {
	for name, value := range env {
		switch {
		case name == "":
			return Errorf(CodeValidation, "env has a variable without a name")
		case strings.ContainsAny(name, "=\x00"):
			return Errorf(CodeValidation, "env name %.64q holds \"=\" or NUL", name)
		case strings.Contains(value, "\x00"):
			return Errorf(CodeValidation, "the value of env variable %.64q holds NUL", name)
		}
	}
	return nil
}
