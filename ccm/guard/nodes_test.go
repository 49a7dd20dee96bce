package guard

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	cloudprovider "k8s.io/cloud-provider"
	servicecontroller "k8s.io/cloud-provider/controllers/service"

	"github.com/ccmlab/ccmlab/ccm/core"
)

// finder says of every Node that its instance is gone for a reason, or that nothing is known.
type finder struct {
	core.Instances // nil
	goneReason     string
	err            error
	asked          int
}

func (f *finder) MayDelete(context.Context, *corev1.Node) (string, error) {
	f.asked++
	return f.goneReason, f.err
}

func (f *finder) InstanceMetadata(context.Context, *corev1.Node) (*cloudprovider.InstanceMetadata, error) {
	return nil, f.err
}

// limitNodes knows no Node yet, so that one may go.
func limitNodes() (*Instances, *finder, cache.Indexer, *told) {
	f, indexer, events := &finder{}, cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{}), &told{}
	i := Limit(f, oneThird, events)
	i.configMaps = &memoryConfigMaps{}
	i.Follow(corelisters.NewNodeLister(indexer), func() bool { return true })
	return i, f, indexer, events
}

func node(uid types.UID) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: uid}}
}

// A Node that is back costs the budget anew. One that somebody removes, the autoscaler or a person, costs nothing.
func TestInstanceExists(t *testing.T) {
	deleted, tainted := node("u2"), node("u3")
	deleted.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	tainted.Spec.Taints = []corev1.Taint{{Key: servicecontroller.ToBeDeletedTaint}}
	i, f, _, _ := limitNodes()
	for _, tc := range []struct {
		node       *corev1.Node
		goneReason string
		err        error
		want       string // the error; "" for none
		allowed    bool
	}{
		{node: node("u1")},
		{node: node("u1"), err: errors.New("503"), want: "whether the instance of node node-1 exists: 503"},
		{node: node("u1"), goneReason: "it ended", allowed: true},
		{node: node("u1")},
		{node: node("u1"), goneReason: "it ended", want: "kept until"},
		{node: deleted, goneReason: "it ended"},
		{node: tainted, goneReason: "it ended"},
	} {
		f.goneReason, f.err = tc.goneReason, tc.err
		there, err := i.InstanceExists(t.Context(), tc.node)
		if tc.want != "" {
			require.ErrorContains(t, err, tc.want)
			continue
		}
		require.NoError(t, err)
		assert.Equal(t, tc.goneReason == "", there)
		assert.Equal(t, tc.allowed, i.allowed.Has("u1"))
	}
}

// A Node that has registered anew does not go because the one before it may.
func TestReplacedNodeStays(t *testing.T) {
	i, f, indexer, _ := limitNodes()
	f.goneReason = "it ended"
	require.NoError(t, indexer.Add(node("another")))
	_, err := i.InstanceExists(t.Context(), node("u1"))
	require.ErrorContains(t, err, "node node-1 has registered again since")
}

// While a Node is held the cloud is not asked about it, and Events say what holds it. It is let go when its
// instance turns out to exist.
func TestHeldNode(t *testing.T) {
	i, f, _, events := limitNodes()
	f.goneReason = "it ended"
	for n := range 4 {
		_, err := i.InstanceExists(events.context(), node(types.UID(fmt.Sprint("u", min(n, 1)))))
		require.Equal(t, n == 0, err == nil)
	}
	assert.Equal(t, 2, f.asked, "one that goes, and one that is asked about thrice")
	require.Len(t, events.events, 2)
	assert.Contains(t, events.events[0], "MassDeletionStopped: Mass deletion stopped (trip 1): more than 1 of 1 Nodes")
	assert.Contains(t, events.events[1], "MassDeletionHeld: Node is not deleted: it ended")
	_, err := i.InstanceMetadata(t.Context(), node("u1"))
	require.NoError(t, err)
	require.NoError(t, i.CheckHeld("u1"))
}
