package oci_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/oracle/oci-go-sdk/v65/common"
	"github.com/oracle/oci-go-sdk/v65/loadbalancer"
	"github.com/oracle/oci-go-sdk/v65/networkloadbalancer"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/cloudtest"
	dialect "github.com/ccmlab/ccmlab/fakecloud/dialect/oci"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

const patience = 30 * time.Second

// untilDone is the SDK's way to wait: a read is repeated while pending says so.
func untilDone[T common.OCIResponse](pending func(T) bool) common.RequestMetadata {
	const every = 5 * time.Millisecond
	policy := common.NewRetryPolicy(uint(patience/every), func(r common.OCIOperationResponse) bool {
		answer, ok := r.Response.(T)
		return ok && r.Error == nil && pending(answer)
	}, func(common.OCIOperationResponse) time.Duration { return every })
	return common.RequestMetadata{RetryPolicy: &policy}
}

// awaitEnd waits until a work request has ended, well or not.
func (s *sdk) awaitEnd(workRequest *string) loadbalancer.WorkRequest {
	s.t.Helper()
	return must.Do(s.lb.GetWorkRequest(s.t.Context(), loadbalancer.GetWorkRequestRequest{
		WorkRequestId:   workRequest,
		RequestMetadata: untilDone(func(r loadbalancer.GetWorkRequestResponse) bool { return r.TimeFinished == nil }),
	}))(s.t).WorkRequest
}

// await waits for the work request that a change of a balancer is answered with.
func (s *sdk) await(workRequest *string, err error) loadbalancer.WorkRequest {
	s.t.Helper()
	require.NoError(s.t, err)
	require.NotNil(s.t, workRequest, "opc-work-request-id")
	ended := s.awaitEnd(workRequest)
	requireMandatory(s.t, ended)
	assert.Equal(s.t, loadbalancer.WorkRequestLifecycleStateSucceeded, ended.LifecycleState)
	return ended
}

func (s *sdk) getLB(id *string) loadbalancer.LoadBalancer {
	s.t.Helper()
	answer := must.Do(s.lb.GetLoadBalancer(s.t.Context(), loadbalancer.GetLoadBalancerRequest{LoadBalancerId: id}))(s.t)
	requireMandatory(s.t, answer.LoadBalancer)
	return answer.LoadBalancer
}

func (s *sdk) listLBs(name string) []loadbalancer.LoadBalancer {
	s.t.Helper()
	answer := must.Do(s.lb.ListLoadBalancers(s.t.Context(), loadbalancer.ListLoadBalancersRequest{
		CompartmentId: s.compartment, DisplayName: &name,
	}))(s.t)
	requireMandatory(s.t, answer.Items)
	return answer.Items
}

func backend(n node, port int) loadbalancer.BackendDetails {
	return loadbalancer.BackendDetails{IpAddress: n.vnic.PrivateIP, Port: &port, Weight: new(1)}
}

// healthChecker is the one that the CCM asks for.
func healthChecker() *loadbalancer.HealthCheckerDetails {
	return &loadbalancer.HealthCheckerDetails{
		Protocol: new("HTTP"), Port: new(10256), UrlPath: new("/healthz"), ReturnCode: new(200), Retries: new(3),
		IntervalInMillis: new(10_000), TimeoutInMillis: new(3000), IsForcePlainText: new(false),
	}
}

func lbDetails(s *sdk, name string, nodes ...node) loadbalancer.CreateLoadBalancerDetails {
	set := loadbalancer.BackendSetDetails{Policy: new("ROUND_ROBIN"), HealthChecker: healthChecker()}
	for _, n := range nodes {
		set.Backends = append(set.Backends, backend(n, 30080))
	}
	return loadbalancer.CreateLoadBalancerDetails{
		CompartmentId: s.compartment, DisplayName: &name, ShapeName: new("100Mbps"), IsPrivate: new(false),
		SubnetIds: []string{*nodes[0].vnic.SubnetID}, FreeformTags: map[string]string{"team": "web"},
		BackendSets: map[string]loadbalancer.BackendSetDetails{"TCP-80": set},
		Listeners: map[string]loadbalancer.ListenerDetails{
			"TCP-80": {DefaultBackendSetName: new("TCP-80"), Port: new(80), Protocol: new("TCP")},
		},
	}
}

func createLB(
	s *sdk,
	details loadbalancer.CreateLoadBalancerDetails,
	token string,
) (workRequest *string, err error) {
	s.t.Helper()
	made, err := s.lb.CreateLoadBalancer(s.t.Context(), loadbalancer.CreateLoadBalancerRequest{
		CreateLoadBalancerDetails: details, OpcRetryToken: &token,
	})
	return made.OpcWorkRequestId, err
}

