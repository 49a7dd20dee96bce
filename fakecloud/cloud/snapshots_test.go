package cloud

import (
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	_ "github.com/mattn/go-sqlite3" // The driver.
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
	"github.com/ccmlab/ccmlab/fakecloud/store"
)

// When a snapshot was saved, it tells by the virtual clock, wherever its file has
// been since.
func TestSnapshotsAreDatedByTheCloudsClock(t *testing.T) {
	ctx, dir := t.Context(), t.TempDir()
	c, _ := newVirtual(t, ctx, openStore(t, filepath.Join(t.TempDir(), "cloud.db")), newFakePlane(), Profiles[1])
	c.snapshots.dir = dir
	real, _ := newCloud(t, func(cfg *Config) { cfg.SnapshotDir = dir })
	written := time.Date(2020, 2, 3, 4, 5, 6, 0, time.UTC)
	dated := func(name string, want time.Time) {
		t.Helper()
		require.NoError(t, os.Chtimes(filepath.Join(dir, name+".db"), time.Time{}, written))
		s := must.Do(c.GetSnapshot(ctx, name))(t)
		assert.Equal(t, want, s.CreatedAt, name)
	}
	for i, name := range []string{"early", "late"} {
		requireOK(t)(c.Advance(ctx, by(10*time.Minute)))
		s := must.Do(c.SaveSnapshot(ctx, name))(t)
		now, _ := c.Now()
		assert.Equal(t, epoch.Add(time.Duration(i+1)*10*time.Minute), now)
		assert.Equal(t, now, s.CreatedAt)
	}
	dated("early", epoch.Add(10*time.Minute))
	dated("late", epoch.Add(20*time.Minute))

	// Under the real clock the file's time is the cloud's.
	advance(t, real, time.Hour)
	s := must.Do(real.SaveSnapshot(ctx, "real"))(t)
	assert.WithinDuration(t, time.Now(), s.CreatedAt, time.Minute)
	dated("real", written)

	// What does not tell is still listed: of a release without virtual clocks, and
	// damaged.
	saveOfRelease(t, dir, "00002")
	dated("00002", written)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "bad.db"), []byte("nonsense, for certain"), 0o600))
	dated("bad", written)
	all := must.Do(c.ListSnapshots(ctx))(t)
	assert.Len(t, all, 5)
	assert.Equal(t, epoch.Add(10*time.Minute), all[2].CreatedAt, all[2].Name)
	assert.Len(t, must.Do(filepath.Glob(filepath.Join(dir, "*")))(t), 5, "they are only read")
}

// saveOfRelease makes a snapshot of the schema of that number, and names it so.
func saveOfRelease(t *testing.T, dir, number string) {
	t.Helper()
	statements := must.Do(os.ReadFile(filepath.Join("../store/testdata", number+".sql")))(t)
	file := must.Do(sql.Open("sqlite3", "file:"+filepath.Join(dir, number+".db")))(t)
	_, err := file.Exec(string(statements))
	require.NoError(t, errors.Join(err, file.Close()))
}

// What a process that was killed in the middle of a backup left is gone.
func TestPartialSnapshotsAreRemoved(t *testing.T) {
	dir := t.TempDir()
	left := filepath.Join(dir, "half.db"+store.PartialSuffix)
	require.NoError(t, os.WriteFile(left, []byte("half"), 0o600))
	newCloud(t, func(cfg *Config) { cfg.SnapshotDir = dir })
	require.NoFileExists(t, left)
}
