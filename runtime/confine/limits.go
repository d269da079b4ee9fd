package confine

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The variables of the server's environment that bound what jobs may use.
const (
	EnvMaxJobs    = "SHELLCTL_MAX_JOBS"         // jobs at a time
	EnvMaxSeconds = "SHELLCTL_JOB_MAX_SECONDS"  // run time of a job
	EnvMaxOutput  = "SHELLCTL_MAX_OUTPUT_BYTES" // of each output file of a job
	EnvMinFree    = "SHELLCTL_MIN_FREE_BYTES"   // space that jobs must leave
)

// Limits bound what jobs may use; 0 is no limit. Like Policy they travel with
// each job, and their JSON form may only grow.
type Limits struct {
	MaxJobs    int64 `json:"-"`                     // the server's own business
	MaxSeconds int64 `json:"max_seconds,omitempty"` // then the job is terminated
	MaxOutput  int64 `json:"max_output,omitempty"`  // bytes; what follows is dropped, and the job goes on
	MinFree    int64 `json:"min_free,omitempty"`    // bytes; below it a job that writes output is ended as failed
}

// LimitsFromEnv reads the limits from a lookup such as os.LookupEnv.
func LimitsFromEnv(lookup func(string) (string, bool)) (Limits, error) {
	var l Limits
	for name, to := range map[string]*int64{EnvMaxJobs: &l.MaxJobs, EnvMaxSeconds: &l.MaxSeconds, EnvMaxOutput: &l.MaxOutput, EnvMinFree: &l.MinFree} {
		v, _ := lookup(name)
		if v = strings.TrimSpace(v); v == "" {
			continue
		}
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil || n < 0 || name == EnvMaxSeconds && n > int64((1<<63-1)/time.Second) {
			return l, fmt.Errorf("%s is %q: use a whole number, 0 for no limit", name, v)
		}
		*to = n
	}
	return l, nil
}

// Free gives the bytes that an unprivileged process can still write below dir.
func Free(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("free space of %s: %w", dir, err)
	}
	return int64(st.Bavail) * st.Bsize, nil
}
