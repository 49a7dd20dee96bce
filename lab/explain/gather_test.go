package explain

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// fakeCloud answers, unless it is told to refuse a call, or to hang.
type fakeCloud struct {
	t       *testing.T
	refuse  map[string]bool
	hang    bool
	healths []string
	stats   *api.LoadBalancerStats
}

func (c *fakeCloud) call(ctx context.Context, name string) error {
	switch {
	case c.hang:
		<-ctx.Done()
		return ctx.Err()
	case c.refuse[name]:
		return errors.New(name + " refused")
	}
	return nil
}

func (c *fakeCloud) Project(ctx context.Context) (*api.Project, error) {
	return &api.Project{ID: "p-1"}, c.call(ctx, "project")
}

func (c *fakeCloud) ListInstances(ctx context.Context, _ client.InstanceFilter) ([]api.Instance, error) {
	return []api.Instance{
		instance("i-1", api.InstanceRunning), {ID: "i-9", Name: "other", State: api.InstanceTerminated},
	}, c.call(ctx, "instances")
}

func (c *fakeCloud) ListAddresses(ctx context.Context, _ client.AddressFilter) ([]api.ReservedAddress, error) {
	return []api.ReservedAddress{{Metadata: api.Metadata{ID: "a-1"}, IP: "127.30.64.1"}}, c.call(ctx, "addresses")
}

func (c *fakeCloud) ListLoadBalancers(ctx context.Context, f client.LoadBalancerFilter) ([]api.LoadBalancer, error) {
	assert.Empty(c.t, f.Tags, "each CCM has a tag of its own for a Service's UID")
	well := wellService().Balancer
	well.Tags = api.Tags{contract.TagServiceUID: "s-uid"}
	return []api.LoadBalancer{
		{Metadata: api.Metadata{ID: "lb-0", Tags: api.Tags{contract.TagServiceUID: "other"}}}, *well,
	}, c.call(ctx, "balancers")
}

func (c *fakeCloud) LoadBalancerHealth(ctx context.Context, id string) (*api.LoadBalancerHealth, error) {
	c.healths = append(c.healths, id)
	return wellService().Health, c.call(ctx, "health")
}

func (c *fakeCloud) LoadBalancerStats(ctx context.Context, id string) (*api.LoadBalancerStats, error) {
	assert.Equal(c.t, "lb-1", id)
	return c.stats, c.call(ctx, "stats")
}

func (c *fakeCloud) Quotas(ctx context.Context) (*api.Quotas, error) {
	return &api.Quotas{LoadBalancers: api.Quota{Limit: 3}}, c.call(ctx, "quotas")
}

func (c *fakeCloud) ListFaults(ctx context.Context) ([]api.Fault, error) {
	return nil, c.call(ctx, "faults")
}

func (c *fakeCloud) ListAudit(ctx context.Context, f client.AuditFilter, limit int) ([]api.AuditEntry, error) {
	assert.Equal(c.t, client.AuditFilter{Token: "ccm"}, f)
	assert.Positive(c.t, limit)
	return nil, c.call(ctx, "audit")
}

// objects are those of a well Node and a well Service.
func objects() []runtime.Object {
	n, s := wellNode(), wellService()
	recent := metav1.NewMicroTime(time.Now().Add(time.Hour)) // However slow the test is.
	n.Lease.ObjectMeta = metav1.ObjectMeta{Name: "node-1", Namespace: corev1.NamespaceNodeLease}
	n.Lease.Spec.RenewTime = &recent
	slice := s.Slices[0]
	slice.ObjectMeta = metav1.ObjectMeta{
		Name: "web-x", Namespace: "default", Labels: map[string]string{discoveryv1.LabelServiceName: "web"},
	}
	all := []runtime.Object{n.Node, n.Lease, s.Service, &slice}
	for _, p := range s.Pods {
		p.Namespace, p.Labels = "default", map[string]string{"app": "web"}
		all = append(all, &p)
	}
	all = append(all, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: "stranger", Namespace: "default", Labels: map[string]string{"app": "other"},
	}})
	return all
}

func source(t *testing.T) (Source, *fake.Clientset, *fakeCloud) {
	t.Helper()
	kube, cloud := fake.NewClientset(objects()...), &fakeCloud{t: t, refuse: map[string]bool{}}
	facts := LabFacts{LabName: "lab", Components: around("node/node-1").Components}
	return Source{LabFacts: facts, Kube: kube, Cloud: cloud}, kube, cloud
}

