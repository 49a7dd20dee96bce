package profiles

// What a Service of type LoadBalancer gets, and what happens when the Service or the Nodes change. What the
// tests share is at the end.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/cloud-provider/service/helpers"

	"github.com/ccmlab/ccmlab/lab/conformance"
)

var loadBalancerTests = slices.Concat(
	balancerTests, balancerNameTests, balancerNodeTests, balancerFailureTests, balancerDoubtTests(), balancerOptionTests,
	balancerDriftTests, balancerOwnershipTests,
)

// Where requirements come from.
const (
	fromEnsure    = "k8s.io/cloud-provider cloud.go: LoadBalancer.EnsureLoadBalancer"
	fromUpdate    = "k8s.io/cloud-provider cloud.go: LoadBalancer.UpdateLoadBalancer"
	fromPublished = "kubernetes.io: Service, type LoadBalancer (status.loadBalancer has \"the provisioned balancer\"); " +
		fromEnsure + ": \"Returns the status of the balancer\""
	fromDelete        = "k8s.io/cloud-provider cloud.go: LoadBalancer.EnsureLoadBalancerDeleted"
	fromService       = "kubernetes.io: Service, type LoadBalancer"
	fromCleanup       = "KEP-980 (finalizer for cleaning up load balancers)"
	fromClass         = "KEP-1959 (loadBalancerClass)"
	fromNodeSet       = "KEP-3458 (which Nodes a balancer has)"
	serviceController = "k8s.io/cloud-provider controllers/service/controller.go"
	fromMixed         = "KEP-1435 (different protocols in one Service)"
	fromAffinity      = "kubernetes.io: Virtual IPs and Service Proxies, session affinity"
	fromRanges        = "kubernetes.io: Service API reference, loadBalancerSourceRanges"
	fromHealth        = "KEP-3836 (what balancers should ask nodes); KEP-3458 (a Node that is not Ready stays a target)"
	fromPolicy        = "kubernetes.io: Create an External Load Balancer, preserving the client source IP"
)

// Features of tests that look at what a balancer listens on, and where that leads.
var (
	hasListeners     = []conformance.Feature{conformance.FeatureListeners}
	sendsToNodePorts = []conformance.Feature{conformance.FeatureListeners, conformance.FeatureNodePorts}
)

