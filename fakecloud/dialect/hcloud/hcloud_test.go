package hcloud_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/cloudtest"
	dialect "github.com/ccmlab/ccmlab/fakecloud/dialect/hcloud"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

// startCloud starts a cloud that speaks the dialect, and makes the official SDK's client of it.
func startCloud(t *testing.T, options ...cloudtest.Option) (*cloudtest.Cloud, *hcloud.Client) {
	t.Helper()
	c := cloudtest.Start(t, append(options, cloudtest.Dialect(dialect.Dialect))...)
	return c, newSDK(t, c, c.TokenFile)
}

func newSDK(t *testing.T, c *cloudtest.Cloud, tokenFile string) *hcloud.Client {
	t.Helper()
	token := must.Do(os.ReadFile(tokenFile))(t)
	return hcloud.NewClient(
		hcloud.WithEndpoint(c.DialectURL("hcloud")+"/v1"), hcloud.WithToken(strings.TrimSpace(string(token))),
		hcloud.WithPollOpts(hcloud.PollOpts{BackoffFunc: hcloud.ConstantBackoff(5 * time.Millisecond)}),
		hcloud.WithRetryOpts(hcloud.RetryOpts{MaxRetries: 0}), hcloud.WithApplication("sdk-test", "1"),
	)
}

func createInstance(t *testing.T, c *cloudtest.Cloud, name string) *api.Instance {
	t.Helper()
	return must.Do(c.CreateInstance(t.Context(), api.InstanceCreate{Name: name, Tags: api.Tags{"cluster": "lab"}}))(t)
}

// requireError wants a call of the SDK to be refused with a code.
func requireError(t *testing.T, code hcloud.ErrorCode) func(results ...any) {
	return func(results ...any) {
		t.Helper()
		err, _ := results[len(results)-1].(error)
		assert.True(t, hcloud.IsError(err, code), "%v", err)
	}
}

// await waits for the action that is the result of a call.
func await(t *testing.T, sdk *hcloud.Client) func(a *hcloud.Action, _ *hcloud.Response, err error) {
	return func(a *hcloud.Action, _ *hcloud.Response, err error) {
		t.Helper()
		require.NoError(t, err)
		require.NoError(t, sdk.Action.WaitFor(t.Context(), a))
	}
}

func TestServersAreInstances(t *testing.T) {
	c, sdk := startCloud(t)
	in := createInstance(t, c, "node-1")
	servers := must.Do(sdk.Server.All(t.Context()))(t)
	require.Len(t, servers, 1)
	s := servers[0]
	assert.Equal(t, in.Serial, s.ID)
	assert.Equal(t, fmt.Sprintf("hcloud://%d", s.ID), in.Identities["hcloud"])
	assert.Equal(t, "node-1", s.Name)
	assert.Equal(t, in.Zone, s.Location.Name)
	assert.Equal(t, in.Zone, must.First(sdk.Location.GetByID(t.Context(), s.Location.ID))(t).Name)
	assert.Nil(t, must.First(sdk.Location.GetByID(t.Context(), 99))(t))
	assert.Equal(t, "lb21", must.First(sdk.LoadBalancerType.GetByID(t.Context(), 2))(t).Name)
	assert.Nil(t, must.First(sdk.LoadBalancerType.GetByID(t.Context(), 99))(t))
	assert.Equal(t, "cx23", s.ServerType.Name)
	assert.Equal(t, map[string]string{"cluster": "lab"}, s.Labels)
	require.Len(t, s.PrivateNet, 1)
	assert.Equal(t, in.Addresses[0].IP, s.PrivateNet[0].IP.String())
	network := must.First(sdk.Network.GetByName(t.Context(), "default"))(t)
	assert.Equal(t, network.ID, s.PrivateNet[0].Network.ID)
	assert.Equal(t, s.ID, network.Servers[0].ID)
	assert.Nil(t, s.PublicNet.IPv4.IP)

	for state, act := range map[hcloud.ServerStatus]func(context.Context, string) (*api.Instance, error){
		hcloud.ServerStatusRunning: c.StartInstance, hcloud.ServerStatusOff: c.StopInstance,
	} {
		if _, err := act(t.Context(), in.ID); err != nil {
			continue // It is in that state.
		}
		require.Eventually(t, func() bool {
			s := must.First(sdk.Server.GetByID(t.Context(), s.ID))(t)
			return s != nil && s.Status == state
		}, 30*time.Second, 5*time.Millisecond)
	}

	found := must.Do(c.ListInstances(t.Context(), client.InstanceFilter{Identity: in.Identities["hcloud"]}))(t)
	require.Len(t, found, 1)
	assert.Equal(t, in.ID, found[0].ID)

	must.Do(c.TerminateInstance(t.Context(), in.ID))(t)
	require.Eventually(t, func() bool {
		return must.First(sdk.Server.GetByID(t.Context(), s.ID))(t) == nil
	}, 30*time.Second, 5*time.Millisecond, "a server that is gone is not found")
	servers = must.Do(sdk.Server.All(t.Context()))(t)
	assert.Empty(t, servers)
}

