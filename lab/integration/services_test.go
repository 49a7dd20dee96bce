package integration

// Services whose balancer somebody else changes, whose annotations are wrong
// for a while, and two clusters in one project.

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab/testbed"
)

func TestBalancersThatOthersTouch(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testbed.Options{})
	w.startCCM(testbed.CCMOptions{})
	node := w.addNode("node-1")

	t.Run("deleted", func(t *testing.T) {
		w := w.in(t)
		annotated := service("deleted", 8080)
		annotated.Annotations = map[string]string{"example.com/mine": "yes", "fakecloud.ccmlab.io/proxy-protocol": "v1"}
		svc := w.create(annotated)
		w.awaitAddress(svc, "")
		lost := w.balancers(svc)[0]
		_, err := w.Cloud().DeleteLoadBalancer(w.ctx, lost.ID)
		require.NoError(t, err)
		w.await("another balancer", func() error {
			lb := w.balancers(svc)
			if len(lb) != 1 || lb[0].ID == lost.ID || lb[0].State != api.LoadBalancerActive {
				return fmt.Errorf("balancers: %+v", lb)
			}
			if in := w.get(svc).Status.LoadBalancer.Ingress; len(in) != 1 || in[0].IP != lb[0].Address {
				return fmt.Errorf("the balancer is at %s, the status says %v", lb[0].Address, in)
			}
			return nil
		})
		assert.Equal(t, annotated.Annotations, w.get(svc).Annotations, "users' annotations are theirs")
		w.awaitEvent(string(svc.UID), contract.ReasonLoadBalancerRepaired)
	})
	t.Run("changed", func(t *testing.T) {
		w := w.in(t)
		svc := w.create(service("changed", 8081))
		address := w.awaitAddress(svc, "")
		lb := w.balancers(svc)[0]
		none := api.Targets{}
		ranges := api.SourceRanges{"192.0.2.0/24"}
		_, err := w.Cloud().
			UpdateLoadBalancer(w.ctx, lb.ID, api.LoadBalancerUpdate{Targets: &none, SourceRanges: &ranges})
		require.NoError(t, err)
		w.await("the balancer to be as the Service wants it", func() error {
			now := w.balancers(svc)[0]
			if len(now.Targets) != 1 || now.Targets[0].InstanceID != node.ID || len(now.SourceRanges) != 0 {
				return fmt.Errorf("targets %v, source ranges %v", now.Targets, now.SourceRanges)
			}
			return nil
		})
		assert.Equal(t, address, w.balancers(svc)[0].Address)
		w.awaitEvent(string(svc.UID), contract.ReasonLoadBalancerRepaired)
	})
	t.Run("a stranger's of the same name", func(t *testing.T) {
		w := w.in(t)
		// Nobody knows the name before the UID, so it is the second that collides.
		svc := w.create(service("stranger", 8082))
		w.awaitAddress(svc, "")
		lb := w.balancers(svc)[0]
		tags := api.Tags{"owner": "somebody"}
		_, err := w.Cloud().UpdateLoadBalancer(w.ctx, lb.ID, api.LoadBalancerUpdate{Tags: &tags})
		require.NoError(t, err)
		w.awaitEvent(string(svc.UID), contract.ReasonLoadBalancerNameTaken, lb.Name)
		now, err := w.Cloud().GetLoadBalancer(w.ctx, lb.ID)
		require.NoError(t, err)
		assert.Equal(t, tags, now.Tags, "what does not say that it is ours is not touched")
	})
}

// A Service may go before anybody knows that it has a balancer: upstream handles
// no deletions, and a finalizer that comes too late holds nothing.
func TestBalancersWithoutAService(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testbed.Options{})
	system, err := w.Admin().CoreV1().Namespaces().Get(w.ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	require.NoError(t, err)
	leak := func(name string, tags api.Tags) string {
		tags[contract.TagCluster], tags[contract.TagServiceUID], tags[contract.TagService] = w.Name, "no-such-"+
			name, "default/"+name
		lb, err := w.Cloud().CreateLoadBalancer(w.ctx, api.LoadBalancerCreate{
			Name: name, Listeners: api.Listeners{{Protocol: api.ProtocolTCP, Port: 9000, TargetPort: 9000}},
			Tags: &tags,
		})
		require.NoError(t, err)
		return lb.ID
	}
	ours := leak("ours", api.Tags{contract.TagClusterUID: string(system.UID)})
	theirs := leak("theirs", api.Tags{contract.TagClusterUID: "another"})
	unknown := leak("unknown", api.Tags{})
	w.startCCM(testbed.CCMOptions{})

	w.await("the leaked balancer to go", func() error {
		lb, err := w.Cloud().GetLoadBalancer(w.ctx, ours)
		if client.IsNotFound(err) || err == nil && lb.State == api.LoadBalancerDeleting {
			return nil
		}
		return fmt.Errorf("it is there (%w)", err)
	})
	for _, id := range []string{theirs, unknown} {
		lb, err := w.Cloud().GetLoadBalancer(w.ctx, id)
		require.NoError(t, err)
		assert.NotEqual(t, api.LoadBalancerDeleting, lb.State, "a cluster of the same name may have made it")
	}
}