var balancerTests = []conformance.Test{
	{
		ID: "lb-created", Source: fromService,
		Requires: "A Service of type LoadBalancer gets exactly one balancer, and has the balancer's address in its status; the balancer listens on the Service's port and sends to its node port, where the cloud has such things.",
		Compares: sendsToNodePorts,
		Run: func(t *conformance.T) {
			newServiceWithListeners(t)
		},
	}, {
		ID: "lb-several-ports", Source: fromService,
		Requires: "A balancer listens on each of the Service's ports, and sends each to its own node port where it sends to node ports.",
		Needs:    hasListeners,
		Run: func(t *conformance.T) {
			_, b := newServiceWithListeners(t, func(s *corev1.Service) { addPort(t, s); addPort(t, s) })
			assert.Len(t, b.Listeners, 3)
		},
	}, {
		ID: "lb-port-changed", Source: fromEnsure,
		Requires: "When a port of the Service changes, the balancer listens on the new one, and on the old one no more.",
		Needs:    hasListeners,
		Run: func(t *conformance.T) {
			svc, _ := newServiceWithListeners(t)
			changePortAndAwait(t, svc)
		},
	}, {
		ID: "lb-port-added-and-removed", Source: fromEnsure,
		Requires: "A port that is added to the Service gets a listener, and one that is removed loses it.",
		Needs:    hasListeners,
		Run: func(t *conformance.T) {
			svc, _ := newServiceWithListeners(t)
			t.Change(svc, func(s *corev1.Service) { addPort(t, s) })
			b := t.AwaitBalancer(svc, listensFor(t, svc))
			assert.Len(t, b.Listeners, 2)
			t.Change(svc, func(s *corev1.Service) { s.Spec.Ports = s.Spec.Ports[1:] })
			t.AwaitBalancer(svc, listensFor(t, svc))
		},
	}, {
		ID: "lb-node-port-changed", Source: fromEnsure,
		Requires: "When a node port of the Service changes, the balancer sends to the new one.",
		Needs:    sendsToNodePorts,
		Run:      lbNodePortChanged,
	}, {
		ID: "lb-ports-renamed-and-swapped", Source: fromEnsure + "; " + serviceController + ": portEqualForLB",
		Requires: "When a port of the Service is renamed, when only the second one gets another number, and when two ports swap their numbers or their node ports, the balancer stays and listens as the Service says then.",
		Needs:    hasListeners, Compares: []conformance.Feature{conformance.FeatureNodePorts},
		Run: lbPortsRenamedAndSwapped,
	}, {
		ID: "lb-deleted", Source: fromDelete,
		Requires: "When the Service is deleted, its balancer goes, and then the Service.",
		Run: func(t *conformance.T) {
			svc, _ := newServiceWithBalancer(t)
			deleteAndAwaitGone(t, svc)
		},
	}, {
		ID: "lb-namespace-deleted", Source: fromCleanup + "; kubernetes.io: Finalizers",
		Requires: "When a namespace is deleted, the balancers of all Services in it go, and then the Services.",
		Run: func(t *conformance.T) {
			services := newServicesWithBalancers(t, 3)
			deleteNamespace(t)
			for _, svc := range services { // Then nothing of the CCM's keeps the namespace.
				t.AwaitGone(svc)
			}
		},
	}, {
		ID: "lb-finalizer", Source: fromCleanup,
		Requires: "A Service has the finalizer service.kubernetes.io/load-balancer-cleanup from before it gets a balancer until the balancer's end.",
		Run:      lbFinalizer,
	}, {
		ID: "lb-retyped-to-cluster-ip", Source: fromCleanup,
		Requires: "A Service that becomes one of type ClusterIP loses its balancer, the address in its status and the finalizer, and lives on; back again it gets one balancer.",
		Run: func(t *conformance.T) {
			svc, _ := newServiceWithBalancer(t)
			retypeToClusterIP(t, svc)

			t.Change(svc, func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeLoadBalancer })
			t.AwaitBalancer(svc, listensFor(t, svc))
		},
	}, {
		ID: "lb-two-services", Source: fromService,
		Requires: "Each Service has a balancer of its own, and the end of one changes nothing about the other's.",
		Run: func(t *conformance.T) {
			stays, goes := t.NewService(), t.NewService()
			before, other := t.AwaitBalancer(stays, listensFor(t, stays)), t.AwaitBalancer(goes, listensFor(t, goes))
			assert.NotEqual(t, before.ID, other.ID)
			deleteAndAwaitGone(t, goes)
			assert.Equal(t, balancerIdentity(before), balancerIdentity(t.AwaitBalancer(stays)))
		},
	}, {
		ID: "lb-recreated", Source: fromDelete,
		Requires: "A new Service with the name of one that was deleted gets a balancer of its own, and the old one's goes.",
		Run: func(t *conformance.T) {
			old, before := newServiceWithBalancer(t)
			t.DeleteService(old)
			// The old balancer may still be on its way out.
			t.Await("the name to be free", func(ctx context.Context) error { return t.NoService(ctx, old) })
			svc, after := newServiceWithListeners(t, func(s *corev1.Service) { s.Name = old.Name })
			assert.NotEqual(t, before.ID, after.ID)
			// By its ID: a cloud may know of the Service's name alone, which both have.
			t.Await("balancer "+before.ID+" to be gone", func(ctx context.Context) error {
				_, there, err := t.Cloud.GetBalancer(ctx, before.ID)
				if err == nil && there {
					err = errors.New("it is still there")
				}
				return err
			})
			assert.Equal(t, balancerIdentity(after), balancerIdentity(t.AwaitBalancer(svc)))
		},
	}, {
		ID: "lb-class-left-alone", Source: fromClass,
		Requires: "A Service with a loadBalancerClass is somebody else's to implement: it gets no balancer, no address and no finalizer.",
		Run: func(t *conformance.T) {
			class := "conformance.ccmlab.io/nobody"
			watchLeftAlone(t, t.NewService(func(s *corev1.Service) { s.Spec.LoadBalancerClass = &class }))
		},
	}, {
		ID:       "lb-class-set-later",
		Source:   fromClass + "; kubernetes.io: Service, load balancer class (\"Once set, it cannot be changed.\")",
		Requires: "A Service whose balancer goes because its type changes, and that comes back with a loadBalancerClass, gets no balancer, no address and no finalizer.",
		Run:      lbClassSetLater,
	}, {
		ID: "lb-other-types-left-alone", Source: fromService,
		Requires: "Services of type ClusterIP and NodePort get no balancer, no address and no finalizer.",
		Run: func(t *conformance.T) {
			watchLeftAlone(t,
				t.NewService(func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP }),
				t.NewService(func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeNodePort }))
		},
	}, {
		ID: "lb-many-leave-nothing", Source: fromCleanup,
		Requires: "Of Services that are deleted as soon as they have the finalizer, while their balancer is being made, or later, no balancer stays behind.",
		Run:      lbManyLeaveNothing,
	}, {
		ID: "lb-targets-follow-nodes", Source: fromNodeSet + "; " + fromUpdate,
		Requires: "A balancer's targets are the instances of all Nodes except those with the label node.kubernetes.io/exclude-from-external-load-balancers, as Nodes and labels come and go.",
		Needs:    []conformance.Feature{conformance.FeatureTargets},
		Alone:    true, // Nothing else may change the Nodes, and nobody answers on these.
		Run:      lbTargetsFollowNodes,
	},
}

