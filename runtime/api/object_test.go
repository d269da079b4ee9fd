package api

import (
	"encoding/json"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"

	"difyrt/runtime/job"
	"difyrt/runtime/jobs"
)

func TestMembers(t *testing.T) {
	for in, want := range map[string]string{
		`{}`:       "",
		" {\t} \n": "",
		`{"a":1}`:  "a=1",
		`{"a" : -1.5e+3 ,"b":[1,{"c":"}]\""}, [ ] ] , "c":null}`: `a=-1.5e+3 b=[1,{"c":"}]\""}, [ ] ] c=null`,
		`{"a":1,"A":2,"a":3}`:       "A=2 a=3",
		`{"\u0061\"\\":"\\","":""}`: `="" a"\="\\"`,
	} {
		o, err := parseObject([]byte(in))
		var got []string
		for _, name := range slices.Sorted(maps.Keys(o)) {
			got = append(got, fmt.Sprintf("%s=%s", name, o[name]))
		}
		if s := strings.Join(got, " "); err != nil || s != want {
			t.Errorf("%s: %s %v", in, s, err)
		}
	}
	var many strings.Builder
	for i := range maxMembers {
		fmt.Fprintf(&many, `"%d":0,`, i)
	}
	body := `{"script":"x","env":{` + many.String() + `"x":0}}`
	if _, err := decodeRun([]byte(body)); job.CodeOf(err) != job.CodeInvalidRequest || !strings.Contains(err.Error(), "members") {
		t.Errorf("too many members: %v", err)
	}
	deep := `{"script":"x","y":` + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + `}`
	if r, err := decodeRun([]byte(deep)); err != nil || r.Script != "x" {
		t.Errorf("nested 9000 times: %v", err)
	}
}

// What a large script takes in memory: the body, which is the caller's, and two
// texts while it is decoded.
func TestLargeScriptsAreNotCopiedAbout(t *testing.T) {
	const size = 4 << 20
	body := []byte(`{"script":"` + strings.Repeat(`0123456789abcd\n`, size/16) + `"}`)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := decodeRun(body)
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; err != nil || got > 5*size/2 {
		t.Errorf("%d bytes for a script of %d, %v", got, size, err)
	}
}

var seeds = []string{
	`{"script":"echo","env":{"A":"b"},"mode":"stdio","terminal":{"cols":80,"rows":24},"timeout":1.5,"output_limit":10,"idle_flush_seconds":0.1,"cwd":"/"}`,
	`{"script":"\ud800 \ud83d\ude00","timeout":1e999,"output_limit":-0}`, `[`, `{"a":{"b":[{}]},"script":null}`, "{\"\xff\":1}", ` {"script" : "x" , "SCRIPT":1 } `,
	`{"script":"x","idle_flush_seconds":1e-300,"output_limit":1e-300}`, `{"script":"x","env":{"A":null,"":"\u0000"}}`, `{"script":"\\","\\":"\""}`,
}

func FuzzRunRequest(f *testing.F) {
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeRun(b)
		if err != nil {
			if status, _ := errorReply(err, quiet()); status < 400 || status > 499 {
				t.Fatalf("%d %v", status, err)
			}
			return
		}
		w := r.Window
		if r.Script == "" || r.Cols < 1 || r.Cols > 4096 || r.Rows < 1 || r.Rows > 4096 || w.Limit < 1 || w.Limit > jobs.MaxOutputLimit ||
			w.Timeout < 0 || w.Timeout > jobs.MaxTimeout || w.IdleFlush <= 0 || w.Offset != 0 || r.Mode != job.PTY && r.Mode != job.Stdio {
			t.Fatalf("out of bounds: %+v", r)
		}
		if err := job.CheckEnv(r.Env); err != nil {
			t.Fatal(err)
		}
	})
}

// encoding/json is the measure of what an object holds.
func FuzzObject(f *testing.F) {
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := parseObject(b)
		var want map[string]json.RawMessage
		werr := json.Unmarshal(b, &want)
		if err != nil {
			if werr == nil && want != nil && strings.ToValidUTF8(string(b), "") == string(b) && len(want) <= maxMembers {
				t.Fatalf("refused: %v", err)
			}
			return
		}
		if werr != nil || !maps.EqualFunc(o, want, func(x []byte, y json.RawMessage) bool { return string(x) == string(y) }) {
			t.Fatalf("%q is %q, want %q %v", b, o, want, werr)
		}
	})
}

func BenchmarkRunRequest(b *testing.B) {
	body := []byte(`{"script":"echo hello","mode":"stdio","timeout":30,"output_limit":16384,"idle_flush_seconds":0.5,"env":{"HOME":"/home/a","A":"b"}}`)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := decodeRun(body); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkResultOf16KiB(b *testing.B) {
	r := jobs.Result{Job: aJob, OutputPath: "/o", Output: strings.Repeat("a line of output, é\n", 800)}
	b.SetBytes(int64(len(r.Output)))
	for b.Loop() {
		if _, err := encode(toResult(r)); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLookup(b *testing.B) {
	for b.Loop() {
		if lookup("POST", "/v1/jobs/0123456789abcdef/wait").serve == nil {
			b.Fatal("not found")
		}
	}
}
