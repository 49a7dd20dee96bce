package version

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
)

func TestSkew(t *testing.T) {
	of := func(minor string) *apiversion.Info {
		return &apiversion.Info{Major: "1", Minor: minor, GitVersion: "v1." + minor + ".0"}
	}
	require.NoError(t, checkSkew(of(fmt.Sprint(MaxMinor))))
	require.NoError(t, checkSkew(of(fmt.Sprintf("%d+", MinMinor))), "some providers' minors have a plus")
	require.ErrorContains(t, checkSkew(of(fmt.Sprint(MinMinor-1))), "must not be newer than the API server")
	require.ErrorContains(t, checkSkew(of(fmt.Sprint(MaxMinor+1))), "run a newer ccm")
	require.ErrorContains(t, checkSkew(&apiversion.Info{Major: "2", Minor: "0", GitVersion: "v2.0.0"}), "does not know")
	require.ErrorContains(t, checkSkew(&apiversion.Info{}), "does not know")
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
	for name, tc := range map[string]struct {
		minor int
		want  []string
	}{
		"tested": {MaxMinor, []string{"I", "This build was tested with clusters of this version", "libraries="}},
		"older":  {MinMinor - 1, []string{"must not be newer", "with Kubernetes libraries"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out bytes.Buffer
				klog.SetLogger(textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&out))))
				defer klog.ClearLogger()
				server := &fakeVersions{info: apiversion.Info{
					Major: "1", Minor: fmt.Sprint(tc.minor), GitVersion: fmt.Sprintf("v1.%d.2", tc.minor),
				}}
				LogSkew(t.Context(), server)
				assert.Equal(t, 3, server.asked)
				for _, want := range append(tc.want, server.info.GitVersion) {
					assert.Contains(t, out.String(), want)
				}
			})
		})
	}
}