func lbNodePortChanged(t *conformance.T) {
	svc, before := newServiceWithListeners(t)
	old := svc.Spec.Ports[0].NodePort
	var err error
	for i := range int32(20) { // Those nearby may be taken.
		step := []int32{-i/2 - 1, i/2 + 1}[i%2]
		err = t.UpdateService(t.Context(), svc, func(s *corev1.Service) { s.Spec.Ports[0].NodePort = old + step })
		if err == nil {
			break
		}
	}
	t.Must(err, "giving Service %s another node port", svc.Name)
	after := t.AwaitBalancer(svc, listensFor(t, svc))
	assert.NotEqual(t, before.Listeners, after.Listeners)
}

func lbPortsRenamedAndSwapped(t *conformance.T) {
	svc, before := newServiceWithListeners(t, func(s *corev1.Service) { addPort(t, s) })
	for _, change := range []func(*corev1.Service){
		// Listeners stay as they are. A CCM that stumbles over it does not do the next change.
		func(s *corev1.Service) { s.Spec.Ports[0].Name = "renamed" },
		func(s *corev1.Service) { renumberPort(t, s, 1) },
		func(s *corev1.Service) {
			s.Spec.Ports[0].Port, s.Spec.Ports[1].Port = s.Spec.Ports[1].Port, s.Spec.Ports[0].Port
		},
		func(s *corev1.Service) {
			s.Spec.Ports[0].NodePort, s.Spec.Ports[1].NodePort = s.Spec.Ports[1].NodePort, s.Spec.Ports[0].NodePort
		},
	} {
		t.Change(svc, change)
		assert.Equal(t, before.ID, t.AwaitBalancer(svc, listensFor(t, svc)).ID)
	}
}

// newServicesWithBalancers makes so many Services and waits for their balancers.
func newServicesWithBalancers(t *conformance.T, count int) (services []*corev1.Service) {
	for range count {
		services = append(services, t.NewService())
	}
	for _, svc := range services {
		t.AwaitBalancer(svc)
	}
	return services
}

// deleteNamespace deletes the test's namespace, and does not wait for its end.
func deleteNamespace(t *conformance.T) {
	err := t.Kube.CoreV1().Namespaces().Delete(t.Context(), t.Namespace(), metav1.DeleteOptions{})
	t.Must(err, "deleting namespace %s", t.Namespace())
}

func lbFinalizer(t *conformance.T) {
	const invariant = "a balancer is there only while the finalizer is"
	svc := t.NewService()
	t.HoldsUntil(invariant, func(ctx context.Context) error {
		found, err := t.BalancersOf(ctx, svc)
		if err != nil || len(found) == 0 {
			return err
		}
		return checkFinalizer(ctx, t, svc) // Looked at after the balancer: it must be older.
	}, "the balancer", checkOneBalancer(t, svc))

	t.DeleteService(svc)
	t.HoldsUntil(invariant, func(ctx context.Context) error {
		missing := checkFinalizer(ctx, t, svc) // Looked at before the balancer: that must be gone by then.
		found, err := t.BalancersOf(ctx, svc)
		if missing == nil || err != nil {
			return err
		}
		if slices.ContainsFunc(found, func(b conformance.Balancer) bool { return b.Active }) {
			return fmt.Errorf("a balancer is active, and %w", missing)
		}
		return nil // Deleting is for the cloud to finish, if it is not gone.
	}, "the Service to be gone", func(ctx context.Context) error { return t.NoService(ctx, svc) })
	t.AwaitGone(svc)
}

