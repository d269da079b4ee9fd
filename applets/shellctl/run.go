package shellctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"difyrt/applets/cmdline"
	"difyrt/runtime/client"
)

func run(name string, args []string, s cmdline.Streams) int {
	c := cmdline.New(name, "[flags] [--] SCRIPT...|-", `
Runs a script as a job, shows its output as it comes, and exits with its code. Words
are joined to one script; - reads it from standard input. Ctrl-C interrupts the job,
a second one kills it. Where no server is named and none runs, the job gets a
private one for itself.`, s)
	c.After = `
Examples:
  shellctl run -- make test
  shellctl run --env MODE=fast --cwd /workspace - < build.sh
  id=$(shellctl run --detach -- sleep 600)
` + remoteHelp
	r := remoteFlags(c)
	stdio := c.Flags.Bool("stdio", false, "run it on pipes instead of a terminal; only its standard output is shown")
	cwd := c.Flags.String("cwd", "", "`DIR` to run it in (default the server's home)")
	detach := c.Flags.Bool("detach", false, "print the job's identifier and leave it running")
	limit := c.Flags.Duration("timeout", 0, "end the job after this `DURATION`, with code 124 (default never)")
	env := map[string]string{}
	c.Flags.Func("env", "`NAME=VALUE` for the job; can be given again", func(kv string) error {
		name, value, ok := strings.Cut(kv, "=")
		if !ok {
			return errors.New("use NAME=VALUE")
		}
		env[name] = value
		return nil
	})
	if code, ok := c.Parse(args); !ok {
		return code
	}
	script, err := script(c.Flags.Args(), s.In)
	if err != nil {
		return c.Wrong("%v", err)
	}
	cl, err := r.client()
	if err != nil {
		return fail(c, err)
	}
	q := client.RunRequest{Script: script, Cwd: *cwd, Env: env, Mode: "pty"}
	if *stdio {
		q.Mode = "stdio"
	} else if size, err := unix.IoctlGetWinsize(1, unix.TIOCGWINSZ); err == nil && size.Col > 0 && size.Row > 0 {
		q.Terminal = &client.Terminal{Cols: int(size.Col), Rows: int(size.Row)}
	}
	ctx := context.Background()
	if r.nobodyThere(ctx, cl) && !*detach {
		fmt.Fprintf(c.Err, "%s: no server at %s: running the job in a private one\n", c.Name, client.Default)
		var end func()
		if cl, end, err = private(); err != nil {
			return fail(c, err)
		}
		defer end()
	}
	p, err := cl.Run(ctx, q)
	if err != nil {
		return fail(c, err)
	}
	if *detach {
		fmt.Fprintln(s.Out, p.ID)
		return cmdline.OK
	}
	j := &attended{cl: cl, id: p.ID, pty: !*stdio}
	over := j.attend(*limit)
	p, err = copyOutput(ctx, cl, p.ID, 0, true, s.Out)
	late := over()
	if err != nil {
		return fail(c, err)
	}
	if late {
		fmt.Fprintf(c.Err, "%s: the job was ended after %v\n", c.Name, *limit)
		return 124
	}
	return exitCode(p.ExitCode)
}

func script(args []string, in io.Reader) (string, error) {
	if len(args) == 1 && args[0] == "-" {
		b, err := io.ReadAll(in)
		return string(b), err
	}
	if len(args) == 0 {
		return "", errors.New("a script is wanted, or - to read it from standard input")
	}
	return strings.Join(args, " "), nil
}

// attended is a job that somebody watches.
type attended struct {
	cl  *client.Client
	id  string
	pty bool
}

// attend passes signals on until over is called, which tells whether the job ran
// out of time.
func (j *attended) attend(limit time.Duration) (over func() (late bool)) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM)
	done, ended := make(chan struct{}), make(chan bool, 1)
	var timeout <-chan time.Time
	if limit > 0 {
		timeout = time.After(limit)
	}
	go func() {
		late := false
		for n := 0; ; {
			select {
			case <-signals:
				n++
				j.interrupt(n)
			case <-timeout:
				late = true
				j.end(2 * time.Second)
			case <-done:
				ended <- late
				return
			}
		}
	}()
	return func() bool {
		signal.Stop(signals)
		close(done)
		return <-ended
	}
}

// interrupt types Ctrl-C the first time, where there is a terminal, and kills the
// job the next time.
func (j *attended) interrupt(nth int) {
	if nth > 1 {
		j.end(0)
		return
	}
	if !j.pty || j.cl.Input(context.Background(), j.id, "\x03", 0) != nil {
		j.end(10 * time.Second)
	}
}

// end does not wait: the output goes on meanwhile, and tells of the end.
func (j *attended) end(grace time.Duration) {
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), grace+30*time.Second)
		defer cancel()
		_, _ = j.cl.Terminate(ctx, j.id, grace) // a job that is over is what was wanted
	}()
}

// keys are what send can press besides text.
var keys = map[string]string{"enter": "\n", "tab": "\t", "esc": "\x1b", "escape": "\x1b", "space": " ", "backspace": "\x7f",
	"up": "\x1b[A", "down": "\x1b[B", "right": "\x1b[C", "left": "\x1b[D"}

// key gives what a key types: C-c is Ctrl-C, others go by their names.
func key(name string) (string, error) {
	low := strings.ToLower(name)
	if k, ok := keys[low]; ok {
		return k, nil
	}
	if rest, ok := strings.CutPrefix(low, "c-"); ok && len(rest) == 1 && rest[0] >= '@' && rest[0] <= 'z' {
		return string(rest[0] & 0x1f), nil
	}
	return "", fmt.Errorf("there is no key %q: use C-c and its like, enter, tab, esc, space, backspace, up, down, left, right", name)
}

func send(name string, args []string, s cmdline.Streams) int {
	c := cmdline.New(name, "[flags] JOB [TEXT|-]", "Types text into a job's terminal; - reads it from standard input.", s)
	c.After = `
Examples:
  shellctl send --enter 4d51 "yes"
  shellctl send --key C-c 4d51
` + remoteHelp
	r := remoteFlags(c)
	enter := c.Flags.Bool("enter", false, "press Enter behind the text")
	var pressed strings.Builder
	c.Flags.Func("key", "press this `KEY` behind the text: C-c, tab, up, …; can be given again", func(k string) error {
		text, err := key(k)
		pressed.WriteString(text)
		return err
	})
	if code, ok := c.Parse(args); !ok {
		return code
	}
	rest := c.Flags.Args()
	if len(rest) == 0 {
		return c.Wrong("a job is wanted")
	}
	text := strings.Join(rest[1:], " ")
	if text == "-" {
		b, err := io.ReadAll(s.In)
		if err != nil {
			return fail(c, err)
		}
		text = string(b)
	}
	text += pressed.String()
	if *enter {
		text += "\n"
	}
	if text == "" {
		return c.Wrong("text, --enter or --key is wanted")
	}
	ctx, done := cmdline.UntilSignal()
	defer done()
	cl, err := r.client()
	if err == nil {
		var id string
		if id, err = cl.Resolve(ctx, rest[0]); err == nil {
			err = cl.Input(ctx, id, text, 0)
		}
	}
	if err != nil {
		return fail(c, err)
	}
	return cmdline.OK
}
