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
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	cloudproviderapi "k8s.io/cloud-provider/api"

	"github.com/ccmlab/ccmlab/lab/labels"
)

// fleetConcurrency is how many objects of a fleet are made or renewed side by side.
const fleetConcurrency = 4

// maxUninitialized is how many Nodes wait for the CCM at a time: on any machine, it is
// the CCM that is busy then, and not the cluster.
const maxUninitialized = 16

// cleanupBatch is how many are taken away in one step of cleaning up.
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

	mu          sync.Mutex
	leases      []*coordinationv1.Lease
	initialized map[string]bool
	lost        map[string]bool // the Nodes that are not Ready
	lostCount   int             // how often one was seen to become so
}

// NewNodeFleet creates the instances, and no Node yet. After the test all of it is
// deleted, and the next test begins when cluster and CCM have processed that.
func (t *T) NewNodeFleet(size int) *NodeFleet {
	c := &NodeFleet{
		t: t, name: t.Name("crowd"), slots: make(chan struct{}, maxUninitialized), allInitialized: make(chan struct{}),
		initialized: map[string]bool{}, lost: map[string]bool{}, leases: make([]*coordinationv1.Lease, size),
	}
	t.Cleanup(t.waitUntilQuiet)
	specs := make([]InstanceSpec, size)
	for i := range specs {
		specs[i].Name = fmt.Sprintf("%s-%04d", c.name, i)
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
		c.instances, c.Names = append(c.instances, instance), append(c.Names, instance.NodeName)
	}
	return c
}

// Initialize has all Nodes register, as NewNode does one, keeps them Ready, and
// returns when the CCM has initialised them.
func (c *NodeFleet) Initialize() {
	ranges := c.podRanges()
	c.watchNodes()
	c.deleteAfterTest(c.t.Kube.CoordinationV1().Leases(corev1.NamespaceNodeLease))
	c.deleteAfterTest(c.t.Kube.CoreV1().Nodes())
	c.renewAllLeases()
	err := Each(c.t.ctx, fleetConcurrency, len(c.Names), func(ctx context.Context, i int) error {
		select {
		case c.slots <- struct{}{}:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d were initialised: %w", c.countInitialized(), len(c.Names), context.Cause(ctx))
		}
		// First: a Node without a lease would be lost if the others take long.
		if err := c.createLease(ctx, i); err != nil {
			return err
		}
		_, err := c.t.Kube.CoreV1().Nodes().Create(ctx, nodeFromSpec(c.t.nodeSpecOf(c.instances[i], NodeSpec{
			Balanced: true, Labels: map[string]string{labels.NodeFleet: c.name},
			Change: func(n *corev1.Node) {
				if ranges != nil {
					n.Spec.PodCIDR, n.Spec.PodCIDRs = ranges[i], []string{ranges[i]}
				}
			},
		})), metav1.CreateOptions{})
		return err
	})
	c.t.Must(err, "registering %d Nodes", len(c.Names))
	select {
	case <-c.allInitialized:
	case <-c.t.ctx.Done():
		c.t.Fatalf(
			"waited for %d Nodes to be initialised, of which %d are: %v", len(c.Names), c.countInitialized(),
			context.Cause(c.t.ctx),
		)
	}
}

// countInitialized is how many Nodes have been initialised.
func (c *NodeFleet) countInitialized() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.initialized)
}

