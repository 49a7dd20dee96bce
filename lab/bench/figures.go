package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	cloudproviderapi "k8s.io/cloud-provider/api"

	"golang.org/x/sync/errgroup"

	"github.com/ccmlab/ccmlab/fakecloud/bench/machine"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab/cluster"
)

// figure gives one or more lines of the table.
type figure struct {
	name    string
	measure func(context.Context, *bench) ([]line, error)
}

// figures are in the order in which they are measured.
var figures = []figure{
	{"init", initialisation},
	{"routes", routing},
	{"steady", steadyState},
	{"stopped", stopping},
	{"terminated", terminating},
	{"services", balancing},
}

func rowNames() []string {
	var names []string
	for _, f := range figures {
		names = append(names, f.name)
	}
	return names
}

// What initialising 1,000 nodes may take.
const (
	initAim      = 8 * time.Second
	initCallsAim = 10
)

// endAim is within how long a Node goes whose instance has ended.
const endAim = 5 * time.Second

// upstreamDefaults are what k8s.io/cloud-provider says where nobody else does:
// config/v1alpha1/defaults.go, and those of controllers/node and
// controllers/service.
var upstreamDefaults = []string{
	"--concurrent-node-syncs=1", "--concurrent-node-status-updates=1", "--concurrent-service-syncs=1",
	"--kube-api-qps=20", "--kube-api-burst=30",
	"--node-monitor-period=5s", "--node-status-update-frequency=5m", "--route-reconciliation-period=10s",
}

// cacheOff has the provider ask the cloud whatever it wants to know.
var cacheOff = []string{"FAKECLOUD_CACHE=false"}

// initialisation is from the CCM's start to the last taint lifted, with our
// defaults and with upstream's.
func initialisation(ctx context.Context, b *bench) ([]line, error) {
	l := line{Name: "init", Figure: grouped(b.size.Nodes) + " tainted nodes: last taint lifted"}
	var err error
	if l.Ours, err = b.initialise(ctx, "init", b.size.Bound, nil, b.flags...); err != nil {
		return nil, err
	}
	if b.size.Nodes == full.Nodes {
		l.judge(fmt.Sprintf("≤ %.0f s, ≤ %d calls", initAim.Seconds(), initCallsAim),
			l.Ours.Left == 0 && l.Ours.Seconds <= initAim.Seconds() && l.Ours.Taken.Calls <= initCallsAim)
	}
	if b.alone {
		return []line{l}, nil
	}
	peer, err := b.initialise(ctx, "init with upstream's defaults", b.size.Patience, cacheOff, upstreamDefaults...)
	if err != nil {
		return []line{l}, err
	}
	l.compare(peer)
	return []line{l}, nil
}

func (b *bench) initialise(ctx context.Context, name string, bound time.Duration, env []string, flags ...string) (v value, err error) {
	s, err := b.setUp(ctx, name, nil)
	if err != nil {
		return v, err
	}
	defer s.end(&err)
	return s.time(ctx, bound, func(ctx context.Context) (*goal, time.Time, error) {
		g, err := s.watchNodes(ctx, s.nodes, untainted)
		if err == nil {
			err = s.start(ctx, env, flags...)
		}
		if err != nil {
			return g, time.Time{}, err
		}
		return g, s.ccm.Started, nil
	})
}

// time measures from the moment that begin gives until its goal is reached.
func (s *stage) time(ctx context.Context, bound time.Duration, begin func(context.Context) (*goal, time.Time, error)) (v value, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	before, err := s.look(ctx)
	if err != nil {
		return v, err
	}
	s.say("%s: measuring …", s.name)
	g, began, err := begin(ctx)
	if err != nil {
		return v, err
	}
	asked := time.Since(began)
	last, err := g.await(ctx, bound)
	if err != nil {
		return v, err
	}
	after, err := s.look(ctx)
	if err != nil {
		return v, err
	}
	v = value{Taken: after.since(before), Left: g.left(), Asked: asked.Seconds()}
	if v.Seconds = bound.Seconds(); v.Left == 0 {
		v.Seconds, v.First = last.Sub(began).Seconds(), g.first.Sub(began).Seconds()
	}
	s.say("%s: %s", s.name, v)
	return v, nil
}

// clusterCIDR of the routes' figure has a /24 for each of maxNodes.
const clusterCIDR = "10.128.0.0/12"