func TestLoadBalancers(t *testing.T) {
	c, s := startCloud(t)
	one, two := createNode(t, c, s, "node-1"), createNode(t, c, s, "node-2")
	require.Empty(t, s.listLBs("uid-1"))
	details := lbDetails(s, "uid-1", one, two)
	id := s.await(createLB(s, details, "uid-1")).LoadBalancerId
	lb := s.getLB(id)
	assert.Equal(t, []loadbalancer.LoadBalancer{lb}, s.listLBs("uid-1"))
	assert.Empty(t, s.listLBs("uid-2"))
	assert.Equal(t, loadbalancer.LoadBalancerLifecycleStateActive, lb.LifecycleState)
	assert.Equal(t, []string{"uid-1", "100Mbps"}, []string{*lb.DisplayName, *lb.ShapeName})
	assert.Equal(t, details.SubnetIds, lb.SubnetIds)
	assert.Equal(t, details.FreeformTags, lb.FreeformTags)
	require.Len(t, lb.IpAddresses, 1)
	assert.True(t, *lb.IpAddresses[0].IsPublic)
	listener := lb.Listeners["TCP-80"]
	assert.Equal(t, []string{"TCP-80", "TCP-80"}, []string{*listener.Name, *listener.DefaultBackendSetName})
	assert.Equal(t, 80, *listener.Port)
	set := lb.BackendSets["TCP-80"]
	assert.Equal(t, []string{"TCP-80", "ROUND_ROBIN"}, []string{*set.Name, *set.Policy})
	checker := set.HealthChecker
	assert.Equal(t, *healthChecker(), loadbalancer.HealthCheckerDetails{
		Protocol: checker.Protocol, UrlPath: checker.UrlPath, Port: checker.Port, ReturnCode: checker.ReturnCode,
		Retries: checker.Retries, TimeoutInMillis: checker.TimeoutInMillis, IntervalInMillis: checker.IntervalInMillis,
		IsForcePlainText: checker.IsForcePlainText,
	})
	assert.Equal(t, []string{*one.vnic.PrivateIP, *two.vnic.PrivateIP}, addresses(set))

	native := must.Do(c.ListLoadBalancers(t.Context(), client.LoadBalancerFilter{}))(t)
	require.Len(t, native, 1)
	assert.Equal(t, []int{80, 30080}, []int{native[0].Listeners[0].Port, native[0].Listeners[0].TargetPort})
	assert.Len(t, native[0].Targets, 2)

	deleted, err := s.lb.DeleteLoadBalancer(t.Context(), loadbalancer.DeleteLoadBalancerRequest{LoadBalancerId: id})
	s.await(deleted.OpcWorkRequestId, err)
	_, err = s.lb.GetLoadBalancer(t.Context(), loadbalancer.GetLoadBalancerRequest{LoadBalancerId: id})
	requireRefusal(t, 404, "NotAuthorizedOrNotFound", err)
	assert.Empty(t, s.listLBs("uid-1"))
}

func addresses(set loadbalancer.BackendSet) (all []string) {
	for _, b := range set.Backends {
		all = append(all, *b.IpAddress)
	}
	return all
}

