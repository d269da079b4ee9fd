// Difyrt is the runtime under AI agents' shells: one executable that is a
// server, its runner and the tools around them, picked by the name it is called by.
package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"

	"difyrt/applets/cli"
	"difyrt/applets/cmdline"
	"difyrt/applets/doctor"
	"difyrt/applets/install"
	"difyrt/applets/runner"
	"difyrt/applets/runnerexit"
	"difyrt/applets/sanitizepty"
	"difyrt/applets/serve"
	"difyrt/applets/shellctl"
	"difyrt/runtime/version"
)

// The runner starts jobs from threads that it confines and throws away. The
// process's main thread must never be one of them (package confine), so it is
// given to the main goroutine before anything else can take it.
func init() { runtime.LockOSThread() }

type applet struct {
	name, command string // short name, installed command name
	about         string
	main          func(name string, args []string, s cmdline.Streams) int
}

func applets() []applet {
	return []applet{
		{"serve", "shellctl", "the HTTP server (as shellctl: shellctl serve), and verbs to talk to it", serve.Main},
		{"sanitize-pty", "shellctl-sanitize-pty", "filter: PTY bytes to stable UTF-8 text", sanitizepty.Main},
		{"runner-exit", "shellctl-runner-exit", "records a job's exit in the job table", runnerexit.Main},
		{"runner", "shellctl-runner", "starts and keeps jobs; serve calls it by itself", runner.Main},
		{"cli", "dify-agent", "the command line of agents inside a job", cli.Main},
		{"doctor", "", "tells what isolates jobs on this machine", doctor.Main},
		{"install", "", "makes the links of the command names in a directory", installMain},
	}
}

func installMain(name string, args []string, s cmdline.Streams) int {
	var names []string
	for _, a := range applets() {
		if a.command != "" {
			names = append(names, a.command)
		}
	}
	return install.Main(name, args, s, names)
}

func main() {
	os.Exit(dispatch(os.Args, cmdline.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}))
}

// dispatch picks the applet by the base name of argv[0], or else by the first
// argument.
func dispatch(argv []string, s cmdline.Streams) int {
	self, args := "difyrt", []string(nil)
	if len(argv) > 0 {
		self, args = filepath.Base(argv[0]), argv[1:]
	}
	if self == "shellctl" {
		return shellctl.Main("shellctl", args, s)
	}
	for _, a := range applets() {
		if self == a.command {
			return a.main(self, args, s)
		}
	}
	if len(args) == 0 {
		usage(s.Out)
		return cmdline.OK
	}
	switch args[0] {
	case "help":
		if len(args) > 1 {
			return dispatch([]string{self, args[1], "--help"}, s)
		}
		fallthrough
	case "--help", "-h", "-help":
		usage(s.Out)
		return cmdline.OK
	case "--version", "-version", "version":
		fmt.Fprintln(s.Out, version.String())
		return cmdline.OK
	case "shellctl":
		return shellctl.Main("shellctl", args[1:], s)
	}
	for _, a := range applets() {
		if args[0] == a.name || args[0] == a.command {
			return a.main("difyrt "+args[0], args[1:], s)
		}
	}
	fmt.Fprintf(s.Err, "difyrt: there is no applet %q\n\n", args[0])
	usage(s.Err)
	return cmdline.Usage
}

func usage(w io.Writer) {
	fmt.Fprint(w, "usage: difyrt APPLET [flags]\n\nApplets, and the command names that 'difyrt install DIR' gives them:\n")
	for _, a := range applets() {
		fmt.Fprintf(w, "  %-13s %-22s %s\n", a.name, a.command, a.about)
	}
	fmt.Fprint(w, "\n'difyrt APPLET --help' says more of each; 'difyrt --version' names the build.\n")
}
