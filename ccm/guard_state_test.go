package ccm

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/ccmlab/ccmlab/ccm/contract"
)

func TestGuardConfigMap(t *testing.T) {
	kube := fake.NewClientset()
	store := &guardConfigMap{kube: kube}
	state, err := store.load(t.Context())
	require.NoError(t, err)
	assert.Equal(t, guardState{}, state, "of a cluster in which it is not")
	assert.Nil(t, store.object())

	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	state = guardState{
		SavedAt: at, Trip: 3, Active: true, TrippedAt: at, Nodes: 9,
		LetGo: []letGoCount{{at, 2}}, Held: []heldRecord{{Node: "node-1", UID: "u1", Since: at}},
	}
	require.NoError(t, store.save(t.Context(), state))
	state.Trip = 4
	require.NoError(t, store.save(t.Context(), state))
	again, err := (&guardConfigMap{kube: kube}).load(t.Context())
	require.NoError(t, err)
	assert.Equal(t, state, again)

	// A person confirms.
	confirmed, err := store.confirmedTrip(t.Context())
	require.NoError(t, err)
	assert.Zero(t, confirmed)
	configMaps := kube.CoreV1().ConfigMaps("kube-system")
	written, err := configMaps.Get(t.Context(), "fakecloud-mass-deletion-guard", metav1.GetOptions{})
	require.NoError(t, err)
	for value, want := range map[string]int{"4": 4, "yes": 0, "": 0} {
		written.Annotations = map[string]string{contract.AnnotationConfirmMassDeletion: value}
		_, err = configMaps.Update(t.Context(), written, metav1.UpdateOptions{})
		require.NoError(t, err)
		confirmed, err = store.confirmedTrip(t.Context())
		require.NoError(t, err)
		assert.Equal(t, want, confirmed, value)
	}
	require.NoError(t, store.save(t.Context(), state))
	kept := store.object().(*corev1.ConfigMap).Annotations
	assert.Contains(t, kept, contract.AnnotationConfirmMassDeletion)

	// Another process writes, or a person deletes it.
	require.NoError(t, (&guardConfigMap{kube: kube, last: written}).save(t.Context(), guardState{Trip: 5}))
	_, err = store.confirmedTrip(t.Context())
	require.ErrorIs(t, err, errGuardStateChanged)
	require.NoError(t, configMaps.Delete(t.Context(), written.Name, metav1.DeleteOptions{}))
	_, err = store.confirmedTrip(t.Context())
	require.ErrorIs(t, err, errGuardStateChanged)
	require.ErrorIs(t, store.save(t.Context(), state), errGuardStateChanged)

	// What somebody else has written there is not taken for nothing.
	written.Data, written.ResourceVersion = map[string]string{guardStateKey: "{"}, ""
	_, err = configMaps.Create(t.Context(), written, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = store.load(t.Context())
	require.ErrorContains(t, err, "delete it to have the guard begin anew")
}

func TestGuardConfigMapErrors(t *testing.T) {
	resource := schema.GroupResource{Resource: "configmaps"}
	for name, tc := range map[string]struct {
		verb    string
		err     error
		changed bool
	}{
		"somebody has created it": {"create", apierrors.NewAlreadyExists(resource, contract.GuardConfigMap), true},
		"somebody has updated it": {
			"update", apierrors.NewConflict(resource, contract.GuardConfigMap, errors.New("x")), true,
		},
		"no right to create": {"create", apierrors.NewForbidden(resource, contract.GuardConfigMap, nil), false},
		"no right to update": {"update", apierrors.NewForbidden(resource, contract.GuardConfigMap, nil), false},
	} {
		t.Run(name, func(t *testing.T) {
			kube := fake.NewClientset()
			store := &guardConfigMap{kube: kube}
			_, err := store.load(t.Context())
			require.NoError(t, err)
			if tc.verb == "update" {
				require.NoError(t, store.save(t.Context(), guardState{Trip: 1}))
			}
			kube.PrependReactor(tc.verb, "configmaps", func(k8stesting.Action) (bool, runtime.Object, error) {
				return true, nil, tc.err
			})
			err = store.save(t.Context(), guardState{Trip: 2})
			assert.Equal(t, tc.changed, errors.Is(err, errGuardStateChanged))
			assert.Error(t, err)
		})
	}
	kube := fake.NewClientset()
	kube.PrependReactor("get", "configmaps", func(k8stesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(resource, contract.GuardConfigMap, nil)
	})
	_, err := (&guardConfigMap{kube: kube}).load(t.Context())
	assert.ErrorContains(t, err, "reading what the mass-deletion guard remembers")
}
