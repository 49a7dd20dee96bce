package cli_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

func TestEventReadersAcrossSIGKILL(t *testing.T) {
	const readers, rounds = 12, 4
	dir := t.TempDir()
	seen := make([][]int64, readers)
	for range rounds {
		p := startServe(t, dir, "--profile", "instant")
		ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for {
					in, err := p.client.CreateInstance(ctx, api.InstanceCreate{})
					if err != nil {
						return // The cloud was killed, as intended.
					}
					if _, err := p.client.TerminateInstance(ctx, in.ID); err != nil {
						return
					}
				}
			})
		}
		for i := range readers {
			wg.Go(func() {
				var after int64
				if n := len(seen[i]); n > 0 {
					after = seen[i][n-1]
				}
				_ = p.client.Watch(ctx, after, true, func(e api.Event) error {
					seen[i] = append(seen[i], e.Seq)
					return nil
				})
			})
		}
		target := int64(20 + rand.IntN(200))
		require.Eventually(t, func() bool {
			var n int64
			err := p.client.Watch(t.Context(), client.FromOldest, false, func(api.Event) error { n++; return nil })
			return err == nil && n >= target
		}, testTimeout, 5*time.Millisecond)
		p.kill()
		wg.Wait()
		cancel()
	}
	p := startServe(t, dir, "--profile", "instant")
	var log []int64
	require.NoError(t, p.client.Watch(t.Context(), client.FromOldest, false, func(e api.Event) error {
		log = append(log, e.Seq)
		return nil
	}))
	for i := range readers {
		require.NotEmpty(t, seen[i])
		assert.Equal(t, log[:len(seen[i])], seen[i], "reader %d", i)
	}
}

func TestEventCommands(t *testing.T) {
	p := startServe(t, t.TempDir(), "--profile", "instant")
	in, err := p.client.CreateInstance(t.Context(), api.InstanceCreate{Tags: &api.Tags{"a": "b"}})
	require.NoError(t, err)
	_, err = p.client.CreateRoute(t.Context(), api.RouteCreate{Name: "r", Destination: "10.0.0.0/8", InstanceID: in.ID})
	require.NoError(t, err)
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
		out, errs, code := p.run(t, append([]string{"events"}, strings.Fields(tc.args)...)...)
		require.Zero(t, code, errs)
		assert.Contains(t, out, tc.has, tc.args)
		assert.NotContains(t, out, tc.lack, tc.args)
	}
	_, errs, code := p.run(t, "events", "--resource", "cloud")
	assert.Equal(t, 1, code)
	assert.Contains(t, errs, "resource.0")
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
	sums, err := p.client.SumAudit(t.Context(), client.AuditFilter{Operation: "listZones"}, api.AuditByOperation)
	require.NoError(t, err)
	require.Len(t, sums, 1)
	assert.EqualValues(t, 4, sums[0].Calls)
	entries, err := p.client.ListAudit(t.Context(), client.AuditFilter{Operation: "listZones"}, 0)
	require.NoError(t, err)
	assert.Len(t, entries, 4)
}

// ListAuditUntil reads whole pages of the real audit until one ends with an old call.
func TestListAuditUntil(t *testing.T) {
	p := startServe(t, t.TempDir())
	const calls = 120
	for range calls {
		_, err := p.client.ListZones(t.Context())
		require.NoError(t, err)
	}
	all, err := p.client.ListAudit(t.Context(), client.AuditFilter{Operation: "listZones"}, 0)
	require.NoError(t, err)
	require.Len(t, all, calls)
	for old, want := range map[int]int{0: 50, 49: 50, 50: calls, calls - 1: calls} {
		newest, err := p.client.ListAuditUntil(t.Context(), client.AuditFilter{Operation: "listZones"}, func(e api.AuditEntry) bool {
			return slices.IndexFunc(all, func(a api.AuditEntry) bool { return a.RequestID == e.RequestID }) >= old
		})
		require.NoError(t, err)
		assert.Equal(t, all[:want], newest, "call %d is old", old)
	}
}
