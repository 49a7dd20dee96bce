package ccm

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/ccmlab/ccmlab/ccm/annotations"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// askKubeProxy is the health check of a Service that says nothing of one.
var askKubeProxy = api.HealthCheck{
	Protocol: api.HealthCheckHTTP, Port: 10256, Path: "/healthz",
	IntervalSeconds: 5, TimeoutSeconds: 2, HealthyThreshold: 1, UnhealthyThreshold: 2,
}

// What each field of a Service becomes in the cloud. If the cloud has that already,
// in whatever order, the plan is empty.
func TestNewBalancerSpec(t *testing.T) {
	seconds := int32(60)
	plain := api.Listeners{
		{Protocol: "tcp", Port: 8080, TargetPort: 30080}, {Protocol: "tcp", Port: 8443, TargetPort: 30443},
	}
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
				b.Listeners = api.Listeners{
					{Protocol: "tcp", Port: 8080, TargetPort: 30080}, {Protocol: "udp", Port: 8080, TargetPort: 30080},
				}
			},
		},
		"PROXY protocol, which UDP has not": {
			ask: func(svc *corev1.Service) {
				svc.Annotations = map[string]string{annotations.Prefix + annotations.ProxyProtocol: "v2"}
				svc.Spec.Ports[0].Protocol = corev1.ProtocolUDP
			},
			want: func(b *balancerSpec) {
				b.Listeners = api.Listeners{
					{Protocol: "tcp", Port: 8080, TargetPort: 30080, ProxyProtocol: "v2"},
					{Protocol: "udp", Port: 8443, TargetPort: 30443},
				}
			},
		},
		"a network balancer, which needs no node ports": {
			ask: func(svc *corev1.Service) {
				svc.Annotations = map[string]string{annotations.Prefix + annotations.Kind: "network"}
				svc.Spec.Ports[0].NodePort, svc.Spec.Ports[1].NodePort = 0, 0
			},
			want: func(b *balancerSpec) {
				b.Kind, b.Algorithm = new(api.KindNetwork), new(api.AlgorithmFlowHash)
				b.Listeners = api.Listeners{
					{Protocol: "tcp", Port: 8080, TargetPort: 8080}, {Protocol: "tcp", Port: 8443, TargetPort: 8443},
				}
			},
		},
		"source ranges": {
			ask: func(svc *corev1.Service) {
				svc.Spec.LoadBalancerSourceRanges = []string{"192.0.2.7/24", "10.0.0.0/8 ", "192.0.2.0/24"}
			},
			want: func(b *balancerSpec) { b.SourceRanges = &api.SourceRanges{"10.0.0.0/8", "192.0.2.0/24"} },
		},
		"source ranges by annotation": {
			ask: func(svc *corev1.Service) {
				svc.Annotations = map[string]string{
					corev1.AnnotationLoadBalancerSourceRangesKey: "192.0.2.0/24, 10.0.0.0/8",
				}
			},
			want: func(b *balancerSpec) { b.SourceRanges = &api.SourceRanges{"10.0.0.0/8", "192.0.2.0/24"} },
		},
		"a range of everyone": {
			ask: func(svc *corev1.Service) { svc.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/8", "0.0.0.0/0"} },
		},
		"affinity": {
			ask: func(svc *corev1.Service) {
				svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
				svc.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
					ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds},
				}
			},
			want: func(b *balancerSpec) { b.ClientAffinitySeconds = new(60) },
		},
		"affinity without a timeout": {
			ask:  func(svc *corev1.Service) { svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP },
			want: func(b *balancerSpec) { b.ClientAffinitySeconds = new(10800) },
		},
		"only nodes with a pod": {
			ask: func(svc *corev1.Service) {
				svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
				svc.Spec.HealthCheckNodePort = 31000
			},
			want: func(b *balancerSpec) {
				b.HealthCheck = &api.HealthCheck{
					Protocol: "http", Port: 31000, Path: "/healthz", IntervalSeconds: 1, TimeoutSeconds: 1,
					HealthyThreshold: 1, UnhealthyThreshold: 2,
				}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			svc := service()
			tc.ask(svc)
			got, err := newBalancerSpec(clusterID{name: clusterName}, svc, nil)
			require.NoError(t, err)
			want := got
			want.Listeners, want.SourceRanges, want.ClientAffinitySeconds, want.HealthCheck = plain, &api.SourceRanges{}, new(0), &askKubeProxy
			want.Kind, want.Algorithm = new(api.KindProxy), new(api.AlgorithmRoundRobin)
			have := &api.LoadBalancer{
				ID: "lb-1", Name: want.Name, Tags: *want.Tags, Targets: *want.Targets, Listeners: plain,
				HealthCheck: &askKubeProxy,
			}
			if tc.want != nil {
				require.Len(t, planSteps(have, got), 1)
				tc.want(&want)
			}
			assert.Equal(t, want, got)

			have.Listeners, have.SourceRanges, have.ClientAffinitySeconds = slices.Clone(want.Listeners), slices.Clone(*want.SourceRanges), *want.ClientAffinitySeconds
			have.HealthCheck, have.Kind, have.Algorithm = want.HealthCheck, *want.Kind, *want.Algorithm
			slices.Reverse(have.Listeners)
			slices.Reverse(have.SourceRanges)
			assert.Empty(t, planSteps(have, got))
		})
	}
}

