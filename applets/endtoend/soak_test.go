package endtoend

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestSoak runs many short jobs and looks for what they leave behind: a lost
// last line, a descriptor, a thread, a zombie, a file. DIFYRT_SOAK says how many
// (`just soak`: 10,000).
func TestSoak(t *testing.T) {
	n := 300
	if v := os.Getenv("DIFYRT_SOAK"); v != "" {
		var err error
		if n, err = strconv.Atoi(v); err != nil {
			t.Fatal(err)
		}
	}
	s := start(t, withArgs("--retention", "1s", "--gc-interval", "250ms"), withListen("unix:"+filepath.Join(t.TempDir(), "s")))
	script := func(i int) (string, string) {
		switch i % 4 {
		case 0:
			return fmt.Sprintf("seq 1 %d; echo LAST %d; exit %d", i%700, i, i%7), seq(i%700) + fmt.Sprintf("LAST %d\n", i)
		case 1:
			return fmt.Sprintf("echo out %d; echo err >&2; exit %d", i, i%7), fmt.Sprintf("out %d\n", i)
		case 2:
			return fmt.Sprintf("(sleep 0.01; exit 3) & echo LAST %d; wait; exit %d", i, i%7), fmt.Sprintf("LAST %d\n", i)
		}
		return fmt.Sprintf("printf 'LAST %d'; kill -TERM $$", i), fmt.Sprintf("LAST %d", i)
	}
	load := func(n int) {
		var next atomic.Int64
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for {
					i := int(next.Add(1))
					if i > n {
						return
					}
					text, want := script(i)
					mode := modes[i/4%2]
					if i%4 == 1 {
						mode = "stdio"
					}
					var r result
					if err := s.try("POST", "/v1/jobs/run", m{"script": text, "mode": mode, "output_limit": 100000, "idle_flush_seconds": 20}, &r); err != nil {
						t.Error(err)
						return
					}
					code := i % 7
					if i%4 == 3 {
						code = 143
					}
					if !r.Done || r.Status != "exited" || r.code() != code || r.Output != want {
						t.Errorf("job %d (%s): %s %d, %d bytes, want %d bytes and %d", i, mode, r.Status, r.code(), len(r.Output), len(want), code)
					}
				}
			})
		}
		wg.Wait()
	}
	load(50)
	runner := s.runner()
	settled := func() (list []int) {
		s.http.CloseIdleConnections()
		awaitEmpty(t, filepath.Join(s.state, "jobs")) // by then the connections are closed too
		for _, pid := range []int{s.cmd.Process.Pid, runner} {
			threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
			list = append(list, len(fds(pid, "")), len(threads))
		}
		return list
	}
	before := settled()
	began := time.Now()
	load(n)
	t.Logf("%d jobs in %v", n, time.Since(began).Round(time.Millisecond))
	after := settled()
	for i, what := range []string{"descriptors of serve", "threads of serve", "descriptors of the runner", "threads of the runner"} {
		if slack := 8; after[i] > before[i]+slack {
			t.Errorf("%s: %d, and %d before", what, after[i], before[i])
		}
	}
	for _, p := range processes() {
		if p.ppid == runner || p.ppid == s.cmd.Process.Pid && p.pid != runner {
			t.Errorf("a process is left: %+v", p)
		}
	}
	var list struct{ Jobs []m }
	s.call("GET", "/v1/jobs?limit=200", nil, &list)
	dirs, _ := filepath.Glob(filepath.Join(s.state, "jobs", "*"))
	if len(list.Jobs)+len(dirs) > 0 {
		t.Errorf("%d jobs and %d directories are left", len(list.Jobs), len(dirs))
	}
	if got := s.runner(); got != runner {
		t.Errorf("runner %d was replaced by %d", runner, got)
	}
}

func seq(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintln(&b, i+1)
	}
	return b.String()
}
