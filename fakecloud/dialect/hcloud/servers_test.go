package hcloud_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
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

// createServer creates a server as documented examples do, in a network with one subnet.
func createServer(t *testing.T, c *cloudtest.Cloud, sdk *hcloud.Client) (hcloud.ServerCreateResult, *hcloud.Network) {
	t.Helper()
	network := must.First(sdk.Network.Create(t.Context(), hcloud.NetworkCreateOpts{
		Name: "My Net_1", IPRange: cidr(t, "10.1.0.0/16"), Labels: map[string]string{"env": "test"},
		Subnets: []hcloud.NetworkSubnet{{
			Type: hcloud.NetworkSubnetTypeCloud, IPRange: cidr(t, "10.1.0.0/24"), NetworkZone: networkZoneOf(t, c),
		}},
	}))(t)
	made := must.First(sdk.Server.Create(t.Context(), hcloud.ServerCreateOpts{
		Name: "node-1", ServerType: &hcloud.ServerType{Name: "cpx11"}, Image: &hcloud.Image{Name: "ubuntu-24.04"},
		Location: &hcloud.Location{Name: zoneOf(t, c)}, Networks: []*hcloud.Network{network},
		Labels: map[string]string{"example.com/role": "worker"}, UserData: "#!/bin/sh",
	}))(t)
	require.NoError(t, sdk.Action.WaitFor(t.Context(), made.Action))
	return made, network
}

func cidr(t *testing.T, text string) *net.IPNet {
	t.Helper()
	_, network, err := net.ParseCIDR(text)
	require.NoError(t, err)
	return network
}

func networkZoneOf(t *testing.T, c *cloudtest.Cloud) hcloud.NetworkZone {
	t.Helper()
	return hcloud.NetworkZone(must.Do(c.ListZones(t.Context()))(t)[0].Region)
}

