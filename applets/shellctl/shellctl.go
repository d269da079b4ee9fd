// Package shellctl is the command for people: the server, and verbs that talk to
// one.
package shellctl

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"difyrt/applets/cmdline"
	"difyrt/applets/serve"
	"difyrt/runtime/client"
)

// verb is one of the command's verbs.
type verb struct {
	name, about string
	main        func(name string, args []string, s cmdline.Streams) int
}

var verbs = []verb{
	{"serve", "run the HTTP server", serve.Main},
	{"run", "run a script as a job and show its output", run},
	{"ps", "list jobs", ps},
	{"logs", "print a job's output", logs},
	{"status", "tell the state of a job", status},
	{"wait", "wait for a job, and exit with its code", wait},
	{"send", "type into a job's terminal", send},
	{"stop", "end jobs", stop},
	{"rm", "remove jobs", rm},
	{"prune", "remove all finished jobs", prune},
	{"info", "what isolates the server's jobs", info},
	{"save", "write a snapshot of the home to a file", save},
	{"restore", "lay a snapshot over the home", restore},
}

// Main is the applet.
func Main(name string, args []string, s cmdline.Streams) int {
	if len(args) > 0 {
		if args[0] == "help" && len(args) > 1 {
			args = []string{args[1], "--help"}
		}
		for _, v := range verbs {
			if args[0] == v.name {
				return v.main(name+" "+v.name, args[1:], s)
			}
		}
	}
	c := cmdline.New(name, "VERB [flags]", about(), s)
	if code, ok := c.Parse(args); !ok {
		return code
	}
	if c.Flags.NArg() == 0 {
		return c.Wrong("a verb is wanted")
	}
	return c.Wrong("there is no verb %q", c.Flags.Arg(0))
}

func about() string {
	var b strings.Builder
	b.WriteString("The runtime's command. Its verbs:\n\n")
	for _, v := range verbs {
		fmt.Fprintf(&b, "  %-8s %s\n", v.name, v.about)
	}
	return b.String()
}

// remote are the flags by which a verb finds its server.
type remote struct{ server, token, tokenFile *string }

const remoteHelp = `
Environment:
  SHELLCTL_SERVER      the server, when no flag gives one
  SHELLCTL_AUTH_TOKEN  the token, when no flag gives one`

const serverVariable = "SHELLCTL_SERVER"

func remoteFlags(c *cmdline.Command) remote {
	return remote{
		c.Flags.String("server", "", "`ADDRESS` of the server: http://HOST:PORT, https://… or unix:PATH (default "+client.Default+")"),
		c.Flags.String("token", "", "bearer `TOKEN`; it is in the process list, prefer --token-file"),
		c.Flags.String("token-file", "", "`FILE` that holds the token"),
	}
}

func (r remote) client() (*client.Client, error) {
	server := *r.server
	if server == "" {
		server = os.Getenv(serverVariable)
	}
	if server == "" {
		server = client.Default
	}
	token, err := serve.Token(*r.token, *r.tokenFile)
	if err != nil {
		return nil, err
	}
	return client.New(server, token)
}

// fail reports an error with a hint where there is one.
func fail(c *cmdline.Command, err error) int {
	code := c.Fail(err)
	var e *client.Error
	switch {
	case errors.As(err, &e) && e.Code == "unauthorized":
		fmt.Fprintln(c.Err, "hint: give the server's token with --token-file or SHELLCTL_AUTH_TOKEN")
	case errors.As(err, &e) && e.Code == "snapshot_busy":
		fmt.Fprintln(c.Err, "hint: one snapshot at a time; try again when it has ended")
	case errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ENOENT) && strings.HasPrefix(err.Error(), "reach"):
		fmt.Fprintln(c.Err, "hint: is the server running? name it with --server, or start one with 'shellctl serve'")
	}
	return code
}
