package stub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
)

// pullAtOnce is how many items are pulled at a time.
const pullAtOnce = 4

// manifest is what of an agent's configuration counts here.
type manifest struct {
	Skills struct{ Items []struct{ Name string } }
	Files  struct{ Items []struct{ Name string } }
	Note   string
}

// Manifest gives the agent's configuration as the stub tells it.
func (c *Client) Manifest(ctx context.Context) ([]byte, error) {
	return c.call(ctx, "GET", "/config/manifest", nil, callWithin, maxAnswer)
}

func (c *Client) manifest(ctx context.Context) (m manifest, err error) {
	b, err := c.Manifest(ctx)
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(b, &m); err != nil {
		return m, errors.New("the manifest is not the JSON that was expected")
	}
	return m, nil
}

// names gives those asked for, or all of a kind.
func (c *Client) names(ctx context.Context, kind string, asked []string) ([]string, error) {
	if len(asked) == 0 {
		m, err := c.manifest(ctx)
		if err != nil {
			return nil, err
		}
		items := m.Files.Items
		if kind == kindSkill {
			items = m.Skills.Items
		}
		for _, i := range items {
			asked = append(asked, i.Name)
		}
	}
	for _, n := range asked {
		if err := checkConfigName(kind, n); err != nil {
			return nil, err
		}
	}
	return asked, nil
}

// Skill is a skill that was pulled.
type Skill struct {
	Name      string `json:"name"`
	Archive   string `json:"archive_path"`
	Directory string `json:"directory_path"`
	Text      string `json:"skill_md"` // of SKILL.md; empty without one
}

// File is a file of the configuration that was pulled.
type File struct {
	Name string `json:"name"`
	Path string `json:"path"`
}

// PullSkills pulls skills, all of them when no name is given, into a directory:
// each one's archive, and what is in it. The list is nil when there are none. An
// error holds those of every skill that failed, in order.
func (c *Client) PullSkills(ctx context.Context, asked []string, dir string) ([]Skill, error) {
	return pull(ctx, c, kindSkill, asked, dir, func(root *os.Root, name string) (Skill, error) {
		s := Skill{Name: name, Archive: filepath.Join(dir, name+".zip"), Directory: filepath.Join(dir, name)}
		archive, err := c.item(ctx, kindSkill, name, name+".zip", root)
		if err != nil {
			return s, err
		}
		defer archive.Close()
		if err := extract(archive, root, name); err != nil {
			return s, err
		}
		b, err := root.ReadFile(name + "/SKILL.md")
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return s, err
		}
		s.Text = string(b)
		return s, nil
	})
}

// PullFiles pulls files as PullSkills does skills.
func (c *Client) PullFiles(ctx context.Context, asked []string, dir string) ([]File, error) {
	return pull(ctx, c, kindFile, asked, dir, func(root *os.Root, name string) (File, error) {
		f, err := c.item(ctx, kindFile, name, name, root)
		if err == nil {
			err = f.Close()
		}
		return File{name, filepath.Join(dir, name)}, err
	})
}