func TestServersAreMade(t *testing.T) {
	c, sdk := startCloud(t)
	made, network := createServer(t, c, sdk)
	assert.NotEmpty(t, made.RootPassword)
	s := must.First(sdk.Server.GetByID(t.Context(), made.Server.ID))(t)
	assert.Equal(t, hcloud.ServerStatusRunning, s.Status)
	assert.Equal(t, "cpx11", s.ServerType.Name)
	assert.Equal(t, "ubuntu-24.04", s.Image.Name)
	assert.Equal(t, map[string]string{"example.com/role": "worker"}, s.Labels)
	assert.Equal(t, network.ID, s.PrivateNet[0].Network.ID)
	assert.Equal(t, "10.1.0.2", s.PrivateNet[0].IP.String())
	assert.NotNil(t, s.PublicNet.IPv6.Network)
	ipv6 := must.First(sdk.PrimaryIP.GetByID(t.Context(), s.PublicNet.IPv6.ID))(t)
	assert.Equal(t, s.PublicNet.IPv6.Network.String(), ipv6.Network.String())
	assert.Equal(t, s.ID, ipv6.AssigneeID)
	await(t, sdk)(sdk.PrimaryIP.ChangeDNSPtr(t.Context(), hcloud.PrimaryIPChangeDNSPtrOpts{
		ID: ipv6.ID, IP: ipv6.IP.String(), DNSPtr: "node-1.example",
	}))
	assert.Len(t, must.First(sdk.PrimaryIP.Action.ListFor(t.Context(), ipv6, hcloud.ActionListOpts{}))(t), 1)
	assert.Len(t, must.Do(sdk.PrimaryIP.All(t.Context()))(t), 2)
	primary := must.First(sdk.PrimaryIP.GetByID(t.Context(), s.PublicNet.IPv4.ID))(t)
	assert.Equal(t, s.PublicNet.IPv4.IP.String(), primary.IP.String())
	assert.Equal(t, s.ID, primary.AssigneeID)
	assert.True(t, primary.AutoDelete)

	renamed := must.First(sdk.Server.Update(t.Context(), s, hcloud.ServerUpdateOpts{Name: "node-2"}))(t)
	assert.Equal(t, "node-2", renamed.Name)
	await(t, sdk)(sdk.Server.Poweroff(t.Context(), s))
	await(t, sdk)(sdk.Server.ChangeType(t.Context(), s, hcloud.ServerChangeTypeOpts{
		ServerType: &hcloud.ServerType{Name: "cpx31"},
	}))
	await(t, sdk)(sdk.Server.ChangeProtection(t.Context(), s, hcloud.ServerChangeProtectionOpts{
		Delete: hcloud.Ptr(true), Rebuild: hcloud.Ptr(true),
	}))
	s = must.First(sdk.Server.GetByID(t.Context(), s.ID))(t)
	assert.Equal(t, hcloud.ServerStatusOff, s.Status)
	assert.Equal(t, "cpx31", s.ServerType.Name)
	assert.True(t, s.Protection.Delete)
	requireError(t, hcloud.ErrorCodeProtected)(sdk.Server.DeleteWithResult(t.Context(), s))
	await(t, sdk)(sdk.Server.ChangeProtection(t.Context(), s, hcloud.ServerChangeProtectionOpts{
		Delete: hcloud.Ptr(false), Rebuild: hcloud.Ptr(false),
	}))
	await(t, sdk)(sdk.Server.Poweron(t.Context(), s))

	await(t, sdk)(sdk.Server.DetachFromNetwork(t.Context(), s, hcloud.ServerDetachFromNetworkOpts{Network: network}))
	s = must.First(sdk.Server.GetByID(t.Context(), s.ID))(t)
	assert.Empty(t, s.PrivateNet)
	await(t, sdk)(sdk.Server.AttachToNetwork(t.Context(), s, hcloud.ServerAttachToNetworkOpts{Network: network}))
	standard := must.First(sdk.Network.GetByName(t.Context(), "default"))(t)
	requireError(t, "unsupported_error")(
		sdk.Server.AttachToNetwork(t.Context(), s, hcloud.ServerAttachToNetworkOpts{Network: standard}),
	)
	requireError(t, "unsupported_error")(sdk.Server.DetachISO(t.Context(), s))
	requireError(t, hcloud.ErrorCodeNotFound)(sdk.Server.DetachISO(t.Context(), &hcloud.Server{ID: 999}))

	deleted := must.First(sdk.Server.DeleteWithResult(t.Context(), s))(t)
	require.NoError(t, sdk.Action.WaitFor(t.Context(), deleted.Action))
	assert.Nil(t, must.First(sdk.Server.GetByID(t.Context(), s.ID))(t))
	assert.Empty(t, must.Do(sdk.PrimaryIP.All(t.Context()))(t), "its primary IPs went with it")
	must.Do(sdk.Network.Delete(t.Context(), network))(t)
}

