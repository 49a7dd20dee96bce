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

const itEnded = "it ended"

func limitNodes(t *testing.T, f *finder, there ...*corev1.Node) (*Instances, *told) {
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	for _, n := range there {
		require.NoError(t, indexer.Add(n))
	}
	events := &told{}
	i := Limit(f, oneThird, events)
	i.configMaps = &memoryConfigMaps{}
	i.Follow(corelisters.NewNodeLister(indexer), func() bool { return true })
	return i, events
}

func node(uid types.UID) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: uid}}
}

func TestInstanceExists(t *testing.T) {
	f := &finder{}
	i, _ := limitNodes(t, f)
	there, err := i.InstanceExists(t.Context(), node("u1"))
	require.NoError(t, err)
	assert.True(t, there)
	f.err = errors.New("503")
	_, err = i.InstanceExists(t.Context(), node("u1"))
	require.ErrorContains(t, err, "whether the instance of node node-1 exists: 503")
	for _, f.goneReason = range []string{itEnded, ""} {
		f.err = nil
		there, err = i.InstanceExists(t.Context(), node("u1"))
		require.NoError(t, err)
		assert.Equal(t, f.goneReason == "", there)
		assert.Equal(t, f.goneReason != "", i.allowed.Has("u1"), "one that is back costs the budget anew")
	}
}

// A Node that somebody removes, the autoscaler or a person, costs no budget and is not held.
func TestNodesThatAreBeingRemovedGo(t *testing.T) {
	for name, remove := range map[string]func(n *corev1.Node){
		"deleted":    func(n *corev1.Node) { n.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} },
		"autoscaler": func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: servicecontroller.ToBeDeletedTaint}} },
	} {
		t.Run(name, func(t *testing.T) {
			i, _ := limitNodes(t, &finder{goneReason: itEnded})
			for _, uid := range []types.UID{"u1", "u2"} {
				n := node(uid)
				remove(n)
				there, err := i.InstanceExists(t.Context(), n)
				require.NoError(t, err)
				assert.False(t, there)
			}
		})
	}
}

// A Node that has registered anew does not go because the one before it may.
func TestReplacedNodeStays(t *testing.T) {
	i, _ := limitNodes(t, &finder{goneReason: itEnded}, node("another"))
	_, err := i.InstanceExists(t.Context(), node("u1"))
	require.ErrorContains(t, err, "node node-1 has registered again since")
}

// While a Node is held the cloud is not asked about it, and Events say what holds it. It is let go when its
// instance turns out to exist.
func TestHeldNode(t *testing.T) {
	f := &finder{goneReason: itEnded}
	i, events := limitNodes(t, f)
	for n, want := range []string{"", "kept until", "kept until", "kept until"} {
		_, err := i.InstanceExists(events.context(), node(types.UID(fmt.Sprint("u", min(n, 1)))))
		if want == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, want)
		}
	}
	assert.Equal(t, 2, f.asked, "one that goes, and one that is asked about thrice")
	require.Len(t, events.events, 2)
	assert.Contains(t, events.events[0], "MassDeletionStopped: Mass deletion stopped (trip 1): more than 1 of 1 Nodes")
	assert.Contains(t, events.events[1], "MassDeletionHeld: Node is not deleted: it ended")
	f.err = nil
	_, err := i.InstanceMetadata(t.Context(), node("u1"))
	require.NoError(t, err)
	require.NoError(t, i.CheckHeld("u1"))
}
