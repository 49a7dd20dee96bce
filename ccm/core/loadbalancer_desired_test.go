package core

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/ccmlab/ccmlab/ccm/annotations"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// askKubeProxy is the health check of a Service that says nothing of one.
var askKubeProxy = healthCheck("http", 10256, "/healthz", 5, 2, 1, 2)

func healthCheck(
	protocol api.HealthCheckProtocol, port int, path string, interval, timeout api.Seconds, healthy, unhealthy int,
) api.HealthCheck {
	return api.HealthCheck{
		Protocol: protocol, Port: port, Path: path, IntervalSeconds: interval, TimeoutSeconds: timeout,
		HealthyThreshold: healthy, UnhealthyThreshold: unhealthy,
	}
}

func withLocalPolicy(svc *corev1.Service) *corev1.Service {
	svc.Spec.ExternalTrafficPolicy, svc.Spec.HealthCheckNodePort = corev1.ServiceExternalTrafficPolicyLocal, 31000
	return svc
}

func withPorts(svc *corev1.Service, ports ...corev1.ServicePort) *corev1.Service {
	svc.Spec.Ports = ports
	return svc
}

func withSourceRanges(svc *corev1.Service, ranges ...string) *corev1.Service {
	svc.Spec.LoadBalancerSourceRanges = ranges
	return svc
}

func withAffinity(svc *corev1.Service, config *corev1.SessionAffinityConfig) *corev1.Service {
	svc.Spec.SessionAffinity, svc.Spec.SessionAffinityConfig = corev1.ServiceAffinityClientIP, config
	return svc
}

// What each field and annotation of a Service becomes in the cloud. Nodes that have no provider ID, or one of
// another cloud, are no targets.
func TestDesiredLoadBalancer(t *testing.T) {
	udp := corev1.ServicePort{Port: 53, NodePort: 30053, Protocol: corev1.ProtocolUDP}
	tcp := corev1.ServicePort{Port: 53, NodePort: 30054}
	dual := func() *corev1.Service { return serviceWithFamilies("RequireDualStack", "IPv4", "IPv6") }
	ranges := func(want ...string) func(*api.LoadBalancerCreate) {
		return func(lb *api.LoadBalancerCreate) { lb.SourceRanges = want }
	}
	check := func(want api.HealthCheck) func(*api.LoadBalancerCreate) {
		return func(lb *api.LoadBalancerCreate) {
			lb.HealthCheck, (lb.Tags)[contract.TagHealthCheck] = &want, string(want.Protocol)
		}
	}
	withCodes := healthCheck("http", 10257, "/healthz", 1, 1, 3, 2)
	withCodes.ExpectedCodes = "200,503"
	for name, tc := range map[string]struct {
		svc  *corev1.Service
		want func(*api.LoadBalancerCreate) // changes what service() becomes
	}{
		"nothing more": {service(), nil},
		"PROXY protocol, which UDP lacks": {
			withPorts(serviceWithAnnotations(annotations.ProxyProtocol, "v2"), udp, tcp),
			func(lb *api.LoadBalancerCreate) {
				lb.Listeners = api.Listeners{
					{Protocol: "tcp", Port: 53, TargetPort: 30054, ProxyProtocol: "v2"},
					{Protocol: "udp", Port: 53, TargetPort: 30053},
				}
			},
		},
		"a network balancer, which needs no node ports": {
			withPorts(serviceWithAnnotations(annotations.Kind, "network", annotations.HealthCheck, "tcp"),
				corev1.ServicePort{Port: 8080}, corev1.ServicePort{Port: 8081, NodePort: 30081}),
			func(lb *api.LoadBalancerCreate) {
				lb.Kind, lb.Algorithm = api.KindNetwork, api.AlgorithmFlowHash
				lb.Listeners = api.Listeners{
					{Protocol: "tcp", Port: 8080, TargetPort: 8080}, {Protocol: "tcp", Port: 8081, TargetPort: 8081},
				}
				check(healthCheck("tcp", 30081, "", 5, 2, 2, 2))(lb)
			},
		},
		"source ranges": {
			withSourceRanges(service(), "192.0.2.7/24", "10.0.0.0/8 ", "192.0.2.0/24"),
			ranges("10.0.0.0/8", "192.0.2.0/24"),
		},
		"a range of everyone":       {withSourceRanges(service(), "10.0.0.0/8", "0.0.0.0/0"), nil},
		"everyone of one family":    {withSourceRanges(dual(), "0.0.0.0/0"), ranges("0.0.0.0/0")},
		"everyone of both families": {withSourceRanges(dual(), "0.0.0.0/0", "::/0"), nil},
		"source ranges of both families": {
			withSourceRanges(dual(), "2001:db8::1/32", "10.0.0.0/8"), ranges("10.0.0.0/8", "2001:db8::/32"),
		},
		"affinity": {
			withAffinity(service(), &corev1.SessionAffinityConfig{
				ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(60))},
			}),
			func(lb *api.LoadBalancerCreate) { lb.ClientAffinitySeconds = 60 },
		},
		"affinity without a timeout": {
			withAffinity(service(), nil),
			func(lb *api.LoadBalancerCreate) { lb.ClientAffinitySeconds = 10800 },
		},
		"tags": {serviceWithAnnotations(annotations.Tags, "team=blue"), func(lb *api.LoadBalancerCreate) {
			(lb.Tags)["team"], (lb.Tags)[contract.TagServiceTags] = "blue", "team"
		}},
		"an address by its name": {serviceWithAnnotations(annotations.Address, "web"), func(lb *api.LoadBalancerCreate) {
			(lb.Tags)[contract.TagServiceAddress] = "web"
		}},
		"Nodes that it does not select": {
			serviceWithAnnotations(annotations.NodeSelector, "pool=web"),
			func(lb *api.LoadBalancerCreate) { lb.Targets = api.Targets{} },
		},
		"the health of another kube-proxy": {serviceWithAnnotations(
			annotations.HealthCheckPort, "10257", annotations.HealthCheckCodes, "200,503",
			annotations.HealthCheckInterval, "1s", annotations.HealthCheckHealthyThreshold, "3",
		), check(withCodes)},
		"health by TCP": {
			serviceWithAnnotations(annotations.HealthCheck, "tcp"), check(healthCheck("tcp", 30443, "", 5, 2, 2, 2)),
		},
		"health by HTTP, often": {serviceWithAnnotations(
			annotations.HealthCheck, "http", annotations.HealthCheckPort, "10256", annotations.HealthCheckInterval, "1s",
		), check(healthCheck("http", 10256, "/", 1, 1, 2, 2))},
		"local policy, patiently": {withLocalPolicy(serviceWithAnnotations(
			annotations.HealthCheckUnhealthyThreshold, "5", annotations.HealthCheckInterval, "3s",
		)), check(healthCheck("http", 31000, "/healthz", 3, 1, 1, 5))},
	} {
		t.Run(name, func(t *testing.T) {
			want := api.LoadBalancerCreate{
				Name: "web-01234567", Kind: api.KindProxy, Scheme: api.SchemePublic,
				Algorithm: api.AlgorithmRoundRobin,
				Listeners: api.Listeners{
					{Protocol: "tcp", Port: 8080, TargetPort: 30080}, {Protocol: "tcp", Port: 8443, TargetPort: 30443},
				},
				Targets:               api.Targets{{InstanceID: "i-1"}, {InstanceID: "i-2"}},
				SourceRanges:          api.SourceRanges{},
				ClientAffinitySeconds: 0, IdleTimeoutSeconds: 0, DrainSeconds: 0,
				HealthCheck: &askKubeProxy,
				Tags: api.Tags{
					contract.TagCluster: clusterName, contract.TagClusterUID: "k-1", contract.TagService: "default/web",
					contract.TagServiceUID: "01234567-89ab", contract.TagHealthCheck: "http",
				},
			}
			if tc.want != nil {
				tc.want(&want)
			}
			nodes := nodes("fakecloud://i-2", "", "fakecloud://i-1", "aws:///x", "fakecloud://i-2")
			got, err := newBalancerSpec(testCluster("k-1"), tc.svc, nodes)
			require.NoError(t, err)
			assert.Equal(t, want, got.LoadBalancerCreate)
		})
	}
}

