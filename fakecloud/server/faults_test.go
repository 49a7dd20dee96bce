package server_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
	"github.com/ccmlab/ccmlab/fakecloud/server"
)

// asCCM is a raw call with the token that faults are made for here.
func (r *rig) asCCM(t *testing.T, method, path, body string) (bufferedAnswer, api.Problem) {
	t.Helper()
	return r.call(t, method, path, body, "Authorization", "Bearer "+ccmSecret)
}

// breakCCM makes a rule for the token ccm.
func (r *rig) breakCCM(t *testing.T, f api.FaultCreate) *api.Fault {
	t.Helper()
	f.Match.Token = "ccm"
	return r.createFault(t, f)
}

func (r *rig) createFault(t *testing.T, f api.FaultCreate) *api.Fault {
	t.Helper()
	return must.Do(r.CreateFault(t.Context(), f))(t)
}

func (r *rig) awaitHits(t *testing.T, id string, want int) {
	t.Helper()
	await(t, r.GetFault, id, func(c *assert.CollectT, f *api.Fault) { assert.Equal(c, want, f.Hits) })
}

func (r *rig) names(t *testing.T) []string {
	t.Helper()
	items := must.Do(r.ListInstances(t.Context(), client.InstanceFilter{}))(t)
	names := []string{}
	for _, in := range items {
		names = append(names, in.Name)
	}
	return names
}

func TestFaultLife(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	assert.Empty(t, must.Do(r.ListFaults(ctx))(t))
	match := api.FaultMatch{Token: "ccm", Operations: []string{"getInstance", "listZones"}, Resource: "i-1"}
	effect := api.FaultEffect{DelayMilliseconds: 1, Status: 404, RetryAfterSeconds: 7, Project: "p-1"}
	made := r.createFault(t, api.FaultCreate{Match: match, Times: 2, Effect: effect})
	assert.Regexp(t, "^f-[0-9a-z]{26}$", made.ID)
	assert.Equal(t, api.Fault{ID: made.ID, CreatedAt: made.CreatedAt, Match: match, Times: 2, Effect: effect}, *made)
	body := api.FaultEffect{Body: new(""), ContentType: "text/html"}
	second := r.createFault(t, api.FaultCreate{Effect: body})
	assert.Equal(t, body, second.Effect)
	assert.Equal(t, made, must.Do(r.GetFault(ctx, made.ID))(t))
	assert.Equal(t, []api.Fault{*made, *second}, must.Do(r.ListFaults(ctx))(t))

	assert.Empty(t, must.Do(r.other.ListFaults(ctx))(t))

	require.NoError(t, r.DeleteFault(ctx, made.ID))
	require.True(t, client.IsNotFound(r.DeleteFault(ctx, made.ID)))
	requireCode(t, api.NotFound)(r.GetFault(ctx, made.ID))
	require.NoError(t, r.DeleteFault(ctx, second.ID))

	for range 100 {
		requireOK(t)(r.CreateFault(ctx, api.FaultCreate{Effect: api.FaultEffect{Hang: true}}))
	}
	requireCode(t, api.TooManyFaults)(r.CreateFault(ctx, api.FaultCreate{Effect: api.FaultEffect{Hang: true}}))
	_, err := r.other.CreateFault(ctx, api.FaultCreate{Effect: api.FaultEffect{Hang: true}})
	require.NoError(t, err, "the limit is each project's own")
}

