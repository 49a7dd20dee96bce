package profiles

// Balancers that somebody else changed, that a CCM was making when it ended, or whose Service asks for
// something unusual.

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/ccmlab/ccmlab/lab/conformance"
)

const (
	fromNodePorts      = "KEP-1864 (allocateLoadBalancerNodePorts)"
	fromLoadBalancerIP = "kubernetes.io: Service API reference, loadBalancerIP"
)

var changesListeners = []conformance.Feature{conformance.FeatureChangeBalancer, conformance.FeatureListeners}

var balancerDriftTests = []conformance.Test{
	{
		ID: "lb-changed-out-of-band-then-service-changed", Capability: conformance.CapabilityDrift,
		Source:   fromEnsure + " (\"creates a new load balancer 'name', or updates the existing one\")",
		Requires: "When the balancer's listeners were changed behind the CCM's back, the next change of the Service puts all of them right.",
		Needs:    changesListeners,
		Run: func(t *conformance.T) {
			svc, b := newServiceWithListeners(t, func(s *corev1.Service) { addPort(t, s) })
			divertBalancer(t, b)
			assert.Equal(t, b.ID, changePortAndAwait(t, svc).ID)
		},
	}, {
		ID: "lb-changed-out-of-band-is-repaired", Capability: conformance.CapabilityRepair, Source: fromService,
		Requires: "A balancer whose listeners were changed behind the CCM's back is put right without anybody touching the Service: its metadata and spec stay as they are.",
		Needs:    changesListeners,
		Run:      lbChangedOutOfBandIsRepaired,
	}, {
		ID: "lb-targets-changed-out-of-band-are-repaired", Capability: conformance.CapabilityRepair,
		Source:   fromService,
		Requires: "A balancer whose targets were taken away behind the CCM's back gets them again without anybody touching the Service or a Node.",
		Needs:    []conformance.Feature{conformance.FeatureChangeBalancer, conformance.FeatureTargets},
		Alone:    true, // Nobody answers on its Node, and no other Node may come or go.
		Run: func(t *conformance.T) {
			t.AwaitMachines()
			instance, _ := t.NewWorker(conformance.NodeSpec{Balanced: true})
			svc := t.NewService()
			b := t.AwaitBalancer(svc, leadsToNodesOf(t, instance), listensFor(t, svc))
			require.Contains(t, b.Targets, instance.ID)
			t.Must(t.Cloud.
				ChangeBalancer(t.Context(), b.ID, conformance.BalancerChange{Listeners: b.Listeners}), "taking away the targets of balancer %s", b.ID)
			awaitRepaired(t, svc, time.Minute, leadsTo(b.Targets), listensFor(t, svc))
		},
	}, {
		ID: "lb-reset-out-of-band-then-service-changed", Capability: conformance.CapabilityDrift,
		Source:   fromEnsure + " (\"creates a new load balancer 'name', or updates the existing one\")",
		Requires: "When the balancer's health check, source ranges and affinity were taken away behind the CCM's back, the next change of the Service brings them back.",
		Needs:    []conformance.Feature{conformance.FeatureResetBalancer, conformance.FeatureListeners},
		Compares: resettable,
		Run: func(t *conformance.T) {
			svc, before := newServiceWithResetBalancer(t)
			assert.Equal(t, before.ID, changePortAndAwait(t, svc, hasOptionsOf(before)).ID)
		},
	}, {
		ID: "lb-reset-out-of-band-is-repaired", Capability: conformance.CapabilityRepair, Source: fromService,
		Requires: "A balancer whose health check, source ranges and affinity were taken away behind the CCM's back gets them again without anybody touching the Service.",
		Needs:    []conformance.Feature{conformance.FeatureResetBalancer},
		Compares: resettable,
		Run: func(t *conformance.T) {
			svc, before := newServiceWithResetBalancer(t)
			awaitRepaired(t, svc, halfAMinute, sameBalancer(before), hasOptionsOf(before))
		},
	}, {
		ID: "lb-status-overwritten-is-repaired", Capability: conformance.CapabilityRepair, Source: fromPublished,
		Requires: "A Service whose status somebody wipes, or overwrites with another address, has its balancer's again without anybody touching the Service otherwise.",
		Run:      lbStatusOverwritten,
	}, {
		ID: "lb-tags-of-others-stay", Capability: conformance.CapabilityForeignTags,
		Source:   fromEnsure + " (\"updates the existing one\"); cloud-provider-aws aws_loadbalancer.go: addLoadBalancerTags",
		Requires: "A tag that somebody else put on a Service's balancer is still there when the CCM has updated the balancer.",
		Needs:    []conformance.Feature{conformance.FeatureTagBalancer, conformance.FeatureListeners},
		Run:      lbTagsOfOthersStay,
	}, {
		ID: "lb-replaced-under-another-name", Source: fromCleanup,
		Requires: "A Service that takes the place of another one, with the same ports and another name, gets a balancer of its own, and the other one's goes.",
		Run: func(t *conformance.T) {
			old, before := newServiceWithBalancer(t)
			t.DeleteService(old)
			svc, after := newServiceWithListeners(t, func(s *corev1.Service) { s.Spec.Ports[0].Port = portOf(old) })
			assert.NotEqual(t, before.ID, after.ID)
			t.AwaitGone(old)
			assert.Equal(t, balancerIdentity(after), balancerIdentity(t.AwaitBalancer(svc)))
		},
	}, {
		ID: "lb-ccm-restarted-while-creating", Source: fromEnsure,
		Requires: "A Service whose balancer was being made when the CCM ended has exactly one balancer when the CCM is back, and it goes with the Service.",
		Alone:    true,
		Run:      func(t *conformance.T) { restartWhileCreating(t, func() {}) },
	}, {
		ID: "lb-ccm-stopped-inside-create", Source: fromEnsure,
		Requires: "When the CCM is told to end (SIGTERM) before it has the cloud's answer to the call that creates a Service's balancer, the Service has exactly one balancer when the CCM is back, and it goes with the Service.",
		Needs:    faultFeatures(conformance.FaultLost), Alone: true,
		Run: func(t *conformance.T) {
			lost := injectFault(t, "having answers about balancers lost", conformance.FaultLost, conformance.Balancers)
			unanswered := checkFaultHits(t, lost, 1)
			restartWhileCreating(t, func() {
				t.Await("the call that creates to have gone without an answer", unanswered)
				liftFault(t, lost)
			})
		},
	}, {
		ID: "lb-waiting-node-is-skipped", Capability: conformance.CapabilityWaitingNodes,
		// Upstream's predicates let a Node without a provider ID through.
		Source:   fromNodeSet + "; " + serviceController + ": shouldSyncUpdatedNode",
		Requires: "A Node that waits for its instance keeps no Service from its balancer, and no other Node from being a target.",
		Needs:    []conformance.Feature{conformance.FeatureTargets}, Alone: true, // Nobody answers on its Node.
		Run: func(t *conformance.T) {
			t.AwaitMachines()
			waiting := t.NewNode(conformance.NodeSpec{Name: t.Name("nobody"), Balanced: true})
			instance, _ := t.NewWorker(conformance.NodeSpec{Balanced: true})
			svc := t.NewService()
			b := t.AwaitBalancer(svc, listensFor(t, svc), leadsToNodesOf(t, instance))
			require.Contains(t, b.Targets, instance.ID)
			t.Must(checkStaysUninitialized(t, waiting.Name)(t.Context()), "Node %s, while it waits", waiting.Name)
		},
	}, {
		ID: "lb-node-ports-kept", Source: fromNodePorts,
		Requires: "A Service with allocateLoadBalancerNodePorts false that names its node ports gets a balancer that sends to them.",
		Needs:    sendsToNodePorts,
		Run: func(t *conformance.T) {
			// The API server chooses a port that is free; from then on it is named.
			svc := t.NewService(func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeNodePort })
			t.Change(svc, func(s *corev1.Service) {
				s.Spec.Type = corev1.ServiceTypeLoadBalancer
				setAllocateNodePorts(false)(s)
			})
			named := svc.Spec.Ports[0].NodePort
			t.AwaitBalancer(svc, listensFor(t, svc))
			assert.Equal(t, named, svc.Spec.Ports[0].NodePort)
		},
	}, {
		ID: "lb-without-node-ports-says-why", Capability: conformance.CapabilityExplains,
		Source:   fromNodePorts + "; kubernetes.io: Debug Services",
		Requires: "A Service without node ports gets a balancer, or a Warning Event on it says why not; with node ports it gets one.",
		Run: func(t *conformance.T) {
			svc := t.NewService(setAllocateNodePorts(false))
			t.Await("a balancer, or a Warning about node ports",
				eitherHolds(checkOneBalancer(t, svc), checkWarning(t, svc, aboutNodePorts)))
			t.Change(svc, setAllocateNodePorts(true))
			t.AwaitBalancer(svc, listensFor(t, svc))
		},
	}, {
		ID: "lb-load-balancer-ip", Capability: conformance.CapabilityLoadBalancerIP, Source: fromLoadBalancerIP,
		Requires: "A Service whose loadBalancerIP is an address that was reserved gets a balancer that has it, and so does the next one when the first is gone.",
		Needs:    []conformance.Feature{conformance.FeatureReservedAddresses},
		Run: func(t *conformance.T) {
			address := reserveAddress(t)
			var balancers []string
			for range 2 {
				svc := t.NewService(withLoadBalancerIP(address))
				b := t.AwaitBalancer(svc, listensFor(t, svc))
				assert.Equal(t, address, b.Address)
				balancers = append(balancers, b.ID)
				deleteAndAwaitGone(t, svc)
			}
			assert.Len(t, slices.Compact(balancers), 2)
		},
	}, {
		ID: "lb-load-balancer-ip-changed", Capability: conformance.CapabilityLoadBalancerIP,
		Source:   fromLoadBalancerIP,
		Requires: "When the loadBalancerIP of a Service changes to another address that was reserved, its balancer has that one, and there is no second.",
		Needs:    []conformance.Feature{conformance.FeatureReservedAddresses},
		Run: func(t *conformance.T) {
			addresses := []string{reserveAddress(t), reserveAddress(t)}
			svc, _ := newServiceWithListeners(t)
			for _, address := range addresses {
				t.Change(svc, withLoadBalancerIP(address))
				t.AwaitBalancer(svc, listensFor(t, svc), func(b conformance.Balancer) error {
					if b.Address != address {
						return fmt.Errorf("it has address %s, want %s", b.Address, address)
					}
					return nil
				})
			}
		},
	}, {
		ID: "lb-load-balancer-ip-in-use", Capability: conformance.CapabilityLoadBalancerIP,
		Source:   fromLoadBalancerIP,
		Requires: "A Service whose loadBalancerIP another one's balancer has takes it from nobody and has no other address; when it is free, the Service has it.",
		Needs:    []conformance.Feature{conformance.FeatureReservedAddresses},
		Run:      lbLoadBalancerIPInUse,
	}, {
		ID: "lb-load-balancer-ip-freed", Capability: conformance.CapabilityLoadBalancerIP,
		Source:   fromLoadBalancerIP + "; k8s.io/cloud-provider controllers/service: what fails is tried again",
		Requires: "A Service that waits for its loadBalancerIP, which another one's balancer has, gets it when that one is gone, though nobody touches the Service.",
		Needs:    []conformance.Feature{conformance.FeatureReservedAddresses},
		Run:      lbLoadBalancerIPFreed,
	}, {
		ID: "lb-load-balancer-ip-not-there", Capability: conformance.CapabilityLoadBalancerIP,
		Source:   fromLoadBalancerIP,
		Requires: "A Service whose loadBalancerIP is no address that the cloud has gets no other address instead, nor a balancer of one; without that field it gets one.",
		Needs:    []conformance.Feature{conformance.FeatureReservedAddresses},
		Run: func(t *conformance.T) {
			svc := t.NewService(withLoadBalancerIP(foreignAddress))
			watchNoAddress(t, svc, foreignAddress, func(context.Context) error { return nil })
			t.Change(svc, withLoadBalancerIP(""))
			t.AwaitBalancer(svc, listensFor(t, svc))
		},
	},
}

