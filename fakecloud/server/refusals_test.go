package server_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

// refused wants the code, the field if one is named, and a detail that says what
// to do.
func (r *rig) refused(t *testing.T, method, path, body string, code api.ProblemCode, field, detail string) {
	t.Helper()
	answer, p := r.call(t, method, path, body)
	assert.Equal(t, code, p.Code, answer.Body)
	assert.Contains(t, p.Detail, detail)
	if field != "" {
		assert.Contains(t, fields(p), field, p.Detail)
	}
}

func TestBalancersThatAreRefused(t *testing.T) {
	r := virtualRig(t) // Where nothing happens by itself.
	made := r.createBalancer(t, api.LoadBalancerCreate{Name: "a", Listeners: oneListener})
	r.createBalancer(t, api.LoadBalancerCreate{Name: "b", Listeners: oneListener})
	at := "/v1/load-balancers/" + made.ID
	const one, two = `{"protocol":"tcp","port":80,"targetPort":1}`, `{"protocol":"tcp","port":80,"targetPort":2}`
	for _, call := range []struct{ method, path, name string }{{"POST", "/v1/load-balancers", "c"}, {"PATCH", at, "a"}} {
		refused := func(name, listeners, targets string, code api.ProblemCode, field, detail string) {
			t.Helper()
			body := fmt.Sprintf(`{"name":%q,"listeners":[%s],"targets":[%s]}`, name, listeners, targets)
			r.refused(t, call.method, call.path, body, code, field, detail)
		}
		refused(call.name, one+","+two, "", api.ListenerConflict, "listeners.1.port", "give each its own port")
		refused("b", one, "", api.NameTaken, "name", "choose another")
		refused(
			call.name, one, `{"instanceId":"i-none"}`, api.UnknownInstance, "targets.0.instanceId", `no instance "i-none"`,
		)
	}
	for field, value := range map[string]string{
		"privateAddress": `"10.0.0.1"`, "ipFamilies": `["ipv4","ipv6"]`, "kind": `"network"`,
	} {
		r.refused(t, "PATCH", at, fmt.Sprintf(`{%q:%s}`, field, value), api.InvalidRequest, field, "")
	}
	assert.Equal(t, made, must.Do(r.GetLoadBalancer(t.Context(), made.ID))(t), "nothing is changed")
	gone := must.Do(r.DeleteLoadBalancer(t.Context(), made.ID))(t)
	require.Equal(t, api.LoadBalancerDeleting, gone.State)
	r.refused(t, "PATCH", at, `{"name":"c"}`, api.WrongState, "", "create another")
}

func TestInstancesThatCannotBeStoppedOrStarted(t *testing.T) {
	r, ctx := virtualRig(t), t.Context()
	in := r.newInstance(t)
	r.refused(t, "POST", "/v1/instances/"+in.ID+"/stop", "", api.WrongState, "", "wait until it is running")
	requireOK(t)(r.AdvanceClock(ctx, time.Hour))
	requireOK(t)(r.StopInstance(ctx, in.ID))
	r.refused(t, "POST", "/v1/instances/"+in.ID+"/start", "", api.WrongState, "", "wait until it is stopped")
	r.refused(t, "POST", "/v1/instances/"+in.ID+"/reboot", "", api.WrongState, "", "start it instead")
	requireOK(t)(r.AdvanceClock(ctx, time.Hour))
	outage := r.createFault(t, api.FaultCreate{Effect: api.FaultEffect{ZoneOutage: in.Zone}})
	r.refused(t, "POST", "/v1/instances/"+in.ID+"/start", "", api.ZoneUnavailable, "", in.Zone)
	require.NoError(t, r.DeleteFault(ctx, outage.ID))
	started := must.Do(r.StartInstance(ctx, in.ID))(t)
	assert.Equal(t, api.InstancePending, started.State)
}

func TestEventsOfOtherProjectsAreForAdmins(t *testing.T) {
	r := newRig(t)
	for _, project := range []string{"*", "p-none"} {
		answer, p := r.asCCM(t, "GET", "/v1/events?follow=false&project="+project, "")
		assert.Equal(t, 403, answer.StatusCode)
		assert.Equal(t, api.Forbidden, p.Code)
		assert.Contains(t, p.Detail, `token "ccm"`)
		assert.Contains(t, fields(p), "project")
	}
	answer, _ := r.asCCM(t, "GET", "/v1/events?follow=false&project="+r.project.ID, "")
	assert.Equal(t, 200, answer.StatusCode, "its own by name")
}