func TestAnAnnotationMadeInvalidAndMended(t *testing.T) {
	t.Parallel()
	const algorithm = "fakecloud.ccmlab.io/algorithm"
	w := newWorld(t, testbed.Options{})
	w.startCCM(testbed.CCMOptions{})
	w.addNode("node-1")
	svc := w.create(service("web", 8080))
	before := w.awaitTarget(svc)

	w.change(svc, func(s *corev1.Service) {
		s.Annotations = map[string]string{algorithm: "coin-toss", "fakecloud.ccmlab.io/idle-timeout": "soon"}
	})
	// All that is wrong is told at once.
	w.awaitEvent(string(svc.UID), contract.ReasonInvalidService, "coin-toss", "soon")
	after := w.balancers(svc)
	require.Len(t, after, 1)
	assert.Equal(t, before.Version, after[0].Version, "half of a Service is not applied")
	assert.Equal(t, before.Address, w.get(svc).Status.LoadBalancer.Ingress[0].IP)

	w.addNode("node-2")
	w.await("the second Node to be a target all the same", func() error {
		lb := w.balancers(svc)[0]
		if len(lb.Targets) != 2 || lb.Algorithm == "coin-toss" {
			return fmt.Errorf("targets %v, algorithm %s", lb.Targets, lb.Algorithm)
		}
		return nil
	})

	w.change(svc, func(s *corev1.Service) { s.Annotations = map[string]string{algorithm: "source-hash"} })
	w.await("what the mended annotation asks for", func() error {
		if lb := w.balancers(svc)[0]; lb.Algorithm != api.AlgorithmSourceHash {
			return fmt.Errorf("the algorithm is %s", lb.Algorithm)
		}
		return nil
	})

	w.remove(svc)
	w.awaitServiceGone(svc)
	w.awaitNoBalancer(svc)
}

// One of them goes; what the other has is not touched.
func TestTwoClustersInOneProject(t *testing.T) {
	t.Parallel()
	east := newWorld(t, testbed.Options{Name: "east"})
	west := newWorld(t, testbed.Options{Name: "west", CloudOf: east.Bed})
	services, made := map[*world]*corev1.Service{}, map[*world]api.LoadBalancer{}
	for _, w := range []*world{east, west} {
		w.startCCM(testbed.CCMOptions{})
		w.addNode(w.Name + "-1")
		services[w] = w.create(service("web", 8080))
		made[w] = w.awaitTarget(services[w])
	}

	east.change(services[east], func(s *corev1.Service) { s.Spec.Ports[0].Port = 8081 })
	east.await("the change", func() error {
		if lb := east.balancers(services[east]); len(lb) != 1 || lb[0].Listeners[0].Port != 8081 {
			return fmt.Errorf("balancers: %+v", lb)
		}
		return nil
	})
	east.remove(services[east])
	east.awaitServiceGone(services[east])
	east.awaitNoBalancer(services[east])

	now := west.balancers(services[west])
	require.Len(t, now, 1)
	assert.Equal(t, made[west].Version, now[0].Version, "another cluster's balancer is not touched")
}

// Names are people's: those of the cluster and of a reserved address change while no CCM runs, and
// the next one keeps the balancer and the address that clients know.
func TestNamesThatChangeBetweenTwoLeaders(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testbed.Options{})
	reserve := func(name string) *api.ReservedAddress {
		made, err := w.Cloud().ReserveAddress(w.ctx, api.ReservedAddressCreate{Name: &name})
		require.NoError(t, err)
		return made
	}
	chosen := reserve("web")
	first := w.startCCM(testbed.CCMOptions{})
	w.addNode("node-1")
	svc := service("web", 8080)
	svc.Annotations = map[string]string{"fakecloud.ccmlab.io/address": "web"}
	svc = w.create(svc)
	before := w.awaitTarget(svc)
	require.Equal(t, chosen.IP, before.Address)

	require.NoError(t, first.Kill())
	old := "web-old"
	_, err := w.Cloud().UpdateAddress(w.ctx, chosen.ID, api.ReservedAddressUpdate{Name: &old})
	require.NoError(t, err)
	other := reserve("web")
	w.startCCM(testbed.CCMOptions{ClusterName: w.Name + "-renamed"})
	w.change(svc, func(s *corev1.Service) { s.Spec.Ports[0].Port = 8081 })
	w.await("the change, and the cluster's new name", func() error {
		lb, err := w.Cloud().GetLoadBalancer(w.ctx, before.ID)
		if err != nil || lb.Listeners[0].Port != 8081 || lb.Tags[contract.TagCluster] != w.Name+"-renamed" {
			return fmt.Errorf("balancer %+v: %w", lb, err)
		}
		assert.Equal(t, chosen.IP, lb.Address)
		return nil
	})

	second := service("second", 8082)
	second.Annotations = svc.Annotations
	second = w.create(second)
	assert.Equal(t, other.IP, w.awaitAddress(second, ""), "who comes now gets what the name means now")
	for _, s := range []*corev1.Service{svc, second} {
		w.remove(s)
		w.awaitServiceGone(s)
		w.awaitNoBalancer(s)
	}
}
