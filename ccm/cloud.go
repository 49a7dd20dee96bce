// Package ccm is the cloud provider "fakecloud" for Kubernetes: what k8s.io/cloud-provider's
// controllers call to learn about instances and to have load balancers built. Every method
// observes, compares, acts and returns; waiting is left to the controllers' retries. The
// package knows the cloud by fakecloud/client alone. Begin with NewCommand for the program,
// and with cloud for the interfaces that it implements; README.md says who calls them when.
package ccm

import (
	"context"
	"sync"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	kcache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/klog/v2"

	corev1 "k8s.io/api/core/v1"

	"github.com/ccmlab/ccmlab/ccm/cache"
	"github.com/ccmlab/ccmlab/ccm/calls"
	"github.com/ccmlab/ccmlab/ccm/config"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/ccm/core"
	"github.com/ccmlab/ccmlab/ccm/doubt"
	"github.com/ccmlab/ccmlab/ccm/guard"
)

// cloud is the provider.
type cloud struct {
	checkToken    func(context.Context) error // fails unless the token belongs to our project
	memory        *cache.Cloud                // nil without a cache
	memoryHealth  *jobHealth
	instances     *instances
	guarded       *guard.Instances // instances, of which not too many may be gone at a time
	loadBalancers *loadBalancers
	routes        *routes
	orphanGuard   *guard.Budget // of load balancers without a Service
	explain       *explainer
	identity      *clusterIdentity
	watch         cloudWatch

	initialized, informersSet sync.Once
}

var (
	_ cloudprovider.Interface    = (*cloud)(nil)
	_ cloudprovider.InformerUser = (*cloud)(nil)
)

// newCloud is the provider for the cluster of that name, which upstream tells a provider
// only when it asks for a balancer or a route.
func newCloud(cfg config.Config, cluster string) (*cloud, error) {
	source, err := cfg.Client("ccm/" + binaryVersion())
	if err != nil {
		return nil, err
	}
	memoryHealth := newJobHealth("the cache")
	definite := doubt.Reject(eventRounds{source, memoryHealth}, cfg.Project, cfg.Token)
	explain := newExplainer()
	identity := newClusterIdentity(cluster)
	var api core.Cloud = definite
	var memory *cache.Cloud
	if cfg.Cache {
		memory = cache.New(definite, cache.Options{
			ClusterFilters: identity.tagFilters,
			InCluster:      identity.mayOwn,
			ServiceTag:     contract.TagServiceUID,
			Observe:        calls.CacheQuestion,
		})
		identity.onUIDKnown = memory.RelistCluster
		api = memory
	}
	mass := cfg.MassDeletion
	limits := guard.Limits{Share: mass.Share, Minimum: mass.Minimum, Window: mass.Window.Duration, Hold: mass.Hold.Duration}
	instances := &instances{
		api: api, identity: identity, explain: explain,
		labels: cfg.NodeLabels, addresses: newNodeAddressRules(cfg.NodeAddresses),
	}
	return &cloud{
		checkToken:   definite.CheckToken,
		memory:       memory,
		memoryHealth: memoryHealth,
		instances:    instances,
		guarded:      guard.Limit(instances, limits, explain),
		loadBalancers: &loadBalancers{
			api: api, explain: explain, identity: identity, defaults: cfg.LoadBalancer.Defaults,
		},
		routes: &routes{
			api: api, identity: identity, instances: instances, explain: explain,
			health: newJobHealth("the route controller"),
		},
		orphanGuard: guard.New(guardedOrphans, limits, explain),
		explain:     explain,
		identity:    identity,
	}, nil
}

// Initialize is called by the framework when this process leads. With leader migration it is called for
// each of the two leases, possibly at once; the first call counts.
func (c *cloud) Initialize(builder cloudprovider.ControllerClientBuilder, stop <-chan struct{}) {
	c.initialized.Do(func() { c.initialize(builder, stop) })
}

func (c *cloud) initialize(builder cloudprovider.ControllerClientBuilder, stop <-chan struct{}) {
	broadcaster := record.NewBroadcaster()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{
		Interface: builder.ClientOrDie("fakecloud-events").CoreV1().Events(""),
	})
	c.explain.setRecorder(broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: contract.EventSource}))

	ctx, cancel := context.WithCancel(context.Background())
	c.identity.start(ctx, builder.ClientOrDie("fakecloud-cluster"))
	configMaps := builder.ClientOrDie("fakecloud-guard").CoreV1().ConfigMaps(contract.GuardNamespace)
	for _, budget := range []*guard.Budget{c.guarded.Budget, c.orphanGuard} {
		budget.Keep(configMaps)
		go budget.Run(ctx)
	}
	if c.memory != nil {
		go func() {
			defer c.memoryHealth.end()
			c.memory.Run(calls.For(ctx, calls.Inventory))
		}()
	}
	go func() {
		<-stop
		cancel()
		broadcaster.Shutdown()
	}()
	// Report a wrong token or project at the start. It is no reason to exit or to delay the
	// controllers: the cloud may be down just now, and every call checks again.
	go func() {
		if err := c.checkToken(ctx); err != nil && ctx.Err() == nil {
			klog.ErrorS(err, "The cloud cannot be used yet; every call checks again")
		}
	}()
}

// SetInformers is called after each Initialize, before any controller of that lease starts. They are
// the same informers each time.
func (c *cloud) SetInformers(informers informers.SharedInformerFactory) {
	c.informersSet.Do(func() { c.setInformers(informers) })
}

func (c *cloud) setInformers(informers informers.SharedInformerFactory) {
	core := informers.Core().V1()
	nodes := core.Nodes().Lister()
	c.routes.nodes = nodes
	c.guarded.Follow(nodes, core.Nodes().Informer().HasSynced)
	if err := requestRouteResync(core.Nodes().Informer()); err != nil {
		klog.ErrorS(err, "Changes of routes in the cloud may be noticed late")
	}
	// Whichever controllers run, what was reported of an object is forgotten with it.
	forget := kcache.ResourceEventHandlerFuncs{DeleteFunc: c.explain.forgetObject}
	for _, informer := range []kcache.SharedIndexInformer{core.Nodes().Informer(), core.Services().Informer()} {
		if _, err := informer.AddEventHandler(forget); err != nil {
			klog.ErrorS(err, "Cannot watch deletions: the reported causes of deleted objects stay in memory")
		}
	}
}

func (c *cloud) LoadBalancer() (cloudprovider.LoadBalancer, bool) { return c.loadBalancers, true }
func (c *cloud) InstancesV2() (cloudprovider.InstancesV2, bool)   { return c.guarded, true }
func (c *cloud) Routes() (cloudprovider.Routes, bool)             { return c.routes, true }
func (c *cloud) ProviderName() string                             { return contract.ProviderName }

// HasClusterID is true: balancers and routes carry the cluster's name (--cluster-name) in a
// tag, and those without it are never touched.
func (c *cloud) HasClusterID() bool { return true }

// Instances and Zones are the deprecated forms of InstancesV2. The controllers do not call
// them when InstancesV2 is there.
func (c *cloud) Instances() (cloudprovider.Instances, bool) { return nil, false }
func (c *cloud) Zones() (cloudprovider.Zones, bool)         { return nil, false }

// Clusters is called by no controller of k8s.io/cloud-provider.
func (c *cloud) Clusters() (cloudprovider.Clusters, bool) { return nil, false }
