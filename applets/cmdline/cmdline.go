// Package cmdline is what the applets share of a command line: flags from the
// standard library, and help that teaches.
//
// It takes the place of urfave/cli, which pulls text/template into the program
// and with it every exported method of every type: 2.4 MB of the 12 that the
// sandbox flavour may have (go build -ldflags "-s -w", linux/amd64).
package cmdline

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	"difyrt/runtime/version"
)

// Exit codes that all applets share.
const (
	OK    = 0
	Error = 1
	Usage = 2
)

// Streams are the standard streams of an applet, so that tests can hold them.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// Command is one applet's command line.
type Command struct {
	Name  string // as the user called it
	Args  string // behind the name in the usage line
	About string // what it does, in a few lines
	After string // examples and notes, behind the flags
	Flags *flag.FlagSet
	Streams
}

// New makes a command whose flags are still to be defined.
func New(name, args, about string, s Streams) *Command {
	c := &Command{Name: name, Args: args, About: about, Flags: flag.NewFlagSet(name, flag.ContinueOnError), Streams: s}
	c.Flags.SetOutput(io.Discard)
	return c
}

// Parse reads the flags. When ok is false the applet is to end with the code:
// help or the version was printed, or the flags are wrong.
func (c *Command) Parse(args []string) (code int, ok bool) {
	show := c.Flags.Bool("version", false, "print the version and exit")
	switch err := c.Flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		c.help(c.Out)
		return OK, false
	case err != nil:
		return c.Wrong("%v", err), false
	case *show:
		fmt.Fprintln(c.Out, version.String())
		return OK, false
	}
	return OK, true
}

// Wrong reports a wrong command line and returns the code for it.
func (c *Command) Wrong(format string, args ...any) int {
	fmt.Fprintf(c.Err, "%s: %s\n", c.Name, fmt.Sprintf(format, args...))
	fmt.Fprintf(c.Err, "usage: %s %s\nTry '%s --help'.\n", c.Name, c.Args, c.Name)
	return Usage
}

// Fail reports an error and returns the code for it.
func (c *Command) Fail(err error) int {
	fmt.Fprintf(c.Err, "%s: %v\n", c.Name, err)
	return Code(err)
}

func (c *Command) help(w io.Writer) {
	fmt.Fprintf(w, "usage: %s %s\n\n%s\n", c.Name, c.Args, strings.TrimSpace(c.About))
	fmt.Fprint(w, "\nFlags:\n")
	c.Flags.VisitAll(func(f *flag.Flag) {
		arg, text := flag.UnquoteUsage(f)
		name := "--" + f.Name
		if len(f.Name) == 1 {
			name = "-" + f.Name
		}
		if arg != "" {
			name += " " + arg
		}
		if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "0" && f.DefValue != "-1" {
			text += fmt.Sprintf(" (default %s)", f.DefValue)
		}
		fmt.Fprintf(w, "  %s\n        %s\n", name, text)
	})
	if c.After != "" {
		fmt.Fprintf(w, "\n%s\n", strings.TrimSpace(c.After))
	}
}
