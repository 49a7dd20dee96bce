package server_test

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
	"github.com/ccmlab/ccmlab/fakecloud/server"
	"github.com/ccmlab/ccmlab/fakecloud/store"
)

const (
	patience   = 30 * time.Second
	streamBeat = 20 * time.Millisecond
)

// rig is a whole cloud behind real HTTP.
type rig struct {
	*client.Client                // of project "default"
	ccm            *client.Client // with another token of the same project
	other          *client.Client
	url            string
	cloud          *cloud.Cloud
	project        cloud.Project
	srv            *fakecloud.API
	hop            string        // an instance for routes to lead to, if withHop made one
	snapshots      string        // the folder
	eventTimeout   time.Duration // of servers that listen gives; 0: the default
}

const (
	secret      = "a-secret-of-the-default-project"
	ccmSecret   = "another-secret-of-the-default-project"
	otherSecret = "a-secret-of-another-project"
)

func newRig(t testing.TB, opts ...store.Option) *rig {
	t.Helper()
	return newRigWith(t, func(*fakecloud.Config) {}, opts...)
}

// newRigWith is newRig with a configuration that is changed first.
func newRigWith(t testing.TB, change func(*fakecloud.Config), opts ...store.Option) *rig {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	pid := os.Getpid()
	snapshots := t.TempDir()
	log := newFaultLog()
	balancers := netip.PrefixFrom(netip.AddrFrom4([4]byte{127, 100 + byte(pid>>8&127), byte(pid), 0}), 28)
	cfg := fakecloud.Config{
		Data: store.Memory, StoreOptions: opts,
		Cloud: cloud.Config{
			SnapshotDir: snapshots, Profile: cloud.Profiles[0],
			InstanceCIDR:     netip.MustParsePrefix("127.51.0.0/29"),
			TargetRanges:     []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32"), balancers},
			Retention:        cloud.DefaultRetention,
			LoadBalancerCIDR: balancers,
		},
		API: server.Config{Heartbeat: streamBeat, Logger: slog.New(log)},
	}
	change(&cfg)
	f := must.Do(fakecloud.New(ctx, cfg))(t)
	c, srv := f.Cloud, f.API
	p := must.Do(c.EnsureProject(ctx, "default", map[string]string{"owner": "lab"}))(t)
	q := must.Do(c.EnsureProject(ctx, "other", nil))(t)
	require.NoError(t, c.SetTokens(ctx, p, []cloud.GivenToken{
		{Name: "operator", Secret: secret, Role: cloud.Admin}, {Name: "ccm", Secret: ccmSecret, Role: cloud.Editor},
	}))
	require.NoError(
		t, c.SetTokens(ctx, q, []cloud.GivenToken{{Name: "stranger", Secret: otherSecret, Role: cloud.Admin}}),
	)
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	h := httptest.NewServer(checkingAnswers(t, srv, log))
	t.Cleanup(func() {
		srv.Stop()
		h.Close()
		cancel()
		assert.NoError(t, <-ended)
		assert.NoError(t, f.Close())
	})
	<-c.Ready()
	return &rig{
		Client: newClient(t, h.URL, secret), ccm: newClient(t, h.URL, ccmSecret),
		other: newClient(t, h.URL, otherSecret),
		url:   h.URL, cloud: c, project: p, srv: srv, snapshots: snapshots,
	}
}

// throttled has the cloud behind a server, with limits of its own, that lets a
// token make one call a second.
func (r *rig) throttled(t *testing.T) *rig {
	t.Helper()
	log := newFaultLog()
	srv := r.newAPI(t, server.Config{RateLimit: 1, RateBurst: 1, Logger: slog.New(log)})
	return &rig{url: serve(t, checkingAnswers(t, srv, log)), cloud: r.cloud, project: r.project, srv: srv}
}

// newAPI is one more server of the rig's cloud.
func (r *rig) newAPI(t *testing.T, cfg server.Config) *fakecloud.API {
	t.Helper()
	srv := must.Do(fakecloud.NewAPI(t.Context(), r.cloud, cfg))(t)
	t.Cleanup(srv.Stop)
	return srv
}

