package conformance

// Many Nodes at little cost. They are made side by side, seen through one watch and kept alive by
// one loop that renews their leases, where each StandIn has a loop of its own.

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	cloudproviderapi "k8s.io/cloud-provider/api"

	"github.com/ccmlab/ccmlab/lab/fakekubelet"
	"github.com/ccmlab/ccmlab/lab/kubediff"
	"github.com/ccmlab/ccmlab/lab/labels"
)

// fleetConcurrency is how many objects of a fleet are made, changed or deleted side by side.
const fleetConcurrency = 4

// maxUninitialized is how many Nodes wait for the CCM at a time: on any machine, it is
// the CCM that is busy then, and not the cluster.
const maxUninitialized = 16

// cleanupBatch is how many objects are deleted in one step of cleaning up.
const cleanupBatch = 200

// fleetRenewalPeriod is how long a round of renewals takes, at least: well within the
// shortest grace period that a lab's kube-controller-manager is given.
const fleetRenewalPeriod = 4 * time.Second

// NodeFleet is many Nodes with their instances. All may be targets of balancers.
type NodeFleet struct {
	// Names are those of the Nodes.
	Names []string

	t              *T
	name           string
	instances      []Instance
	slots          chan struct{} // taken by Nodes that wait for the CCM
	allInitialized chan struct{} // closed when none waits any more
	kubelets       *fakekubelet.Kubelets

	mu          sync.Mutex
	initialized map[string]bool
	routed      map[string]bool // the Nodes of which a route controller says that they have a route
	lost        map[string]bool // the Nodes that are not Ready
	lostCount   int             // how often one was seen to become so
}

// NewNodeFleet creates the instances, and no Node yet. After the test all of it is
// deleted, and the next test begins when cluster and CCM have processed that.
func (t *T) NewNodeFleet(size int) *NodeFleet {
	f := &NodeFleet{
		t: t, name: t.Name("crowd"), slots: make(chan struct{}, maxUninitialized), allInitialized: make(chan struct{}),
		initialized: map[string]bool{}, routed: map[string]bool{}, lost: map[string]bool{},
	}
	f.kubelets = &fakekubelet.Kubelets{
		Kube: t.Kube, Message: standInMessage, RenewalPeriod: fleetRenewalPeriod,
		LeaseLabels: map[string]string{labels.NodeFleet: f.name},
		Renewed: func(_ context.Context, node string, err error) {
			if err != nil {
				t.Logf("the lease of Node %s: %v", node, err)
			}
		},
	}
	t.Cleanup(t.waitUntilQuiet)
	specs := make([]InstanceSpec, size)
	for i := range specs {
		specs[i].Name = fmt.Sprintf("%s-%04d", f.name, i)
	}
	instances, err := t.Cloud.CreateInstances(t.ctx, specs)
	for step := range slices.Chunk(instances, cleanupBatch) {
		ids := make([]string, len(step))
		for i, instance := range step {
			ids[i] = instance.ID
		}
		t.Cleanup(func(ctx context.Context) error { return t.Cloud.TerminateInstances(ctx, ids) })
	}
	t.Must(err, "creating %d instances", size)
	for _, instance := range instances {
		instance = withNodeName(instance)
		f.instances, f.Names = append(f.instances, instance), append(f.Names, instance.NodeName)
	}
	return f
}

// Initialize has all Nodes register, as NewNode does one, keeps them Ready, and
// returns when the CCM has initialised them.
func (f *NodeFleet) Initialize() {
	ranges := f.podRanges()
	f.watchNodes()
	f.deleteAfterTest()
	f.t.Cleanup(func(context.Context) error { f.kubelets.Stop(); return nil })
	f.kubelets.Start(f.t.ctx)
	err := Each(f.t.ctx, fleetConcurrency, len(f.Names), func(ctx context.Context, i int) error {
		select {
		case f.slots <- struct{}{}:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d were initialised: %w", f.countInitialized(), len(f.Names), context.Cause(ctx))
		}
		// First: a Node without a lease would be lost if the others take long.
		if err := f.kubelets.RenewLease(ctx, f.Names[i]); err != nil {
			return err
		}
		_, err := f.t.Kube.CoreV1().Nodes().Create(ctx, nodeFromSpec(f.kubelets, f.t.nodeSpecOf(f.instances[i], NodeSpec{
			Balanced: true, Labels: map[string]string{labels.NodeFleet: f.name},
			Change: func(n *corev1.Node) {
				if ranges != nil {
					n.Spec.PodCIDR, n.Spec.PodCIDRs = ranges[i], []string{ranges[i]}
				}
			},
		})), metav1.CreateOptions{})
		return err
	})
	f.t.Must(err, "registering %d Nodes", len(f.Names))
	select {
	case <-f.allInitialized:
	case <-f.t.ctx.Done():
		f.t.Fatalf(
			"waited for %d Nodes to be initialised, of which %d are: %v", len(f.Names), f.countInitialized(),
			context.Cause(f.t.ctx),
		)
	}
}

