package hcloud_test

import (
	"errors"
	"io"
	"net"
	"strconv"
	"syscall"
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

// createBalancer creates a balancer as the CCM does: empty, then attached to the network.
func createBalancer(t *testing.T, c *cloudtest.Cloud, sdk *hcloud.Client) *hcloud.LoadBalancer {
	t.Helper()
	made, resp, err := sdk.LoadBalancer.Create(t.Context(), hcloud.LoadBalancerCreateOpts{
		Name: "a3f0", LoadBalancerType: &hcloud.LoadBalancerType{Name: "lb11"},
		Location: &hcloud.Location{Name: zoneOf(t, c)}, Labels: map[string]string{"hcloud-ccm/service-uid": "uid-1"},
	})
	require.NoError(t, err)
	await(t, sdk)(made.Action, resp, err)
	network := must.First(sdk.Network.GetByName(t.Context(), "default"))(t)
	await(t, sdk)(sdk.LoadBalancer.AttachToNetwork(
		t.Context(), made.LoadBalancer, hcloud.LoadBalancerAttachToNetworkOpts{Network: network},
	))
	return must.First(sdk.LoadBalancer.GetByID(t.Context(), made.LoadBalancer.ID))(t)
}

func zoneOf(t *testing.T, c *cloudtest.Cloud) string {
	t.Helper()
	return must.Do(c.ListZones(t.Context()))(t)[0].Name
}

func freePort(t *testing.T, address string) int {
	t.Helper()
	l := must.Do(net.Listen("tcp", address+":0"))(t)
	defer func() { require.NoError(t, l.Close()) }()
	return l.Addr().(*net.TCPAddr).Port
}

func tcpService(listen, destination int) hcloud.LoadBalancerAddServiceOpts {
	return hcloud.LoadBalancerAddServiceOpts{
		Protocol: hcloud.LoadBalancerServiceProtocolTCP, ListenPort: &listen, DestinationPort: &destination,
		HealthCheck: &hcloud.LoadBalancerAddServiceOptsHealthCheck{
			Protocol: hcloud.LoadBalancerServiceProtocolTCP, Port: &destination,
		},
	}
}

func TestLoadBalancerCarriesTraffic(t *testing.T) {
	c, sdk := startCloud(t)
	in := createInstance(t, c, "node-1")
	c.AwaitInstance(in.ID, api.InstanceRunning)
	lb := createBalancer(t, c, sdk)
	assert.Empty(t, lb.Services)
	found := must.First(sdk.LoadBalancer.List(t.Context(), hcloud.LoadBalancerListOpts{
		ListOpts: hcloud.ListOpts{LabelSelector: "hcloud-ccm/service-uid=uid-1"},
	}))(t)
	require.Len(t, found, 1)
	assert.Equal(t, lb.ID, found[0].ID)

	port := freePort(t, lb.PublicNet.IPv4.IP.String())
	server := must.Do(net.Listen("tcp", in.Addresses[0].IP+":0"))(t)
	defer func() { require.NoError(t, server.Close()) }()
	go func() {
		for conn, err := server.Accept(); err == nil; conn, err = server.Accept() {
			_, _ = io.WriteString(conn, "hello")
			_ = conn.Close()
		}
	}()
	service := tcpService(port, server.Addr().(*net.TCPAddr).Port)
	await(t, sdk)(sdk.LoadBalancer.AddService(t.Context(), lb, service))
	target := hcloud.LoadBalancerAddServerTargetOpts{
		Server: &hcloud.Server{ID: in.Serial}, UsePrivateIP: hcloud.Ptr(true),
	}
	await(t, sdk)(sdk.LoadBalancer.AddServerTarget(t.Context(), lb, target))

	read := func(ip net.IP) (string, error) {
		conn, err := net.Dial("tcp", net.JoinHostPort(ip.String(), strconv.Itoa(port)))
		if err != nil {
			return "", err
		}
		answer, err := io.ReadAll(conn)
		return string(answer), errors.Join(err, conn.Close())
	}
	assert.Equal(t, "hello", must.Do(read(lb.PublicNet.IPv4.IP))(t))
	assert.Equal(t, "hello", must.Do(read(lb.PrivateNet[0].IP))(t))
	await(t, sdk)(sdk.LoadBalancer.DisablePublicInterface(t.Context(), lb))
	assert.Equal(t, "hello", must.Do(read(lb.PrivateNet[0].IP))(t))
	_, err := read(lb.PublicNet.IPv4.IP)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.Eventually(t, func() bool {
		lb = must.First(sdk.LoadBalancer.GetByID(t.Context(), lb.ID))(t)
		health := lb.Targets[0].HealthStatus
		return len(health) == 1 && health[0].ListenPort == port &&
			health[0].Status == hcloud.LoadBalancerTargetHealthStatusStatusHealthy
	}, 30*time.Second, 10*time.Millisecond)
	assert.True(t, lb.Targets[0].UsePrivateIP)
	assert.Equal(t, in.Serial, lb.Targets[0].Server.Server.ID)
	assert.Equal(t, 15*time.Second, lb.Services[0].HealthCheck.Interval)

	requireError(t, hcloud.ErrorCodeTargetAlreadyDefined)(sdk.LoadBalancer.AddServerTarget(t.Context(), lb, target))
	requireError(t, hcloud.ErrorCodeSourcePortAlreadyUsed)(sdk.LoadBalancer.AddService(t.Context(), lb, service))

	await(t, sdk)(sdk.LoadBalancer.RemoveServerTarget(t.Context(), lb, &hcloud.Server{ID: in.Serial}))
	await(t, sdk)(sdk.LoadBalancer.DeleteService(t.Context(), lb, port))
	must.Do(sdk.LoadBalancer.Delete(t.Context(), lb))(t)
	assert.Nil(t, must.First(sdk.LoadBalancer.GetByID(t.Context(), lb.ID))(t))
}

func TestServiceIsReadBackAsItWasSent(t *testing.T) {
	c, sdk := startCloud(t, cloudtest.WithoutTraffic())
	lb := createBalancer(t, c, sdk)
	service := tcpService(80, 30080)
	service.Protocol = hcloud.LoadBalancerServiceProtocolHTTP
	service.Proxyprotocol = hcloud.Ptr(true)
	service.HTTP = &hcloud.LoadBalancerAddServiceOptsHTTP{
		CookieName: hcloud.Ptr("taste"), CookieLifetime: hcloud.Ptr(time.Minute), StickySessions: hcloud.Ptr(true),
	}
	service.HealthCheck.Protocol = hcloud.LoadBalancerServiceProtocolHTTP
	service.HealthCheck.HTTP = &hcloud.LoadBalancerAddServiceOptsHealthCheckHTTP{
		Path: hcloud.Ptr("/healthz"), StatusCodes: []string{"2??", "404"}, Domain: hcloud.Ptr("example.com"),
	}
	await(t, sdk)(sdk.LoadBalancer.AddService(t.Context(), lb, service))
	await(t, sdk)(sdk.LoadBalancer.UpdateService(t.Context(), lb, 80, hcloud.LoadBalancerUpdateServiceOpts{
		DestinationPort: hcloud.Ptr(30081), HealthCheck: &hcloud.LoadBalancerUpdateServiceOptsHealthCheck{
			Port: hcloud.Ptr(30082), Retries: hcloud.Ptr(5),
		},
	}))
	await(t, sdk)(sdk.LoadBalancer.UpdateService(t.Context(), lb, 80, hcloud.LoadBalancerUpdateServiceOpts{
		DestinationPort: hcloud.Ptr(30081),
	})) // Nothing changes, and the action has succeeded.
	lb = must.First(sdk.LoadBalancer.GetByID(t.Context(), lb.ID))(t)
	require.Len(t, lb.Services, 1)
	s := lb.Services[0]
	assert.Equal(t, hcloud.LoadBalancerServiceProtocolHTTP, s.Protocol)
	assert.True(t, s.Proxyprotocol)
	assert.Equal(t, 30081, s.DestinationPort)
	assert.Equal(t, "taste", s.HTTP.CookieName)
	assert.True(t, s.HTTP.StickySessions)
	assert.Equal(t, 30082, s.HealthCheck.Port)
	assert.Equal(t, 5, s.HealthCheck.Retries)
	assert.Equal(t, []string{"2??", "404"}, s.HealthCheck.HTTP.StatusCodes)
	assert.Equal(t, "example.com", s.HealthCheck.HTTP.Domain)

	native := must.Do(c.ListLoadBalancers(t.Context(), client.LoadBalancerFilter{}))(t)
	require.Len(t, native[0].Listeners, 1)
	assert.Equal(t, api.ProxyProtocolV1, native[0].Listeners[0].ProxyProtocol)
}

func TestLoadBalancerChanges(t *testing.T) {
	c, sdk := startCloud(t, cloudtest.WithoutTraffic())
	lb := createBalancer(t, c, sdk)
	await2 := func(a *hcloud.Action, resp *hcloud.Response, err error) {
		t.Helper()
		await(t, sdk)(a, resp, err)
		lb = must.First(sdk.LoadBalancer.GetByID(t.Context(), lb.ID))(t)
	}
	await2(sdk.LoadBalancer.ChangeAlgorithm(t.Context(), lb, hcloud.LoadBalancerChangeAlgorithmOpts{
		Type: hcloud.LoadBalancerAlgorithmTypeLeastConnections,
	}))
	assert.Equal(t, hcloud.LoadBalancerAlgorithmTypeLeastConnections, lb.Algorithm.Type)
	await2(sdk.LoadBalancer.ChangeType(t.Context(), lb, hcloud.LoadBalancerChangeTypeOpts{
		LoadBalancerType: &hcloud.LoadBalancerType{Name: "lb21"},
	}))
	assert.Equal(t, 75, lb.LoadBalancerType.MaxTargets)
	await2(sdk.LoadBalancer.ChangeDNSPtr(t.Context(), lb, lb.PublicNet.IPv4.IP.String(), hcloud.Ptr("lb.example.com")))
	assert.Equal(t, "lb.example.com", lb.PublicNet.IPv4.DNSPtr)
	await2(sdk.LoadBalancer.DisablePublicInterface(t.Context(), lb))
	assert.False(t, lb.PublicNet.Enabled)
	await2(sdk.LoadBalancer.EnablePublicInterface(t.Context(), lb))
	assert.True(t, lb.PublicNet.Enabled)
	await2(sdk.LoadBalancer.DetachFromNetwork(t.Context(), lb, hcloud.LoadBalancerDetachFromNetworkOpts{
		Network: lb.PrivateNet[0].Network,
	}))
	assert.Empty(t, lb.PrivateNet)
	in := createInstance(t, c, "node-1")
	for private, code := range map[bool]hcloud.ErrorCode{
		true: hcloud.ErrorCodeLoadBalancerNotAttachedToNetwork, false: hcloud.ErrorCodeMissingIPv4,
	} {
		requireError(t, code)(sdk.LoadBalancer.AddServerTarget(t.Context(), lb, hcloud.LoadBalancerAddServerTargetOpts{
			Server: &hcloud.Server{ID: in.Serial}, UsePrivateIP: &private,
		}))
	}
	renamed := must.First(sdk.LoadBalancer.Update(t.Context(), lb, hcloud.LoadBalancerUpdateOpts{
		Name: "b1", Labels: map[string]string{"k": "v"},
	}))(t)
	assert.Equal(t, "b1", renamed.Name)
	assert.Equal(t, map[string]string{"k": "v"}, renamed.Labels)

	native := must.Do(c.ListLoadBalancers(t.Context(), client.LoadBalancerFilter{Name: "b1"}))(t)
	protect := api.LoadBalancerUpdate{DeletionProtection: hcloud.Ptr(true)}
	must.Do(c.UpdateLoadBalancer(t.Context(), native[0].ID, protect))(t)
	lb = must.First(sdk.LoadBalancer.GetByID(t.Context(), lb.ID))(t)
	assert.True(t, lb.Protection.Delete)
	requireError(t, hcloud.ErrorCodeProtected)(sdk.LoadBalancer.Delete(t.Context(), lb))
}

// Listeners that others made or removed are neither lost nor made again by the next action.
func TestServicesAreTheListenersThatThereAre(t *testing.T) {
	c, sdk := startCloud(t, cloudtest.WithoutTraffic())
	lb := createBalancer(t, c, sdk)
	await(t, sdk)(sdk.LoadBalancer.AddService(t.Context(), lb, tcpService(80, 30080)))
	native := must.Do(c.ListLoadBalancers(t.Context(), client.LoadBalancerFilter{}))(t)
	changed := must.Do(c.UpdateLoadBalancer(t.Context(), native[0].ID, api.LoadBalancerUpdate{
		Listeners: &api.Listeners{
			{Protocol: api.ProtocolTCP, Port: 81, TargetPort: 30081, ConnectionLimit: 7},
			{Protocol: api.ProtocolUDP, Port: 82, TargetPort: 30082},
		},
	}))(t)
	c.AwaitLoadBalancer(changed.ID, api.LoadBalancerActive)
	await(t, sdk)(sdk.LoadBalancer.AddService(t.Context(), lb, tcpService(82, 30082)))
	lb = must.First(sdk.LoadBalancer.GetByID(t.Context(), lb.ID))(t)
	var ports []int
	for _, s := range lb.Services {
		ports = append(ports, s.ListenPort)
	}
	assert.Equal(t, []int{81, 82}, ports)
	native = must.Do(c.ListLoadBalancers(t.Context(), client.LoadBalancerFilter{}))(t)
	require.Len(t, native[0].Listeners, 3)
	assert.Contains(t, native[0].Listeners, changed.Listeners[0], "what others set stays")
	assert.Contains(t, native[0].Listeners, changed.Listeners[1])
	await(t, sdk)(sdk.LoadBalancer.DeleteService(t.Context(), lb, 81))
}

// The limits of a type are the cloud's.
func TestLoadBalancerTypeLimitsServices(t *testing.T) {
	c, sdk := startCloud(t, cloudtest.WithoutTraffic())
	lb := createBalancer(t, c, sdk)
	for n := range 5 {
		await(t, sdk)(sdk.LoadBalancer.AddService(t.Context(), lb, tcpService(80+n, 30080+n)))
	}
	_, _, err := sdk.LoadBalancer.AddService(t.Context(), lb, tcpService(90, 30090))
	requireError(t, hcloud.ErrorCodeResourceLimitExceeded)(err)
}

// An action that is under way locks its balancer for networks alone, and its IDs stay readable when that is gone.
func TestActionsAreOperations(t *testing.T) {
	c, sdk := startCloud(t, cloudtest.WithoutTraffic(), cloudtest.VirtualClock(), cloudtest.Profile("realistic"))
	made := must.First(sdk.LoadBalancer.Create(t.Context(), hcloud.LoadBalancerCreateOpts{
		Name: "web", LoadBalancerType: &hcloud.LoadBalancerType{Name: "lb11"},
		Location: &hcloud.Location{Name: zoneOf(t, c)},
	}))(t)
	assert.Equal(t, hcloud.ActionStatusRunning, made.Action.Status)
	assert.Equal(t, "create_load_balancer", made.Action.Command)
	network := must.First(sdk.Network.GetByName(t.Context(), "default"))(t)
	attach := hcloud.LoadBalancerAttachToNetworkOpts{Network: network}
	_, _, err := sdk.LoadBalancer.AttachToNetwork(t.Context(), made.LoadBalancer, attach)
	requireError(t, hcloud.ErrorCodeLocked)(err)
	must.First(sdk.LoadBalancer.ChangeAlgorithm(t.Context(), made.LoadBalancer, hcloud.LoadBalancerChangeAlgorithmOpts{
		Type: hcloud.LoadBalancerAlgorithmTypeLeastConnections,
	}))(t)
	must.Do(c.AdvanceClock(t.Context(), time.Hour))(t)
	require.NoError(t, sdk.Action.WaitFor(t.Context(), made.Action))
	must.First(sdk.LoadBalancer.Update(t.Context(), made.LoadBalancer, hcloud.LoadBalancerUpdateOpts{Name: "other"}))(t)
	must.First(sdk.LoadBalancer.AttachToNetwork(t.Context(), made.LoadBalancer, attach))(t) // An update locks nothing.
	must.Do(sdk.LoadBalancer.Delete(t.Context(), made.LoadBalancer))(t)
	must.Do(c.AdvanceClock(t.Context(), time.Hour))(t)
	assert.Equal(t, hcloud.ActionStatusSuccess, must.First(sdk.Action.GetByID(t.Context(), made.Action.ID))(t).Status)
}
