package hcloud_test

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/cloudtest"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
	"github.com/ccmlab/ccmlab/fakecloud/internal/testcerts"
)

// send sends a body as it is, and gives the answer's.
func send(t *testing.T, sdk *hcloud.Client, method, path, body string) (status int, header http.Header, answer map[string]any) {
	t.Helper()
	req := must.Do(sdk.NewRequest(t.Context(), method, path, strings.NewReader(body)))(t)
	resp := must.Do(http.DefaultClient.Do(req))(t)
	raw := must.Do(io.ReadAll(resp.Body))(t)
	require.NoError(t, resp.Body.Close())
	require.NoError(t, json.Unmarshal(raw, &answer), "%s", raw)
	return resp.StatusCode, resp.Header, answer
}

// All that a balancer is created with is made in one native create.
func TestLoadBalancerIsCreatedWhole(t *testing.T) {
	c, sdk := startCloud(t, cloudtest.WithoutTraffic())
	in := createInstance(t, c, "node-1")
	network := must.First(sdk.Network.GetByName(t.Context(), "default"))(t)
	service := hcloud.LoadBalancerCreateOptsService{Protocol: hcloud.LoadBalancerServiceProtocolHTTP}
	made := must.First(sdk.LoadBalancer.Create(t.Context(), hcloud.LoadBalancerCreateOpts{
		Name: "web", LoadBalancerType: &hcloud.LoadBalancerType{Name: "lb11"}, Network: network,
		Location: &hcloud.Location{Name: zoneOf(t, c)}, PublicInterface: hcloud.Ptr(false),
		Algorithm: &hcloud.LoadBalancerAlgorithm{Type: hcloud.LoadBalancerAlgorithmTypeLeastConnections},
		Services:  []hcloud.LoadBalancerCreateOptsService{service},
		Targets: []hcloud.LoadBalancerCreateOptsTarget{{
			Type: hcloud.LoadBalancerTargetTypeServer, UsePrivateIP: hcloud.Ptr(true),
			Server: hcloud.LoadBalancerCreateOptsTargetServer{Server: &hcloud.Server{ID: in.Serial}},
		}},
	}))(t)
	require.NoError(t, sdk.Action.WaitFor(t.Context(), made.Action))
	lb := must.First(sdk.LoadBalancer.GetByID(t.Context(), made.LoadBalancer.ID))(t)
	assert.Equal(t, network.ID, lb.PrivateNet[0].Network.ID)
	assert.False(t, lb.PublicNet.Enabled)
	assert.Equal(t, hcloud.LoadBalancerAlgorithmTypeLeastConnections, lb.Algorithm.Type)
	assert.Equal(t, in.Serial, lb.Targets[0].Server.Server.ID)
	assert.Equal(t, 80, lb.Services[0].ListenPort)
	assert.Equal(t, 80, lb.Services[0].DestinationPort)
	assert.Equal(t, "HCLBSTICKY", lb.Services[0].HTTP.CookieName)
	changes := must.Do(c.ListAudit(t.Context(), client.AuditFilter{Operation: "updateLoadBalancer"}, 10))(t)
	assert.Empty(t, changes)
	assert.Equal(t, api.ProtocolHTTP, must.Do(c.ListLoadBalancers(t.Context(), client.LoadBalancerFilter{}))(t)[0].Listeners[0].Protocol)
}

// Programs add services and targets in parallel: each of them is there in the end.
func TestParallelActionsAreAllMade(t *testing.T) {
	c, sdk := startCloud(t, cloudtest.WithoutTraffic())
	lb := createBalancer(t, c, sdk)
	var group sync.WaitGroup
	for n := range 5 {
		group.Go(func() {
			_, _, err := sdk.LoadBalancer.AddService(t.Context(), lb, tcpService(80+n, 30080+n))
			assert.NoError(t, err)
		})
	}
	group.Wait()
	assert.Len(t, must.First(sdk.LoadBalancer.GetByID(t.Context(), lb.ID))(t).Services, 5)
}

