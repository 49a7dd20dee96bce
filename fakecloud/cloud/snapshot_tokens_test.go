package cloud

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRestoredSnapshotsLeaveTokensAsTheyAre(t *testing.T) {
	for name, withTokens := range map[string]bool{"as they are": false, "with tokens": true} {
		t.Run(name, func(t *testing.T) {
			c, p := newCloud(t, func(cfg *Config) { cfg.SnapshotDir = t.TempDir() })
			ctx := t.Context()
			create := func(p Project, name string) string {
				_, secret, err := c.CreateToken(ctx, p.ID, TokenSpec{Name: name, Role: Admin})
				require.NoError(t, err)
				return secret
			}
			gone, err := c.EnsureProject(ctx, "gone", nil)
			require.NoError(t, err)
			kept, deleted, rotated, ofGone := create(p, "kept"), create(p, "deleted"), create(p, "rotated"), create(gone, "of-gone")
			requireOK(t)(c.SaveSnapshot(ctx, "then"))
			require.NoError(t, c.DeleteToken(ctx, p.ID, "deleted"))
			_, now, err := c.RotateToken(ctx, p.ID, "rotated", 0)
			require.NoError(t, err)
			require.NoError(t, c.DeleteProject(ctx, p, gone.ID))
			later, err := c.EnsureProject(ctx, "later", nil)
			require.NoError(t, err)
			since, ofLater := create(p, "since"), create(later, "of-later")

			restore := c.RestoreSnapshot
			if withTokens {
				restore = c.RestoreSnapshotWithTokens
			}
			requireOK(t)(restore(ctx, "then"))
			for secret, want := range map[string]bool{
				kept: true, deleted: withTokens, rotated: withTokens, ofGone: withTokens, now: !withTokens, since: !withTokens,
				ofLater: false, // Its project is not in the snapshot.
			} {
				who, err := c.Authenticate(ctx, secret)
				assert.Equal(t, want, err == nil, "%s %v", who.Token, err)
			}
			back, err := c.EnsureProject(ctx, "gone", nil)
			require.NoError(t, err)
			assert.Equal(t, gone.ID, back.ID)
		})
	}
}
