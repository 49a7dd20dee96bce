package ccm

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// memoryConfigMaps has the one ConfigMap of a guard, and refuses an update of an older version, as
// the API server does and client-go's fake does not.
type memoryConfigMaps struct {
	typedcorev1.ConfigMapInterface
	mu      sync.Mutex
	stored  *corev1.ConfigMap
	refusal error // of every request, unless nil
	saves   int
}

var configMapResource = schema.GroupResource{Resource: "configmaps"}

func (m *memoryConfigMaps) Get(_ context.Context, name string, _ metav1.GetOptions) (*corev1.ConfigMap, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.refusal != nil:
		return nil, m.refusal
	case m.stored == nil:
		return nil, apierrors.NewNotFound(configMapResource, name)
	}
	return m.stored.DeepCopy(), nil
}

func (m *memoryConfigMaps) Create(
	_ context.Context, c *corev1.ConfigMap, _ metav1.CreateOptions,
) (*corev1.ConfigMap, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stored != nil {
		return nil, apierrors.NewAlreadyExists(configMapResource, c.Name)
	}
	return m.store(c)
}

func (m *memoryConfigMaps) Update(
	_ context.Context, c *corev1.ConfigMap, _ metav1.UpdateOptions,
) (*corev1.ConfigMap, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stored == nil || c.ResourceVersion != m.stored.ResourceVersion {
		return nil, apierrors.NewConflict(configMapResource, c.Name, nil)
	}
	return m.store(c)
}

func (m *memoryConfigMaps) store(c *corev1.ConfigMap) (*corev1.ConfigMap, error) {
	if m.refusal != nil {
		return nil, m.refusal
	}
	m.saves++
	m.stored = c.DeepCopy()
	m.stored.UID, m.stored.ResourceVersion = "guard", strconv.Itoa(m.saves)
	return m.stored.DeepCopy(), nil
}

// confirm is what a person does, with what kubectl annotate does.
func (m *memoryConfigMaps) confirm(trip string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.saves++
	m.stored.ResourceVersion = strconv.Itoa(m.saves)
	m.stored.Annotations = map[string]string{contract.AnnotationConfirmMassDeletion: trip}
}

// oneThird has the configuration's default share, minimum and hold: a zone of three may go at once,
// and of a tiny cluster one Node.
var oneThird = massDeletion{Share: 0.33, Minimum: 1, Window: time.Hour, Hold: 30 * time.Minute}

// newTestGuard is a guard of things that are all known, with a record of its own.
func newTestGuard(what guarded, clock clock.PassiveClock, explain *explainer) *deletionGuard {
	g := newDeletionGuard(what, oneThird, clock, explain)
	g.store = &guardConfigMap{configMaps: &memoryConfigMaps{}}
	g.setSynced(func() bool { return true })
	return g
}

// herd is a cluster of Nodes that are not Ready, so that upstream asks about each in every round
// and deletes those that are gone.
type herd struct {
	t      require.TestingT
	i      *instances
	clock  *clocktesting.FakePassiveClock
	nodes  cache.Indexer
	events *record.FakeRecorder
	record *memoryConfigMaps

	mu      sync.Mutex
	ended   map[string]bool // instances that the cloud says are gone
	asked   []string        // about which instances the cloud was asked
	latency time.Duration   // of each answer of the cloud
	project string          // in the name of which it answers
}

func newHerd(t *testing.T, tt require.TestingT, size int) *herd {
	h := &herd{
		t: tt, clock: clocktesting.NewFakePassiveClock(time.Unix(0, 0)), ended: map[string]bool{}, project: ourProject,
		nodes: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{}), events: record.NewFakeRecorder(10 * size),
		record: &memoryConfigMaps{},
	}
	h.i = newInstances(&fakeAPI{t: t, getInstance: h.getInstance})
	h.i.nodes = corelisters.NewNodeLister(h.nodes)
	h.restart()
	for n := range size {
		id := h.id(n)
		joined := node("fakecloud://" + id)
		joined.Name, joined.UID = "node-"+id, types.UID(id)
		require.NoError(tt, h.nodes.Add(joined))
	}
	return h
}

func (h *herd) id(n int) string { return fmt.Sprintf("i-%04d", n) }

func (h *herd) getInstance(id string) (*api.Instance, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked = append(h.asked, id)
	h.after(h.latency)
	if h.ended[id] {
		return nil, problem(404, api.NotFound, h.project)
	}
	i := instance(api.InstanceRunning)
	i.ID = id
	return &i, nil
}

// restart has another process lead, which knows what the record has.
func (h *herd) restart() {
	h.i.explain = newExplainer()
	h.i.explain.setRecorder(h.events)
	h.i.guard = newTestGuard(guardedNodes, h.clock, h.i.explain)
	h.i.guard.store.configMaps, h.i.guard.list = h.record, h.i.listNodeUIDs
}

// end has the cloud say that these instances are gone, or are there after all.
func (h *herd) end(from, to int, gone bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for n := from; n < to; n++ {
		h.ended[h.id(n)] = gone
	}
}

// changeAll changes all Nodes.
func (h *herd) changeAll(change func(n *corev1.Node)) {
	for _, n := range h.all() {
		n = n.DeepCopy()
		change(n)
		require.NoError(h.t, h.nodes.Update(n))
	}
}

func (h *herd) all() []*corev1.Node {
	all, err := h.i.nodes.List(labels.Everything())
	require.NoError(h.t, err)
	slices.SortFunc(all, func(a, b *corev1.Node) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// round is one of upstream's MonitorNodes, and gives what went, and what the cloud was asked.
func (h *herd) round() (went, asked int) {
	h.asked = nil
	for _, n := range h.all() {
		if gone, err := h.i.mayDeleteNode(context.Background(), n); gone && assert.NoError(h.t, err) {
			require.NoError(h.t, h.nodes.Delete(n))
			went++
		}
	}
	return went, len(h.asked)
}

func (h *herd) after(d time.Duration) { h.clock.SetTime(h.clock.Now().Add(d)) }

// roundsFor makes a round every five seconds, and gives how many went.
func (h *herd) roundsFor(d time.Duration) (went int) {
	for until := h.clock.Now().Add(d); h.clock.Now().Before(until); {
		h.after(min(5*time.Second, until.Sub(h.clock.Now())))
		n, _ := h.round()
		went += n
		h.i.guard.refresh(context.Background())
	}
	return went
}

// requireTrip refreshes the guard: whether a trip holds Nodes, and how many.
func (h *herd) requireTrip(holds bool, held int) {
	g := h.i.guard
	g.refresh(context.Background())
	require.Equal(h.t, holds, g.state.isTripped() && !g.state.Confirmed, "holds")
	require.Len(h.t, g.held, held, "held")
}
