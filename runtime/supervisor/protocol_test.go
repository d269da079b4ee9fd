package supervisor

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"difyrt/runtime/confine"
	"difyrt/runtime/job"
)

func TestFramesRoundTrip(t *testing.T) {
	code := 137
	at := time.Date(2026, 1, 2, 3, 4, 5, 6000000, time.UTC)
	in := []message{
		{Seq: 1, Hello: &Hello{Protocol: 1, Version: "v", PID: 7, Exe: "1:2:3", ABI: 7, Jobs: []Started{{ID: "0123456789abcdef", PID: 9, Start: 8, At: at, Mode: job.PTY}}}},
		{Seq: 2, Error: toWire(job.Errorf(job.CodeInputTimeout, "late"))},
		{Grown: []Grown{{"0123456789abcdef", 1 << 40}}},
		{Ended: &Ended{"0123456789abcdef", Record{Status: job.Terminated, ExitCode: &code, StartedAt: at, EndedAt: at, Size: 5, Reason: "r"}}},
	}
	var b bytes.Buffer
	for _, m := range in {
		if err := writeFrame(&b, m); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range in {
		var got message
		if err := readFrame(&b, &got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%+v, %v; want %+v", got, err, want)
		}
	}
	if err := readFrame(&b, new(message)); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
}

func TestErrorsKeepTheirCode(t *testing.T) {
	for _, err := range []error{job.Errorf(job.CodeValidation, "bad"), errors.New("plain")} {
		got := toWire(err).err()
		if job.CodeOf(got) != job.CodeOf(err) || got.Error() != err.Error() {
			t.Errorf("%v became %v", err, got)
		}
	}
	if toWire(nil) != nil {
		t.Error("nil became an error")
	}
}

// The environment need not be UTF-8, and JSON must not change it.
func TestEnvironmentInASpec(t *testing.T) {
	for _, env := range [][]string{{}, {"A=b"}, {"A=\xff\xfe", "B=", "C=x\ny"}} {
		var b bytes.Buffer
		if err := writeFrame(&b, request{Op: opSpawn, Spawn: &Spec{Dir: "/\xff", Cwd: "/c", Env: EncodeEnv(env), Policy: confine.Policy{Enabled: true}}}); err != nil {
			t.Fatal(err)
		}
		var r request
		if err := readFrame(&b, &r); err != nil {
			t.Fatal(err)
		}
		if r.Spawn.Dir != "/\xff" || r.Spawn.Cwd != "/c" || r.Spawn.Home != "" {
			t.Errorf("%+v", *r.Spawn)
		}
		if got := decodeEnv(r.Spawn.Env); strings.Join(got, "|") != strings.Join(env, "|") || len(got) != len(env) {
			t.Errorf("%q became %q", env, got)
		}
	}
}

func TestHostileFrames(t *testing.T) {
	huge := binary.BigEndian.AppendUint32(nil, maxFrame+1)
	for name, b := range map[string]string{
		"huge": string(huge), "cut head": "\x00\x00", "cut body": "\x00\x00\x00\x09{\"seq\"", "no JSON": "\x00\x00\x00\x03xyz",
		"wrong type": "\x00\x00\x00\x0b{\"seq\":\"x\"}", "empty": "\x00\x00\x00\x00",
	} {
		if err := readFrame(strings.NewReader(b), new(request)); err == nil || err == io.EOF {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzReadFrame(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x02{}"))
	f.Add([]byte("\x00\x00\x00\x23{\"seq\":1,\"op\":\"spawn\",\"spawn\":null}"))
	f.Add([]byte("\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var r request
		if readFrame(bytes.NewReader(b), &r) == nil && r.Spawn != nil {
			decodeEnv(r.Spawn.Env)
		}
	})
}
