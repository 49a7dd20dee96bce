package cloud

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

// A limit that is set is an event, so that who was refused for it can try again; one that stays is none.
func TestSettingAQuotaIsAnEvent(t *testing.T) {
	c, p := newCloud(t, nil)
	last := must.Do(c.LastEvent(t.Context()))(t)
	for range 2 {
		_, err := c.SetQuotas(t.Context(), p.ID, map[Quota]int64{QuotaRoutes: 7, QuotaInstances: DefaultQuotas[QuotaInstances]})
		require.NoError(t, err)
	}
	_, err := c.SetQuotas(t.Context(), p.ID, map[Quota]int64{QuotaRoutes: -1})
	require.Error(t, err)
	events := must.First(c.Events(t.Context(), p, last))(t)
	require.Len(t, events, 1)
	e := events[0]
	assert.Equal(t, []string{"updated", "quota", "routes", "routes", "12000", "7"},
		[]string{string(e.Type), string(e.Resource), e.ID, e.Name, e.From, e.To})
}

// Who runs a cloud says how many instances there may be, and who allows more.
func TestInstanceQuotaAndAdvice(t *testing.T) {
	c, p := newCloud(t, func(cfg *Config) { cfg.InstanceQuota, cfg.QuotaAdvice = 1, "ask the trainer" })
	_, _, err := c.CreateInstance(t.Context(), p, api.InstanceCreate{Name: "node-1"})
	require.NoError(t, err)
	_, _, err = c.CreateInstance(t.Context(), p, api.InstanceCreate{Name: "node-2"})
	require.ErrorContains(t, err, "has 1 instances, and its quota allows 1: terminate unused ones "+
		"(`fakecloud instances terminate NAME`), or ask the trainer")
	_, err = c.SetQuotas(t.Context(), p.ID, map[Quota]int64{QuotaInstances: 2})
	require.NoError(t, err)
	_, _, err = c.CreateInstance(t.Context(), p, api.InstanceCreate{Name: "node-2"})
	require.NoError(t, err)
}
