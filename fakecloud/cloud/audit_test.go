package cloud

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

func TestOldCallsAreDroppedButNotTheirSums(t *testing.T) {
	c, p := newCloud(t, nil)
	who := AuditCaller{Project: p.ID, Token: "t", UserAgent: "ü/1", Operation: "listZones"}
	other := must.Do(c.EnsureProject(t.Context(), "other", nil))(t)
	theirs := AuditEntry{Time: epoch, AuditCaller: AuditCaller{Project: other.ID}, Status: 200}
	requireOK(t)(c.AppendAudit(t.Context(), AuditBatch{Entries: []AuditEntry{theirs}}))
	const batch, batches = 5000, 21
	n := 0
	for range batches {
		b := AuditBatch{Sums: []AuditSum{{AuditCaller: who, Calls: batch, Duration: time.Second}}}
		for range batch {
			n++
			b.Entries = append(
				b.Entries, AuditEntry{Time: epoch, RequestID: fmt.Sprint(n), AuditCaller: who, Status: 200},
			)
		}
		first := must.Do(c.AppendAudit(t.Context(), b))(t)
		require.EqualValues(t, n-batch+2, first)
	}
	page, more, err := c.ListAudit(t.Context(), p, AuditFilter{UserAgent: "ü", Limit: 1})
	require.NoError(t, err)
	assert.True(t, more)
	assert.Equal(t, fmt.Sprint(n), page[0].RequestID, "newest first")
	oldest := int64(n - auditKept + 2)
	page, more, err = c.ListAudit(t.Context(), p, AuditFilter{Before: oldest + 1, Limit: 10})
	require.NoError(t, err)
	assert.False(t, more)
	require.Len(t, page, 1)
	assert.Equal(t, oldest, page[0].ID)
	page = must.First(c.ListAudit(t.Context(), other, AuditFilter{Limit: 1}))(t)
	assert.Len(t, page, 1, "another project's is kept")
	sums := must.Do(c.SumAudit(t.Context(), p, AuditFilter{}, func(a AuditCaller) AuditCaller {
		return AuditCaller{Token: a.Token}
	}))(t)
	assert.Equal(
		t, []AuditSum{{AuditCaller: AuditCaller{Token: "t"}, Calls: batch * batches, Duration: batches * time.Second}},
		sums,
	)

	page = must.First(c.ListAudit(t.Context(), p, AuditFilter{Before: oldest + 1, Limit: 10}))(t)
	amended := page[0]
	amended.BytesOut, amended.Duration = 7, time.Minute
	stranger := amended
	stranger.RequestID, stranger.BytesOut = "of another log", 8
	requireOK(t)(c.AppendAudit(t.Context(), AuditBatch{Amended: []AuditEntry{amended, stranger}}))
	page = must.First(c.ListAudit(t.Context(), p, AuditFilter{Before: oldest + 1, Limit: 10}))(t)
	assert.Equal(t, []AuditEntry{amended}, page)
}

// A change that failed made no transition.
func TestTransitionsAreCountedWhenTheyAreCommitted(t *testing.T) {
	c, p := newCloud(t, nil)
	in := newInstance(t, c, p, api.InstanceCreate{})
	want := map[Transition]int64{{Resource: api.ResourceInstance, To: "pending"}: 1}
	assert.Equal(t, want, c.Transitions())
	undone := errors.New("undone")
	err := c.change(t.Context(), func(ctx context.Context, tx *changeTx) error {
		require.NoError(t, appendEvent(ctx, tx, api.EventUpdated, string(api.InstancePending), describeFully(in)))
		return undone
	})
	require.ErrorIs(t, err, undone)
	assert.Equal(t, want, c.Transitions())
	counts := must.Do(c.CountResources(t.Context()))(t)
	assert.ElementsMatch(t, []ResourceCount{
		{Resource: api.ResourceInstance, State: "pending", Count: 1}, {Resource: api.ResourceNetwork, Count: 1},
	}, counts)
}
