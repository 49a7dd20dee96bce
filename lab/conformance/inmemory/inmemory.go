// Package inmemory is an example of how to write a driver and a CCM for the suite:
// a cloud whose instances and balancers are records. Nothing runs, nothing flows.
//
// In what the suite leaves to each cloud it differs from the lab's own: a Node is called as its
// instance's ID and is known by the provider ID that its kubelet was given, which names no scheme;
// balancers send to no node ports, keep clients or not without a time, and are refused without a
// Node to send to.
package inmemory

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/controllers/node"
	"k8s.io/cloud-provider/controllers/nodelifecycle"
	"k8s.io/cloud-provider/controllers/service"
	"k8s.io/component-base/featuregate"
	controllersmetrics "k8s.io/component-base/metrics/prometheus/controllers"

	"github.com/ccmlab/ccmlab/lab/conformance"
)

// New is an empty cloud, and a CCM for it that runs in this process.
func New(cluster *rest.Config) conformance.Implementation {
	c := &cloud{instances: map[string]instance{}, balancers: map[string]conformance.Balancer{}}
	return conformance.Implementation{
		Name: "inmemory", Cloud: c, Attempts: 1, // No call ever gets lost.
		CCM: &ccm{cloud: c, cluster: cluster, connect: func(c *rest.Config) (kubernetes.Interface, error) {
			return kubernetes.NewForConfig(c)
		}},
		Claims: []conformance.Capability{
			conformance.CapabilityForeignNodes, conformance.CapabilityProvidedIP, conformance.CapabilityUDP,
			conformance.CapabilityAffinity, conformance.CapabilityDrift, conformance.CapabilityWaitingNodes,
			conformance.CapabilityDuplicateNodes, conformance.CapabilityExclusionValue,
		},
		Unsupported: conformance.Unsupported{
			string(
				conformance.CapabilityRepair,
			): "upstream's service controller looks again only when a Service or a Node changes",
			string(
				conformance.CapabilityExplains,
			): "upstream's node controller writes no Event about a Node that waits",

			string(conformance.CapabilityOrphans): "upstream's service controller looks at Services, and never at balancers",

			string(conformance.CapabilityHA): "there is one, in this process, and it needs no Lease",

			string(
				conformance.CapabilityPromptInitialization,
			): "upstream's node controller tries again when its back-off ends",
			string(
				conformance.CapabilityPromptRemoval,
			): "upstream's node lifecycle controller looks at Nodes that are not Ready",
		},
	}
}

// The driver: a conformance.Cloud.
type cloud struct {
	mu        sync.Mutex
	hosts     int // given addresses so far
	instances map[string]instance
	balancers map[string]conformance.Balancer
}

type instance struct {
	conformance.Instance
	state string
}

// States of instances.
const running, stopped, ended = "running", "stopped", "ended"

func (c *cloud) Features() []conformance.Feature {
	return []conformance.Feature{
		conformance.FeatureKubeletProviderIDs, conformance.FeatureZones, conformance.FeatureInstanceTypes,
		conformance.FeatureSeveralAddresses, conformance.FeatureListeners, conformance.FeatureTargets,
		conformance.FeatureUDP, conformance.FeatureAffinity,
	}
}

// instanceID is how IDs of instances begin, and so their provider IDs.
const instanceID = "i-"

func (c *cloud) lock() (unlock func()) { c.mu.Lock(); return c.mu.Unlock }

// newID gives out an ID, and the end of addresses in networks that nobody else is in.
func (c *cloud) newID(kind string) (id, host string) {
	c.hosts++
	return kind + rand.String(10), fmt.Sprintf("%d.%d", c.hosts/250, c.hosts%250+1)
}

func (c *cloud) CreateInstance(_ context.Context, spec conformance.InstanceSpec) (conformance.Instance, error) {
	defer c.lock()()
	id, host := c.newID(instanceID)
	i := conformance.Instance{
		ID: id, Name: spec.Name, NodeName: id, ProviderID: id, Type: "record", Zone: "memory-a", Region: "memory",
	}
	i.InternalIPs, i.ExternalIPs = []string{"100.64." + host, "100.65." + host}, []string{"198.18." + host}
	c.instances[id] = instance{i, running}
	return i, nil
}

func (c *cloud) StartInstance(_ context.Context, id string) error     { return c.setState(id, running) }
func (c *cloud) StopInstance(_ context.Context, id string) error      { return c.setState(id, stopped) }
func (c *cloud) TerminateInstance(_ context.Context, id string) error { return c.setState(id, ended) }

func (c *cloud) setState(id, state string) error {
	defer c.lock()()
	i, found := c.instances[id]
	if !found || i.state == ended && state != ended {
		return fmt.Errorf("instance %s cannot be %s: it is not there, or no more", id, state)
	}
	c.instances[id] = instance{i.Instance, state}
	return nil
}