func TestChangesOfALoadBalancer(t *testing.T) {
	c, s := startCloud(t)
	ctx, n := t.Context(), createNode(t, c, s, "node-1")
	id := s.await(createLB(s, lbDetails(s, "uid-1", n), "uid-1")).LoadBalancerId
	sets := func() []int {
		var ports []int
		for _, name := range []string{"TCP-80", "TCP-81"} {
			if set, has := s.getLB(id).BackendSets[name]; has {
				ports = append(ports, *set.Backends[0].Port)
			}
		}
		return ports
	}
	updated, err := s.lb.UpdateBackendSet(ctx, loadbalancer.UpdateBackendSetRequest{
		LoadBalancerId: id, BackendSetName: new("TCP-80"),
		UpdateBackendSetDetails: loadbalancer.UpdateBackendSetDetails{
			Policy: new("LEAST_CONNECTIONS"), HealthChecker: healthChecker(),
			Backends: []loadbalancer.BackendDetails{backend(n, 30081)},
		},
	})
	s.await(updated.OpcWorkRequestId, err)
	assert.Equal(t, []int{30081}, sets())
	assert.Equal(t, "LEAST_CONNECTIONS", *s.getLB(id).BackendSets["TCP-80"].Policy)

	made, err := s.lb.CreateBackendSet(ctx, loadbalancer.CreateBackendSetRequest{
		LoadBalancerId: id, CreateBackendSetDetails: loadbalancer.CreateBackendSetDetails{
			Name: new("TCP-81"), Policy: new("LEAST_CONNECTIONS"), Backends: []loadbalancer.BackendDetails{backend(n, 30082)},
			HealthChecker: &loadbalancer.HealthCheckerDetails{Protocol: new("TCP"), Port: new(0)},
		},
	})
	s.await(made.OpcWorkRequestId, err)
	assert.Equal(t, []int{30081, 30082}, sets())
	listening, err := s.lb.CreateListener(ctx, loadbalancer.CreateListenerRequest{
		LoadBalancerId: id, CreateListenerDetails: loadbalancer.CreateListenerDetails{
			Name: new("TCP-81"), DefaultBackendSetName: new("TCP-81"), Port: new(81), Protocol: new("TCP"),
		},
	})
	s.await(listening.OpcWorkRequestId, err)
	idle := int64(600)
	changed, err := s.lb.UpdateListener(ctx, loadbalancer.UpdateListenerRequest{
		LoadBalancerId: id, ListenerName: new("TCP-81"), UpdateListenerDetails: loadbalancer.UpdateListenerDetails{
			DefaultBackendSetName: new("TCP-81"), Port: new(82), Protocol: new("TCP"),
			ConnectionConfiguration: &loadbalancer.ConnectionConfiguration{IdleTimeout: &idle},
		},
	})
	s.await(changed.OpcWorkRequestId, err)
	listener := s.getLB(id).Listeners["TCP-81"]
	assert.Equal(t, 82, *listener.Port)
	assert.Equal(t, idle, *listener.ConnectionConfiguration.IdleTimeout)
	native := must.Do(c.ListLoadBalancers(ctx, client.LoadBalancerFilter{}))(t)[0].Listeners
	assert.Equal(t, []api.Seconds{300, 600}, []api.Seconds{native[0].IdleTimeoutSeconds, native[1].IdleTimeoutSeconds})

	silent, err := s.lb.DeleteListener(ctx, loadbalancer.DeleteListenerRequest{
		LoadBalancerId: id, ListenerName: new("TCP-81"),
	})
	s.await(silent.OpcWorkRequestId, err)
	gone, err := s.lb.DeleteBackendSet(ctx, loadbalancer.DeleteBackendSetRequest{
		LoadBalancerId: id, BackendSetName: new("TCP-81"),
	})
	s.await(gone.OpcWorkRequestId, err)
	assert.Equal(t, []int{30081}, sets())
	assert.Len(t, s.getLB(id).Listeners, 1)

	shaped, err := s.lb.UpdateLoadBalancerShape(ctx, loadbalancer.UpdateLoadBalancerShapeRequest{
		LoadBalancerId: id, UpdateLoadBalancerShapeDetails: loadbalancer.UpdateLoadBalancerShapeDetails{
			ShapeName: new("flexible"), ShapeDetails: &loadbalancer.ShapeDetails{
				MinimumBandwidthInMbps: new(10), MaximumBandwidthInMbps: new(100),
			},
		},
	})
	s.await(shaped.OpcWorkRequestId, err)
	lb := s.getLB(id)
	assert.Equal(t, "flexible", *lb.ShapeName)
	assert.Equal(t, 100, *lb.ShapeDetails.MaximumBandwidthInMbps)

	all := must.Do(s.lb.ListWorkRequests(ctx, loadbalancer.ListWorkRequestsRequest{
		LoadBalancerId: id, Limit: new(int64(100)),
	}))(t)
	requireMandatory(t, all.Items)
	assert.Len(t, all.Items, 8, "the creation and seven changes")
}

// A balancer that is changed natively is shown as it is now.
func TestDrift(t *testing.T) {
	c, s := startCloud(t)
	details := lbDetails(s, "uid-1", createNode(t, c, s, "node-1"), createNode(t, c, s, "node-2"))
	details.Listeners["TCP-81"] = loadbalancer.ListenerDetails{
		DefaultBackendSetName: new("TCP-80"), Port: new(81), Protocol: new("TCP"),
	}
	id := s.await(createLB(s, details, "uid-1")).LoadBalancerId
	lb := must.Do(c.ListLoadBalancers(t.Context(), client.LoadBalancerFilter{}))(t)[0]
	listeners, targets := lb.Listeners[:1], lb.Targets[1:]
	listeners[0].TargetPort, listeners[0].ProxyProtocol = 31000, api.ProxyProtocolV2
	listeners[0].HealthCheck = api.HealthCheck{Protocol: api.HealthCheckTCP, Port: 31000, IntervalSeconds: 7}
	listeners = append(listeners, api.Listener{Protocol: api.ProtocolTCP, Port: 9999, TargetPort: 30999})
	must.Do(c.UpdateLoadBalancer(t.Context(), lb.ID, api.LoadBalancerUpdate{
		Listeners: &listeners, Targets: &targets, Algorithm: new(api.AlgorithmSourceHash),
	}))(t)
	after := s.getLB(id)
	assert.NotContains(t, after.Listeners, "TCP-81")
	assert.Equal(t, 9999, *after.Listeners["TCP-9999"].Port)
	assert.Equal(t, 30999, *after.BackendSets["TCP-9999"].Backends[0].Port)
	assert.Equal(t, 2, *after.Listeners["TCP-80"].ConnectionConfiguration.BackendTcpProxyProtocolVersion)
	set := after.BackendSets["TCP-80"]
	assert.Equal(t, []string{"IP_HASH", "TCP"}, []string{*set.Policy, *set.HealthChecker.Protocol})
	assert.Equal(t, 7000, *set.HealthChecker.IntervalInMillis)
	require.Len(t, set.Backends, 1)
	assert.Equal(t, 31000, *set.Backends[0].Port)
}

