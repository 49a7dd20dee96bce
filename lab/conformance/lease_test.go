package conformance

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// A CCM's Lease is given back when it has ended, and nobody else's is touched.
func TestLeaseIsGivenBack(t *testing.T) {
	host, err := os.Hostname()
	require.NoError(t, err)
	ctx, kube := t.Context(), fake.NewClientset()
	hold := func(namespace, name, holder string) {
		leases := kube.CoordinationV1().Leases(namespace)
		lease := &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder},
		}
		if _, err := leases.Get(ctx, name, metav1.GetOptions{}); err == nil {
			_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
			require.NoError(t, err)
			return
		}
		_, err := leases.Create(ctx, lease, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	holder := func(namespace, name string) string {
		lease, err := kube.CoordinationV1().Leases(namespace).Get(ctx, name, metav1.GetOptions{})
		require.NoError(t, err)
		return *lease.Spec.HolderIdentity
	}

	l := &leaseReleaser{kube: kube}
	hold("kube-system", "scheduler", host+"_before")
	hold("kube-system", "ccm", host+"_killed-last-week")
	l.releaseStale(ctx)
	assert.Equal(t, host+"_killed-last-week", holder("kube-system", "ccm"), "nothing has run yet")

	hold("kube-system", "ccm", host+"_first")
	hold(corev1.NamespaceNodeLease, "node", host+"_node")
	hold("kube-system", "other", "elsewhere_new")
	l.releaseStale(ctx)
	assert.Empty(t, holder("kube-system", "ccm"))
	assert.Equal(t, host+"_before", holder("kube-system", "scheduler"))
	assert.Equal(t, host+"_node", holder(corev1.NamespaceNodeLease, "node"))
	assert.Equal(t, "elsewhere_new", holder("kube-system", "other"))

	hold("kube-system", "ccm", "a-test")
	l.releaseStale(ctx)
	assert.Equal(t, "a-test", holder("kube-system", "ccm"))

	(*leaseReleaser)(nil).releaseStale(ctx) // Without a cluster there is none.
}
