package supervisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"difyrt/runtime/job"
)

// Names in a job's directory.
const (
	ScriptFile = "script"
	OutputFile = "output.log"
	StderrFile = "stderr.log"
	recordFile = "exit.json"

	// of the one-shot runner (contract, Commands)
	gateFile     = "start-gate"
	jobEnvFile   = ".job-env.json"
	exitCodeFile = "runner-exit-code"
	endedAtFile  = "runner-ended-at"
)

// maxRecord bounds what is read of a file that should be an exit record.
const maxRecord = 64 << 10

// Record is a job's exit record: how it ended, written before anybody is told.
type Record struct {
	Status    job.Status `json:"status"`
	ExitCode  *int       `json:"exit_code"`
	StartedAt time.Time  `json:"started_at"`
	EndedAt   time.Time  `json:"ended_at"`
	Size      int64      `json:"size"` // of the output file
	Reason    string     `json:"reason,omitempty"`
	// Isolation says what was in force for the job: "landlock ABI", "seccomp", or "none".
	Isolation string `json:"isolation,omitempty"`
	// Left is how many processes of the job were still running when it ended.
	Left int `json:"left,omitempty"`
}

// End gives the record in the words of the domain.
func (r Record) End() job.End {
	return job.End{Status: r.Status, StartedAt: r.StartedAt, EndedAt: r.EndedAt, ExitCode: r.ExitCode, Reason: r.Reason}
}

func writeRecord(dir int, r Record) error {
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode exit record: %w", err)
	}
	return writeAtomic(dir, recordFile, b)
}

// ReadRecord reads the exit record below the opened directory of all jobs; ok is
// false when there is none. A record that is no record is an error: the job's
// directory may be in the reach of the job.
func ReadRecord(jobs *os.File, id job.ID) (r Record, ok bool, err error) {
	f, err := OpenArtifact(jobs, id, recordFile)
	if errors.Is(err, fs.ErrNotExist) {
		return r, false, nil
	}
	if err != nil {
		return r, false, fmt.Errorf("exit record of %s: %w", id, err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.NewSectionReader(f, 0, min(f.Size(), maxRecord)))
	if err != nil {
		return r, false, fmt.Errorf("exit record of %s: %w", id, err)
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return r, false, fmt.Errorf("exit record of %s: %w", id, err)
	}
	if !r.Status.Final() {
		return r, false, fmt.Errorf("exit record of %s has status %q", id, r.Status)
	}
	return r, true, nil
}

// writeAtomic puts a whole file in place or none: a reader never sees a part. The
// job may be able to write in the directory, so the file is made under a name that
// nobody can have taken, and nothing that is there is opened. It is on every
// job's path, and makes the system calls itself, half as many.
func writeAtomic(dir int, name string, b []byte) error {
	tmp := "." + name + "." + string(job.NewID())
	fd, err := unix.Openat(dir, tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	n, err := unix.Write(fd, b)
	if err == nil && n < len(b) {
		err = unix.ENOSPC // a regular file takes less only when there is no more room
	}
	unix.Close(fd)
	if err == nil {
		err = unix.Renameat(dir, tmp, dir, name)
	}
	if err != nil {
		unix.Unlinkat(dir, tmp, 0)
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// writeOneShotRecord writes the two files that a multiplexer's caller reads;
// the time first, since the code says that the record is whole.
func writeOneShotRecord(dir string, code int, at time.Time) error {
	fd, err := openDir(dir)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := writeAtomic(fd, endedAtFile, []byte(at.UTC().Format(time.RFC3339)+"\n")); err != nil {
		return err
	}
	return writeAtomic(fd, exitCodeFile, []byte(strconv.Itoa(code)+"\n"))
}

// openDir opens a job's directory; what happens to its path later does not matter.
func openDir(path string) (int, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}