// serve serves a handler until the test ends.
func serve(t testing.TB, h http.Handler) (url string) {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

// listen has one more server of the rig's cloud listen by itself. shutdown ends it, and wants
// it to end in good order.
func (r *rig) listen(t *testing.T, cfg server.Config) (address string, shutdown func()) {
	t.Helper()
	srv := r.newAPI(t, cfg)
	if r.eventTimeout > 0 {
		srv.SetEventTimeout(r.eventTimeout)
	}
	l := must.Do(net.Listen("tcp4", "127.0.0.1:0"))(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ctx, l) }()
	shutdown = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			assert.NoError(t, err)
		case <-time.After(patience):
			t.Error("the server did not stop")
		}
	})
	t.Cleanup(shutdown)
	return l.Addr().String(), shutdown
}

func newClient(t testing.TB, url, token string) *client.Client {
	t.Helper()
	return must.Do(client.New(client.Config{URL: url, TokenFile: tokenFile(t, token), UserAgent: "test"}))(t)
}

func tokenFile(t testing.TB, token string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte(token+"\n"), 0o600))
	return file
}

// call is a request as no generated client would send it.
func (r *rig) call(t *testing.T, method, path, body string, header ...string) (bufferedAnswer, api.Problem) {
	t.Helper()
	req := must.Do(http.NewRequestWithContext(t.Context(), method, r.url+path, strings.NewReader(body)))(t)
	req.Header.Set("Authorization", "Bearer "+secret)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp := must.Do(http.DefaultClient.Do(req))(t)
	defer func() { _ = resp.Body.Close() }()
	content := must.Do(io.ReadAll(resp.Body))(t)
	var p api.Problem
	if resp.Header.Get("Content-Type") == "application/problem+json" {
		require.NoError(t, json.Unmarshal(content, &p))
		assert.Equal(t, resp.StatusCode, p.Status)
		assert.Equal(t, resp.Header.Get("X-Request-Id"), p.RequestID)
		assert.Equal(t, "urn:fakecloud:problem:"+string(p.Code), p.Type)
		assert.NotEmpty(t, p.Detail)
	}
	return bufferedAnswer{resp.StatusCode, resp.Header, string(content)}, p
}

// requireOK wants a call to succeed whose answer the test does not look at.
func requireOK(t *testing.T, about ...any) func(answer any, err error) {
	t.Helper()
	return func(_ any, err error) {
		t.Helper()
		require.NoError(t, err, about...)
	}
}

// requireCode wants a call to be refused with a code, in words that hold each of the details.
func requireCode(t *testing.T, code api.ProblemCode, details ...string) func(answer any, err error) {
	t.Helper()
	return func(_ any, err error) {
		t.Helper()
		require.True(t, client.HasCode(err, code), "%s: %v", code, err)
		for _, detail := range details {
			assert.ErrorContains(t, err, detail)
		}
	}
}

// bufferedAnswer is a response whose body has been read.
type bufferedAnswer struct {
	StatusCode int
	Header     http.Header
	Body       string
}

func fields(p api.Problem) map[string]string {
	m := map[string]string{}
	if p.Fields != nil {
		for _, f := range *p.Fields {
			m[f.Field] = f.Message
		}
	}
	return m
}

// await reads something until it is as check wants it.
func await[R any](
	t *testing.T, read func(context.Context, string) (*R, error), id string, check func(*assert.CollectT, *R),
) R {
	t.Helper()
	var got *R
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		var err error
		if got, err = read(t.Context(), id); assert.NoError(c, err) {
			check(c, got)
		}
	}, patience, 2*time.Millisecond)
	return *got
}

func (r *rig) awaitInstance(t *testing.T, id string, want api.InstanceState) api.Instance {
	t.Helper()
	return await(t, r.GetInstance, id, func(c *assert.CollectT, in *api.Instance) { assert.Equal(c, want, in.State) })
}

func (r *rig) createInstance(t *testing.T, spec api.InstanceCreate) *api.Instance {
	t.Helper()
	return must.Do(r.CreateInstance(t.Context(), spec))(t)
}

// runInstance creates an instance and waits until it runs.
func (r *rig) runInstance(t *testing.T, spec api.InstanceCreate) api.Instance {
	t.Helper()
	return r.awaitInstance(t, r.createInstance(t, spec).ID, api.InstanceRunning)
}

// stopInstance stops an instance and waits until it is stopped.
func (r *rig) stopInstance(t *testing.T, id string) {
	t.Helper()
	requireOK(t)(r.StopInstance(t.Context(), id))
	r.awaitInstance(t, id, api.InstanceStopped)
}