// refuse has the API server refuse to give one resource.
func refuse(kube *fake.Clientset, resource string) {
	kube.PrependReactor("*", resource, func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New(resource + " refused")
	})
}

func TestAllIsAskedAndNothingChanged(t *testing.T) {
	s, kube, cloud := source(t)
	x := s.Node(t.Context(), "node-1")
	assert.Equal(t, Ready, x.State, x.Because)
	assert.Empty(t, x.Missing)
	x = s.Service(t.Context(), "default", "web")
	assert.Equal(t, Ready, x.State, x.Because)
	assert.Empty(t, x.Missing)
	assert.Equal(t, []string{"lb-1"}, cloud.healths)
	for _, a := range kube.Actions() {
		assert.Contains(t, []string{"get", "list"}, a.GetVerb(), "%s %s", a.GetVerb(), a.GetResource().Resource)
	}
}

func TestTheBalancersTrafficIsAsked(t *testing.T) {
	s, _, cloud := source(t)
	cloud.stats = &api.LoadBalancerStats{
		Listeners: []api.ListenerStats{{Port: 8080, Protocol: "tcp", Connections: 2, BrokenConnections: 2}},
	}
	x := s.Service(t.Context(), "default", "web")
	assert.Equal(t, "Service web has an address, and nothing behind it has answered on 8080/TCP so far: "+
		"2 connections failed, and none ended well.", x.Verdict)
}

func TestWhatIsNotThereIsNotFound(t *testing.T) {
	s, _, _ := source(t)
	x := s.Node(t.Context(), "node-2")
	assert.Equal(t, "Node node-2 does not exist, and no instance has that name.", x.Verdict)
	x = s.Service(t.Context(), "other", "web")
	assert.Equal(t, "Service other/web does not exist.", x.Verdict)
	assert.Equal(t, "lab explain service/default/web", x.Next[0].Command)
}

func TestWhatDoesNotAnswerIsMissing(t *testing.T) {
	for what, c := range map[string]struct {
		cloud, cluster string
		node, service  State
		missingOfNode  []string
		missingOfSvc   []string
	}{
		"the cloud's instances": {cloud: "instances", node: Degraded, service: Ready,
			missingOfNode: []string{"cloud: all that it would say"},
			missingOfSvc:  []string{"cloud: instances: instances refused"}},
		"its balancers": {
			cloud: "balancers", node: Ready, service: Unknown, missingOfSvc: []string{"cloud: all that it would say"},
		},
		"its quotas": {
			cloud: "quotas", node: Ready, service: Ready, missingOfSvc: []string{"cloud: quotas: quotas refused"},
		},
		"their health": {
			cloud: "health", node: Ready, service: Ready,
			missingOfSvc: []string{"cloud: the health of lb-1: health refused"},
		},
		"their traffic": {
			cloud: "stats", node: Ready, service: Ready,
			missingOfSvc: []string{"cloud: the traffic of lb-1: stats refused"},
		},
		"its faults": {cloud: "faults", node: Ready, service: Ready,
			missingOfNode: []string{"cloud: fault rules: faults refused"},
			missingOfSvc:  []string{"cloud: fault rules: faults refused"}},
		"its audit": {cloud: "audit", node: Ready, service: Ready,
			missingOfNode: []string{"cloud: the CCM's calls: audit refused"},
			missingOfSvc:  []string{"cloud: the CCM's calls: audit refused"}},
		"the cluster's nodes": {cluster: "nodes", node: Unknown, service: Unknown,
			missingOfNode: []string{"cluster: all that it would say"},
			missingOfSvc:  []string{"cluster: all that it would say"}},
		"its Services": {
			cluster: "services", node: Ready, service: Unknown,
			missingOfSvc: []string{"cluster: all that it would say"},
		},
		"its EndpointSlices": {
			cluster: "endpointslices", node: Ready, service: Unknown,
			missingOfSvc: []string{"cluster: all that it would say"},
		},
		"its leases": {
			cluster: "leases", node: Ready, service: Ready,
			missingOfNode: []string{"cluster: the kubelet's lease: leases refused"},
		},
		"its events": {cluster: "events", node: Ready, service: Ready,
			missingOfNode: []string{"cluster: events: events refused"},
			missingOfSvc:  []string{"cluster: events: events refused", "cluster: the pods' events: events refused"}},
	} {
		t.Run(what, func(t *testing.T) {
			s, kube, cloud := source(t)
			cloud.refuse[c.cloud] = true
			if c.cluster != "" {
				refuse(kube, c.cluster)
			}
			node, service := s.Node(t.Context(), "node-1"), s.Service(t.Context(), "default", "web")
			assert.Equal(t, c.node, node.State, node.Verdict)
			assert.Equal(t, c.service, service.State, service.Verdict)
			assert.Equal(t, c.missingOfNode, node.Missing)
			assert.Equal(t, c.missingOfSvc, service.Missing)
		})
	}
}

