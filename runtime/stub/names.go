package stub

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"path/filepath"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	refPrefix   = "dify-file-ref:"
	unnamed     = "downloaded"
	maxName     = 255 // NAME_MAX, in bytes
	maxRefBytes = 4 << 10
)

// CheckReference accepts a canonical reference: the prefix, and base64url of a
// JSON object whose only fact is a record_id (contract, control-plane 4.4).
func CheckReference(ref string) error {
	wrong := errors.New("invalid reference")
	text, ok := strings.CutPrefix(ref, refPrefix)
	if !ok || len(ref) > maxRefBytes {
		return wrong
	}
	b, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(text, "="))
	if err != nil {
		return wrong
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	var fact struct {
		RecordID string `json:"record_id"`
	}
	if d.Decode(&fact) != nil || d.More() || fact.RecordID == "" {
		return wrong
	}
	return nil
}

// MIMEType goes by a file's name.
func MIMEType(name string) string {
	t, _, _ := strings.Cut(mime.TypeByExtension(filepath.Ext(name)), ";")
	if t = strings.TrimSpace(t); t != "" {
		return t
	}
	return "application/octet-stream"
}

// SafeName makes one harmless file name of what a stub calls a file: no
// directories, no control characters, at most 255 bytes with the extension kept.
func SafeName(name string) string {
	name = name[strings.LastIndexAny(name, `/\`)+1:]
	name = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == utf8.RuneError {
			return -1
		}
		return r
	}, strings.ToValidUTF8(name, ""))
	name = strings.TrimSpace(name)
	if strings.Trim(name, ". ") == "" {
		return unnamed
	}
	return cutName(name, "")
}

// cutName puts a suffix in front of the extension, and cuts what would be too long.
func cutName(name, suffix string) string {
	ext := filepath.Ext(name)
	if len(ext) > 32 || ext == name {
		ext = ""
	}
	stem := strings.TrimSuffix(name, ext)
	for len(stem)+len(suffix)+len(ext) > maxName {
		_, n := utf8.DecodeLastRuneInString(stem)
		stem = stem[:len(stem)-n]
	}
	return stem + suffix + ext
}

// numbered is the name for the nth try; the first is the name itself.
func numbered(name string, n int) string {
	if n == 0 {
		return name
	}
	return cutName(name, fmt.Sprintf(" (%d)", n))
}

var skillName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,63}$`)

// checkConfigName accepts a name of the agent's configuration (contract, section 3).
func checkConfigName(kind, name string) error {
	if kind == kindSkill && !skillName.MatchString(name) {
		return fmt.Errorf("%q is no name of a skill", name)
	}
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\\\x00") || len(name) > maxName || !utf8.ValidString(name) {
		return fmt.Errorf("%q is no name of a file", name)
	}
	return nil
}

// The kinds of configuration items.
const (
	kindSkill = "skill"
	kindFile  = "file"
)
