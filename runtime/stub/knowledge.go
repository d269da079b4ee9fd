package stub

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"
)

// Limits of a knowledge command (contract, section 2.4).
const (
	knowledgeWithin = 65 * time.Second
	maxCommand      = 24 << 10
	maxKnowledge    = 64 << 10
	MaxImages       = 4
)

// KnowledgeCommands are the commands that the stub knows.
var KnowledgeCommands = []string{"spaces", "capabilities", "search", "ls", "tree", "find", "grep", "cat", "stat", "diff", "open", "images", "image"}

var uuid = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)

// NewID makes a random UUID, version 4 (RFC 9562).
func NewID() string {
	var b [16]byte
	rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// Knowledge runs a command with its arguments, and gives the answer as compact
// JSON. An id of the caller's must be a UUID; empty makes one.
func (c *Client) Knowledge(ctx context.Context, command, id string, args map[string]any) ([]byte, error) {
	if !slices.Contains(KnowledgeCommands, command) {
		return nil, fmt.Errorf("there is no knowledge command %q", command)
	}
	if id == "" {
		id = NewID()
	}
	if !uuid.MatchString(id) {
		return nil, errors.New("the command's id must be a UUID")
	}
	if err := checkImages(args["image_file_ids"]); err != nil {
		return nil, err
	}
	body := map[string]any{"version": 1, "command": command, "command_id": id}
	for k, v := range args {
		body[k] = v
	}
	if b, err := json.Marshal(body); err != nil || len(b) > maxCommand {
		return nil, fmt.Errorf("the command is larger than %d bytes", maxCommand)
	}
	answer, err := c.call(ctx, "POST", "/knowledge/commands", body, knowledgeWithin, maxKnowledge)
	if err != nil {
		return nil, err
	}
	var envelope struct {
		Version   int
		Command   string
		CommandID string `json:"command_id"`
		Status    string
	}
	if err := json.Unmarshal(answer, &envelope); err != nil {
		return nil, errors.New("the answer is not the JSON that was expected")
	}
	if envelope.Version != 1 || envelope.Command != command || envelope.CommandID != id {
		return nil, errors.New("the answer is to another command")
	}
	if envelope.Status != "ok" {
		return nil, fmt.Errorf("the command ended with status %q", printable(envelope.Status))
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, answer); err != nil {
		return nil, errors.New("the answer is not the JSON that was expected")
	}
	return compact.Bytes(), nil
}

// checkImages accepts UUIDs and canonical references.
func checkImages(ids any) error {
	list, _ := ids.([]string)
	if len(list) > MaxImages {
		return fmt.Errorf("%d images are more than %d", len(list), MaxImages)
	}
	for _, id := range list {
		if !uuid.MatchString(id) && CheckReference(id) != nil {
			return fmt.Errorf("image %q is neither a UUID nor a reference", id)
		}
	}
	return nil
}