func TestFaultsAnswerWithProblems(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	in := r.createInstance(t, api.InstanceCreate{Name: "node-1"})
	const theirs = "p-of-another-cloud"
	ours := r.project.ID
	for _, tc := range []struct {
		effect  api.FaultEffect
		code    api.ProblemCode
		project string
	}{
		{api.FaultEffect{Status: 400}, api.InvalidRequest, ours},
		{api.FaultEffect{Status: 401}, api.Unauthenticated, ""},
		{api.FaultEffect{Status: 403}, api.Forbidden, ours},
		{api.FaultEffect{Status: 404}, api.NotFound, ours},
		{api.FaultEffect{Status: 404, Project: theirs}, api.NotFound, theirs},
		{api.FaultEffect{Status: 409}, api.WrongState, ours},
		{api.FaultEffect{Status: 429, RetryAfterSeconds: 5}, api.RateLimited, ours},
		{api.FaultEffect{Status: 500}, api.Internal, ours},
		{api.FaultEffect{Status: 503, DelayMilliseconds: 1}, api.Unavailable, ours},
	} {
		status := tc.effect.Status
		f := r.breakCCM(t, api.FaultCreate{Effect: tc.effect})
		resp, p := r.asCCM(t, "GET", "/v1/instances/"+in.ID, "")
		require.Equal(t, status, resp.StatusCode)
		assert.Equal(t, tc.code, p.Code, status)
		assert.Equal(t, tc.project, valueOrZero(p.Project, ""), status)
		assert.Contains(t, p.Detail, f.ID)
		if tc.effect.RetryAfterSeconds > 0 {
			assert.Equal(t, "5", resp.Header.Get("Retry-After"))
		} else {
			assert.NotContains(t, resp.Header, "Retry-After")
		}
		assert.Equal(t, status == 401, resp.Header.Get("WWW-Authenticate") != "")
		requireOK(t, "another token is not touched")(r.GetInstance(ctx, in.ID))
		require.NoError(t, r.DeleteFault(ctx, f.ID))
		resp, _ = r.asCCM(t, "GET", "/v1/instances/"+in.ID, "")
		require.Equal(t, 200, resp.StatusCode, "lifted")
	}
}

func TestNothingIsCarriedOutUnderAFault(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	for _, effect := range []api.FaultEffect{{Status: 500}, {Drop: true}, {Body: new("{")}} {
		f := r.breakCCM(
			t, api.FaultCreate{Effect: effect, Match: api.FaultMatch{Operations: []string{"createInstance"}}},
		)
		_, err := r.ccm.CreateInstance(ctx, api.InstanceCreate{Name: "node-1"})
		require.Error(t, err)
		resp, _ := r.asCCM(t, "GET", "/v1/instances", "")
		assert.Equal(t, 200, resp.StatusCode, "another operation")
		require.NoError(t, r.DeleteFault(ctx, f.ID))
	}
	assert.Empty(t, r.names(t))
	r.breakCCM(t, api.FaultCreate{Effect: api.FaultEffect{Status: 500}})
	_, p := r.asCCM(t, "POST", "/v1/instances", `{"nonsense`)
	assert.Equal(t, api.Internal, p.Code, "before the body is looked at")
}

func TestFaultsAnswerWithGarbageAndNothing(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	in := r.createInstance(t, api.InstanceCreate{})
	f := r.breakCCM(t, api.FaultCreate{Effect: api.FaultEffect{Body: new("<html>"), ContentType: "text/html"}})
	resp, _ := r.asCCM(t, "GET", "/v1/instances/"+in.ID, "")
	assert.Equal(t, 200, resp.StatusCode)
	assert.Equal(t, "<html>", resp.Body)
	assert.Equal(t, "text/html", resp.Header.Get("Content-Type"))
	_, err := r.ccm.StopInstance(ctx, in.ID)
	require.ErrorContains(t, err, "not what its API promises")
	require.NoError(t, r.DeleteFault(ctx, f.ID))

	f = r.breakCCM(t, api.FaultCreate{Effect: api.FaultEffect{EmptyList: true}})
	assert.Empty(t, must.Do(r.ccm.ListInstances(ctx, client.InstanceFilter{}))(t))
	zones := must.Do(r.ccm.ListZones(ctx))(t)
	assert.Empty(t, zones)
	requireOK(t, "no list")(r.ccm.GetInstance(ctx, in.ID))
	assert.Equal(t, 2, r.hits(t, f.ID))
	assert.Len(t, r.names(t), 1)
}

// What a rule matches is for the tests of faults; here is what a call tells them of its resource.
func TestFaultsFindTheResourceOfACall(t *testing.T) {
	r := newRig(t)
	one, two := r.createInstance(t, api.InstanceCreate{}), r.createInstance(t, api.InstanceCreate{})
	first := r.breakCCM(
		t, api.FaultCreate{Times: 2, Match: api.FaultMatch{Resource: one.ID}, Effect: api.FaultEffect{Status: 503}},
	)
	var statuses []int
	for _, id := range []string{two.ID, one.ID, one.ID, one.ID} {
		resp, _ := r.asCCM(t, "GET", "/v1/instances/"+id, "")
		statuses = append(statuses, resp.StatusCode)
	}
	assert.Equal(t, []int{200, 503, 503, 200}, statuses)
	spent := must.Do(r.GetFault(t.Context(), first.ID))(t)
	assert.True(t, spent.Spent)
	assert.Equal(t, 2, spent.Hits)
}

