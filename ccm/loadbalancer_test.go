package ccm

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cloudproviderapi "k8s.io/cloud-provider/api"

	"github.com/ccmlab/ccmlab/ccm/annotations"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

const clusterName = "lab"

func service() *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "01234567-89ab"},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{
			{Port: 8443, NodePort: 30443, Protocol: corev1.ProtocolTCP}, {Port: 8080, NodePort: 30080, Protocol: corev1.ProtocolTCP},
		}},
	}
}

func nodes(providerIDs ...string) []*corev1.Node {
	var out []*corev1.Node
	for _, id := range providerIDs {
		out = append(out, node(id))
	}
	return out
}

// built is the balancer that the cloud would have for service() and nodes().
func built(t *testing.T, state api.LoadBalancerState, targets ...string) *api.LoadBalancer {
	t.Helper()
	want, err := newBalancerSpec(clusterID{name: clusterName}, service(), nodes(targets...))
	require.NoError(t, err)
	return &api.LoadBalancer{
		ID: "lb-1", Project: ourProject, Name: want.name, Address: "127.30.64.1", State: state,
		Listeners: want.listeners, Targets: want.targets, Tags: want.tags, SourceRanges: want.sourceRanges,
	}
}

func has(lb ...api.LoadBalancer) func(client.LoadBalancerFilter) ([]api.LoadBalancer, error) {
	return func(client.LoadBalancerFilter) ([]api.LoadBalancer, error) { return lb, nil }
}

func newLoadBalancers(f *fakeAPI) *loadBalancers { return (&fakeBalancers{fakeAPI: f}).loadBalancers() }

func TestEnsureCreates(t *testing.T) {
	f := &fakeAPI{t: t, project: ours}
	f.listBalancers = func(filter client.LoadBalancerFilter) ([]api.LoadBalancer, error) {
		assert.ElementsMatch(t, []string{"kubernetes-service-uid=01234567-89ab", "kubernetes-cluster=lab"}, filter.Tags, "found by owner alone")
		assert.Empty(t, filter.Name)
		return nil, nil
	}
	f.create = func(lb api.LoadBalancerCreate) (*api.LoadBalancer, error) {
		assert.Equal(t, "web-01234567", lb.Name)
		assert.Equal(t, api.Listeners{{Protocol: "tcp", Port: 8080, TargetPort: 30080}, {Protocol: "tcp", Port: 8443, TargetPort: 30443}}, lb.Listeners)
		assert.Equal(t, api.Targets{{InstanceID: "i-1"}, {InstanceID: "i-2"}}, *lb.Targets, "nodes without a provider ID, or of another cloud, are skipped")
		assert.Equal(t, api.SourceRanges{}, *lb.SourceRanges)
		assert.Zero(t, *lb.ClientAffinitySeconds)
		assert.Equal(t, api.HealthCheck{Protocol: "none"}, *lb.HealthCheck)
		assert.Equal(t, api.Tags{"kubernetes-cluster": "lab", "kubernetes-service-uid": "01234567-89ab", "kubernetes-service": "default/web"}, *lb.Tags)
		return built(t, api.LoadBalancerProvisioning), nil
	}
	_, err := newLoadBalancers(f).EnsureLoadBalancer(t.Context(), clusterName, service(), nodes("fakecloud://i-2", "", "fakecloud://i-1", "aws:///x"))
	var retry *cloudproviderapi.RetryError
	require.ErrorAs(t, err, &retry, "still provisioning: come back soon")
	assert.Less(t, retry.RetryAfter(), time.Second)
}

