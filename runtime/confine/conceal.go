package confine

import (
	"bytes"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Conceal closes this process to others of the same user, which a job is: they
// can neither trace it nor read its memory, environment or descriptors, and it
// leaves no core dump (prctl(2), PR_SET_DUMPABLE). A program that it executes is
// open again.
func Conceal() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("make the process undumpable: %w", err)
	}
	return nil
}

// Scrub covers values in the memory that /proc/PID/cmdline and /proc/PID/environ
// show: what stands behind NAME= and, in an argument of its own, behind NAME. It
// must come before Conceal, which closes /proc/self/mem as well, and the caller's
// copy of a value must not be a part of os.Args, which is that very memory.
func Scrub(names ...string) error {
	start, end, err := argumentBlock()
	if err != nil {
		return fmt.Errorf("scrub the arguments: %w", err)
	}
	mem, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("scrub the arguments: %w", err)
	}
	defer mem.Close()
	block := make([]byte, end-start)
	if _, err := mem.ReadAt(block, start); err != nil {
		return fmt.Errorf("scrub the arguments: %w", err)
	}
	for _, v := range values(block, names) {
		cover := bytes.Repeat([]byte{'*'}, v[1]-v[0])
		if _, err := mem.WriteAt(cover, start+int64(v[0])); err != nil {
			return fmt.Errorf("scrub the arguments: %w", err)
		}
	}
	return nil
}

// values finds the named values among strings that each end with a NUL, as
// pairs of where they begin and end.
func values(block []byte, names []string) (found [][2]int) {
	at, before := 0, ""
	for entry := range bytes.SplitSeq(block, []byte{0}) {
		for _, n := range names {
			if before == n {
				found = append(found, [2]int{at, at + len(entry)})
			} else if bytes.HasPrefix(entry, []byte(n+"=")) {
				found = append(found, [2]int{at + len(n) + 1, at + len(entry)})
			}
		}
		at, before = at+len(entry)+1, string(entry)
	}
	return found
}

// argumentBlock gives where the arguments begin and the environment ends, which
// the kernel lays out one behind the other (proc_pid_stat(5), arg_start and
// env_end).
func argumentBlock() (start, end int64, err error) {
	b, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return 0, 0, err
	}
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	const argStart, envEnd = 48 - 3, 51 - 3 // the first field here is the third of the man page
	if len(f) <= envEnd {
		return 0, 0, fmt.Errorf("/proc/self/stat has only %d fields", len(f)+2)
	}
	if start, err = strconv.ParseInt(string(f[argStart]), 10, 64); err == nil {
		end, err = strconv.ParseInt(string(f[envEnd]), 10, 64)
	}
	if err == nil && (start <= 0 || end < start || end-start > stackLimit) {
		err = fmt.Errorf("/proc/self/stat gives no argument block (%d to %d)", start, end)
	}
	return start, end, err
}
