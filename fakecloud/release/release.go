// Package release tells of which release of the project a program is.
package release

import (
	"cmp"
	"runtime/debug"
)

// version is set by the linker where the build knows it: see lab/build.
var version string

// Version is the release; in other builds it is the version of the program's module, or "devel" with the commit.
func Version() string {
	build, _ := debug.ReadBuildInfo()
	return cmp.Or(version, describe(cmp.Or(build, &debug.BuildInfo{})))
}

func describe(build *debug.BuildInfo) string {
	if v := build.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	for _, s := range build.Settings {
		if s.Key == "vcs.revision" {
			return "devel-" + s.Value[:min(12, len(s.Value))]
		}
	}
	return "devel"
}