func TestEnsureByState(t *testing.T) {
	reason := "port 80: permission denied"
	for name, tc := range map[string]struct {
		state     api.LoadBalancerState
		wantIP    string
		wantErr   string
		wantRetry bool
	}{
		"active":       {state: api.LoadBalancerActive, wantIP: "127.30.64.1"},
		"provisioning": {state: api.LoadBalancerProvisioning, wantRetry: true},
		"updating":     {state: api.LoadBalancerUpdating, wantRetry: true},
		"deleting":     {state: api.LoadBalancerDeleting, wantRetry: true},
		"error":        {state: api.LoadBalancerError, wantErr: reason, wantRetry: true},
	} {
		t.Run(name, func(t *testing.T) {
			lb := built(t, tc.state, "fakecloud://i-1")
			lb.StateReason = &reason
			// With nothing to change no call changes anything: the fake fails on any.
			status, err := newLoadBalancers(&fakeAPI{t: t, listBalancers: has(*lb)}).
				EnsureLoadBalancer(t.Context(), clusterName, service(), nodes("fakecloud://i-1"))
			var retry *cloudproviderapi.RetryError
			assert.Equal(t, tc.wantRetry, errors.As(err, &retry))
			switch {
			case tc.wantErr != "":
				require.ErrorContains(t, err, tc.wantErr)
			case !tc.wantRetry:
				require.NoError(t, err)
				require.Len(t, status.Ingress, 1)
				assert.Equal(t, tc.wantIP, status.Ingress[0].IP)
				assert.Equal(t, corev1.LoadBalancerIPModeProxy, *status.Ingress[0].IPMode)
			}
		})
	}
}

func TestPlan(t *testing.T) {
	target := "fakecloud://i-1"
	for name, tc := range map[string]struct {
		change func(lb *api.LoadBalancer)
		want   []string
	}{
		"nothing to do":         {change: func(*api.LoadBalancer) {}},
		"another order":         {change: func(lb *api.LoadBalancer) { lb.Listeners[0], lb.Listeners[1] = lb.Listeners[1], lb.Listeners[0] }},
		"somebody else's tag":   {change: func(lb *api.LoadBalancer) { lb.Tags["team"] = "blue" }},
		"a target went missing": {change: func(lb *api.LoadBalancer) { lb.Targets = nil }, want: []string{"update load balancer lb-1: targets 0 to 1"}},
		"a target too many": {change: func(lb *api.LoadBalancer) { lb.Targets = append(lb.Targets, api.Target{InstanceID: "i-9"}) },
			want: []string{"update load balancer lb-1: targets 2 to 1"}},
		"renamed by hand": {change: func(lb *api.LoadBalancer) { lb.Name = "mine" }},
		"a listener changed": {change: func(lb *api.LoadBalancer) { lb.Listeners[0].TargetPort = 1 },
			want: []string{"update load balancer lb-1: listeners [tcp:8080→1 tcp:8443→30443] to [tcp:8080→30080 tcp:8443→30443]"}},
		"ranges set by hand": {change: func(lb *api.LoadBalancer) { lb.SourceRanges = api.SourceRanges{"10.0.0.0/8"} },
			want: []string{"update load balancer lb-1: source ranges [10.0.0.0/8] to []"}},
		"affinity set by hand": {change: func(lb *api.LoadBalancer) { lb.ClientAffinitySeconds = 5 },
			want: []string{"update load balancer lb-1: client affinity 5 s to 0 s"}},
		"a check set by hand": {change: func(lb *api.LoadBalancer) {
			lb.HealthCheck = &api.HealthCheck{Protocol: api.HealthCheckTCP, Port: 22, IntervalSeconds: 5}
		}, want: []string{"update load balancer lb-1: health check tcp:22 every 5 s within 0 s, up after 0, down after 0 to none"}},
		"PROXY protocol set by hand": {change: func(lb *api.LoadBalancer) { lb.Listeners[0].ProxyProtocol = api.ProxyProtocolV1 },
			want: []string{"update load balancer lb-1: listeners [tcp:8080→30080+proxy-v1 tcp:8443→30443] to [tcp:8080→30080 tcp:8443→30443]"}},
		"our tag removed": {change: func(lb *api.LoadBalancer) { delete(lb.Tags, contract.TagService) }, want: []string{"update load balancer lb-1: tags"}},
	} {
		t.Run(name, func(t *testing.T) {
			have := built(t, api.LoadBalancerActive, target)
			tc.change(have)
			want, err := newBalancerSpec(clusterID{name: clusterName}, service(), nodes(target))
			require.NoError(t, err)
			var steps []string
			for _, s := range planSteps(have, want) {
				steps = append(steps, s.String())
			}
			assert.Equal(t, tc.want, steps)
		})
	}
}

