package build

// What our programs say of their version: a release's tag, or how far after it
// they were built. It is linked in where programs of Kubernetes have it, and
// costs a linking, not a compilation.

import (
	"context"
	"os/exec"
	"regexp"
	"strings"
	"time"
)

const noRelease = "v0.0.0-devel"

// stamped are the flags with what Stamp gives in them.
func (m Module) stamped(ctx context.Context) []string {
	if m.Stamp == nil {
		return m.Flags
	}
	flags := append([]string(nil), m.Flags...)
	for i, flag := range flags {
		if strings.HasPrefix(flag, "-ldflags=") {
			for _, value := range m.Stamp(ctx) {
				flags[i] += " -X " + value
			}
		}
	}
	return flags
}

// gitIn gives what git says; "" where it fails, as in sources without it.
func gitIn(ctx context.Context, root string) func(args ...string) string {
	return func(args ...string) string {
		out, err := exec.CommandContext(ctx, "git", append([]string{"-C", root}, args...)...).Output()
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(out))
	}
}

// releaseOf is the tag of the very commit, and whether anything was changed since.
func releaseOf(ctx context.Context, root string) string {
	git := gitIn(ctx, root)
	release := "release " + git("describe", "--tags", "--exact-match", "--match", "v[0-9]*")
	if git("status", "--porcelain", "--untracked-files=no") != "" {
		release += " changed"
	}
	return release
}

// stampOf asks git. Sources without it, as those of an archive, are of no release.
func stampOf(ctx context.Context, root string) (set []string) {
	git := gitIn(ctx, root)
	commit, state, built := git("rev-parse", "HEAD"), "clean", "1970-01-01T00:00:00Z"
	if at, err := time.Parse(time.RFC3339, git("show", "-s", "--format=%cI", "HEAD")); err == nil {
		built = at.UTC().Format(time.RFC3339) // The commit's: two builds of it are the same.
	}
	if commit == "" {
		commit, state = "unknown", ""
	} else if git("status", "--porcelain", "--untracked-files=no") != "" {
		state = "dirty"
	}
	version := semantic(git("describe", "--tags", "--match", "v[0-9]*"))
	// Kubernetes' libraries keep it twice: for --version and metrics, and for the
	// User-Agent.
	for _, pkg := range []string{"k8s.io/component-base/version.", "k8s.io/client-go/pkg/version."} {
		for _, value := range []string{"gitVersion=" + version, "gitCommit=" + commit, "gitTreeState=" + state, "buildDate=" + built} {
			set = append(set, pkg+value)
		}
	}
	if version == noRelease && commit != "unknown" {
		version = "devel-" + commit[:min(12, len(commit))]
	}
	for _, pkg := range []string{"fakecloud/cli", "lab/cli"} {
		set = append(set, ModulePath+"/"+pkg+".release="+version)
	}
	return set
}

var (
	release = regexp.MustCompile(`^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$`)
	since   = regexp.MustCompile(`^(.+)-([0-9]+)-(g[0-9a-f]+)$`)
)

// semantic makes a semantic version of what `git describe` says: v1.2.3-4-g0123abc,
// which would come before v1.2.3, becomes v1.2.3+4.g0123abc.
func semantic(description string) string {
	after := ""
	if m := since.FindStringSubmatch(description); m != nil {
		description, after = m[1], "+"+m[2]+"."+m[3]
	}
	if !release.MatchString(description) {
		return noRelease
	}
	return description + after
}
