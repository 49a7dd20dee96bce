package ccm

// What a mass-deletion guard must not forget when the CCM restarts, or another replica takes the
// lease: how many deletions it allowed lately, whether it has tripped, and what a person has
// confirmed. It is in a ConfigMap, which is written before anything is deleted.

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
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/ccmlab/ccmlab/ccm/contract"
)

// guardState is the record of a guard.
type guardState struct {
	// SavedAt is when the record was last written.
	SavedAt time.Time `json:"savedAt"`
	// Trip is the number of the last trip, by which a person confirms it; 0 if there was none.
	Trip int `json:"trip"`
	// Since is when the hold started; zero when the trip is over.
	Since time.Time `json:"since,omitzero"`
	// Confirmed is whether a person has confirmed the trip.
	Confirmed bool `json:"confirmed,omitempty"`
	// Spent are the deletions that were allowed within the window, by step.
	Spent []spending `json:"spent,omitempty"`
}

func (s guardState) isTripped() bool { return !s.Since.IsZero() }

// spending is how many deletions were allowed at about a time.
type spending struct {
	At    time.Time `json:"at"`
	Count int       `json:"count"`
}

// spentSteps is the number of steps in a window. It bounds the size of a record.
const spentSteps = 60

// addSpending adds one at a time, rounded up to the step: it must not be forgotten too early.
func addSpending(all []spending, at time.Time, step time.Duration) []spending {
	at = at.Add(step - 1).Truncate(step).UTC()
	if last := len(all) - 1; last >= 0 && !all[last].At.Before(at) {
		all[last].Count++
		return all
	}
	return append(all, spending{At: at, Count: 1})
}

// errGuardStateChanged means that another replica or a person has written the state since it was
// read. It must be read again.
var errGuardStateChanged = errors.New("the record of the mass-deletion guard has changed since it was read")

// guardConfigMap keeps a guard's state in the cluster, under one key of a ConfigMap that all guards
// share. The CCM's Role allows this name only. Only one goroutine at a time may use it.
type guardConfigMap struct {
	configMaps typedcorev1.ConfigMapInterface // of contract.GuardNamespace
	last       *corev1.ConfigMap              // as it was last read or written; nil if there is none
}

const (
	// Keys of the ConfigMap's data: the state of each guard, and what the ConfigMap is.
	nodeGuardKey   = "state.json"
	orphanGuardKey = "load-balancers.json"
	guardAboutKey  = "about"
	guardAbout     = "The record of the mass-deletion guard of the cloud controller manager. " +
		"The guard writes it before it allows a deletion. Delete it to start with an empty record."
)

// guardRequestTimeout bounds a request to the API server: others wait for the guard.
const guardRequestTimeout = 5 * time.Second

// load reads the state that was saved last, by any replica; its zero value if none was.
func (s *guardConfigMap) load(ctx context.Context, key string) (state guardState, err error) {
	ctx, cancel := context.WithTimeout(ctx, guardRequestTimeout)
	defer cancel()
	s.last = nil
	found, err := s.configMaps.Get(ctx, contract.GuardConfigMap, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return state, nil
	case err != nil:
		return state, fmt.Errorf("reading the record of the mass-deletion guard: %w", err)
	}
	s.last = found
	if text := found.Data[key]; text != "" {
		err = json.Unmarshal([]byte(text), &state)
	}
	if err != nil {
		return guardState{}, fmt.Errorf("configmap %s/%s holds no valid record of the mass-deletion guard; "+
			"delete it to start with an empty record: %w", contract.GuardNamespace, contract.GuardConfigMap, err)
	}
	return state, nil
}

// save writes the state. It is errGuardStateChanged if somebody else has written since.
func (s *guardConfigMap) save(ctx context.Context, key string, state guardState) error {
	text, err := json.Marshal(state)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, guardRequestTimeout)
	defer cancel()
	var saved *corev1.ConfigMap
	if s.last == nil {
		saved, err = s.configMaps.Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{
				Name: contract.GuardConfigMap, Namespace: contract.GuardNamespace,
				Labels: map[string]string{"app.kubernetes.io/managed-by": "cloud-controller-manager"},
			},
			Data: map[string]string{key: string(text), guardAboutKey: guardAbout},
		}, metav1.CreateOptions{})
	} else {
		next := s.last.DeepCopy()
		if next.Data == nil {
			next.Data = map[string]string{}
		}
		next.Data[key], next.Data[guardAboutKey] = string(text), guardAbout
		saved, err = s.configMaps.Update(ctx, next, metav1.UpdateOptions{})
	}
	switch {
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err):
		return errGuardStateChanged
	case err != nil:
		return fmt.Errorf("writing the record of the mass-deletion guard: %w", err)
	}
	s.last = saved
	return nil
}

// confirmedTrip is the number of the trip that a person had confirmed when the state was last
// read or written, 0 if none.
func (s *guardConfigMap) confirmedTrip(annotation string) int {
	if s.last == nil {
		return 0
	}
	trip, err := strconv.Atoi(s.last.Annotations[annotation])
	if err != nil {
		return 0 // It is not the number of a trip.
	}
	return trip
}
