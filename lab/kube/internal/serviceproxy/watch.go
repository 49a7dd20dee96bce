package serviceproxy

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/proxy/apis"
	"k8s.io/kubernetes/pkg/proxy/config"
)

// Run watches Services and EndpointSlices, and forwards, until ctx is done. The selectors are
// kube-proxy's (cmd/kube-proxy/app/server.go, ProxyServer.Run): they leave out headless Services
// and those of another proxy.
func (p *Proxy) Run(ctx context.Context, client kubernetes.Interface) {
	services := informers.NewSharedInformerFactoryWithOptions(client, 0,
		informers.WithTransform(withoutManagedFields),
		informers.WithTweakListOptions(func(options *metav1.ListOptions) {
			options.LabelSelector = "!" + apis.LabelServiceProxyName
			options.FieldSelector = fields.OneTermNotEqualSelector("spec.clusterIP", v1.ClusterIPNone).String()
		}))
	slices := informers.NewSharedInformerFactoryWithOptions(client, 0,
		informers.WithTransform(withoutManagedFields),
		informers.WithTweakListOptions(func(options *metav1.ListOptions) {
			options.LabelSelector = "!" + v1.IsHeadlessService
		}))

	serviceConfig := config.NewServiceConfig(ctx, services.Core().V1().Services(), 0)
	serviceConfig.RegisterEventHandler(p)
	sliceConfig := config.NewEndpointSliceConfig(ctx, slices.Discovery().V1().EndpointSlices(), 0)
	sliceConfig.RegisterEventHandler(p)
	go serviceConfig.Run(ctx.Done())
	go sliceConfig.Run(ctx.Done())
	services.Start(ctx.Done())
	slices.Start(ctx.Done())
	p.Sync(ctx)
}

// withoutManagedFields is an informer's transform that saves memory.
func withoutManagedFields(object any) (any, error) {
	if accessor, err := meta.Accessor(object); err == nil {
		accessor.SetManagedFields(nil)
	}
	return object, nil
}