// Ten sets of a thousand backends fit into what the cloud records of a balancer, also while one set differs.
func TestThousandBackends(t *testing.T) {
	c, s := startCloud(t)
	node := createNode(t, c, s, "node")
	details := lbDetails(s, "uid-1", node)
	set := details.BackendSets["TCP-80"]
	for range 1000 {
		in := must.Do(c.CreateInstance(t.Context(), api.InstanceCreate{}))(t)
		set.Backends = append(set.Backends, loadbalancer.BackendDetails{IpAddress: &in.Addresses[0].IP, Port: new(30080)})
	}
	for port := 80; port < 90; port++ {
		name := fmt.Sprintf("TCP-%d", port)
		details.BackendSets[name] = set
		details.Listeners[name] = loadbalancer.ListenerDetails{
			DefaultBackendSetName: &name, Port: &port, Protocol: new("TCP"),
		}
	}
	id := s.await(createLB(s, details, "uid-1")).LoadBalancerId
	all := s.getLB(id).BackendSets
	require.Len(t, all, 10)
	for name, set := range all {
		assert.Len(t, set.Backends, 1001, name)
	}
	fewer := backend(node, 30080)
	fewer.Weight = new(3)
	updated, err := s.lb.UpdateBackendSet(t.Context(), loadbalancer.UpdateBackendSetRequest{
		LoadBalancerId: id, BackendSetName: new("TCP-80"),
		UpdateBackendSetDetails: loadbalancer.UpdateBackendSetDetails{
			Policy: new("ROUND_ROBIN"), HealthChecker: healthChecker(), Backends: []loadbalancer.BackendDetails{fewer},
		},
	})
	s.await(updated.OpcWorkRequestId, err)
	all = s.getLB(id).BackendSets
	assert.Len(t, all["TCP-81"].Backends, 1001)
	require.Len(t, all["TCP-80"].Backends, 1)
	assert.Equal(t, 3, *all["TCP-80"].Backends[0].Weight)
}

// A retry token stands for a creation for as long as there is what it created.
func TestRetryTokens(t *testing.T) {
	c, s := startCloud(t)
	details := lbDetails(s, "uid-1", createNode(t, c, s, "node-1"))
	first, err := createLB(s, details, "uid-1")
	id := s.await(first, err).LoadBalancerId
	again := must.Do(createLB(s, details, "uid-1"))(t)
	assert.Equal(t, first, again)
	require.Len(t, s.listLBs("uid-1"), 1)
	otherwise := details
	otherwise.IsPrivate = new(true)
	_, err = createLB(s, otherwise, "uid-1")
	requireRefusal(t, http.StatusConflict, "InvalidatedRetryToken", err)
	otherwise = details
	otherwise.ShapeName = new("400Mbps")
	_, err = createLB(s, otherwise, "uid-1")
	requireRefusal(t, http.StatusConflict, "InvalidatedRetryToken", err)
	must.Do(c.UpdateProjectQuotas(t.Context(), c.Project, api.QuotasUpdate{LoadBalancers: new(api.QuotaLimit(1))}))(t)
	again = must.Do(createLB(s, details, "uid-1"))(t, "though there is no room for another")
	assert.Equal(t, first, again)
	deleted, err := s.lb.DeleteLoadBalancer(t.Context(), loadbalancer.DeleteLoadBalancerRequest{LoadBalancerId: id})
	s.await(deleted.OpcWorkRequestId, err)
	other := s.await(createLB(s, details, "uid-1")).LoadBalancerId
	assert.NotEqual(t, id, other)
	_, err = s.lb.GetLoadBalancer(t.Context(), loadbalancer.GetLoadBalancerRequest{LoadBalancerId: id})
	requireRefusal(t, http.StatusNotFound, "NotAuthorizedOrNotFound", err)
	assert.ErrorContains(t, err, *id)
}