// podRanges are four addresses for each Node, from the end of the cluster's
// range, where no other Node has any; nil when they cannot be had. With the size
// that a cluster gives out, there would not be enough for so many Nodes, and its
// own allocator would try again and again.
func (c *NodeFleet) podRanges() []string {
	all, err := netip.ParsePrefix(c.t.podCIDR)
	if err != nil || !all.Addr().Is4() {
		return nil
	}
	nodes, err := c.t.Kube.CoreV1().Nodes().List(c.t.ctx, metav1.ListOptions{})
	c.t.Must(err, "listing Nodes")
	var taken []netip.Prefix
	for _, n := range nodes.Items {
		if p, err := netip.ParsePrefix(n.Spec.PodCIDR); err == nil {
			taken = append(taken, p)
		}
	}
	return freeRanges(all, taken, len(c.Names))
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
func (c *NodeFleet) watchNodes() {
	ctx, cancel := context.WithCancel(c.t.ctx)
	factory := informers.NewSharedInformerFactoryWithOptions(c.t.Kube, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.LabelSelector = labels.NodeFleet + "=" + c.name
	}))
	informer := factory.Core().V1().Nodes().Informer()
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: c.observeNode, UpdateFunc: func(_, now any) { c.observeNode(now) },
	})
	c.t.Cleanup(func(context.Context) error { cancel(); factory.Shutdown(); return nil })
	c.t.Must(err, "watching Nodes")
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		c.t.Fatalf("watching Nodes: %v", context.Cause(ctx))
	}
}

func (c *NodeFleet) observeNode(object any) {
	node, ok := object.(*corev1.Node)
	if !ok {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !HasTaint(node, cloudproviderapi.TaintExternalCloudProvider) && !c.initialized[node.Name] {
		c.initialized[node.Name] = true
		<-c.slots
		if len(c.initialized) == len(c.Names) {
			close(c.allInitialized)
		}
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type != corev1.NodeReady {
			continue
		}
		if condition.Status == corev1.ConditionTrue {
			delete(c.lost, node.Name)
		} else if !c.lost[node.Name] {
			c.lost[node.Name] = true
			c.lostCount++
		}
	}
}

// LostCount is how often kube-controller-manager took a Node for lost, on a machine that is too busy
// to keep all alive. A CCM may rightly ask the cloud for the instances of such Nodes.
func (c *NodeFleet) LostCount() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lostCount
}

// MarkLostReady marks the lost Nodes Ready. That is not done as soon as one is lost: losing and
// marking again and again would keep the machine busy for good.
func (c *NodeFleet) MarkLostReady() {
	c.mu.Lock()
	lost := maps.Clone(c.lost)
	c.mu.Unlock()
	err := Each(c.t.ctx, fleetConcurrency, len(c.Names), func(ctx context.Context, i int) error {
		if !lost[c.Names[i]] {
			return nil
		}
		return c.markReady(ctx, c.Names[i])
	})
	c.t.Must(err, "saying of %d Nodes that they are Ready", len(lost))
}

func (c *NodeFleet) markReady(ctx context.Context, node string) error {
	return patchReady(ctx, c.t.Kube, node, corev1.ConditionTrue, "KubeletReady")
}

// renewAllLeases renews all leases, round after round, until the test ends.
func (c *NodeFleet) renewAllLeases() {
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.t.ctx))
	ended := make(chan struct{})
	c.t.Cleanup(func(context.Context) error { cancel(); <-ended; return nil })
	go func() {
		defer close(ended)
		tick := time.NewTicker(fleetRenewalPeriod)
		defer tick.Stop()
		for ctx.Err() == nil {
			// None is left out because another failed.
			_ = Each(ctx, fleetConcurrency, len(c.Names), func(ctx context.Context, i int) error {
				if err := c.renewLease(ctx, i); err != nil && ctx.Err() == nil {
					c.t.Logf("the lease of Node %s: %v", c.Names[i], err)
				}
				return nil
			})
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	}()
}

// createLease creates the lease of a Node.
func (c *NodeFleet) createLease(ctx context.Context, i int) error {
	now := metav1.NowMicro()
	made, err := c.t.Kube.CoordinationV1().Leases(corev1.NamespaceNodeLease).Create(ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: c.Names[i], Labels: map[string]string{labels.NodeFleet: c.name}},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &c.Names[i], RenewTime: &now},
	}, metav1.CreateOptions{})
	if err == nil {
		c.swapLease(i, made)
	}
	return err
}

