package server_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
	"github.com/ccmlab/ccmlab/fakecloud/server"
)

// nodes makes instances of these names.
func (r *rig) nodes(t *testing.T, names ...string) (all []*api.Instance) {
	t.Helper()
	for _, name := range names {
		tags := api.Tags{"name": name, "example.com/owner": "lab"}
		in := r.createInstance(t, api.InstanceCreate{Name: name, Tags: tags})
		all = append(all, in)
	}
	return all
}

// hits asks the cloud for a rule's.
func (r *rig) hits(t *testing.T, id string) int {
	t.Helper()
	f := must.Do(r.GetFault(t.Context(), id))(t)
	return f.Hits
}

func TestAnswersThatAreLost(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	garbage := "<html>"
	for name, effect := range map[string]api.FaultEffect{
		"status": {Status: 504}, "drop": {Drop: true}, "body": {Body: &garbage},
		"delayed": {Status: 500, DelayMilliseconds: 1},
	} {
		effect.CarryOut = true
		f := r.breakCCM(t, api.FaultCreate{Effect: effect})
		requireOK(t, "a read has nothing to carry out")(r.ccm.ListZones(ctx))
		_, err := r.ccm.CreateInstance(ctx, api.InstanceCreate{Name: name})
		require.Error(t, err)
		assert.Contains(t, r.names(t), name, "it was made nevertheless")
		assert.Equal(t, 1, r.hits(t, f.ID))
		require.NoError(t, r.DeleteFault(ctx, f.ID))
	}
	f := r.breakCCM(t, api.FaultCreate{Effect: api.FaultEffect{CarryOut: true, Hang: true}})
	answered := make(chan error, 1)
	go func() {
		_, err := r.ccm.CreateInstance(ctx, api.InstanceCreate{Name: "hung"})
		answered <- err
	}()
	r.awaitHits(t, f.ID, 1)
	require.Eventually(
		t, func() bool { return strings.Contains(strings.Join(r.names(t), " "), "hung") }, patience, 2*time.Millisecond,
	)
	require.NoError(t, r.DeleteFault(ctx, f.ID))
	require.Error(t, <-answered)
}

func TestThrottledCalls(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	f := r.breakCCM(
		t, api.FaultCreate{Effect: api.FaultEffect{Throttle: &api.FaultThrottle{PerSecond: 0.001, Burst: 3}}},
	)
	for range 3 {
		resp, _ := r.asCCM(t, "GET", "/v1/zones", "")
		require.Equal(t, 200, resp.StatusCode)
	}
	resp, p := r.asCCM(t, "GET", "/v1/zones", "")
	require.Equal(t, 429, resp.StatusCode)
	assert.Equal(t, api.RateLimited, p.Code)
	wait := must.Do(strconv.Atoi(resp.Header.Get("Retry-After")))(t)
	assert.InDelta(t, 1000, wait, 60)
	requireOK(t, "another token has no part in it")(r.ListZones(ctx))
	got := must.Do(r.GetFault(ctx, f.ID))(t)
	assert.Equal(t, []int{4, 1}, []int{got.Matched, got.Hits})
}