func TestWorkRequestsWhileABalancerIsMade(t *testing.T) {
	c, s := startCloud(t)
	n := createNode(t, c, s, "node-1")
	stuck := c.Fail(api.FaultCreate{Effect: api.FaultEffect{Stuck: true}})
	workRequest := must.Do(createLB(s, lbDetails(s, "uid-1", n), "uid-1"))(t)
	made := s.listLBs("uid-1")
	require.Len(t, made, 1)
	assert.Equal(t, loadbalancer.LoadBalancerLifecycleStateCreating, made[0].LifecycleState)
	under := func() []loadbalancer.WorkRequest {
		answer, err := s.lb.ListWorkRequests(t.Context(), loadbalancer.ListWorkRequestsRequest{LoadBalancerId: made[0].Id})
		require.NoError(t, err)
		requireMandatory(t, answer.Items)
		return answer.Items
	}
	require.Len(t, under(), 1)
	assert.Equal(t, loadbalancer.WorkRequestLifecycleStateInProgress, under()[0].LifecycleState)
	assert.Nil(t, under()[0].TimeFinished)
	require.NoError(t, c.DeleteFault(t.Context(), stuck.ID))
	assert.NotNil(t, s.await(workRequest, nil).TimeFinished)

	c.Fail(api.FaultCreate{Effect: api.FaultEffect{Fail: "no room left"}})
	workRequest = must.Do(createLB(s, lbDetails(s, "uid-2", n), "uid-2"))(t)
	failed := s.awaitEnd(workRequest)
	assert.Equal(t, loadbalancer.WorkRequestLifecycleStateFailed, failed.LifecycleState)
	assert.Contains(t, *failed.Message, "no room left")
	assert.Equal(t, loadbalancer.LoadBalancerLifecycleStateFailed, s.listLBs("uid-2")[0].LifecycleState)
}

func TestRefusalsOfLoadBalancers(t *testing.T) {
	c, s := startCloud(t)
	n := createNode(t, c, s, "node-1")
	id := s.await(createLB(s, lbDetails(s, "uid-1", n), "uid-1")).LoadBalancerId
	for name, change := range map[string]func(*loadbalancer.CreateLoadBalancerDetails){
		"an address of no instance": func(d *loadbalancer.CreateLoadBalancerDetails) {
			d.BackendSets["TCP-80"].Backends[0].IpAddress = new("203.0.113.1")
		},
		"a set that is not there": func(d *loadbalancer.CreateLoadBalancerDetails) {
			d.BackendSets = nil
		},
		"UDP": func(d *loadbalancer.CreateLoadBalancerDetails) {
			l := d.Listeners["TCP-80"]
			l.Protocol = new("UDP")
			d.Listeners["TCP-80"] = l
		},
		"no such policy": func(d *loadbalancer.CreateLoadBalancerDetails) {
			*d.BackendSets["TCP-80"].Policy = "FIVE_TUPLE"
		},
	} {
		t.Run(name, func(t *testing.T) {
			details := lbDetails(s, "uid-2", n)
			change(&details)
			_, err := createLB(s, details, name)
			requireRefusal(t, 400, "InvalidParameter", err)
		})
	}
	_, err := s.lb.UpdateBackendSet(t.Context(), loadbalancer.UpdateBackendSetRequest{
		LoadBalancerId: id, BackendSetName: new("TCP-99"),
		UpdateBackendSetDetails: loadbalancer.UpdateBackendSetDetails{
			Policy: new("ROUND_ROBIN"), HealthChecker: healthChecker(), Backends: []loadbalancer.BackendDetails{},
		},
	})
	requireRefusal(t, 404, "NotAuthorizedOrNotFound", err)
	_, err = s.lb.GetWorkRequest(t.Context(), loadbalancer.GetWorkRequestRequest{WorkRequestId: new("nonsense")})
	requireRefusal(t, 404, "NotAuthorizedOrNotFound", err)

	must.Do(c.UpdateProjectQuotas(t.Context(), c.Project, api.QuotasUpdate{LoadBalancers: new(api.QuotaLimit(1))}))(t)
	_, err = createLB(s, lbDetails(s, "uid-2", n), "uid-2")
	requireRefusal(t, 400, "LimitExceeded", err)
}

