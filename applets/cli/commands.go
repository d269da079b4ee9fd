package cli

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"difyrt/runtime/stub"
)

// Defaults of where things are pulled to.
const (
	skillsDir = ".dify_conf/skills"
	filesDir  = ".dify_conf/files"
	notePath  = ".dify_conf/note.md"
)

var commands []command

func init() {
	commands = append([]command{
		{path: "connect", args: "[ARGV...]", most: -1, verbatim: true, setup: connect,
			about:   "Tells the platform of a command line. What stands behind the flags, or behind --, is passed on as it is.",
			example: "dify-agent connect -- my-tool --flag value"},
		{path: "file upload", args: "PATH", least: 1, most: 1, setup: upload,
			about:   "Gives a local file to the user. Prints one line of JSON with its reference and a URL by which the user can have it.",
			example: "dify-agent file upload report.pdf"},
		{path: "file public-url", args: "REFERENCE", least: 1, most: 1, setup: publicURL,
			about:   "Makes a URL for a file that was uploaded. Prints one line of JSON, as file upload does.",
			example: "dify-agent file public-url dify-file-ref:eyJyZWNvcmRfaWQiOiIxIn0"},
		{path: "file download", args: "TRANSFER_METHOD REFERENCE_OR_URL", least: 2, most: 2, setup: download,
			about:   "Fetches a file that the user or another tool gave. The methods are local_file, tool_file and datasource_file with a reference, and remote_url with a URL. A name that is taken gets a number. Prints the path.",
			example: "dify-agent file download local_file dify-file-ref:eyJyZWNvcmRfaWQiOiIxIn0 --to inputs"},
		{path: "config manifest", setup: manifest,
			about:   "Prints the configuration as JSON: skills, files, names of environment variables, the note.",
			example: "dify-agent config manifest"},
		{path: "config skills pull", args: "[NAME...]", most: -1, setup: pullSkills,
			about:   "Fetches skills, all of them without a name. Prints each one's directory and its SKILL.md.",
			example: "dify-agent config skills pull pdf-report"},
		{path: "config skills push", args: "PATH...", least: 1, most: -1, setup: push((*stub.Client).PushSkills),
			about:   "Makes directories with a SKILL.md skills of the configuration, each by its name. Caches, .git and node_modules stay out.",
			example: "dify-agent config skills push ./pdf-report"},
		{path: "config skills delete", args: "NAME...", least: 1, most: -1, setup: remove("skill"),
			about:   "Takes skills out of the configuration.",
			example: "dify-agent config skills delete pdf-report"},
		{path: "config files pull", args: "[NAME...]", most: -1, setup: pullFiles,
			about:   "Fetches files of the configuration, all of them without a name. Prints their paths.",
			example: "dify-agent config files pull style.css"},
		{path: "config files push", args: "PATH...", least: 1, most: -1, setup: push((*stub.Client).PushFiles),
			about:   "Makes local files a part of the configuration, each by its name.",
			example: "dify-agent config files push style.css"},
		{path: "config files delete", args: "NAME...", least: 1, most: -1, setup: remove("file"),
			about:   "Takes files out of the configuration.",
			example: "dify-agent config files delete style.css"},
		{path: "config env push", args: "PATH|-", least: 1, most: 1, setup: pushText(maxText, "", (*stub.Client).PushEnv),
			about:   "Replaces the environment of the configuration by a file's NAME=value lines; - reads standard input.",
			example: "printf 'MODE=fast\\n' | dify-agent config env push -"},
		{path: "config note pull", setup: pullNote,
			about:   "Writes the configuration's note into a file. Prints its absolute path.",
			example: "dify-agent config note pull"},
		{path: "config note push", args: "[PATH|-]", most: 1, setup: pushText(maxText, notePath, (*stub.Client).PushNote),
			about:   "Replaces the configuration's note by the text of a file: " + notePath + ", or the one that is named; - is standard input.",
			example: "dify-agent config note push"},
		{path: "config skill pull", hidden: true, most: -1, setup: pullSkills},
		{path: "config file pull", hidden: true, most: -1, setup: pullFiles},
	}, knowledge()...)
}

// maxText bounds a note and an environment, in bytes.
const maxText = 1 << 20

func connect(f *flag.FlagSet) action {
	asJSON := f.Bool("json", false, "print JSON")
	return func(s *session) error {
		got, err := s.stub.Connect(s.ctx, s.args)
		if err != nil {
			return err
		}
		if *asJSON {
			return s.printJSON(got)
		}
		return s.print("connected " + got.ID)
	}
}

// shared is the line that tells of a file which the user can have.
type shared struct {
	Method    string `json:"transfer_method"`
	Reference string `json:"reference"`
	URL       string `json:"public_download_url,omitempty"`
}