// countInitialized is how many Nodes have been initialised.
func (f *NodeFleet) countInitialized() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.initialized)
}

// podRanges are four addresses for each Node, from the end of the cluster's
// range, where no other Node has any; nil when they cannot be had. With the size
// that a cluster gives out, there would not be enough for so many Nodes, and its
// own allocator would try again and again.
func (f *NodeFleet) podRanges() []string {
	all, err := netip.ParsePrefix(f.t.podCIDR)
	if err != nil || !all.Addr().Is4() {
		return nil
	}
	nodes, err := f.t.Kube.CoreV1().Nodes().List(f.t.ctx, metav1.ListOptions{})
	f.t.Must(err, "listing Nodes")
	var taken []netip.Prefix
	for _, n := range nodes.Items {
		if p, err := netip.ParsePrefix(n.Spec.PodCIDR); err == nil {
			taken = append(taken, p)
		}
	}
	return freeRanges(all, taken, len(f.Names))
}

// podRangeBits is the length of the prefix of each Node's pod range.
const podRangeBits = 30

// freeRanges are count ranges from the end of all that overlap none that is
// taken; nil when there are not so many.
func freeRanges(all netip.Prefix, taken []netip.Prefix, count int) []string {
	first := addressNumber(all.Masked().Addr())
	var free []string
	for at := first + 1<<(32-all.Bits()); len(free) < count; {
		if at -= 1 << (32 - podRangeBits); at < first {
			return nil
		}
		p := netip.PrefixFrom(
			netip.AddrFrom4([4]byte{byte(at >> 24), byte(at >> 16), byte(at >> 8), byte(at)}), podRangeBits,
		)
		if !slices.ContainsFunc(taken, p.Overlaps) {
			free = append(free, p.String())
		}
	}
	return free
}

func addressNumber(a netip.Addr) (n int64) {
	for _, b := range a.As4() {
		n = n<<8 | int64(b)
	}
	return n
}

// Each does something so many times, a limited number of them at once, until one
// fails.
func Each(ctx context.Context, atOnce, count int, do func(ctx context.Context, i int) error) error {
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(atOnce)
	for i := range count {
		all.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return do(ctx, i)
		})
	}
	return all.Wait()
}

// watchNodes watches the fleet's Nodes until the test ends.
func (f *NodeFleet) watchNodes() {
	ctx, cancel := context.WithCancel(f.t.ctx)
	factory := informers.NewSharedInformerFactoryWithOptions(f.t.Kube, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.LabelSelector = labels.NodeFleet + "=" + f.name
	}))
	informer := factory.Core().V1().Nodes().Informer()
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: f.observeNode, UpdateFunc: func(_, now any) { f.observeNode(now) },
	})
	f.t.Cleanup(func(context.Context) error { cancel(); factory.Shutdown(); return nil })
	f.t.Must(err, "watching Nodes")
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		f.t.Fatalf("watching Nodes: %v", context.Cause(ctx))
	}
}

func (f *NodeFleet) observeNode(object any) {
	node, ok := object.(*corev1.Node)
	if !ok {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !kubediff.HasTaint(node, cloudproviderapi.TaintExternalCloudProvider) && !f.initialized[node.Name] {
		f.initialized[node.Name] = true
		<-f.slots
		if len(f.initialized) == len(f.Names) {
			close(f.allInitialized)
		}
	}
	for _, condition := range node.Status.Conditions {
		switch {
		case condition.Type == corev1.NodeNetworkUnavailable:
			f.routed[node.Name] = condition.Status == corev1.ConditionFalse
		case condition.Type != corev1.NodeReady:
		case condition.Status == corev1.ConditionTrue:
			delete(f.lost, node.Name)
		case !f.lost[node.Name]:
			f.lost[node.Name] = true
			f.lostCount++
		}
	}
}

// AwaitRoutes waits for all Nodes to have a route to their pods. A route controller says so in the condition
// NetworkUnavailable (k8s.io/cloud-provider controllers/route).
func (f *NodeFleet) AwaitRoutes() {
	f.t.Await("routes to the pods of all Nodes", func(context.Context) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		missing := 0
		for _, name := range f.Names {
			if !f.routed[name] {
				missing++
			}
		}
		if missing > 0 {
			return fmt.Errorf("%d of %d Nodes have none", missing, len(f.Names))
		}
		return nil
	})
}

// LostCount is how often kube-controller-manager took a Node for lost, on a machine that is too busy
// to keep all alive. A CCM may rightly ask the cloud for the instances of such Nodes.
func (f *NodeFleet) LostCount() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lostCount
}