// divertBalancer replaces the balancer's listeners by one on a port that is not the Service's, and leaves its
// targets alone.
func divertBalancer(t *conformance.T, b conformance.Balancer) {
	t.Must(t.Cloud.ChangeBalancer(
		t.Context(), b.ID, conformance.BalancerChange{
			Listeners: []conformance.Listener{{Protocol: "TCP", Port: t.Port(), TargetPort: b.Listeners[0].TargetPort}},
			Targets:   b.Targets,
		},
	),
		"changing the listeners of balancer %s", b.ID)
}

// resettable are the features of what ResetBalancer takes away.
var resettable = []conformance.Feature{
	conformance.FeatureHealthCheck, conformance.FeatureSourceRanges, conformance.FeatureAffinity,
}

// newServiceWithResetBalancer makes a Service that asks for as much of what ResetBalancer takes away as the cloud
// has, and takes it away behind the CCM's back. It returns the balancer from before that.
func newServiceWithResetBalancer(t *conformance.T) (*corev1.Service, conformance.Balancer) {
	var with []func(*corev1.Service)
	if t.HasFeature(conformance.FeatureSourceRanges) {
		with = append(with, withSourceRanges([]string{"192.0.2.0/24"})) // RFC 5737
	}
	if t.HasFeature(conformance.FeatureAffinity) {
		with = append(with, withAffinity(100))
	}
	svc, before := newServiceWithListeners(t, with...)
	reset, err := t.Cloud.ResetBalancer(t.Context(), before.ID)
	t.Must(err, "resetting balancer %s", before.ID)
	none := balancerOptions{}
	if has, left := optionsOf(before), optionsOf(reset); has == none || left != none {
		t.NotMade("balancer %s had %+v, and has %+v when it is reset", before.ID, has, left)
	}
	return svc, before
}