func podCIDR(i int) string { return fmt.Sprintf("10.%d.%d.0/24", 128+i/256, i%256) }

// routing is from the CCM's start to the last route in the cloud. The Nodes are
// tainted at first: so is every new one.
func routing(ctx context.Context, b *bench) (lines []line, err error) {
	s, err := b.setUp(ctx, "routes", func(i int, n *corev1.Node) { n.Spec.PodCIDR, n.Spec.PodCIDRs = podCIDR(i), []string{podCIDR(i)} })
	if err != nil {
		return nil, err
	}
	defer s.end(&err)
	var destinations []string
	for i := range s.nodes {
		destinations = append(destinations, podCIDR(i))
	}
	v, err := s.time(ctx, b.size.Patience, func(ctx context.Context) (*goal, time.Time, error) {
		g := s.watchRoutes(ctx, destinations)
		err := s.start(ctx, nil, append([]string{"--configure-cloud-routes=true", "--cluster-cidr=" + clusterCIDR}, b.flags...)...)
		if err != nil {
			return g, time.Time{}, err
		}
		return g, s.ccm.Started, nil
	})
	if err != nil {
		return nil, err
	}
	v.Each, v.Unit = len(s.nodes), "route"
	return []line{{Name: "routes", Figure: grouped(b.size.Nodes) + " tainted nodes with pod ranges: last route made", Ours: v}}, nil
}

// steadyState is what is taken when nothing happens.
func steadyState(ctx context.Context, b *bench) (lines []line, err error) {
	s, err := b.initialised(ctx, "steady")
	if err != nil {
		return nil, err
	}
	defer s.end(&err)
	b.say("steady: looking for %s …", b.size.Steady)
	before, err := s.look(ctx)
	if err != nil {
		return nil, err
	}
	if err := machine.Sleep(ctx, b.size.Steady); err != nil {
		return nil, err
	}
	after, err := s.look(ctx)
	if err != nil {
		return nil, err
	}
	v := value{Taken: after.since(before), Steady: true}
	if v.Memory, v.Peak, err = machine.MemoryOf(s.ccm.PID); err != nil {
		return nil, err
	}
	v.Seconds, v.CPU = v.Taken.Seconds, v.Taken.CPU[s.ccm.Name]
	return []line{{Name: "steady", Figure: fmt.Sprintf("%s, %s", grouped(b.size.Nodes)+" initialised nodes at rest", b.size.Steady), Ours: v}}, nil
}

// stopping is from the moment that some machines begin to stop, and their Nodes
// to be not Ready, until the last of these has the shutdown taint.
func stopping(ctx context.Context, b *bench) (lines []line, err error) {
	s, err := b.initialised(ctx, "stopped")
	if err != nil {
		return nil, err
	}
	defer s.end(&err)
	stopped := s.nodes[:b.size.Stop]
	v, err := s.time(ctx, b.size.Bound, func(ctx context.Context) (*goal, time.Time, error) {
		g, err := s.watchNodes(ctx, stopped, func(_ watch.EventType, n *corev1.Node) bool { return tainted(n, cloudproviderapi.TaintNodeShutdown) })
		if err != nil {
			return g, time.Time{}, err
		}
		began := time.Now()
		both, ctx := errgroup.WithContext(ctx)
		both.Go(func() error {
			return s.forAll(ctx, len(stopped), func(ctx context.Context, i int) error {
				_, err := s.bed.Cloud().StopInstance(ctx, s.instances[i].ID)
				return err
			})
		})
		both.Go(func() error { return s.bed.SetReady(ctx, corev1.ConditionUnknown, stopped...) })
		return g, began, both.Wait()
	})
	if err != nil {
		return nil, err
	}
	return []line{{Name: "stopped", Figure: b.of(b.size.Stop, "stopped and not Ready: last shutdown taint"), Ours: v, Notes: v.asked()}}, nil
}

