package supervisor

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"difyrt/runtime/confine"
	"difyrt/runtime/job"
)

// Protocol is the version that this build speaks.
const Protocol = 1

// maxFrame bounds a message on the socket: the largest is an input of 16 MiB,
// which base64 makes a third longer.
const maxFrame = 32 << 20

// Spec is everything that a runner needs to start a job. The job's directory
// exists and holds the script.
type Spec struct {
	ID     job.ID         `json:"id"`
	Mode   job.Mode       `json:"mode"`
	Dir    Path           `json:"dir"` // the job's directory, absolute
	Cwd    Path           `json:"cwd"`
	Home   Path           `json:"home"` // made if it is missing
	Env    []byte         `json:"env"`  // NAME=value strings, each with a NUL behind it: values need not be UTF-8
	Cols   uint16         `json:"cols,omitempty"`
	Rows   uint16         `json:"rows,omitempty"`
	Policy confine.Policy `json:"policy"`
	Limits confine.Limits `json:"limits"`
}

// Path is a file's path. Its JSON form is base64, since paths need not be UTF-8.
type Path string

// MarshalJSON implements json.Marshaler.
func (p Path) MarshalJSON() ([]byte, error) { return json.Marshal([]byte(p)) }

// UnmarshalJSON implements json.Unmarshaler.
func (p *Path) UnmarshalJSON(b []byte) error {
	var raw []byte
	err := json.Unmarshal(b, &raw)
	*p = Path(raw)
	return err
}

// Started is a job that runs.
type Started struct {
	ID  job.ID `json:"id"`
	PID int    `json:"pid"`
	// Start is when the process started, or a little later, in clock ticks after
	// boot: a process of this PID that started after it is another one.
	Start uint64    `json:"start"`
	At    time.Time `json:"at"`
	Mode  job.Mode  `json:"mode"`
	Size  int64     `json:"size"` // of the output file
}

// Grown says how long a job's output file is by now.
type Grown struct {
	ID   job.ID `json:"id"`
	Size int64  `json:"size"`
}

// Ended is the end of a job: nothing will be added to its files.
type Ended struct {
	ID job.ID `json:"id"`
	Record
}

// Hello is what a runner says of itself.
type Hello struct {
	Protocol int       `json:"protocol"`
	Version  string    `json:"version"`
	PID      int       `json:"pid"`
	Exe      string    `json:"exe"` // identity of the executable, see exeIdentity
	ABI      int       `json:"abi"` // Landlock, 0 for none
	Jobs     []Started `json:"jobs"`
	Left     []job.ID  `json:"left,omitempty"` // ended jobs with processes that still run
	Stopping bool      `json:"stopping,omitempty"`
}

// codeStopping is the error of a runner that starts no more jobs: another must.
const codeStopping job.Code = "runner_stopping"

const (
	opHello     = "hello"
	opSpawn     = "spawn"
	opInput     = "input"
	opTerminate = "terminate"
	opSweep     = "sweep"
	opRetire    = "retire"
)

type inputArgs struct {
	ID      job.ID        `json:"id"`
	Text    []byte        `json:"text"`
	Timeout time.Duration `json:"timeout"` // nanoseconds
}

type terminateArgs struct {
	ID    job.ID        `json:"id"`
	Grace time.Duration `json:"grace"` // nanoseconds
}

type sweepArgs struct {
	ID job.ID `json:"id"`
}

type request struct {
	Seq       uint64         `json:"seq"`
	Op        string         `json:"op"`
	Spawn     *Spec          `json:"spawn,omitempty"`
	Input     *inputArgs     `json:"input,omitempty"`
	Terminate *terminateArgs `json:"terminate,omitempty"`
	Sweep     *sweepArgs     `json:"sweep,omitempty"`
}

// message is what the runner sends: a reply when Seq is not 0, an event else.
type message struct {
	Seq     uint64     `json:"seq,omitempty"`
	Error   *wireError `json:"error,omitempty"`
	Hello   *Hello     `json:"hello,omitempty"`
	Started *Started   `json:"started,omitempty"`
	Grown   []Grown    `json:"grown,omitempty"`
	Ended   *Ended     `json:"ended,omitempty"`
	// Stopping: the runner starts no more jobs, ends those that it has, and then
	// waits a moment for its servers to leave.
	Stopping bool `json:"stopping,omitempty"`
	// LeftEnded: the last process that this ended job had left running is gone.
	LeftEnded job.ID `json:"left_ended,omitempty"`
}

type wireError struct {
	Code    job.Code `json:"code"`
	Message string   `json:"message"`
}

// toWire keeps the code of an error that is meant for the client.
func toWire(err error) *wireError {
	if err == nil {
		return nil
	}
	return &wireError{Code: job.CodeOf(err), Message: err.Error()}
}

func (e *wireError) err() error {
	return &job.Error{Code: e.Code, Message: e.Message}
}

// writeFrame sends v with one write, so that two writers need only a lock.
func writeFrame(w io.Writer, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode message: %w", err)
	}
	if len(body) > maxFrame {
		return fmt.Errorf("message of %d bytes is beyond the limit of %d", len(body), maxFrame)
	}
	b := make([]byte, 4+len(body))
	binary.BigEndian.PutUint32(b, uint32(len(body)))
	copy(b[4:], body)
	_, err = w.Write(b)
	return err
}

// readFrame fills v from the next frame. io.EOF means a clean end between frames.
func readFrame(r io.Reader, v any) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > maxFrame {
		return fmt.Errorf("message of %d bytes is beyond the limit of %d", n, maxFrame)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return fmt.Errorf("read message: %w", io.ErrUnexpectedEOF)
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("decode message: %w", err)
	}
	return nil
}
