package job

import (
	"strings"
	"testing"
	"time"
)

var statuses = []Status{Created, Starting, Running, Exited, Terminated, Failed, Lost}

func TestParseID(t *testing.T) {
	for s, good := range map[string]bool{
		"0123456789abcdef": true, "0000000000000000": true, string(NewID()): true,
		"": false, "0123456789abcde": false, "0123456789abcdef0": false, "0123456789ABCDEF": false,
		"../../etc/passwd": false, "0123456789abcde\n": false, "0123456789abcdé": false, strings.Repeat("a", 1000): false,
	} {
		id, err := ParseID(s)
		if good != (err == nil) || good && string(id) != s || !good && CodeOf(err) != CodeNotFound {
			t.Errorf("ParseID(%q) = %q, %v", s, id, err)
		}
	}
	if a, b := NewID(), NewID(); a == b {
		t.Error("two identifiers are the same")
	}
}

func TestTransitions(t *testing.T) {
	for i, from := range statuses {
		for k, to := range statuses {
			want := k > i && !from.Final()
			if got := from.CanBecome(to); got != want {
				t.Errorf("%s.CanBecome(%s) = %v", from, to, got)
			}
		}
		if from.Final() != (i >= 3) {
			t.Errorf("%s.Final() = %v", from, from.Final())
		}
		if got, err := ParseStatus(string(from)); got != from || err != nil {
			t.Errorf("ParseStatus(%q) = %q, %v", from, got, err)
		}
	}
	for _, s := range []string{"", "EXITED", "exited,running", "nope"} {
		if _, err := ParseStatus(s); CodeOf(err) != CodeValidation {
			t.Errorf("ParseStatus(%q): %v", s, err)
		}
		if Status(s).CanBecome(Exited) || Running.CanBecome(Status(s)) {
			t.Errorf("%q takes part in transitions", s)
		}
	}
}

func TestFinishHappensOnce(t *testing.T) {
	code, other := 3, 4
	start, end := time.Unix(100, 0), time.Unix(200, 0)
	j := Job{Status: Starting, StartedAt: start}
	if j.Finish(End{Status: Running}) {
		t.Error("running is no end")
	}
	if !j.Finish(End{Status: Exited, EndedAt: end, ExitCode: &code}) || j.Status != Exited || *j.ExitCode != 3 || j.StartedAt != start || j.EndedAt != end {
		t.Errorf("%+v", j)
	}
	was := j
	if j.Finish(End{Status: Lost, ExitCode: &other, StartedAt: end}) || j != was {
		t.Errorf("changed to %+v", j)
	}
}

func TestCheckEnv(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		good bool
	}{
		{nil, true}, {map[string]string{"A": "", "B": "=x\ny", "é ": "ü"}, true},
		{map[string]string{"": "x"}, false}, {map[string]string{"A=": "x"}, false},
		{map[string]string{"A\x00": "x"}, false}, {map[string]string{"A": "secret\x00"}, false},
	} {
		err := CheckEnv(c.env)
		if c.good != (err == nil) || !c.good && (CodeOf(err) != CodeValidation || strings.Contains(err.Error(), "secret")) {
			t.Errorf("%q: %v", c.env, err)
		}
	}
}