func upload(f *flag.FlagSet) action {
	noLink := f.Bool("no-download-link", false, "do not make a URL")
	return func(s *session) error {
		ref, err := s.stub.UploadFile(s.ctx, s.args[0])
		if err != nil {
			return err
		}
		line := shared{Method: "tool_file", Reference: ref}
		if *noLink {
			return s.printJSON(line)
		}
		var lerr error
		if line.URL, lerr = s.stub.PublicURL(s.ctx, ref); lerr != nil {
			line.URL = ""
		}
		if err := s.printJSON(line); err != nil || lerr == nil {
			return err
		}
		return fmt.Errorf("the file is uploaded, but there is no URL for it: %w; do not upload it again, run: dify-agent file public-url '%s'", lerr, ref)
	}
}

func publicURL(*flag.FlagSet) action {
	return func(s *session) error {
		ref := s.args[0]
		if err := stub.CheckReference(ref); err != nil {
			return err
		}
		url, err := s.stub.PublicURL(s.ctx, ref)
		if err != nil {
			return err
		}
		return s.printJSON(shared{"tool_file", ref, url})
	}
}

func download(f *flag.FlagSet) action {
	dir := f.String("to", ".", "`DIR` to put it into, made when it is missing")
	return func(s *session) error {
		path, err := s.stub.DownloadFile(s.ctx, s.args[0], s.args[1], *dir)
		if err != nil {
			return err
		}
		return s.print(path)
	}
}

func manifest(*flag.FlagSet) action {
	return func(s *session) error {
		b, err := s.stub.Manifest(s.ctx)
		if err != nil {
			return err
		}
		return s.print(string(b))
	}
}

func pullSkills(f *flag.FlagSet) action {
	dir := f.String("to", skillsDir, "`DIR` to put them into")
	asJSON := f.Bool("json", false, "print JSON")
	return func(s *session) error {
		list, err := s.stub.PullSkills(s.ctx, s.args, *dir)
		if err != nil {
			return err
		}
		if *asJSON {
			return s.printJSON(map[string]any{"items": list})
		}
		var parts []string
		for _, k := range list {
			parts = append(parts, strings.TrimRight(k.Directory+"\n"+k.Text, "\n")+"\n")
		}
		return write(s.Out, strings.Join(parts, "\n"))
	}
}

func pullFiles(f *flag.FlagSet) action {
	dir := f.String("to", filesDir, "`DIR` to put them into")
	asJSON := f.Bool("json", false, "print JSON")
	return func(s *session) error {
		list, err := s.stub.PullFiles(s.ctx, s.args, *dir)
		if err != nil {
			return err
		}
		if *asJSON {
			return s.printJSON(map[string]any{"items": list})
		}
		for _, k := range list {
			if err := s.print(k.Path); err != nil {
				return err
			}
		}
		return nil
	}
}

// push is a command that pushes local paths.
func push(do func(*stub.Client, ctx, []string) ([]byte, error)) func(*flag.FlagSet) action {
	return func(*flag.FlagSet) action {
		return func(s *session) error {
			b, err := do(s.stub, s.ctx, s.args)
			if err != nil {
				return err
			}
			return s.print(string(b))
		}
	}
}

func remove(kind string) func(*flag.FlagSet) action {
	return func(*flag.FlagSet) action {
		return func(s *session) error {
			b, err := s.stub.Delete(s.ctx, kind, s.args)
			if err != nil {
				return err
			}
			return s.print(string(b))
		}
	}
}

// pushText is a command that pushes one text, of a file or of standard input.
func pushText(limit int64, path string, do func(*stub.Client, ctx, string) ([]byte, error)) func(*flag.FlagSet) action {
	return func(*flag.FlagSet) action {
		return func(s *session) error {
			from := path
			if len(s.args) > 0 {
				from = s.args[0]
			}
			text, err := readText(s.In, from, limit)
			if err != nil {
				return err
			}
			b, err := do(s.stub, s.ctx, text)
			if err != nil {
				return err
			}
			return s.print(string(b))
		}
	}
}

func readText(in io.Reader, path string, limit int64) (string, error) {
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return "", err
		}
		defer f.Close()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, limit+1))
	switch {
	case err != nil:
		return "", err
	case int64(len(b)) > limit:
		return "", fmt.Errorf("the text is larger than %d bytes", limit)
	case !utf8.Valid(b):
		return "", errors.New("the text is not UTF-8")
	}
	return string(b), nil
}

func pullNote(f *flag.FlagSet) action {
	to := f.String("to", notePath, "`PATH` of the file")
	return func(s *session) error {
		note, err := s.stub.Note(s.ctx)
		if err != nil {
			return err
		}
		path, err := filepath.Abs(*to)
		if err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := writeWhole(path, note); err != nil {
			return err
		}
		return s.print(path)
	}
}

// writeWhole replaces a file in one step.
func writeWhole(path, text string) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".note-*.part")
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}
