// Package version says what this build is, which versions of Kubernetes it was tested with, and whether the cluster's
// is one of these.
package version

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery"
	kube "k8s.io/component-base/version"
	"k8s.io/klog/v2"
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

// Supported are the minors of Kubernetes that this build was tested with.
var Supported = fmt.Sprintf("1.%d to 1.%d", MinMinor, MaxMinor)

// Info is what this build is.
type Info struct {
	// Version is the project's: a release's (v1.2.3), commits after one
	// (v1.2.3+4.g0123abc), or v0.0.0-devel.
	Version string
	// Commit is what was built, with "-dirty" if files were changed; "unknown"
	// if the build did not know.
	Commit string
	// Kubernetes is the version of Kubernetes' libraries in it.
	Kubernetes string
}

// Get reads the variables of upstream's version package, which our builds set as releases of Kubernetes do, and what
// Go recorded of the build.
func Get() Info {
	build, _ := debug.ReadBuildInfo()
	return describe(kube.Get(), cmp.Or(build, &debug.BuildInfo{}))
}

// describe prefers the stamp. Until a build sets it, $Format is in it.
func describe(stamp apiversion.Info, build *debug.BuildInfo) Info {
	settings := map[string]string{}
	for _, s := range build.Settings {
		settings[s.Key] = s.Value
	}
	info := Info{build.Main.Version, settings["vcs.revision"], "v" + kube.DefaultKubeBinaryVersion}
	dirty := settings["vcs.modified"] == "true"
	if !strings.Contains(stamp.GitVersion, "$Format") {
		info.Version, info.Commit, dirty = stamp.GitVersion, stamp.GitCommit, stamp.GitTreeState == "dirty"
	}
	if info.Version == "" || info.Version == "(devel)" {
		info.Version = "v0.0.0-devel"
	}
	if info.Commit = cmp.Or(info.Commit, "unknown"); dirty {
		info.Commit += "-dirty"
	}
	for _, dep := range build.Deps {
		if dep.Path == "k8s.io/cloud-provider" {
			info.Kubernetes = dep.Version
		}
	}
	return info
}

// String is what `ccm --version` says.
func (i Info) String() string {
	return fmt.Sprintf("ccm %s\ncommit:               %s\nGo:                   %s\nKubernetes libraries: %s\n"+
		"Kubernetes supported: %s", i.Version, i.Commit, runtime.Version(), i.Kubernetes, Supported)
}

// LogSkew logs this build's version and the cluster's, as soon as the API server
// answers: a warning if they were not tested together. It prevents nothing.
func LogSkew(ctx context.Context, server discovery.ServerVersionInterface) {
	_ = wait.PollUntilContextCancel(ctx, 2*time.Second, true, func(context.Context) (bool, error) {
		theirs, err := server.ServerVersion()
		if err != nil {
			klog.V(4).InfoS("The API server does not tell its version yet", "err", err)
			return false, nil
		}
		ours := Get()
		if err := checkSkew(theirs); err != nil {
			klog.Warningf("%v; this is ccm %s with Kubernetes libraries %s", err, ours.Version, ours.Kubernetes)
		} else {
			klog.InfoS("This build was tested with clusters of this version",
				"kubernetes", theirs.GitVersion, "ccm", ours.Version, "libraries", ours.Kubernetes)
		}
		return true, nil
	})
}

// checkSkew returns an error for an API server whose minor this build was not tested
// with.
func checkSkew(server *apiversion.Info) error {
	var advice string
	minor, err := strconv.Atoi(strings.TrimSuffix(server.Minor, "+")) // Some providers add one.
	switch {
	case err != nil || server.Major != "1":
		return fmt.Errorf("the cluster runs Kubernetes %s, which this build does not know: it was tested with %s",
			server.GitVersion, Supported)
	case minor < MinMinor:
		advice = "a cloud controller manager must not be newer than the API server; " +
			"run an older ccm, or upgrade the cluster"
	case minor > MaxMinor:
		advice = "a cloud controller manager may be one minor older than the API server, and no more; run a newer ccm"
	default:
		return nil
	}
	return fmt.Errorf("the cluster runs Kubernetes %s, but this build was tested with %s: %s",
		server.GitVersion, Supported, advice)
}