func TestReservedAddresses(t *testing.T) {
	c, s := startCloud(t)
	n := createNode(t, c, s, "node-1")
	reserved := must.Do(c.ReserveAddress(t.Context(), api.ReservedAddressCreate{Name: new("web")}))(t)
	byAddress := func() (found publicIP) {
		t.Helper()
		asked := map[string]any{"ipAddress": reserved.IP}
		require.NoError(t, s.call(http.MethodPost, "/publicIps/actions/getByIpAddress", asked, &found))
		return found
	}
	found := byAddress()
	assert.Equal(t, []string{reserved.IP, "AVAILABLE"}, []string{*found.IPAddress, found.LifecycleState})
	details := lbDetails(s, "uid-1", n)
	details.ReservedIps = []loadbalancer.ReservedIp{{Id: found.ID}}
	lb := s.getLB(s.await(createLB(s, details, "uid-1")).LoadBalancerId)
	require.Len(t, lb.IpAddresses, 1)
	assert.Equal(t, reserved.IP, *lb.IpAddresses[0].IpAddress)
	assert.Equal(t, found.ID, lb.IpAddresses[0].ReservedIp.Id)
	assert.Equal(t, "ASSIGNED", byAddress().LifecycleState)
	unknown := map[string]any{"ipAddress": "203.0.113.1"}
	err := s.call(http.MethodPost, "/publicIps/actions/getByIpAddress", unknown, nil)
	requireRefusal(t, 404, "NotAuthorizedOrNotFound", err)
}

func nlbCreation(s *sdk, name string, n node) networkloadbalancer.CreateNetworkLoadBalancerRequest {
	return networkloadbalancer.CreateNetworkLoadBalancerRequest{
		OpcRetryToken: new("once"),
		CreateNetworkLoadBalancerDetails: networkloadbalancer.CreateNetworkLoadBalancerDetails{
			CompartmentId: s.compartment, DisplayName: &name, SubnetId: n.vnic.SubnetID, IsPrivate: new(false),
			BackendSets: map[string]networkloadbalancer.BackendSetDetails{"UDP-53": {
				Policy: networkloadbalancer.NetworkLoadBalancingPolicyFiveTuple, IsPreserveSource: new(false),
				HealthChecker: &networkloadbalancer.HealthChecker{
					Protocol: networkloadbalancer.HealthCheckProtocolsHttp, Port: new(10256), UrlPath: new("/healthz"),
					ReturnCode: new(200), Retries: new(3), IntervalInMillis: new(10_000), TimeoutInMillis: new(3000),
				},
				Backends: []networkloadbalancer.Backend{
					{IpAddress: n.vnic.PrivateIP, TargetId: n.ID, Port: new(30053), Weight: new(1)},
				},
			}},
			Listeners: map[string]networkloadbalancer.ListenerDetails{"UDP-53": {
				Name: new("UDP-53"), DefaultBackendSetName: new("UDP-53"), Port: new(53),
				Protocol: networkloadbalancer.ListenerProtocolsUdp,
			}},
		},
	}
}

func TestNetworkLoadBalancers(t *testing.T) {
	c, s := startCloud(t)
	ctx, n, name := t.Context(), createNode(t, c, s, "node-1"), "default/web/uid-1"
	creation := nlbCreation(s, name, n)
	made := must.Do(s.nlb.CreateNetworkLoadBalancer(ctx, creation))(t)
	assert.Equal(t, http.StatusAccepted, made.RawResponse.StatusCode)
	requireMandatory(t, made.NetworkLoadBalancer)
	assert.Equal(t, made.Id, must.Do(s.nlb.CreateNetworkLoadBalancer(ctx, creation))(t).Id)
	s.awaitNLB(made.OpcWorkRequestId, nil)
	listed := must.Do(s.nlb.ListNetworkLoadBalancers(ctx, networkloadbalancer.ListNetworkLoadBalancersRequest{
		CompartmentId: s.compartment, DisplayName: &name,
	}))(t)
	requireMandatory(t, listed.Items)
	require.Len(t, listed.Items, 1)
	assert.Equal(t, made.Id, listed.Items[0].Id)
	nlb := s.getNLB(made.Id)
	assert.Equal(t, networkloadbalancer.LifecycleStateActive, nlb.LifecycleState)
	set, sent := nlb.BackendSets["UDP-53"], creation.BackendSets["UDP-53"]
	assert.Equal(t, sent.Policy, set.Policy)
	assert.Equal(t, sent.HealthChecker.UrlPath, set.HealthChecker.UrlPath)
	assert.Equal(t, sent.HealthChecker.IntervalInMillis, set.HealthChecker.IntervalInMillis)
	require.Len(t, set.Backends, 1)
	assert.Equal(t, []*string{n.vnic.PrivateIP, n.ID}, []*string{set.Backends[0].IpAddress, set.Backends[0].TargetId})
	require.Len(t, nlb.IpAddresses, 2)
	assert.NotEqual(t, nlb.IpAddresses[0].IsPublic, nlb.IpAddresses[1].IsPublic, "it has a private one, too")

	deleted, err := s.nlb.DeleteNetworkLoadBalancer(
		ctx, networkloadbalancer.DeleteNetworkLoadBalancerRequest{NetworkLoadBalancerId: made.Id},
	)
	s.awaitNLB(deleted.OpcWorkRequestId, err)
	_, err = s.nlb.GetNetworkLoadBalancer(
		ctx, networkloadbalancer.GetNetworkLoadBalancerRequest{NetworkLoadBalancerId: made.Id},
	)
	requireRefusal(t, 404, "NotAuthorizedOrNotFound", err)
}

