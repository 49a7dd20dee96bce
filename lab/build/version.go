package build

import (
	"context"
	"os/exec"
	"regexp"
	"strings"
	"time"
)

// noRelease is the version of programs whose commit has no release before it.
const noRelease = "v0.0.0-devel"

// stampedFlags are the flags with the variables that Stamp gives.
func (m Module) stampedFlags(ctx context.Context) []string {
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

// gitIn returns a function that runs git in root and returns its output. That is "" where git
// fails, as in sources without a repository.
func gitIn(ctx context.Context, root string) func(args ...string) string {
	return func(args ...string) string {
		out, err := exec.CommandContext(ctx, "git", append([]string{"-C", root}, args...)...).Output()
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(out))
	}
}

// releaseOf says which tag the commit itself has, and whether files were changed since the commit.
func releaseOf(ctx context.Context, root string) string {
	git := gitIn(ctx, root)
	release := "release " + git("describe", "--tags", "--exact-match", "--match", "v[0-9]*")
	if git("status", "--porcelain", "--untracked-files=no") != "" {
		release += " changed"
	}
	return release
}

// stampOf are the variables for the linker that hold the version of our programs, as git says: a
// release's tag, or how far after it the commit is. They are variables that Kubernetes' libraries
// have, and our own. A change of them costs linking, not compiling. Sources without git,
// as from an archive, have no release.
func stampOf(ctx context.Context, root string) (set []string) {
	git := gitIn(ctx, root)
	commit, state, built := git("rev-parse", "HEAD"), "clean", "1970-01-01T00:00:00Z"
	if at, err := time.Parse(time.RFC3339, git("show", "-s", "--format=%cI", "HEAD")); err == nil {
		built = at.UTC().Format(time.RFC3339) // The commit's time, so that two builds of it are the same.
	}
	if commit == "" {
		commit, state = "unknown", ""
	} else if git("status", "--porcelain", "--untracked-files=no") != "" {
		state = "dirty"
	}
	version := toSemanticVersion(git("describe", "--tags", "--match", "v[0-9]*"))
	// Kubernetes' libraries have the version twice: for --version and metrics, and for the
	// User-Agent.
	for _, pkg := range []string{"k8s.io/component-base/version.", "k8s.io/client-go/pkg/version."} {
		for _, value := range []string{
			"gitVersion=" + version, "gitCommit=" + commit, "gitTreeState=" + state, "buildDate=" + built,
		} {
			set = append(set, pkg+value)
		}
	}
	if version == noRelease && commit != "unknown" {
		version = "devel-" + commit[:min(12, len(commit))]
	}
	return append(set, ModulePath+"/fakecloud/release.version="+version)
}

var (
	releaseRegexp  = regexp.MustCompile(`^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$`)
	describeRegexp = regexp.MustCompile(`^(.+)-([0-9]+)-(g[0-9a-f]+)$`)
)

// toSemanticVersion makes a semantic version of the output of `git describe`: v1.2.3-4-g0123abc,
// which would be older than v1.2.3, becomes v1.2.3+4.g0123abc.
func toSemanticVersion(description string) string {
	after := ""
	if m := describeRegexp.FindStringSubmatch(description); m != nil {
		description, after = m[1], "+"+m[2]+"."+m[3]
	}
	if !releaseRegexp.MatchString(description) {
		return noRelease
	}
	return description + after
}
