// Package endtoend holds the tests that drive the real executable: over HTTP,
// with real terminals, real processes and real kills. There is no code in it
// besides. TestMain builds the executable once, with the race detector when the
// tests themselves run with it.
package endtoend