// balancerOptions are what ResetBalancer takes away.
type balancerOptions struct {
	healthChecked   bool
	healthCheckPort int32
	sourceRanges    string
	affinity        bool
	affinitySeconds int32
}

func optionsOf(b conformance.Balancer) balancerOptions {
	return balancerOptions{
		b.HealthChecked, b.HealthCheckPort, strings.Join(slices.Sorted(slices.Values(b.SourceRanges)), ","),
		b.Affinity, b.AffinitySeconds,
	}
}

// hasOptionsOf checks that a balancer has what ResetBalancer takes away, as it had before.
func hasOptionsOf(before conformance.Balancer) func(conformance.Balancer) error {
	return func(b conformance.Balancer) error {
		if has, had := optionsOf(b), optionsOf(before); has != had {
			return fmt.Errorf("balancer %s has %+v, and had %+v", b.ID, has, had)
		}
		return nil
	}
}

func lbStatusOverwritten(t *conformance.T) {
	svc, b := newServiceWithBalancer(t)
	right, err := t.GetService(t.Context(), svc)
	t.Must(err, "reading Service %s", svc.Name)
	for _, wrong := range [][]corev1.LoadBalancerIngress{nil, {{IP: foreignAddress}}} {
		t.Must(retry.RetryOnConflict(retry.DefaultRetry, func() error {
			now, err := t.GetService(t.Context(), svc)
			if err != nil {
				return err
			}
			now.Status.LoadBalancer.Ingress = wrong
			_, err = t.Kube.CoreV1().Services(svc.Namespace).UpdateStatus(t.Context(), now, metav1.UpdateOptions{})
			return err
		}), "writing %v into the status of Service %s", wrong, svc.Name)
		awaitPromptly(t, "the status to be as before", halfAMinute, func(ctx context.Context) error {
			now, err := t.GetService(ctx, svc)
			if err == nil && !assert.ObjectsAreEqual(right.Status.LoadBalancer, now.Status.LoadBalancer) {
				err = fmt.Errorf("it was %s and is %s", right.Status.LoadBalancer.String(), now.Status.LoadBalancer.String())
			}
			return err
		}, servedService)
		assert.Equal(t, b.ID, t.AwaitBalancer(svc).ID)
	}
}