func TestStaleReads(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	one := r.nodes(t, "one")[0]
	f := r.createFault(t, api.FaultCreate{
		Effect: api.FaultEffect{Stale: true},
		Match:  api.FaultMatch{Operations: []string{"listInstances", "getInstance"}},
	})
	const list = "/v1/instances?name=one"
	before, _ := r.call(t, "GET", list, "")
	single, _ := r.call(t, "GET", "/v1/instances/"+one.ID, "")
	gone, _ := r.call(t, "GET", "/v1/instances/i-none", "")
	require.Equal(t, 404, gone.StatusCode)
	requireOK(t)(r.TerminateInstance(ctx, one.ID))
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		in, err := r.cloud.GetInstance(ctx, r.project, one.ID)
		assert.NoError(c, err)
		assert.Equal(c, "terminated", string(in.State))
	}, patience, time.Millisecond)

	again, _ := r.call(t, "GET", list, "")
	assert.Equal(t, before.Body, again.Body)
	assert.Equal(t, before.Header.Get("Content-Type"), again.Header.Get("Content-Type"))
	assert.NotEqual(t, before.Header.Get("X-Request-Id"), again.Header.Get("X-Request-Id"))
	sameSingle, _ := r.call(t, "GET", "/v1/instances/"+one.ID, "", "If-None-Match", single.Header.Get("ETag"))
	assert.Equal(t, single.Body, sameSingle.Body)
	assert.Equal(t, single.Header.Get("ETag"), sameSingle.Header.Get("ETag"))
	fresh, _ := r.asCCM(t, "GET", list, "")
	assert.Contains(t, fresh.Body, "terminated", "another token has not seen it before")
	other, _ := r.call(t, "GET", "/v1/instances", "")
	assert.Contains(t, other.Body, "terminated", "another URL was not asked before")
	assert.Equal(t, 7, r.hits(t, f.ID))
	require.NoError(t, r.DeleteFault(ctx, f.ID))
	now, _ := r.call(t, "GET", list, "")
	assert.Contains(t, now.Body, "terminated")
}

func TestPartialLists(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	r.nodes(t, "one", "two", "three")
	f := r.breakCCM(t, api.FaultCreate{Effect: api.FaultEffect{PartialList: 2}})
	items := must.Do(r.ccm.ListInstances(ctx, client.InstanceFilter{}))(t)
	require.Len(t, items, 2)
	assert.Equal(t, "one", items[0].Name)
	page, _ := r.asCCM(t, "GET", "/v1/instances?limit=1", "")
	assert.NotContains(t, page.Body, "nextPageToken")
	requireOK(t)(r.ccm.GetInstance(ctx, items[0].ID))
	assert.Len(t, r.names(t), 3)
	assert.Equal(t, 2, r.hits(t, f.ID))
}

func TestFieldsThatAreMissing(t *testing.T) {
	r := newRig(t)
	one := r.nodes(t, "one", "two")[0]
	r.breakCCM(t, api.FaultCreate{
		Effect: api.FaultEffect{OmitFields: []string{"addresses.ip", "zone", "tags.example.com/owner"}},
	})
	check := func(body string, in map[string]any) {
		t.Helper()
		assert.NotContains(t, in, "zone", body)
		assert.Equal(t, []any{map[string]any{"type": "internal"}}, in["addresses"])
		assert.Equal(t, map[string]any{"name": in["name"], "owner": "lab"}, in["tags"])
		assert.Contains(t, in, "createdAt")
	}
	resp, _ := r.asCCM(t, "GET", "/v1/instances/"+one.ID, "")
	var single map[string]any
	require.NoError(t, json.Unmarshal([]byte(resp.Body), &single))
	check(resp.Body, single)
	assert.NotEmpty(t, resp.Header.Get("ETag"))

	resp, _ = r.asCCM(t, "GET", "/v1/instances", "")
	var list struct{ Items []map[string]any }
	require.NoError(t, json.Unmarshal([]byte(resp.Body), &list))
	require.Len(t, list.Items, 2)
	check(resp.Body, list.Items[1])

	resp, p := r.asCCM(t, "GET", "/v1/instances/i-none", "")
	assert.Equal(t, http.StatusNotFound, resp.StatusCode, "a problem stays as it is")
	assert.Equal(t, api.NotFound, p.Code)
	assert.Equal(t, r.project.ID, valueOrZero(p.Project, ""))

	_, err := r.CreateFault(
		t.Context(), api.FaultCreate{Effect: api.FaultEffect{OmitFields: []string{"addresses.port"}}},
	)
	var refused *client.Error
	require.ErrorAs(t, err, &refused)
	require.NotNil(t, refused.Problem.Fields)
	assert.Equal(t, "effect.omitFields.0", (*refused.Problem.Fields)[0].Field)
}

