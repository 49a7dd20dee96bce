package hcloud_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/cloudtest"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

func TestAuditSaysBoth(t *testing.T) {
	c, _ := startCloud(t)
	sdk := newSDK(t, c, c.NewToken("ccm", api.RoleEditor))
	must.First(sdk.Server.List(t.Context(), hcloud.ServerListOpts{}))(t)
	must.First(sdk.LoadBalancerType.List(t.Context(), hcloud.LoadBalancerTypeListOpts{}))(t)
	must.First(sdk.Server.GetByID(t.Context(), 12345))(t)

	calls := must.Do(c.ListAudit(t.Context(), client.AuditFilter{Token: "ccm"}, 10))(t)
	type call struct {
		operation, wire string
		status          int
	}
	var seen []call
	for _, e := range calls {
		seen = append(seen, call{e.Operation, e.Wire, e.Status})
		assert.Contains(t, e.UserAgent, "sdk-test/1")
	}
	assert.Equal(t, []call{
		{"hcloud GET /v1/servers/{id}", "hcloud GET /v1/servers/12345", http.StatusNotFound},
		{"hcloud GET /v1/load_balancer_types", "hcloud GET /v1/load_balancer_types", http.StatusOK},
		{"listInstances", "hcloud GET /v1/servers", http.StatusOK},
	}, seen)
}

func TestFaultsOfNativeOperations(t *testing.T) {
	c, sdk := startCloud(t)
	createInstance(t, c, "node-1")
	createInstance(t, c, "node-2")
	for name, test := range map[string]struct {
		operation string // "" is any
		effect    api.FaultEffect
		code      hcloud.ErrorCode // of a refusal
		servers   int              // or how many are listed; -1 is no answer
	}{
		"status":                {"listInstances", api.FaultEffect{Status: 503}, "unavailable", 0},
		"rate limit":            {"", api.FaultEffect{Status: 429, RetryAfterSeconds: 7}, hcloud.ErrorCodeRateLimitExceeded, 0},
		"a call of the dialect": {"hcloud GET /v1/servers", api.FaultEffect{Status: 502}, hcloud.ErrorCodeBadGateway, 0},
		"empty list":            {"", api.FaultEffect{EmptyList: true}, "", 0},
		"partial list":          {"listInstances", api.FaultEffect{PartialList: 1}, "", 1},
		"drop":                  {"listInstances", api.FaultEffect{Drop: true}, "", -1},
	} {
		t.Run(name, func(t *testing.T) {
			rule := api.FaultCreate{Effect: test.effect}
			if test.operation != "" {
				rule.Match.Operations = []string{test.operation}
			}
			f := c.Fail(rule)
			defer func() { require.NoError(t, c.DeleteFault(t.Context(), f.ID)) }()
			servers, resp, err := sdk.Server.List(t.Context(), hcloud.ServerListOpts{})
			switch {
			case test.servers < 0:
				require.Error(t, err)
				assert.Nil(t, resp.Response, "there is no answer")
			case test.code != "":
				requireError(t, test.code)(err)
				assert.Equal(t, test.effect.Status, resp.StatusCode)
				assert.Equal(t, test.effect.RetryAfterSeconds == 7, resp.Header.Get("Retry-After") == "7")
			default:
				require.NoError(t, err)
				assert.Len(t, servers, test.servers)
			}
		})
	}
}

