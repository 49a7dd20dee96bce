package cloud

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
	"github.com/ccmlab/ccmlab/fakecloud/store"
)

func TestRestoredSnapshotsLeaveTokensAsTheyAre(t *testing.T) {
	dir := t.TempDir()
	data, snapshots := filepath.Join(dir, "cloud.db"), filepath.Join(dir, "snapshots")
	s := openStore(t, data)
	c, p := newCloud(t, func(cfg *Config) { cfg.Store, cfg.SnapshotDir = s, snapshots })
	ctx := t.Context()
	create := func(p Project, name string) string {
		secret := must.Second(c.CreateToken(ctx, p.ID, api.TokenCreate{Name: name, Role: Admin}))(t)
		return secret
	}
	gone := must.Do(c.EnsureProject(ctx, "gone", nil))(t)
	kept, deleted := create(p, "kept"), create(p, "deleted")
	rotated, ofGone := create(p, "rotated"), create(gone, "of-gone")
	addKey := func(p Project, token string, number int64) TokenKey {
		return must.Do(c.AddTokenKey(ctx, p.ID, token, publicKey(t, 2048, number)))(t)
	}
	keptKey, deletedKey, keyOfDeleted := addKey(p, "kept", 1), addKey(p, "kept", 2), addKey(p, "deleted", 3)
	requireOK(t)(c.SaveSnapshot(ctx, "then"))
	require.NoError(t, c.DeleteTokenKey(ctx, p.ID, "kept", deletedKey.Fingerprint))
	require.NoError(t, c.DeleteToken(ctx, p.ID, "deleted"))
	now := must.Second(c.RotateToken(ctx, p.ID, "rotated", 0))(t)
	require.NoError(t, c.DeleteProject(ctx, p, gone.ID))
	later := must.Do(c.EnsureProject(ctx, "later", nil))(t)
	since, ofLater := create(p, "since"), create(later, "of-later")
	keySince, keyOfLater := addKey(p, "since", 4), addKey(later, "of-later", 5)
	granted := must.Do(c.GrantAccess(ctx, kept))(t)
	require.NoError(t, s.Close())

	for to, same := range map[string]bool{data: true, filepath.Join(dir, "elsewhere.db"): false} {
		require.NoError(t, store.Restore(ctx, to, filepath.Join(snapshots, "then.db")))
		c, _ := newCloud(t, func(cfg *Config) { cfg.Store = openStore(t, to) })
		for secret, want := range map[string]bool{
			kept: true, deleted: !same, rotated: !same, ofGone: !same, now: same, since: same, granted.Secret: same,
			ofLater: false, // Its project is not in the snapshot.
		} {
			who, err := c.Authenticate(ctx, secret)
			assert.Equal(t, want, err == nil, "%s %v", who.Token, err)
		}
		for key, want := range map[[2]string]bool{
			{"kept", keptKey.Fingerprint}: true, {"kept", deletedKey.Fingerprint}: !same,
			{"deleted", keyOfDeleted.Fingerprint}: !same, {"since", keySince.Fingerprint}: same,
			{"of-later", keyOfLater.Fingerprint}: false,
		} {
			_, _, err := c.AuthenticateKey(ctx, p.Name, key[0], key[1])
			assert.Equal(t, want, err == nil, "key of %s: %v", key[0], err)
		}
		assert.Equal(t, gone.ID, must.Do(c.EnsureProject(ctx, "gone", nil))(t).ID)
	}
}
