// Package confine is what stands between a job and everything else: the
// Landlock ruleset and the system call filter that a job's thread enters before
// it forks, the environment a job starts with, and the view of the process tree
// by which a job is ended whole.
//
// The kernel decides how much can be had. Landlock grows by ABI versions; the
// table in level.go says what each brings, and a ruleset is always built for
// the version that the running kernel has, down to none. Nothing here guesses:
// Probe asks the kernel, and callers report what Probe said.
//
// Restricting is per thread (landlock_restrict_self(2) and seccomp(2), both
// without TSYNC), and a forked child inherits it. So a job is forked from a
// Warden, a thread that is restricted and never used for anything else. It must
// never be the process's main thread: /proc/PID and the signal scope look at the
// thread-group leader, and would then count the whole process into the domain.
// The program's main goroutine must be locked to that thread from its start.
package confine