// renewLease renews the lease of a Node that has one already. As long as nobody else writes the
// lease, that takes one call.
func (c *NodeFleet) renewLease(ctx context.Context, i int) error {
	lease := c.swapLease(i, nil)
	if lease == nil {
		return nil
	}
	leases, now := c.t.Kube.CoordinationV1().Leases(corev1.NamespaceNodeLease), metav1.NowMicro()
	lease = lease.DeepCopy()
	lease.Spec.RenewTime = &now
	lease, err := leases.Update(ctx, lease, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) {
		lease, err = leases.Get(ctx, c.Names[i], metav1.GetOptions{})
	}
	if err == nil {
		c.swapLease(i, lease)
	}
	return err
}

// swapLease stores the latest version of a lease, unless it is nil, and returns the one before.
func (c *NodeFleet) swapLease(i int, lease *coordinationv1.Lease) (before *coordinationv1.Lease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before = c.leases[i]
	if lease != nil {
		c.leases[i] = lease
	}
	return before
}

// deleter deletes objects of one kind.
type deleter interface {
	Delete(ctx context.Context, name string, o metav1.DeleteOptions) error
}

// deleteAfterTest deletes the objects with the Nodes' names after the test.
func (c *NodeFleet) deleteAfterTest(of deleter) {
	for step := range slices.Chunk(c.Names, cleanupBatch) {
		c.t.Cleanup(func(ctx context.Context) error {
			return Each(ctx, fleetConcurrency, len(step), func(ctx context.Context, i int) error {
				return ignoreNotFound(of.Delete(ctx, step[i], metav1.DeleteOptions{}))
			})
		})
	}
}

// ignoreNotFound returns err, and nil if err says that the object does not exist.
func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// shutdownTaint is the taint that a CCM puts on a Node whose instance is shut down, and
// takes off one that is Ready.
var shutdownTaint = corev1.Taint{Key: cloudproviderapi.TaintNodeShutdown, Effect: corev1.TaintEffectNoSchedule}

// AwaitNodeSweeps waits until the CCM has gone round all its Nodes so many times. Each time a Ready
// Node gets the shutdown taint, which the CCM removes without a call of the cloud.
func (c *NodeFleet) AwaitNodeSweeps(times int) {
	patch := fmt.Appendf(
		nil, `[{"op":"add","path":"/spec/taints/-","value":{"key":%q,"effect":%q}}]`, shutdownTaint.Key,
		shutdownTaint.Effect,
	)
	for range times {
		_, err := c.t.Kube.CoreV1().Nodes().
			Patch(c.t.ctx, c.Names[0], types.JSONPatchType, patch, metav1.PatchOptions{})
		c.t.Must(err, "giving Node %s the taint %s", c.Names[0], shutdownTaint.Key)
		c.t.Await("the CCM to take the taint "+shutdownTaint.Key+" off Node "+c.Names[0]+
			", which is Ready", func(ctx context.Context) error {
			node, err := c.t.GetNode(ctx, c.Names[0])
			if err != nil || !HasTaint(node, shutdownTaint.Key) {
				return err
			}
			if err := c.t.NodeReady(ctx, c.Names[0]); err != nil { // Lost: see LostCount.
				return errors.Join(err, c.markReady(ctx, c.Names[0]))
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
	node := nodeFromSpec(t.nodeSpecOf(instance, NodeSpec{}))
	if _, err := nodes.Create(ctx, node, metav1.CreateOptions{}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, nodes.Delete(ctx, name, metav1.DeleteOptions{})) }()
	// There must be time left to take both away.
	waiting, cancel := context.WithTimeout(ctx, t.cleanupBound()*2/3)
	defer cancel()
	err = pollUntil(waiting, func(ctx context.Context) error {
		node, err := t.Initialized(ctx, name)
		if err == nil && HasTaint(node, corev1.TaintNodeNotReady) {
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