func TestPagesHaveTheirNumbers(t *testing.T) {
	c, sdk := startCloud(t)
	for range 7 {
		must.Do(c.CreateInstance(t.Context(), api.InstanceCreate{}))(t)
	}
	page, resp, err := sdk.Server.List(t.Context(), hcloud.ServerListOpts{
		ListOpts: hcloud.ListOpts{Page: 2, PerPage: 3},
	})
	require.NoError(t, err)
	assert.Len(t, page, 3)
	assert.Equal(t, &hcloud.Pagination{
		Page: 2, PerPage: 3, PreviousPage: 1, NextPage: 3, LastPage: 3, TotalEntries: 7,
	}, resp.Meta.Pagination)
	page, resp, err = sdk.Server.List(t.Context(), hcloud.ServerListOpts{ListOpts: hcloud.ListOpts{Page: 3, PerPage: 3}})
	require.NoError(t, err)
	assert.Len(t, page, 1)
	assert.Zero(t, resp.Meta.Pagination.NextPage)
}

func TestRoutesLeadToServers(t *testing.T) {
	c, sdk := startCloud(t)
	in := createInstance(t, c, "node-1")
	network := must.First(sdk.Network.GetByName(t.Context(), "default"))(t)
	_, destination, _ := net.ParseCIDR("10.244.1.0/24")
	route := hcloud.NetworkRoute{Destination: destination, Gateway: net.ParseIP(in.Addresses[0].IP)}
	await(t, sdk)(sdk.Network.AddRoute(t.Context(), network, hcloud.NetworkAddRouteOpts{Route: route}))
	network = must.First(sdk.Network.GetByID(t.Context(), network.ID))(t)
	require.Len(t, network.Routes, 1)
	assert.Equal(t, "10.244.1.0/24", network.Routes[0].Destination.String())
	assert.Equal(t, in.Addresses[0].IP, network.Routes[0].Gateway.String())

	requireError(t, hcloud.ErrorCodeInvalidInput)(sdk.Network.AddRoute(t.Context(), network, hcloud.NetworkAddRouteOpts{
		Route: hcloud.NetworkRoute{Destination: destination, Gateway: net.ParseIP("127.0.0.1")},
	}))

	must.Do(c.TerminateInstance(t.Context(), in.ID))(t)
	network = must.First(sdk.Network.GetByID(t.Context(), network.ID))(t)
	require.Len(t, network.Routes, 1)
	assert.Equal(t, in.Addresses[0].IP, network.Routes[0].Gateway.String(), "a blackhole keeps its gateway")

	await(t, sdk)(sdk.Network.DeleteRoute(t.Context(), network, hcloud.NetworkDeleteRouteOpts{Route: network.Routes[0]}))
	network = must.First(sdk.Network.GetByID(t.Context(), network.ID))(t)
	assert.Empty(t, network.Routes)
	// The CCM sends this for a route that was not in the network that it read last.
	_, _, err := sdk.Network.DeleteRoute(t.Context(), network, hcloud.NetworkDeleteRouteOpts{
		Route: hcloud.NetworkRoute{Destination: destination},
	})
	requireError(t, hcloud.ErrorCodeInvalidInput)(err)
}

