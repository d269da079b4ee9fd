package api

import (
	"net/http"
	"net/url"
	"strings"

	"difyrt/runtime/job"
)

// route is one row of the table of routes. Its handler gives the body of a 200,
// or streamed when it has sent the answer itself.
type route struct {
	method  string
	pattern string // segments; idSegment stands for a job's identifier
	open    bool   // needs no token
	serve   func(*handler, http.ResponseWriter, *http.Request, job.ID) (any, error)
}

const idSegment = "{id}"

// routes are looked through in order: a literal stands before the identifier
// that it could be taken for. net/http's own ServeMux is no help here: it cleans
// and redirects paths, and answers in plain text.
var routes = []route{
	{"GET", "/healthz", true, (*handler).health},
	{"GET", "/v1/info", false, (*handler).about},
	{"POST", "/v1/jobs/run", false, (*handler).run},
	{"GET", "/v1/jobs", false, (*handler).list},
	{"GET", "/v1/jobs/{id}", false, (*handler).get},
	{"DELETE", "/v1/jobs/{id}", false, (*handler).delete},
	{"POST", "/v1/jobs/{id}/wait", false, (*handler).wait},
	{"POST", "/v1/jobs/{id}/input", false, (*handler).input},
	{"GET", "/v1/jobs/{id}/log/tail", false, (*handler).tail},
	{"POST", "/v1/jobs/{id}/terminate", false, (*handler).terminate},
	{"POST", "/v1/snapshot/save", false, (*handler).save},
	{"POST", "/v1/snapshot/restore", false, (*handler).restore},
}

// target is what a method and a path lead to. Without serve it is a known path
// with another method, or, without a pattern too, an unknown path.
type target struct {
	route
	id    string // the segment in place of the identifier, unescaped and unchecked
	hasID bool
	allow []string // the methods of a known path whose method is another
}

// lookup finds the target. The first pattern that fits the path is the only one
// whose methods count.
func lookup(method, path string) (t target) {
	segments := strings.Split(path, "/")
	for i, s := range segments {
		plain, err := url.PathUnescape(s)
		if err != nil {
			return target{}
		}
		segments[i] = plain
	}
	for _, c := range routes {
		if t.pattern != "" && t.pattern != c.pattern {
			continue
		}
		id, hasID, ok := match(c.pattern, segments)
		if !ok {
			continue
		}
		if c.method == method {
			return target{route: c, id: id, hasID: hasID}
		}
		t.pattern, t.id, t.hasID = c.pattern, id, hasID
		t.allow = append(t.allow, c.method)
	}
	return t
}

// match compares a pattern to the segments of a path.
func match(pattern string, segments []string) (id string, hasID, ok bool) {
	if strings.Count(pattern, "/")+1 != len(segments) {
		return "", false, false
	}
	i := 0
	for part := range strings.SplitSeq(pattern, "/") {
		switch segment := segments[i]; part {
		case idSegment:
			id, hasID = segment, true
		case segment:
		default:
			return "", false, false
		}
		i++
	}
	return id, hasID, true
}