// A balancer that leaves its network loses the targets that it reached there.
func TestDetachDropsPrivateTargets(t *testing.T) {
	c, sdk := startCloud(t, cloudtest.WithoutTraffic())
	private, public := createInstance(t, c, "node-1"), createInstance(t, c, "node-2")
	address := must.Do(c.ReserveAddress(t.Context(), api.ReservedAddressCreate{}))(t)
	must.Do(c.AttachAddress(t.Context(), address.ID, api.AddressAttach{InstanceID: public.ID}))(t)
	lb := createBalancer(t, c, sdk)
	for _, in := range []*api.Instance{private, public} {
		await(t, sdk)(sdk.LoadBalancer.AddServerTarget(t.Context(), lb, hcloud.LoadBalancerAddServerTargetOpts{
			Server: &hcloud.Server{ID: in.Serial}, UsePrivateIP: hcloud.Ptr(in == private),
		}))
	}
	await(t, sdk)(sdk.LoadBalancer.AddLabelSelectorTarget(t.Context(), lb, hcloud.LoadBalancerAddLabelSelectorTargetOpts{
		Selector: "cluster=lab", UsePrivateIP: hcloud.Ptr(true),
	}))
	_, _, err := sdk.LoadBalancer.DisablePublicInterface(t.Context(), lb)
	requireError(t, "targets_without_use_private_ip")(err)
	await(t, sdk)(sdk.LoadBalancer.DetachFromNetwork(t.Context(), lb, hcloud.LoadBalancerDetachFromNetworkOpts{
		Network: lb.PrivateNet[0].Network,
	}))
	lb = must.First(sdk.LoadBalancer.GetByID(t.Context(), lb.ID))(t)
	assert.Empty(t, lb.PrivateNet)
	require.Len(t, lb.Targets, 1)
	assert.Equal(t, public.Serial, lb.Targets[0].Server.Server.ID)
	_, _, err = sdk.LoadBalancer.DisablePublicInterface(t.Context(), lb)
	requireError(t, "load_balancer_not_attached_to_network")(err)
}

// A target by labels is the servers that have them when the balancer is changed.
func TestTargetsByLabels(t *testing.T) {
	c, sdk := startCloud(t, cloudtest.WithoutTraffic())
	one := createInstance(t, c, "node-1")
	must.Do(c.CreateInstance(t.Context(), api.InstanceCreate{Name: "other"}))(t)
	lb := createBalancer(t, c, sdk)
	selector := hcloud.LoadBalancerAddLabelSelectorTargetOpts{Selector: "cluster=lab", UsePrivateIP: hcloud.Ptr(true)}
	await(t, sdk)(sdk.LoadBalancer.AddLabelSelectorTarget(t.Context(), lb, selector))
	requireError(t, hcloud.ErrorCodeTargetAlreadyDefined)(sdk.LoadBalancer.AddLabelSelectorTarget(t.Context(), lb, selector))
	two := createInstance(t, c, "node-2")
	targets := func() (serials []int64) {
		lb = must.First(sdk.LoadBalancer.GetByID(t.Context(), lb.ID))(t)
		require.Len(t, lb.Targets, 1)
		assert.Equal(t, "cluster=lab", lb.Targets[0].LabelSelector.Selector)
		for _, target := range lb.Targets[0].Targets {
			serials = append(serials, target.Server.Server.ID)
		}
		slices.Sort(serials)
		return serials
	}
	assert.Equal(t, []int64{one.Serial}, targets())
	await(t, sdk)(sdk.LoadBalancer.AddService(t.Context(), lb, tcpService(80, 30080)))
	assert.Equal(t, []int64{one.Serial, two.Serial}, targets())
	await(t, sdk)(sdk.LoadBalancer.RemoveLabelSelectorTarget(t.Context(), lb, "cluster=lab"))
	assert.Empty(t, must.Do(c.ListLoadBalancers(t.Context(), client.LoadBalancerFilter{}))(t)[0].Targets)
}

