package cli

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"strings"
)

// groups are words in front of commands, and what they are for.
var groups = map[string]string{
	"config":        "the agent's own configuration: skills, files, environment, note",
	"config skills": "skills of the configuration",
	"config files":  "files of the configuration",
	"config env":    "environment variables of the configuration",
	"config note":   "the note of the configuration",
	"config skill":  "skills of the configuration",
	"config file":   "files of the configuration",
	"file":          "exchange files with the platform and its user",
	"knowledge":     "read the knowledge that the agent was given",
}

// help is that of a group; no words are the program itself.
func help(words []string) string {
	prefix := strings.Join(words, " ")
	var b strings.Builder
	name := strings.TrimSpace(program + " " + prefix)
	fmt.Fprintf(&b, "Usage: %s COMMAND [ARGUMENTS] [FLAGS]\n\n", name)
	if prefix == "" {
		b.WriteString("Reaches the platform from inside a job: files, configuration, knowledge.\nThe result is on standard output, errors are on standard error; exit code 1 is a failure.\n")
	} else {
		b.WriteString(upper(groups[prefix]) + ".\n")
	}
	b.WriteString("\nCommands:\n")
	for _, c := range commands {
		if !c.hidden && (prefix == "" || strings.HasPrefix(c.path, prefix+" ")) {
			first, _, _ := strings.Cut(c.about, ". ")
			fmt.Fprintf(&b, "  %-24s %s\n", c.path, strings.TrimSuffix(first, "."))
		}
	}
	fmt.Fprintf(&b, "\n'%s COMMAND --help' tells more, with an example.\n", program)
	return b.String()
}

func (c *command) help() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Usage: %s\n\n%s\n", strings.TrimSpace(program+" "+c.path+" "+c.args), c.about)
	f := flag.NewFlagSet(c.path, flag.ContinueOnError)
	c.setup(f)
	first := true
	f.VisitAll(func(x *flag.Flag) {
		if first {
			b.WriteString("\nFlags:\n")
			first = false
		}
		arg, text := flag.UnquoteUsage(x)
		fmt.Fprintf(&b, "  %-26s %s", strings.TrimSpace("--"+x.Name+" "+arg), text)
		if x.DefValue != "" && x.DefValue != "false" {
			fmt.Fprintf(&b, " (default %s)", x.DefValue)
		}
		b.WriteString("\n")
	})
	if c.example != "" {
		b.WriteString("\nExample:\n  " + strings.ReplaceAll(c.example, "\n", "\n  ") + "\n")
	}
	return b.String()
}

func upper(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

// dump prints the help of everything as JSON, for a prompt.
func dump(w io.Writer) error {
	all := map[string]string{program: help(nil)}
	for g := range groups {
		if g != "config skill" && g != "config file" {
			all[program+" "+g] = help(strings.Fields(g))
		}
	}
	for i := range commands {
		if c := &commands[i]; !c.hidden {
			all[program+" "+c.path] = c.help()
		}
	}
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(all)
}
