package fakecloud_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dataplane"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
	"github.com/ccmlab/ccmlab/fakecloud/store"
)

func TestRunServesUntilItsContextEnds(t *testing.T) {
	f := must.Do(fakecloud.New(t.Context(), fakecloud.Config{
		Data: store.Memory, DataPlane: &dataplane.None{}, Cloud: cloud.Config{Profile: cloud.Profiles[0]},
	}))(t)
	l := must.Do(net.Listen("tcp4", "127.0.0.1:0"))(t)
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- f.Run(ctx, l, func() { close(ready) }) }()
	<-ready
	resp, err := http.Get("http://" + l.Addr().String() + "/readyz")
	require.NoError(t, err)
	assert.NoError(t, resp.Body.Close())
	assert.Equal(t, http.StatusOK, resp.StatusCode)
	cancel()
	require.NoError(t, <-done)
	require.NoError(t, f.Close())
}

// A failed New leaves nothing open: the data can be opened again.
func TestNewClosesWhatItOpenedWhenItFails(t *testing.T) {
	data := filepath.Join(t.TempDir(), "cloud.db")
	refused := errors.New("refused")
	for name, tc := range map[string]struct {
		change     func(*fakecloud.Config)
		configured bool // it is a ConfigError
	}{
		"configuration": {func(cfg *fakecloud.Config) { cfg.Cloud.Zones = []string{""} }, true},
		"clock": {func(cfg *fakecloud.Config) {
			cfg.StartClock = func(context.Context, *store.Store) (*cloud.VirtualTime, error) { return nil, refused }
		}, false},
		"set up": {func(cfg *fakecloud.Config) {
			cfg.SetUp = func(context.Context, *cloud.Cloud) error { return refused }
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := fakecloud.Config{
				Data: data, DataPlane: &dataplane.None{}, Cloud: cloud.Config{Profile: cloud.Profiles[0]},
			}
			tc.change(&cfg)
			_, err := fakecloud.New(t.Context(), cfg)
			var configured *fakecloud.ConfigError
			assert.Equal(t, tc.configured, errors.As(err, &configured), err)
			assert.Equal(t, !tc.configured, errors.Is(err, refused), err)
		})
	}
	f := must.Do(fakecloud.New(
		t.Context(),
		fakecloud.Config{Data: data, DataPlane: &dataplane.None{}, Cloud: cloud.Config{Profile: cloud.Profiles[0]}},
	))(t)
	require.NoError(t, f.Close())
}

func TestSnapshotsLieBesideTheData(t *testing.T) {
	data := filepath.Join(t.TempDir(), "cloud.db")
	f, err := fakecloud.New(
		t.Context(),
		fakecloud.Config{Data: data, DataPlane: &dataplane.None{}, Cloud: cloud.Config{Profile: cloud.Profiles[0]}},
	)
	require.NoError(t, err)
	must.Do(f.Cloud.SaveSnapshot(t.Context(), "a"))(t)
	require.NoError(t, f.Close())
	must.Do(os.Stat(filepath.Join(data+".snapshots", "a.db")))(t)
}
