package agent

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/console/scene"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/console/labscene"
	"github.com/ccmlab/ccmlab/lab/follow"
	"github.com/ccmlab/ccmlab/lab/timeline"
)

// ccmLease is the lease of a CCM's leader, by the default of k8s.io/cloud-provider.
const ccmLease = "cloud-controller-manager"

// Picture records how the lab's objects are, for the console. Like the Recorder it goes on after a
// restart where it was.
type Picture struct {
	*labscene.Log
	cloud   *scene.Follower
	cluster *scene.Source
	slog    *slog.Logger
}

// NewPicture makes a Picture that appends to its file.
func NewPicture(file string, logger *slog.Logger) (*Picture, error) {
	log, err := labscene.OpenLog(file)
	if err != nil {
		return nil, err
	}
	p := &Picture{
		Log: log, cloud: scene.NewFollower(log, log.Seq(), log.Newest()), slog: logger,
		cluster: scene.NewSource(
			log, "API server", log.Newest(), labscene.KindNode, labscene.KindPod, labscene.KindService,
			labscene.KindEndpoints, labscene.KindLease,
		),
	}
	return p, errors.Join(p.cloud.MarkUnasked(), p.cluster.MarkUnasked())
}

func (p *Picture) addChange(c scene.Change) { p.logError(p.Add(c)) }

func (p *Picture) logError(err error) {
	if err != nil {
		p.slog.Error("recording the picture", "error", err)
	}
}

func (p *Picture) setObject(t scene.Object) { p.addChange(scene.Change{Time: time.Now(), Object: &t}) }

func (p *Picture) removeObject(id string) { p.addChange(scene.Change{Time: time.Now(), Gone: id}) }

// CloudStream tells that the stream of the cloud's events is open (nil) or broken.
func (p *Picture) CloudStream(err error) { p.cloud.SetStream("events", err) }

// Event records an event of the cloud, unless it is recorded already.
func (p *Picture) Event(ev api.Event) { p.logError(p.cloud.Event(ev)) }

// Component records a component that started or ended, of which the timeline was told.
func (p *Picture) Component(c timeline.Change) {
	if name, ok := strings.CutPrefix(c.Subject, componentPrefix); ok {
		p.setObject(labscene.OfComponent(name, c.Detail, c.What == componentStarted))
	}
}

// AddAbsent records components that may run, unless it knows better.
func (p *Picture) AddAbsent(components ...string) {
	for _, name := range components {
		t := labscene.OfComponent(name, "", false)
		if _, known := p.Get(t.ID); !known {
			p.setObject(t)
		}
	}
}

// watchObjects records Nodes, Pods, Services of type LoadBalancer and endpoints, from when the factory is started.
// prune, called when its caches are complete, removes what went while no agent ran.
func (p *Picture) watchObjects(factory informers.SharedInformerFactory) (prune func(), err error) {
	core := factory.Core().V1()
	nodes, pods, services := core.Nodes().Informer(), core.Pods().Informer(), core.Services().Informer()
	ofNode := func(n *corev1.Node) (scene.Object, bool) { return labscene.OfNode(n), true }
	ofPod := func(pod *corev1.Pod) (scene.Object, bool) { return labscene.OfPod(pod), true }
	slices := factory.Discovery().V1().EndpointSlices().Informer()
	ofSlice := func(s *discoveryv1.EndpointSlice) (scene.Object, bool) { return labscene.OfEndpointSlice(s), true }
	return func() {
			pruneObjects(p, labscene.KindNode, nodes, ofNode)
			pruneObjects(p, labscene.KindPod, pods, ofPod)
			pruneObjects(p, labscene.KindService, services, labscene.OfService)
			pruneObjects(p, labscene.KindEndpoints, slices, ofSlice)
		}, errors.Join(
			showObjects(p, nodes, ofNode), showObjects(p, pods, ofPod), showObjects(p, services, labscene.OfService),
			showObjects(p, slices, ofSlice),
		)
}

// showObjects records the objects of an informer in the picture; toObject's second result is false for those
// that are not shown.
func showObjects[O any](p *Picture, informer cache.SharedIndexInformer, toObject func(*O) (scene.Object, bool)) error {
	isNew := func(*O) bool { return true }
	return follow.Objects(informer, isNew, func(before, after *O) {
		if after != nil {
			if t, shown := toObject(after); shown {
				p.setObject(t)
				return
			}
			before = after
		}
		t, _ := toObject(before)
		p.removeObject(t.ID)
	})
}

