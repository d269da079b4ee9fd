// Package version says which build this is.
package version

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// Version and Commit are set by the linker in a release
// (-X difyrt/runtime/version.Version=…); without it they come from what the Go
// tool recorded, or say that nothing is known.
var (
	Version = "dev"
	Commit  = ""
)

// String is one line: version, commit, Go version and build flavour.
func String() string {
	return fmt.Sprintf("difyrt %s commit %s %s %s/%s flavour %s", Version, commit(), runtime.Version(), runtime.GOOS, runtime.GOARCH, Flavour)
}

func commit() string {
	if Commit != "" {
		return Commit
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				return s.Value
			}
		}
	}
	return "unknown"
}
