package api

import (
	"time"

	"difyrt/runtime/job"
	"difyrt/runtime/jobs"
)

// The response objects. Clients reject keys that they do not know, so these are
// exact (contract, Jobs; client.md, 2.1).

type resultBody struct {
	JobID      job.ID     `json:"job_id"`
	Done       bool       `json:"done"`
	Status     job.Status `json:"status"`
	ExitCode   *int       `json:"exit_code"`
	OutputPath string     `json:"output_path"`
	Output     string     `json:"output"`
	Offset     int64      `json:"offset"`
	Truncated  bool       `json:"truncated"`
}

type viewBody struct {
	JobID     job.ID     `json:"job_id"`
	Status    job.Status `json:"status"`
	Done      bool       `json:"done"`
	ExitCode  *int       `json:"exit_code"`
	CreatedAt stamp      `json:"created_at"`
	StartedAt stamp      `json:"started_at"`
	EndedAt   stamp      `json:"ended_at"`
	Offset    int64      `json:"offset"`
}

type infoBody struct {
	JobID     job.ID     `json:"job_id"`
	Status    job.Status `json:"status"`
	CreatedAt stamp      `json:"created_at"`
	StartedAt stamp      `json:"started_at"`
	EndedAt   stamp      `json:"ended_at"`
}

type listBody struct {
	Jobs []infoBody `json:"jobs"`
}

type deletedBody struct {
	JobID   job.ID `json:"job_id"`
	Deleted bool   `json:"deleted"`
}

type healthBody struct {
	Status string `json:"status"`
}

// stamp is a time in UTC and whole seconds; the zero time is null.
type stamp time.Time

func (s stamp) MarshalJSON() ([]byte, error) {
	t := time.Time(s)
	if t.IsZero() {
		return []byte("null"), nil
	}
	return []byte(t.UTC().Format(`"2006-01-02T15:04:05Z"`)), nil
}

// exitCode is null until the end, whatever the record holds by then: clients
// take a code for the end (client.md, 2.1).
func exitCode(j job.Job) *int {
	if !j.Status.Final() {
		return nil
	}
	return j.ExitCode
}

func toResult(r jobs.Result) resultBody {
	j := r.Job
	return resultBody{JobID: j.ID, Done: j.Status.Final(), Status: j.Status, ExitCode: exitCode(j),
		OutputPath: r.OutputPath, Output: r.Output, Offset: r.Offset, Truncated: r.Truncated}
}

func toView(v jobs.View) viewBody {
	j := v.Job
	return viewBody{JobID: j.ID, Status: j.Status, Done: j.Status.Final(), ExitCode: exitCode(j),
		CreatedAt: stamp(j.CreatedAt), StartedAt: stamp(j.StartedAt), EndedAt: stamp(j.EndedAt), Offset: v.Offset}
}

func toList(list []job.Job) listBody {
	b := listBody{Jobs: make([]infoBody, 0, len(list))}
	for _, j := range list {
		b.Jobs = append(b.Jobs, infoBody{j.ID, j.Status, stamp(j.CreatedAt), stamp(j.StartedAt), stamp(j.EndedAt)})
	}
	return b
}