// A target by IP is an address that servers might have, and none has.
func TestTargetsByIP(t *testing.T) {
	c, sdk := startCloud(t, cloudtest.WithoutTraffic())
	in := createInstance(t, c, "node-1")
	lb := createBalancer(t, c, sdk)
	add := func(ip net.IP) error {
		_, _, err := sdk.LoadBalancer.AddIPTarget(t.Context(), lb, hcloud.LoadBalancerAddIPTargetOpts{IP: ip})
		return err
	}
	own := net.ParseIP(in.Addresses[0].IP).To4()
	requireError(t, hcloud.ErrorCodeCloudResourceIPNotAllowed)(add(own))
	requireError(t, hcloud.ErrorCodeIPNotOwned)(add(net.ParseIP("203.0.113.1")))
	free := net.IPv4(own[0], own[1], own[2], own[3]+1)
	require.NoError(t, add(free))
	requireError(t, hcloud.ErrorCodeTargetAlreadyDefined)(add(free))
	lb = must.First(sdk.LoadBalancer.GetByID(t.Context(), lb.ID))(t)
	require.Len(t, lb.Targets, 1)
	assert.Equal(t, free.String(), lb.Targets[0].IP.IP)
	await(t, sdk)(sdk.LoadBalancer.RemoveIPTarget(t.Context(), lb, free))
	requireError(t, hcloud.ErrorCodeNotFound)(sdk.LoadBalancer.RemoveIPTarget(t.Context(), lb, free))
	assert.Empty(t, must.First(sdk.LoadBalancer.GetByID(t.Context(), lb.ID))(t).Targets)
}

// What is wrong is refused by its field, in Hetzner's words.
func TestLoadBalancerRefusals(t *testing.T) {
	c, sdk := startCloud(t, cloudtest.WithoutTraffic())
	create := `{"name": "web", "load_balancer_type": "lb11", "location": "` + zoneOf(t, c) + `", `
	for body, want := range map[string]string{
		`"services": [{"protocol": "udp"}]}`:                                               "services.0.protocol",
		`"services": [{"protocol": "tcp", "destination_port": 80}]}`:                       "services.0.listen_port",
		`"services": [{"protocol": "https"}]}`:                                             "services.0.http.certificates",
		`"services": [{"protocol": "http", "http": {"timeout_idle": 29}}]}`:                "services.0.http.timeout_idle",
		`"services": [{"protocol": "http", "http": {"redirect_http": true}}]}`:             "services.0.http.redirect_http",
		`"services": [{"protocol": "http", "http": {"cookie_lifetime": -1}}]}`:             "services.0.http.cookie_lifetime",
		`"services": [{"protocol": "http", "health_check": {"interval": 2}}]}`:             "services.0.health_check.interval",
		`"services": [{"protocol": "http", "health_check": {"protocol": "https"}}]}`:       "services.0.health_check.protocol",
		`"services": [{"protocol": "tcp", "listen_port": 70000, "destination_port": 80}]}`: "services.0.listen_port",
		`"targets": [{"type": "server"}]}`:                                                 "targets.0.server",
		`"targets": [{"type": "label_selector", "label_selector": {"selector": "a b"}}]}`:  "targets.0.label_selector.selector",
		`"algorithm": {"type": "random"}}`:                                                 "algorithm.type",
	} {
		status, _, answer := send(t, sdk, "POST", "/load_balancers", create+body)
		refusal := answer["error"].(map[string]any)
		assert.Equal(t, http.StatusUnprocessableEntity, status, body)
		assert.Equal(t, "invalid_input", refusal["code"], body)
		assert.Contains(t, refusal["message"], "invalid input in field '"+want+"': ", body)
		fields := refusal["details"].(map[string]any)["fields"].([]any)
		assert.Equal(t, want, fields[0].(map[string]any)["name"], body)
	}
	for body, want := range map[string]string{
		`"targets": [{"type": "ip", "ip": {"ip": "203.0.113.1"}}]}`:              "ip_not_owned",
		`"services": [{"protocol": "https", "http": {"certificates": [4711]}}]}`: "not_found",
		`"services": [{"protocol": "http"}, {"protocol": "http"}]}`:              "source_port_already_used",
		`"network": 4711}`: "not_found",
		`"targets": [{"type": "label_selector", "label_selector": {"selector": "a"}}], "x": }`: "json_error",
	} {
		_, header, answer := send(t, sdk, "POST", "/load_balancers", create+body)
		assert.Equal(t, want, answer["error"].(map[string]any)["code"], body)
		assert.NotEmpty(t, header.Get("X-Correlation-Id"))
	}
	assert.Empty(t, must.Do(c.ListLoadBalancers(t.Context(), client.LoadBalancerFilter{}))(t), "nothing is made")
}

