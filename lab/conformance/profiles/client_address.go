package profiles

// Balancers that pass packets on: what the pod sees of its client, and what a client notices when pods
// are replaced.

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/stretchr/testify/assert"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/kubediff"
)

const (
	fromLoadBalancerE2E = "kubernetes: test/e2e/network/loadbalancer.go"
	fromIPMode          = "KEP-1860 (ipMode)"
)

var clientAddressTests = []conformance.Test{
	{
		ID: "lb-traffic-client-address", Capability: conformance.CapabilityClientAddress,
		Source: fromPolicy + "; " + fromIPMode,
		Requires: "With externalTrafficPolicy Local a pod sees the address and port of its client, and the Service's " +
			"status says that the balancer is a VIP.",
		Needs: []conformance.Feature{conformance.FeatureTraffic, conformance.FeaturePassThrough},
		Run:   lbTrafficClientAddress,
	}, {
		ID: "lb-traffic-no-node-ports", Capability: conformance.CapabilityClientAddress, Source: fromNodePorts,
		Requires: "A Service with allocateLoadBalancerNodePorts false gets no node ports, and every pod answers through its balancer.",
		Needs:    []conformance.Feature{conformance.FeatureTraffic, conformance.FeaturePassThrough},
		Run: func(t *conformance.T) {
			selector, pods := t.NewPods(2)
			svc := t.NewService(withSelector(selector), setAllocateNodePorts(false))
			assert.Zero(t, svc.Spec.Ports[0].NodePort)
			awaitAllAnswers(t, t.AwaitBalancer(svc), portOf(svc), pods)
		},
	}, {
		ID: "lb-traffic-affinity-in-use", Capability: conformance.CapabilityClientAddress, Source: fromLoadBalancerE2E,
		Requires: "A balancer and a connection through it stay when sessionAffinity is switched on and off, and " +
			"connections that come after it are treated as the Service says then.",
		Needs: []conformance.Feature{
			conformance.FeatureTraffic, conformance.FeaturePassThrough, conformance.FeatureAffinity,
			conformance.FeatureHealthCheck,
		},
		Run: func(t *conformance.T) {
			var first conformance.Balancer
			var kept *conformance.Connection
			switchAffinity(t, func(b conformance.Balancer, port int32) {
				if kept == nil {
					first, kept = b, t.NewConnection(b, port)
				}
				_, err := kept.Get(t.Context())
				t.Must(err, "asking over the connection that was made first")
				assert.Equal(t, first.ID, b.ID, "the balancer is another one")
			})
			kept.Close()
		},
	}, {
		ID: "lb-traffic-rolling-update", Capability: conformance.CapabilityClientAddress, Source: fromLoadBalancerE2E,
		Requires: "No request goes unanswered while a Deployment's pods move to another Node, with either " +
			"externalTrafficPolicy: with Local the balancer sends to the Nodes that have a pod, and to no other.",
		Needs: []conformance.Feature{
			conformance.FeatureTraffic, conformance.FeaturePassThrough, conformance.FeatureHealthCheck,
		},
		Bound: 2 * conformance.DefaultBound,
		Run:   lbTrafficRollingUpdate,
	}, {
		ID: "lb-traffic-udp-replaced-pod", Capability: conformance.CapabilityClientAddress, Source: fromLoadBalancerE2E,
		Requires: "A client that sends datagrams from one port is answered by the new pod when the only pod is replaced by " +
			"one on another Node, with either externalTrafficPolicy.",
		Needs: []conformance.Feature{
			conformance.FeatureTraffic, conformance.FeaturePassThrough, conformance.FeatureUDP, conformance.FeatureHealthCheck,
		},
		Run: lbTrafficUDPReplacedPod,
	},
}

func lbTrafficClientAddress(t *conformance.T) {
	selector, pods := t.NewPods(2)
	svc := t.NewService(withSelector(selector), withLocalTrafficPolicy)
	b := t.AwaitBalancer(svc)
	awaitAllAnswers(t, b, portOf(svc), pods)
	t.Await("a pod to name its client's address", func(ctx context.Context) error {
		answer, client, err := t.Get(ctx, b, portOf(svc))
		if err == nil && !strings.Contains(answer, client.String()) {
			err = fmt.Errorf("the answer to %s does not name it: %.400q", client, answer)
		}
		return err
	})
	awaitIPMode(t, svc, corev1.LoadBalancerIPModeVIP)
}

// awaitIPMode waits for the Service's status to say that of each address. None said is VIP (KEP-1860); a host
// name has none, and kube-proxy takes nothing for it.
func awaitIPMode(t *conformance.T, svc *corev1.Service, want corev1.LoadBalancerIPMode) {
	t.Await(fmt.Sprintf("ipMode %s in the Service's status", want), func(ctx context.Context) error {
		now, err := t.GetService(ctx, svc)
		if err != nil {
			return err
		}
		for _, ingress := range now.Status.LoadBalancer.Ingress {
			if mode := ptr.Deref(ingress.IPMode, corev1.LoadBalancerIPModeVIP); ingress.IP != "" && mode != want {
				return fmt.Errorf("of %s it says %s", ingress.IP, mode)
			}
		}
		return nil
	})
}

