// Package version says what this build is, and which versions of Kubernetes it was
// tested with.
package version

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	kube "k8s.io/component-base/version"
)

// The minors of Kubernetes 1 whose clusters this build was tested with. Upstream's
// version skew policy (https://kubernetes.io/releases/version-skew-policy/) lets
// a cloud controller manager be of kube-apiserver's minor or one older, never
// newer; its minor is that of the libraries it is built with. By that policy one minor
// above these is fine, but untested; the lowest is not, but the conformance suite
// passes on it (make test-minors).
const (
	MinMinor = 35
	MaxMinor = 36
)

// Info is what `ccm --version` says.
type Info struct {
	// Version is the project's: a release's (v1.2.3), commits after one
	// (v1.2.3+4.g0123abc), or v0.0.0-devel.
	Version string
	// Commit is what was built, with "-dirty" if files were changed; "unknown"
	// if the build did not know.
	Commit string
	// Go is the version of Go that compiled it.
	Go string
	// Kubernetes is the version of Kubernetes' libraries in it.
	Kubernetes string
}

// unstamped is in upstream's variables until a build sets them.
const unstamped = "$Format"

// Get reads the variables of upstream's version package, which our builds set as
// releases of Kubernetes do. What is not set there comes from Go's own build
// information.
func Get() Info {
	info := Info{Go: runtime.Version(), Kubernetes: "v" + kube.DefaultKubeBinaryVersion}
	if stamp := kube.Get(); !strings.Contains(stamp.GitVersion, unstamped) {
		info.Version = stamp.GitVersion
		if !strings.Contains(stamp.GitCommit, unstamped) {
			info.Commit = stamp.GitCommit
		}
		if stamp.GitTreeState == "dirty" {
			info.Commit += "-dirty"
		}
	}
	if build, ok := debug.ReadBuildInfo(); ok {
		fillFromBuildInfo(&info, build)
	}
	info.Version, info.Commit = cmp.Or(info.Version, "v0.0.0-devel"), cmp.Or(info.Commit, "unknown")
	return info
}

// fillFromBuildInfo adds what Go recorded of the build to what info lacks.
func fillFromBuildInfo(info *Info, build *debug.BuildInfo) {
	for _, dep := range build.Deps {
		if dep.Path == "k8s.io/cloud-provider" {
			info.Kubernetes = dep.Version
		}
	}
	if info.Version != "" {
		return
	}
	if v := build.Main.Version; v != "(devel)" {
		info.Version = v
	}
	settings := map[string]string{}
	for _, s := range build.Settings {
		settings[s.Key] = s.Value
	}
	if info.Commit = settings["vcs.revision"]; info.Commit != "" && settings["vcs.modified"] == "true" {
		info.Commit += "-dirty"
	}
}

// Supported are the minors of Kubernetes that this build was tested with.
func Supported() string {
	if MinMinor == MaxMinor {
		return fmt.Sprintf("1.%d", MaxMinor)
	}
	return fmt.Sprintf("1.%d to 1.%d", MinMinor, MaxMinor)
}

func (i Info) String() string {
	return fmt.Sprintf("ccm %s\ncommit:               %s\nGo:                   %s\nKubernetes libraries: %s\nKubernetes supported: %s",
		i.Version, i.Commit, i.Go, i.Kubernetes, Supported())
}