// terminateInstance terminates an instance and waits until it is terminated.
func (r *rig) terminateInstance(t *testing.T, id string) api.Instance {
	t.Helper()
	requireOK(t)(r.TerminateInstance(t.Context(), id))
	return r.awaitInstance(t, id, api.InstanceTerminated)
}

func (r *rig) createBalancer(t *testing.T, spec api.LoadBalancerCreate) *api.LoadBalancer {
	t.Helper()
	return must.Do(r.CreateLoadBalancer(t.Context(), spec))(t)
}

func (r *rig) awaitBalancer(t *testing.T, id string, want api.LoadBalancerState) api.LoadBalancer {
	t.Helper()
	return await(t, r.GetLoadBalancer, id, func(c *assert.CollectT, lb *api.LoadBalancer) {
		assert.Equal(c, want, lb.State, "reason: %v", lb.StateReason)
	})
}

func TestWithoutToken(t *testing.T) {
	r := newRig(t)
	for path, want := range map[string]string{
		"/healthz": "ok\n", "/readyz": "ok\n", "/openapi.yaml": string(api.Spec),
	} {
		resp := must.Do(http.Get(r.url + path))(t)
		body := must.Do(io.ReadAll(resp.Body))(t)
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, 200, resp.StatusCode)
		assert.Equal(t, want, string(body))
	}
	for _, auth := range []string{"", "Bearer", "Bearer nonsense", "Basic " + secret} {
		resp, p := r.call(t, "GET", "/v1/zones", "", "Authorization", auth)
		assert.Equal(t, 401, resp.StatusCode, auth)
		assert.Equal(t, api.Unauthenticated, p.Code)
		assert.Nil(t, p.Project)
		assert.Contains(t, resp.Header.Get("WWW-Authenticate"), "Bearer")
	}
}

func TestProject(t *testing.T) {
	r := newRig(t)
	p := must.Do(r.Project(t.Context()))(t)
	require.NotNil(t, p.Token)
	assert.Equal(t, &api.Project{
		ID: r.project.ID, Name: "default", DefaultTags: api.Tags{"owner": "lab"}, Version: 1,
		CreatedAt: r.project.CreatedAt, UpdatedAt: r.project.CreatedAt,
		Token: &api.Token{
			Name: "operator", Project: r.project.ID, Role: api.RoleAdmin, Origin: api.TokenFromFlag,
			CreatedAt: p.Token.CreatedAt,
		},
	}, p)
}

func TestRegionsZonesAndTypes(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	assert.Equal(t, []api.Region{{Name: "nebula-1"}}, must.Do(r.ListRegions(ctx))(t))
	assert.Equal(t, []api.Zone{
		{Name: "nebula-1a", Region: "nebula-1", State: api.ZoneAvailable},
		{Name: "nebula-1b", Region: "nebula-1", State: api.ZoneAvailable},
		{Name: "nebula-1c", Region: "nebula-1", State: api.ZoneAvailable},
	}, must.Do(r.ListZones(ctx))(t))
	types := must.Do(r.ListInstanceTypes(ctx))(t)
	require.Len(t, types, 3)
	assert.Equal(t, api.InstanceSize{Name: api.InstanceTypeSmall, Vcpus: 2, MemoryMiB: 4096}, types[0])
	sizes := must.Do(r.ListLoadBalancerTypes(ctx))(t)
	require.Len(t, sizes, 3)
	assert.Equal(t, api.LoadBalancerSize{
		Name: api.LoadBalancerSmall, MaxListeners: 5, MaxTargets: 25, MaxConnections: 10_000,
	}, sizes[0])
}

func TestUnknownPathsAndMethods(t *testing.T) {
	r := newRig(t)
	resp, p := r.call(t, "GET", "/v1/nonsense", "")
	assert.Equal(t, 404, resp.StatusCode)
	assert.Equal(t, api.NotFound, p.Code)
	assert.Nil(t, p.Project, "no client may take this for the absence of a resource")
	resp, p = r.call(t, "PUT", "/v1/instances", "")
	assert.Equal(t, 405, resp.StatusCode)
	assert.Equal(t, api.MethodNotAllowed, p.Code)
	assert.Equal(t, "GET, HEAD, POST", resp.Header.Get("Allow"))
	assert.Nil(t, p.Project, "it would tell whether the token is valid")
}

// variesRE matches a test's own pool of addresses, and the time.
var variesRE = regexp.MustCompile(`127\.[0-9.]+/28|20[0-9T:-]+Z`)

