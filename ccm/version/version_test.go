package version

import (
	"os"
	"regexp"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestWhatGoNoted(t *testing.T) {
	build := &debug.BuildInfo{
		Main:     debug.Module{Version: "v1.2.3"},
		Deps:     []*debug.Module{{Path: "k8s.io/cloud-provider", Version: "v0.36.3"}},
		Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "0123abc"}, {Key: "vcs.modified", Value: "true"}},
	}
	var info Info
	fillFromBuildInfo(&info, build)
	assert.Equal(t, Info{Version: "v1.2.3", Commit: "0123abc-dirty", Kubernetes: "v0.36.3"}, info)

	info = Info{Version: "v9.9.9", Commit: "ffff"}
	fillFromBuildInfo(&info, build)
	assert.Equal(
		t, Info{Version: "v9.9.9", Commit: "ffff", Kubernetes: "v0.36.3"}, info, "what the build set goes first",
	)

	build.Main.Version, build.Settings = "(devel)", nil
	info = Info{}
	fillFromBuildInfo(&info, build)
	assert.Equal(t, Info{Kubernetes: "v0.36.3"}, info)
}

func TestNothingIsMissing(t *testing.T) {
	info := Get()
	assert.Regexp(t, `^v\d+\.\d+\.\d+`, info.Version)
	assert.NotEmpty(t, info.Commit)
	assert.Regexp(t, `^go1\.`, info.Go)
	assert.Regexp(t, `^v\d+\.\d+`, info.Kubernetes)
}

// By upstream's policy a cloud controller manager is never newer than the API
// server, and at most one minor older.
func TestSupportedMinorsFitTheLibraries(t *testing.T) {
	mod, err := os.ReadFile("../../go.mod")
	require.NoError(t, err)
	m := regexp.MustCompile(`k8s.io/cloud-provider v0\.(\d+)\.`).FindSubmatch(mod)
	require.NotNil(t, m)
	assert.Contains(t, Supported(), "1."+string(m[1]), "the libraries' own minor was tested")
	assert.LessOrEqual(t, MinMinor, MaxMinor)
}