// What is not there is null or an empty list, whatever a client is written in.
func TestLoadBalancerHasNoEmptyTexts(t *testing.T) {
	_, sdk := startCloud(t, cloudtest.WithoutTraffic())
	_, _, made := send(t, sdk, "POST", "/load_balancers", `{"name": "web", "load_balancer_type": "lb11", "location": 1,
		"services": [{"protocol": "tcp", "listen_port": 80, "destination_port": 80}, {"protocol": "http",
		"listen_port": 81, "health_check": {"protocol": "http"}}], "targets": [{"type": "label_selector",
		"label_selector": {"selector": "a=b"}}]}`)
	lb := made["load_balancer"].(map[string]any)
	public := lb["public_net"].(map[string]any)
	assert.Nil(t, public["ipv4"].(map[string]any)["dns_ptr"])
	assert.NotEmpty(t, public["ipv4"].(map[string]any)["ip"])
	assert.Equal(t, []any{}, lb["private_net"])
	assert.Equal(t, map[string]any{}, lb["labels"])
	assert.Len(t, lb["load_balancer_type"].(map[string]any)["prices"], 3)
	assert.Equal(t, 10., lb["load_balancer_type"].(map[string]any)["max_assigned_certificates"])
	tcp, http := lb["services"].([]any)[0].(map[string]any), lb["services"].([]any)[1].(map[string]any)
	assert.Nil(t, tcp["http"])
	assert.Nil(t, tcp["health_check"].(map[string]any)["http"])
	assert.Equal(t, []any{}, http["http"].(map[string]any)["certificates"])
	check := http["health_check"].(map[string]any)["http"].(map[string]any)
	assert.Nil(t, check["domain"])
	assert.Equal(t, []any{"2??", "3??"}, check["status_codes"])
	assert.Equal(t, []any{map[string]any{
		"type": "label_selector", "label_selector": map[string]any{"selector": "a=b"}, "use_private_ip": false,
		"targets": []any{},
	}}, lb["targets"])
}

// What keeps a balancer from its port is the error of the action.
func TestFailedActionsSayWhy(t *testing.T) {
	c, sdk := startCloud(t)
	lb := createBalancer(t, c, sdk)
	taken := must.Do(net.Listen("tcp", lb.PublicNet.IPv4.IP.String()+":0"))(t)
	defer func() { require.NoError(t, taken.Close()) }()
	port := taken.Addr().(*net.TCPAddr).Port
	action := must.First(sdk.LoadBalancer.AddService(t.Context(), lb, tcpService(port, 30080)))(t)
	err := sdk.Action.WaitFor(t.Context(), action)
	require.ErrorContains(t, err, "another server holds port")
}