func lbTagsOfOthersStay(t *conformance.T) {
	const tag = "conformance-kept"
	svc, b := newServiceWithListeners(t)
	t.Must(t.Cloud.TagBalancer(t.Context(), b.ID, conformance.Name{Name: tag}), "tagging balancer %s", b.ID)
	tagged, _, err := t.Cloud.GetBalancer(t.Context(), b.ID)
	t.Must(err, "looking at balancer %s", b.ID)
	require.Contains(t, tagged.Tags, tag)
	for range 2 { // What the first change leads to is over after the second.
		after := changePortAndAwait(t, svc)
		assert.Equal(t, b.ID, after.ID)
		assert.Contains(t, after.Tags, tag)
	}
}

// awaitRepaired waits for the Service's balancer to be put right: an outage is not to last.
func awaitRepaired(
	t *conformance.T, svc *corev1.Service, within time.Duration, checks ...func(conformance.Balancer) error,
) {
	awaitPromptly(t, "the balancer to be put right", within, checkOneBalancer(t, svc, checks...), servedService)
}

func lbChangedOutOfBandIsRepaired(t *conformance.T) {
	svc := t.NewService()
	right := listensFor(t, svc)
	b := t.AwaitBalancer(svc, right)
	before, err := t.GetService(t.Context(), svc)
	t.Must(err, "reading Service %s", svc.Name)
	divertBalancer(t, b)
	awaitRepaired(t, svc, halfAMinute, right)
	assert.Equal(t, b.ID, t.AwaitBalancer(svc, right).ID)
	after, err := t.GetService(t.Context(), svc)
	t.Must(err, "reading Service %s", svc.Name)
	assert.Equal(t, before.Spec, after.Spec)
	assert.Equal(
		t, []any{before.Annotations, before.Labels, before.Finalizers},
		[]any{after.Annotations, after.Labels, after.Finalizers},
	)
}

