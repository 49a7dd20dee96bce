package agent

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab/console/scene"
	"github.com/ccmlab/ccmlab/lab/follow"
	"github.com/ccmlab/ccmlab/lab/timeline"
)

const (
	// trafficInterval is how often balancers are asked for their targets' health and traffic.
	trafficInterval = 2 * time.Second
	// maxAskedBalancers is of how many of them.
	maxAskedBalancers = 30
	// ccmLease is the lease of a CCM's leader, by the default of k8s.io/cloud-provider.
	ccmLease = "cloud-controller-manager"
)

// Picture records how the lab's things are, for the console. Like the Recorder it goes on after a
// restart where it was.
type Picture struct {
	mu   sync.Mutex
	log  *scene.Log
	slog *slog.Logger
}

// NewPicture makes a Picture that goes on after what its file already has.
func NewPicture(file string, logger *slog.Logger) (*Picture, error) {
	log, err := scene.OpenLog(file)
	return &Picture{log: log, slog: logger}, err
}

// Thing is a thing as it is now.
func (p *Picture) Thing(id string) (scene.Thing, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Get(id)
}

func (p *Picture) addChange(c scene.Change) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.addLocked(c)
}

func (p *Picture) addLocked(c scene.Change) {
	if err := p.log.Add(c); err != nil {
		p.slog.Error("recording the picture", "error", err)
	}
}

func (p *Picture) setThing(t scene.Thing) { p.addChange(scene.Change{Time: time.Now(), Thing: &t}) }

func (p *Picture) removeThing(id string) { p.addChange(scene.Change{Time: time.Now(), Gone: id}) }

// Event records an event of the cloud, unless it is recorded already.
func (p *Picture) Event(ev api.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ev.Seq <= p.log.Seq() {
		return
	}
	var t scene.Thing
	switch {
	case ev.Instance != nil:
		t = scene.OfInstance(*ev.Instance)
	case ev.LoadBalancer != nil:
		t = scene.OfBalancer(*ev.LoadBalancer)
		if known, ok := p.log.Get(t.ID); ok {
			t.KeepTargets(known)
		}
	case ev.Route != nil:
		t = scene.OfRoute(*ev.Route)
	default:
		return
	}
	c := scene.Change{Time: ev.Time, Thing: &t, CloudSeq: ev.Seq}
	if ev.Type == api.EventDeleted {
		if known, ok := p.log.Get(t.ID); ok && known.CloudID != t.CloudID {
			return // Another has the name by now.
		}
		c.Thing, c.Gone = nil, t.ID
	}
	p.addLocked(c)
}

// Component records a component that started or ended, of which the timeline was told.
func (p *Picture) Component(c timeline.Change) {
	if name, ok := strings.CutPrefix(c.Subject, componentPrefix); ok {
		p.setThing(scene.OfComponent(name, c.Detail, c.What == componentStarted))
	}
}

// AddAbsent records components that may run, unless it knows better.
func (p *Picture) AddAbsent(components ...string) {
	for _, name := range components {
		t := scene.OfComponent(name, "", false)
		if _, known := p.Thing(t.ID); !known {
			p.setThing(t)
		}
	}
}

// watchObjects records Nodes, Pods and Services of type LoadBalancer, from when the factory is started.
// prune, called when its caches are complete, removes what went while no agent ran.
func (p *Picture) watchObjects(factory informers.SharedInformerFactory) (prune func(), err error) {
	core := factory.Core().V1()
	nodes, pods, services := core.Nodes().Informer(), core.Pods().Informer(), core.Services().Informer()
	ofNode := func(n *corev1.Node) (scene.Thing, bool) { return scene.OfNode(n), true }
	ofPod := func(pod *corev1.Pod) (scene.Thing, bool) { return scene.OfPod(pod), true }
	return func() {
			pruneObjects(p, scene.KindNode, nodes, ofNode)
			pruneObjects(p, scene.KindPod, pods, ofPod)
			pruneObjects(p, scene.KindService, services, scene.OfService)
		}, errors.Join(
			showObjects(p, nodes, ofNode), showObjects(p, pods, ofPod), showObjects(p, services, scene.OfService),
		)
}