// The tags are ours, the Service's own, and the cluster's UID once it is known.
func TestBalancerTags(t *testing.T) {
	svc := serviceWithAnnotations(annotations.Tags, "team=blue")
	want, err := newBalancerSpec(clusterID{name: clusterName, uid: "k-1"}, svc, nil)
	require.NoError(t, err)
	assert.Equal(t, api.Tags{
		"team": "blue", contract.TagCluster: "lab", contract.TagClusterUID: "k-1", contract.TagService: "default/web",
		contract.TagServiceUID: "01234567-89ab", contract.TagServiceTags: "team",
	}, *want.Tags)
	have := built(t, api.LoadBalancerActive)
	have.Tags["team"] = "blue"
	steps := planSteps(have, want)
	require.Len(t, steps, 1, "one of before the UID was known gets it")
	assert.Equal(t, *want.Tags, *steps[0].(updateStep).update.Tags)
	have.Tags = *want.Tags
	assert.Empty(t, planSteps(have, want))
}

// A tag's value in the cloud has 256 bytes at most: keys for which there is no room are left out.
func TestTagKeysFitIntoOneTag(t *testing.T) {
	long := strings.Repeat("k", 128)
	assert.Equal(t, "a,"+long, tagKeys(api.Tags{"a": "1", long: "2", long + "l": "3"}))
	assert.Empty(t, tagKeys(nil))
}

func TestSourceRangesOfBothFamilies(t *testing.T) {
	for _, tc := range []struct {
		ranges []string
		dual   bool
		want   api.SourceRanges
	}{
		{nil, true, api.SourceRanges{}},
		{[]string{"2001:db8::1/32", "10.0.0.0/8"}, true, api.SourceRanges{"10.0.0.0/8", "2001:db8::/32"}},
		{[]string{"2001:db8::/32"}, false, api.SourceRanges{"2001:db8::/32"}},
		{[]string{"0.0.0.0/0"}, false, api.SourceRanges{}},
		{[]string{"0.0.0.0/0"}, true, api.SourceRanges{"0.0.0.0/0"}},
		{[]string{"0.0.0.0/0", "::/0"}, true, api.SourceRanges{}},
	} {
		svc := service()
		if tc.dual {
			svc = serviceWithFamilies("RequireDualStack", "IPv4", "IPv6")
		}
		svc.Spec.LoadBalancerSourceRanges = tc.ranges
		want, err := newBalancerSpec(clusterID{}, svc, nil)
		require.NoError(t, err)
		assert.Equal(t, tc.want, *want.SourceRanges, "%v", tc.ranges)
	}
}

