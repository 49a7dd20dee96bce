package server_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// What has a name in place of an ID is told of by that, and not by its project.
func TestTheAuditNamesWhatACallIsAbout(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	r.withToken(t, r.project.ID, "ci", api.RoleViewer)
	requireOK(t)(r.GetToken(ctx, r.project.ID, "ci"))
	requireOK(t)(r.RotateToken(ctx, r.project.ID, "ci", api.TokenRotate{}))
	requireOK(t)(r.ListTokens(ctx, r.project.ID))
	require.NoError(t, r.DeleteToken(ctx, r.project.ID, "ci"))
	requireOK(t)(r.CreateSnapshot(ctx, "then"))
	requireOK(t)(r.GetSnapshot(ctx, "then"))
	require.NoError(t, r.DeleteSnapshot(ctx, "then"))

	all := must(r.ListAudit(ctx, client.AuditFilter{}, 0))(t)
	got := map[string]string{}
	for _, e := range all {
		require.NotNil(t, e.Resource, e.Operation)
		got[e.Operation] = *e.Resource
	}
	assert.Equal(t, map[string]string{
		"createToken": "ci", "getToken": "ci", "rotateToken": "ci", "deleteToken": "ci", "listTokens": r.project.ID,
		"createSnapshot": "then", "getSnapshot": "then", "deleteSnapshot": "then",
	}, got)
}
