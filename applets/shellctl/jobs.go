package shellctl

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"difyrt/applets/cmdline"
	"difyrt/runtime/client"
)

// followWithin is how long one question for more output waits.
const followWithin = 60 * time.Second

// onJobs makes a verb that works on jobs which its arguments name.
func onJobs(c *cmdline.Command, args []string, least, most int, do func(ctx context.Context, cl *client.Client, ids []string) error) int {
	r := remoteFlags(c)
	c.After = strings.TrimSpace(c.After+"\n"+remoteHelp) + "\n"
	if code, ok := c.Parse(args); !ok {
		return code
	}
	if n := c.Flags.NArg(); n < least || most >= 0 && n > most {
		return c.Wrong("%s", map[bool]string{true: "a job is wanted", false: "too many arguments"}[n < least])
	}
	ctx, done := cmdline.UntilSignal()
	defer done()
	cl, err := r.client()
	if err != nil {
		return fail(c, err)
	}
	var ids []string
	for _, a := range c.Flags.Args() {
		id, err := cl.Resolve(ctx, a)
		if err != nil {
			return fail(c, err)
		}
		ids = append(ids, id)
	}
	if err := do(ctx, cl, ids); err != nil {
		return fail(c, err)
	}
	return cmdline.OK
}

func ps(name string, args []string, s cmdline.Streams) int {
	c := cmdline.New(name, "[flags]", "Lists jobs, the newest first.", s)
	status := c.Flags.String("status", "", "only jobs of this `STATUS`: running, exited, terminated, failed, lost")
	asJSON := c.Flags.Bool("json", false, "print JSON")
	return onJobs(c, args, 0, 0, func(ctx context.Context, cl *client.Client, _ []string) error {
		list, err := cl.List(ctx, *status)
		if err != nil {
			return err
		}
		if *asJSON {
			return printJSON(s.Out, map[string]any{"jobs": list})
		}
		fmt.Fprintf(s.Out, "%-16s  %-10s  %-20s  %s\n", "JOB", "STATUS", "CREATED", "TOOK")
		for _, j := range list {
			fmt.Fprintf(s.Out, "%-16s  %-10s  %-20s  %s\n", j.ID, j.Status, j.CreatedAt, took(j, time.Now()))
		}
		return nil
	})
}

