package server_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// accepts tells whether a balancer's port takes connections. One without targets
// resets them, perhaps before the dialler looks: it took them all the same.
func accepts(lb api.LoadBalancer) error {
	conn, err := net.DialTimeout(
		"tcp", netip.AddrPortFrom(netip.MustParseAddr(lb.Address), uint16(lb.Listeners[0].Port)).String(), patience,
	)
	if errors.Is(err, syscall.ECONNRESET) {
		return nil
	}
	if err != nil {
		return err
	}
	return conn.Close()
}

func (r *rig) balancer(t *testing.T, name string) api.LoadBalancer {
	t.Helper()
	lb := r.createBalancer(t, api.LoadBalancerCreate{
		Name:      name,
		Listeners: []api.Listener{{Protocol: api.ProtocolTCP, Port: freePort(t, "127.0.0.1"), TargetPort: 30080}},
	})
	return r.awaitBalancer(t, lb.ID, api.LoadBalancerActive)
}

func TestASnapshotBringsBackWhatWas(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	kept := r.runInstance(t, api.InstanceCreate{Name: new("kept")})
	old := r.balancer(t, "old")
	s := must(r.CreateSnapshot(ctx, "then"))(t)
	assert.Positive(t, s.Bytes)

	requireOK(t)(r.DeleteLoadBalancer(ctx, old.ID))
	require.Eventually(t, func() bool { return accepts(old) != nil }, patience, time.Millisecond)
	requireOK(t)(r.TerminateInstance(ctx, kept.ID))
	later := r.balancer(t, "later")
	var last int64
	require.NoError(t, r.Watch(ctx, client.FromOldest, false, func(e api.Event) error { last = e.Seq; return nil }))
	ended := make(chan error, 1)
	under := make(chan struct{})
	go func() {
		ended <- r.Watch(ctx, last-1, true, func(e api.Event) error {
			if e.Seq > last {
				return fmt.Errorf("event %d of after", e.Seq)
			}
			close(under)
			return nil
		})
	}()
	<-under

	requireOK(t)(r.RestoreSnapshot(ctx, "then"))
	in := must(r.GetInstance(ctx, kept.ID))(t)
	assert.Equal(t, api.InstanceRunning, in.State)
	assert.Equal(t, in.Addresses, r.awaitInstance(t, kept.ID, api.InstanceRunning).Addresses)
	r.awaitBalancer(t, old.ID, api.LoadBalancerActive)
	require.NoError(t, accepts(old), "it forwards again")
	require.Error(t, accepts(later), "it was never made")
	_, err := r.GetLoadBalancer(ctx, later.ID)
	assert.True(t, client.IsNotFound(err))

	require.ErrorContains(t, <-ended, "ended the event stream")
	err = r.Watch(ctx, last, true, func(api.Event) error { return nil })
	assert.True(t, client.HasCode(err, api.EventsExpired), "%v", err)

	// What is made from now on gets along with what was.
	again := r.createInstance(t, api.InstanceCreate{})
	assert.NotEqual(t, in.Addresses, again.Addresses)
	assert.Len(t, must(r.ListLoadBalancers(ctx, client.LoadBalancerFilter{}))(t), 1)
}

func TestSnapshots(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	assert.Empty(t, must(r.ListSnapshots(ctx))(t))
	requireOK(t)(r.CreateSnapshot(ctx, "b"))
	a := must(r.CreateSnapshot(ctx, "a"))(t)
	all := must(r.ListSnapshots(ctx))(t)
	require.Len(t, all, 2)
	assert.Equal(t, *a, all[0])
	assert.Equal(t, a, must(r.GetSnapshot(ctx, "a"))(t))

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
	_, err = r.RestoreSnapshot(ctx, "b")
	assert.True(t, client.HasCode(err, api.NotFound), "%v", err)
	assert.True(t, client.HasCode(r.DeleteSnapshot(ctx, "b"), api.NotFound))
	assert.True(t, client.HasCode(r.SnapshotContent(ctx, "b", &content), api.NotFound))
}

func TestADamagedSnapshotChangesNothing(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	in := r.createInstance(t, api.InstanceCreate{})
	require.NoError(t, os.WriteFile(filepath.Join(r.snapshots, "bad.db"), []byte("nonsense, for certain"), 0o600))
	_, err := r.RestoreSnapshot(ctx, "bad")
	assert.True(t, client.HasCode(err, api.SnapshotUnusable), "%v", err)
	requireOK(t)(r.GetInstance(ctx, in.ID))
}

func TestSnapshotsAreBounded(t *testing.T) {
	r := newRig(t)
	for i := range 100 {
		require.NoError(t, os.WriteFile(filepath.Join(r.snapshots, fmt.Sprintf("s%d.db", i)), nil, 0o600))
	}
	_, err := r.CreateSnapshot(t.Context(), "one-more")
	assert.True(t, client.HasCode(err, api.QuotaExceeded), "%v", err)
}
