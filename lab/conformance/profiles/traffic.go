package profiles

// What clients of a balancer are answered. An answer counts only if the balancer has counted its connection,
// too.

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/ccmlab/ccmlab/lab/conformance"
)

var trafficTests = []conformance.Test{
	{
		ID: "lb-traffic-reaches-pods", Source: fromService,
		Requires: "What a balancer accepts reaches every pod of the Service.",
		Needs:    []conformance.Feature{conformance.FeatureTraffic},
		Run: func(t *conformance.T) {
			selector, pods := t.NewPods(2)
			svc := t.NewService(withSelector(selector))
			awaitAllAnswers(t, t.AwaitBalancer(svc), portOf(svc), pods)
		},
	}, {
		ID: "lb-traffic-follows-port-change", Source: fromEnsure,
		Requires: "After a port of the Service has changed, pods answer on the new one, and nobody on the old one.",
		Needs:    []conformance.Feature{conformance.FeatureTraffic},
		Run: func(t *conformance.T) {
			selector, pods := t.NewPods(1)
			svc := t.NewService(withSelector(selector))
			old := portOf(svc)
			t.AwaitAnswer(t.AwaitBalancer(svc), old, pods)
			b := changePortAndAwait(t, svc)
			awaitSilence(t, b, old, pods)
			t.AwaitAnswer(b, portOf(svc), pods)
		},
	}, {
		ID: "lb-traffic-two-services-apart", Source: fromService,
		Requires: "Of two Services with the same port each answers with its own pods only.",
		Needs:    []conformance.Feature{conformance.FeatureTraffic},
		Run:      lbTrafficTwoServicesApart,
	}, {
		ID: "lb-traffic-source-ranges", Capability: conformance.CapabilitySourceRanges, Source: fromRanges,
		Requires: "A client outside the Service's loadBalancerSourceRanges gets no answer, and one inside does.",
		Needs:    []conformance.Feature{conformance.FeatureTraffic, conformance.FeatureSourceRanges},
		Run: func(t *conformance.T) {
			selector, pods := t.NewPods(1)
			svc, b := newServiceWithBalancer(t, withSelector(selector))
			t.AwaitAnswer(b, portOf(svc), pods)

			nobody := []string{"192.0.2.0/24"} // RFC 5737
			t.Change(svc, withSourceRanges(nobody))
			awaitSilence(t, t.AwaitBalancer(svc, servesSourceRanges(nobody)), portOf(svc), pods)

			// Between them everybody's address, whatever this machine's is to the cloud.
			halves := []string{"0.0.0.0/1", "128.0.0.0/1"}
			t.Change(svc, withSourceRanges(halves))
			t.AwaitAnswer(t.AwaitBalancer(svc, servesSourceRanges(halves)), portOf(svc), pods)
		},
	}, {
		ID: "lb-traffic-affinity", Capability: conformance.CapabilityAffinity, Source: fromAffinity,
		Requires: "With sessionAffinity ClientIP the same pod answers all of a client's connections.",
		Needs: []conformance.Feature{
			conformance.FeatureTraffic, conformance.FeatureAffinity, conformance.FeatureHealthCheck,
		},
		Run: func(t *conformance.T) { switchAffinity(t, func(conformance.Balancer, int32) {}) },
	}, {
		ID: "lb-traffic-local", Capability: conformance.CapabilityLocalTraffic, Source: fromPolicy,
		Requires: "With externalTrafficPolicy Local and a pod on one Node only, every connection is answered.",
		Needs:    []conformance.Feature{conformance.FeatureTraffic, conformance.FeatureHealthCheck},
		Run: func(t *conformance.T) {
			selector, pods := t.NewPods(1)
			svc, b := newServiceWithBalancer(t, withSelector(selector), withLocalTrafficPolicy)
			// Until it has noticed which nodes have no pod the balancer may send there.
			t.Await(fmt.Sprintf("%d connections in a row to be answered", inARow), func(ctx context.Context) error {
				_, err := requestMany(ctx, t, b, portOf(svc), pods)
				return err
			})
		},
	},
}