var update = flag.Bool("update", false, "write the golden files anew")

// What is wrong with a request is said in the words of before, unless they change on purpose.
func TestRequestsMustFitTheSpec(t *testing.T) {
	r := newRig(t)
	const file = "testdata/invalid_requests.txt"
	requests := must.Do(os.ReadFile(file))(t)
	var answers strings.Builder
	for line := range strings.Lines(string(requests)) {
		if strings.HasPrefix(line, "    ") { // the answer of before
			continue
		}
		answers.WriteString(line)
		method, rest, isRequest := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if !isRequest || method == "#" {
			continue
		}
		path, body, _ := strings.Cut(rest, " ")
		resp, p := r.call(t, method, path, body)
		assert.Equal(t, 400, resp.StatusCode, line)
		assert.Equal(t, api.InvalidRequest, p.Code, line)
		assert.Equal(t, &r.project.ID, p.Project, line)
		for _, f := range api.ValueOf(p.Fields) {
			fmt.Fprintf(&answers, "    %s: %s\n", f.Field, variesRE.ReplaceAllString(f.Message, "…"))
		}
	}
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(answers.String()), 0o644))
		requests = []byte(answers.String())
	}
	assert.Equal(t, string(requests), answers.String(), "if it gets better: go test ./fakecloud/server -run %s -update", t.Name())
	for _, kind := range []string{"application/yaml", "text/plain", ""} {
		resp, p := r.call(t, "POST", "/v1/instances", `{"name": "x"}`, "Content-Type", kind)
		assert.Equal(t, 400, resp.StatusCode, kind)
		assert.Contains(t, fields(p), "body", kind)
	}
	resp, p := r.call(t, "POST", "/v1/instances", strings.Repeat(`{"tags":`, 10_000))
	assert.Equal(t, 400, resp.StatusCode)
	assert.Contains(t, fields(p)["body"], "deeper than")
}

func TestInstances(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	in := r.createInstance(t, api.InstanceCreate{Name: "node-1", Tags: api.Tags{"role": "worker"}})
	assert.Equal(t, &api.Instance{
		ID: in.ID, Serial: in.Serial, Identities: in.Identities, Project: r.project.ID, Name: "node-1",
		Region: "nebula-1", Zone: "nebula-1a", Type: api.InstanceTypeSmall, NetworkID: in.NetworkID,
		State: api.InstancePending, Addresses: []api.Address{{Type: api.AddressInternal, IP: "127.51.0.1"}},
		Tags: api.Tags{"owner": "lab", "role": "worker"}, Version: 1, CreatedAt: in.CreatedAt, UpdatedAt: in.CreatedAt,
	}, in)
	requireCode(t, api.NameTaken)(r.CreateInstance(ctx, api.InstanceCreate{Name: "node-1"}))
	requireCode(t, api.UnknownZone)(r.CreateInstance(ctx, api.InstanceCreate{Zone: "mars"}))
	assert.Empty(t, r.terminateInstance(t, in.ID).Addresses)
	requireOK(t, "the name is free again")(r.CreateInstance(ctx, api.InstanceCreate{Name: "node-1"}))
}

func TestAnotherProjectSeesNothing(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	in := r.createInstance(t, api.InstanceCreate{})
	assert.Empty(t, must.Do(r.other.ListInstances(ctx, client.InstanceFilter{}))(t))
	requireCode(t, api.UnknownInstance)(r.other.CreateLoadBalancer(ctx, api.LoadBalancerCreate{
		Name: "thief", Listeners: oneListener, Targets: []api.Target{{InstanceID: in.ID}},
	}))
	require.NoError(t, r.other.Watch(ctx, 0, false, func(e api.Event) error { return fmt.Errorf("saw %v", e) }))
}

