package server_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

// deadlineRecorder keeps the deadlines that a call is given.
type deadlineRecorder struct {
	*httptest.ResponseRecorder
	read, write []time.Time
}

func (d *deadlineRecorder) SetReadDeadline(t time.Time) error { d.read = append(d.read, t); return nil }
func (d *deadlineRecorder) SetWriteDeadline(t time.Time) error {
	d.write = append(d.write, t)
	return nil
}

func TestSnapshotsHaveTime(t *testing.T) {
	r := newRig(t)
	ask := func(method, path, body string) *deadlineRecorder {
		d := &deadlineRecorder{ResponseRecorder: httptest.NewRecorder()}
		req := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
		req.Header.Set("Authorization", "Bearer "+secret)
		req.Header.Set("Content-Type", "application/json")
		r.srv.ServeHTTP(d, req)
		return d
	}
	d := ask("POST", "/v1/snapshots", `{"name":"a"}`)
	require.Less(t, d.Code, 300, d.Body)
	require.NotEmpty(t, d.read)
	assert.Zero(t, d.read[len(d.read)-1], "the body's deadline would cancel it")
	require.NotEmpty(t, d.write)
	assert.Greater(t, time.Until(d.write[len(d.write)-1]), 30*time.Minute)

	big := filepath.Join(r.snapshots, "big.db")
	require.NoError(t, os.WriteFile(big, make([]byte, 1<<20), 0o600))
	d = ask("GET", "/v1/snapshots/big/content", "")
	require.Equal(t, http.StatusOK, d.Code)
	n := must.Do(io.Copy(io.Discard, d.Body))(t)
	assert.EqualValues(t, 1<<20, n)
	assert.Greater(t, len(d.write), 8, "each write has its own deadline")
	for i := 1; i < len(d.write); i++ {
		assert.False(t, d.write[i].Before(d.write[i-1]))
	}
}

func TestOnlySnapshotsThatAreMadeHaveALocation(t *testing.T) {
	r := newRig(t)
	made, _ := r.call(t, "POST", "/v1/snapshots", `{"name":"a"}`)
	assert.Equal(t, "/v1/snapshots/a", made.Header.Get("Location"))
	again, _ := r.call(t, "POST", "/v1/snapshots", `{"name":"a"}`)
	assert.Equal(t, 409, again.StatusCode)
	assert.Empty(t, again.Header.Get("Location"))
}