func lbTrafficTwoServicesApart(t *conformance.T) {
	oneSelector, onePods := t.NewPods(1)
	twoSelector, twoPods := t.NewPods(1)
	one := t.NewService(withSelector(oneSelector))
	two := t.NewService(withSelector(twoSelector), func(s *corev1.Service) { s.Spec.Ports[0].Port = portOf(one) })
	a, b := t.AwaitBalancer(one), t.AwaitBalancer(two)
	all := slices.Concat(onePods, twoPods)
	for range 5 {
		require.Equal(t, onePods[0].Name, t.AwaitAnswer(a, portOf(one), all))
		require.Equal(t, twoPods[0].Name, t.AwaitAnswer(b, portOf(two), all))
	}
}

// switchAffinity switches it on and off, and calls check before and after each. Each node sends to its own pods
// only, so that it is the balancer that keeps the client where it is.
func switchAffinity(t *conformance.T, check func(conformance.Balancer, int32)) {
	selector, pods := t.NewPods(2)
	svc := t.NewService(withSelector(selector), withLocalTrafficPolicy)
	b := t.AwaitBalancer(svc)
	awaitAllAnswers(t, b, portOf(svc), pods)
	check(b, portOf(svc))
	t.Change(svc, withAffinity(600))
	b = t.AwaitBalancer(svc, keepsClients(t, 600))
	t.Await(fmt.Sprintf("%d answers of one pod in a row", inARow), func(ctx context.Context) error {
		names, err := requestMany(ctx, t, b, portOf(svc), pods)
		if slices.Sort(names); len(slices.Compact(names)) > 1 {
			err = fmt.Errorf("among those who answered are %v", slices.Compact(names))
		}
		return err
	})
	check(b, portOf(svc))
	t.Change(svc, withoutAffinity)
	b = t.AwaitBalancer(svc, keepsClients(t, 0))
	awaitAllAnswers(t, b, portOf(svc), pods)
	check(b, portOf(svc))
}

func withSelector(selector map[string]string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.Selector = selector }
}

func portOf(svc *corev1.Service) int32 { return svc.Spec.Ports[0].Port }

// awaitAllAnswers waits until each of the pods has answered through the balancer.
func awaitAllAnswers(t *conformance.T, b conformance.Balancer, port int32, pods []corev1.Pod) {
	heard := map[string]bool{}
	t.Await("an answer of each pod", func(ctx context.Context) error {
		pod, err := t.RequestCounted(ctx, b, port, pods)
		if err != nil {
			return err
		}
		heard[pod] = true
		if len(heard) < len(pods) {
			return fmt.Errorf("of %d pods only %v answered", len(pods), slices.Sorted(maps.Keys(heard)))
		}
		return nil
	})
}

// awaitSilence waits until two requests in a row get no answer, and the balancer has let neither in. What
// should silence it must be in force before: a balancer that is being changed may break a connection off.
func awaitSilence(t *conformance.T, b conformance.Balancer, port int32, pods []corev1.Pod) {
	t.Await(fmt.Sprintf("nobody to answer on %s port %d", b.Address, port), func(ctx context.Context) error {
		before, _, err := t.ConnectionCount(ctx, b, port)
		if err != nil {
			return err
		}
		for range 2 {
			if pod, err := t.Request(ctx, b, port, pods); err == nil {
				return fmt.Errorf("pod %s answered", pod)
			}
		}
		after, _, err := t.ConnectionCount(ctx, b, port)
		if err == nil && after != before {
			err = fmt.Errorf("balancer %s has let %d connections in", b.ID, after-before)
		}
		return err
	})
}

// inARow is so many connections that what they have in common is no coincidence.
const inARow = 30

// requestMany sends so many requests, or until one is not answered, and returns the names of the pods
// that answered.
func requestMany(
	ctx context.Context,
	t *conformance.T,
	b conformance.Balancer,
	port int32,
	pods []corev1.Pod,
) ([]string, error) {
	var names []string
	for range inARow {
		name, err := t.RequestCounted(ctx, b, port, pods)
		if err != nil {
			return names, fmt.Errorf("after %d answers: %w", len(names), err)
		}
		names = append(names, name)
	}
	return names, nil
}
