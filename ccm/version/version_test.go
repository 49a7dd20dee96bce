package version

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"regexp"
	"runtime/debug"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
)

func TestDescribe(t *testing.T) {
	const libraries = "v0.36.3"
	unset := apiversion.Info{GitVersion: "v0.0.0-master+$Format:%H$"}
	built := func(version string, settings ...debug.BuildSetting) *debug.BuildInfo {
		deps := []*debug.Module{{Path: "k8s.io/cloud-provider", Version: libraries}}
		return &debug.BuildInfo{Main: debug.Module{Version: version}, Deps: deps, Settings: settings}
	}
	revision := debug.BuildSetting{Key: "vcs.revision", Value: "0123abc"}
	byGo := built("v1.2.3", revision, debug.BuildSetting{Key: "vcs.modified", Value: "true"})
	for name, tc := range map[string]struct {
		stamp apiversion.Info
		build *debug.BuildInfo
		want  Info
	}{
		"by Go":        {unset, byGo, Info{"v1.2.3", "0123abc-dirty", libraries}},
		"not modified": {unset, built("v1.2.3", revision), Info{"v1.2.3", "0123abc", libraries}},
		"not known":    {unset, built("(devel)"), Info{"v0.0.0-devel", "unknown", libraries}},
		"by our build": {apiversion.Info{GitVersion: "v9.9.9", GitCommit: "f"}, byGo, Info{"v9.9.9", "f", libraries}},
		"by a dirty one": {
			apiversion.Info{GitVersion: "v9.9.9", GitCommit: "f", GitTreeState: "dirty"}, byGo,
			Info{"v9.9.9", "f-dirty", libraries},
		},
	} {
		assert.Equal(t, tc.want, describe(tc.stamp, tc.build), name)
	}
}

// By upstream's policy a cloud controller manager is never newer than the API
// server, and at most one minor older.
func TestSupportedMinorsFitTheLibraries(t *testing.T) {
	mod, err := os.ReadFile("../../go.mod")
	require.NoError(t, err)
	m := regexp.MustCompile(`k8s.io/cloud-provider v0\.(\d+)\.`).FindSubmatch(mod)
	require.NotNil(t, m)
	assert.Contains(t, Supported, "1."+string(m[1]), "the libraries' own minor was tested")
	assert.LessOrEqual(t, MinMinor, MaxMinor)
}

// fakeVersions answers once it has been asked twice.
type fakeVersions struct {
	info  apiversion.Info
	asked int
}

func (f *fakeVersions) ServerVersion() (*apiversion.Info, error) {
	if f.asked++; f.asked < 3 {
		return nil, errors.New("not yet")
	}
	return &f.info, nil
}

func TestSkewIsToldOnceTheServerAnswers(t *testing.T) {
	const tested = "This build was tested with clusters of this version"
	for name, tc := range map[string]struct{ major, minor, want string }{
		"tested":               {"1", fmt.Sprint(MaxMinor), tested},
		"the oldest, provider": {"1", fmt.Sprintf("%d+", MinMinor), tested}, // Some providers' minors have a plus.
		"older":                {"1", fmt.Sprint(MinMinor - 1), "must not be newer than the API server"},
		"newer":                {"1", fmt.Sprint(MaxMinor + 1), "run a newer ccm; this is ccm v"},
		"another major":        {"2", fmt.Sprint(MaxMinor), "does not know"},
		"none":                 {want: "does not know"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out bytes.Buffer
				klog.SetLogger(textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&out))))
				defer klog.ClearLogger()
				server := &fakeVersions{info: apiversion.Info{Major: tc.major, Minor: tc.minor, GitVersion: "v1.2.3-its"}}
				LogSkew(t.Context(), server)
				assert.Equal(t, 3, server.asked)
				for _, want := range []string{tc.want, "v1.2.3-its", Get().Version} {
					assert.Contains(t, out.String(), want)
				}
			})
		})
	}
}