// restartWhileCreating restarts the CCM when the cloud has begun with its balancer.
func restartWhileCreating(t *conformance.T, whileStopped func()) {
	svc := t.NewService()
	t.Await("the beginnings of a balancer", checkBalancerBegun(t, svc))
	restart := stopCCM(t)
	whileStopped()
	restart()
	first := t.AwaitBalancer(svc, listensFor(t, svc))
	// Whatever was left to be made again is over after this.
	assert.Equal(t, first.ID, changePortAndAwait(t, svc).ID)
	deleteAndAwaitGone(t, svc)
}

// checkBalancerBegun returns an error while the cloud has nothing for the Service.
func checkBalancerBegun(t *conformance.T, svc *corev1.Service) func(context.Context) error {
	return func(ctx context.Context) error {
		found, err := t.BalancersOf(ctx, svc)
		if err == nil && len(found) == 0 {
			err = errors.New("there is none yet")
		}
		return err
	}
}

// setAllocateNodePorts says whether the API server is to choose node ports.
func setAllocateNodePorts(yes bool) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.AllocateLoadBalancerNodePorts = &yes }
}

// What a Warning is about that says why a Service has to wait. A Warning alone does not: upstream's controller
// has one for each error, also for one that says no more than that the balancer is still being made.
var (
	aboutAnything  = regexp.MustCompile(``)
	aboutOutage    = regexp.MustCompile(`(?i)503|unavailable\b|not available`)
	aboutProtocol  = regexp.MustCompile(`(?i)sctp|protocol|only tcp`)
	aboutNodePorts = regexp.MustCompile(`(?i)node[ -]?port`)
	aboutTakenName = regexp.MustCompile(`(?i)\bname\b|already exists|\btaken\b|unique`)
)