// What is not done is refused, and leaves nothing behind.
func TestServersThatCannotBe(t *testing.T) {
	c, sdk := startCloud(t, cloudtest.WithoutTraffic())
	create := func(change func(o *hcloud.ServerCreateOpts)) error {
		o := hcloud.ServerCreateOpts{
			Name: "node-1", ServerType: &hcloud.ServerType{Name: "cx23"}, Image: &hcloud.Image{Name: "debian-12"},
		}
		change(&o)
		_, _, err := sdk.Server.Create(t.Context(), o)
		return err
	}
	for code, changes := range map[hcloud.ErrorCode][]func(o *hcloud.ServerCreateOpts){
		hcloud.ErrorCodeInvalidInput: {
			func(o *hcloud.ServerCreateOpts) { o.ServerType = &hcloud.ServerType{Name: "cx999"} },
			func(o *hcloud.ServerCreateOpts) { o.Image = &hcloud.Image{Name: "windows"} },
			func(o *hcloud.ServerCreateOpts) { o.Location = &hcloud.Location{Name: "moon"} },
			func(o *hcloud.ServerCreateOpts) { o.Name = "a_b" },
			func(o *hcloud.ServerCreateOpts) { o.Labels = map[string]string{"a/b/c": "d"} },
			func(o *hcloud.ServerCreateOpts) { o.Labels = map[string]string{"a": "-"} },
			func(o *hcloud.ServerCreateOpts) { o.UserData = strings.Repeat("x", 32<<10+1) },
		},
		"unsupported_error": {
			func(o *hcloud.ServerCreateOpts) { o.StartAfterCreate = hcloud.Ptr(false) },
			func(o *hcloud.ServerCreateOpts) { o.Volumes = []*hcloud.Volume{{ID: 1}} },
			func(o *hcloud.ServerCreateOpts) { o.PlacementGroup = &hcloud.PlacementGroup{ID: 1} },
			func(o *hcloud.ServerCreateOpts) {
				o.Firewalls = []*hcloud.ServerCreateFirewall{{Firewall: hcloud.Firewall{ID: 1}}}
			},
		},
		hcloud.ErrorCodeNotFound: {
			func(o *hcloud.ServerCreateOpts) { o.Networks = []*hcloud.Network{{ID: 999}} },
			func(o *hcloud.ServerCreateOpts) { o.SSHKeys = []*hcloud.SSHKey{{ID: 999}} },
		},
	} {
		for _, change := range changes {
			requireError(t, code)(create(change))
		}
	}
	assert.Empty(t, must.Do(c.ListAddresses(t.Context(), client.AddressFilter{}))(t))
	assert.Empty(t, must.Do(c.ListInstances(t.Context(), client.InstanceFilter{}))(t))
}

func TestNetworksHaveSubnets(t *testing.T) {
	c, sdk := startCloud(t, cloudtest.WithoutTraffic())
	_, network := createServer(t, c, sdk)
	zone := networkZoneOf(t, c)
	await(t, sdk)(sdk.Network.AddSubnet(t.Context(), network, hcloud.NetworkAddSubnetOpts{
		Subnet: hcloud.NetworkSubnet{Type: hcloud.NetworkSubnetTypeCloud, NetworkZone: zone},
	}))
	requireError(t, hcloud.ErrorCodeInvalidInput)(sdk.Network.AddSubnet(t.Context(), network, hcloud.NetworkAddSubnetOpts{
		Subnet: hcloud.NetworkSubnet{
			Type: hcloud.NetworkSubnetTypeCloud, NetworkZone: zone, IPRange: cidr(t, "10.1.1.128/25"),
		},
	}))
	requireError(t, hcloud.ErrorCodeInvalidInput)(
		sdk.Network.ChangeIPRange(t.Context(), network, hcloud.NetworkChangeIPRangeOpts{IPRange: cidr(t, "10.0.0.0/8")}),
	)
	await(t, sdk)(sdk.Network.AddRoute(t.Context(), network, hcloud.NetworkAddRouteOpts{
		Route: hcloud.NetworkRoute{Destination: cidr(t, "10.100.1.0/24"), Gateway: net.ParseIP("10.1.0.77")},
	}))
	expose := hcloud.NetworkUpdateOpts{Name: "renamed", ExposeRoutesToVSwitch: hcloud.Ptr(true)}
	network = must.First(sdk.Network.Update(t.Context(), network, expose))(t)
	assert.True(t, network.ExposeRoutesToVSwitch)
	assert.Equal(t, "renamed", network.Name)
	require.Len(t, network.Subnets, 2)
	assert.Equal(t, "10.1.1.0/24", network.Subnets[1].IPRange.String())
	assert.Equal(t, "10.1.0.1", network.Subnets[1].Gateway.String(), "the first address of the network")
	assert.Len(t, network.Servers, 1)
	require.Len(t, network.Routes, 1)
	assert.Equal(t, "10.1.0.77", network.Routes[0].Gateway.String())
	await(t, sdk)(sdk.Network.DeleteRoute(t.Context(), network, hcloud.NetworkDeleteRouteOpts{Route: network.Routes[0]}))
	assert.Empty(t, must.First(sdk.Network.GetByID(t.Context(), network.ID))(t).Routes)
	await(t, sdk)(sdk.Network.DeleteSubnet(t.Context(), network, hcloud.NetworkDeleteSubnetOpts{
		Subnet: network.Subnets[0],
	}))
	assert.Len(t, must.First(sdk.Network.GetByID(t.Context(), network.ID))(t).Subnets, 1)
	requireError(t, hcloud.ErrorCodeConflict)(sdk.Network.Delete(t.Context(), network))
	empty := must.First(sdk.Network.Create(t.Context(), hcloud.NetworkCreateOpts{
		Name: "empty", IPRange: cidr(t, "10.2.0.0/24"),
		Routes: []hcloud.NetworkRoute{{Destination: cidr(t, "10.101.0.0/24"), Gateway: net.ParseIP("10.2.0.9")}},
	}))(t)
	assert.Len(t, empty.Routes, 1)
	await(t, sdk)(sdk.Network.ChangeIPRange(t.Context(), empty, hcloud.NetworkChangeIPRangeOpts{
		IPRange: cidr(t, "10.2.0.0/16"),
	}))
	assert.Equal(t, "10.2.0.0/16", must.First(sdk.Network.GetByID(t.Context(), empty.ID))(t).IPRange.String())
	await(t, sdk)(sdk.Network.ChangeProtection(t.Context(), empty, hcloud.NetworkChangeProtectionOpts{
		Delete: hcloud.Ptr(true),
	}))
	requireError(t, hcloud.ErrorCodeProtected)(sdk.Network.Delete(t.Context(), empty))
}