// MarkLostReady marks the lost Nodes Ready. That is not done as soon as one is lost: losing and
// marking again and again would keep the machine busy for good.
func (f *NodeFleet) MarkLostReady() {
	f.mu.Lock()
	lost := maps.Clone(f.lost)
	f.mu.Unlock()
	err := Each(f.t.ctx, fleetConcurrency, len(f.Names), func(ctx context.Context, i int) error {
		if !lost[f.Names[i]] {
			return nil
		}
		return f.markReady(ctx, f.Names[i])
	})
	f.t.Must(err, "saying of %d Nodes that they are Ready", len(lost))
}

func (f *NodeFleet) markReady(ctx context.Context, node string) error {
	return f.kubelets.SetReady(ctx, node, corev1.ConditionTrue, "KubeletReady")
}

// deleteAfterTest deletes the Nodes, and what there is for them, after the test.
func (f *NodeFleet) deleteAfterTest() {
	const objectsPerNode = 2 // It and its lease.
	for step := range slices.Chunk(f.Names, cleanupBatch/objectsPerNode) {
		f.t.Cleanup(func(ctx context.Context) error {
			return Each(ctx, fleetConcurrency, len(step), func(ctx context.Context, i int) error {
				return f.kubelets.DeleteNode(ctx, step[i])
			})
		})
	}
}

// shutdownTaint is the taint that a CCM puts on a Node whose instance is shut down, and
// takes off one that is Ready.
var shutdownTaint = corev1.Taint{Key: cloudproviderapi.TaintNodeShutdown, Effect: corev1.TaintEffectNoSchedule}

// AwaitNodeSweeps waits until the CCM has gone round all its Nodes so many times. Each time a Ready
// Node gets the shutdown taint, which the CCM removes without a call of the cloud.
func (f *NodeFleet) AwaitNodeSweeps(times int) {
	patch := fmt.Appendf(
		nil, `[{"op":"add","path":"/spec/taints/-","value":{"key":%q,"effect":%q}}]`, shutdownTaint.Key,
		shutdownTaint.Effect,
	)
	for range times {
		_, err := f.t.Kube.CoreV1().Nodes().
			Patch(f.t.ctx, f.Names[0], types.JSONPatchType, patch, metav1.PatchOptions{})
		f.t.Must(err, "giving Node %s the taint %s", f.Names[0], shutdownTaint.Key)
		f.t.Await("the CCM to take the taint "+shutdownTaint.Key+" off Node "+f.Names[0]+
			", which is Ready", func(ctx context.Context) error {
			node, err := f.t.GetNode(ctx, f.Names[0])
			if err != nil || !kubediff.HasTaint(node, shutdownTaint.Key) {
				return err
			}
			if err := f.t.NodeReady(ctx, f.Names[0]); err != nil { // Lost: see LostCount.
				return errors.Join(err, f.markReady(ctx, f.Names[0]))
			}
			return errors.New("it has the taint")
		})
	}
}

// waitUntilQuiet returns when neither cluster nor CCM is busy any more with what the test did. It
// registers a Node, and waits until both have processed it.
func (t *T) waitUntilQuiet(ctx context.Context) (err error) {
	instance, err := t.Cloud.CreateInstance(ctx, InstanceSpec{Name: t.Name("calm")})
	if err != nil {
		return err
	}
	instance = withNodeName(instance)
	name := instance.NodeName
	defer func() { err = errors.Join(err, t.Cloud.TerminateInstance(ctx, instance.ID)) }()
	nodes := t.Kube.CoreV1().Nodes()
	kubelets := &fakekubelet.Kubelets{Kube: t.Kube, Message: standInMessage}
	node := nodeFromSpec(kubelets, t.nodeSpecOf(instance, NodeSpec{}))
	if _, err := nodes.Create(ctx, node, metav1.CreateOptions{}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, nodes.Delete(ctx, name, metav1.DeleteOptions{})) }()
	// There must be time left to take both away.
	waiting, cancel := context.WithTimeout(ctx, t.cleanupBound()*2/3)
	defer cancel()
	err = pollUntil(waiting, func(ctx context.Context) error {
		node, err := t.Initialized(ctx, name)
		if err == nil && kubediff.HasTaint(node, corev1.TaintNodeNotReady) {
			err = errors.New("kube-controller-manager has not come to it")
		}
		if err != nil {
			err = fmt.Errorf("after %s, Node %s waits: %s", t.test.ID, name, strings.TrimSpace(err.Error()))
		}
		return err
	})
	if err != nil { // It is the next test that may notice, and not this one's matter.
		t.Logf("%v", err)
	}
	return nil
}