func pruneObjects[O any](
	p *Picture,
	kind scene.Kind,
	informer cache.SharedIndexInformer,
	toObject func(*O) (scene.Object, bool),
) {
	there := map[string]bool{}
	for _, obj := range informer.GetStore().List() {
		if o, ok := obj.(*O); ok {
			t, shown := toObject(o)
			there[t.ID] = shown
		}
	}
	for _, t := range p.Objects() {
		if t.Kind == kind && !there[t.ID] {
			p.removeObject(t.ID)
		}
	}
}

// containerPollInterval is how long a container's start or end may go unseen.
const containerPollInterval = 5 * time.Second

// FollowContainers records, until ctx ends, the components that are containers, of which no process tells.
// Machines are in the picture as instances.
func (p *Picture) FollowContainers(
	ctx context.Context,
	components func(context.Context) ([]cluster.Component, error),
) error {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		all, err := components(ctx)
		if err != nil { // The next time may tell.
			return
		}
		for _, c := range all {
			if c.PID == 0 && !strings.Contains(c.Name, "/") {
				p.setObject(labscene.OfComponent(c.Name, "", c.State == cluster.StateRunning))
			}
		}
	}, containerPollInterval)
	return nil
}

// FollowCloud records, until ctx ends, what no event of the cloud tells: health and traffic of the balancers'
// targets, faults, and that the cloud does not answer.
func (p *Picture) FollowCloud(ctx context.Context, cloud scene.Reader) error {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		_ = p.cloud.Poll(ctx, cloud) // The next one may read more.
	}, scene.PollInterval)
	return nil
}

// FollowCluster records, until ctx ends, what no watch tells: who leads the CCMs, and that the API server does not
// answer.
func (p *Picture) FollowCluster(ctx context.Context, kube kubernetes.Interface) error {
	leases := kube.CoordinationV1().Leases(metav1.NamespaceSystem)
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, scene.PollInterval)
		defer cancel()
		lease, err := leases.Get(ctx, ccmLease, metav1.GetOptions{})
		switch {
		case err == nil:
			p.setObject(labscene.OfLease(lease))
		case apierrors.IsNotFound(err):
			p.removeObject("lease/" + ccmLease)
			err = nil
		case apierrors.IsForbidden(err): // That is an answer, too.
			err = nil
		}
		p.logError(p.cluster.Observe(err))
	}, scene.PollInterval)
	return nil
}

var errWatchEnded = errors.New("a watch has ended")

// ObserveWatches has the picture know which of a client's watches are broken: an informer tells nobody that it
// connects again, and may wait for half a minute before it does.
func (p *Picture) ObserveWatches(kube *kubernetes.Clientset) {
	if c, ok := kube.CoreV1().RESTClient().(*rest.RESTClient); ok { // All groups of a clientset share its http.Client.
		c.Client.Transport = &watchObserver{c.Client.Transport, p.cluster}
	}
}

// watchObserver tells a source of the watches that pass through it, by their paths.
type watchObserver struct {
	http.RoundTripper
	source *scene.Source
}

// RoundTrip implements http.RoundTripper.
func (o *watchObserver) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := o.RoundTripper.RoundTrip(r)
	if !r.URL.Query().Has("watch") {
		return resp, err
	}
	if err == nil && resp.StatusCode != http.StatusOK {
		o.source.SetStream(r.URL.Path, errors.New(resp.Status))
	} else {
		o.source.SetStream(r.URL.Path, err)
	}
	if err == nil {
		resp.Body = &watchBody{resp.Body, func(err error) { o.source.SetStream(r.URL.Path, err) }}
	}
	return resp, err
}

// watchBody tells when a watch ends.
type watchBody struct {
	io.ReadCloser
	end func(error)
}

// Read implements io.Reader.
func (b *watchBody) Read(into []byte) (int, error) {
	n, err := b.ReadCloser.Read(into)
	if errors.Is(err, io.EOF) {
		b.end(errWatchEnded)
	} else if err != nil {
		b.end(err)
	}
	return n, err
}
