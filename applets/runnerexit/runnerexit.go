// Package runnerexit is the applet shellctl-runner-exit: it records a job's
// exit in the job table, for whoever ran the job while no server was there.
package runnerexit

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"difyrt/applets/cmdline"
	"difyrt/runtime/job"
	"difyrt/runtime/jobs"
	"difyrt/runtime/store"
)

// within bounds the whole applet beyond the time that it may wait for a lock.
const within = 30 * time.Second

// Main is the applet.
func Main(name string, args []string, s cmdline.Streams) int {
	c := cmdline.New(name, "--state-dir DIR --job-id ID --exit-code N --ended-at TIME", `
Records in the job table that a job has ended, once all its output is in its
file. A job that has ended already is left as it is. An unknown job is an error.`, s)
	c.After = `
Example:
  shellctl-runner-exit --state-dir ~/.local/share/shellctl \
    --job-id 0123456789abcdef --exit-code 0 --ended-at 2026-01-02T03:04:05Z`
	state := c.Flags.String("state-dir", "", "state `DIR` of the server that made the job")
	id := c.Flags.String("job-id", "", "the job's `ID`, 16 hexadecimal digits")
	code := c.Flags.Int("exit-code", -1, "the job's exit code `N`, 0 to 255")
	at := c.Flags.String("ended-at", "", "when it ended, a `TIME` as 2026-01-02T03:04:05Z")
	started := c.Flags.String("started-at", "", "when it started, a `TIME` in the same form")
	status := c.Flags.String("status", string(job.Exited), "how it ended, a final `STATUS`")
	busy := c.Flags.Int("sqlite-busy-timeout-ms", 5000, "how many `MS` to wait for another writer")
	if rc, ok := c.Parse(args); !ok {
		return rc
	}
	end := job.End{ExitCode: code}
	var err error
	switch {
	case c.Flags.NArg() > 0:
		return c.Wrong("unexpected argument %q", c.Flags.Arg(0))
	case *state == "" || *id == "" || *at == "":
		return c.Wrong("--state-dir, --job-id, --exit-code and --ended-at are all needed")
	case *code < 0 || *code > 255:
		return c.Wrong("--exit-code must be 0 to 255")
	case *busy < 0:
		return c.Wrong("--sqlite-busy-timeout-ms must not be negative")
	}
	if end.EndedAt, err = time.Parse(time.RFC3339, *at); err != nil {
		return c.Wrong("--ended-at: %v", err)
	}
	if *started != "" {
		if end.StartedAt, err = time.Parse(time.RFC3339, *started); err != nil {
			return c.Wrong("--started-at: %v", err)
		}
	}
	if end.Status, err = job.ParseStatus(*status); err != nil || !end.Status.Final() {
		return c.Wrong("--status %q is not a final status", *status)
	}
	jid, err := job.ParseID(*id)
	if err != nil {
		return c.Wrong("--job-id: %v", err)
	}
	if err := record(*state, jid, end, time.Duration(*busy)*time.Millisecond); err != nil {
		return c.Fail(err)
	}
	return cmdline.OK
}

func record(state string, id job.ID, end job.End, busy time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), busy+within)
	defer cancel()
	st, err := store.Open(ctx, filepath.Join(state, jobs.DatabaseFile), store.Options{BusyTimeout: busy, MustExist: true})
	if err != nil {
		return err
	}
	if err := st.Finish(ctx, id, end); err != nil {
		st.Close()
		return fmt.Errorf("record the exit of job %s: %w", id, err)
	}
	return st.Close()
}