func TestListsFilter(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	var ids []string
	for i := range 6 {
		in := r.runInstance(t, api.InstanceCreate{Name: fmt.Sprint("n", i), Tags: api.Tags{"parity": fmt.Sprint(i % 2)}})
		assert.Equal(t, []string{"nebula-1a", "nebula-1b", "nebula-1c"}[i%3], in.Zone, "the emptiest zone, in order")
		ids = append(ids, in.ID)
	}
	requireCode(t, api.AddressPoolExhausted)(r.CreateInstance(ctx, api.InstanceCreate{}))
	r.stopInstance(t, ids[0])
	for _, tc := range []struct {
		f    client.InstanceFilter
		want []int
	}{
		{client.InstanceFilter{Name: "n3"}, []int{3}},
		{client.InstanceFilter{Zone: "nebula-1b"}, []int{1, 4}},
		{client.InstanceFilter{Tags: []string{"parity=0"}}, []int{0, 2, 4}},
		{client.InstanceFilter{Tags: []string{"parity", "owner=lab"}}, []int{0, 1, 2, 3, 4, 5}},
		{client.InstanceFilter{Tags: []string{"parity=0", "absent"}}, nil},
		{client.InstanceFilter{Tags: []string{"parity="}}, nil},
		{client.InstanceFilter{States: []api.InstanceState{"stopped", "error"}}, []int{0}},
		{client.InstanceFilter{States: []api.InstanceState{"running"}, Tags: []string{"parity=0"}}, []int{2, 4}},
	} {
		var got []int
		for _, in := range must.Do(r.ListInstances(ctx, tc.f))(t) {
			got = append(got, int(in.Name[1]-'0'))
		}
		assert.Equal(t, tc.want, got, tc.f)
	}
}

func authorized(t *testing.T, url string) *http.Request {
	t.Helper()
	return bearing(t, url, secret)
}

// openEvents opens an event stream, and leaves it open until the test ends.
func (r *rig) openEvents(t *testing.T, query string) (stream io.ReadCloser) {
	t.Helper()
	resp := must.Do(http.DefaultClient.Do(authorized(t, r.url+"/v1/events"+query)))(t)
	t.Cleanup(func() { _ = resp.Body.Close() })
	require.Equal(t, "text/event-stream", resp.Header.Get("Content-Type"))
	return resp.Body
}

func freePort(t *testing.T) int {
	t.Helper()
	l := must.Do(net.Listen("tcp4", "127.0.0.1:0"))(t)
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}

func TestEventsTellOfChanges(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	in := r.createInstance(t, api.InstanceCreate{Name: "node-1"})
	r.awaitInstance(t, in.ID, api.InstanceRunning)
	var events []api.Event
	require.NoError(t, r.Watch(ctx, 0, false, func(e api.Event) error { events = append(events, e); return nil }))
	require.Len(t, events, 2)
	first, second := events[0], events[1]
	assert.Equal(t, api.Event{
		Seq: first.Seq, Time: in.CreatedAt, Type: api.EventCreated, Resource: api.ResourceInstance, ID: in.ID,
		Name: "node-1", To: "pending", Instance: in,
	}, first)
	assert.Equal(t, "pending running", second.From+" "+second.To)
	assert.Greater(t, second.Seq, first.Seq)
	assert.Equal(t, []int64{second.Seq}, r.log(t, first.Seq))
	err := r.Watch(ctx, 1000, false, func(api.Event) error { return nil })
	require.True(t, client.HasCode(err, api.EventsExpired), err)
}

func TestExpiredEventsAreGone(t *testing.T) {
	r := newRig(t, store.KeepEvents(3))
	for range 3 {
		r.runInstance(t, api.InstanceCreate{})
	}
	kept := r.log(t, client.FromOldest)
	require.Len(t, kept, 3, "from the oldest kept")
	expired, held := fmt.Sprint(kept[0]-2), fmt.Sprint(kept[0])
	resp, p := r.call(t, "GET", "/v1/events?follow=false", "", "Last-Event-ID", expired)
	assert.Equal(t, 410, resp.StatusCode)
	assert.Equal(t, api.EventsExpired, p.Code)
	resp, _ = r.call(t, "GET", "/v1/events?follow=false&after="+expired, "")
	assert.Equal(t, 410, resp.StatusCode)
	// A browser that reconnects sends the after it began with as well.
	resp, _ = r.call(t, "GET", "/v1/events?follow=false&after="+expired, "", "Last-Event-ID", held)
	assert.Equal(t, 200, resp.StatusCode, "Last-Event-ID wins")
}

