package confine

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// SealDescriptors marks everything beyond standard error close-on-exec, so that
// what this process was started with, by a careless parent, goes no further:
// not to the runner, which would keep it open for weeks, and not to a job.
func SealDescriptors() error {
	err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) { // older than 5.11, or hidden by seccomp
		return sealOneByOne()
	}
	if err != nil {
		return fmt.Errorf("close_range: %w", err)
	}
	return nil
}

func sealOneByOne() error {
	d, err := os.Open("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("list open descriptors: %w", err)
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return fmt.Errorf("list open descriptors: %w", err)
	}
	for _, n := range names {
		if fd, err := strconv.Atoi(n); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}