// took says how long a job ran, or has run so far.
func took(j client.Job, now time.Time) string {
	parse := func(s *string, other time.Time) time.Time {
		if s != nil {
			if t, err := time.Parse(time.RFC3339, *s); err == nil {
				return t
			}
		}
		return other
	}
	if j.StartedAt == nil {
		return "-"
	}
	return max(0, parse(j.EndedAt, now).Sub(parse(j.StartedAt, now))).Round(time.Second).String()
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

func logs(name string, args []string, s cmdline.Streams) int {
	c := cmdline.New(name, "[flags] JOB", "Prints a job's output.", s)
	follow := c.Flags.Bool("f", false, "go on until the job has ended")
	tail := c.Flags.Int("tail", 0, "only the last `BYTES`")
	return onJobs(c, args, 1, 1, func(ctx context.Context, cl *client.Client, ids []string) error {
		offset := int64(0)
		if *tail > 0 {
			p, err := cl.Tail(ctx, ids[0], *tail)
			if err != nil {
				return err
			}
			if offset = p.Offset; !*follow {
				_, err := io.WriteString(s.Out, p.Output)
				return err
			}
			if _, err := io.WriteString(s.Out, p.Output); err != nil {
				return err
			}
		}
		_, err := copyOutput(ctx, cl, ids[0], offset, *follow, s.Out)
		return err
	})
}

// copyOutput writes a job's output from an offset on: what there is, or all of it
// until the job has ended.
func copyOutput(ctx context.Context, cl *client.Client, id string, offset int64, follow bool, w io.Writer) (p client.Page, err error) {
	for {
		within := time.Duration(0)
		if follow {
			within = followWithin
		}
		if p, err = cl.Wait(ctx, id, offset, within); err != nil {
			return p, err
		}
		offset = p.Offset
		if _, err := io.WriteString(w, p.Output); err != nil {
			return p, err
		}
		if !p.Truncated && (p.Done || !follow) {
			return p, nil
		}
	}
}

func wait(name string, args []string, s cmdline.Streams) int {
	c := cmdline.New(name, "JOB", "Waits until a job has ended, and exits with its code.", s)
	code := cmdline.OK
	failed := onJobs(c, args, 1, 1, func(ctx context.Context, cl *client.Client, ids []string) error {
		p, err := copyOutput(ctx, cl, ids[0], 0, true, io.Discard)
		code = exitCode(p.ExitCode)
		return err
	})
	return max(failed, code)
}

// exitCode is a job's as a shell would give it; one that has none failed.
func exitCode(code *int) int {
	if code == nil {
		return cmdline.Error
	}
	return *code
}

func status(name string, args []string, s cmdline.Streams) int {
	c := cmdline.New(name, "[flags] JOB", "Tells the state of a job.", s)
	asJSON := c.Flags.Bool("json", false, "print JSON")
	return onJobs(c, args, 1, 1, func(ctx context.Context, cl *client.Client, ids []string) error {
		j, err := cl.Get(ctx, ids[0])
		if err != nil {
			return err
		}
		if *asJSON {
			return printJSON(s.Out, j)
		}
		line := j.ID + " " + j.Status
		if j.ExitCode != nil {
			line += fmt.Sprintf(" with code %d", *j.ExitCode)
		}
		fmt.Fprintf(s.Out, "%s, %s of output, %s\n", line, cmdline.Bytes(j.Offset), took(j, time.Now()))
		return nil
	})
}

func stop(name string, args []string, s cmdline.Streams) int {
	c := cmdline.New(name, "[flags] JOB...", "Ends jobs: interrupts them, and kills what is left after the grace.", s)
	grace := c.Flags.Duration("grace", 10*time.Second, "how long to wait after the interrupt, a `DURATION`")
	return onJobs(c, args, 1, -1, func(ctx context.Context, cl *client.Client, ids []string) error {
		for _, id := range ids {
			j, err := cl.Terminate(ctx, id, *grace)
			if err != nil {
				return err
			}
			fmt.Fprintf(s.Out, "%s %s\n", id, j.Status)
		}
		return nil
	})
}

func rm(name string, args []string, s cmdline.Streams) int {
	c := cmdline.New(name, "[flags] JOB...", "Removes finished jobs and their output.", s)
	force := c.Flags.Bool("f", false, "end and remove jobs that run, too")
	return onJobs(c, args, 1, -1, func(ctx context.Context, cl *client.Client, ids []string) error {
		for _, id := range ids {
			if err := cl.Delete(ctx, id, *force); err != nil {
				return fmt.Errorf("job %s: %w", id, err)
			}
		}
		return nil
	})
}

func prune(name string, args []string, s cmdline.Streams) int {
	c := cmdline.New(name, "[flags]", "Removes all finished jobs and their output.", s)
	return onJobs(c, args, 0, 0, func(ctx context.Context, cl *client.Client, _ []string) error {
		removed := 0
		for _, status := range []string{"exited", "terminated", "failed", "lost"} {
			for {
				list, err := cl.List(ctx, status)
				if err != nil {
					return err
				}
				for _, j := range list {
					if err := cl.Delete(ctx, j.ID, false); err != nil {
						return fmt.Errorf("job %s: %w", j.ID, err)
					}
					removed++
				}
				if len(list) == 0 {
					break
				}
			}
		}
		fmt.Fprintf(s.Out, "removed %d\n", removed)
		return nil
	})
}

func info(name string, args []string, s cmdline.Streams) int {
	c := cmdline.New(name, "[flags]", "Prints the server's report of what isolates its jobs, as JSON.", s)
	return onJobs(c, args, 0, 0, func(ctx context.Context, cl *client.Client, _ []string) error {
		report, err := cl.Info(ctx)
		if err != nil {
			return err
		}
		return printJSON(s.Out, report)
	})
}
