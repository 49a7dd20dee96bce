package core

import (
	"cmp"
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
		contract.TagHealthCheck: "http",
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
	check := func(protocol api.HealthCheckProtocol, port int, path, codes string, numbers ...int) api.HealthCheck {
		return api.HealthCheck{
			Protocol: protocol, Port: port, Path: path, ExpectedCodes: codes, IntervalSeconds: numbers[0],
			TimeoutSeconds: numbers[1], HealthyThreshold: numbers[2], UnhealthyThreshold: numbers[3],
		}
	}
	for name, tc := range map[string]struct {
		svc  *corev1.Service
		want api.HealthCheck
	}{
		"by default, of UDP alone": {withUDPOnly(service()), askKubeProxy},
		"by default, of another kube-proxy": {serviceWithAnnotations(
			annotations.HealthCheckPort, "10257", annotations.HealthCheckCodes, "200,503",
			annotations.HealthCheckInterval, "1s", annotations.HealthCheckHealthyThreshold, "3",
		), check("http", 10257, "/healthz", "200,503", 1, 1, 3, 2)},
		"tcp": {serviceWithAnnotations(annotations.HealthCheck, "tcp"), check("tcp", 30443, "", "", 5, 2, 2, 2)},
		"http, often": {serviceWithAnnotations(
			annotations.HealthCheck, "http", annotations.HealthCheckPort, "10256", annotations.HealthCheckInterval, "1s",
		), check("http", 10256, "/", "", 1, 1, 2, 2)},
		"local": {withLocalPolicy(service()), check("http", 31000, "/healthz", "", 1, 1, 1, 2)},
		"local, patiently": {withLocalPolicy(serviceWithAnnotations(
			annotations.HealthCheckUnhealthyThreshold, "5", annotations.HealthCheckInterval, "3s",
		)), check("http", 31000, "/healthz", "", 3, 1, 1, 5)},
	} {
		got, err := newBalancerSpec(clusterID{}, tc.svc, nil)
		require.NoError(t, err, name)
		assert.Equal(t, tc.want, *got.HealthCheck, name)
	}
}

func withLocalPolicy(svc *corev1.Service) *corev1.Service {
	svc.Spec.ExternalTrafficPolicy, svc.Spec.HealthCheckNodePort = corev1.ServiceExternalTrafficPolicyLocal, 31000
	return svc
}

func withUDPOnly(svc *corev1.Service) *corev1.Service {
	svc.Spec.Ports = []corev1.ServicePort{{Port: 53, NodePort: 30053, Protocol: corev1.ProtocolUDP}}
	return svc
}

