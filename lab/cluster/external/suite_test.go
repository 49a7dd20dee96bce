package external

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	cloudproviderapi "k8s.io/cloud-provider/api"
)

func nodeNamed(name string, change ...func(*corev1.Node)) corev1.Node {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, c := range change {
		c(&n)
	}
	return n
}

func setTaint(n *corev1.Node) {
	n.Spec.Taints = []corev1.Taint{{Key: cloudproviderapi.TaintExternalCloudProvider}}
}

func setInternalIP(n *corev1.Node) {
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}
}

// Whatever a CCM under test would touch keeps the suite out.
func TestUntouched(t *testing.T) {
	service := func(kind corev1.ServiceType, class *string) []corev1.Service {
		return []corev1.Service{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
			Spec:       corev1.ServiceSpec{Type: kind, LoadBalancerClass: class},
		}}
	}
	for name, tc := range map[string]struct {
		nodes    []corev1.Node
		services []corev1.Service
		consent  bool
		want     string // "" for none
	}{
		"an empty cluster": {},
		"nodes that wait": {
			nodes: []corev1.Node{nodeNamed("a", setTaint, setInternalIP)}, want: "nodes wait for a CCM: a; ",
		},
		"nodes that may be taken": {nodes: []corev1.Node{nodeNamed("a", setTaint, setInternalIP)}, consent: true},
		"nodes without an address": {
			nodes: []corev1.Node{nodeNamed("a", setTaint)}, consent: true,
			want: "nodes name no address at which they are reached: a",
		},
		"nodes of no cloud": {
			nodes: []corev1.Node{nodeNamed("a"), nodeNamed("b")}, consent: true, want: "nodes are of no cloud: a, b; ",
		},
		"a Service that asks": {
			services: service(corev1.ServiceTypeLoadBalancer, nil),
			want:     "there are Services of type LoadBalancer: shop/web; ",
		},
		"a Service of another kind": {services: service(corev1.ServiceTypeNodePort, nil)},
		"a Service of another's":    {services: service(corev1.ServiceTypeLoadBalancer, new("example.com/other"))},
	} {
		t.Run(name, func(t *testing.T) {
			err := checkUntouched(tc.nodes, tc.services, tc.consent)
			if tc.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tc.want)
		})
	}
}

// What a CCM that has ended leaves is taken away, and nothing of others.
func TestTidy(t *testing.T) {
	event := func(name, kind, about string) *corev1.Event {
		return &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name, UID: types.UID(name)},
			InvolvedObject: corev1.ObjectReference{Kind: kind, Name: about},
		}
	}
	lease := func(holder string) *coordinationv1.Lease {
		return &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: leaseName},
			Spec: coordinationv1.LeaseSpec{
				HolderIdentity: &holder, RenewTime: &metav1.MicroTime{Time: time.Unix(1, 0)},
			},
		}
	}
	theirs := nodeNamed("theirs")
	said := event("long-ago", "Node", "gone-long-ago")
	kube := fake.NewClientset(&theirs, said, lease("suite"),
		event("theirs", "Node", "theirs"), event("pod", "Pod", "stand-in-1"),
		event("stand-in", "Node", "stand-in-1"), event("leader", "Lease", leaseName),
		event("other-lease", "Lease", "kube-scheduler"))
	require.NoError(t, deleteNewEvents(t.Context(), kube, []corev1.Node{theirs}, []corev1.Event{*said}))
	left, err := kube.CoreV1().Events("").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	var names []string
	for _, e := range left.Items {
		names = append(names, e.Name)
	}
	assert.ElementsMatch(t, []string{"long-ago", "theirs", "pod", "other-lease"}, names)

	require.NoError(t, restoreLease(t.Context(), kube, lease("somebody")))
	now, err := kube.CoordinationV1().Leases(metav1.NamespaceSystem).Get(t.Context(), leaseName, metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, "somebody", *now.Spec.HolderIdentity)
	require.NoError(t, restoreLease(t.Context(), kube, nil))
	leases, err := kube.CoordinationV1().Leases("").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	assert.Empty(t, leases.Items)
	require.NoError(t, restoreLease(t.Context(), kube, nil), "no lease is no error")
}
