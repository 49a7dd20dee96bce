package calls

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/names"

	"github.com/ccmlab/ccmlab/ccm/core"
	"github.com/ccmlab/ccmlab/ccm/ring"
)

// Each call is charged to the controller of upstream that makes it. What the cloud watch calls is charged to it.
func TestCharge(t *testing.T) {
	var charged string
	inner := core.Provider{Instances: struct{ core.Instances }{}} // Its methods are looked up, and not called.
	p := Charge(ring.Wrap(inner, func(ctx context.Context, _ ring.Call, _ func(context.Context) error) error {
		charged = Controller(ctx)
		return nil
	}))
	for want, calls := range map[string][]func(context.Context){
		names.CloudNodeController: {func(ctx context.Context) { _, _ = p.Instances.InstanceMetadata(ctx, &corev1.Node{}) }},
		names.CloudNodeLifecycleController: {
			func(ctx context.Context) { _, _ = p.Instances.InstanceExists(ctx, &corev1.Node{}) },
			func(ctx context.Context) { _, _ = p.Instances.InstanceShutdown(ctx, &corev1.Node{}) },
		},
		names.ServiceLBController: {
			func(ctx context.Context) { _, _, _ = p.LoadBalancers.GetLoadBalancer(ctx, "", &corev1.Service{}) },
			func(ctx context.Context) { _ = p.LoadBalancers.EnsureLoadBalancerDeleted(ctx, "", &corev1.Service{}) },
		},
		names.NodeRouteController: {
			func(ctx context.Context) { _, _ = p.Routes.ListRoutes(ctx, "") },
			func(ctx context.Context) { _ = p.Routes.CreateRoute(ctx, "", "", &cloudprovider.Route{}) },
		},
	} {
		for _, call := range calls {
			call(t.Context())
			assert.Equal(t, want, charged)
			call(For(t.Context(), CloudWatch))
			assert.Equal(t, CloudWatch, charged)
		}
	}
}