// What a service says of HTTP is in force: the listener has it, and another one redirects.
func TestServicesOfHTTPAreInForce(t *testing.T) {
	c, sdk := startCloud(t, cloudtest.WithoutTraffic())
	cert, key := testcerts.For(t, "shop.example")
	certificate := must.Do(c.CreateCertificate(t.Context(), api.CertificateCreate{
		Name: "shop", Certificate: cert, PrivateKey: key,
	}))(t)
	lb := createBalancer(t, c, sdk)
	add := hcloud.LoadBalancerAddServiceOpts{
		Protocol: hcloud.LoadBalancerServiceProtocolHTTPS,
		HTTP: &hcloud.LoadBalancerAddServiceOptsHTTP{
			Certificates: []*hcloud.Certificate{{ID: certificate.Serial}}, RedirectHTTP: hcloud.Ptr(true),
			StickySessions: hcloud.Ptr(true), CookieLifetime: hcloud.Ptr(time.Minute), TimeoutIdle: hcloud.Ptr(30 * time.Second),
		},
		HealthCheck: &hcloud.LoadBalancerAddServiceOptsHealthCheck{
			Protocol: hcloud.LoadBalancerServiceProtocolHTTP,
			HTTP: &hcloud.LoadBalancerAddServiceOptsHealthCheckHTTP{
				Domain: hcloud.Ptr("shop.example"), Response: hcloud.Ptr("ok"), TLS: hcloud.Ptr(true),
				StatusCodes: []string{"20?", "301", "4*"},
			},
		},
	}
	await(t, sdk)(sdk.LoadBalancer.AddService(t.Context(), lb, add))
	native := must.Do(c.ListLoadBalancers(t.Context(), client.LoadBalancerFilter{}))(t)[0]
	assert.Equal(t, api.Listeners{
		{
			Protocol: api.ProtocolHTTPS, Port: 443, TargetPort: 80, CertificateIDs: []string{certificate.ID},
			StickyCookie: "HCLBSTICKY", StickyCookieSeconds: 60, IdleTimeoutSeconds: 30,
			HealthCheck: api.HealthCheck{
				Protocol: api.HealthCheckHTTPS, Port: 80, Path: "/", Host: "shop.example", Response: "ok",
				ExpectedCodes: "200-209,301,400-499", IntervalSeconds: 15, TimeoutSeconds: 10,
				HealthyThreshold: 3, UnhealthyThreshold: 3,
			},
		},
		{Protocol: api.ProtocolHTTP, Port: 80, TargetPort: 80, RedirectPort: 443},
	}, native.Listeners)
	assert.Len(t, must.First(sdk.LoadBalancer.GetByID(t.Context(), lb.ID))(t).Services, 1)
	requireError(t, hcloud.ErrorCodeSourcePortAlreadyUsed)(sdk.LoadBalancer.AddService(t.Context(), lb, tcpService(80, 30080)))
	await(t, sdk)(sdk.LoadBalancer.DeleteService(t.Context(), lb, 443))
	assert.Empty(t, must.Do(c.ListLoadBalancers(t.Context(), client.LoadBalancerFilter{}))(t)[0].Listeners)
}

// Every balancer has an IPv6 address, be it a record.
func TestLoadBalancersHaveIPv6(t *testing.T) {
	for name, options := range map[string][]cloudtest.Option{"genuine": {cloudtest.IPv6()}, "recorded": nil} {
		t.Run(name, func(t *testing.T) {
			c, sdk := startCloud(t, options...)
			lb := createBalancer(t, c, sdk)
			require.NotNil(t, lb.PublicNet.IPv6.IP)
			ip := lb.PublicNet.IPv6.IP.String()
			assert.Equal(t, name == "recorded", strings.HasPrefix(ip, "2001:db8:"))
			await(t, sdk)(sdk.LoadBalancer.ChangeDNSPtr(t.Context(), lb, ip, hcloud.Ptr("lb.example")))
			assert.Equal(t, "lb.example", must.First(sdk.LoadBalancer.GetByID(t.Context(), lb.ID))(t).PublicNet.IPv6.DNSPtr)
		})
	}
}

// The CCM makes a balancer without a public network before it attaches it.
func TestPrivateLoadBalancerIsAttachedLater(t *testing.T) {
	c, sdk := startCloud(t, cloudtest.WithoutTraffic())
	made := must.First(sdk.LoadBalancer.Create(t.Context(), hcloud.LoadBalancerCreateOpts{
		Name: "web", LoadBalancerType: &hcloud.LoadBalancerType{Name: "lb11"},
		Location: &hcloud.Location{Name: zoneOf(t, c)}, PublicInterface: hcloud.Ptr(false),
	}))(t)
	require.NoError(t, sdk.Action.WaitFor(t.Context(), made.Action))
	await(t, sdk)(sdk.LoadBalancer.AttachToNetwork(t.Context(), made.LoadBalancer, hcloud.LoadBalancerAttachToNetworkOpts{
		Network: must.First(sdk.Network.GetByName(t.Context(), "default"))(t),
	}))
	lb := must.First(sdk.LoadBalancer.GetByID(t.Context(), made.LoadBalancer.ID))(t)
	assert.False(t, lb.PublicNet.Enabled)
	assert.Len(t, lb.PrivateNet, 1)
}
