// Package confine is what stands between a job and everything else: the
// Landlock ruleset that a job's thread enters before it forks, the environment
// a job starts with, and the view of the process tree by which a job is ended
// whole.
//
// The kernel decides how much can be had. Landlock grows by ABI versions; the
// table in level.go says what each brings, and a ruleset is always built for
// the version that the running kernel has, down to none. Nothing here guesses:
// Probe asks the kernel, and callers report what Probe said.
//
// Restricting is per thread (landlock_restrict_self(2) without TSYNC), and a
// forked child inherits its thread's domain. So RestrictThread must be called
// on a goroutine that is locked to its thread and never unlocked, and never on
// the process's main thread: /proc/PID and the signal scope look at the
// thread-group leader, and would then count the whole process into the domain.
package confine
