// Package cli is the applet dify-agent, which an agent calls inside a job.
package cli

import (
	"fmt"

	"difyrt/applets/cmdline"
)

// Main is the applet. The commands themselves come with a later release; until
// then it says so instead of pretending.
func Main(name string, args []string, s cmdline.Streams) int {
	c := cmdline.New(name, "COMMAND ...", `
The agent's own command line inside a job: files, configuration, knowledge.
This build does not have its commands yet: every call but --help and --version
ends with 1.`, s)
	if code, ok := c.Parse(args); !ok {
		return code
	}
	return c.Fail(fmt.Errorf("not built yet: this version of difyrt has no commands for agents"))
}
