package conformance

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// instancesCloud makes instances whose Nodes are called by their IDs.
type instancesCloud struct {
	featuresOnly
	made, terminated []string
}

func (c *instancesCloud) CreateInstance(_ context.Context, spec InstanceSpec) (Instance, error) {
	id := fmt.Sprintf("i-%d", len(c.made)+1)
	c.made = append(c.made, id)
	return Instance{ID: id, Name: spec.Name, NodeName: id, ProviderID: "cloud://" + id}, nil
}

func (c *instancesCloud) TerminateInstance(_ context.Context, id string) error {
	c.terminated = append(c.terminated, id)
	return nil
}

func newEligibleSuite(features ...Feature) (*Suite, *instancesCloud) {
	cloud := &instancesCloud{featuresOnly: featuresOnly{features: features}}
	return &Suite{Kube: fake.NewClientset(), Cloud: clientOf(cloud), runID: "abcd", serial: new(atomic.Int64)}, cloud
}

func listNodes(t *testing.T, s *Suite) []corev1.Node {
	list, err := s.Kube.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	return list.Items
}

// initializeNodes does what a CCM does, until ctx ends.
func initializeNodes(ctx context.Context, t *testing.T, s *Suite) {
	for ctx.Err() == nil {
		for _, node := range listNodes(t, s) {
			node.Spec.Taints = nil
			_, _ = s.Kube.CoreV1().Nodes().Update(ctx, &node, metav1.UpdateOptions{})
		}
		time.Sleep(time.Second)
	}
}

func TestEligibleNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, cloud := newEligibleSuite(FeatureKubeletProviderIDs)
		ctx, cancel := context.WithCancel(t.Context())
		var ccm sync.WaitGroup
		ccm.Go(func() { initializeNodes(ctx, t, s) })
		defer ccm.Wait()
		defer cancel()
		eligible := newEligibleNodes(t.Context(), s)
		require.NoError(t, eligible.ensure(t.Context()))
		require.NoError(t, eligible.ensure(t.Context()), "they are there")
		nodes := listNodes(t, s)
		require.Len(t, nodes, eligibleNodeCount)
		for i, node := range nodes {
			assert.NotContains(t, node.Labels, corev1.LabelNodeExcludeBalancers)
			assert.Equal(t, cloud.made[i], node.Name)
			assert.Equal(t, "cloud://"+node.Name, node.Spec.ProviderID)
		}

		require.NoError(t, s.Kube.CoreV1().Nodes().Delete(t.Context(), "i-1", metav1.DeleteOptions{}))
		require.NoError(t, eligible.ensure(t.Context()))
		assert.Len(t, listNodes(t, s), eligibleNodeCount)
		assert.Equal(t, []string{"i-1"}, cloud.terminated, "the instance goes with its Node")

		eligible.remove()
		assert.Empty(t, listNodes(t, s))
		assert.ElementsMatch(t, cloud.made, slices.Compact(slices.Sorted(slices.Values(cloud.terminated))))
	})
}

// A CCM that initialises no Node is waited for once.
func TestEligibleNodesThatNobodyInitializes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := newEligibleSuite()
		eligible := newEligibleNodes(t.Context(), s)
		defer eligible.remove()
		began := time.Now()
		require.Error(t, eligible.ensure(t.Context()))
		assert.Equal(t, eligibleNodeBound, time.Since(began))
		require.Error(t, eligible.ensure(t.Context()))
		assert.Less(t, time.Since(began), eligibleNodeBound+time.Second)
	})
}

// Where traffic is looked at, nobody would answer on them.
func TestNoEligibleNodesBesideTraffic(t *testing.T) {
	s, cloud := newEligibleSuite(FeatureTraffic)
	require.NoError(t, newEligibleNodes(t.Context(), s).ensure(t.Context()))
	assert.Empty(t, cloud.made)
}
