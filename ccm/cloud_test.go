package ccm

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	cloudprovider "k8s.io/cloud-provider"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// newTestCloud is a cloud that remembers nothing.
func newTestCloud(f *fakeAPI) *cloud {
	i := newInstances(f)
	return &cloud{
		checkToken: definite(f, "lab").CheckToken,
		instances:  i, guarded: limited(i), explain: i.explain, memoryHealth: newJobHealth("cache"), loadBalancers: &loadBalancers{},
		routes: &routes{health: newJobHealth("routes")}, identity: testIdentity(""),
		orphanGuard: newTestGuard(guardedOrphans, func() sets.Set[types.UID] { return nil }, i.explain),
	}
}

// clients gives the same client to all; who asks for anything but ClientOrDie
// panics.
type clients struct {
	cloudprovider.ControllerClientBuilder
	kube kubernetes.Interface
}

func (c clients) ClientOrDie(string) kubernetes.Interface { return c.kube }

// A cloud that swallows what it is sent keeps no controller from starting.
func TestInitializeDoesNotWaitForTheCloud(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		started, ended := make(chan struct{}), make(chan struct{})
		c := newTestCloud(&fakeAPI{t: t, project: func() (*api.Project, error) {
			<-started // If Initialize waits for this, both wait forever, which ends the test.
			close(ended)
			return nil, context.DeadlineExceeded
		}})
		stop := make(chan struct{})
		system := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system", UID: "cluster-uid"}}
		c.Initialize(clients{kube: fake.NewClientset(system)}, stop)
		assert.Equal(t, "cluster-uid", c.identity.uid(), "before any controller works")
		close(started)
		<-ended
		close(stop)
	})
}

// countedClients counts who asks for a client.
type countedClients struct {
	clients
	mu    sync.Mutex
	asked map[string]int
}

func (c *countedClients) ClientOrDie(name string) kubernetes.Interface {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked[name]++
	return c.kube
}

// With leader migration upstream initializes the cloud for each of two leases, at once.
func TestTwoLeasesShareOneCloud(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, stop := newTestCloud(&fakeAPI{t: t}), make(chan struct{})
		defer close(stop)
		builder := &countedClients{clients: clients{kube: fake.NewClientset()}, asked: map[string]int{}}
		shared := informers.NewSharedInformerFactory(builder.kube, 0)
		var leases sync.WaitGroup
		for range 2 {
			leases.Go(func() {
				c.Initialize(builder, stop)
				c.SetInformers(shared)
				_, err := c.routes.nodes.Get("node-1") // What its controllers do next.
				assert.True(t, apierrors.IsNotFound(err))
			})
		}
		leases.Wait()
		assert.Equal(t, map[string]int{"fakecloud-events": 1, "fakecloud-cluster": 1, "fakecloud-guard": 1}, builder.asked)
	})
}

// What was said of a Node or Service goes with it, though there is no cloud
// watch.
func TestForgetReportedCausesOfDeletedObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(&fakeAPI{t: t})
		c.explain.setRecorder(record.NewFakeRecorder(10))
		waiting, svc, stays := node(""), serviceWithAddress(), node("")
		stays.Name, stays.UID = "node-2", "u2"
		kube := fake.NewClientset(waiting, svc, stays)
		shared := informers.NewSharedInformerFactory(kube, 0)
		c.SetInformers(shared)
		ctx, cancel := context.WithCancel(t.Context())
		shared.Start(ctx.Done())
		defer func() { cancel(); shared.Shutdown() }()
		advanceTime(time.Second)

		for _, n := range []*corev1.Node{waiting, stays} {
			c.explain.warnOnce(n, topicInitialization, cause{reason: contract.ReasonInstanceNotFound}, "not there")
			c.explain.warnOnce(
				n, topicRoute+" 10.244.1.0/24", cause{reason: contract.ReasonRouteConflict}, "in the way",
			)
		}
		c.explain.warnOnce(svc, topicLoadBalancer, cause{reason: "Any"}, "any")
		require.NoError(t, kube.CoreV1().Nodes().Delete(ctx, waiting.Name, metav1.DeleteOptions{}))
		require.NoError(t, kube.CoreV1().Services(svc.Namespace).Delete(ctx, svc.Name, metav1.DeleteOptions{}))
		advanceTime(time.Second)
		assert.Len(t, c.explain.reported, 2, "those of the Node that is there")

		// An informer that missed the deletion.
		c.explain.forgetObject(cache.DeletedFinalStateUnknown{Key: stays.Name, Obj: stays})
		assert.Empty(t, c.explain.reported)
		c.explain.forgetObject("no object")
	})
}