// ChangeAddresses implements conformance.AddressChanger.
func (c *cloud) ChangeAddresses(_ context.Context, id string) (conformance.Instance, error) {
	defer c.lock()()
	i, found := c.instances[id]
	if !found {
		return conformance.Instance{}, fmt.Errorf("there is no instance %s", id)
	}
	_, host := c.newID("")
	i.ExternalIPs = []string{"198.18." + host}
	c.instances[id] = i
	return i.Instance, nil
}

func (c *cloud) ListBalancers(context.Context) ([]conformance.Balancer, error) {
	defer c.lock()()
	return slices.Collect(maps.Values(c.balancers)), nil
}

func (c *cloud) GetBalancer(_ context.Context, id string) (conformance.Balancer, bool, error) {
	defer c.lock()()
	b, found := c.balancers[id]
	return b, found, nil
}

func (c *cloud) DeleteBalancer(_ context.Context, id string) error {
	defer c.lock()()
	delete(c.balancers, id)
	return nil
}

// What a CCM author writes: a cloudprovider.Interface.
type provider struct {
	cloud *cloud
	gate  *callGate
}

func (p *provider) Initialize(cloudprovider.ControllerClientBuilder, <-chan struct{}) {}
func (p *provider) ProviderName() string                                              { return "inmemory" }
func (p *provider) HasClusterID() bool                                                { return true }
func (p *provider) InstancesV2() (cloudprovider.InstancesV2, bool)                    { return p, true }
func (p *provider) LoadBalancer() (cloudprovider.LoadBalancer, bool)                  { return p, true }
func (p *provider) Instances() (cloudprovider.Instances, bool)                        { return nil, false }
func (p *provider) Zones() (cloudprovider.Zones, bool)                                { return nil, false }
func (p *provider) Clusters() (cloudprovider.Clusters, bool)                          { return nil, false }
func (p *provider) Routes() (cloudprovider.Routes, bool)                              { return nil, false }

// findInstance is the Node's. Doubt is an error: upon "not found" the Node is deleted.
func (p *provider) findInstance(node *corev1.Node) (_ instance, found bool, err error) {
	id := node.Spec.ProviderID
	if !isOwnID(id) {
		return instance{}, false, fmt.Errorf(
			"provider ID %q of Node %s is none of this cloud's: they begin with %s", id, node.Name, instanceID,
		)
	}
	defer p.cloud.lock()()
	i := p.cloud.instances[id]
	return i, i.ID != "" && i.state != ended, nil
}

// isOwnID tells whether a Node's provider ID is an instance's of this cloud.
func isOwnID(providerID string) bool { return strings.HasPrefix(providerID, instanceID) }

func (p *provider) InstanceExists(_ context.Context, node *corev1.Node) (bool, error) {
	_, found, err := p.findInstance(node)
	return found, err
}

func (p *provider) InstanceShutdown(_ context.Context, node *corev1.Node) (bool, error) {
	i, _, err := p.findInstance(node)
	return i.state == stopped, err
}

func (p *provider) InstanceMetadata(_ context.Context, node *corev1.Node) (*cloudprovider.InstanceMetadata, error) {
	i, found, err := p.findInstance(node)
	if err == nil && !found {
		err = cloudprovider.InstanceNotFound
	}
	m := &cloudprovider.InstanceMetadata{ProviderID: i.ProviderID, InstanceType: i.Type, Zone: i.Zone, Region: i.Region}
	for of, ips := range map[corev1.NodeAddressType][]string{
		corev1.NodeInternalIP: i.InternalIPs, corev1.NodeExternalIP: i.ExternalIPs,
	} {
		for _, ip := range ips {
			m.NodeAddresses = append(m.NodeAddresses, corev1.NodeAddress{Type: of, Address: ip})
		}
	}
	return m, err
}

// editBalancer changes a Service's balancer, known by the Service's UID. If there is none,
// it makes one of this name; if there is no name either, the answer has no ID.
func (p *provider) editBalancer(
	svc *corev1.Service,
	name string,
	change func(*conformance.Balancer),
) (b conformance.Balancer, err error) {
	err = p.gate.passThrough(func() error {
		defer p.cloud.lock()()
		for _, have := range p.cloud.balancers {
			if have.Service == svc.UID {
				b = have
			}
		}
		if b.ID == "" && name != "" {
			id, host := p.cloud.newID("lb-")
			b = conformance.Balancer{ID: id, Name: name, Service: svc.UID, Address: "198.18." + host, Active: true}
		}
		if b.ID != "" {
			change(&b)
			p.cloud.balancers[b.ID] = b
		}
		return nil
	})
	return b, err
}

func (p *provider) GetLoadBalancerName(_ context.Context, _ string, svc *corev1.Service) string {
	return cloudprovider.DefaultLoadBalancerName(svc)
}

