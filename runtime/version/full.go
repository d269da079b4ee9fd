//go:build !sandbox

package version

// Flavour names the set of applets in this build: full has them all.
const Flavour = "full"