// A rule that matches everything leaves what it is lifted with.
func TestFaultsCanAlwaysBeLifted(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	f := r.createFault(t, api.FaultCreate{Effect: api.FaultEffect{Status: 403}})
	requireCode(t, api.Forbidden)(r.Project(ctx))
	err := r.Watch(ctx, client.FromOldest, false, func(api.Event) error { return nil })
	require.True(t, client.HasCode(err, api.Forbidden), err)
	for _, path := range []string{
		"/healthz", "/readyz", "/openapi.yaml", "/v1/faults", "/v1/faults/" + f.ID, "/v1/audit", "/v1/audit/summary",
	} {
		resp, _ := r.call(t, "GET", path, "")
		assert.Equal(t, 200, resp.StatusCode, path)
	}
	resp, _ := r.call(t, "GET", "/v1/nonsense", "")
	assert.Equal(t, 404, resp.StatusCode)
	resp, _ = r.call(t, "GET", "/v1/zones", "", "Authorization", "Bearer nonsense")
	assert.Equal(t, 401, resp.StatusCode)
	assert.Equal(t, 2, r.hits(t, f.ID))
	require.NoError(t, r.DeleteFault(ctx, f.ID))
	requireOK(t)(r.Project(ctx))
}

func TestDelayedCallsAreCarriedOut(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	f := r.breakCCM(t, api.FaultCreate{Times: 1, Effect: api.FaultEffect{DelayMilliseconds: 5}})
	requireOK(t)(r.ccm.CreateInstance(ctx, api.InstanceCreate{Name: "later"}))
	require.NoError(t, r.DeleteFault(ctx, f.ID))
	assert.Equal(t, []string{"later"}, r.names(t))

	f = r.breakCCM(t, api.FaultCreate{Effect: api.FaultEffect{DelayMilliseconds: 600_000}})
	impatient, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	create := func(ctx context.Context, name string) {
		_, err := r.ccm.CreateInstance(ctx, api.InstanceCreate{Name: name})
		done <- err
	}
	go create(impatient, "given-up")
	r.awaitHits(t, f.ID, 1)
	stop()
	require.ErrorIs(t, <-done, context.Canceled)
	r.awaitCalls(t, "createInstance", 2)
	go create(ctx, "let-go")
	r.awaitHits(t, f.ID, 2)
	assert.Equal(t, []string{"later"}, r.names(t))
	require.NoError(t, r.DeleteFault(ctx, f.ID))
	require.NoError(t, <-done)
	assert.Equal(t, []string{"later", "let-go"}, r.names(t), "what was given up was not carried out")

	r.breakCCM(t, api.FaultCreate{Effect: api.FaultEffect{DelayMilliseconds: 600_000}})
	resp, p := r.asCCM(t, "POST", "/v1/instances", `{"name":"`+strings.Repeat("x", 1<<20)+`"}`)
	assert.Equal(t, 413, resp.StatusCode, "a body that is not taken is not waited with")
	assert.Equal(t, api.TooLarge, p.Code)
}

// A delay may be longer than an answer may take.
func TestDelaysOutlastTheDeadlineOfAnswers(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	srv := r.newAPI(t, server.Config{})
	h := httptest.NewUnstartedServer(srv)
	h.Config.WriteTimeout = time.Millisecond
	h.Start()
	t.Cleanup(h.Close)
	// Made past the server, whose every other answer is too late.
	rec := httptest.NewRecorder()
	req := httptest.NewRequest(http.MethodPost, "/v1/faults", strings.NewReader(`{"effect":{"delayMilliseconds":100}}`))
	req.Header.Set("Authorization", "Bearer "+secret)
	req.Header.Set("Content-Type", "application/json")
	srv.ServeHTTP(rec, req)
	require.Equal(t, http.StatusCreated, rec.Code, rec.Body)
	c := newClient(t, h.URL, ccmSecret)
	requireOK(t)(c.CreateInstance(ctx, api.InstanceCreate{}))
}

