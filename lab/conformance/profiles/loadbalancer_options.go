package profiles

// Fields of a Service that not every cloud's balancers support.

import (
	"fmt"
	"slices"
	"strings"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ccmlab/ccmlab/lab/conformance"
)

var balancerOptionTests = []conformance.Test{
	{
		ID: "lb-udp", Capability: conformance.CapabilityUDP, Source: fromService,
		Requires: "A Service with a UDP port gets a balancer that listens for UDP, and the balancer follows when the port becomes one for TCP, or for UDP again.",
		Needs:    []conformance.Feature{conformance.FeatureUDP, conformance.FeatureListeners},
		Run: func(t *conformance.T) {
			speak := func(p corev1.Protocol) func(*corev1.Service) {
				return func(s *corev1.Service) { s.Spec.Ports[0].Protocol = p }
			}
			svc, _ := newServiceWithListeners(t, speak(corev1.ProtocolUDP))
			for _, p := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP} {
				t.Change(svc, speak(p))
				t.AwaitBalancer(svc, listensFor(t, svc))
			}
		},
	}, {
		ID: "lb-udp-and-tcp-same-port", Capability: conformance.CapabilityUDP, Source: fromMixed,
		Requires: "A Service with a UDP and a TCP port of the same number gets one balancer with both, and either can go.",
		Needs:    []conformance.Feature{conformance.FeatureUDP, conformance.FeatureListeners},
		Run: func(t *conformance.T) {
			svc := t.NewService(func(s *corev1.Service) {
				udp := s.Spec.Ports[0]
				udp.Name, udp.Protocol = "udp", corev1.ProtocolUDP
				s.Spec.Ports = append(s.Spec.Ports, udp)
			})
			both := t.AwaitBalancer(svc, listensFor(t, svc))
			assert.Len(t, both.Listeners, 2)
			ports := slices.Clone(svc.Spec.Ports)
			for _, left := range [][]corev1.ServicePort{ports[:1], ports, ports[1:]} {
				t.Change(svc, func(s *corev1.Service) { s.Spec.Ports = left })
				assert.Equal(t, both.ID, t.AwaitBalancer(svc, listensFor(t, svc)).ID)
			}
		},
	}, {
		ID: "lb-source-ranges", Capability: conformance.CapabilitySourceRanges, Source: fromRanges,
		Requires: "A balancer serves the Service's loadBalancerSourceRanges only, and everybody again when they are removed.",
		Needs:    []conformance.Feature{conformance.FeatureSourceRanges},
		Run: func(t *conformance.T) {
			// Of TEST-NET-1 to 3 (RFC 5737), in no order.
			one, two := []string{"198.51.100.0/24", "192.0.2.0/25"}, []string{"192.0.2.0/25", "203.0.113.7/32"}
			svc := t.NewService(withSourceRanges(one))
			t.AwaitBalancer(svc, servesSourceRanges(one))
			for _, ranges := range [][]string{two, nil, one} {
				t.Change(svc, withSourceRanges(ranges))
				t.AwaitBalancer(svc, servesSourceRanges(ranges))
			}
		},
	}, {
		ID: "lb-source-ranges-annotation", Capability: conformance.CapabilitySourceRangesAnnotation,
		Source:   "k8s.io/cloud-provider service/helpers: GetLoadBalancerSourceRanges",
		Requires: "A balancer of a Service without loadBalancerSourceRanges serves the ranges of the annotation service.beta.kubernetes.io/load-balancer-source-ranges only, and everybody without either.",
		Needs:    []conformance.Feature{conformance.FeatureSourceRanges},
		Run:      lbSourceRangesAnnotation,
	}, {
		ID: "lb-affinity", Capability: conformance.CapabilityAffinity, Source: fromAffinity,
		Requires: "A balancer keeps a client at the same target with the Service's sessionAffinity ClientIP, for as long as that says where the cloud can be told so, and not at all with None.",
		Needs:    []conformance.Feature{conformance.FeatureAffinity},
		Compares: []conformance.Feature{conformance.FeatureAffinityTimeout},
		Run: func(t *conformance.T) {
			svc := t.NewService(withAffinity(100))
			t.AwaitBalancer(svc, keepsClients(t, 100))
			t.Change(svc, withAffinity(200))
			t.AwaitBalancer(svc, keepsClients(t, 200))
			t.Change(svc, withoutAffinity)
			t.AwaitBalancer(svc, keepsClients(t, 0))
			t.Change(svc, withAffinity(300))
			t.AwaitBalancer(svc, keepsClients(t, 300))
		},
	}, {
		ID: "lb-health-check", Capability: conformance.CapabilityHealthCheck, Source: fromHealth,
		Requires: "A balancer checks its targets though its Service says nothing of it: upstream leaves Nodes that are not Ready among the targets, and the check is what keeps clients away from them.",
		Needs:    []conformance.Feature{conformance.FeatureHealthCheck},
		Run: func(t *conformance.T) {
			checksTargets := func(b conformance.Balancer) error {
				if !b.HealthChecked {
					return fmt.Errorf("balancer %s does not check its targets", b.ID)
				}
				return nil
			}
			svc := t.NewService()
			first := t.AwaitBalancer(svc, checksTargets)
			// What else the Service asks for does not end the check.
			second := changePortAndAwait(t, svc, checksTargets)
			assert.Equal(t, first.ID, second.ID)
		},
	}, {
		ID: "lb-ip-mode", Capability: conformance.CapabilityIPMode,
		Source:   fromIPMode + "; k8s.io/api core/v1 types.go: LoadBalancerIngress.IPMode",
		Requires: "The status of a Service whose balancer sends to node ports has no address without ipMode Proxy, or VIP if the balancer passes packets on as they come: else kube-proxy takes what pods send to the address past the balancer.",
		Needs:    []conformance.Feature{conformance.FeatureNodePorts},
		Run: func(t *conformance.T) {
			mode := corev1.LoadBalancerIPModeProxy
			if t.HasFeature(conformance.FeaturePassThrough) {
				mode = corev1.LoadBalancerIPModeVIP
			}
			svc, _ := newServiceWithBalancer(t)
			awaitIPMode(t, svc, mode)
			changePortAndAwait(t, svc)
			awaitIPMode(t, svc, mode)
		},
	}, {
		ID: "lb-local-traffic-policy", Capability: conformance.CapabilityLocalTraffic, Source: fromPolicy,
		Requires: "With externalTrafficPolicy Local, from the first or later, the balancer asks each target on the Service's healthCheckNodePort whether it serves, and no longer with Cluster.",
		Needs:    []conformance.Feature{conformance.FeatureHealthCheck},
		Run:      lbLocalTrafficPolicy,
	},
}

