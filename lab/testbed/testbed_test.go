package testbed_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"syscall"
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

	t.Run("its calls are told apart, and its metrics are there", func(t *testing.T) {
		sums, err := bed.Cloud().SumAudit(ctx, client.AuditFilter{Token: "ccm"}, api.AuditByOperation)
		require.NoError(t, err)
		assert.NotEmpty(t, sums)
		leads, found, err := ccm.Metric(
			ctx, "leader_election_master_status", map[string]string{"name": "cloud-controller-manager"},
		)
		require.NoError(t, err)
		assert.True(t, found)
		assert.Equal(t, 1.0, leads)
		_, found, err = ccm.Metric(ctx, "leader_election_master_status", map[string]string{"name": "somebody else"})
		require.NoError(t, err)
		assert.False(t, found)
		assert.Contains(t, ccm.Log(), "node-1")
	})
	t.Run("another takes over from one that crashed", func(t *testing.T) {
		require.NoError(t, ccm.Kill())
		assert.False(t, ccm.Alive())
		_, err := bed.CreateInstances(ctx, "node-2")
		require.NoError(t, err)
		require.NoError(t, bed.RegisterNodes(ctx, nil, "node-2"))
		next, err := bed.StartCCM(ctx, testbed.CCMOptions{})
		require.NoError(t, err)
		initialised(ctx, t, bed, "node-2")
		require.NoError(t, next.Stop())
		assert.False(t, next.Alive())
	})
}

// What a test that has ended leaves behind: nothing that runs, listens or lies
// about.
func TestCloseLeavesNothing(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	first := testbed.ForTest(t, testbed.Options{Name: "first"}) // Skips, and closes, for both.
	bed, err := testbed.New(ctx, testbed.Options{Name: "second", CloudOf: first})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, bed.Close()) })
	assert.Equal(t, "first", bed.Project)
	ccm, err := bed.StartCCM(ctx, testbed.CCMOptions{})
	require.NoError(t, err)
	home := filepath.Dir(filepath.Dir(bed.Kubeconfig()))
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
	require.NoError(t, first.Cloud().Ready(ctx), "the cloud is the other's")
	assert.NoError(t, bed.Close(), "a second time does nothing")
}

func TestTheCloudGoesAndComesBack(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	bed := testbed.ForTest(t, testbed.Options{})
	made, err := bed.CreateInstances(ctx, "node-1")
	require.NoError(t, err)
	require.NoError(t, bed.StopCloud(ctx))
	at, err := url.Parse(bed.CloudURL)
	require.NoError(t, err)
	_, err = net.Dial("tcp", at.Host)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.NoError(t, bed.StopCloud(ctx), "a second time does nothing")

	require.NoError(t, bed.StartCloud(ctx))
	again, err := bed.Cloud().GetInstance(ctx, made[0].ID)
	require.NoError(t, err)
	assert.Equal(t, "node-1", again.Name)
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