// What each thing that a Service may ask for becomes in the cloud. With that
// in the cloud already, in whatever order, nothing is called.
func TestDesiredBalancer(t *testing.T) {
	seconds := int32(60)
	plain := api.Listeners{{Protocol: "tcp", Port: 8080, TargetPort: 30080}, {Protocol: "tcp", Port: 8443, TargetPort: 30443}}
	none := api.HealthCheck{Protocol: api.HealthCheckNone}
	for name, tc := range map[string]struct {
		ask  func(svc *corev1.Service)
		want func(b *balancerSpec)
	}{
		"nothing more": {ask: func(*corev1.Service) {}},
		"one port, both protocols": {
			ask: func(svc *corev1.Service) {
				svc.Spec.Ports[0] = corev1.ServicePort{Port: 8080, NodePort: 30080, Protocol: corev1.ProtocolUDP}
			},
			want: func(b *balancerSpec) {
				b.listeners = api.Listeners{{Protocol: "tcp", Port: 8080, TargetPort: 30080}, {Protocol: "udp", Port: 8080, TargetPort: 30080}}
			},
		},
		"PROXY protocol, which UDP has not": {
			ask: func(svc *corev1.Service) {
				svc.Annotations = map[string]string{annotations.Prefix + annotations.ProxyProtocol: "v2"}
				svc.Spec.Ports[0].Protocol = corev1.ProtocolUDP
			},
			want: func(b *balancerSpec) {
				b.listeners = api.Listeners{{Protocol: "tcp", Port: 8080, TargetPort: 30080, ProxyProtocol: "v2"}, {Protocol: "udp", Port: 8443, TargetPort: 30443}}
			},
		},
		"source ranges": {
			ask: func(svc *corev1.Service) {
				svc.Spec.LoadBalancerSourceRanges = []string{"192.0.2.7/24", "10.0.0.0/8 ", "192.0.2.0/24"}
			},
			want: func(b *balancerSpec) { b.sourceRanges = api.SourceRanges{"10.0.0.0/8", "192.0.2.0/24"} },
		},
		"source ranges by annotation": {
			ask: func(svc *corev1.Service) {
				svc.Annotations = map[string]string{corev1.AnnotationLoadBalancerSourceRangesKey: "192.0.2.0/24, 10.0.0.0/8"}
			},
			want: func(b *balancerSpec) { b.sourceRanges = api.SourceRanges{"10.0.0.0/8", "192.0.2.0/24"} },
		},
		"a range of everyone": {
			ask: func(svc *corev1.Service) { svc.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/8", "0.0.0.0/0"} },
		},
		"affinity": {
			ask: func(svc *corev1.Service) {
				svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
				svc.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
			},
			want: func(b *balancerSpec) { b.clientAffinitySeconds = 60 },
		},
		"affinity without a timeout": {
			ask:  func(svc *corev1.Service) { svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP },
			want: func(b *balancerSpec) { b.clientAffinitySeconds = 10800 },
		},
		"only nodes with a pod": {
			ask: func(svc *corev1.Service) {
				svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
				svc.Spec.HealthCheckNodePort = 31000
			},
			want: func(b *balancerSpec) {
				b.healthCheck = api.HealthCheck{Protocol: "http", Port: 31000, Path: "/healthz", IntervalSeconds: 1, TimeoutSeconds: 1, HealthyThreshold: 1, UnhealthyThreshold: 2}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			svc := service()
			tc.ask(svc)
			got, err := newBalancerSpec(clusterID{name: clusterName}, svc, nil)
			require.NoError(t, err)
			want := got
			want.listeners, want.sourceRanges, want.clientAffinitySeconds, want.healthCheck = plain, api.SourceRanges{}, 0, none
			have := &api.LoadBalancer{ID: "lb-1", Name: want.name, Tags: want.tags, Targets: want.targets, Listeners: plain}
			if tc.want != nil {
				require.Len(t, planSteps(have, got), 1)
				tc.want(&want)
			}
			assert.Equal(t, want, got)

			have.Listeners, have.SourceRanges, have.ClientAffinitySeconds = slices.Clone(want.listeners), slices.Clone(want.sourceRanges), want.clientAffinitySeconds
			have.HealthCheck = &want.healthCheck
			slices.Reverse(have.Listeners)
			slices.Reverse(have.SourceRanges)
			assert.Empty(t, planSteps(have, got))
		})
	}
}

// What is no longer asked for is taken away, in terms that the API has.
func TestBackToPlain(t *testing.T) {
	have := built(t, api.LoadBalancerActive)
	have.SourceRanges, have.ClientAffinitySeconds = api.SourceRanges{"10.0.0.0/8"}, 60
	have.HealthCheck = &api.HealthCheck{Protocol: api.HealthCheckHTTP, Port: 31000}
	want, err := newBalancerSpec(clusterID{name: clusterName}, service(), nil)
	require.NoError(t, err)
	steps := planSteps(have, want)
	require.Len(t, steps, 1)
	sent, err := json.Marshal(steps[0].(updateStep).update)
	require.NoError(t, err)
	assert.JSONEq(t, `{"sourceRanges":[],"clientAffinitySeconds":0,"healthCheck":{"protocol":"none"}}`, string(sent))
}

// Whatever the cloud cannot do is refused before any call, all of it at once.
func TestUnsupportedServices(t *testing.T) {
	svc := service()
	svc.Annotations = map[string]string{annotations.Prefix + annotations.ProxyProtocol: "v3"}
	svc.Spec.Ports[0].Protocol = corev1.ProtocolSCTP
	svc.Spec.Ports[1].NodePort = 0
	svc.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0"}
	svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	svc.Spec.LoadBalancerIP = "2001:db8::1" //nolint:staticcheck // Deprecated, and used.
	_, err := newLoadBalancers(&fakeAPI{t: t}).EnsureLoadBalancer(t.Context(), clusterName, svc, nil)
	for _, want := range []string{`proxy-protocol is "v3"; want v1 or v2`, "protocol SCTP (port 8443)", "port 8080 without a node port", "[192.0.2.0] is not valid",
		"without a healthCheckNodePort", `loadBalancerIP is "2001:db8::1"; want an IPv4 address`} {
		assert.ErrorContains(t, err, want)
	}
}

// A balancer is never open to more than those who were meant.
func TestUnreadableSourceRanges(t *testing.T) {
	for _, ranges := range []string{"192.0.2.0", "192.0.2.0/24,", "here"} {
		svc := service()
		svc.Annotations = map[string]string{corev1.AnnotationLoadBalancerSourceRangesKey: ranges}
		_, err := newLoadBalancers(&fakeAPI{t: t}).EnsureLoadBalancer(t.Context(), clusterName, svc, nil)
		assert.ErrorContains(t, err, "is not valid", ranges)
	}
}

// Limits are the cloud's, and what goes beyond is the Service's to mend.
func TestWhatTheCloudRefusesAsInvalid(t *testing.T) {
	f := &fakeAPI{t: t, project: ours, listBalancers: has()}
	f.create = func(api.LoadBalancerCreate) (*api.LoadBalancer, error) {
		return nil, problem(400, api.InvalidRequest, ourProject)
	}
	_, err := newLoadBalancers(f).EnsureLoadBalancer(t.Context(), clusterName, service(), nil)
	require.Error(t, err)
	assert.Equal(t, contract.ReasonInvalidService, causeOf(err).reason)
}

// Upstream hands over Services that may be older than what is in the cloud.
func TestUpdateChangesTargetsAlone(t *testing.T) {
	have := built(t, api.LoadBalancerActive, "fakecloud://i-1")
	have.SourceRanges = api.SourceRanges{"192.0.2.0/24"}
	have.Listeners[0].TargetPort++
	f := &fakeAPI{t: t, project: ours, listBalancers: has(*have)}
	sent := 0
	f.update = func(id string, u api.LoadBalancerUpdate) (*api.LoadBalancer, error) {
		sent++
		assert.Equal(t, api.LoadBalancerUpdate{Targets: &api.Targets{{InstanceID: "i-1"}, {InstanceID: "i-2"}}}, u)
		return have, nil
	}
	require.NoError(t, newLoadBalancers(f).UpdateLoadBalancer(t.Context(), clusterName, service(), nodes("fakecloud://i-1", "fakecloud://i-2")))
	require.NoError(t, newLoadBalancers(f).UpdateLoadBalancer(t.Context(), clusterName, service(), nodes("fakecloud://i-1")))
	assert.Equal(t, 1, sent)
}

func TestUpdateNeverCreates(t *testing.T) {
	err := newLoadBalancers(&fakeAPI{t: t, project: ours, listBalancers: has()}).
		UpdateLoadBalancer(t.Context(), clusterName, service(), nodes("fakecloud://i-1"))
	assert.ErrorContains(t, err, "no load balancer to update")
}

func TestDelete(t *testing.T) {
	for name, tc := range map[string]struct {
		have    []api.LoadBalancer
		remove  func(string) (*api.LoadBalancer, error)
		wantErr string
	}{
		"there":             {have: []api.LoadBalancer{{ID: "lb-1", State: api.LoadBalancerActive}}, remove: func(string) (*api.LoadBalancer, error) { return &api.LoadBalancer{}, nil }},
		"not there":         {},
		"already deleting":  {have: []api.LoadBalancer{{ID: "lb-1", State: api.LoadBalancerDeleting}}},
		"gone meanwhile":    {have: []api.LoadBalancer{{ID: "lb-1"}}, remove: func(string) (*api.LoadBalancer, error) { return nil, problem(404, api.NotFound, ourProject) }},
		"404 of a stranger": {have: []api.LoadBalancer{{ID: "lb-1"}}, remove: func(string) (*api.LoadBalancer, error) { return nil, problem(404, api.NotFound, "p-other") }, wantErr: "not ours"},
		"the cloud is down": {have: []api.LoadBalancer{{ID: "lb-1"}}, remove: func(string) (*api.LoadBalancer, error) { return nil, errors.New("refused") }, wantErr: "refused"},
	} {
		t.Run(name, func(t *testing.T) {
			for i := range tc.have {
				tc.have[i].Tags = built(t, "").Tags
			}
			l := newLoadBalancers(&fakeAPI{t: t, project: ours, listBalancers: has(tc.have...), remove: tc.remove})
			err := l.EnsureLoadBalancerDeleted(t.Context(), clusterName, service())
			if tc.wantErr == "" {
				assert.NoError(t, err)
			} else {
				assert.ErrorContains(t, err, tc.wantErr)
			}
		})
	}
}

// With the token of another project the list is empty too; a Service must not
// lose its finalizer over that, nor get a second balancer.
func TestEmptyListOfAnotherProject(t *testing.T) {
	l := newLoadBalancers(&fakeAPI{t: t, listBalancers: has(), project: func() (*api.Project, error) {
		return &api.Project{ID: "p-other", Name: "other"}, nil
	}})
	_, _, err := l.GetLoadBalancer(t.Context(), clusterName, service())
	require.ErrorContains(t, err, "configured for")
	_, err = l.EnsureLoadBalancer(t.Context(), clusterName, service(), nil)
	require.ErrorContains(t, err, "configured for")
}

// A target whose instance has ended is left out; the others are served.
func TestEndedTargetsAreLeftOut(t *testing.T) {
	f := &fakeAPI{t: t, project: ours, listBalancers: has(*built(t, api.LoadBalancerActive, "fakecloud://i-1"))}
	var asked []api.Targets
	f.update = func(_ string, u api.LoadBalancerUpdate) (*api.LoadBalancer, error) {
		asked = append(asked, slices.Clone(*u.Targets))
		if len(*u.Targets) > 2 { // The second of them has ended, each time.
			err := &client.Error{Status: 400, Problem: api.Problem{Code: api.UnknownInstance}}
			require.NoError(t, json.Unmarshal([]byte(`[{"field":"targets.1.instanceId","message":"is terminated"}]`), &err.Problem.Fields))
			return nil, err
		}
		return built(t, api.LoadBalancerUpdating), nil
	}
	require.NoError(t, newLoadBalancers(f).UpdateLoadBalancer(t.Context(), clusterName, service(), nodes("fakecloud://i-1", "fakecloud://i-2", "fakecloud://i-3", "fakecloud://i-4")))
	require.Len(t, asked, 3)
	assert.Equal(t, api.Targets{{InstanceID: "i-1"}, {InstanceID: "i-4"}}, asked[2])
}

// A cloud that names targets that were not sent is not believed, and no more.
func TestStrangeEndedTargets(t *testing.T) {
	fields := []api.ProblemField{{Field: "targets.-1.instanceId"}, {Field: "targets.1.instanceId"}, {Field: "targets.0.instanceId"}, {Field: "name"}}
	err := &client.Error{Status: 400, Problem: api.Problem{Code: api.UnknownInstance, Fields: &fields}}
	assert.Equal(t, []string{"i-1"}, endedTargets(err, api.Targets{{InstanceID: "i-1"}}))
}