// checkWarning returns an error while no Warning on the Service matches.
func checkWarning(t *conformance.T, svc *corev1.Service, about *regexp.Regexp) func(context.Context) error {
	return func(ctx context.Context) error {
		n, err := countWarnings(ctx, t, svc, about)
		if err == nil && n == 0 {
			err = fmt.Errorf("there is none about %s", about)
		}
		return err
	}
}

func lbLoadBalancerIPInUse(t *conformance.T) {
	address := reserveAddress(t)
	first, before := newServiceWithListeners(t, withLoadBalancerIP(address))
	second := t.NewService(withLoadBalancerIP(address))
	watchNoAddress(t, second, address, func(ctx context.Context) error {
		b, err := t.TheBalancer(ctx, first)
		if err == nil && b.ID != before.ID {
			err = fmt.Errorf("the first Service has balancer %s, and had %s", b.ID, before.ID)
		}
		return err
	})
	deleteAndAwaitGone(t, first)
	touchService(t, second, "the address is free") // Not every CCM sees it: its next try may be minutes away.
	assert.Equal(t, address, t.AwaitBalancer(second, listensFor(t, second)).Address)
}

func lbLoadBalancerIPFreed(t *conformance.T) {
	address := reserveAddress(t)
	first, b := newServiceWithListeners(t, withLoadBalancerIP(address))
	assert.Equal(t, address, b.Address, "of the first Service")
	second := t.NewService(withLoadBalancerIP(address))
	t.Await("a Warning that the address is in use", checkWarning(t, second, aboutAnything))
	deleteAndAwaitGone(t, first)
	assert.Equal(t, address, t.AwaitBalancer(second, listensFor(t, second)).Address)
}

// reserveAddress reserves an address of the cloud's until the end of the test.
func reserveAddress(t *conformance.T) string {
	address, release, err := t.Cloud.ReserveAddress(t.Context())
	t.Must(err, "reserving an address")
	t.Cleanup(release)
	return address
}

// foreignAddress is an address for documentation (RFC 5737), which no cloud can give.
const foreignAddress = "192.0.2.1"

func withLoadBalancerIP(address string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.LoadBalancerIP = address } //nolint:staticcheck // Deprecated, and in use.
}

// watchNoAddress watches that the Service gets no address, and no balancer with another address than the one
// that it asks for, and that holds returns no error, until the CCM has tried twice and said so: upstream's
// controller sends an Event for each error.
func watchNoAddress(
	t *conformance.T, svc *corev1.Service, address string, holds func(context.Context) error,
) {
	t.HoldsUntil("Service "+svc.Name+" is to have no address", func(ctx context.Context) error {
		now, err := t.GetService(ctx, svc)
		if err == nil && len(now.Status.LoadBalancer.Ingress) > 0 {
			err = fmt.Errorf("it has %v", now.Status.LoadBalancer.Ingress)
		}
		made, err2 := t.BalancersOf(ctx, svc)
		for _, b := range made {
			if b.Address != "" && b.Address != address {
				err = errors.Join(err, fmt.Errorf("balancer %s of it has address %s", b.ID, b.Address))
			}
		}
		return errors.Join(err, err2, holds(ctx))
	}, "two Warnings that say so", func(context.Context) error {
		if n := countFailureEvents(t, svc); n < 2 {
			return fmt.Errorf("there are %d", n)
		}
		return nil
	})
}
