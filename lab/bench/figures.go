package main

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	cloudproviderapi "k8s.io/cloud-provider/api"

	"github.com/ccmlab/ccmlab/fakecloud/bench/harness"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/kubediff"
)

// figure measures one or more lines of the table.
type figure struct {
	name    string
	measure func(context.Context, *bench) ([]line, error)
}

// figures are in the order in which they are measured.
var figures = []figure{
	{"init", measureInit},
	{"routes", measureRoutes},
	{"steady", measureSteadyState},
	{"stopped", measureStopped},
	{"terminated", measureTerminated},
	{"services", measureServices},
}

func figureNames() []string {
	var names []string
	for _, f := range figures {
		names = append(names, f.name)
	}
	return names
}

// What initialising 1,000 nodes should take at most.
const (
	initAim      = 8 * time.Second
	initCallsAim = 10
)

// terminatedAim is how long it should take at most until the Nodes of terminated instances are
// gone.
const terminatedAim = 5 * time.Second

// upstreamDefaults are the defaults of k8s.io/cloud-provider: config/v1alpha1/defaults.go,
// and those of controllers/node and controllers/service.
var upstreamDefaults = []string{
	"--concurrent-node-syncs=1", "--concurrent-node-status-updates=1", "--concurrent-service-syncs=1",
	"--kube-api-qps=20", "--kube-api-burst=30",
	"--node-monitor-period=5s", "--node-status-update-frequency=5m", "--route-reconciliation-period=10s",
}

// cacheDisabled is an environment in which the provider asks the cloud each time.
var cacheDisabled = []string{"FAKECLOUD_CACHE=false"}

// measureInit measures from the CCM's start to the last taint lifted, with our
// defaults and with upstream's.
func measureInit(ctx context.Context, b *bench) ([]line, error) {
	l := line{Name: "init", Figure: formatInt(b.size.Nodes) + " tainted nodes: last taint lifted"}
	var err error
	if l.Ours, err = b.timeInit(ctx, "init", b.size.Bound, nil, b.flags...); err != nil {
		return nil, err
	}
	if b.size.Nodes == full.Nodes {
		l.setAim(fmt.Sprintf("≤ %.0f s, ≤ %d calls", initAim.Seconds(), initCallsAim),
			l.Ours.Left == 0 && l.Ours.Seconds <= initAim.Seconds() && l.Ours.Used.Calls <= initCallsAim)
	}
	if b.withoutPeer {
		return []line{l}, nil
	}
	peer, err := b.timeInit(ctx, "init with upstream's defaults", b.size.PeerBound, cacheDisabled, upstreamDefaults...)
	if err != nil {
		return []line{l}, err
	}
	l.setPeer(peer)
	return []line{l}, nil
}

// timeInit makes one measurement of measureInit.
func (b *bench) timeInit(
	ctx context.Context,
	name string,
	bound time.Duration,
	env []string,
	flags ...string,
) (v value, err error) {
	s, err := b.setUp(ctx, name, nil)
	if err != nil {
		return v, err
	}
	defer s.close(&err)
	return s.timeUntilGoal(ctx, bound, s.watchNodes(s.nodes, isInitialised), func(ctx context.Context) error {
		return s.startCCM(ctx, env, flags...)
	})
}

// timeUntilGoal measures from the moment that act begins or, if it starts the CCM, from that
// start, until the goal is reached.
func (s *stage) timeUntilGoal(
	ctx context.Context,
	bound time.Duration,
	watchGoal func(context.Context) (*goal, error),
	act func(context.Context) error,
) (v value, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	before, err := s.readUsage(ctx)
	if err != nil {
		return v, err
	}
	harness.LogProgress("%s: measuring …", s.name)
	g, err := watchGoal(ctx)
	if err != nil {
		return v, err
	}
	began := time.Now()
	if err := act(ctx); err != nil {
		return v, err
	}
	if s.ccm.Started.After(began) {
		began = s.ccm.Started
	}
	requested := time.Since(began)
	last, err := g.awaitAll(ctx, bound)
	if err != nil {
		return v, err
	}
	after, err := s.readUsage(ctx)
	if err != nil {
		return v, err
	}
	v = value{Used: after.since(before), Left: g.countPending(), Asked: requested.Seconds()}
	if v.Seconds = bound.Seconds(); v.Left == 0 {
		v.Seconds, v.First = last.Sub(began).Seconds(), g.first.Sub(began).Seconds()
	}
	harness.LogProgress("%s: %s", s.name, v)
	return v, nil
}

