package server_test

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
	"github.com/ccmlab/ccmlab/fakecloud/server"
)

// newFrozenRig is a rig in which time stands still: what takes time does not end.
func newFrozenRig(t *testing.T) (*rig, *clockwork.FakeClock) {
	clock := clockwork.NewFakeClockAt(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	return newRigWith(t, func(cfg *fakecloud.Config) {
		cfg.Cloud.Clock, cfg.Cloud.Profile = clock, cloud.Profiles[1]
	}), clock
}

func location(a bufferedAnswer) string { return a.Header.Get("Operation-Location") }

func TestChangesNameTheirOperation(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	var op string
	in := must.Do(r.CreateInstance(client.OperationInto(ctx, &op), api.InstanceCreate{}))(t)
	ended := must.Do(r.AwaitOperation(ctx, op))(t)
	running := r.awaitInstance(t, in.ID, api.InstanceRunning)
	assert.Equal(t, &api.Operation{
		ID: op, Serial: ended.Serial, Project: r.project.ID, Type: "createInstance",
		Resource: api.ResourceInstance, ResourceID: in.ID, State: api.OperationDone, Token: "operator",
		CreatedAt: in.CreatedAt, EndedAt: &running.UpdatedAt, // In one transaction.
	}, ended)

	path := "/v1/instances/" + in.ID
	a, _ := r.call(t, http.MethodPost, path+"/start", "")
	assert.Equal(t, 202, a.StatusCode)
	assert.Empty(t, location(a), "it runs: nothing changes")
	a, _ = r.call(t, http.MethodPost, path+"/stop?wait=60", "")
	assert.Equal(t, 202, a.StatusCode)
	assert.Contains(t, a.Body, `"state":"stopped"`)
	assert.Equal(t, `"4"`, a.Header.Get("ETag"), "that of what is shown")
	a, _ = r.call(t, http.MethodPost, path+"/start?wait=60", "")
	assert.Contains(t, a.Body, `"state":"running"`)
	a, _ = r.call(t, http.MethodPost, path+"/terminate?wait=60", "")
	assert.Contains(t, a.Body, `"state":"terminated"`)

	a, _ = r.call(t, http.MethodPost, "/v1/instances?wait=60", `{"name":"a"}`, "Idempotency-Key", "k")
	assert.Equal(t, 201, a.StatusCode)
	assert.Contains(t, a.Body, `"state":"running"`)
	again, _ := r.call(t, http.MethodPost, "/v1/instances?wait=60", `{"name":"a"}`, "Idempotency-Key", "k")
	assert.Equal(t, a.Body, again.Body)
	assert.NotEmpty(t, location(a))
	assert.Equal(t, location(a), location(again))

	var types []string
	for _, op := range must.Do(r.ListOperations(ctx, client.OperationFilter{Resource: in.ID}))(t) {
		types = append(types, op.Type)
	}
	assert.Equal(t, []string{"createInstance", "stopInstance", "startInstance", "terminateInstance"}, types)
	assert.Len(t, must.Do(r.ListOperations(ctx, client.OperationFilter{
		Types: []string{"stopInstance", "createLoadBalancer"}, States: []api.OperationState{api.OperationDone},
	}))(t), 1)
}

func TestOperationsOfBalancers(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	a, _ := r.call(
		t, http.MethodPost, "/v1/load-balancers?wait=60",
		`{"name":"web","listeners":[{"protocol":"udp","port":30999,"targetPort":1}]}`,
	)
	require.Equal(t, 201, a.StatusCode, a.Body)
	assert.Contains(t, a.Body, `"state":"active"`)
	path := a.Header.Get("Location")
	a, _ = r.call(t, http.MethodPatch, path+"?wait=60", `{"tags":{"a":"b"}}`)
	assert.Equal(t, 202, a.StatusCode)
	assert.Contains(t, a.Body, `"state":"active"`)
	assert.NotEmpty(t, location(a))
	a, _ = r.call(t, http.MethodPatch, path+"?wait=60", `{"tags":{"a":"b"}}`)
	assert.Equal(t, 202, a.StatusCode)
	assert.Empty(t, location(a), "nothing changes")

	lb := must.Do(r.GetLoadBalancer(ctx, strings.TrimPrefix(path, "/v1/load-balancers/")))(t)
	held := must.Do(net.Listen("tcp4", net.JoinHostPort(lb.Address, "0")))(t)
	defer func() { _ = held.Close() }()
	var op string
	taken := []api.Listener{{Protocol: "tcp", Port: held.Addr().(*net.TCPAddr).Port, TargetPort: 1}}
	requireOK(t)(r.UpdateLoadBalancer(
		client.OperationInto(ctx, &op), lb.ID, api.LoadBalancerUpdate{Listeners: &taken},
	))
	failed := must.Do(r.AwaitOperation(ctx, op))(t)
	assert.Equal(t, api.OperationFailed, failed.State)
	now := r.awaitBalancer(t, lb.ID, api.LoadBalancerError)
	assert.Equal(t, now.StateReason, failed.Error)
	assert.Contains(t, now.StateReason, "another server holds port")
	assert.Equal(t, api.ReasonCannotListen, now.StateReasonCode)

	a, _ = r.call(t, http.MethodDelete, path+"?wait=60", "")
	assert.Equal(t, 202, a.StatusCode)
	assert.Contains(t, a.Body, `"state":"deleting"`, "as it last was")
	requireCode(t, api.NotFound)(r.GetLoadBalancer(ctx, lb.ID))
}

func TestWaitingHasAnEnd(t *testing.T) {
	r, clock := newFrozenRig(t)
	a, _ := r.call(t, http.MethodPost, "/v1/instances?wait=1", `{}`)
	assert.Equal(t, 201, a.StatusCode)
	assert.Contains(t, a.Body, `"state":"pending"`, "the time is up")
	path := location(a)
	a, _ = r.call(t, http.MethodGet, path, "")
	assert.Contains(t, a.Body, `"state":"running"`)
	assert.NotContains(t, a.Body, `endedAt`)
	a, _ = r.call(t, http.MethodGet, path+"?wait=1", "")
	assert.Equal(t, 200, a.StatusCode)
	assert.Contains(t, a.Body, `"state":"running"`)

	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan error, 1)
	go func() {
		_, err := r.AwaitOperation(ctx, strings.TrimPrefix(path, "/v1/operations/"))
		got <- err
	}()
	cancel()
	require.ErrorIs(t, <-got, context.Canceled)

	go func() {
		op, err := r.AwaitOperation(t.Context(), strings.TrimPrefix(path, "/v1/operations/"))
		if assert.NoError(t, err) {
			assert.Equal(t, api.OperationDone, op.State)
		}
		got <- err
	}()
	clock.Advance(time.Minute)
	require.NoError(t, <-got)
}