func TestRefusals(t *testing.T) {
	c, sdk := startCloud(t, cloudtest.RateLimit(1, 20))
	stranger := hcloud.NewClient(hcloud.WithEndpoint(c.DialectURL("hcloud")+"/v1"), hcloud.WithToken("wrong"))
	requireError(t, hcloud.ErrorCodeUnauthorized)(stranger.Location.All(t.Context()))

	viewer := must.Do(c.CreateToken(t.Context(), c.Project, api.TokenCreate{Name: "viewer", Role: api.RoleViewer}))(t)
	readOnly := hcloud.NewClient(
		hcloud.WithEndpoint(c.DialectURL("hcloud")+"/v1"), hcloud.WithToken(viewer.Secret),
	)
	_, resp, err := readOnly.LoadBalancer.Create(t.Context(), hcloud.LoadBalancerCreateOpts{
		Name: "web", LoadBalancerType: &hcloud.LoadBalancerType{Name: "lb11"}, Location: &hcloud.Location{Name: "x"},
	})
	requireError(t, hcloud.ErrorCodeTokenReadonly)(err)
	assert.Equal(t, http.StatusForbidden, resp.StatusCode)
	assert.Equal(t, "20", resp.Header.Get("RateLimit-Limit"))
	assert.Equal(t, "19", resp.Header.Get("RateLimit-Remaining"))
	for err = nil; err == nil; {
		_, _, err = sdk.Server.List(t.Context(), hcloud.ServerListOpts{})
	}
	requireError(t, hcloud.ErrorCodeRateLimitExceeded)(err)
}

// A program on a server asks for http://169.254.169.254, and reaches the cloud as its proxy.
func TestServersKnowTheirMetadata(t *testing.T) {
	c, sdk := startCloud(t, cloudtest.WithoutTraffic())
	in := createInstance(t, c, "node-1")
	network := must.First(sdk.Network.GetByName(t.Context(), "default"))(t)
	secret := strings.TrimSpace(string(must.Do(os.ReadFile(c.TokenFile))(t)))
	get := func(user, password, thing string) (int, string) {
		proxy := must.Do(url.Parse(c.DialectURL("hcloud")))(t)
		proxy.User = url.UserPassword(user, password)
		on := http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(proxy), DisableKeepAlives: true}}
		resp := must.Do(on.Get("http://169.254.169.254/hetzner/v1/metadata" + thing))(t)
		defer func() { _ = resp.Body.Close() }()
		return resp.StatusCode, string(must.Do(io.ReadAll(resp.Body))(t))
	}
	for thing, want := range map[string]string{
		"/hostname": "node-1", "/instance-id": strconv.FormatInt(in.Serial, 10), "/availability-zone": in.Zone,
		"/region": in.Region, "/private-networks": fmt.Sprintf("network_id: %d\n", network.ID), "": "hostname: node-1\n",
	} {
		status, text := get("node-1", secret, thing)
		assert.Equal(t, http.StatusOK, status)
		assert.Contains(t, text, want)
	}
	for _, wrong := range [][3]string{{"node-2", secret, ""}, {"", secret, ""}, {"node-1", secret, "/userdata"}} {
		status, text := get(wrong[0], wrong[1], wrong[2])
		assert.Equal(t, http.StatusNotFound, status, text)
	}
	createPlainServer(t, sdk, func(o *hcloud.ServerCreateOpts) { o.Name, o.UserData = "node-3", "#cloud-config" })
	_, text := get("node-3", secret, "/userdata")
	assert.Equal(t, "#cloud-config", text)
	status, _ := get("node-1", "guessed", "")
	assert.Equal(t, http.StatusUnauthorized, status)
}