func TestOptionsOfABalancer(t *testing.T) {
	r, _ := newFrozenRig(t)
	ctx, in := t.Context(), r.newInstance(t)
	plain := r.createBalancer(t, api.LoadBalancerCreate{Name: "plain", Listeners: oneListener})
	assert.Equal(t, api.SchemePublic, plain.Scheme)
	assert.Equal(t, api.AlgorithmRoundRobin, plain.Algorithm)
	assert.Equal(t, api.LoadBalancerUnlimited, plain.Type)
	assert.Zero(t, plain.IdleTimeoutSeconds+plain.DrainSeconds)

	listeners := []api.Listener{{
		Protocol: api.ProtocolTCP, Port: 8080, TargetPort: 30080, ProxyProtocol: api.ProxyProtocolV2, ConnectionLimit: 9,
	}}
	lb := r.createBalancer(t, api.LoadBalancerCreate{
		Name: "all", Listeners: listeners, Targets: []api.Target{{InstanceID: in.ID}},
		SourceRanges: []string{"10.0.0.0/8", "192.168.1.1/32"}, ClientAffinitySeconds: 600,
		Scheme: api.SchemeInternal, Algorithm: api.AlgorithmSourceHash, IdleTimeoutSeconds: 60,
		DrainSeconds: 30, Type: api.LoadBalancerSmall, DeletionProtection: new(true),
		HealthCheck: &api.HealthCheck{
			Protocol: api.HealthCheckHTTP, Port: 10256, UnhealthyThreshold: 3, ExpectedCodes: "200-299,301",
		},
	})
	want := *lb
	want.Listeners, want.Targets = listeners, []api.Target{{InstanceID: in.ID}}
	want.SourceRanges, want.ClientAffinitySeconds = []string{"10.0.0.0/8", "192.168.1.1/32"}, 600
	want.Scheme, want.Algorithm = api.SchemeInternal, api.AlgorithmSourceHash
	want.IdleTimeoutSeconds, want.DrainSeconds = 60, 30
	want.Type, want.DeletionProtection = api.LoadBalancerSmall, true
	want.HealthCheck = &api.HealthCheck{
		Protocol: api.HealthCheckHTTP, Port: 10256, Path: "/", IntervalSeconds: 5, TimeoutSeconds: 2,
		HealthyThreshold: 2, UnhealthyThreshold: 3, ExpectedCodes: "200-299,301",
	}
	assert.Equal(t, want, *lb)
	assert.Equal(t, want, *must.Do(r.GetLoadBalancer(ctx, lb.ID))(t))
	requireCode(t, api.Protected)(r.DeleteLoadBalancer(ctx, lb.ID))

	bare := must.Do(r.UpdateLoadBalancer(ctx, lb.ID, api.LoadBalancerUpdate{
		SourceRanges: &[]string{}, ClientAffinitySeconds: new(api.Seconds), Scheme: new(api.SchemePublic),
		Algorithm: new(api.AlgorithmLeastConnections), IdleTimeoutSeconds: new(api.Seconds), DrainSeconds: new(api.Seconds),
		HealthCheck: &api.HealthCheck{Protocol: api.HealthCheckNone}, Type: new(api.LoadBalancerLarge),
		DeletionProtection: new(false),
	}))(t)
	want.SourceRanges, want.ClientAffinitySeconds = []string{}, 0
	want.Scheme, want.Algorithm = api.SchemePublic, api.AlgorithmLeastConnections
	want.IdleTimeoutSeconds, want.DrainSeconds, want.HealthCheck = 0, 0, nil
	want.Type, want.DeletionProtection = api.LoadBalancerLarge, false
	want.Version++
	assert.Equal(t, want, *bare, "what is not given is not changed")
}

func (r *rig) awaitRoute(t *testing.T, id string, want api.RouteState, reason string) {
	t.Helper()
	await(t, r.GetRoute, id, func(c *assert.CollectT, route *api.Route) {
		assert.Equal(c, want, route.State)
		assert.Equal(c, reason, route.StateReason)
	})
}

