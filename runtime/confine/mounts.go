package confine

import (
	"path/filepath"
	"strings"
)

// mount is a line of proc_pid_mountinfo(5).
type mount struct {
	root, point string
	kind        string
	options     string // of the file system itself
}

func parseMounts(mountinfo []byte) (list []mount) {
	for line := range strings.Lines(string(mountinfo)) {
		before, after, _ := strings.Cut(strings.TrimSpace(line), " - ")
		f, of := strings.Fields(before), strings.Fields(after)
		if len(f) >= 5 && len(of) >= 3 {
			list = append(list, mount{f[3], f[4], of[0], of[2]})
		}
	}
	return list
}

// below gives where a cgroup's path is in the mount. In a container that often
// shows the container's own group as its root, and nothing above it.
func (m mount) below(path string) string {
	rel, err := filepath.Rel(m.root, path)
	if err != nil || rel == ".." || strings.HasPrefix(rel, "../") {
		rel = "."
	}
	return filepath.Join(m.point, rel)
}

// unified is the key of the cgroup v2 in groupsOf.
const unified = ""

// groupsOf reads proc_pid_cgroup(5): this process's cgroup of each controller, and
// the unified one.
func groupsOf(cgroup []byte) map[string]string {
	groups := map[string]string{}
	for line := range strings.Lines(string(cgroup)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		for c := range strings.SplitSeq(f[1], ",") {
			groups[c] = f[2]
		}
	}
	return groups
}