// A listener of both protocols is two natively, of which TCP alone can have the PROXY protocol and be idle for long.
func TestListenersOfBothProtocols(t *testing.T) {
	c, s := startCloud(t)
	creation := nlbCreation(s, "default/web/uid-1", createNode(t, c, s, "node-1"))
	l := creation.Listeners["UDP-53"]
	l.Protocol, l.IsPpv2Enabled = networkloadbalancer.ListenerProtocolsTcpAndUdp, new(true)
	creation.Listeners["UDP-53"] = l
	made, err := s.nlb.CreateNetworkLoadBalancer(t.Context(), creation)
	s.awaitNLB(made.OpcWorkRequestId, err)
	assert.True(t, *s.getNLB(made.Id).Listeners["UDP-53"].IsPpv2Enabled)
	all := must.Do(c.ListLoadBalancers(t.Context(), client.LoadBalancerFilter{}))(t)
	require.Len(t, all, 1)
	require.Len(t, all[0].Listeners, 2)
	assert.EqualValues(t, 360, all[0].Listeners[0].IdleTimeoutSeconds)

	listeners := slices.DeleteFunc(all[0].Listeners, func(n api.Listener) bool { return n.Protocol == api.ProtocolUDP })
	must.Do(c.UpdateLoadBalancer(t.Context(), all[0].ID, api.LoadBalancerUpdate{Listeners: &listeners}))(t)
	shown := s.getNLB(made.Id).Listeners
	require.Len(t, shown, 1)
	assert.Equal(t, networkloadbalancer.ListenerProtocolsTcp, shown["TCP-53"].Protocol)
	assert.True(t, *shown["TCP-53"].IsPpv2Enabled)
}

// While one change runs, a network load balancer takes no other.
func TestNetworkLoadBalancerIsUpdating(t *testing.T) {
	c, s := startCloud(t)
	ctx, n := t.Context(), createNode(t, c, s, "node-1")
	made, err := s.nlb.CreateNetworkLoadBalancer(ctx, nlbCreation(s, "default/web/uid-1", n))
	s.awaitNLB(made.OpcWorkRequestId, err)
	change := func(port int) (*string, error) {
		changed, err := s.nlb.UpdateBackendSet(ctx, networkloadbalancer.UpdateBackendSetRequest{
			NetworkLoadBalancerId: made.Id, BackendSetName: new("UDP-53"),
			UpdateBackendSetDetails: networkloadbalancer.UpdateBackendSetDetails{
				Backends: []networkloadbalancer.BackendDetails{{IpAddress: n.vnic.PrivateIP, Port: &port}},
			},
		})
		return changed.OpcWorkRequestId, err
	}
	stuck := c.Fail(api.FaultCreate{Effect: api.FaultEffect{Stuck: true}})
	first := must.Do(change(30054))(t)
	assert.Equal(t, networkloadbalancer.LifecycleStateUpdating, s.getNLB(made.Id).LifecycleState)
	_, err = change(30055)
	requireRefusal(t, 409, "IncorrectState", err)
	require.NoError(t, c.DeleteFault(ctx, stuck.ID))
	s.awaitNLB(first, nil)
	nlb := s.getNLB(made.Id)
	assert.Equal(t, networkloadbalancer.LifecycleStateActive, nlb.LifecycleState)
	set := nlb.BackendSets["UDP-53"]
	assert.Equal(t, 30054, *set.Backends[0].Port)
	assert.Equal(t, "/healthz", *set.HealthChecker.UrlPath, "what was not sent is as it was")
}

