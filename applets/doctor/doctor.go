// Package doctor is the applet that tells what of the isolation is in force.
package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"difyrt/applets/cmdline"
	"difyrt/runtime/confine"
	"difyrt/runtime/report"
	"difyrt/runtime/service"
)

// Main is the applet.
func Main(name string, args []string, s cmdline.Streams) int {
	c := cmdline.New(name, "[--json] [--state-dir DIR]", `
Tells what isolates jobs on this machine, why what is missing is missing, and
what to do about it. Reads the same environment as serve. Exits with 1 when
SHELLCTL_ISOLATION=strict would refuse to run jobs here.`, s)
	state := c.Flags.String("state-dir", "", "the server's state `DIR` (default as for serve)")
	asJSON := c.Flags.Bool("json", false, "print the report of GET /v1/info")
	if code, ok := c.Parse(args); !ok {
		return code
	}
	if c.Flags.NArg() > 0 {
		return c.Wrong("unexpected argument %q", c.Flags.Arg(0))
	}
	policy, err := confine.PolicyFromEnv(os.LookupEnv)
	if err != nil {
		return c.Fail(err)
	}
	limits, err := confine.LimitsFromEnv(os.LookupEnv)
	if err != nil {
		return c.Fail(err)
	}
	places, err := service.FindPlaces(*state)
	if err != nil {
		return c.Fail(err)
	}
	r := report.Gather(policy, limits, places.State, places.Home)
	if *asJSON {
		e := json.NewEncoder(c.Out)
		e.SetIndent("", "  ")
		if err := e.Encode(r); err != nil {
			return c.Fail(err)
		}
	} else {
		print(c.Out, r)
	}
	if r.Refuses {
		return cmdline.Error
	}
	return cmdline.OK
}

func print(w io.Writer, r report.Report) {
	row := func(what, format string, args ...any) {
		fmt.Fprintf(w, "%-12s %s\n", what, fmt.Sprintf(format, args...))
	}
	row("version", "%s", r.Version)
	row("kernel", "%s", r.Kernel)
	row("user", "%d", r.UID)
	row("mode", "%s", r.Mode)
	switch {
	case r.Landlock.Absent != "":
		row("Landlock", "none: %s", r.Landlock.Absent)
	case !r.Landlock.Wanted:
		row("Landlock", "ABI %d, turned off", r.Landlock.ABI)
	default:
		row("Landlock", "ABI %d: %s", r.Landlock.ABI, strings.Join(r.Landlock.Rights, " "))
	}
	switch {
	case r.Seccomp.InForce:
		row("seccomp", "in force")
	case r.Seccomp.Absent != "":
		row("seccomp", "none: %s", r.Seccomp.Absent)
	default:
		row("seccomp", "turned off")
	}
	row("subreaper", "%v", r.Subreaper)
	row("cgroup", "%s", strings.TrimSpace(orNone(r.Cgroup)+" "+strings.Join(r.Controllers, " ")))
	for _, name := range []string{"open_files", "processes", "file_size", "address_space", "cpu_seconds", "core"} {
		row("limit", "%s: %s", name, r.Limits[name])
	}
	row("state", "%s", r.State.Directory)
	for _, a := range r.Advice {
		fmt.Fprintf(w, "advice: %s\n", a)
	}
	if r.Refuses {
		fmt.Fprintln(w, "SHELLCTL_ISOLATION=strict would refuse to run jobs here")
	}
}

func orNone(s string) string {
	if s == "" {
		return "none that can be written"
	}
	return s
}