func TestFaultsAnswerWithCodesOfTheDialect(t *testing.T) {
	c, sdk := startCloud(t)
	for code, status := range map[hcloud.ErrorCode]int{
		hcloud.ErrorCodeConflict: 409, hcloud.ErrorCodeLocked: 423, hcloud.ErrorCodeResourceLimitExceeded: 403,
		hcloud.ErrorCodeResourceUnavailable: 412, hcloud.ErrorCodeServiceError: 500, hcloud.ErrorCodeMaintenance: 503,
		hcloud.ErrorCodeIPNotAvailable: 422, hcloud.ErrorCodeTimeout: 504, hcloud.ErrorCodeUniquenessError: 409,
	} {
		for _, operation := range []string{"hcloud GET /v1/servers", "listInstances"} {
			f := c.Fail(api.FaultCreate{
				Match:  api.FaultMatch{Operations: []string{operation}},
				Effect: api.FaultEffect{DialectCode: string(code), RetryAfterSeconds: 7},
			})
			_, resp, err := sdk.Server.List(t.Context(), hcloud.ServerListOpts{})
			requireError(t, code)(err)
			assert.Equal(t, status, resp.StatusCode, code)
			assert.Equal(t, "7", resp.Header.Get("Retry-After"))
			must.Do(c.ListInstances(t.Context(), client.InstanceFilter{}))(t)
			assert.Equal(t, 1, must.Do(c.GetFault(t.Context(), f.ID))(t).Hits, "calls of the native API do not match")
			require.NoError(t, c.DeleteFault(t.Context(), f.ID))
		}
	}
	_, err := c.CreateFault(t.Context(), api.FaultCreate{Effect: api.FaultEffect{DialectCode: "no_such"}})
	require.ErrorContains(t, err, "resource_limit_exceeded")
}

func TestEachCallCanBeNamedByAFault(t *testing.T) {
	c, _ := startCloud(t, cloudtest.WithoutTraffic())
	served := must.Do(c.ListDialects(t.Context()))(t)
	for _, call := range served[0].Calls {
		c.Fail(api.FaultCreate{
			Match: api.FaultMatch{Operations: []string{call}}, Effect: api.FaultEffect{Status: 500},
		})
		must.Do(c.ListAudit(t.Context(), client.AuditFilter{Operation: call}, 1))(t)
		require.NoError(t, c.DeleteFaults(t.Context()), "there are more calls than there can be faults")
	}
}

// A rule that names no operation takes a call of a dialect as one call, however many native
// operations that makes.
func TestFaultCountsCallsOfTheDialect(t *testing.T) {
	c, sdk := startCloud(t)
	createInstance(t, c, "node-1")
	c.Fail(api.FaultCreate{Times: 2, Effect: api.FaultEffect{Status: 500}})
	network := func() error {
		_, _, err := sdk.Network.List(t.Context(), hcloud.NetworkListOpts{})
		return err
	}
	require.Error(t, network())
	require.Error(t, network())
	require.NoError(t, network())
}

// What a network refers to is no call of its own: no fault touches it.
func TestNetworksAreReadWithoutCallsAboutBalancers(t *testing.T) {
	c, sdk := startCloud(t, cloudtest.WithoutTraffic())
	c.Fail(api.FaultCreate{
		Match: api.FaultMatch{Operations: []string{"listLoadBalancers"}}, Effect: api.FaultEffect{Status: 503},
	})
	assert.NotEmpty(t, must.Do(sdk.Network.All(t.Context()))(t))
}

func TestWhatNobodyReadsIsCounted(t *testing.T) {
	c, sdk := startCloud(t, cloudtest.WithoutTraffic())
	for range 2 {
		req := must.Do(sdk.NewRequest(t.Context(), "POST", "/load_balancers", strings.NewReader(`{"name": "web", "color": "red"}`)))(t)
		_, _ = sdk.Do(req, nil)
	}
	served := must.Do(c.ListDialects(t.Context()))(t)
	require.Len(t, served, 1)
	assert.Equal(t, c.DialectURL("hcloud"), served[0].URL)
	assert.Equal(t, []api.UnreadField{
		{Call: "POST /v1/load_balancers", Field: "color", Count: 2},
	}, served[0].Unread)
}

func TestADelayHoldsTheDialectsCall(t *testing.T) {
	c, sdk := startCloud(t)
	rule := c.Fail(api.FaultCreate{
		Match: api.FaultMatch{Operations: []string{"listInstances"}}, Effect: api.FaultEffect{Hang: true},
	})
	failed := make(chan error, 1)
	go func() {
		_, _, err := sdk.Server.List(t.Context(), hcloud.ServerListOpts{})
		failed <- err
	}()
	require.Eventually(t, func() bool {
		f, err := c.GetFault(t.Context(), rule.ID)
		return err == nil && f.Hits == 1
	}, 30*time.Second, 5*time.Millisecond)
	require.NoError(t, c.DeleteFault(t.Context(), rule.ID))
	require.Error(t, <-failed)
}
