package ccm

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/ccmlab/ccmlab/ccm/contract"
)

func TestGuardConfigMap(t *testing.T) {
	kept := &memoryConfigMaps{}
	store := &guardConfigMap{configMaps: kept}
	state, err := store.load(t.Context(), nodeGuardKey)
	require.NoError(t, err)
	assert.Equal(t, guardState{}, state, "of a cluster in which it is not")
	assert.Zero(t, store.confirmedTrip(contract.AnnotationConfirmMassDeletion))

	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	state = guardState{SavedAt: at, Trip: 3, Since: at, Confirmed: true, Spent: []spending{{at, 2}}}
	require.NoError(t, store.save(t.Context(), nodeGuardKey, state))
	state.Trip = 4
	require.NoError(t, store.save(t.Context(), nodeGuardKey, state))
	again, err := (&guardConfigMap{configMaps: kept}).load(t.Context(), nodeGuardKey)
	require.NoError(t, err)
	assert.Equal(t, state, again)

	// A person confirms, between what the guard does.
	for value, want := range map[string]int{"4": 4, "yes": 0, "": 0} {
		kept.confirm(value)
		require.ErrorIs(t, store.save(t.Context(), nodeGuardKey, state), errGuardStateChanged)
		_, err = store.load(t.Context(), nodeGuardKey)
		require.NoError(t, err)
		require.NoError(t, store.save(t.Context(), nodeGuardKey, state))
		assert.Equal(t, want, store.confirmedTrip(contract.AnnotationConfirmMassDeletion), value)
	}
	assert.Contains(t, kept.stored.Annotations, contract.AnnotationConfirmMassDeletion)

	// Another guard keeps its own there.
	other := &guardConfigMap{configMaps: kept}
	have, err := other.load(t.Context(), orphanGuardKey)
	require.NoError(t, err)
	assert.Equal(t, guardState{}, have)
	require.NoError(t, other.save(t.Context(), orphanGuardKey, guardState{Trip: 7}))
	again, err = store.load(t.Context(), nodeGuardKey)
	require.NoError(t, err)
	assert.Equal(t, state, again)

	// Somebody deletes it.
	kept.stored = nil
	require.ErrorIs(t, store.save(t.Context(), nodeGuardKey, state), errGuardStateChanged)

	// What somebody else has written there is not taken for nothing.
	kept.stored = &corev1.ConfigMap{Data: map[string]string{nodeGuardKey: "{"}}
	_, err = store.load(t.Context(), nodeGuardKey)
	require.ErrorContains(t, err, "delete it to start with an empty record")

	for _, refusal := range []error{
		apierrors.NewForbidden(configMapResource, "guard", nil), errors.New("timeout"),
	} {
		for _, stored := range []*corev1.ConfigMap{nil, {}} {
			kept.stored, kept.refusal = stored, nil
			_, err = store.load(t.Context(), nodeGuardKey)
			require.NoError(t, err)
			kept.refusal = refusal
			err = store.save(t.Context(), nodeGuardKey, state)
			require.ErrorContains(t, err, "writing the record of the mass-deletion guard")
			require.NotErrorIs(t, err, errGuardStateChanged)
			_, err = store.load(t.Context(), nodeGuardKey)
			require.ErrorContains(t, err, "reading the record of the mass-deletion guard")
		}
	}
}

func TestAddSpending(t *testing.T) {
	at := func(seconds int) time.Time { return time.Unix(int64(seconds), 0).UTC() }
	var all []spending
	for _, second := range []int{0, 1, 59, 60, 61, 200} {
		all = addSpending(all, at(second), time.Minute)
	}
	assert.Equal(t, []spending{{at(0), 1}, {at(60), 3}, {at(120), 1}, {at(240), 1}}, all)
}