func TestRoutes(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	in := r.runInstance(t, api.InstanceCreate{Name: "node-1"})
	create := func(name, destination, instance string) (*api.Route, error) {
		return r.CreateRoute(ctx, api.RouteCreate{
			Name: name, Destination: destination, InstanceID: instance, Tags: &api.Tags{"name": name},
		})
	}
	route := must.Do(create("one", "10.244.1.0/24", in.ID))(t)
	assert.Equal(t, &api.Route{
		Metadata: api.Metadata{
			ID: route.ID, Serial: route.Serial, Project: r.project.ID, Name: "one",
			Tags: api.Tags{"owner": "lab", "name": "one"}, Version: 1, CreatedAt: route.CreatedAt, UpdatedAt: route.CreatedAt,
		},
		NetworkID: in.NetworkID, Destination: "10.244.1.0/24", InstanceID: in.ID, State: api.RouteActive,
	}, route)
	requireCode(t, api.NameTaken)(create("one", "10.244.2.0/24", in.ID))
	requireCode(t, api.RouteConflict, route.ID)(create("two", "10.244.1.128/25", in.ID))
	requireCode(t, api.UnknownInstance)(create("two", "10.244.2.0/24", "i-none"))
	requireCode(t, api.InvalidRequest, "did you mean 10.244.2.0/24?")(create("two", "10.244.2.1/24", in.ID))
	two := must.Do(create("two", "10.244.2.0/24", in.ID))(t)

	for want, f := range map[string]client.RouteFilter{
		"one two": {}, "two": {Name: "two"}, "one": {Tags: []string{"name=one", "owner"}}, "": {Name: "three"},
	} {
		var names []string
		for _, i := range must.Do(r.ListRoutes(ctx, f))(t) {
			names = append(names, i.Name)
		}
		assert.Equal(t, want, strings.Join(names, " "))
	}
	assert.Empty(t, must.Do(r.other.ListRoutes(ctx, client.RouteFilter{}))(t))

	require.NoError(t, r.DeleteRoute(ctx, two.ID))
	requireCode(t, api.NotFound)(r.GetRoute(ctx, two.ID))

	requireOK(t)(r.StopInstance(ctx, in.ID))
	r.awaitRoute(t, route.ID, api.RouteBlackhole, "instance is stopped")
	requireOK(t)(r.StartInstance(ctx, in.ID))
	r.awaitRoute(t, route.ID, api.RouteActive, "")
	requireRouteEvents(t, r, route.ID)
}

// requireRouteEvents wants each change of a route's state right after the change
// of its instance's that it follows from.
func requireRouteEvents(t *testing.T, r *rig, id string) {
	t.Helper()
	var seen []string
	var before api.Event
	require.NoError(t, r.Watch(t.Context(), client.FromOldest, false, func(e api.Event) error {
		if e.ID == id {
			assert.Equal(t, api.ResourceRoute, e.Resource)
			require.NotNil(t, e.Route)
			assert.Equal(t, e.To, string(e.Route.State))
			if e.Type == api.EventUpdated {
				assert.Equal(t, e.Route.InstanceID, before.ID)
				assert.Equal(t, e.Time, before.Time)
				assert.Equal(t, "instance is "+before.To, cmp.Or(e.Reason, "instance is running"))
			}
			seen = append(seen, cmp.Or(e.From, "-")+" "+e.To)
		}
		before = e
		return nil
	}))
	assert.Equal(t, []string{
		"- active", "active blackhole", "blackhole blackhole", "blackhole blackhole", "blackhole active",
	}, seen, "stopping, stopped, pending, running")
}

func valueOrZero(s *string, otherwise string) string {
	if s == nil {
		return otherwise
	}
	return *s
}

// Over HTTP/1.1 and HTTP/2: calls, the event stream, which lasts though it has nothing to send for longer than a
// write may take, and an orderly end.
func TestTLS(t *testing.T) {
	r := newRig(t)
	r.eventTimeout = 1500 * time.Millisecond
	url, byMajor, shutdown := r.serveTLS(t, server.Config{Heartbeat: 2 * time.Second})
	var streams []*bufio.Scanner
	for major, transport := range byMajor {
		resp := must.Do((&http.Client{Transport: transport}).Do(authorized(t, url+"/v1/events")))(t)
		t.Cleanup(func() { _ = resp.Body.Close() })
		require.Equal(t, 200, resp.StatusCode)
		assert.Equal(t, major, resp.ProtoMajor)
		beats := bufio.NewScanner(resp.Body)
		for heard := 0; heard < 2; {
			require.True(t, beats.Scan(), beats.Err())
			if strings.HasPrefix(beats.Text(), ": still here") {
				heard++
			}
		}
		streams = append(streams, beats)
	}
	pool := byMajor[1].TLSClientConfig.RootCAs
	old := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11},
	}
	_, err := (&http.Client{Transport: old}).Do(authorized(t, url+"/v1/zones")) //nolint:bodyclose // There is none.
	require.ErrorContains(t, err, "protocol version")
	ended := make(chan struct{})
	go func() { defer close(ended); shutdown() }()
	for _, beats := range streams {
		for beats.Scan() {
		}
		require.NoError(t, beats.Err(), "the stream ends, it is not cut")
	}
	<-ended
}
