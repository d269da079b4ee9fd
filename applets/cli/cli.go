// Package cli is the applet dify-agent, which an agent calls inside a job.
//
// Its help is put into a model's prompt, so each command tells what it is for and
// gives an example. Standard output carries the result alone; errors are one line
// on standard error and exit code 1, without usage.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"difyrt/applets/cmdline"
	"difyrt/runtime/stub"
	"difyrt/runtime/version"
)

const program = "dify-agent"

// command is one row of the table of commands; the table is the help's order.
type command struct {
	path     string // the words that name it
	args     string
	about    string
	example  string
	hidden   bool
	least    int // of arguments
	most     int // -1: any number
	setup    func(f *flag.FlagSet) action
	verbatim bool // what follows the flags is passed on untouched
}

// action does a command's work.
type action func(s *session) error

// session is one call of a command.
type session struct {
	cmdline.Streams
	ctx  context.Context
	stub *stub.Client
	args []string
}

// print writes a line of result.
func (s *session) print(line string) error {
	_, err := fmt.Fprintln(s.Out, strings.TrimSuffix(line, "\n"))
	return err
}

// printJSON writes a line of JSON.
func (s *session) printJSON(v any) error {
	e := json.NewEncoder(s.Out)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// Main is the applet.
func Main(_ string, args []string, s cmdline.Streams) int {
	err := run(args, s)
	if err == nil {
		return cmdline.OK
	}
	fmt.Fprintf(s.Err, "%s: %v\n", program, err)
	return cmdline.Code(err)
}

func run(args []string, s cmdline.Streams) error {
	if len(args) == 0 {
		return write(s.Out, help(nil))
	}
	switch args[0] {
	case "-h", "--help", "-help", "help":
		return write(s.Out, help(nil))
	case "--version", "-version":
		return write(s.Out, version.String()+"\n")
	case "__dump-cli-help":
		return dump(s.Out)
	}
	c, rest := find(args)
	if c != nil {
		return c.run(rest, s)
	}
	if groups[args[0]] != "" {
		return group(args, s)
	}
	return implicit(args, s)
}

// find gives the command that the words name, and what follows them.
func find(args []string) (*command, []string) {
	for n := min(len(args), 3); n > 0; n-- {
		for i := range commands {
			if commands[i].path == strings.Join(args[:n], " ") {
				return &commands[i], args[n:]
			}
		}
	}
	return nil, nil
}

// group is a call that names a group and no command of it.
func group(args []string, s cmdline.Streams) error {
	words := []string{}
	for _, a := range args {
		if a == "-h" || a == "--help" {
			return write(s.Out, help(words))
		}
		if groups[strings.Join(append(words, a), " ")] == "" {
			return fmt.Errorf("unknown command %q for %q", a, program+" "+strings.Join(words, " "))
		}
		words = append(words, a)
	}
	return write(s.Out, help(words))
}

// implicit is a call with a first word that is none of ours: all of it is told to
// the stub.
func implicit(args []string, s cmdline.Streams) error {
	connect, _ := find([]string{"connect"})
	front := args
	for len(front) > 0 && front[0] == "--json" {
		front = front[1:]
	}
	if len(front) == 0 || strings.HasPrefix(front[0], "-") {
		return fmt.Errorf("unknown flag: %s", args[len(args)-len(front):][0:min(1, len(front))])
	}
	if _, err := stub.FromEnv(os.Getenv); errors.Is(err, stub.ErrNoEnvironment) {
		if err := write(s.Err, help(nil)); err != nil {
			return err
		}
	}
	return connect.run(args, s)
}

func (c *command) run(args []string, s cmdline.Streams) error {
	f := flag.NewFlagSet(c.path, flag.ContinueOnError)
	f.SetOutput(io.Discard)
	act := c.setup(f)
	rest, err := c.parse(f, args)
	if errors.Is(err, flag.ErrHelp) {
		return write(s.Out, c.help())
	}
	if err != nil {
		return err
	}
	if len(rest) < c.least {
		return fmt.Errorf("%s wants %s", c.path, c.args)
	}
	if c.most >= 0 && len(rest) > c.most {
		return fmt.Errorf("%s takes at most %d arguments, got %d", c.path, c.most, len(rest))
	}
	client, err := stub.FromEnv(os.Getenv)
	if err != nil {
		return err
	}
	ctx, done := cmdline.UntilSignal()
	defer done()
	err = act(&session{s, ctx, client, rest})
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return cause
	}
	return err
}

// parse takes flags from among the arguments, up to "--".
func (c *command) parse(f *flag.FlagSet, args []string) (rest []string, err error) {
	if c.verbatim {
		err := f.Parse(args)
		return f.Args(), err
	}
	var behind []string
	for i, a := range args {
		if a == "--" {
			args, behind = args[:i], args[i+1:]
			break
		}
	}
	for {
		if err := f.Parse(args); err != nil {
			return nil, err
		}
		if f.NArg() == 0 {
			return append(rest, behind...), nil
		}
		rest, args = append(rest, f.Arg(0)), f.Args()[1:]
	}
}

func write(w io.Writer, text string) error {
	_, err := io.WriteString(w, text)
	return err
}