// clusterCIDR, for the figure routes, has a /24 for each of maxNodes.
const clusterCIDR = "10.128.0.0/12"

func podCIDR(i int) string { return fmt.Sprintf("10.%d.%d.0/24", 128+i/256, i%256) }

// measureRoutes measures from the CCM's start to the last route in the cloud. The Nodes are
// tainted at first, as new Nodes are.
func measureRoutes(ctx context.Context, b *bench) (lines []line, err error) {
	s, err := b.setUp(ctx, "routes", func(i int, n *corev1.Node) {
		n.Spec.PodCIDR, n.Spec.PodCIDRs = podCIDR(i), []string{podCIDR(i)}
	})
	if err != nil {
		return nil, err
	}
	defer s.close(&err)
	var destinations []string
	for i := range s.nodes {
		destinations = append(destinations, podCIDR(i))
	}
	flags := append([]string{"--configure-cloud-routes=true", "--cluster-cidr=" + clusterCIDR}, b.flags...)
	v, err := s.timeUntilGoal(ctx, b.size.PeerBound, s.watchRoutes(destinations), func(ctx context.Context) error {
		return s.startCCM(ctx, nil, flags...)
	})
	if err != nil {
		return nil, err
	}
	v.Each, v.Unit = len(s.nodes), "route"
	return []line{
		{Name: "routes", Figure: formatInt(b.size.Nodes) + " tainted nodes with pod ranges: last route made", Ours: v},
	}, nil
}

// measureSteadyState measures what is used while nothing happens.
func measureSteadyState(ctx context.Context, b *bench) (lines []line, err error) {
	s, err := b.setUpInitialised(ctx, "steady")
	if err != nil {
		return nil, err
	}
	defer s.close(&err)
	harness.LogProgress("steady: looking for %s …", b.size.Steady)
	before, err := s.readUsage(ctx)
	if err != nil {
		return nil, err
	}
	if err := harness.Sleep(ctx, b.size.Steady); err != nil {
		return nil, err
	}
	after, err := s.readUsage(ctx)
	if err != nil {
		return nil, err
	}
	v := value{Used: after.since(before), Steady: true}
	if v.Memory, v.Peak, err = harness.MemoryOf(s.ccm.PID); err != nil {
		return nil, err
	}
	v.Seconds, v.CPU = v.Used.Seconds, v.Used.CPU[s.ccm.Name]
	return []line{{
		Name:   "steady",
		Figure: fmt.Sprintf("%s, %s", formatInt(b.size.Nodes)+" initialised nodes at rest", b.size.Steady), Ours: v,
	}}, nil
}

// measureStopped measures from the moment that some instances begin to stop, and their Nodes
// to be not Ready, until the last of these Nodes has the shutdown taint.
func measureStopped(ctx context.Context, b *bench) (lines []line, err error) {
	s, err := b.setUpInitialised(ctx, "stopped")
	if err != nil {
		return nil, err
	}
	defer s.close(&err)
	stopped := s.nodes[:b.size.Stop]
	isShutdown := func(_ watch.EventType, n *corev1.Node) bool {
		return kubediff.HasTaint(n, cloudproviderapi.TaintNodeShutdown)
	}
	v, err := s.timeUntilGoal(ctx, b.size.Bound, s.watchNodes(stopped, isShutdown), func(ctx context.Context) error {
		both, ctx := errgroup.WithContext(ctx)
		both.Go(func() error {
			return harness.ForAll(ctx, len(stopped), maxConcurrentCalls, func(ctx context.Context, i int) error {
				_, err := s.bed.Cloud().StopInstance(ctx, s.instances[i].ID)
				return err
			})
		})
		both.Go(func() error { return s.bed.SetReady(ctx, corev1.ConditionUnknown, stopped...) })
		return both.Wait()
	})
	if err != nil {
		return nil, err
	}
	return []line{{
		Name: "stopped", Figure: b.describePart(b.size.Stop, "stopped and not Ready: last shutdown taint"), Ours: v,
		Notes: v.askedNote(),
	}}, nil
}

