package testbed_test

// The CCM's cloud watch, between a genuine API server and a cloud: what happens
// in the cloud, and nobody tells the cluster of.

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/testbed"
)

// told awaits Events of that reason on an object, and returns how many.
func told(ctx context.Context, t *testing.T, bed *testbed.Bed, kind, name, reason string) (times int) {
	t.Helper()
	require.NoError(t, cluster.Poll(ctx, reason+" on "+kind+" "+name, func(ctx context.Context) error {
		all, err := bed.Admin().CoreV1().Events("").List(ctx, metav1.ListOptions{
			FieldSelector: fmt.Sprintf("involvedObject.kind=%s,involvedObject.name=%s,reason=%s", kind, name, reason),
		})
		if err != nil {
			return err
		}
		times = 0
		for _, e := range all.Items {
			times += int(max(e.Count, 1))
		}
		if times == 0 {
			return errors.New("no such event")
		}
		return nil
	}))
	return times
}

func TestCloudWatchOnNodes(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	bed := testbed.ForTest(t, testbed.Options{})
	made, err := bed.CreateInstances(ctx, "node-1", "node-2")
	require.NoError(t, err)
	require.NoError(t, bed.RegisterNodes(ctx, nil, "node-1", "node-2", "node-late"))
	_, err = bed.StartCCM(ctx, testbed.CCMOptions{})
	require.NoError(t, err)
	initialised(ctx, t, bed, "node-1")
	initialised(ctx, t, bed, "node-2")

	t.Run("an instance that is stopped is told of while its Node is Ready", func(t *testing.T) {
		_, err := bed.Cloud().StopInstance(ctx, made[1].ID)
		require.NoError(t, err)
		assert.Equal(t, 1, told(ctx, t, bed, "Node", "node-2", "InstanceStopped"))
	})
	t.Run("a Node whose instance is terminated goes while it is Ready", func(t *testing.T) {
		_, err := bed.Cloud().TerminateInstance(ctx, made[0].ID)
		require.NoError(t, err)
		began := time.Now()
		require.NoError(t, cluster.Poll(ctx, "node-1 to go", func(ctx context.Context) error {
			_, err := bed.Admin().CoreV1().Nodes().Get(ctx, "node-1", metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return fmt.Errorf("it is there (%w)", err)
		}))
		t.Logf("gone after %v", time.Since(began))
		assert.Equal(t, 1, told(ctx, t, bed, "Node", "node-1", "NodeRemoved"))
	})
	t.Run("a Node whose instance comes late is prompted", func(t *testing.T) {
		assert.Equal(t, 1, told(ctx, t, bed, "Node", "node-late", "InstanceNotFound"), "once, not per retry")
		_, err := bed.CreateInstances(ctx, "node-late")
		require.NoError(t, err)
		began := time.Now()
		initialised(ctx, t, bed, "node-late")
		t.Logf("initialised after %v", time.Since(began))
	})
}

func TestCloudWatchOnServices(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	bed := testbed.ForTest(t, testbed.Options{})
	_, err := bed.CreateInstances(ctx, "node-1")
	require.NoError(t, err)
	require.NoError(t, bed.RegisterNodes(ctx, nil, "node-1"))
	system, err := bed.Admin().CoreV1().Namespaces().Get(ctx, "kube-system", metav1.GetOptions{})
	require.NoError(t, err)
	ccm, err := bed.StartCCM(ctx, testbed.CCMOptions{})
	require.NoError(t, err)
	initialised(ctx, t, bed, "node-1")

	// Leaked ones first: they take half a minute of suspicion.
	leak := func(name string, tags api.Tags) string {
		tags[testbed.TagCluster], tags["kubernetes-service-uid"], tags["kubernetes-service"] = bed.Name, "no-such-"+name, "default/"+name
		lb, err := bed.Cloud().CreateLoadBalancer(ctx, api.LoadBalancerCreate{
			Name: name, Listeners: api.Listeners{{Protocol: api.ProtocolTCP, Port: 9000, TargetPort: 9000}}, Tags: &tags,
		})
		require.NoError(t, err)
		return lb.ID
	}
	ours := leak("ours", api.Tags{"kubernetes-cluster-uid": string(system.UID)})
	theirs := leak("theirs", api.Tags{"kubernetes-cluster-uid": "another"})
	unknown := leak("unknown", api.Tags{})

	svc, err := bed.Admin().CoreV1().Services("default").Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Annotations: map[string]string{"team": "blue"}},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 8080}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	// balancer awaits one balancer of the Service, with a target, that the
	// Service names.
	balancer := func(t *testing.T, not string) (lb api.LoadBalancer) {
		t.Helper()
		require.NoError(t, cluster.Poll(ctx, "a balancer with a target", func(ctx context.Context) error {
			found, err := bed.Cloud().ListLoadBalancers(ctx, client.LoadBalancerFilter{Tags: []string{"kubernetes-service-uid=" + string(svc.UID)}})
			if err != nil || len(found) != 1 {
				return fmt.Errorf("%d balancers (%w)", len(found), err)
			}
			lb = found[0]
			now, err := bed.Admin().CoreV1().Services("default").Get(ctx, "web", metav1.GetOptions{})
			if err != nil {
				return err
			}
			if lb.ID == not || len(lb.Targets) != 1 || len(now.Status.LoadBalancer.Ingress) != 1 || now.Status.LoadBalancer.Ingress[0].IP != lb.Address {
				return fmt.Errorf("%+v, and the Service names %+v", lb, now.Status.LoadBalancer)
			}
			assert.Equal(t, "blue", now.Annotations["team"])
			return nil
		}))
		return lb
	}
	// repaired awaits that so many repairs are counted.
	repaired := func(t *testing.T, want float64) {
		t.Helper()
		require.NoError(t, cluster.Poll(ctx, "a repair to be counted", func(ctx context.Context) error {
			n, _, err := ccm.Metric(ctx, "fakecloud_ccm_load_balancer_repairs_total", nil)
			if err == nil && n != want {
				err = fmt.Errorf("%v repairs", n)
			}
			return err
		}))
	}
	first := balancer(t, "")
	told(ctx, t, bed, "Service", "web", "EnsuredLoadBalancer")

	t.Run("targets that were taken out come back", func(t *testing.T) {
		_, err := bed.Cloud().UpdateLoadBalancer(ctx, first.ID, api.LoadBalancerUpdate{Targets: &api.Targets{}})
		require.NoError(t, err)
		began := time.Now()
		assert.Equal(t, first.ID, balancer(t, "").ID)
		t.Logf("repaired after %v", time.Since(began))
		repaired(t, 1)
	})
	t.Run("a balancer that was deleted is replaced", func(t *testing.T) {
		_, err := bed.Cloud().DeleteLoadBalancer(ctx, first.ID)
		require.NoError(t, err)
		began := time.Now()
		balancer(t, first.ID)
		t.Logf("repaired after %v", time.Since(began))
		repaired(t, 2)
		told(ctx, t, bed, "Service", "web", "LoadBalancerRepaired")
	})
	t.Run("a balancer without a Service goes, if it is this cluster's", func(t *testing.T) {
		require.NoError(t, cluster.Poll(ctx, "the leaked balancer to go", func(ctx context.Context) error {
			lb, err := bed.Cloud().GetLoadBalancer(ctx, ours)
			if client.IsNotFound(err) || err == nil && lb.State == api.LoadBalancerDeleting {
				return nil
			}
			return fmt.Errorf("it is there (%w)", err)
		}))
		for _, id := range []string{theirs, unknown} {
			lb, err := bed.Cloud().GetLoadBalancer(ctx, id)
			require.NoError(t, err)
			assert.NotEqual(t, api.LoadBalancerDeleting, lb.State)
		}
	})
}