// awaitNLB is await for the other kind of balancer, whose work requests are others.
func (s *sdk) awaitNLB(workRequest *string, err error) {
	s.t.Helper()
	require.NoError(s.t, err)
	require.NotNil(s.t, workRequest, "opc-work-request-id")
	answer := must.Do(s.nlb.GetWorkRequest(s.t.Context(), networkloadbalancer.GetWorkRequestRequest{
		WorkRequestId: workRequest, RequestMetadata: untilDone(func(r networkloadbalancer.GetWorkRequestResponse) bool {
			return r.TimeFinished == nil
		}),
	}))(s.t)
	requireMandatory(s.t, answer.WorkRequest)
	assert.Equal(s.t, networkloadbalancer.OperationStatusSucceeded, answer.Status)
}

func (s *sdk) getNLB(id *string) networkloadbalancer.NetworkLoadBalancer {
	s.t.Helper()
	answer := must.Do(s.nlb.GetNetworkLoadBalancer(
		s.t.Context(), networkloadbalancer.GetNetworkLoadBalancerRequest{NetworkLoadBalancerId: id},
	))(s.t)
	requireMandatory(s.t, answer.NetworkLoadBalancer)
	return answer.NetworkLoadBalancer
}

// serveName has a node answer connections to its port 30080 with its name.
func serveName(t *testing.T, n node, name string) {
	t.Helper()
	l := must.Do((&net.ListenConfig{}).Listen(t.Context(), "tcp", net.JoinHostPort(*n.vnic.PrivateIP, "30080")))(t)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, name)
			_ = c.Close()
		}
	}()
}

// shares tells how many of eight connections each node gets.
func shares(t *testing.T, lb loadbalancer.LoadBalancer, port string) map[string]int {
	t.Helper()
	all := map[string]int{}
	for range 8 {
		c, err := net.Dial("tcp", net.JoinHostPort(*lb.IpAddresses[0].IpAddress, port))
		if err == nil {
			name, _ := io.ReadAll(c)
			_ = c.Close()
			all[string(name)]++
		}
	}
	return all
}

func TestEachListenerForwardsToItsBackendSet(t *testing.T) {
	c := cloudtest.Start(t, cloudtest.Dialect(dialect.Dialect))
	s := newUser(t, c, "ccm", api.RoleEditor, makeKeys()[0])
	one, two := createNode(t, c, s, "node-1"), createNode(t, c, s, "node-2")
	serveName(t, one, "one")
	serveName(t, two, "two")
	details := lbDetails(s, "uid-1", one, two)
	check := &loadbalancer.HealthCheckerDetails{Protocol: new("TCP"), Port: new(30080)}
	set := func(backends ...loadbalancer.BackendDetails) loadbalancer.BackendSetDetails {
		return loadbalancer.BackendSetDetails{Policy: new("ROUND_ROBIN"), HealthChecker: check, Backends: backends}
	}
	with := func(n node, change func(*loadbalancer.BackendDetails)) loadbalancer.BackendDetails {
		b := backend(n, 30080)
		change(&b)
		return b
	}
	details.BackendSets = map[string]loadbalancer.BackendSetDetails{
		"weights": set(with(one, func(b *loadbalancer.BackendDetails) { b.Weight = new(3) }), backend(two, 30080)),
		"drain":   set(with(one, func(b *loadbalancer.BackendDetails) { b.Drain = new(true) }), backend(two, 30080)),
		"backup":  set(backend(one, 30080), with(two, func(b *loadbalancer.BackendDetails) { b.Backup = new(true) })),
		"offline": set(with(one, func(b *loadbalancer.BackendDetails) { b.Offline = new(true) }), backend(two, 30080)),
		"none":    set(),
	}
	ports := map[string]string{"weights": "8081", "drain": "8082", "backup": "8083", "offline": "8084", "none": "8085"}
	details.Listeners = map[string]loadbalancer.ListenerDetails{}
	for name, port := range ports {
		details.Listeners[name] = loadbalancer.ListenerDetails{
			DefaultBackendSetName: &name, Port: new(must.Do(strconv.Atoi(port))(t)), Protocol: new("TCP"),
		}
	}
	id := s.await(createLB(s, details, "uid-1")).LoadBalancerId
	lb := s.getLB(id)
	for name, want := range map[string]map[string]int{
		"weights": {"one": 6, "two": 2}, "drain": {"two": 8}, "backup": {"one": 8}, "offline": {"two": 8}, "none": {},
	} {
		got := shares(t, lb, ports[name])
		delete(got, "") // Refused.
		assert.Equal(t, want, got, name)
		assert.Len(t, lb.BackendSets[name].Backends, len(details.BackendSets[name].Backends), name)
	}
	first := func(set string) loadbalancer.Backend { return lb.BackendSets[set].Backends[0] }
	assert.Equal(t, 3, *first("weights").Weight)
	assert.True(t, *first("drain").Drain)
	assert.True(t, *first("offline").Offline)
	assert.True(t, *lb.BackendSets["backup"].Backends[1].Backup)
}