func TestHealthCheckByAnnotation(t *testing.T) {
	local := func(svc *corev1.Service) *corev1.Service {
		svc.Spec.ExternalTrafficPolicy, svc.Spec.HealthCheckNodePort = corev1.ServiceExternalTrafficPolicyLocal, 31000
		return svc
	}
	udp := func(svc *corev1.Service) *corev1.Service {
		svc.Spec.Ports = []corev1.ServicePort{{Port: 53, NodePort: 30053, Protocol: corev1.ProtocolUDP}}
		return svc
	}
	for name, tc := range map[string]struct {
		svc  *corev1.Service
		want api.HealthCheck
		errs []string
	}{
		"by default":               {svc: service(), want: askKubeProxy},
		"by default, of UDP alone": {svc: udp(service()), want: askKubeProxy},
		"by default, of another kube-proxy": {
			svc: serviceWithAnnotations(
				annotations.HealthCheckPort, "10257", annotations.HealthCheckCodes, "200,503",
				annotations.HealthCheckInterval, "1s", annotations.HealthCheckHealthyThreshold, "3",
			),
			want: api.HealthCheck{
				Protocol: "http", Port: 10257, Path: "/healthz", ExpectedCodes: "200,503",
				IntervalSeconds: 1, TimeoutSeconds: 1, HealthyThreshold: 3, UnhealthyThreshold: 2,
			},
		},
		"none": {
			svc:  serviceWithAnnotations(annotations.HealthCheck, "none"),
			want: api.HealthCheck{Protocol: "none"},
		},
		"tcp": {
			svc: serviceWithAnnotations(annotations.HealthCheck, "tcp"),
			want: api.HealthCheck{
				Protocol: "tcp", Port: 30443, IntervalSeconds: 5, TimeoutSeconds: 2, HealthyThreshold: 2,
				UnhealthyThreshold: 2,
			},
		},
		"http, often": {
			svc: serviceWithAnnotations(
				annotations.HealthCheck, "http", annotations.HealthCheckPort, "10256", annotations.HealthCheckInterval,
				"1s",
			),
			want: api.HealthCheck{
				Protocol: "http", Port: 10256, Path: "/", IntervalSeconds: 1, TimeoutSeconds: 1, HealthyThreshold: 2,
				UnhealthyThreshold: 2,
			},
		},
		"local, patiently": {
			svc: local(serviceWithAnnotations(
				annotations.HealthCheckUnhealthyThreshold, "5", annotations.HealthCheckInterval, "3s",
			)),
			want: api.HealthCheck{
				Protocol: "http", Port: 31000, Path: "/healthz", IntervalSeconds: 3, TimeoutSeconds: 1,
				HealthyThreshold: 1, UnhealthyThreshold: 5,
			},
		},
		"local and another": {
			svc: local(serviceWithAnnotations(annotations.HealthCheck, "tcp", annotations.HealthCheckPort, "22")),
			errs: []string{
				`health-check is "tcp"; externalTrafficPolicy Local`,
				`health-check-port is "22"; externalTrafficPolicy Local`,
			},
		},
		"none, with a port": {
			svc: serviceWithAnnotations(
				annotations.HealthCheck, "none", annotations.HealthCheckPort, "22",
				annotations.HealthCheckTimeout, "1s", annotations.HealthCheckPath, "/",
			),
			errs: []string{
				"health-check-port is \"22\"; fakecloud.ccmlab.io/health-check is none", "health-check-timeout is",
				"health-check-path is \"/\"; it is for HTTP checks, and fakecloud.ccmlab.io/health-check is none",
			},
		},
		"too patient": {
			svc:  serviceWithAnnotations(annotations.HealthCheck, "tcp", annotations.HealthCheckTimeout, "6s"),
			errs: []string{`timeout is "6s"; the interval is 5 s`},
		},
		"nobody to ask": {
			svc:  udp(serviceWithAnnotations(annotations.HealthCheck, "tcp")),
			errs: []string{"no TCP port to check"},
		},
		"ports that are not there": {
			svc: udp(serviceWithAnnotations(
				annotations.ProxyProtocol, "53=v1", annotations.ConnectionLimit, "54=3", annotations.Drain, "9s",
			)),
			errs: []string{"no TCP port 53", "no port 54", "drain is \"9s\"; it is for TCP"},
		},
		"two addresses": {svc: func() *corev1.Service {
			svc := serviceWithAnnotations(annotations.Address, "web")
			svc.Spec.LoadBalancerIP = "127.30.64.9" //nolint:staticcheck // Deprecated, and used.
			return svc
		}(), errs: []string{"loadBalancerIP \"127.30.64.9\" too"}},
		"internal and chosen": {svc: func() *corev1.Service {
			svc := serviceWithAnnotations(annotations.Scheme, "internal")
			svc.Spec.LoadBalancerIP = "127.30.64.9" //nolint:staticcheck // Deprecated, and used.
			return svc
		}(), errs: []string{"takes no reserved address"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := newBalancerSpec(clusterID{}, tc.svc, nil)
			for _, want := range tc.errs {
				assert.ErrorContains(t, err, want)
			}
			if len(tc.errs) == 0 {
				require.NoError(t, err)
				assert.Equal(t, tc.want, *got.HealthCheck)
			}
		})
	}
}

