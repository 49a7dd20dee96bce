package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/bench/harness"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab/kubediff"
)

// goal is a set of objects, by name, of which each must reach some state.
type goal struct {
	name string
	stop context.CancelFunc

	mu         sync.Mutex
	pending    map[string]bool
	first      time.Time // when the first object reached it
	last       time.Time // and the last one
	err        error
	done       chan struct{} // closed when nothing is pending, or upon err
	watchEnded chan struct{} // closed when the watch has ended
}

func (s *stage) newGoal(what []string, stop context.CancelFunc) *goal {
	g := &goal{
		name: s.name, stop: stop, pending: map[string]bool{}, done: make(chan struct{}),
		watchEnded: make(chan struct{}),
	}
	for _, name := range what {
		g.pending[name] = true
	}
	return g
}

func (g *goal) markReached(name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.pending[name] {
		delete(g.pending, name)
		if g.last = time.Now(); g.first.IsZero() {
			g.first = g.last
		}
		if len(g.pending) == 0 {
			close(g.done)
		}
	}
}

func (g *goal) failWith(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err == nil && len(g.pending) > 0 {
		g.err = err
		close(g.done)
	}
}

func (g *goal) countPending() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.pending)
}

// progressInterval is how often a goal logs how many objects are pending.
const progressInterval = 10 * time.Second

// awaitAll returns when all objects have reached the goal, or after bound, and then some are
// pending. The time is when the last one reached it.
func (g *goal) awaitAll(ctx context.Context, bound time.Duration) (time.Time, error) {
	defer func() { g.stop(); <-g.watchEnded }()
	give := time.NewTimer(bound)
	defer give.Stop()
	tick := time.NewTicker(progressInterval)
	defer tick.Stop()
	for {
		select {
		case <-g.done:
			g.mu.Lock()
			defer g.mu.Unlock()
			return g.last, g.err
		case <-tick.C:
			harness.LogProgress("%s: %d to go", g.name, g.countPending())
		case <-give.C:
			g.mu.Lock()
			defer g.mu.Unlock()
			return g.last, nil
		case <-ctx.Done():
			return time.Time{}, ctx.Err()
		}
	}
}

// watchGoal makes a goal that watches objects of the API server from now on. Those that have
// reached it already count at once.
func watchGoal[T, L runtime.Object](
	ctx context.Context,
	s *stage,
	names []string,
	list func(context.Context, metav1.ListOptions) (L, error),
	watchFrom func(context.Context, metav1.ListOptions) (watch.Interface, error),
	hasReached func(watch.EventType, T) bool,
) (*goal, error) {
	ctx, cancel := context.WithCancel(ctx)
	found, err := list(ctx, metav1.ListOptions{})
	if err != nil {
		cancel()
		return nil, err
	}
	at, err := meta.ListAccessor(found)
	if err != nil {
		cancel()
		return nil, err
	}
	w, err := watchtools.NewRetryWatcherWithContext(
		ctx, at.GetResourceVersion(), &cache.ListWatch{WatchFuncWithContext: watchFrom},
	)
	if err != nil {
		cancel()
		return nil, err
	}
	g := s.newGoal(names, cancel)
	handleObject := func(event watch.EventType, object runtime.Object) {
		one, ok := object.(T)
		if !ok || !hasReached(event, one) {
			return
		}
		if o, err := meta.Accessor(object); err == nil {
			g.markReached(o.GetName())
		}
	}
	go func() {
		defer close(g.watchEnded)
		_ = meta.EachListItem(found, func(o runtime.Object) error { handleObject(watch.Added, o); return nil })
		for event := range w.ResultChan() {
			if event.Type == watch.Error {
				g.failWith(fmt.Errorf("watching: %v", event.Object))
				return
			}
			handleObject(event.Type, event.Object)
		}
		g.failWith(errors.New("the watch ended"))
	}()
	return g, nil
}

// watchNodes watches for a goal that these Nodes reach.
func (s *stage) watchNodes(
	names []string,
	hasReached func(watch.EventType, *corev1.Node) bool,
) func(context.Context) (*goal, error) {
	nodes := s.watcher.CoreV1().Nodes()
	return func(ctx context.Context) (*goal, error) {
		return watchGoal(ctx, s, names, nodes.List, nodes.Watch, hasReached)
	}
}

// watchServices watches for a goal that these Services of the namespace default reach.
func (s *stage) watchServices(
	names []string,
	hasReached func(watch.EventType, *corev1.Service) bool,
) func(context.Context) (*goal, error) {
	services := s.watcher.CoreV1().Services(metav1.NamespaceDefault)
	return func(ctx context.Context) (*goal, error) {
		return watchGoal(ctx, s, names, services.List, services.Watch, hasReached)
	}
}

// watchRoutes watches for a goal that is reached when the cloud has routes with these
// destinations.
func (s *stage) watchRoutes(destinations []string) func(context.Context) (*goal, error) {
	return func(ctx context.Context) (*goal, error) {
		ctx, cancel := context.WithCancel(ctx)
		g := s.newGoal(destinations, cancel)
		go func() {
			defer close(g.watchEnded)
			g.failWith(s.bed.Cloud().Follow(ctx, 0, func(e api.Event) error {
				if e.Type == api.EventCreated && e.Route != nil {
					g.markReached(e.Route.Destination)
				}
				return nil
			}, nil, client.EventFilter{Resources: []api.ResourceKind{api.ResourceRoute}}))
		}()
		return g, nil
	}
}

func isDeleted[T any](e watch.EventType, _ T) bool { return e == watch.Deleted }

func hasAddress(_ watch.EventType, svc *corev1.Service) bool {
	return len(svc.Status.LoadBalancer.Ingress) > 0
}

// isInitialised tells whether the CCM has lifted a Node's taint.
func isInitialised(_ watch.EventType, n *corev1.Node) bool { return !kubediff.IsUninitialized(n) }