// A field is left out of as many events as the rule says, each time it would be sent, on a stream
// that was open before.
func TestFieldsThatEventsLack(t *testing.T) {
	r := newRig(t)
	one := r.nodes(t, "one")[0]
	req := must.Do(http.NewRequestWithContext(t.Context(), http.MethodGet, r.url+"/v1/events?after=0", nil))(t)
	req.Header.Set("Authorization", "Bearer "+ccmSecret)
	resp := must.Do(http.DefaultClient.Do(req))(t)
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewScanner(resp.Body)
	next := func() (event map[string]map[string]any) {
		for lines.Scan() {
			if data, is := strings.CutPrefix(lines.Text(), "data: "); is {
				_ = json.Unmarshal([]byte(data), &event) // Not all fields are objects.
				return event
			}
		}
		t.Fatal("the stream ended")
		return nil
	}
	for next()["instance"]["state"] != string(api.InstanceRunning) { // Its own changes are over then.
	}
	f := r.breakCCM(t, api.FaultCreate{
		Match: api.FaultMatch{Operations: []string{"streamEvents"}}, Times: 1,
		Effect: api.FaultEffect{OmitFields: []string{"route.instanceId", "instance.addresses"}},
	})
	for _, lacks := range []bool{true, false} {
		tags := api.Tags{"lacks": fmt.Sprint(lacks)}
		must.Do(r.UpdateInstance(t.Context(), one.ID, api.ResourceUpdate{Tags: &tags}))(t)
		event := next()
		assert.Equal(t, one.ID, event["instance"]["id"])
		assert.Equal(t, lacks, event["instance"]["addresses"] == nil)
	}
	assert.Equal(t, 1, r.hits(t, f.ID))
}

func TestFaultsFindResourcesByTag(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	nodes := r.nodes(t, "one", "two")
	f := r.breakCCM(
		t, api.FaultCreate{Match: api.FaultMatch{Tag: "name=two"}, Effect: api.FaultEffect{Status: 503}, Times: 10},
	)
	requireOK(t)(r.ccm.GetInstance(ctx, nodes[0].ID))
	requireCode(t, api.Unavailable)(r.ccm.GetInstance(ctx, nodes[1].ID))
	requireOK(t)(r.ccm.ListInstances(ctx, client.InstanceFilter{}))
	assert.Equal(t, 3, r.hits(t, f.ID), "the client's tries")
}

func TestFaultsForAnotherProject(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	theirs := must.Do(r.other.Project(ctx))(t)
	f := must.Do(r.CreateFault(
		ctx, api.FaultCreate{Match: api.FaultMatch{Project: theirs.ID}, Effect: api.FaultEffect{Status: 500}},
	))(t)
	requireOK(t)(r.ListZones(ctx))
	requireCode(t, api.Internal)(r.other.ListZones(ctx))
	listed := must.Do(r.other.ListFaults(ctx))(t)
	assert.Empty(t, listed, "it is the maker's")
	assert.Equal(t, 3, r.hits(t, f.ID))
	require.NoError(t, r.DeleteFaults(ctx))
	requireOK(t)(r.other.ListZones(ctx))
}

// A server that comes after goes on with the rules, and knows their counts.
func TestFaultsOutliveTheirServer(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	first := r.newAPI(t, server.Config{})
	h := newClient(t, serve(t, first), secret)
	f := must.Do(h.CreateFault(ctx, api.FaultCreate{Effect: api.FaultEffect{Status: 409}, Times: 3}))(t)
	requireCode(t, api.WrongState)(h.ListZones(ctx))
	first.Stop()

	h = newClient(t, serve(t, r.newAPI(t, server.Config{})), secret)
	got := must.Do(h.GetFault(ctx, f.ID))(t)
	f.Matched, f.Hits = 1, 1
	assert.Equal(t, f, got)
	for range 2 {
		_, err := h.ListZones(ctx)
		require.Error(t, err)
	}
	requireOK(t)(h.ListZones(ctx))
}