func TestListsAreSortedAndLinked(t *testing.T) {
	c, sdk := startCloud(t, cloudtest.WithoutTraffic())
	for _, name := range []string{"b", "c", "a"} {
		must.Do(c.CreateInstance(t.Context(), api.InstanceCreate{Name: name}))(t)
	}
	opts := hcloud.ServerListOpts{Sort: []string{"name:desc"}, ListOpts: hcloud.ListOpts{Page: 2, PerPage: 1}}
	page, resp, err := sdk.Server.List(t.Context(), opts)
	require.NoError(t, err)
	assert.Equal(t, "b", page[0].Name)
	url := c.DialectURL("hcloud") + "/v1/servers?page=%s&per_page=1&sort=name%%3Adesc"
	for _, page := range []string{"1>; rel=\"prev\"", "3>; rel=\"next\"", "3>; rel=\"last\""} {
		number, rel := page[:1], page[1:]
		assert.Contains(t, resp.Header.Get("Link"), "<"+fmt.Sprintf(url, number)+rel)
	}
	requireError(t, hcloud.ErrorCodeInvalidInput)(sdk.Server.List(t.Context(), hcloud.ServerListOpts{
		Sort: []string{"status"},
	}))
}

// Clients other than Go's tell null from what is empty.
func TestEmptyListsAndMissingObjects(t *testing.T) {
	c, _ := startCloud(t)
	in := createInstance(t, c, "node-1")
	c.AwaitInstance(in.ID, api.InstanceRunning)
	request := must.Do(http.NewRequestWithContext(
		t.Context(), http.MethodGet, c.DialectURL("hcloud")+"/v1/servers", nil,
	))(t)
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(must.Do(os.ReadFile(c.TokenFile))(t))))
	resp := must.Do((&http.Client{Timeout: time.Minute}).Do(request))(t)
	defer func() { require.NoError(t, resp.Body.Close()) }()
	var body struct {
		Servers []map[string]any `json:"servers"`
		Meta    struct {
			Pagination map[string]any `json:"pagination"`
		} `json:"meta"`
	}
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&body))
	s := body.Servers[0]
	assert.Equal(t, map[string]any{
		"ipv4": nil, "ipv6": nil, "floating_ips": []any{}, "firewalls": []any{},
	}, s["public_net"])
	assert.Equal(t, []any{}, s["volumes"])
	assert.Contains(t, s, "image")
	assert.Nil(t, s["image"])
	assert.Contains(t, body.Meta.Pagination, "next_page")
	assert.Nil(t, body.Meta.Pagination["next_page"])
}
