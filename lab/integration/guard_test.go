package integration

// The mass-deletion guard in a genuine cluster: it holds across a restart, and a person lets the
// Nodes go.

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/lab/testbed"
)

// ofNodes are the labels of the metrics of the guard of Nodes.
var ofNodes = map[string]string{"of": "Node"}

func TestMassDeletionIsHeldAcrossARestartUntilConfirmed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testbed.Options{})
	// Of six Nodes two may go.
	limits := testbed.CCMOptions{Env: []string{
		"FAKECLOUD_MASS_DELETION_MINIMUM=1", "FAKECLOUD_MASS_DELETION_WINDOW=30m", "FAKECLOUD_MASS_DELETION_HOLD=30m",
	}}
	var names []string
	for n := range 6 {
		names = append(names, fmt.Sprintf("gone-%d", n))
	}
	made, err := w.CreateInstances(w.ctx, names...)
	require.NoError(t, err)
	require.NoError(t, w.RegisterNodes(w.ctx, func(i int, n *corev1.Node) {
		n.Spec.ProviderID, n.Spec.Taints = contract.ProviderID(made[i].ID), nil
		n.Status.Conditions[0].Status = corev1.ConditionUnknown
	}, names...))
	for _, instance := range made {
		_, err := w.Cloud().TerminateInstance(w.ctx, instance.ID)
		require.NoError(t, err)
	}

	first := w.startCCM(limits)
	w.awaitHeld(first, 4)
	guard, err := w.Admin().CoreV1().ConfigMaps(contract.GuardNamespace).
		Get(w.ctx, contract.GuardConfigMap, metav1.GetOptions{})
	require.NoError(t, err)
	command := fmt.Sprintf("kubectl -n kube-system annotate --overwrite configmap %s %s=1",
		contract.GuardConfigMap, contract.AnnotationConfirmMassDeletion)
	w.awaitEvent(string(guard.UID), contract.ReasonMassDeletionStopped, command)
	require.NoError(t, first.Kill())

	second := w.startCCM(limits)
	w.awaitHeld(second, 4)
	trips, _, err := second.Metric(w.ctx, "fakecloud_ccm_mass_deletion_guard_trips_total", ofNodes)
	require.NoError(t, err)
	assert.Zero(t, trips, "it goes on with the first one's")

	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"1"}}}`, contract.AnnotationConfirmMassDeletion)
	_, err = w.Admin().CoreV1().ConfigMaps(contract.GuardNamespace).
		Patch(w.ctx, contract.GuardConfigMap, types.MergePatchType, patch, metav1.PatchOptions{})
	require.NoError(t, err)
	for _, name := range names {
		w.awaitNodeGone(name)
	}
	w.awaitEvent(string(guard.UID), contract.ReasonMassDeletionConfirmed, "Trip 1 was confirmed")
}

// awaitHeld waits until the CCM leads and holds so many Nodes, which then are all that are left.
func (w *world) awaitHeld(ccm *testbed.CCM, want int) {
	w.t.Helper()
	w.await("the guard to hold the Nodes", func() error {
		held, _, err1 := ccm.Metric(w.ctx, "fakecloud_ccm_mass_deletion_guard_held", ofNodes)
		nodes, err2 := w.Admin().CoreV1().Nodes().List(w.ctx, metav1.ListOptions{})
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		if int(held) != want || len(nodes.Items) != want {
			return fmt.Errorf("it holds %g of %d Nodes", held, len(nodes.Items))
		}
		return nil
	})
}
