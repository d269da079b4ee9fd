package supervisor

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"difyrt/runtime/confine"
)

// KillLeftover kills what is left of a job whose runner has died, so that a
// job which is reported lost does not go on unseen. st may have no PID: then
// the session leader that still runs the job's script is looked for.
func KillLeftover(dir string, st Started) {
	leader := confine.Process{PID: st.PID, Start: st.Start}
	if st.PID == 0 {
		var ok bool
		if leader, ok = findLeader(filepath.Join(dir, ScriptFile)); !ok {
			return
		}
	}
	confine.NewTree(leader, nil).Kill(time.Now().Add(killWithin))
}

// findLeader looks for the session leader with this script on its command line.
func findLeader(script string) (confine.Process, bool) {
	all, err := confine.Processes()
	if err != nil {
		return confine.Process{}, false
	}
	for _, p := range all {
		if p.PID != p.Session {
			continue
		}
		line, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID) + "/cmdline")
		if err != nil {
			continue
		}
		for arg := range bytes.SplitSeq(line, []byte{0}) {
			if string(arg) == script {
				return p, true
			}
		}
	}
	return confine.Process{}, false
}