// balancerIdentity returns the balancer without its targets, which change as Nodes come and go, and its tags,
// in which its owner may keep notes.
func balancerIdentity(b conformance.Balancer) conformance.Balancer {
	b.Targets, b.Tags = nil, nil
	return b
}

// lbClassSetLater changes the type in between: the API server refuses a class on a Service that is of type
// LoadBalancer already (kubernetes pkg/apis/core/validation: validateLoadBalancerClassField).
func lbClassSetLater(t *conformance.T) {
	svc, _ := newServiceWithBalancer(t)
	retypeToClusterIP(t, svc)
	class := "conformance.ccmlab.io/nobody"
	t.Change(svc, func(s *corev1.Service) {
		s.Spec.Type, s.Spec.LoadBalancerClass = corev1.ServiceTypeLoadBalancer, &class
	})
	watchLeftAlone(t, svc)
}

// watchLeftAlone watches that none of the Services gets a balancer, an address or a finalizer. The CCM has had
// its chance when it has served two Services that came later.
func watchLeftAlone(t *conformance.T, services ...*corev1.Service) {
	newServiceWithBalancer(t)
	second := t.NewService()
	t.HoldsUntil("the Service is left alone", func(ctx context.Context) (err error) {
		for _, svc := range services {
			found, listErr := t.BalancersOf(ctx, svc)
			if len(found) > 0 {
				listErr = fmt.Errorf("service %s has balancer %s", svc.Name, found[0].ID)
			}
			err = errors.Join(err, listErr, checkUntouched(ctx, t, svc))
		}
		return err
	}, "a later Service's balancer", checkOneBalancer(t, second))
}

func lbManyLeaveNothing(t *conformance.T) {
	var services []*corev1.Service
	for range 3 {
		atOnce, early, late := t.NewService(), t.NewService(), t.NewService()
		services = append(services, atOnce, early, late)
		// Not before: an API server that is deleting an object may take a finalizer
		// and delete the object all the same (registry/generic/registry/store.go,
		// Delete), of which upstream's service controller never hears.
		t.Await("the finalizer of Service "+atOnce.Name, func(ctx context.Context) error {
			return checkFinalizer(ctx, t, atOnce)
		})
		t.DeleteService(atOnce)
		t.Await("the beginnings of a balancer", checkBalancerBegun(t, early))
		t.DeleteService(early)
		t.AwaitBalancer(late)
		t.DeleteService(late)
	}
	for _, svc := range services {
		t.AwaitGone(svc)
	}
	// What was still to be done for them is done before this one's.
	t.AwaitBalancer(t.NewService())
	for _, svc := range services {
		t.AwaitNoBalancer(svc)
	}
}

func lbTargetsFollowNodes(t *conformance.T) {
	t.AwaitMachines()
	a := t.NewInstance(t.Name("worker"))
	svc := t.NewService()
	own := t.AwaitBalancer(svc, leadsToNodesOf(t, a)).Targets

	nodeA := t.NewNodeOf(a, conformance.NodeSpec{Balanced: true})
	t.AwaitInitialized(nodeA.Name)
	t.AwaitBalancer(svc, leadsTo(own, a.ID))
	b, nodeB := t.NewWorker(conformance.NodeSpec{Balanced: true})
	t.AwaitBalancer(svc, leadsTo(own, a.ID, b.ID))

	setExclusionLabel(t, nodeA.Name, `"true"`)
	t.AwaitBalancer(svc, leadsTo(own, b.ID))
	setExclusionLabel(t, nodeA.Name, `null`)
	t.AwaitBalancer(svc, leadsTo(own, a.ID, b.ID))

	t.Must(t.Cloud.TerminateInstance(t.Context(), b.ID), "terminating %s", b.ID)
	nodeB.NotReady()
	t.AwaitNoNode(nodeB.Name)
	t.AwaitBalancer(svc, leadsTo(own, a.ID))

	deleteNode(t, nodeA.Name)
	t.AwaitBalancer(svc, leadsTo(own)) // Its instance still runs.
}