func TestRightsThatTheLabLacksAreNoSilence(t *testing.T) {
	s, kube, _ := source(t)
	kube.PrependReactor("list", "endpointslices", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(discoveryv1.Resource("endpointslices"), "", errors.New("no rule"))
	})
	x := s.Service(t.Context(), "default", "web")
	assert.Equal(t, Unknown, x.State)
	assert.Equal(t, "Service web cannot be explained: the lab's own user may not look at all of it.", x.Verdict)
	assert.Equal(t, []Step{{"give the lab the rights of this version", "lab up"}}, x.Next)
}

func TestACloudThatHangsIsNotWaitedFor(t *testing.T) {
	s, _, cloud := source(t)
	cloud.hang = true
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		x := s.Service(t.Context(), "default", "web")
		assert.LessOrEqual(t, time.Since(began), queryTimeout+followUpTimeout)
		assert.Equal(t, Unknown, x.State)
		assert.Contains(t, x.Because, Fact{Cloud, "no answer in time"})
	})
}

func TestEventsOfAnEarlierNodeOfThatNameDoNotCount(t *testing.T) {
	s, kube, _ := source(t)
	for name, e := range map[string]corev1.Event{
		"old":     {LastTimestamp: metav1.NewTime(now.Add(-time.Hour))},
		"another": {InvolvedObject: corev1.ObjectReference{UID: "other"}},
		"ours":    {InvolvedObject: corev1.ObjectReference{UID: "n-uid"}},
		"kubelet": {InvolvedObject: corev1.ObjectReference{UID: "node-1"}},
	} {
		if e.LastTimestamp.IsZero() {
			e.LastTimestamp = metav1.NewTime(now)
		}
		e.Name, e.Namespace, e.Reason = name, "default", name
		require.NoError(t, kube.Tracker().Add(&e))
	}
	events, err := s.listEventsOf(t.Context(), "", "Node", "node-1", ago(time.Minute), "n-uid", "node-1")
	require.NoError(t, err)
	var reasons []string
	for _, e := range events {
		reasons = append(reasons, e.Reason)
	}
	assert.ElementsMatch(t, []string{"ours", "kubelet"}, reasons)
}

func TestNamesAreThoseThatCanBeExplained(t *testing.T) {
	s, kube, cloud := source(t)
	require.NoError(t, kube.Tracker().Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "lingering"}}))
	names, err := s.Names(t.Context(), KindNode)
	require.NoError(t, err)
	assert.Equal(t, []string{"lingering", "node-1"}, names, "no terminated instance")
	names, err = s.Names(t.Context(), KindService)
	require.NoError(t, err)
	assert.Equal(t, []string{"default/web"}, names)

	refuse(kube, "nodes")
	names, err = s.Names(t.Context(), KindNode)
	require.NoError(t, err)
	assert.Equal(t, []string{"node-1"}, names, "the cloud knows instances")
	cloud.refuse["instances"] = true
	_, err = s.Names(t.Context(), KindNode)
	require.ErrorContains(t, err, "neither the API server nor the cloud")
	refuse(kube, "services")
	_, err = s.Names(t.Context(), KindService)
	require.ErrorContains(t, err, "services refused")
}

func TestWhenAnEventWasSeen(t *testing.T) {
	for name, e := range map[string]corev1.Event{
		"an old recorder's": {FirstTimestamp: ago(time.Hour), LastTimestamp: ago(time.Second)},
		"a new recorder's":  {EventTime: metav1.NewMicroTime(now.Add(-time.Second))},
		"a series'": {
			EventTime: metav1.NewMicroTime(now.Add(-time.Hour)),
			Series:    &corev1.EventSeries{LastObservedTime: metav1.NewMicroTime(now.Add(-time.Second))},
		},
		"nobody's": {ObjectMeta: metav1.ObjectMeta{CreationTimestamp: ago(time.Second)}},
	} {
		assert.Equal(t, now.Add(-time.Second), eventTime(&e), name)
	}
}