func TestACloudWithoutAFolderTakesNoSnapshots(t *testing.T) {
	r := newRigWith(t, func(cfg *fakecloud.Config) { cfg.NoSnapshots = true })
	r.refused(t, "POST", "/v1/snapshots", `{"name":"a"}`, api.SnapshotUnusable, "", "no folder for snapshots")
	assert.Empty(t, must.Do(r.ListSnapshots(t.Context()))(t))
	requireCode(t, api.NotFound)(r.GetSnapshot(t.Context(), "a"))
}

// What does not fit is answered with what would.
func TestProblemsSayWhatWouldFit(t *testing.T) {
	r := newRig(t)
	for _, tc := range [][6]string{
		{"POST", "/v1/instances", `{"type":"huge"}`, "", "type", "must be small or medium or large"},
		{"POST", "/v1/instances", `{"name":"Not_DNS"}`, "", "name", "must be one such as node-4 ("},
		{
			"POST", "/v1/instances", `{"nom":"a"}`, "", "nom",
			"is not known: choose among address, name, networkId, records, secondaryAddresses, tags, type, zone",
		},
		{"POST", "/v1/instances", ``, "", "body", "is required"},
		{
			"POST", "/v1/instances", `{}`, "text/plain", "body",
			"must be JSON: send the header Content-Type: application/json",
		},
		{
			"POST", "/v1/load-balancers", `{"name":"a","listeners":[{"protocol":"icmp","port":1,"targetPort":1}]}`, "",
			"listeners.0.protocol", "must be tcp or udp",
		},
		{
			"GET", "/v1/instances?colour=red", "", "", "colour",
			"is not a parameter of this operation: choose among identity, limit, name, pageToken, state, tag, zone",
		},
		{"GET", "/v1/zones?colour=red", "", "", "colour", "is not a parameter of this operation"},
	} {
		var header []string
		if tc[3] != "" {
			header = []string{"Content-Type", tc[3]}
		}
		_, p := r.call(t, tc[0], tc[1], tc[2], header...)
		assert.Equal(t, api.InvalidRequest, p.Code, tc)
		assert.Contains(t, fields(p)[tc[4]], tc[5], "%v: %s", tc, p.Detail)
	}
	_, p := r.call(t, "PATCH", "/v1/routes/r-none", `{"name":"a"}`, "If-Match", "3")
	assert.Contains(t, fields(p)["If-Match"], `must be one such as "3" (`, p.Detail)
}

// What a request repeats, a refusal does not repeat as often: neither fields nor their names.
func TestRefusalsAreBounded(t *testing.T) {
	r := virtualRig(t)
	const most = 32 << 10
	var many, deep strings.Builder
	for i := range 60_000 {
		fmt.Fprintf(&many, `"k%d":1,`, i)
		deep.WriteString("name.")
	}
	for _, tc := range []struct{ method, path, body, detail string }{
		{"POST", "/v1/instances", `{` + many.String() + `"name":"a"}`, "; and "},
		{"POST", "/v1/instances", `{"` + deep.String() + `":1,"name":"a"}`, "is not known"},
		{"GET", "/v1/instances?" + strings.Repeat("a", 3000) + "&" + strings.ReplaceAll(many.String()[:30_000], ",", "&"), "", "and "},
		{"GET", "/v1/instances?zone=" + strings.Repeat("a", 30_000), "", ""},
		{"GET", "/v1/" + strings.Repeat("a", 30_000), "", "the API has no path"},
		{"GET", "/v1/instances/" + strings.Repeat("a", 30_000), "", ""},
	} {
		answer, p := r.call(t, tc.method, tc.path, tc.body)
		assert.Contains(t, p.Detail, tc.detail)
		assert.Less(t, len(answer.Body), most, "%s %.40s", tc.method, tc.path)
		if p.Fields != nil {
			assert.LessOrEqual(t, len(*p.Fields), 20)
		}
	}
	answer, _ := r.call(t, "GET", "/healthz?"+many.String()[:30_000], "")
	assert.Equal(t, "ok\n", answer.Body, "a probe looks at no query")
}
