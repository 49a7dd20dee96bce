package server_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

func TestSnapshots(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	assert.Empty(t, must.Do(r.ListSnapshots(ctx))(t))
	requireOK(t)(r.CreateSnapshot(ctx, "b"))
	a := must.Do(r.CreateSnapshot(ctx, "a"))(t)
	all := must.Do(r.ListSnapshots(ctx))(t)
	require.Len(t, all, 2)
	assert.Equal(t, *a, all[0])
	assert.Equal(t, a, must.Do(r.GetSnapshot(ctx, "a"))(t))

	var content bytes.Buffer
	require.NoError(t, r.SnapshotContent(ctx, "a", &content))
	assert.Equal(t, a.Bytes, int64(content.Len()))
	assert.True(t, bytes.HasPrefix(content.Bytes(), []byte("SQLite format 3\x00")))

	_, err := r.CreateSnapshot(ctx, "a")
	assert.True(t, client.HasCode(err, api.NameTaken), "%v", err)
	for _, name := range []string{"../up", "A", "", "-x"} {
		_, err = r.CreateSnapshot(ctx, name)
		assert.True(t, client.HasCode(err, api.InvalidRequest), "%q: %v", name, err)
	}
	require.NoError(t, r.DeleteSnapshot(ctx, "b"))
	_, err = r.GetSnapshot(ctx, "b")
	assert.True(t, client.HasCode(err, api.NotFound), "%v", err)
	assert.True(t, client.HasCode(r.DeleteSnapshot(ctx, "b"), api.NotFound))
	assert.True(t, client.HasCode(r.SnapshotContent(ctx, "b", &content), api.NotFound))
}

func TestSnapshotsAreBounded(t *testing.T) {
	r := newRig(t)
	for i := range 100 {
		require.NoError(t, os.WriteFile(filepath.Join(r.snapshots, fmt.Sprintf("s%d.db", i)), nil, 0o600))
	}
	_, err := r.CreateSnapshot(t.Context(), "one-more")
	assert.True(t, client.HasCode(err, api.QuotaExceeded), "%v", err)
}
