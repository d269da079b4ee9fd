package api

import (
	"strings"
	"testing"

	"difyrt/runtime/job"
)

func TestToken(t *testing.T) {
	f := &fake{}
	h := NewHandler(Config{Token: "tok-EN", Jobs: f, Log: quiet()})
	for head, good := range map[string]bool{"Bearer tok-EN": true, "bearer tok-EN": true, "": false, "Bearer": false, "Bearer ": false, "Bearer tok-EN ": false,
		"Bearer tok-en": false, "Bearer tok-E": false, "Bearer tok-EN tok-EN": false, "Basic tok-EN": false, "tok-EN": false, "Bearer  tok-EN": false} {
		w := ask(h, "GET", "/v1/jobs", "", "Authorization", head)
		if good != (w.Code == 200) {
			t.Errorf("%q: %d", head, w.Code)
		}
		if !good {
			wantError(t, head, w, 401, job.CodeUnauthorized)
		}
	}
	calls := len(f.calls)
	// Before anything else: unknown routes, wrong methods, bad ids and bodies.
	for _, c := range routes {
		path := strings.Replace(c.pattern, "{id}", "nope", 1)
		for _, method := range []string{"GET", "POST", "PUT", "DELETE"} {
			w := ask(h, method, path+"?token=tok-EN", "{")
			if open := c.open && method == c.method; open && w.Code != 200 || !open && w.Code != 401 {
				t.Errorf("%s %s without a token: %d", method, path, w.Code)
			}
		}
	}
	if w := ask(h, "GET", "/nope", ""); w.Code != 401 {
		t.Errorf("unknown route without a token: %d", w.Code)
	}
	if len(f.calls) != calls {
		t.Errorf("called: %v", f.calls[calls:])
	}
}
