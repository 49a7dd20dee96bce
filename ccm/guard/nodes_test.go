package guard

import (
	"context"
	"errors"
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
func limitNodes() (*Instances, *finder, cache.Indexer) {
	f, indexer := &finder{}, cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	i := Limit(f, oneThird, &told{})
	i.configMaps = &memoryConfigMaps{}
	i.Follow(corelisters.NewNodeLister(indexer), func() bool { return true })
	return i, f, indexer
}

func node(uid types.UID) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: uid}}
}

// A Node that is back costs the budget anew. One that somebody removes, the autoscaler or a person, costs nothing.
func TestInstanceExists(t *testing.T) {
	deleted, tainted := node("u2"), node("u3")
	deleted.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	tainted.Spec.Taints = []corev1.Taint{{Key: servicecontroller.ToBeDeletedTaint}}
	i, f, _ := limitNodes()
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
		{node: node("u1"), goneReason: "it ended", want: "kept until"}, // of which the cloud is not asked
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
	assert.Equal(t, 7, f.asked)
	require.Error(t, i.CheckHeld("u1"))
	_, err := i.InstanceMetadata(t.Context(), node("u1"))
	require.NoError(t, err)
	require.NoError(t, i.CheckHeld("u1"), "it exists after all")
}

// A Node that has registered anew does not go because the one before it may.
func TestReplacedNodeStays(t *testing.T) {
	i, f, indexer := limitNodes()
	f.goneReason = "it ended"
	require.NoError(t, indexer.Add(node("another")))
	_, err := i.InstanceExists(t.Context(), node("u1"))
	require.ErrorContains(t, err, "node node-1 has registered again since")
}