// withSourceRanges lets the balancer serve clients of these ranges only, or everybody when there are none.
func withSourceRanges(ranges []string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = ranges }
}

// withSourceRangesAnnotation gives the ranges by upstream's annotation, and takes it away when there are none.
func withSourceRangesAnnotation(ranges []string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		if len(ranges) == 0 {
			delete(s.Annotations, corev1.AnnotationLoadBalancerSourceRangesKey)
			return
		}
		// Upstream's helper takes spaces between them.
		metav1.SetMetaDataAnnotation(
			&s.ObjectMeta, corev1.AnnotationLoadBalancerSourceRangesKey, strings.Join(ranges, ", "),
		)
	}
}

func lbSourceRangesAnnotation(t *conformance.T) {
	one, two, field := []string{"198.51.100.0/24", "192.0.2.0/25"}, []string{"203.0.113.7/32"}, []string{"192.0.2.128/25"}
	svc := t.NewService(withSourceRangesAnnotation(one))
	t.AwaitBalancer(svc, servesSourceRanges(one))
	for _, step := range []struct {
		change func(*corev1.Service)
		serves []string
	}{
		{withSourceRangesAnnotation(two), two},
		{withSourceRanges(field), field}, // The field goes before the annotation.
		{withSourceRanges(nil), two},
		{withSourceRangesAnnotation(nil), nil},
	} {
		t.Change(svc, step.change)
		t.AwaitBalancer(svc, servesSourceRanges(step.serves))
	}
}

func servesSourceRanges(ranges []string) func(conformance.Balancer) error {
	want := slices.Sorted(slices.Values(ranges))
	return func(b conformance.Balancer) error {
		if got := slices.Sorted(slices.Values(b.SourceRanges)); !slices.Equal(got, want) {
			return fmt.Errorf("balancer %s serves %v, want %v", b.ID, got, want)
		}
		return nil
	}
}

// withoutAffinity switches session affinity off.
func withoutAffinity(s *corev1.Service) {
	s.Spec.SessionAffinity, s.Spec.SessionAffinityConfig = corev1.ServiceAffinityNone, nil
}

// withAffinity keeps a client at one pod for so many seconds.
func withAffinity(seconds int32) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
			ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds},
		}
	}
}

// keepsClients checks that the balancer keeps clients at one target for so many seconds, or not at all for 0.
// Where the cloud cannot be told for how long, any time will do.
func keepsClients(t *conformance.T, seconds int32) func(conformance.Balancer) error {
	timed := t.HasFeature(conformance.FeatureAffinityTimeout)
	return func(b conformance.Balancer) error {
		if want := seconds > 0; b.Affinity != want {
			return fmt.Errorf("balancer %s keeps clients: %t, want %t", b.ID, b.Affinity, want)
		}
		if timed && b.AffinitySeconds != seconds {
			return fmt.Errorf("balancer %s keeps clients for %d s, want %d", b.ID, b.AffinitySeconds, seconds)
		}
		return nil
	}
}

func lbLocalTrafficPolicy(t *conformance.T) {
	svc := t.NewService(withLocalTrafficPolicy)
	for range 2 { // The second time the balancer is there already.
		t.Change(svc, withLocalTrafficPolicy)
		now, err := t.GetService(t.Context(), svc)
		t.Must(err, "reading Service %s", svc.Name)
		port := now.Spec.HealthCheckNodePort
		require.NotZero(t, port, "the API server has given no healthCheckNodePort")
		t.AwaitBalancer(svc, func(b conformance.Balancer) error {
			if b.HealthCheckPort != port {
				return fmt.Errorf(
					"balancer %s asks on port %d, the Service's healthCheckNodePort is %d", b.ID, b.HealthCheckPort,
					port,
				)
			}
			return nil
		})
		t.Change(svc, func(s *corev1.Service) {
			s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
		})
		t.AwaitBalancer(svc, func(b conformance.Balancer) error {
			if b.HealthCheckPort == port {
				return fmt.Errorf("balancer %s still asks on port %d, where nobody answers any more", b.ID, port)
			}
			return nil
		})
	}
}

// withLocalTrafficPolicy keeps a client's connection on the node that it comes to.
func withLocalTrafficPolicy(s *corev1.Service) {
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
}