// pull pulls items side by side.
func pull[T any](ctx context.Context, c *Client, kind string, asked []string, dir string, one func(*os.Root, string) (T, error)) ([]T, error) {
	names, err := c.names(ctx, kind, asked)
	if err != nil || len(names) == 0 {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	items, errs := make([]T, len(names)), make([]error, len(names))
	turns := make(chan struct{}, pullAtOnce)
	var all sync.WaitGroup
	for i, name := range names {
		turns <- struct{}{}
		all.Go(func() {
			defer func() { <-turns }()
			item, err := one(root, name)
			if err != nil {
				errs[i] = fmt.Errorf("%s %s: %w", kind, name, err)
			}
			items[i] = item
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return items, nil
}

// item downloads one item of the configuration in place of an earlier one, and
// gives it opened.
func (c *Client) item(ctx context.Context, kind, name, as string, root *os.Root) (f *os.File, err error) {
	o, u, err := c.request(ctx, map[string]any{"config": map[string]string{"kind": kind, "name": name}, "for_frontend": false})
	if err != nil {
		return nil, err
	}
	err = c.fetch(ctx, u, o, root, func(part string) (err error) {
		if f, err = root.Open(part); err != nil {
			return err
		}
		// The part keeps its name, which is removed by whoever made it.
		second := part + ".named"
		if err = root.Link(part, second); err == nil {
			err = root.Rename(second, as)
		}
		return err
	})
	if err != nil && f != nil {
		f.Close()
		f = nil
	}
	return f, err
}

// change is one item of a push: a file, or nothing, which deletes it.
type change struct {
	Name string   `json:"name"`
	File *fileRef `json:"file_ref"`
}

type fileRef struct {
	Kind string `json:"kind"`
	ID   string `json:"id"`
}

// push sends changes of one kind, and gives the stub's answer.
func (c *Client) push(ctx context.Context, kind string, changes []change) ([]byte, error) {
	body := map[string][]change{"skills": {}, "files": {}}
	body[kind+"s"] = changes
	return c.call(ctx, "POST", "/config/push", body, callWithin, maxAnswer)
}

// PushSkills packs directories that hold a SKILL.md, and makes them skills.
func (c *Client) PushSkills(ctx context.Context, dirs []string) ([]byte, error) {
	return c.pushAll(ctx, kindSkill, dirs, func(dir string) (path, name, as string, done func(), err error) {
		path, done, err = packSkill(dir)
		name = baseName(dir)
		return path, name, name + ".zip", done, err
	})
}

// PushFiles makes files a part of the configuration.
func (c *Client) PushFiles(ctx context.Context, paths []string) ([]byte, error) {
	return c.pushAll(ctx, kindFile, paths, func(path string) (string, string, string, func(), error) {
		return path, baseName(path), baseName(path), func() {}, nil
	})
}

// baseName names also what is given as "." or "..".
func baseName(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	return filepath.Base(path)
}

func (c *Client) pushAll(ctx context.Context, kind string, paths []string, prepare func(string) (path, name, as string, done func(), err error)) ([]byte, error) {
	for _, p := range paths { // before anything is sent
		if err := checkConfigName(kind, baseName(p)); err != nil {
			return nil, err
		}
	}
	var changes []change
	for _, p := range paths {
		path, name, as, done, err := prepare(p)
		if err != nil {
			return nil, err
		}
		got, err := c.Upload(ctx, path, as)
		done()
		if err != nil {
			return nil, err
		}
		if got.ID == "" {
			return nil, errors.New("upload response is missing id")
		}
		changes = append(changes, change{name, &fileRef{toolFile, got.ID}})
	}
	return c.push(ctx, kind, changes)
}

// Delete takes items of a kind, "skill" or "file", out of the configuration.
func (c *Client) Delete(ctx context.Context, kind string, names []string) ([]byte, error) {
	var changes []change
	for _, n := range names {
		if err := checkConfigName(kind, n); err != nil {
			return nil, err
		}
		changes = append(changes, change{Name: n})
	}
	return c.push(ctx, kind, changes)
}

// PushEnv replaces the environment of the configuration.
func (c *Client) PushEnv(ctx context.Context, text string) ([]byte, error) {
	return c.call(ctx, "PATCH", "/config/env", map[string]string{"env_text": text}, callWithin, maxAnswer)
}

// Note gives the configuration's note.
func (c *Client) Note(ctx context.Context) (string, error) {
	m, err := c.manifest(ctx)
	return m.Note, err
}

// PushNote replaces the note.
func (c *Client) PushNote(ctx context.Context, text string) ([]byte, error) {
	return c.call(ctx, "PUT", "/config/note", map[string]string{"note": text}, callWithin, maxAnswer)
}