func (p *provider) GetLoadBalancer(
	_ context.Context,
	_ string,
	svc *corev1.Service,
) (*corev1.LoadBalancerStatus, bool, error) {
	b, err := p.editBalancer(svc, "", func(*conformance.Balancer) {})
	return &corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: b.Address}}}, b.ID != "", err
}

func (p *provider) EnsureLoadBalancer(
	ctx context.Context,
	cluster string,
	svc *corev1.Service,
	nodes []*corev1.Node,
) (*corev1.LoadBalancerStatus, error) {
	if len(targetIDs(nodes)) == 0 {
		return nil, fmt.Errorf("there is no Node to which a balancer of Service %s could send", svc.Name)
	}
	b, err := p.editBalancer(svc, p.GetLoadBalancerName(ctx, cluster, svc), func(b *conformance.Balancer) {
		b.Targets, b.Listeners = targetIDs(nodes), nil
		b.Affinity = svc.Spec.SessionAffinity == corev1.ServiceAffinityClientIP
		for _, port := range svc.Spec.Ports {
			b.Listeners = append(b.Listeners, conformance.Listener{Protocol: string(port.Protocol), Port: port.Port})
		}
	})
	return &corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: b.Address}}}, err
}

func (p *provider) UpdateLoadBalancer(_ context.Context, _ string, svc *corev1.Service, nodes []*corev1.Node) error {
	// Makes none: the Service may be going.
	_, err := p.editBalancer(svc, "", func(b *conformance.Balancer) { b.Targets = targetIDs(nodes) })
	return err
}

func (p *provider) EnsureLoadBalancerDeleted(ctx context.Context, _ string, svc *corev1.Service) error {
	b, _ := p.editBalancer(svc, "", func(*conformance.Balancer) {})
	return p.gate.passThrough(func() error { return p.cloud.DeleteBalancer(ctx, b.ID) })
}

// targetIDs leaves out Nodes of other clouds and those without provider ID, and has an instance once.
func targetIDs(nodes []*corev1.Node) (ids []string) {
	for _, node := range nodes {
		if id := node.Spec.ProviderID; isOwnID(id) && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// A conformance.CCM: upstream's controllers on the provider. There is only one, so
// it needs no leader election. It logs to klog, and cannot crash without the suite.
type ccm struct {
	cloud   *cloud
	cluster *rest.Config
	connect func(*rest.Config) (kubernetes.Interface, error)
	stop    func() // nil while it does not run
}

func (c *ccm) Crashed() <-chan struct{} { return nil }
func (c *ccm) Log(int) []string         { return nil }

func (c *ccm) Start(context.Context) error {
	if c.stop != nil {
		return nil
	}
	g, cfg := &callGate{}, rest.CopyConfig(c.cluster)
	cfg.QPS = -1 // The API server has its own fairness.
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { g.next = next; return g })
	client, err := c.connect(cfg)
	const period, workers = time.Second, 4
	p, factory := &provider{c.cloud, g}, informers.NewSharedInformerFactory(client, 0)
	nodes, services := factory.Core().V1().Nodes(), factory.Core().V1().Services()
	initializer, err1 := node.NewCloudNodeController(nodes, client, p, period, workers, workers)
	lifecycle, err2 := nodelifecycle.NewCloudNodeLifecycleController(nodes, client, p, period)
	balancing, err3 := service.New(p, client, services, nodes, p.ProviderName(), featuregate.NewFeatureGate())
	if err := errors.Join(err, err1, err2, err3); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	metrics := controllersmetrics.NewControllerManagerMetrics(p.ProviderName())
	var all sync.WaitGroup
	all.Go(func() { initializer.RunWithContext(ctx, metrics) })
	all.Go(func() { lifecycle.Run(ctx, metrics) })
	all.Go(func() { balancing.Run(ctx, workers, metrics) })
	factory.StartWithContext(ctx)
	c.stop = func() { c.stop = nil; cancel(); g.shut(); all.Wait(); factory.Shutdown() }
	return nil
}

func (c *ccm) Stop(context.Context) error {
	if c.stop != nil {
		c.stop()
	}
	return nil
}

// callGate is what the CCM acts through: upstream's controllers end before their workers
// do. Once it is shut, nothing is under way, and nothing more gets done.
type callGate struct {
	sync.RWMutex
	closed bool
	next   http.RoundTripper
}

func (c *callGate) shut() { c.Lock(); defer c.Unlock(); c.closed = true }

func (c *callGate) passThrough(act func() error) error {
	c.RLock()
	defer c.RUnlock()
	if c.closed {
		return errors.New("the CCM has been stopped")
	}
	return act()
}

func (c *callGate) RoundTrip(req *http.Request) (resp *http.Response, err error) {
	err = c.passThrough(func() (err error) { resp, err = c.next.RoundTrip(req); return err }) //nolint:bodyclose // The client closes it.
	return resp, err
}
