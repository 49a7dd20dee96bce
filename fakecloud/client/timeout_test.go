package client_test

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/client"
)

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestSnapshotTimeout(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte("secret"), 0o600))
	var bounds []time.Duration
	c, err := client.New(client.Config{
		URL: "http://127.0.0.1:1", TokenFile: file, Timeout: time.Minute,
		Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			end, ok := r.Context().Deadline()
			assert.True(t, ok)
			bounds = append(bounds, time.Until(end))
			return nil, errors.New("seen")
		}),
	})
	require.NoError(t, err)
	_, err = c.CreateSnapshot(t.Context(), "a")
	require.ErrorContains(t, err, "seen")
	_, err = c.RestoreSnapshot(t.Context(), "a")
	require.ErrorContains(t, err, "seen")
	require.ErrorContains(t, c.DeleteSnapshot(t.Context(), "a"), "seen")
	require.Len(t, bounds, 3)
	assert.Greater(t, bounds[0], 30*time.Minute)
	assert.Greater(t, bounds[1], 30*time.Minute)
	assert.LessOrEqual(t, bounds[2], time.Minute)
}
