// Package ccm is the cloud provider "fakecloud" for Kubernetes, and the program around it. What it answers to
// k8s.io/cloud-provider's controllers is in package core; each other package is a ring around that, which newCloud puts
// on by a line. Begin with newCloud; README.md says who calls what when.
package ccm

import (
	"context"
	"sync"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
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
	"github.com/ccmlab/ccmlab/ccm/events"
	"github.com/ccmlab/ccmlab/ccm/guard"
	"github.com/ccmlab/ccmlab/ccm/identity"
	"github.com/ccmlab/ccmlab/ccm/watch"
)

// cloud is the provider: the model in package core, and the rings around it.
type cloud struct {
	cluster  *core.Cluster
	identity *identity.Identity
	doubt    *doubt.Cloud
	memory   *cache.Cloud // nil without a cache, as is watch
	watch    *watch.Watch
	nodes    *guard.Instances // limits how many Nodes may go
	orphans  *guard.Budget    // limits how many balancers without a Service may go
	events   *events.Explainer
	provider core.Provider

	initialized, informersSet sync.Once
}

var (
	_ cloudprovider.Interface    = (*cloud)(nil)
	_ cloudprovider.InformerUser = (*cloud)(nil)
)

// newCloud is the provider for the cluster of that name, which upstream tells a provider only when it asks for a
// balancer or a route. Each ring is put on by a line.
func newCloud(cfg config.Config, cluster string) (*cloud, error) {
	client, err := cfg.Client("ccm/"+binaryVersion(), calls.Wrap(cfg.QPS, cfg.Burst))
	if err != nil {
		return nil, err
	}
	c := &cloud{cluster: core.NewCluster(cluster), events: events.New()}
	c.identity = identity.Read(c.cluster)
	c.doubt = doubt.Reject(client, cfg.Project, cfg.Token)
	c.orphans = guard.New(watch.GuardedOrphans, cfg.MassDeletion, c.events)

	var cloud core.Cloud = c.doubt
	if cfg.Cache {
		c.watch = watch.New(c.cluster, c.events, c.orphans)
		c.memory = newMemory(c.doubt, c.cluster)
		cloud = c.watch.Note(c.memory)
	}
	provider := core.New(cloud, c.cluster, core.Options{
		Labels: cfg.NodeLabels, Addresses: cfg.NodeAddresses, Defaults: cfg.LoadBalancer.Defaults,
	})
	c.nodes = guard.Limit(provider.Instances, cfg.MassDeletion, c.events)
	provider.Instances = c.nodes
	provider = c.events.Explain(provider)
	if c.watch != nil {
		provider = c.watch.Follow(provider, c.memory)
	}
	c.provider = calls.Charge(provider)
	return c, nil
}

// newMemory makes a cache of what the cluster has in the cloud.
func newMemory(source cache.Source, cluster *core.Cluster) *cache.Cloud {
	memory := cache.New(source, cache.Options{
		ClusterFilters: cluster.TagFilters,
		InCluster:      cluster.MayOwn,
		ServiceTag:     contract.TagServiceUID,
		Observe:        calls.CacheQuestion,
	})
	cluster.OnUIDKnown(memory.RelistCluster)
	return memory
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
	c.events.SetRecorder(broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: contract.EventSource}))

	ctx, cancel := context.WithCancel(context.Background())
	c.identity.Start(ctx, builder.ClientOrDie("fakecloud-cluster"))
	configMaps := builder.ClientOrDie("fakecloud-guard").CoreV1().ConfigMaps(contract.GuardNamespace)
	for _, budget := range []*guard.Budget{c.nodes.Budget, c.orphans} {
		budget.Start(ctx, configMaps)
	}
	if c.watch != nil {
		go c.memory.Run(calls.For(ctx, calls.Inventory))
	}
	go func() {
		<-stop
		cancel()
		broadcaster.Shutdown()
	}()
	// Report a wrong token or project at the start. It is no reason to exit or to delay the
	// controllers: the cloud may be down just now, and every call checks again.
	go func() {
		if err := c.doubt.CheckToken(ctx); err != nil && ctx.Err() == nil {
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
	nodes := informers.Core().V1().Nodes()
	c.provider.Routes.Follow(nodes.Lister())
	c.nodes.Follow(nodes.Lister(), nodes.Informer().HasSynced)
	c.events.Follow(informers)
	if c.watch != nil {
		c.watch.SetInformers(informers)
	}
}

// CloudWatch is the controller beside upstream's; nil for none.
func (c *cloud) CloudWatch() *watch.Watch { return c.watch }

func (c *cloud) LoadBalancer() (cloudprovider.LoadBalancer, bool) {
	return c.provider.LoadBalancers, true
}
func (c *cloud) InstancesV2() (cloudprovider.InstancesV2, bool) { return c.provider.Instances, true }
func (c *cloud) Routes() (cloudprovider.Routes, bool)           { return c.provider.Routes, true }
func (c *cloud) ProviderName() string                           { return contract.ProviderName }

// HasClusterID is true: balancers and routes carry the cluster's name (--cluster-name) in a
// tag, and those without it are never touched.
func (c *cloud) HasClusterID() bool { return true }

// Instances and Zones are the deprecated forms of InstancesV2. The controllers do not call
// them when InstancesV2 is there.
func (c *cloud) Instances() (cloudprovider.Instances, bool) { return nil, false }
func (c *cloud) Zones() (cloudprovider.Zones, bool)         { return nil, false }

// Clusters is called by no controller of k8s.io/cloud-provider.
func (c *cloud) Clusters() (cloudprovider.Clusters, bool) { return nil, false }
