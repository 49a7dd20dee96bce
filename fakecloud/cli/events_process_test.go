package cli_test

import (
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

func TestEventCommands(t *testing.T) {
	p := startServe(t, t.TempDir(), "--profile", "instant")
	in := must(p.client.CreateInstance(t.Context(), api.InstanceCreate{Tags: &api.Tags{"a": "b"}}))(t)
	_, err := p.client.CreateRoute(t.Context(), api.RouteCreate{Name: "r", Destination: "10.0.0.0/8", InstanceID: in.ID})
	require.NoError(t, err)
	ok, fails := p.commandRunners(t)
	for _, tc := range []struct {
		args      string
		has, lack string
	}{
		{"--resource route", " route ", "  instance  "},
		{"--resource instance", " instance ", " route "},
		{"--id " + in.ID, " instance ", " route "},
		{"--tag a=b", " instance ", " route "},
		{"--project " + in.Project, " route ", "nothing"},
	} {
		out := ok(append([]string{"events"}, strings.Fields(tc.args)...)...)
		assert.Contains(t, out, tc.has, tc.args)
		assert.NotContains(t, out, tc.lack, tc.args)
	}
	fails(1, "resource.0", "events", "--resource", "cloud")
}

// The audit lists calls made before a restart.
func TestAuditSurvivesRestart(t *testing.T) {
	dir := t.TempDir()
	p := startServe(t, dir)
	for range 3 {
		_, err := p.client.ListZones(t.Context())
		require.NoError(t, err)
	}
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, <-p.exited)
	p = startServe(t, dir)
	_, err := p.client.ListZones(t.Context())
	require.NoError(t, err)
	sums := must(p.client.SumAudit(t.Context(), client.AuditFilter{Operation: "listZones"}, api.AuditByOperation))(t)
	require.Len(t, sums, 1)
	assert.EqualValues(t, 4, sums[0].Calls)
	entries := must(p.client.ListAudit(t.Context(), client.AuditFilter{Operation: "listZones"}, 0))(t)
	assert.Len(t, entries, 4)
}
