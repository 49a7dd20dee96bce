package server_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

// counts drops what cannot be known beforehand.
func counts(sums []api.AuditSum) []api.AuditSum {
	for i := range sums {
		sums[i].BytesIn, sums[i].BytesOut, sums[i].DurationMilliseconds = 0, 0, 0
	}
	return sums
}

func TestCallsAreCounted(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	assert.Empty(t, must.Do(r.SumAudit(ctx, client.AuditFilter{}))(t))

	requireOK(t)(r.ListZones(ctx))
	requireOK(t)(r.ccm.ListZones(ctx))
	requireCode(t, api.NotFound)(r.ccm.GetInstance(ctx, "i-none"))
	resp, _ := r.asCCM(t, "POST", "/v1/instances", `{"nom":"x"}`)
	require.Equal(t, 400, resp.StatusCode)
	requireOK(t)(r.other.ListZones(ctx))
	r.openEvents(t, "")

	f := r.breakCCM(t, api.FaultCreate{
		Times: 1, Match: api.FaultMatch{Operations: []string{"listRoutes"}}, Effect: api.FaultEffect{EmptyList: true},
	})
	for range 2 {
		requireOK(t)(r.ccm.ListRoutes(ctx, client.RouteFilter{}))
	}
	require.NoError(t, r.DeleteFault(ctx, f.ID))
	r.breakCCM(t, api.FaultCreate{Effect: api.FaultEffect{Drop: true}})
	_, err := r.ccm.CreateRoute(ctx, api.RouteCreate{})
	require.Error(t, err)
	resp, _ = r.call(t, "GET", "/v1/nonsense", "")
	require.Equal(t, 404, resp.StatusCode)
	resp, _ = r.call(t, "GET", "/v1/zones", "", "Authorization", "Bearer nonsense")
	require.Equal(t, 401, resp.StatusCode)

	ccm := []api.AuditSum{
		{Token: "ccm", Operation: "createInstance", Calls: 1, Errors: 1},
		{Token: "ccm", Operation: "createRoute", Calls: 1, Errors: 1, Faults: 1},
		{Token: "ccm", Operation: "getInstance", Calls: 1, Errors: 1},
		{Token: "ccm", Operation: "listRoutes", Calls: 2, Faults: 1},
		{Token: "ccm", Operation: "listZones", Calls: 1},
	}
	operator := []api.AuditSum{
		{Token: "operator", Operation: "listZones", Calls: 1},
		{Token: "operator", Operation: "streamEvents", Calls: 1},
	}
	for token, want := range map[string][]api.AuditSum{
		"ccm": ccm, "operator": operator, "": append(ccm, operator...), "stranger": {},
	} {
		got := must.Do(r.SumAudit(ctx, client.AuditFilter{Token: token}, api.AuditByToken, api.AuditByOperation))(t)
		assert.Equal(t, want, counts(got), token)
	}
	theirs := must.Do(r.other.SumAudit(ctx, client.AuditFilter{}, api.AuditByToken))(t)
	assert.Equal(t, []api.AuditSum{{Token: "stranger", Calls: 1}}, counts(theirs))
	agents := must.Do(r.SumAudit(ctx, client.AuditFilter{Token: "ccm"}, api.AuditByUserAgent))(t)
	assert.Equal(t, []api.AuditSum{
		{UserAgent: "Go-http-client/1.1", Calls: 1, Errors: 1}, {UserAgent: "test", Calls: 5, Errors: 2, Faults: 2},
	}, counts(agents))
	begins := must.Do(r.SumAudit(ctx, client.AuditFilter{UserAgent: "te", Operation: "listRoutes"}))(t)
	assert.Equal(
		t, []api.AuditSum{{Token: "ccm", UserAgent: "test", Operation: "listRoutes", Calls: 2, Faults: 1}},
		counts(begins),
	)
}