// terminating is from the moment that some machines begin to end until the last
// of their Nodes is gone. The Nodes stay Ready: only the cloud tells.
func terminating(ctx context.Context, b *bench) (lines []line, err error) {
	s, err := b.initialised(ctx, "terminated")
	if err != nil {
		return nil, err
	}
	defer s.end(&err)
	ended := s.nodes[:b.size.End]
	v, err := s.time(ctx, b.size.Bound, func(ctx context.Context) (*goal, time.Time, error) {
		g, err := s.watchNodes(ctx, ended, func(e watch.EventType, _ *corev1.Node) bool { return e == watch.Deleted })
		if err != nil {
			return g, time.Time{}, err
		}
		began := time.Now()
		return g, began, s.forAll(ctx, len(ended), func(ctx context.Context, i int) error {
			_, err := s.bed.Cloud().TerminateInstance(ctx, s.instances[i].ID)
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	l := line{Name: "terminated", Figure: b.of(b.size.End, "terminated: last Node gone"), Ours: v, Notes: v.asked()}
	l.judge(fmt.Sprintf("≤ %.0f s", endAim.Seconds()), v.Left == 0 && v.Seconds <= endAim.Seconds())
	return []line{l}, nil
}

// balancing is about Services of type LoadBalancer: from the moment that they
// begin to be created to the last address, and to be deleted until the last of
// them is gone, and the last balancer with it.
func balancing(ctx context.Context, b *bench) (lines []line, err error) {
	s, err := b.initialised(ctx, "services")
	if err != nil {
		return nil, err
	}
	defer s.end(&err)
	var names []string
	for i := range b.size.Services {
		names = append(names, fmt.Sprintf("web-%03d", i))
	}
	services := s.bed.Admin().CoreV1().Services(metav1.NamespaceDefault)
	made, err := s.time(ctx, b.size.Bound, func(ctx context.Context) (*goal, time.Time, error) {
		g, err := s.watchServices(ctx, names, func(_ watch.EventType, svc *corev1.Service) bool { return len(svc.Status.LoadBalancer.Ingress) > 0 })
		if err != nil {
			return g, time.Time{}, err
		}
		began := time.Now()
		return g, began, s.forAll(ctx, len(names), func(ctx context.Context, i int) error {
			_, err := services.Create(ctx, service(names[i]), metav1.CreateOptions{})
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	made.Each, made.Unit = len(names), "Service"
	lines = append(lines, line{Name: "services", Figure: grouped(b.size.Services) + " Services created: last address", Ours: made, Notes: made.asked()})
	if err := machine.Sleep(ctx, b.size.Settle); err != nil {
		return lines, err
	}

	s.name = "services deleted"
	gone, err := s.time(ctx, b.size.Bound, func(ctx context.Context) (*goal, time.Time, error) {
		g, err := s.watchServices(ctx, names, func(e watch.EventType, _ *corev1.Service) bool { return e == watch.Deleted })
		if err != nil {
			return g, time.Time{}, err
		}
		began := time.Now()
		return g, began, s.forAll(ctx, len(names), func(ctx context.Context, i int) error {
			return services.Delete(ctx, names[i], metav1.DeleteOptions{})
		})
	})
	if err != nil {
		return lines, err
	}
	gone.Each, gone.Unit = len(names), "Service"
	left, later, err := s.awaitNoBalancer(ctx)
	if err != nil {
		return lines, err
	}
	gone.Seconds += later.Seconds()
	l := line{Name: "services-deleted", Figure: grouped(b.size.Services) + " Services deleted: last balancer gone", Ours: gone, Notes: gone.asked()}
	l.Notes = append(l.Notes, fmt.Sprintf("%d balancers left in the cloud, %.1f s after the last Service had gone", left, later.Seconds()))
	l.judge("0 balancers left", gone.Left == 0 && left == 0)
	return append(lines, l), nil
}

// awaitNoBalancer gives how many the cloud has left in the end, and how long
// after now that was: a cloud may answer before it has taken one down.
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
	if ctx.Err() == nil && bound.Err() != nil { // That some are left is the figure.
		err = nil
	}
	return left, later, err
}

func service(name string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, Selector: map[string]string{"app": name},
			Ports: []corev1.ServicePort{{Port: 8080}}, // Any user may listen there.
		},
	}
}

// atOnce is how many calls of this program are under way at the same time.
const atOnce = 16

func (s *stage) forAll(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(atOnce)
	for i := range n {
		all.Go(func() error { return do(ctx, i) })
	}
	return all.Wait()
}

// of says how many of all nodes.
func (b *bench) of(n int, what string) string {
	return fmt.Sprintf("%s of %s nodes %s", grouped(n), grouped(b.size.Nodes), what)
}

func grouped(n int) string { return count(int64(n)) }