// A tag's value in the cloud has 256 bytes at most: keys for which there is no room are left out.
func TestTagKeysFitIntoOneTag(t *testing.T) {
	long := strings.Repeat("k", 128)
	assert.Equal(t, "a,"+long, tagKeys(api.Tags{"a": "1", long: "2", long + "l": "3"}))
	assert.Empty(t, tagKeys(nil))
}

// The configuration's annotations count for a Service that does not have them and can have them. Its node selector
// chooses the targets of an invalid Service, too, whose error is not about them.
func TestDefaultAnnotations(t *testing.T) {
	l := newFakeBalancers().loadBalancers()
	l.defaults = map[string]string{
		annotations.HealthCheck: "none", annotations.Drain: "30s", annotations.NodeSelector: "pool=web",
	}
	for want, svc := range map[api.HealthCheckProtocol]*corev1.Service{
		api.HealthCheckNone: service(),
		api.HealthCheckTCP:  serviceWithAnnotations(annotations.HealthCheck, "tcp"),
		api.HealthCheckHTTP: withLocalPolicy(service()), // where kube-proxy must be asked
	} {
		before := svc.DeepCopy()
		spec, err := l.desiredSpec(svc, nil)
		require.NoError(t, err, want)
		assert.Equal(t, want, spec.HealthCheck.Protocol)
		assert.EqualValues(t, 30, spec.DrainSeconds, want)
		assert.Equal(t, before, svc, want)
	}
	invalid := withLocalPolicy(serviceWithAnnotations(annotations.Scheme, "x"))
	spec, err := l.desiredSpec(invalid, nodes("fakecloud://i-1"))
	require.ErrorContains(t, err, `scheme is "x"`)
	assert.NotContains(t, err.Error(), annotations.HealthCheck)
	assert.Empty(t, spec.Targets)
}
