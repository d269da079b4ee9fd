package jobs

import (
	"time"

	"difyrt/runtime/job"
)

// Defaults and limits of the Jobs routes (contract, Jobs).
const (
	DefaultTimeout     = 30 * time.Second
	MaxTimeout         = 600 * time.Second
	DefaultOutputLimit = 16 << 10
	MaxOutputLimit     = 512 << 10
	DefaultIdleFlush   = 500 * time.Millisecond
	DefaultGrace       = 10 * time.Second
	MaxGrace           = 300 * time.Second
	DefaultCols        = 200
	DefaultRows        = 50
	MaxTerminalSide    = 4096
	DefaultListLimit   = 50
	MaxListLimit       = 200
	// MaxScript is the largest script in bytes; a larger one is CodeTooLarge.
	MaxScript = 16 << 20
)

// Window asks for a part of a job's output and says how long to wait for it.
// Its values are already within the limits above.
type Window struct {
	Offset    int64         // first byte asked for
	Limit     int           // most raw bytes of the file in the answer, at least 1
	Timeout   time.Duration // 0 answers at once
	IdleFlush time.Duration // answer when output is there and none was added for so long
}

// RunRequest starts a job.
type RunRequest struct {
	Script string
	Cwd    string            // empty: the server's home
	Env    map[string]string // laid over the server's environment
	Mode   job.Mode
	Cols   uint16
	Rows   uint16
	Window Window // Offset is 0
}

// Result is a page of a job's output with the job's state at that moment
// (contract, JobResult).
type Result struct {
	Job        job.Job
	OutputPath string // absolute
	Output     string // valid UTF-8
	Offset     int64  // to ask for next
	Truncated  bool   // more output was already there than the limit let through
}

// View is a job's state with the size of its output so far (contract, status view).
type View struct {
	Job    job.Job
	Offset int64
}