// Upstream chooses the nodes (by the exclusion label among others). A target whose node
// is not among them is taken out, and stays out.
func TestTargetsAreTheNodesGiven(t *testing.T) {
	excluded := node("fakecloud://i-1")
	excluded.Labels = map[string]string{corev1.LabelNodeExcludeBalancers: ""}
	have := built(t, api.LoadBalancerActive, "fakecloud://i-1", "fakecloud://i-2")
	f := &fakeAPI{t: t, listBalancers: listReturns(*have)}
	f.update = func(_ string, u api.LoadBalancerUpdate) (*api.LoadBalancer, error) {
		assert.Equal(t, api.Targets{{InstanceID: "i-2"}}, *u.Targets)
		have.Targets = *u.Targets
		f.listBalancers, f.update = listReturns(*have), nil
		return have, nil
	}
	l := newLoadBalancers(f)
	for range 2 {
		require.NoError(t, l.UpdateLoadBalancer(t.Context(), clusterName, service(), nodes("fakecloud://i-2", "")))
	}
	// One that upstream does give is a target, whatever its labels.
	want, err := newBalancerSpec(clusterID{}, service(), []*corev1.Node{excluded})
	require.NoError(t, err)
	assert.Equal(t, api.Targets{{InstanceID: "i-1"}}, *want.Targets)
}

// One error names everything that the cloud cannot do, before any call.
func TestUnsupportedFieldsAreRefusedAtOnce(t *testing.T) {
	svc := service()
	svc.Annotations = map[string]string{annotations.Prefix + annotations.ProxyProtocol: "v3"}
	svc.Spec.Ports[0].Protocol = corev1.ProtocolSCTP
	svc.Spec.Ports[1].NodePort = 0
	svc.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0"}
	svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	svc.Spec.LoadBalancerIP = "2001:db8::1" //nolint:staticcheck // Deprecated, and used.
	_, err := newLoadBalancers(&fakeAPI{t: t}).EnsureLoadBalancer(t.Context(), clusterName, svc, nil)
	for _, want := range []string{`proxy-protocol is "v3"; want v1 or v2`, "protocol SCTP (port 8443)", "port 8080 without a node port", `"192.0.2.0" is not valid`,
		"without a healthCheckNodePort", `loadBalancerIP is "2001:db8::1"; want an IPv4 address`} {
		assert.ErrorContains(t, err, want)
	}
}

// A source range that cannot be read must not open the balancer to everyone.
func TestInvalidSourceRangesAreRefused(t *testing.T) {
	for _, ranges := range []string{"192.0.2.0", "192.0.2.0/24,", "here"} {
		svc := service()
		svc.Annotations = map[string]string{corev1.AnnotationLoadBalancerSourceRangesKey: ranges}
		_, err := newLoadBalancers(&fakeAPI{t: t}).EnsureLoadBalancer(t.Context(), clusterName, svc, nil)
		assert.ErrorContains(t, err, "is not valid", ranges)
	}
}

// What a person wrote is cut in what they are told, and the reason is never behind it.
func TestLongValuesAreCutInErrors(t *testing.T) {
	long := strings.Repeat("a", 2000)
	ranges := make([]string, 0, 101)
	for i := range cap(ranges) {
		ranges = append(ranges, fmt.Sprintf("10.%d.0.0/16", i))
	}
	tooMany, lastIsWrong, wrongAddress := service(), service(), serviceWithLoadBalancerIP(long)
	tooMany.Spec.LoadBalancerSourceRanges = ranges
	lastIsWrong.Spec.LoadBalancerSourceRanges = append(slices.Clone(ranges), "here"+long)
	byAnnotation := service()
	byAnnotation.Annotations = map[string]string{
		corev1.AnnotationLoadBalancerSourceRangesKey: strings.Join(lastIsWrong.Spec.LoadBalancerSourceRanges, ","),
	}
	services := map[string]*corev1.Service{
		"too many source ranges": tooMany, "a wrong source range": lastIsWrong,
		"a wrong source range in the annotation": byAnnotation, "a wrong address": wrongAddress,
		"too long a path for the cloud": serviceWithAnnotations(annotations.HealthCheckPath, "/"+long[:1000]),
	}
	for _, d := range annotations.Definitions {
		services["annotation "+d.Name] = serviceWithAnnotations(d.Name, "!"+long)
	}
	for name, svc := range services {
		t.Run(name, func(t *testing.T) {
			f := &fakeBalancers{fakeAPI: &fakeAPI{t: t}}
			have := built(t, api.LoadBalancerActive)
			f.listBalancers = func(client.LoadBalancerFilter) ([]api.LoadBalancer, error) {
				return []api.LoadBalancer{*have}, nil
			}
			f.addresses = func() ([]api.ReservedAddress, error) { return nil, nil }
			f.update = func(string, api.LoadBalancerUpdate) (*api.LoadBalancer, error) {
				return nil, &client.Error{Status: 400, Problem: api.Problem{Code: api.InvalidRequest, Detail: "want less"}}
			}
			_, err := f.loadBalancers().EnsureLoadBalancer(t.Context(), clusterName, svc, nil)
			require.ErrorContains(t, err, "want")
			assert.Less(t, len(err.Error()), 600)
			assert.Less(t, strings.Index(err.Error(), "want"), 200, "%v", err)
		})
	}
}