func TestTheAuditTellsOfEachCall(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	before := time.Now().Add(-time.Second)
	body := `{"name": "node-1"}`
	// Awaited, so that it is the same when it is read twice.
	made, _ := r.call(t, "POST", "/v1/instances?wait=60", body, "User-Agent", "tool/1")
	require.Equal(t, 201, made.StatusCode)
	id := made.Header.Get("Location")[len("/v1/instances/"):]
	got, _ := r.call(t, "GET", "/v1/instances/"+id, "", "User-Agent", strings.Repeat("é", 200))
	unchanged, _ := r.call(t, "GET", "/v1/instances/"+id, "", "If-None-Match", got.Header.Get("ETag"))
	require.Equal(t, 304, unchanged.StatusCode)
	absent, p := r.call(t, "GET", "/v1/instances/i-none", "")
	f := r.breakCCM(t, api.FaultCreate{Effect: api.FaultEffect{Status: 503}})
	faulty, _ := r.asCCM(t, "GET", "/v1/zones", "")

	all := must.Do(r.ListAudit(ctx, client.AuditFilter{Since: before}, 0))(t)
	for i := range all {
		assert.WithinDuration(t, time.Now(), all[i].Time, patience)
		assert.Positive(t, all[i].DurationMilliseconds)
		all[i].Time, all[i].DurationMilliseconds = time.Time{}, 0
	}
	entry := func(a bufferedAnswer, token, agent, operation string, in int) api.AuditEntry {
		return api.AuditEntry{
			RequestID: a.Header.Get("X-Request-Id"), Token: token, UserAgent: agent, Operation: operation,
			Status:  a.StatusCode,
			BytesIn: int64(in), BytesOut: int64(len(a.Body)),
		}
	}
	want := []api.AuditEntry{
		entry(faulty, "ccm", "Go-http-client/1.1", "listZones", 0),
		entry(absent, "operator", "Go-http-client/1.1", "getInstance", 0),
		entry(unchanged, "operator", "Go-http-client/1.1", "getInstance", 0),
		entry(got, "operator", strings.Repeat("é", 128), "getInstance", 0),
		entry(made, "operator", "tool/1", "createInstance", len(body)),
	}
	want[0].Code, want[0].Fault = "unavailable", f.ID
	want[1].Code, want[1].Resource = string(p.Code), "i-none"
	want[2].Resource, want[3].Resource, want[4].Resource = id, id, id
	assert.Equal(t, want, all)

	for name, tc := range map[string]struct {
		f    client.AuditFilter
		want int
	}{
		"token":     {client.AuditFilter{Token: "ccm"}, 1},
		"agent":     {client.AuditFilter{UserAgent: "tool/"}, 1},
		"operation": {client.AuditFilter{Operation: "getInstance"}, 3},
		"resource":  {client.AuditFilter{Resource: id}, 3},
		"2xx":       {client.AuditFilter{Status: api.AuditStatus2Xx}, 2},
		"3xx":       {client.AuditFilter{Status: api.AuditStatus3Xx}, 1},
		"4xx":       {client.AuditFilter{Status: api.AuditStatus4Xx}, 1},
		"5xx":       {client.AuditFilter{Status: api.AuditStatus5Xx}, 1},
		"none":      {client.AuditFilter{Status: api.AuditStatusNone}, 0},
		"since":     {client.AuditFilter{Since: time.Now().Add(time.Hour)}, 0},
	} {
		assert.Len(t, must.Do(r.ListAudit(ctx, tc.f, 0))(t), tc.want, name)
	}
	two := must.Do(r.ListAudit(ctx, client.AuditFilter{}, 2))(t)
	assert.Len(t, two, 2)
	assert.Empty(t, must.Do(r.other.ListAudit(ctx, client.AuditFilter{}, 0))(t))
}

func TestTheAuditPages(t *testing.T) {
	r := newRig(t)
	for range 7 {
		r.call(t, "GET", "/v1/zones", "")
	}
	var seen []string
	for query := "limit=3"; query != ""; {
		resp, _ := r.call(t, "GET", "/v1/audit?"+query, "")
		var list api.AuditList
		require.NoError(t, json.Unmarshal([]byte(resp.Body), &list), resp.Body)
		for _, e := range list.Items {
			seen = append(seen, e.RequestID)
		}
		r.call(t, "GET", "/v1/zones", "") // What comes meanwhile moves nothing.
		query = ""
		if list.NextPageToken != nil {
			query = "limit=3&pageToken=" + *list.NextPageToken
		}
	}
	assert.Len(t, seen, 7)
	all := must.Do(r.ListAudit(t.Context(), client.AuditFilter{}, 0))(t)
	for i, e := range all[3:] {
		assert.Equal(t, seen[i], e.RequestID)
	}
}