// awaitCalls waits until so many of ccm's calls are counted.
func (r *rig) awaitCalls(t *testing.T, operation string, want int64) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		items := must.Do(r.SumAudit(
			t.Context(), client.AuditFilter{Token: "ccm", Operation: operation}, api.AuditByOperation,
		))(c)
		if assert.Len(c, items, 1) {
			assert.Equal(c, want, items[0].Calls)
		}
	}, patience, 2*time.Millisecond)
}

// requireBroken wants a call to have failed without an answer.
func requireBroken(t *testing.T, err error) {
	t.Helper()
	require.Error(t, err)
	var refused *client.Error
	require.False(t, errors.As(err, &refused), err)
}

func TestHangingCallsAreHeld(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	done := make(chan error, 1)
	create := func(ctx context.Context) {
		_, err := r.ccm.CreateInstance(ctx, api.InstanceCreate{})
		done <- err
	}

	f := r.breakCCM(t, api.FaultCreate{Effect: api.FaultEffect{Hang: true}})
	go create(ctx)
	r.awaitHits(t, f.ID, 1)
	assert.Empty(t, done)
	require.NoError(t, r.DeleteFault(ctx, f.ID))
	requireBroken(t, <-done)
	r.awaitCalls(t, "createInstance", 1)

	f = r.breakCCM(t, api.FaultCreate{Effect: api.FaultEffect{Hang: true, DelayMilliseconds: 1}})
	impatient, stop := context.WithCancel(ctx)
	go create(impatient)
	r.awaitHits(t, f.ID, 1)
	stop()
	require.ErrorIs(t, <-done, context.Canceled)
	r.awaitCalls(t, "createInstance", 2)
	require.NoError(t, r.DeleteFault(ctx, f.ID))
	assert.Empty(t, r.names(t))
}

// serveTLS serves the rig's cloud once more, and gives a client's transport for
// each HTTP version.
func (r *rig) serveTLS(t *testing.T, cfg server.Config) (url string, byMajor map[int]*http.Transport, shutdown func()) {
	t.Helper()
	borrowed := httptest.NewTLSServer(nil) // For its certificate.
	borrowed.Close()
	cfg.Certificate = &borrowed.TLS.Certificates[0]
	address, shutdown := r.listen(t, cfg)
	pool := x509.NewCertPool()
	pool.AddCert(borrowed.Certificate())
	byMajor = map[int]*http.Transport{
		// Each call on a connection of its own: one dialled in vain would be waited
		// for at the end, as it might bring a call yet.
		1: {
			TLSClientConfig:   &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}},
			DisableKeepAlives: true,
		},
		2: {TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true},
	}
	for _, transport := range byMajor {
		t.Cleanup(transport.CloseIdleConnections)
	}
	return "https://" + address, byMajor, shutdown
}

func TestDroppedCalls(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	f := r.breakCCM(t, api.FaultCreate{Effect: api.FaultEffect{Drop: true}})
	_, err := r.ccm.CreateInstance(ctx, api.InstanceCreate{})
	require.ErrorIs(t, err, syscall.ECONNRESET)
	_, err = r.ccm.ListZones(ctx)
	require.ErrorIs(t, err, syscall.ECONNRESET)
	assert.GreaterOrEqual(t, r.hits(t, f.ID), 4, "one change, three tries of a read")
	require.NoError(t, r.DeleteFault(ctx, f.ID))

	url, byMajor, _ := r.serveTLS(t, server.Config{})
	for major, transport := range byMajor {
		c := must.Do(client.New(client.Config{URL: url, TokenFile: tokenFile(t, secret), Transport: transport}))(t)
		requireOK(t)(c.Project(ctx))
		f := must.Do(c.CreateFault(ctx, api.FaultCreate{
			Match: api.FaultMatch{Operations: []string{"createInstance"}}, Effect: api.FaultEffect{Drop: true},
		}))(t)
		_, err = c.CreateInstance(ctx, api.InstanceCreate{})
		requireBroken(t, err)
		if major == 1 {
			require.ErrorIs(t, err, syscall.ECONNRESET)
		} else {
			require.ErrorContains(t, err, "stream error")
		}
		require.NoError(t, c.DeleteFault(ctx, f.ID))
	}
	assert.Empty(t, r.names(t))
}