// The configuration's annotations count for a Service that does not have them and can have them.
func TestDefaultAnnotations(t *testing.T) {
	local := service()
	local.Spec.ExternalTrafficPolicy, local.Spec.HealthCheckNodePort = corev1.ServiceExternalTrafficPolicyLocal, 30999
	for name, tc := range map[string]struct {
		svc   *corev1.Service
		check api.HealthCheckProtocol
		drain int
	}{
		"it says nothing":                {svc: service(), check: api.HealthCheckNone, drain: 30},
		"it says otherwise":              {svc: serviceWithAnnotations(annotations.HealthCheck, "tcp"), check: api.HealthCheckTCP, drain: 30},
		"where kube-proxy must be asked": {svc: local, check: api.HealthCheckHTTP, drain: 30},
	} {
		t.Run(name, func(t *testing.T) {
			l := newFakeBalancers(t).loadBalancers()
			l.defaults = map[string]string{annotations.HealthCheck: "none", annotations.Drain: "30s"}
			before := tc.svc.DeepCopy()
			spec, err := l.desiredSpec(l.withDefaults(tc.svc), nil)
			require.NoError(t, err)
			assert.Equal(t, tc.check, spec.HealthCheck.Protocol)
			assert.Equal(t, tc.drain, *spec.DrainSeconds)
			assert.Equal(t, before, tc.svc)
		})
	}
}

// A balancer of a CCM that asked for no health check by default keeps none, as nobody knows whether
// kube-proxy can be reached there, until its Service says something of it.
func TestBalancerWithoutHealthCheckKeepsNone(t *testing.T) {
	old := built(t, api.LoadBalancerActive)
	old.HealthCheck = nil
	asked := built(t, api.LoadBalancerActive)
	asked.HealthCheck, asked.Tags[contract.TagHealthCheck] = nil, "none"
	want, err := newBalancerSpec(clusterID{name: clusterName}, service(), nil)
	require.NoError(t, err)
	assert.NotEmpty(t, planSteps(asked, want), "its Service asked for that before")
	local := service()
	local.Spec.ExternalTrafficPolicy, local.Spec.HealthCheckNodePort = corev1.ServiceExternalTrafficPolicyLocal, 30999
	for name, tc := range map[string]struct {
		svc     *corev1.Service
		changes bool
	}{
		"no word":               {svc: service()},
		"asked for":             {svc: serviceWithAnnotations(annotations.HealthCheck, "http"), changes: true},
		"asked for by interval": {svc: serviceWithAnnotations(annotations.HealthCheckInterval, "10s"), changes: true},
		"of its own policy":     {svc: local, changes: true},
	} {
		t.Run(name, func(t *testing.T) {
			want, err := newBalancerSpec(clusterID{name: clusterName}, tc.svc, nil)
			require.NoError(t, err)
			assert.Equal(t, tc.changes, len(planSteps(old, want)) > 0)
		})
	}

	l := newFakeBalancers(t).loadBalancers()
	l.recordSettings(string(service().UID), built(t, api.LoadBalancerActive))
	want, err = l.desiredSpec(service(), nil)
	require.NoError(t, err)
	assert.NotEmpty(t, planSteps(old, want), "it was seen with one, which somebody took away")
}