// lbTrafficRollingUpdate has the same pods behind a Service of each policy.
func lbTrafficRollingUpdate(t *conformance.T) {
	nodes := nodesForPods(t)
	selector, pods := t.NewPods(2, onNode(nodes[0]), endsUnnoticed)
	services := newServiceOfEachPolicy(t, withSelector(selector))
	balancers := make([]conformance.Balancer, len(services))
	for i, svc := range services {
		balancers[i] = t.AwaitBalancer(svc)
		t.Await(fmt.Sprintf("%d connections in a row to be answered", inARow), func(ctx context.Context) error {
			_, err := requestMany(ctx, t, balancers[i], portOf(svc), pods)
			return err
		})
	}
	t.ChangePods(selector, onNode(nodes[1]))
	t.HoldsUntil("each request to be answered", func(ctx context.Context) error {
		for i, svc := range services {
			// As text: a network's error would pass for an API server that is away.
			if _, _, err := t.Get(ctx, balancers[i], portOf(svc)); err != nil {
				return errors.New("externalTrafficPolicy " + string(svc.Spec.ExternalTrafficPolicy) + ": " + err.Error())
			}
		}
		return nil
	}, "all pods to be on "+nodes[1], func(ctx context.Context) error {
		_, err := podsOnNode(ctx, t, selector, len(pods), nodes[1])
		return err
	})
}

func lbTrafficUDPReplacedPod(t *conformance.T) {
	nodes := nodesForPods(t)
	selector, pods := t.NewPods(1, onNode(nodes[0]))
	services := newServiceOfEachPolicy(t, withSelector(selector), func(s *corev1.Service) {
		s.Spec.Ports[0].Protocol = corev1.ProtocolUDP
	})
	flows := make([]net.Conn, len(services))
	for i, svc := range services {
		flows[i] = t.AwaitUDPFlow(t.AwaitBalancer(svc), portOf(svc), pods)
	}
	t.ChangePods(selector, onNode(nodes[1]))
	t.Await("the pod to be on "+nodes[1], func(ctx context.Context) (err error) {
		pods, err = podsOnNode(ctx, t, selector, 1, nodes[1])
		return err
	})
	for i, svc := range services {
		t.Await(fmt.Sprintf("an answer of pod %s, policy %s", pods[0].Name, svc.Spec.ExternalTrafficPolicy),
			func(ctx context.Context) error {
				_, err := conformance.SendDatagram(ctx, flows[i], pods)
				return err
			})
	}
}

// newServiceOfEachPolicy creates a Service for each externalTrafficPolicy.
func newServiceOfEachPolicy(t *conformance.T, with ...func(*corev1.Service)) []*corev1.Service {
	return []*corev1.Service{t.NewService(with...), t.NewService(append(with, withLocalTrafficPolicy)...)}
}

// nodesForPods returns the names of Nodes on which any pod can be, two at least.
func nodesForPods(t *conformance.T) []string {
	t.AwaitMachines()
	list, err := t.Kube.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	t.Must(err, "listing Nodes")
	var names []string
	for i := range list.Items {
		if n := &list.Items[i]; !n.Spec.Unschedulable && len(n.Spec.Taints) == 0 && kubediff.IsNodeReady(n) {
			names = append(names, n.Name)
		}
	}
	if len(names) < 2 {
		t.Fatalf("pods are to move from a Node to another, and there are %d for them: %v", len(names), names)
	}
	return names
}

// onNode has all pods run on one Node.
func onNode(name string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.NodeSelector = map[string]string{corev1.LabelHostname: name}
	}
}

// podsOnNode lists the pods, and is an error unless all of them are Ready and on the Node.
func podsOnNode(
	ctx context.Context,
	t *conformance.T,
	selector map[string]string,
	count int,
	node string,
) ([]corev1.Pod, error) {
	pods, err := t.ReadyPods(ctx, selector, count)
	for _, p := range pods {
		if p.Spec.NodeName != node {
			return nil, fmt.Errorf("pod %s is on %s", p.Name, p.Spec.NodeName)
		}
	}
	return pods, err
}

// noticeSeconds is how long a balancer may take to notice that a Node has a pod now, or none any more: three
// checks, 10 s apart, are what clouds have as a default.
const noticeSeconds = 30

// endsUnnoticed has pods replaced as who wants to lose no request would: all new ones are there before the first
// old one goes, and that one answers until balancers have noticed.
func endsUnnoticed(d *appsv1.Deployment) {
	all, none := intstr.FromString("100%"), intstr.FromInt32(0)
	d.Spec.MinReadySeconds = noticeSeconds
	d.Spec.Strategy = appsv1.DeploymentStrategy{
		Type:          appsv1.RollingUpdateDeploymentStrategyType,
		RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &all, MaxUnavailable: &none},
	}
	pod := &d.Spec.Template.Spec
	pod.TerminationGracePeriodSeconds = new(int64(2 * noticeSeconds))
	pod.Containers[0].Lifecycle = &corev1.Lifecycle{
		PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: noticeSeconds}},
	}
}