func TestAnnotationsThatDoNotGoTogether(t *testing.T) {
	chosen := serviceWithAnnotations(annotations.Address, "web")
	chosen.Spec.LoadBalancerIP = "127.30.64.9" //nolint:staticcheck // Deprecated, and used.
	internal := serviceWithAnnotations(annotations.Scheme, "internal")
	internal.Spec.LoadBalancerIP = "127.30.64.9" //nolint:staticcheck // As above.
	for name, tc := range map[string]struct {
		svc  *corev1.Service
		errs []string
	}{
		"local and another": {withLocalPolicy(serviceWithAnnotations(
			annotations.HealthCheck, "tcp", annotations.HealthCheckPort, "22",
		)), []string{
			`health-check is "tcp"; externalTrafficPolicy Local`, `health-check-port is "22"; externalTrafficPolicy Local`,
		}},
		"none, with a port": {serviceWithAnnotations(
			annotations.HealthCheck, "none", annotations.HealthCheckPort, "22",
			annotations.HealthCheckTimeout, "1s", annotations.HealthCheckPath, "/",
		), []string{
			`health-check-port is "22"; fakecloud.ccmlab.io/health-check is none`, "health-check-timeout is",
			`health-check-path is "/"; it is for HTTP checks, and fakecloud.ccmlab.io/health-check is none`,
		}},
		"too patient": {
			serviceWithAnnotations(annotations.HealthCheck, "tcp", annotations.HealthCheckTimeout, "6s"),
			[]string{`timeout is "6s"; the interval is 5 s`},
		},
		"nobody to ask": {
			withUDPOnly(serviceWithAnnotations(annotations.HealthCheck, "tcp")), []string{"no TCP port to check"},
		},
		"ports that are not there": {withUDPOnly(serviceWithAnnotations(
			annotations.ProxyProtocol, "53=v1", annotations.ConnectionLimit, "54=3", annotations.Drain, "9s",
		)), []string{"no TCP port 53", "no port 54", `drain is "9s"; it is for TCP`}},
		"two addresses":       {chosen, []string{`loadBalancerIP "127.30.64.9" too`}},
		"internal and chosen": {internal, []string{"takes no reserved address"}},
	} {
		_, err := newBalancerSpec(clusterID{}, tc.svc, nil)
		for _, want := range tc.errs {
			assert.ErrorContains(t, err, want, name)
		}
	}
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
	tooMany, lastIsWrong := service(), service()
	tooMany.Spec.LoadBalancerSourceRanges = ranges
	lastIsWrong.Spec.LoadBalancerSourceRanges = append(slices.Clone(ranges), "here"+long)
	byAnnotation := service()
	byAnnotation.Annotations = map[string]string{
		corev1.AnnotationLoadBalancerSourceRangesKey: strings.Join(lastIsWrong.Spec.LoadBalancerSourceRanges, ","),
	}
	services := map[string]*corev1.Service{
		"too many source ranges": tooMany, "a wrong source range": lastIsWrong,
		"a wrong source range in the annotation": byAnnotation, "a wrong address": serviceWithLoadBalancerIP(long),
		"too long a path for the cloud": serviceWithAnnotations(annotations.HealthCheckPath, "/"+long[:1000]),
	}
	for _, d := range annotations.Definitions {
		services["annotation "+d.Name] = serviceWithAnnotations(d.Name, "!"+long)
	}
	for name, svc := range services {
		t.Run(name, func(t *testing.T) {
			f := newFakeBalancers(t, *built(t, api.LoadBalancerActive))
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
	for name, tc := range map[string]struct {
		svc   *corev1.Service
		check api.HealthCheckProtocol
	}{
		"it says nothing":                {service(), api.HealthCheckNone},
		"it says otherwise":              {serviceWithAnnotations(annotations.HealthCheck, "tcp"), api.HealthCheckTCP},
		"where kube-proxy must be asked": {withLocalPolicy(service()), api.HealthCheckHTTP},
	} {
		l := newFakeBalancers(t).loadBalancers()
		l.defaults = map[string]string{annotations.HealthCheck: "none", annotations.Drain: "30s"}
		before := tc.svc.DeepCopy()
		spec, err := l.desiredSpec(tc.svc, nil)
		require.NoError(t, err, name)
		assert.Equal(t, tc.check, spec.HealthCheck.Protocol, name)
		assert.Equal(t, 30, *spec.DrainSeconds, name)
		assert.Equal(t, before, tc.svc, name)
	}
}

// A balancer's tag says which health check it was given, so that one that somebody took away comes back. A balancer
// of an older release has no tag. If it has no health check either, it keeps none until its Service asks for one,
// as nobody knows whether kube-proxy can be reached there.
func TestMissingHealthCheck(t *testing.T) {
	for name, tc := range map[string]struct {
		svc       *corev1.Service
		check     *api.HealthCheck // of the balancer
		tag       string           // of the balancer
		gets      *api.HealthCheck // what it is given, nil for nothing
		changes   bool
		resultTag string
	}{
		"taken away":              {tag: "http", changes: true, gets: &askKubeProxy, resultTag: "http"},
		"none was asked for":      {tag: "none", changes: true, gets: &askKubeProxy, resultTag: "http"},
		"older, with a check":     {check: &askKubeProxy, changes: true, resultTag: "http"},
		"older, without":          {},
		"older, with one of none": {check: &api.HealthCheck{Protocol: api.HealthCheckNone}},
		"older, asked for now": {
			svc: serviceWithAnnotations(annotations.HealthCheckPort, "10256"), changes: true,
			gets: &askKubeProxy, resultTag: "http",
		},
		"older, none is asked for": {
			svc: serviceWithAnnotations(annotations.HealthCheck, "none"), changes: true, resultTag: "none",
		},
		"older, of local policy": {
			svc: withLocalPolicy(service()), changes: true, resultTag: "http",
			gets: &api.HealthCheck{
				Protocol: api.HealthCheckHTTP, Port: 31000, Path: "/healthz",
				IntervalSeconds: 1, TimeoutSeconds: 1, HealthyThreshold: 1, UnhealthyThreshold: 2,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			have := built(t, api.LoadBalancerActive)
			have.HealthCheck = tc.check
			delete(have.Tags, contract.TagHealthCheck)
			if tc.tag != "" {
				have.Tags[contract.TagHealthCheck] = tc.tag
			}
			want, err := newBalancerSpec(clusterID{name: clusterName}, cmp.Or(tc.svc, service()), nil)
			require.NoError(t, err)
			steps := planSteps(have, want)
			require.Equal(t, tc.changes, len(steps) > 0, "%v", steps)
			tags := have.Tags
			if tc.changes {
				update := steps[0].(updateStep).update
				assert.Equal(t, tc.gets, update.HealthCheck)
				tags = *cmp.Or(update.Tags, &tags)
			}
			assert.Equal(t, tc.resultTag, tags[contract.TagHealthCheck])
		})
	}
}
