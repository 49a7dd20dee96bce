package ccm

// What the mass-deletion guard must not forget when the CCM restarts, or another replica
// takes the lease: which Nodes it let go lately, which it holds, and what a person has
// confirmed. It is in a ConfigMap, and written before a Node is let go.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/ccmlab/ccmlab/ccm/contract"
)

// guardState is the record of a guard. Its size is bounded: letGo has a number for each step
// of the window, and of held Nodes the first maxRecordedHeld are listed. Those that are not
// are held all the same after a restart, as the guard is active, and their time begins anew.
type guardState struct {
	// SavedAt is when this was last known to be so.
	SavedAt time.Time `json:"savedAt"`
	// Trip is the number of the last trip, by which a person confirms it; 0 if there was none.
	Trip int `json:"trip"`
	// Active is whether Nodes that are found gone are held, and TrippedAt since when.
	Active    bool      `json:"active"`
	TrippedAt time.Time `json:"trippedAt,omitzero"`
	// Nodes is how many there were, with those of LetGo.
	Nodes int          `json:"nodes"`
	LetGo []letGoCount `json:"letGo,omitempty"`
	Held  []heldRecord `json:"held,omitempty"`
}

// letGoCount is how many Nodes were let go at about a time.
type letGoCount struct {
	At    time.Time `json:"at"`
	Nodes int       `json:"nodes"`
}

// heldRecord is a Node that is held.
type heldRecord struct {
	Node string    `json:"node"`
	UID  types.UID `json:"uid"`
	// Since is since when the cloud says, without interruption, that the instance is gone.
	// It is zero after an interruption.
	Since     time.Time `json:"since,omitzero"`
	Confirmed bool      `json:"confirmed,omitempty"`
}

const (
	maxRecordedHeld = 1000
	// letGoSteps is how finely the window is divided in a record.
	letGoSteps = 60
)

// errGuardStateChanged is that somebody else has written the state since it was read: another
// replica, or a person. It must be read again.
var errGuardStateChanged = errors.New("the record of the mass-deletion guard was changed by somebody else")

// guardStore keeps a guard's state. Only one goroutine at a time may use it.
type guardStore interface {
	// load is the state that was saved last, by whomever; its zero value if none was.
	load(ctx context.Context) (guardState, error)
	// save is errGuardStateChanged if somebody else has saved or confirmed since the last call.
	save(ctx context.Context, state guardState) error
	// confirmedTrip is the number of the trip that a person has confirmed, 0 if none. It is
	// errGuardStateChanged if somebody else has saved.
	confirmedTrip(ctx context.Context) (int, error)
	// object is what Events about the guard are on, nil if it is not known.
	object() object
}

// guardConfigMap is a guardStore in the cluster. Exactly its name is in the CCM's Role.
type guardConfigMap struct {
	kube kubernetes.Interface
	last *corev1.ConfigMap // as it was last read or written; nil if there is none
}

const (
	// guardStateKey and guardAboutKey are keys of the ConfigMap's data.
	guardStateKey = "state.json"
	guardAboutKey = "about"
	guardAbout    = "What the mass-deletion guard of the cloud controller manager remembers. " +
		"It writes this before it lets a Node go. Delete it to have the guard forget."
)

// guardRequestTimeout bounds a request to the API server: others wait for the guard.
const guardRequestTimeout = 5 * time.Second

func (s *guardConfigMap) load(ctx context.Context) (state guardState, err error) {
	if s.last, err = s.get(ctx); err != nil || s.last == nil || s.last.Data[guardStateKey] == "" {
		return state, err
	}
	if err := json.Unmarshal([]byte(s.last.Data[guardStateKey]), &state); err != nil {
		return guardState{}, fmt.Errorf("configmap %s/%s has no record of the mass-deletion guard, "+
			"delete it to have the guard begin anew: %w", contract.GuardNamespace, contract.GuardConfigMap, err)
	}
	return state, nil
}

// get is the ConfigMap, nil if there is none.
func (s *guardConfigMap) get(ctx context.Context) (*corev1.ConfigMap, error) {
	ctx, cancel := context.WithTimeout(ctx, guardRequestTimeout)
	defer cancel()
	found, err := s.kube.CoreV1().ConfigMaps(contract.GuardNamespace).
		Get(ctx, contract.GuardConfigMap, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading what the mass-deletion guard remembers: %w", err)
	}
	return found, nil
}

func (s *guardConfigMap) save(ctx context.Context, state guardState) error {
	text, err := json.Marshal(state)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, guardRequestTimeout)
	defer cancel()
	configMaps := s.kube.CoreV1().ConfigMaps(contract.GuardNamespace)
	data := map[string]string{guardStateKey: string(text), guardAboutKey: guardAbout}
	var saved *corev1.ConfigMap
	if s.last == nil {
		saved, err = configMaps.Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{
				Name: contract.GuardConfigMap, Namespace: contract.GuardNamespace,
				Labels: map[string]string{"app.kubernetes.io/managed-by": "cloud-controller-manager"},
			},
			Data: data,
		}, metav1.CreateOptions{})
	} else {
		next := s.last.DeepCopy()
		next.Data = data
		saved, err = configMaps.Update(ctx, next, metav1.UpdateOptions{})
	}
	switch {
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err):
		return errGuardStateChanged
	case err != nil:
		return fmt.Errorf("writing what the mass-deletion guard remembers: %w", err)
	}
	s.last = saved
	return nil
}

func (s *guardConfigMap) confirmedTrip(ctx context.Context) (int, error) {
	found, err := s.get(ctx)
	if err != nil {
		return 0, err
	}
	if found == nil || s.last == nil || found.UID != s.last.UID ||
		found.Data[guardStateKey] != s.last.Data[guardStateKey] {
		return 0, errGuardStateChanged
	}
	s.last = found
	trip, err := strconv.Atoi(found.Annotations[contract.AnnotationConfirmMassDeletion])
	if err != nil {
		return 0, nil //nolint:nilerr // Nothing that a trip is called confirms none.
	}
	return trip, nil
}

func (s *guardConfigMap) object() object {
	if s.last == nil {
		return nil
	}
	return s.last
}
