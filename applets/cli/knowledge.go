package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
)

type ctx = context.Context

// topic is one knowledge command: which arguments it has, besides those that all
// take. A star marks one that is needed.
type topic struct {
	name, about, example string
	args                 []string
}

var topics = []topic{
	{"spaces", "Lists the knowledge spaces that the agent can read.", "", nil},
	{"capabilities", "Tells what a space can do.", "--space handbook", []string{"space"}},
	{"search", "Searches by meaning, also with images.", `--query "refund within 30 days"`, []string{"query*", "space", "limit", "cursor", "image-file-id"}},
	{"ls", "Lists a directory.", "--path /knowledge/handbook", []string{"path", "space", "limit", "cursor"}},
	{"tree", "Lists a directory and those below it.", "--path /knowledge --depth 3", []string{"path", "space", "depth", "limit", "cursor"}},
	{"find", "Finds files by name.", "--query refund --path /knowledge", []string{"query*", "path", "space", "limit", "cursor"}},
	{"grep", "Finds lines by their text.", `--query "30 days" --path /knowledge/handbook`, []string{"query*", "path", "space", "limit", "cursor"}},
	{"cat", "Prints a file, page by page.", "--path /knowledge/handbook/refunds.md", []string{"path", "space", "limit", "cursor"}},
	{"stat", "Tells of a file or directory.", "--path /knowledge/handbook", []string{"path", "space"}},
	{"diff", "Compares two files.", "--old-path /knowledge/a.md --new-path /knowledge/b.md", []string{"old-path*", "new-path*", "space"}},
	{"open", "Opens what a search found, by its node or its receipt.", "--receipt kfs_00000000000000000000000000000000", []string{"node-id", "receipt", "space", "limit", "cursor"}},
	{"images", "Lists the images of a file.", "--path /knowledge/handbook/refunds.md", []string{"path", "node-id", "receipt", "space", "limit", "cursor"}},
	{"image", "Fetches one image.", "--item-id 7", []string{"item-id*", "receipt", "space"}},
}

func knowledge() (list []command) {
	for _, t := range topics {
		list = append(list, command{path: "knowledge " + t.name, about: t.about + " Prints one line of JSON.", setup: t.setup,
			example: "dify-agent knowledge " + t.name + " " + t.example})
	}
	return list
}

func (t topic) has(name string) bool { return slices.Contains(t.args, name) || t.needs(name) }

func (t topic) needs(name string) bool { return slices.Contains(t.args, name+"*") }

func (t topic) setup(f *flag.FlagSet) action {
	texts := map[string]*string{}
	for name, about := range map[string]string{"space": "`NAME` of a space", "query": "`TEXT` to look for", "cursor": "`CURSOR` of the next page, as the last answer gave it",
		"old-path": "`PATH` of the older file", "new-path": "`PATH` of the newer file", "node-id": "`ID` of a node", "receipt": "`RECEIPT` of a search's find", "item-id": "`ID` of an item"} {
		if t.has(name) {
			texts[name] = f.String(name, "", about)
		}
	}
	if t.has("path") {
		texts["path"] = f.String("path", "/knowledge", "`PATH` in the knowledge")
	}
	limit, depth := new(int), new(int)
	if t.has("limit") {
		limit = f.Int("limit", 10, "most `ITEMS` of a page, 1 to 50")
	}
	if t.has("depth") {
		depth = f.Int("depth", 2, "`LEVELS` below the directory, 1 to 4")
	}
	var images []string
	if t.has("image-file-id") {
		f.Func("image-file-id", "`ID` of an image to search with, a UUID or a reference; up to 4", func(v string) error {
			images = append(images, v)
			return nil
		})
	}
	id := f.String("command-id", "", "`UUID` of this command, to ask for its answer again")
	protocol := f.Int("protocol-version", 1, "`VERSION` of the protocol; only 1 is known")
	f.Bool("json", true, "print JSON, which there is nothing beside")
	return func(s *session) error {
		args := map[string]any{}
		for name, v := range texts {
			if *v != "" {
				args[field(name)] = *v
			} else if t.needs(name) {
				return fmt.Errorf("knowledge %s wants --%s", t.name, name)
			}
		}
		if *protocol != 1 {
			return errors.New("only protocol version 1 is known")
		}
		for _, n := range []struct {
			name      string
			v         *int
			least, to int
		}{{"limit", limit, 1, 50}, {"depth", depth, 1, 4}} {
			if !t.has(n.name) {
				continue
			}
			if *n.v < n.least || *n.v > n.to {
				return fmt.Errorf("--%s must be %d to %d", n.name, n.least, n.to)
			}
			args[n.name] = *n.v
		}
		if len(images) > 0 {
			args["image_file_ids"] = images
		}
		b, err := s.stub.Knowledge(s.ctx, t.name, *id, args)
		if err != nil {
			return err
		}
		return s.print(string(b))
	}
}

// field is a flag's name in the request.
func field(flag string) string {
	b := []byte(flag)
	for i, c := range b {
		if c == '-' {
			b[i] = '_'
		}
	}
	return string(b)
}
