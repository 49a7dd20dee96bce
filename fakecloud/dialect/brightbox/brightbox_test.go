package brightbox_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	brightbox "github.com/brightbox/gobrightbox/v2"
	"github.com/brightbox/gobrightbox/v2/clientcredentials"
	"github.com/brightbox/gobrightbox/v2/endpoint"
	"github.com/brightbox/gobrightbox/v2/enums/balancingpolicy"
	"github.com/brightbox/gobrightbox/v2/enums/cloudipstatus"
	"github.com/brightbox/gobrightbox/v2/enums/healthchecktype"
	"github.com/brightbox/gobrightbox/v2/enums/listenerprotocol"
	"github.com/brightbox/gobrightbox/v2/enums/loadbalancerstatus"
	"github.com/brightbox/gobrightbox/v2/enums/serverstatus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/cloudtest"
	dialect "github.com/ccmlab/ccmlab/fakecloud/dialect/brightbox"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

const patience = 30 * time.Second

// startCloud starts a cloud that speaks the dialect, and makes the official SDK's client of it, which refuses
// fields that it does not know.
func startCloud(t *testing.T) (*cloudtest.Cloud, *brightbox.Client) {
	t.Helper()
	c := cloudtest.Start(t, cloudtest.WithoutTraffic(), cloudtest.Dialect(dialect.Dialect))
	return c, must.Do(connect(t.Context(), c, strings.TrimSpace(string(must.Do(os.ReadFile(c.TokenFile))(t)))))(t)
}

func connect(ctx context.Context, c *cloudtest.Cloud, secret string) (*brightbox.Client, error) {
	sdk, err := brightbox.Connect(ctx, &clientcredentials.Config{
		ID: "cli-00001", Secret: secret,
		Config: endpoint.Config{BaseURL: c.DialectURL("brightbox") + "/", Scopes: endpoint.FullScope},
	})
	if err == nil {
		sdk.DisallowUnknownFields()
	}
	return sdk, err
}

func serverID(in *api.Instance) string {
	return strings.TrimPrefix(in.Identities["brightbox"], "brightbox://")
}

// requireStatus wants a call to be refused with a status.
func requireStatus(t *testing.T, status int) func(results ...any) {
	return func(results ...any) {
		t.Helper()
		err, _ := results[len(results)-1].(error)
		var refused *brightbox.APIError
		require.ErrorAs(t, err, &refused)
		require.Equal(t, status, refused.StatusCode, refused.Error())
	}
}

func TestTokens(t *testing.T) {
	c, sdk := startCloud(t)
	accounts := must.Do(sdk.Accounts(t.Context()))(t)
	require.Len(t, accounts, 1)
	assert.Equal(t, must.Do(c.Client.Project(t.Context()))(t).Name, accounts[0].Name)

	access := must.Do(sdk.ExtractTokenID())(t)
	for _, secret := range []string{"wrong-wrong-wrong", access} {
		refused, err := connect(t.Context(), c, secret)
		if err == nil {
			_, err = refused.Accounts(t.Context())
		}
		require.ErrorContains(t, err, "invalid_client", secret)
	}
}

// TestTokenRequests tells what of RFC 6749 its clients may count on, beside the SDK's own way.
func TestTokenRequests(t *testing.T) {
	c, _ := startCloud(t)
	token := must.Do(os.ReadFile(c.TokenFile))(t)
	secret := strings.TrimSpace(string(token))
	ask := func(method, path, password, form string) (int, string) {
		request := must.Do(http.NewRequestWithContext(
			t.Context(), method, c.DialectURL("brightbox")+path, strings.NewReader(form),
		))(t)
		request.SetBasicAuth("cli-00001", password)
		answer := must.Do(http.DefaultClient.Do(request))(t)
		body, err := io.ReadAll(answer.Body)
		require.NoError(t, errors.Join(err, answer.Body.Close()))
		return answer.StatusCode, string(body)
	}
	encoded := fmt.Sprintf("%%%02x%s", secret[0], secret[1:])
	for _, password := range []string{secret, encoded} {
		status, body := ask(http.MethodPost, "/token/", password, "grant_type=client_credentials")
		assert.Equal(t, http.StatusOK, status, body)
	}
	for form, code := range map[string]string{
		"": "invalid_request", "grant_type=password": "unsupported_grant_type",
	} {
		status, body := ask(http.MethodPost, "/token/", secret, form)
		assert.Equal(t, http.StatusBadRequest, status)
		assert.Contains(t, body, code)
	}
	status, _ := ask(http.MethodGet, "/1.0/accounts", secret, "")
	assert.Equal(t, http.StatusUnauthorized, status, "other calls need an access token")
}