// providerIDScheme returns the part of a provider ID that names the cloud, or "".
func providerIDScheme(id string) string {
	scheme, _, named := strings.Cut(id, "://")
	if !named { // Oracle's have none: ocid1.instance.REALM.REGION.UNIQUE.
		return id[:strings.LastIndex(id, ".")+1]
	}
	return scheme
}

// leadsToNodesOf checks that a balancer has as many targets as there are Nodes of the instance's cloud that
// balancers may have. In a cluster of several clouds, the scheme of a provider ID tells them apart.
func leadsToNodesOf(t *conformance.T, instance conformance.Instance) func(conformance.Balancer) error {
	scheme := providerIDScheme(instance.ProviderID)
	return func(b conformance.Balancer) error {
		list, err := t.Kube.CoreV1().Nodes().
			List(t.Context(), metav1.ListOptions{LabelSelector: "!" + corev1.LabelNodeExcludeBalancers})
		if err != nil {
			return err
		}
		var names []string
		for _, n := range list.Items {
			if n.Spec.ProviderID != "" && providerIDScheme(n.Spec.ProviderID) == scheme && n.DeletionTimestamp == nil {
				names = append(names, n.Name)
			}
		}
		if len(b.Targets) != len(names) {
			return fmt.Errorf("balancer %s has targets %v for Nodes %v", b.ID, b.Targets, names)
		}
		return nil
	}
}

// setExclusionLabel sets the label that excludes the Node from balancers to a JSON value.
func setExclusionLabel(t *conformance.T, node, value string) {
	t.Must(patchNode(t.Context(), t, node, exclusionPatch(value)), "labelling Node %s", node)
}

// exclusionPatch sets the label that excludes a Node from balancers to a JSON value.
func exclusionPatch(value string) string {
	return fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, corev1.LabelNodeExcludeBalancers, value)
}

// patchNode changes the Node by a merge patch.
func patchNode(ctx context.Context, t *conformance.T, node, patch string) error {
	_, err := t.Kube.CoreV1().Nodes().
		Patch(ctx, node, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// leadsTo checks that a balancer's targets are the cluster's own and these.
func leadsTo(own []string, more ...string) func(conformance.Balancer) error {
	want := slices.Sorted(slices.Values(slices.Concat(own, more)))
	return func(b conformance.Balancer) error {
		if got := slices.Sorted(slices.Values(b.Targets)); !slices.Equal(got, want) {
			return fmt.Errorf("balancer %s has targets %v, want %v", b.ID, got, want)
		}
		return nil
	}
}

// listensFor checks that a balancer has one listener for each port of the Service as it is now, with its node
// port behind it. Where the cloud has no listeners, or no node ports, it does not check them. It updates svc
// from the API server.
func listensFor(t *conformance.T, svc *corev1.Service) func(conformance.Balancer) error {
	now, err := t.GetService(t.Context(), svc)
	t.Must(err, "reading Service %s", svc.Name)
	now.DeepCopyInto(svc)
	if !t.HasFeature(conformance.FeatureListeners) {
		return func(conformance.Balancer) error { return nil }
	}
	toNodePorts := t.HasFeature(conformance.FeatureNodePorts)
	var want []conformance.Listener
	for _, p := range svc.Spec.Ports {
		l := conformance.Listener{Protocol: string(p.Protocol), Port: p.Port}
		if toNodePorts {
			require.NotZero(t, p.NodePort, "port %s has no node port", p.Name)
			l.TargetPort = p.NodePort
		}
		want = append(want, l)
	}
	slices.SortFunc(want, compareListeners)
	return func(b conformance.Balancer) error {
		got := slices.SortedFunc(slices.Values(b.Listeners), compareListeners)
		for i := range got {
			if !toNodePorts {
				got[i].TargetPort = 0
			}
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("balancer %s has listeners %v, want %v", b.ID, got, want)
		}
		return nil
	}
}

func compareListeners(a, b conformance.Listener) int {
	return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol))
}

// addPort adds a TCP port that no balancer has.
func addPort(t *conformance.T, s *corev1.Service) {
	p := corev1.ServicePort{Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(t.Workload.Port)}
	taken := map[int32]bool{}
	for _, other := range s.Spec.Ports {
		taken[other.Port] = true
	}
	for p.Port = t.Port(); taken[p.Port]; {
		p.Port = t.Port()
	}
	p.Name = fmt.Sprintf("port-%d", p.Port)
	s.Spec.Ports = append(slices.Clone(s.Spec.Ports), p)
}

