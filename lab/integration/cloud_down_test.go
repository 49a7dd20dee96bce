package integration

// A cloud that is not there, or asks everybody to stay away: nothing is lost
// meanwhile, and everything comes to be afterwards.

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab/testbed"
)

// outage is how long the cloud is down.
const outage = time.Minute

func TestTheCloudIsDownForAMinute(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testbed.Options{})
	w.startCCM(testbed.CCMOptions{})
	w.addNode("node-1")
	w.addNode("node-2")
	services := map[string]*corev1.Service{}
	for i, name := range []string{"kept", "deleted", "retyped", "changed"} {
		services[name] = w.create(service(name, int32(8080+i)))
		w.awaitAddress(services[name], "")
	}

	require.NoError(t, w.StopCloud(w.ctx))
	back := time.NewTimer(outage)
	defer back.Stop()
	require.NoError(t, w.SetReady(w.ctx, corev1.ConditionUnknown, "node-1"))
	require.NoError(t, w.RegisterNodes(w.ctx, nil, "node-3"))
	w.remove(services["deleted"])
	w.change(services["retyped"], func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP })
	w.change(services["changed"], func(s *corev1.Service) { s.Spec.Ports[0].Port = 9090 })
	// A name in Kubernetes is for life: to rename is to delete and to create.
	services["renamed"] = w.create(service("renamed", 8081))
	w.awaitEvent(w.nodeUID("node-3"), contract.ReasonCloudUnavailable)
	w.awaitEvent(string(services["renamed"].UID), contract.ReasonCloudUnavailable)
	<-back.C
	w.nodeExists("node-1")
	w.nodeExists("node-2")
	assert.NotEmpty(t, w.get(services["kept"]).Status.LoadBalancer.Ingress, "an address is not taken back")
	assert.Contains(
		t, w.get(services["deleted"]).Finalizers, "service.kubernetes.io/load-balancer-cleanup",
		"a Service waits for its balancer's end",
	)

	require.NoError(t, w.StartCloud(w.ctx))
	_, err := w.CreateInstances(w.ctx, "node-3")
	require.NoError(t, err)
	w.awaitInitialized("node-3")
	w.nodeExists("node-1")
	w.awaitServiceGone(services["deleted"])
	w.awaitNoBalancer(services["deleted"])
	w.awaitNoBalancer(services["retyped"])
	w.awaitAddress(services["renamed"], "")
	w.await("the changed port", func() error {
		lb := w.balancers(services["changed"])
		if len(lb) != 1 || lb[0].Listeners[0].Port != 9090 {
			return fmt.Errorf("balancers: %+v", lb)
		}
		return nil
	})
	assert.Len(t, w.balancers(services["kept"]), 1)
	assert.Equal(t, []string{}, w.strangers(services), "nothing is left of anybody")
}

// strangers are balancers of the project that belong to none of the Services.
func (w *world) strangers(services map[string]*corev1.Service) []string {
	w.t.Helper()
	all, err := w.Cloud().ListLoadBalancers(w.ctx, client.LoadBalancerFilter{})
	require.NoError(w.t, err)
	left := []string{}
	for _, lb := range all {
		known := false
		for _, svc := range services {
			known = known || lb.Tags[contract.TagServiceUID] == string(svc.UID)
		}
		if !known {
			left = append(left, lb.Name)
		}
	}
	return left
}

// During a storm of 429s the CCM stays away for as long as it is told.
func TestAStormOf429s(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testbed.Options{})
	ccm := w.startCCM(testbed.CCMOptions{})
	w.addNode("node-1")
	id, lift := w.fault(api.FaultCreate{Effect: api.FaultEffect{Status: 429, RetryAfterSeconds: 5}})
	_, err := w.CreateInstances(w.ctx, "node-2")
	require.NoError(t, err)
	svc := w.create(service("web", 8080))
	require.NoError(t, w.SetReady(w.ctx, corev1.ConditionUnknown, "node-1"))
	w.awaitEvent(string(svc.UID), contract.ReasonCloudThrottled)
	w.awaitHits(id, 3)
	w.nodeExists("node-1")

	f, err := w.Cloud().GetFault(w.ctx, id)
	require.NoError(t, err)
	// Each 429 buys five seconds of peace, but for calls that were under way.
	lived := time.Since(f.CreatedAt)
	assert.LessOrEqual(t, f.Hits, 4*(1+int(lived/(5*time.Second))), "429s in %s", lived)
	throttled, found, err := ccm.Metric(w.ctx, "fakecloud_ccm_cloud_throttles_total", map[string]string{"by": "cloud"})
	require.NoError(t, err)
	assert.True(t, found && throttled > 0, "the metrics tell of it")

	lift()
	w.awaitAddress(svc, "")
	require.NoError(t, w.RegisterNodes(w.ctx, nil, "node-2"))
	w.awaitInitialized("node-2")
	w.nodeExists("node-1")
}