func TestServers(t *testing.T) {
	c, sdk := startCloud(t)
	in, ctx := c.RunInstance("node-1"), t.Context()
	byID := must.Do(sdk.Server(ctx, serverID(in)))(t)
	assert.Equal(t, serverID(in), byID.ID)
	assert.Equal(t, serverstatus.Active, byID.Status)
	assert.Equal(t, in.Zone, byID.Zone.Handle)
	assert.Equal(t, string(in.Type), byID.ServerType.Handle)
	require.Len(t, byID.Interfaces, 1)
	assert.Equal(t, in.Addresses[0].IP, byID.Interfaces[0].IPv4Address)
	assert.Contains(t, byID.Interfaces[0].IPv6Address, "2001:db8::")
	assert.Equal(t, byID, must.Do(sdk.Server(ctx, "node-1"))(t))

	must.Do(c.StopInstance(ctx, in.ID))(t)
	becomes := func(want serverstatus.Enum) {
		t.Helper()
		require.Eventually(t, func() bool {
			s, err := sdk.Server(ctx, byID.ID)
			return err == nil && s.Status == want
		}, patience, 5*time.Millisecond)
	}
	becomes(serverstatus.Inactive)
	must.Do(c.TerminateInstance(ctx, in.ID))(t)
	becomes(serverstatus.Deleted)
	requireStatus(t, http.StatusNotFound)(sdk.Server(ctx, "node-1"))
	requireStatus(t, http.StatusNotFound)(sdk.Server(ctx, "srv-zzzzz"))
}

// await asks for a balancer until it has a status.
func await(t *testing.T, sdk *brightbox.Client, id string, want loadbalancerstatus.Enum) *brightbox.LoadBalancer {
	t.Helper()
	var lb *brightbox.LoadBalancer
	require.Eventually(t, func() bool {
		var err error
		lb, err = sdk.LoadBalancer(t.Context(), id)
		return err == nil && lb.Status == want
	}, patience, 5*time.Millisecond)
	return lb
}

func TestLoadBalancers(t *testing.T) {
	c, sdk := startCloud(t)
	one, two, ctx := c.RunInstance("node-1"), c.RunInstance("node-2"), t.Context()
	name := "web.default.lab"
	options := brightbox.LoadBalancerOptions{
		Name: &name, Nodes: []brightbox.LoadBalancerNode{{Node: serverID(two)}, {Node: serverID(one)}},
		Listeners: []brightbox.LoadBalancerListener{{Protocol: listenerprotocol.Tcp, In: 80, Out: 30080}},
		Healthcheck: &brightbox.LoadBalancerHealthcheck{
			Type: healthchecktype.Http, Port: 30080, Request: "/healthz",
		},
		HTTPSRedirect: new(bool),
	}
	made := must.Do(sdk.CreateLoadBalancer(ctx, options))(t)
	assert.Equal(t, name, made.Name)
	assert.Equal(t, balancingpolicy.LeastConnections, made.Policy)
	assert.Equal(t, []string{serverID(two), serverID(one)}, []string{made.Nodes[0].ID, made.Nodes[1].ID}, "as given")
	assert.EqualValues(t, 50_000, made.Listeners[0].Timeout)
	assert.Equal(t, brightbox.LoadBalancerHealthcheck{
		Type: healthchecktype.Http, Port: 30080, Request: "/healthz", Interval: 5000, Timeout: 5000, ThresholdUp: 3,
		ThresholdDown: 3,
	}, made.Healthcheck)
	lb := await(t, sdk, made.ID, loadbalancerstatus.Active)
	twin := must.Do(sdk.CreateLoadBalancer(ctx, options))(t, "names need not be unique")

	native := must.Do(c.ListLoadBalancers(ctx, client.LoadBalancerFilter{Tags: []string{"name=" + name}}))(t)
	require.Len(t, native, 2)
	assert.EqualValues(t, 5, native[0].HealthCheck.IntervalSeconds)

	changed := must.Do(sdk.UpdateLoadBalancer(ctx, brightbox.LoadBalancerOptions{
		ID: lb.ID, Policy: balancingpolicy.RoundRobin, Nodes: options.Nodes[:1],
		Listeners: []brightbox.LoadBalancerListener{{Protocol: listenerprotocol.Tcp, In: 81, Out: 30081, Timeout: 9000}},
	}))(t)
	assert.Equal(t, name, changed.Name)
	assert.Equal(t, balancingpolicy.RoundRobin, changed.Policy)
	assert.Len(t, changed.Nodes, 1)
	assert.EqualValues(t, 9000, changed.Listeners[0].Timeout)
	assert.Equal(t, made.Healthcheck, changed.Healthcheck)

	must.Do(sdk.DestroyLoadBalancer(ctx, lb.ID))(t)
	gone := await(t, sdk, lb.ID, loadbalancerstatus.Deleted)
	assert.Equal(t, name, gone.Name, "what was deleted stays readable")
	assert.NotNil(t, gone.DeletedAt)
	all := must.Do(sdk.LoadBalancers(ctx))(t)
	require.Len(t, all, 1)
	assert.Equal(t, twin.ID, all[0].ID)

	options.Listeners[0].Protocol = listenerprotocol.Https
	requireStatus(t, http.StatusUnprocessableEntity)(sdk.CreateLoadBalancer(ctx, options))
	options.Listeners[0].Protocol, options.Nodes[0].Node = listenerprotocol.Tcp, "srv-zzzzz"
	requireStatus(t, http.StatusUnprocessableEntity)(sdk.CreateLoadBalancer(ctx, options))
	requireStatus(t, http.StatusNotFound)(sdk.LoadBalancer(ctx, "lba-zzzzz"))
}