// measureTerminated measures from the moment that some instances begin to terminate until the last
// of their Nodes is gone. The Nodes stay Ready: only the cloud says what has happened.
func measureTerminated(ctx context.Context, b *bench) (lines []line, err error) {
	s, err := b.setUpInitialised(ctx, "terminated")
	if err != nil {
		return nil, err
	}
	defer s.close(&err)
	ended := s.nodes[:b.size.Terminate]
	v, err := s.timeUntilGoal(ctx, b.size.Bound, s.watchNodes(ended, isDeleted), func(ctx context.Context) error {
		return harness.ForAll(ctx, len(ended), maxConcurrentCalls, func(ctx context.Context, i int) error {
			_, err := s.bed.Cloud().TerminateInstance(ctx, s.instances[i].ID)
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	l := line{
		Name: "terminated", Figure: b.describePart(b.size.Terminate, "terminated: last Node gone"), Ours: v,
		Notes: v.askedNote(),
	}
	l.setAim(fmt.Sprintf("≤ %.0f s", terminatedAim.Seconds()), v.Left == 0 && v.Seconds <= terminatedAim.Seconds())
	return []line{l}, nil
}

// measureServices makes two measurements of Services of type LoadBalancer. The first is from the
// moment that they begin to be created to the last address. The second is from the moment that
// they begin to be deleted until the last Service and the last balancer are gone.
func measureServices(ctx context.Context, b *bench) (lines []line, err error) {
	s, err := b.setUpInitialised(ctx, "services")
	if err != nil {
		return nil, err
	}
	defer s.close(&err)
	var names []string
	for i := range b.size.Services {
		names = append(names, fmt.Sprintf("web-%03d", i))
	}
	services := s.bed.Admin().CoreV1().Services(metav1.NamespaceDefault)
	published := s.watchServices(names, hasAddress)
	created, err := s.timeUntilGoal(ctx, b.size.Bound, published, func(ctx context.Context) error {
		return harness.ForAll(ctx, len(names), maxConcurrentCalls, func(ctx context.Context, i int) error {
			_, err := services.Create(ctx, newService(names[i]), metav1.CreateOptions{})
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	created.Each, created.Unit = len(names), "Service"
	lines = append(lines, line{
		Name: "services", Figure: formatInt(b.size.Services) + " Services created: last address", Ours: created,
		Notes: created.askedNote(),
	})
	if err := harness.Sleep(ctx, b.size.Settle); err != nil {
		return lines, err
	}

	s.name = "services deleted"
	gone := s.watchServices(names, isDeleted)
	deleted, err := s.timeUntilGoal(ctx, b.size.Bound, gone, func(ctx context.Context) error {
		return harness.ForAll(ctx, len(names), maxConcurrentCalls, func(ctx context.Context, i int) error {
			return services.Delete(ctx, names[i], metav1.DeleteOptions{})
		})
	})
	if err != nil {
		return lines, err
	}
	deleted.Each, deleted.Unit = len(names), "Service"
	left, later, err := s.awaitNoBalancer(ctx)
	if err != nil {
		return lines, err
	}
	deleted.Seconds += later.Seconds()
	l := line{
		Name: "services-deleted", Figure: formatInt(b.size.Services) + " Services deleted: last balancer gone",
		Ours: deleted, Notes: deleted.askedNote(),
	}
	l.Notes = append(
		l.Notes,
		fmt.Sprintf("%d balancers left in the cloud, %.1f s after the last Service had gone", left, later.Seconds()),
	)
	l.setAim("0 balancers left", deleted.Left == 0 && left == 0)
	return append(lines, l), nil
}

// awaitNoBalancer waits until the cloud has no balancer, which may be later than its answers to
// the CCM. It returns how many are left in the end, and how long it has waited.
func (s *stage) awaitNoBalancer(ctx context.Context) (left int, later time.Duration, err error) {
	began := time.Now()
	bound, cancel := context.WithTimeout(ctx, s.size.Bound)
	defer cancel()
	err = cluster.Poll(bound, "the last balancer to go", func(ctx context.Context) error {
		all, err := s.bed.Cloud().ListLoadBalancers(ctx, client.LoadBalancerFilter{})
		if err != nil {
			return err
		}
		if left, later = len(all), time.Since(began); left > 0 {
			return fmt.Errorf("%d are there", left)
		}
		return nil
	})
	if ctx.Err() == nil && bound.Err() != nil { // That some are left is a result, not an error.
		err = nil
	}
	return left, later, err
}

func newService(name string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, Selector: map[string]string{"app": name},
			Ports: []corev1.ServicePort{{Port: 8080}}, // Any user may listen there.
		},
	}
}

// maxConcurrentCalls is how many calls this program makes at the same time.
const maxConcurrentCalls = 16

// describePart says how many of all nodes.
func (b *bench) describePart(n int, what string) string {
	return fmt.Sprintf("%s of %s nodes %s", formatInt(n), formatInt(b.size.Nodes), what)
}

func formatInt(n int) string { return formatInt64(int64(n)) }
