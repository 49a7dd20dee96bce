package testbed_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/fakekubelet"
	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/lab/testbed"
)

// bound is generous: a machine that builds beside the tests is slow.
const bound = 2 * time.Minute

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	t.Cleanup(cancel)
	return ctx
}

func initialised(ctx context.Context, t *testing.T, bed *testbed.Bed, name string) *corev1.Node {
	t.Helper()
	var n *corev1.Node
	require.NoError(t, cluster.Poll(ctx, name+" to be initialised", func(ctx context.Context) (err error) {
		if n, err = bed.Admin().CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		for _, taint := range n.Spec.Taints {
			if taint.MatchTaint(&fakekubelet.Taint) {
				return errors.New("it has the taint")
			}
		}
		return nil
	}))
	return n
}

func TestACCMLiftsTheTaint(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	bed := testbed.ForTest(t, testbed.Options{})
	made, err := bed.CreateInstances(ctx, "node-1")
	require.NoError(t, err)
	require.NoError(t, bed.RegisterNodes(ctx, nil, "node-1"))
	n, err := bed.Admin().CoreV1().Nodes().Get(ctx, "node-1", metav1.GetOptions{})
	require.NoError(t, err)
	require.Contains(t, n.Spec.Taints, fakekubelet.Taint)
	require.Empty(t, n.Spec.ProviderID)

	ccm, err := bed.StartCCM(ctx, testbed.CCMOptions{})
	require.NoError(t, err)
	assert.Equal(t, "fakecloud://"+made[0].ID, initialised(ctx, t, bed, "node-1").Spec.ProviderID)

	t.Run("its calls are told apart", func(t *testing.T) {
		sums, err := bed.Cloud().SumAudit(ctx, client.AuditFilter{Token: "ccm"}, api.AuditByOperation)
		require.NoError(t, err)
		assert.NotEmpty(t, sums)
	})
	t.Run("another takes over from one that crashed", func(t *testing.T) {
		require.NoError(t, ccm.Kill())
		assert.False(t, ccm.Alive())
		_, err := bed.CreateInstances(ctx, "node-2")
		require.NoError(t, err)
		require.NoError(t, bed.RegisterNodes(ctx, nil, "node-2"))
		_, err = bed.StartCCM(ctx, testbed.CCMOptions{})
		require.NoError(t, err)
		initialised(ctx, t, bed, "node-2")
	})
}

// What a test that has ended leaves behind: nothing that runs, listens or lies
// about.
func TestCloseLeavesNothing(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	bed := testbed.ForTest(t, testbed.Options{})
	ccm, err := bed.StartCCM(ctx, testbed.CCMOptions{})
	require.NoError(t, err)
	home := filepath.Dir(filepath.Dir(bed.Cluster().Kubeconfig()))
	require.DirExists(t, home)

	require.NoError(t, bed.Close())
	assert.NoDirExists(t, home)
	assert.False(t, ccm.Alive())
	all, err := process.All()
	require.NoError(t, err)
	for _, p := range all {
		assert.NotEqual(t, home, p.Lab, "%s still runs", p.Component)
	}
	// Another test's bed may have its address by now, but not its certificate.
	kube, err := kubernetes.NewForConfig(bed.AdminConfig())
	require.NoError(t, err)
	_, err = kube.Discovery().ServerVersion()
	require.Error(t, err, "its API server answers")
	assert.NoError(t, bed.Close(), "a second time does nothing")
}

func TestACCMThatEndsAtItsStart(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	bed := testbed.ForTest(t, testbed.Options{})
	_, err := bed.StartCCM(ctx, testbed.CCMOptions{ConfigYAML: "colour: blue\n"})
	assert.ErrorContains(t, err, "ccm-1 ended at its start")
	assert.ErrorContains(t, err, "colour", "the end of its log is in the error")
}

func TestNodesAsKubeletsLeaveThem(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	bed := testbed.ForTest(t, testbed.Options{})
	names := []string{"node-1", "node-2"}
	require.NoError(t, bed.RegisterNodes(
		ctx, func(i int, n *corev1.Node) { n.Spec.PodCIDR = fmt.Sprintf("10.1.%d.0/24", i) }, names...,
	))
	require.NoError(t, bed.SetReady(ctx, corev1.ConditionUnknown, "node-2"))
	for i, name := range names {
		n, err := bed.Admin().CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		require.NoError(t, err)
		assert.Equal(t, fmt.Sprintf("10.1.%d.0/24", i), n.Spec.PodCIDR)
		require.Len(t, n.Status.Conditions, 1)
		assert.Equal(
			t, []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionUnknown}[i],
			n.Status.Conditions[0].Status,
		)
	}
}