func TestCloudIPs(t *testing.T) {
	c, sdk := startCloud(t)
	ctx, name := t.Context(), "web.default.lab"
	ip := must.Do(sdk.CreateCloudIP(ctx, brightbox.CloudIPOptions{Name: &name}))(t)
	assert.Equal(t, cloudipstatus.Unmapped, ip.Status)
	assert.NotEmpty(t, ip.PublicIPv6)
	assert.NotEqual(t, ip.Fqdn, ip.ReverseDNS)
	lb := must.Do(sdk.CreateLoadBalancer(ctx, brightbox.LoadBalancerOptions{Name: &name}))(t)
	mapped := must.Do(sdk.MapCloudIP(ctx, ip.ID, brightbox.CloudIPAttachment{Destination: lb.ID}))(t)
	assert.Equal(t, cloudipstatus.Mapped, mapped.Status)
	assert.Equal(t, []string{lb.ID, name}, []string{mapped.LoadBalancer.ID, mapped.LoadBalancer.Name})
	lb = must.Do(sdk.LoadBalancer(ctx, lb.ID))(t)
	require.Len(t, lb.CloudIPs, 1)
	assert.Equal(t, ip.ID, lb.CloudIPs[0].ID)
	requireStatus(t, http.StatusConflict)(sdk.DestroyCloudIP(ctx, ip.ID))

	in := c.RunInstance("node-1")
	_, err := sdk.MapCloudIP(ctx, ip.ID, brightbox.CloudIPAttachment{Destination: serverID(in)})
	requireStatus(t, http.StatusConflict)(err)
	must.Do(sdk.UnMapCloudIP(ctx, ip.ID))(t)
	ofServer := must.Do(sdk.MapCloudIP(ctx, ip.ID, brightbox.CloudIPAttachment{Destination: serverID(in)}))(t)
	assert.Equal(t, serverID(in), ofServer.Server.ID)
	require.Len(t, must.Do(sdk.Server(ctx, serverID(in)))(t).CloudIPs, 1)
	must.Do(sdk.UnMapCloudIP(ctx, ip.ID))(t)
	_, err = sdk.MapCloudIP(ctx, ip.ID, brightbox.CloudIPAttachment{Destination: "lba-zzzzz"})
	requireStatus(t, http.StatusUnprocessableEntity)(err)

	must.Do(sdk.MapCloudIP(ctx, ip.ID, brightbox.CloudIPAttachment{Destination: lb.ID}))(t)
	must.Do(sdk.DestroyLoadBalancer(ctx, lb.ID))(t)
	require.Eventually(t, func() bool {
		_, err := sdk.DestroyCloudIP(ctx, ip.ID)
		return err == nil
	}, patience, 5*time.Millisecond, "its balancer is gone after a while")
	assert.Empty(t, must.Do(sdk.CloudIPs(ctx))(t))
}

