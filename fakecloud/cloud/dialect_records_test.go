package cloud

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

// What only a dialect knows is listed by its type, and makes no events.
func TestDialectRecords(t *testing.T) {
	c, p := newCloud(t, nil)
	last := must.Do(c.LastEvent(t.Context()))(t)
	create := func(kind, name string) (DialectRecord, Outcome, error) {
		return c.DialectRecords.Create(t.Context(), p, DialectRecordCreate{
			Type: kind, ResourceUpdate: api.ResourceUpdate{Name: &name, Tags: &api.Tags{"a": "b"}},
		})
	}
	key := must.First(create("key", "one"))(t)
	must.First(create("group", "two"))(t)
	requireRefusedAt(t, NameTaken, "name")(create("key", "one"))
	listed, _, err := c.DialectRecords.List(t.Context(), p, Filter{States: []string{"key"}, Limit: NoLimit})
	require.NoError(t, err)
	assert.Equal(t, []DialectRecord{key}, listed)
	renamed := must.Do(c.DialectRecords.Update(t.Context(), p, key.ID, api.ResourceUpdate{Name: new("three")}))(t)
	assert.Equal(t, "three", renamed.Name)
	require.NoError(t, c.DialectRecords.Delete(t.Context(), p, key.ID))
	assert.Equal(t, last, must.Do(c.LastEvent(t.Context()))(t))
}

// An instance that is being terminated keeps no network.
func TestNetworkIsDeletedWhileInstancesTerminate(t *testing.T) {
	c, p := newCloud(t, nil)
	n := must.First(c.Networks.Create(t.Context(), p, api.NetworkCreate{Name: "lab", Cidr: "10.9.0.0/24"}))(t)
	in := must.First(c.CreateInstance(t.Context(), p, api.InstanceCreate{NetworkID: n.ID}))(t)
	requireRefused(t, InUse)(c.Networks.Delete(t.Context(), p, n.ID))
	must.First(c.TerminateInstance(t.Context(), p, in.ID))(t)
	require.NoError(t, c.Networks.Delete(t.Context(), p, n.ID))
}