// showObjects records the objects of an informer as things; toThing's second result is false for those
// that are not shown.
func showObjects[O any](p *Picture, informer cache.SharedIndexInformer, toThing func(*O) (scene.Thing, bool)) error {
	isNew := func(*O) bool { return true }
	return follow.Objects(informer, isNew, func(before, after *O) {
		if after != nil {
			if t, shown := toThing(after); shown {
				p.setThing(t)
				return
			}
			before = after
		}
		t, _ := toThing(before)
		p.removeThing(t.ID)
	})
}

func pruneObjects[O any](
	p *Picture,
	kind scene.Kind,
	informer cache.SharedIndexInformer,
	toThing func(*O) (scene.Thing, bool),
) {
	there := map[string]bool{}
	for _, obj := range informer.GetStore().List() {
		if o, ok := obj.(*O); ok {
			t, shown := toThing(o)
			there[t.ID] = shown
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.log.Things() {
		if t.Kind == kind && !there[t.ID] {
			p.addLocked(scene.Change{Time: time.Now(), Gone: t.ID})
		}
	}
}

// balancerReader is what Follow asks of the cloud.
type balancerReader interface {
	ListLoadBalancers(ctx context.Context, f client.LoadBalancerFilter) ([]api.LoadBalancer, error)
	LoadBalancerHealth(ctx context.Context, id string) (*api.LoadBalancerHealth, error)
	LoadBalancerStats(ctx context.Context, id string) (*api.LoadBalancerStats, error)
}

// Follow records, until ctx ends, what neither events nor watches tell: health and traffic of the
// balancers' targets, and who leads the CCMs. What cannot be read stays as it was.
func (p *Picture) Follow(ctx context.Context, cloud balancerReader, kube kubernetes.Interface) error {
	traffic := map[string]trafficCount{}
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		p.readTraffic(ctx, cloud, traffic)
		leases := kube.CoordinationV1().Leases(metav1.NamespaceSystem)
		if lease, err := leases.Get(ctx, ccmLease, metav1.GetOptions{}); err == nil {
			p.setThing(scene.OfLease(lease))
		} else if apierrors.IsNotFound(err) {
			p.removeThing("lease/" + ccmLease)
		}
	}, trafficInterval)
	return nil
}

// trafficCount is what a balancer had sent to each instance at a time.
type trafficCount struct {
	at    time.Time
	bytes map[string]int64
}

func (p *Picture) readTraffic(ctx context.Context, cloud balancerReader, counted map[string]trafficCount) {
	listed, err := cloud.ListLoadBalancers(ctx, client.LoadBalancerFilter{})
	if err != nil {
		return
	}
	for _, lb := range listed[:min(len(listed), maxAskedBalancers)] {
		health, err1 := cloud.LoadBalancerHealth(ctx, lb.ID)
		stats, err2 := cloud.LoadBalancerStats(ctx, lb.ID)
		if err1 != nil || err2 != nil {
			continue
		}
		before, now := counted[lb.ID], time.Now()
		counted[lb.ID] = trafficCount{now, p.setTargets(
			lb.ID, health.Targets, stats.Targets, before.bytes, now.Sub(before.at).Seconds(),
		)}
	}
	maps.DeleteFunc(counted, func(id string, _ trafficCount) bool {
		return !slices.ContainsFunc(listed, func(lb api.LoadBalancer) bool { return lb.ID == id })
	})
}

// setTargets records health and traffic of a balancer that the events have told of.
func (p *Picture) setTargets(
	id string,
	health []api.TargetHealth,
	stats []api.TargetStats,
	before map[string]int64,
	seconds float64,
) (bytes map[string]int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t, ok := p.log.FindByCloudID(id); ok {
		bytes = t.SetTargets(health, stats, before, seconds)
		p.addLocked(scene.Change{Time: time.Now(), Thing: &t})
	}
	return bytes
}
