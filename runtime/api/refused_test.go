package api

import (
	"fmt"
	"strings"
	"testing"

	"difyrt/runtime/job"
)

func TestRefusedRequests(t *testing.T) {
	deep := strings.Repeat("[", 20000) + strings.Repeat("]", 20000)
	id := "/v1/jobs/" + string(known)
	run, wait := "/v1/jobs/run", id+"/wait"
	for _, c := range []struct {
		method, path, body string
		status             int
		code               job.Code
	}{
		{"POST", run, "", 400, "invalid_request"}, {"POST", run, "{", 400, "invalid_request"}, {"POST", run, "[]", 400, "invalid_request"},
		{"POST", run, "null", 400, "invalid_request"}, {"POST", run, `{"script":"x"} {}`, 400, "invalid_request"},
		{"POST", run, `{"script":"x"`, 400, "invalid_request"}, {"POST", run, "{\"script\":\"\xff\"}", 400, "invalid_request"},
		{"POST", run, `{"x":` + deep + `}`, 400, "invalid_request"}, {"POST", run, deep, 400, "invalid_request"},
		{"POST", run, `{"script":""}`, 400, "invalid_request"}, {"POST", run, `{"Script":"x"}`, 400, "invalid_request"},
		{"POST", run, `{"script":null}`, 400, "invalid_request"}, {"POST", run, `{"script":5}`, 400, "invalid_request"},
		{"POST", run, `{"script":"x","timeout":"5"}`, 400, "invalid_request"}, {"POST", run, `{"script":"x","timeout":[]}`, 400, "invalid_request"},
		{"POST", run, `{"script":"x","output_limit":1.5}`, 400, "invalid_request"}, {"POST", run, `{"script":"x","env":["A=B"]}`, 400, "invalid_request"},
		{"POST", run, `{"script":"x","env":{"A":1}}`, 400, "invalid_request"}, {"POST", run, `{"script":"x","terminal":{"cols":"80"}}`, 400, "invalid_request"},
		{"POST", run, `{"script":"x","terminal":{"cols":80.5}}`, 400, "invalid_request"},
		{"POST", run, `{"script":"x","timeout":-1}`, 422, "validation_error"}, {"POST", run, `{"script":"x","output_limit":-1e300}`, 422, "validation_error"},
		{"POST", run, `{"script":"x","idle_flush_seconds":-0.1}`, 422, "validation_error"}, {"POST", run, `{"script":"x","mode":"x"}`, 422, "validation_error"},
		{"POST", run, `{"script":"x","terminal":{"rows":0}}`, 422, "validation_error"}, {"POST", run, `{"script":"x","terminal":{"cols":4097}}`, 422, "validation_error"},
		{"POST", run, `{"script":"x","env":{"":"v"}}`, 422, "validation_error"}, {"POST", run, `{"script":"x","env":{"A":"\u0000"}}`, 422, "validation_error"},
		{"POST", run, `{"script":"x","cwd":"/a\u0000b"}`, 400, "invalid_cwd"},
		{"POST", run, `{"script":"` + strings.Repeat("x", 16<<20+1) + `"}`, 413, "payload_too_large"},
		{"POST", wait, strings.Repeat(" ", 64<<10+1), 413, "payload_too_large"},
		{"POST", wait, "", 400, "invalid_request"}, {"POST", wait, `{"offset":-1}`, 400, "invalid_offset"}, {"POST", wait, `{"offset":1e300}`, 400, "invalid_offset"},
		{"POST", wait, `{"offset":0.5}`, 400, "invalid_request"}, {"POST", wait, `{"offset":"0"}`, 400, "invalid_request"},
		{"POST", id + "/input", `{}`, 400, "invalid_request"}, {"POST", id + "/input", `{"text":null}`, 400, "invalid_request"},
		{"POST", id + "/input", `{"text":"` + strings.Repeat("x", 16<<20+1) + `"}`, 413, "payload_too_large"},
		{"POST", id + "/terminate", `{`, 400, "invalid_request"}, {"POST", id + "/terminate", `null`, 400, "invalid_request"},
		{"POST", id + "/terminate", `{"grace_seconds":-1}`, 422, "validation_error"},
		{"DELETE", id + "?force=true&grace_seconds=-1", "", 422, "validation_error"},
		{"GET", id + "/log/tail?output_limit=-1", "", 422, "validation_error"}, {"GET", "/v1/jobs?limit=-1", "", 422, "validation_error"},
		{"GET", "/v1/jobs?status=nope", "", 422, "validation_error"},
		{"GET", "/v1/jobs/nope", "", 404, "job_not_found"}, {"GET", "/v1/jobs/..%2f..%2fetc", "", 404, "job_not_found"},
		{"POST", "/v1/jobs/%20" + string(known) + "/wait", "{", 404, "job_not_found"}, {"GET", "/v1/jobs/", "", 404, "job_not_found"},
		{"POST", id + "/input", "[]", 400, "invalid_request"}, {"POST", id + "/terminate", strings.Repeat(" ", 64<<10+1), 413, "payload_too_large"},
		{"POST", run, `{"script":"x","terminal":{"cols":-0.5}}`, 400, "invalid_request"},
		// A wrong type is told before a wrong value, wherever they stand.
		{"POST", run, `{"script":"x","timeout":-1,"output_limit":"x"}`, 400, "invalid_request"}, {"POST", run, `{"script":"x","mode":"x","terminal":{"cols":0,"rows":1.5}}`, 400, "invalid_request"},
		{"POST", run, `{"cwd":"\u0000","env":{"":""}}`, 400, "invalid_request"}, {"POST", id + "/input", `{"offset":-1}`, 400, "invalid_request"},
		{"POST", wait, `{"offset":-1,"timeout":true}`, 400, "invalid_request"}, {"POST", wait, `{"offset":9223372036854775808}`, 400, "invalid_offset"},
		{"POST", wait, `{"timeout":-1e-9}`, 422, "validation_error"}, {"POST", wait, `{"idle_flush_seconds":-1}`, 422, "validation_error"},
		{"POST", run, `{"script":"x","env":{"A":null}}`, 400, "invalid_request"}, {"POST", run, `{"script":"x","terminal":[]}`, 400, "invalid_request"},
		{"POST", run, "\ufeff{\"script\":\"x\"}", 400, "invalid_request"}, {"POST", run, `{"script":"x",}`, 400, "invalid_request"}, {"POST", run, `{"script":"x"}x`, 400, "invalid_request"},
		{"POST", run, `{"script":"x","cwd":true}`, 400, "invalid_request"}, {"POST", run, `{"script":{"a":"b"}}`, 400, "invalid_request"}, {"POST", run, `7`, 400, "invalid_request"},
		{"POST", run, `{"script":"x","env":{"A=B":""}}`, 422, "validation_error"}, {"POST", run, `{"script":"x","timeout":NaN}`, 400, "invalid_request"},
		{"GET", id + "/log/tail?output_limit=-0.5", "", 422, "validation_error"}, {"HEAD", "/healthz", "", 405, "method_not_allowed"},
		{"GET", "/", "", 404, "not_found"}, {"GET", "/v1/jobs/run/x", "", 404, "not_found"}, {"GET", "//healthz", "", 404, "not_found"},
		{"GET", "/v1/../healthz", "", 404, "not_found"}, {"GET", "/healthz/", "", 404, "not_found"},
		{"POST", "/healthz", "", 405, "method_not_allowed"}, {"GET", run, "", 405, "method_not_allowed"}, {"DELETE", run, "", 405, "method_not_allowed"},
		{"PATCH", id, "", 405, "method_not_allowed"}, {"GET", wait, "", 405, "method_not_allowed"}, {"GET", "/v1/snapshot/save", "", 405, "method_not_allowed"},
		{"POST", "/v1/snapshot/save", "", 500, "home_unavailable"}, {"POST", "/v1/snapshot/restore", "x", 500, "home_unavailable"},
		{"POST", "/v1/snapshot/save", "[]", 400, "invalid_request"}, {"POST", "/v1/snapshot/save", `{"excludes":[7]}`, 400, "invalid_request"}, {"POST", "/v1/snapshot/save", `{"excludes":["` + strings.Repeat("a", 64<<10+1) + `"]}`, 400, "invalid_request"},
	} {
		f := &fake{}
		w := ask(NewHandler(Config{Jobs: f, Log: quiet()}), c.method, c.path, c.body)
		wantError(t, fmt.Sprintf("%s %s %.60s", c.method, c.path, c.body), w, c.status, c.code)
		if len(f.calls) > 0 {
			t.Errorf("%s %s %.60s: called %v", c.method, c.path, c.body, f.calls)
		}
		if c.status == 405 && w.Header().Get("Allow") == "" {
			t.Errorf("%s %s: no Allow", c.method, c.path)
		}
	}
}

func TestMessagesNameTheField(t *testing.T) {
	h := NewHandler(Config{Jobs: &fake{}, Log: quiet()})
	for body, want := range map[string]string{
		`{"script":1}`: "script must be a string", `{"script":"x","terminal":{"rows":"9"}}`: "terminal.rows must be a number",
		`{"script":"x","env":{"SECRET_NAME":["secret-value"]}}`: "env.SECRET_NAME must be a string", `{"script":"x","env":7}`: "env must be an object of strings",
		`{"script":"x","output_limit":0.5}`: "output_limit must be a whole number", `{"script":"x","idle_flush_seconds":-1}`: "idle_flush_seconds must not be negative",
	} {
		w := ask(h, "POST", "/v1/jobs/run", body)
		if got := w.Body.String(); !strings.Contains(got, want) || strings.Contains(got, "secret-value") {
			t.Errorf("%s: %s", body, got)
		}
	}
}