func TestShutdownEndsWaiting(t *testing.T) {
	r, _ := newFrozenRig(t)
	address, shutdown := r.listen(t, server.Config{})
	c := newClient(t, "http://"+address, secret)
	var op string
	requireOK(t)(c.CreateInstance(client.OperationInto(t.Context(), &op), api.InstanceCreate{}))
	answered := make(chan error, 1)
	go func() {
		got, err := c.GetOperation(t.Context(), op, time.Minute)
		if assert.NoError(t, err) {
			assert.Equal(t, api.OperationRunning, got.State)
		}
		answered <- err
	}()
	require.Eventually(t, func() bool { return r.cloud.Waiting(op) > 0 }, patience, time.Millisecond)
	shutdown()
	select {
	case err := <-answered:
		require.NoError(t, err)
	case <-time.After(patience):
		t.Fatal("waiting goes on")
	}
}

func TestErrorsOfOperations(t *testing.T) {
	r := newRig(t)
	a, _ := r.call(t, http.MethodPost, "/v1/instances?wait=60", `{}`)
	path := location(a)
	for _, bad := range []string{"wait=61", "wait=-1", "wait=x"} {
		_, p := r.call(t, http.MethodGet, path+"?"+bad, "")
		assert.Equal(t, api.InvalidRequest, p.Code, bad)
		assert.Contains(t, fields(p), "wait")
		_, p = r.call(t, http.MethodPost, "/v1/instances?"+bad, `{}`)
		assert.Equal(t, api.InvalidRequest, p.Code, bad)
	}
	for _, bad := range []string{"state=ended", "limit=0", "pageToken=x", "resource="} {
		_, p := r.call(t, http.MethodGet, "/v1/operations?"+bad, "")
		assert.Equal(t, api.InvalidRequest, p.Code, bad)
	}
	_, p := r.call(t, http.MethodGet, "/v1/operations/op-none?wait=60", "")
	assert.Equal(t, api.NotFound, p.Code)
	assert.Empty(t, must.Do(r.other.ListOperations(t.Context(), client.OperationFilter{}))(t))
	_, p = r.call(t, http.MethodPost, "/v1/instances/i-none/stop?wait=60", "")
	assert.Equal(t, api.NotFound, p.Code)
}
