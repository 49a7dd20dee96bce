package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab/testbed"
)

// goal are things that are awaited, until each has got there.
type goal struct {
	name string
	say  func(string, ...any)
	stop context.CancelFunc

	mu      sync.Mutex
	pending map[string]bool
	first   time.Time // when the earliest got there
	last    time.Time // and the latest
	err     error
	over    chan struct{} // closed when nothing is pending, or upon err
	ended   chan struct{} // closed when nobody watches any more
}

func (s *stage) aim(what []string, stop context.CancelFunc) *goal {
	g := &goal{name: s.name, say: s.say, stop: stop, pending: map[string]bool{}, over: make(chan struct{}), ended: make(chan struct{})}
	for _, name := range what {
		g.pending[name] = true
	}
	return g
}

func (g *goal) reached(name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.pending[name] {
		delete(g.pending, name)
		if g.last = time.Now(); g.first.IsZero() {
			g.first = g.last
		}
		if len(g.pending) == 0 {
			close(g.over)
		}
	}
}

func (g *goal) fail(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err == nil && len(g.pending) > 0 {
		g.err = err
		close(g.over)
	}
}

func (g *goal) left() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.pending)
}

// sayEvery is how often a goal tells how far it is.
const sayEvery = 10 * time.Second

// await returns when all have got there, or after bound: then some are left. The
// time is that of the last one that did.
func (g *goal) await(ctx context.Context, bound time.Duration) (time.Time, error) {
	defer func() { g.stop(); <-g.ended }()
	give := time.NewTimer(bound)
	defer give.Stop()
	tick := time.NewTicker(sayEvery)
	defer tick.Stop()
	for {
		select {
		case <-g.over:
			g.mu.Lock()
			defer g.mu.Unlock()
			return g.last, g.err
		case <-tick.C:
			g.say("%s: %d to go", g.name, g.left())
		case <-give.C:
			g.mu.Lock()
			defer g.mu.Unlock()
			return g.last, nil
		case <-ctx.Done():
			return time.Time{}, ctx.Err()
		}
	}
}

// follow has a goal watch objects of the API server from now on. Those that have
// got there already count at once.
func follow[T, L runtime.Object](
	ctx context.Context,
	s *stage,
	what []string,
	list func(context.Context, metav1.ListOptions) (L, error),
	watchFrom func(context.Context, metav1.ListOptions) (watch.Interface, error),
	there func(watch.EventType, T) bool,
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
	w, err := watchtools.NewRetryWatcherWithContext(ctx, at.GetResourceVersion(), &cache.ListWatch{WatchFuncWithContext: watchFrom})
	if err != nil {
		cancel()
		return nil, err
	}
	g := s.aim(what, cancel)
	take := func(event watch.EventType, object runtime.Object) {
		one, ok := object.(T)
		if !ok || !there(event, one) {
			return
		}
		if o, err := meta.Accessor(object); err == nil {
			g.reached(o.GetName())
		}
	}
	go func() {
		defer close(g.ended)
		_ = meta.EachListItem(found, func(o runtime.Object) error { take(watch.Added, o); return nil })
		for event := range w.ResultChan() {
			if event.Type == watch.Error {
				g.fail(fmt.Errorf("watching: %v", event.Object))
				return
			}
			take(event.Type, event.Object)
		}
		g.fail(errors.New("the watch ended"))
	}()
	return g, nil
}

// watchNodes has a goal watch these Nodes.
func (s *stage) watchNodes(ctx context.Context, names []string, there func(watch.EventType, *corev1.Node) bool) (*goal, error) {
	nodes := s.watcher.CoreV1().Nodes()
	return follow(ctx, s, names, nodes.List, nodes.Watch, there)
}

// watchServices has a goal watch these Services of the namespace default.
func (s *stage) watchServices(ctx context.Context, names []string, there func(watch.EventType, *corev1.Service) bool) (*goal, error) {
	services := s.watcher.CoreV1().Services(metav1.NamespaceDefault)
	return follow(ctx, s, names, services.List, services.Watch, there)
}

// watchRoutes has a goal watch the cloud for routes with these destinations.
func (s *stage) watchRoutes(ctx context.Context, destinations []string) *goal {
	ctx, cancel := context.WithCancel(ctx)
	g := s.aim(destinations, cancel)
	go func() {
		defer close(g.ended)
		err := s.bed.Cloud().Follow(ctx, 0, func(e api.Event) error {
			if e.Type == api.EventCreated && e.Route != nil {
				g.reached(e.Route.Destination)
			}
			return nil
		}, nil, client.EventFilter{Resources: []api.ResourceKind{api.ResourceRoute}})
		g.fail(err)
	}()
	return g
}

func untainted(_ watch.EventType, n *corev1.Node) bool { return !tainted(n, testbed.Taint.Key) }

func tainted(n *corev1.Node, key string) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
}