func TestServerGroupsFilter(t *testing.T) {
	c, sdk := startCloud(t)
	in, ctx, name := c.RunInstance("node-1"), t.Context(), "web.default.lab"
	group := must.Do(sdk.CreateServerGroup(ctx, brightbox.ServerGroupOptions{Name: &name}))(t)
	firewalls := func() []api.Firewall {
		t.Helper()
		return must.Do(c.ListFirewalls(ctx, client.FirewallFilter{Tags: []string{"name=" + name}}))(t)
	}
	members := brightbox.ServerGroupMemberList{Servers: []brightbox.ServerGroupMember{{Server: serverID(in)}}}
	group = must.Do(sdk.AddServersToServerGroup(ctx, group.ID, members))(t)
	require.Len(t, group.Servers, 1)
	assert.Empty(t, firewalls()[0].InstanceIDs, "a group without a policy filters nothing")

	policy := must.Do(sdk.CreateFirewallPolicy(ctx, brightbox.FirewallPolicyOptions{
		Name: &name, FirewallPolicyAttachment: &brightbox.FirewallPolicyAttachment{ServerGroup: group.ID},
	}))(t)
	assert.Equal(t, group.ID, policy.ServerGroup.ID)
	ports, protocol := "30080,31000-31010", "tcp"
	rule := must.Do(sdk.CreateFirewallRule(ctx, brightbox.FirewallRuleOptions{
		FirewallPolicy: policy.ID, Protocol: &protocol, Source: new("10.0.0.0/8"), DestinationPort: &ports,
	}))(t)
	assert.Equal(t, policy.ID, rule.FirewallPolicy.ID)
	f := firewalls()[0]
	assert.Equal(t, []string{in.ID}, f.InstanceIDs)
	assert.Equal(t, []api.FirewallRule{
		{Protocol: api.FirewallTCP, FirstPort: 30080, LastPort: 30080},
		{Protocol: api.FirewallTCP, FirstPort: 31000, LastPort: 31010},
	}, f.Rules)
	ports = "30081"
	rule = must.Do(sdk.UpdateFirewallRule(ctx, brightbox.FirewallRuleOptions{ID: rule.ID, DestinationPort: &ports}))(t)
	assert.Equal(t, []string{"30081", "10.0.0.0/8"}, []string{rule.DestinationPort, rule.Source})
	assert.Equal(t, 30081, firewalls()[0].Rules[0].FirstPort)
	assert.Equal(t, rule.ID, must.Do(sdk.FirewallPolicies(ctx))(t)[0].Rules[0].ID)
	ports = "many"
	_, err := sdk.UpdateFirewallRule(ctx, brightbox.FirewallRuleOptions{ID: rule.ID, DestinationPort: &ports})
	requireStatus(t, http.StatusUnprocessableEntity)(err)

	must.Do(sdk.RemoveServersFromServerGroup(ctx, group.ID, members))(t)
	assert.Empty(t, firewalls()[0].InstanceIDs)
	must.Do(sdk.DestroyServerGroup(ctx, group.ID))(t)
	assert.Empty(t, must.Do(sdk.ServerGroups(ctx))(t))
	requireStatus(t, http.StatusNotFound)(sdk.AddServersToServerGroup(ctx, group.ID, members))
	require.Len(t, firewalls(), 1, "the policy is there")
	must.Do(sdk.DestroyFirewallPolicy(ctx, policy.ID))(t)
	assert.Empty(t, firewalls())
}

func TestRefusals(t *testing.T) {
	c, sdk := startCloud(t)
	ctx, name := t.Context(), "web"
	viewer := must.Do(c.CreateToken(ctx, c.Project, api.TokenCreate{Name: "viewer", Role: api.RoleViewer}))(t)
	reader := must.Do(connect(ctx, c, viewer.Secret))(t)
	requireStatus(t, http.StatusForbidden)(reader.CreateCloudIP(ctx, brightbox.CloudIPOptions{Name: &name}))
	must.Do(reader.CloudIPs(ctx))(t)
	for _, status := range []int{http.StatusInternalServerError, http.StatusBadGateway, http.StatusTooManyRequests} {
		rule := c.Fail(api.FaultCreate{
			Match: api.FaultMatch{Operations: []string{"listAddresses"}}, Effect: api.FaultEffect{Status: status},
		})
		requireStatus(t, status)(sdk.CloudIPs(ctx))
		require.NoError(t, c.DeleteFault(ctx, rule.ID))
	}
	require.NoError(t, c.DeleteToken(ctx, c.Project, "viewer"))
	_, err := reader.CloudIPs(ctx)
	require.Error(t, err, "an access token is worth as much as the token that it was granted to")
	must.Do(sdk.CreateCloudIP(ctx, brightbox.CloudIPOptions{Name: &name}))(t)
	audit := must.Do(c.ListAudit(ctx, client.AuditFilter{Operation: "reserveAddress"}, 1))(t)
	require.Len(t, audit, 1)
	assert.Equal(t, "brightbox POST /1.0/cloud_ips", audit[0].Wire)
}