// changePort gives the Service's first port another number, and keeps its node
// port.
func changePort(t *conformance.T, svc *corev1.Service) {
	t.Change(svc, func(s *corev1.Service) { renumberPort(t, s, 0) })
}

// renumberPort gives one of the ports another number, and keeps its node port.
func renumberPort(t *conformance.T, s *corev1.Service, i int) {
	addPort(t, s)
	last := len(s.Spec.Ports) - 1
	s.Spec.Ports[i].Port = s.Spec.Ports[last].Port
	s.Spec.Ports = s.Spec.Ports[:last]
}

// newServiceWithBalancer makes a Service and waits for its balancer.
func newServiceWithBalancer(
	t *conformance.T, with ...func(*corev1.Service),
) (*corev1.Service, conformance.Balancer) {
	svc := t.NewService(with...)
	return svc, t.AwaitBalancer(svc)
}

// newServiceWithListeners makes a Service and waits for its balancer to listen on all its ports.
func newServiceWithListeners(
	t *conformance.T, with ...func(*corev1.Service),
) (*corev1.Service, conformance.Balancer) {
	svc := t.NewService(with...)
	return svc, t.AwaitBalancer(svc, listensFor(t, svc))
}

// changePortAndAwait gives the Service's first port another number, and waits for the balancer to listen
// there and to be as the checks want.
func changePortAndAwait(
	t *conformance.T, svc *corev1.Service, checks ...func(conformance.Balancer) error,
) conformance.Balancer {
	changePort(t, svc)
	return t.AwaitBalancer(svc, slices.Insert(checks, 0, listensFor(t, svc))...)
}

// deleteAndAwaitGone deletes the Service, and waits for it and its balancer to be gone.
func deleteAndAwaitGone(t *conformance.T, svc *corev1.Service) {
	t.DeleteService(svc)
	t.AwaitGone(svc)
}

// checkOneBalancer returns an error unless the Service has one balancer, which serves it and is as the
// checks want.
func checkOneBalancer(
	t *conformance.T, svc *corev1.Service, checks ...func(conformance.Balancer) error,
) func(context.Context) error {
	return func(ctx context.Context) error {
		b, err := t.TheBalancer(ctx, svc)
		for _, check := range checks {
			if err == nil {
				err = check(b)
			}
		}
		return err
	}
}

// retypeToClusterIP makes the Service one of type ClusterIP, and waits for it to lose all that came with
// its balancer.
func retypeToClusterIP(t *conformance.T, svc *corev1.Service) {
	t.Change(svc, func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP })
	t.AwaitNoBalancer(svc)
	t.Await("the Service to be as one that never had a balancer", func(ctx context.Context) error {
		return checkUntouched(ctx, t, svc)
	})
}

// touchService annotates the Service in a way that changes nothing about its balancer.
func touchService(t *conformance.T, svc *corev1.Service, value string) {
	t.Change(svc, func(s *corev1.Service) {
		s.Annotations = maps.Clone(s.Annotations)
		if s.Annotations == nil {
			s.Annotations = map[string]string{}
		}
		s.Annotations["conformance.ccmlab.io/touched"] = value
	})
}

// checkFinalizer returns an error if the Service has no finalizer.
func checkFinalizer(ctx context.Context, t *conformance.T, svc *corev1.Service) error {
	now, err := t.GetService(ctx, svc)
	if err == nil && !helpers.HasLBFinalizer(now) {
		err = fmt.Errorf("service %s has finalizers %v", svc.Name, now.Finalizers)
	}
	return err
}

// checkUntouched returns an error if the Service shows that a CCM serves it.
func checkUntouched(ctx context.Context, t *conformance.T, svc *corev1.Service) error {
	now, err := t.GetService(ctx, svc)
	if err == nil && (helpers.HasLBFinalizer(now) || len(now.Status.LoadBalancer.Ingress) > 0) {
		err = fmt.Errorf(
			"service %s has finalizers %v and addresses %v", svc.Name, now.Finalizers, now.Status.LoadBalancer.Ingress,
		)
	}
	return err
}