// The bytes of a stream are added when it ends.
func TestStreamsAreAudited(t *testing.T) {
	r, ctx := newRig(t).withHop(t), t.Context()
	stream := r.openEvents(t, "")
	streams := client.AuditFilter{Operation: "streamEvents"}
	begun := must.Do(r.ListAudit(ctx, streams, 0))(t)
	require.Len(t, begun, 1)
	assert.Zero(t, begun[0].BytesOut)
	r.routes(t, 1, 3)
	enough := errors.New("enough")
	require.ErrorIs(t, r.Watch(ctx, client.FromOldest, true, func(e api.Event) error {
		if e.Resource == api.ResourceRoute {
			return enough
		}
		return nil
	}), enough)
	buf := make([]byte, 1024)
	requireOK(t)(io.ReadFull(stream, buf))
	require.NoError(t, stream.Close())
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		ended := must.Do(r.ListAudit(ctx, streams, 0))(c)
		sums := must.Do(r.SumAudit(ctx, streams))(c)
		var bytes, of int64
		for _, e := range ended {
			assert.Greater(c, e.BytesOut, int64(1023))
			bytes += e.BytesOut
		}
		for _, s := range sums {
			assert.EqualValues(c, 1, s.Calls)
			of += s.BytesOut
		}
		assert.Equal(c, bytes, of)
	}, patience, 5*time.Millisecond)
}

// However many call at once: who has an answer finds the call counted.
func TestNoCallIsLost(t *testing.T) {
	r := newRig(t)
	const callers, each = 16, 60
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			// All names are of one length: the filter is for what user agents begin with.
			agent := fmt.Sprintf("caller-%02d", i)
			for n := range each {
				r.call(t, "GET", "/v1/zones", "", "User-Agent", agent)
				if n%20 == 19 {
					sums, err := r.SumAudit(
						t.Context(), client.AuditFilter{UserAgent: agent, Operation: "listZones"}, api.AuditByUserAgent,
					)
					if assert.NoError(t, err) && assert.Len(t, sums, 1) {
						assert.EqualValues(t, n+1, sums[0].Calls)
					}
				}
			}
		})
	}
	wg.Wait()
	sums := must.Do(r.SumAudit(t.Context(), client.AuditFilter{Token: "operator"}, api.AuditByOperation))(t)
	require.Len(t, sums, 1)
	assert.EqualValues(t, callers*each, sums[0].Calls)
	assert.Len(t, must.Do(r.ListAudit(t.Context(), client.AuditFilter{}, 0))(t), callers*each)
}

// The sums are kept for ever, so that their number is bounded.
func TestUserAgentsAreBounded(t *testing.T) {
	r := newRig(t)
	for i := range 203 {
		r.call(t, "GET", "/v1/zones", "", "User-Agent", fmt.Sprint("agent-", i))
	}
	sums := must.Do(r.SumAudit(t.Context(), client.AuditFilter{}, api.AuditByUserAgent))(t)
	require.Len(t, sums, 201)
	assert.Equal(t, "(others)", sums[0].UserAgent)
	assert.EqualValues(t, 3, sums[0].Calls)
}

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

	all := must.Do(r.ListAudit(ctx, client.AuditFilter{}, 0))(t)
	got := map[string]string{}
	for _, e := range all {
		require.NotNil(t, e.Resource, e.Operation)
		got[e.Operation] = e.Resource
	}
	assert.Equal(t, map[string]string{
		"createToken": "ci", "getToken": "ci", "rotateToken": "ci", "deleteToken": "ci", "listTokens": r.project.ID,
		"createSnapshot": "then", "getSnapshot": "then", "deleteSnapshot": "then",
	}, got)
}
