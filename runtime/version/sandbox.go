//go:build sandbox

package version

// Flavour names the set of applets in this build: sandbox has what runs inside
// a sandbox, without the control plane.
const Flavour = "sandbox"