// Over both HTTP versions: held calls do not hold up the server's end.
func TestShutdownBreaksHeldCalls(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	url, byMajor, shutdown := r.serveTLS(t, server.Config{})
	done := make(chan error, 2*len(byMajor))
	for _, transport := range byMajor {
		c := must.Do(client.New(client.Config{URL: url, TokenFile: tokenFile(t, secret), Transport: transport}))(t)
		hang := must.Do(c.CreateFault(ctx, api.FaultCreate{
			Times: 1, Match: api.FaultMatch{Operations: []string{"createInstance"}},
			Effect: api.FaultEffect{Hang: true},
		}))(t)
		slow := must.Do(c.CreateFault(ctx, api.FaultCreate{
			Times: 1, Match: api.FaultMatch{Operations: []string{"createRoute"}},
			Effect: api.FaultEffect{DelayMilliseconds: 600_000},
		}))(t)
		go func() {
			_, err := c.CreateInstance(ctx, api.InstanceCreate{})
			done <- err
		}()
		go func() {
			_, err := c.CreateRoute(ctx, api.RouteCreate{Name: "a", Destination: "10.0.0.0/8", InstanceID: "i-1"})
			done <- err
		}()
		for _, id := range []string{hang.ID, slow.ID} {
			require.Eventually(t, func() bool {
				f, err := c.GetFault(ctx, id)
				return err == nil && f.Spent
			}, patience, 2*time.Millisecond)
		}
	}
	shutdown()
	for range cap(done) {
		requireBroken(t, <-done)
	}
	assert.Empty(t, r.names(t))
}

// The names that the command line completes are those that a rule takes.
func TestOperations(t *testing.T) {
	r := newRig(t)
	all := must.Do(server.Operations())(t)
	assert.Subset(t, all, []string{"getInstance", "listRoutes", "streamEvents", "updateLoadBalancer"})
	assert.IsIncreasing(t, all)
	_ = r.createFault(t, api.FaultCreate{Match: api.FaultMatch{Operations: all}, Effect: api.FaultEffect{Hang: true}})
}

func (r *rig) awaitReason(t *testing.T, id string, want api.InstanceState, reason string) {
	t.Helper()
	await(t, r.GetInstance, id, func(c *assert.CollectT, in *api.Instance) {
		assert.Equal(c, want, in.State)
		assert.Equal(c, reason, in.StateReason)
	})
}

// How life cycles go wrong is for the tests of faults; here is how the API shows it.
func TestLifeCyclesGoWrong(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	in := r.nodes(t, "one")[0]
	r.awaitReason(t, in.ID, api.InstanceRunning, "")
	crash := r.createFault(
		t,
		api.FaultCreate{Effect: api.FaultEffect{Crash: true}, Match: api.FaultMatch{Tag: "name=one"}, Times: 1},
	)
	assert.Equal(t, 1, crash.Hits)
	r.awaitReason(t, in.ID, api.InstanceError, "crashed")
	requireCode(t, api.WrongState)(r.RebootInstance(ctx, in.ID))
	requireOK(t)(r.StartInstance(ctx, in.ID))
	r.awaitReason(t, in.ID, api.InstanceRunning, "")
	rebooted := must.Do(r.RebootInstance(ctx, in.ID))(t)
	assert.Equal(t, "rebooting", rebooted.StateReason)
	r.awaitReason(t, in.ID, api.InstanceRunning, "")
}

func TestZonesShowTheirOutage(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	states := func(c *client.Client) (all []api.ZoneState) {
		for _, z := range must.Do(c.ListZones(ctx))(t) {
			all = append(all, z.State)
		}
		return all
	}
	well := []api.ZoneState{api.ZoneAvailable, api.ZoneAvailable, api.ZoneAvailable}
	assert.Equal(t, well, states(r.Client))
	f := r.createFault(t, api.FaultCreate{Effect: api.FaultEffect{ZoneOutage: "nebula-1b"}})
	assert.Equal(t, []api.ZoneState{api.ZoneAvailable, api.ZoneOutage, api.ZoneAvailable}, states(r.Client))
	assert.Equal(t, well, states(r.other))
	requireCode(t, api.ZoneUnavailable)(r.CreateInstance(ctx, api.InstanceCreate{Zone: "nebula-1b"}))
	require.NoError(t, r.DeleteFault(ctx, f.ID))
	assert.Equal(t, well, states(r.Client))
}
