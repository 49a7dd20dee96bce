package guard

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

// window is what a budget must not forget when the CCM restarts, or another replica takes the lease. It is
// written before anything is deleted.
type window struct {
	// Number is that of the last window, by which a person raises its budget; 0 if there was none. Records of
	// older releases have it, too: what a person confirmed of them is not of any window to come.
	Number int       `json:"trip"`
	Ends   time.Time `json:"ends"`
	// Known is how many objects there were, and Spent how many were deleted.
	Known int `json:"known"`
	Spent int `json:"deleted"`
	// Stopped is whether more were to be deleted, and Raised whether a person has allowed that.
	Stopped bool `json:"stopped,omitempty"`
	Raised  bool `json:"raised,omitempty"`
	// Strict allows no deletion of an object in use: the window before was stopped, and nobody has allowed more.
	Strict bool `json:"strict,omitempty"`
}

// next is the window after this one.
func (w window) next(ends time.Time) window {
	return window{Number: w.Number + 1, Ends: ends.UTC(), Strict: w.Stopped && !w.Raised}
}

// errChanged means that another replica or a person has written since the window was read. It must be read
// again.
var errChanged = errors.New("the record of the mass-deletion guard has changed since it was read")

// configMap keeps the window of a budget under one key of a ConfigMap that all budgets share. The CCM's Role
// allows this name only. One goroutine at a time may use it.
type configMap struct {
	client typedcorev1.ConfigMapInterface // of contract.GuardNamespace
	last   *corev1.ConfigMap              // as it was last read or written; nil if there is none
}

const (
	aboutKey = "about" // says what the ConfigMap is
	about    = "The record of the mass-deletion guard of the cloud controller manager. " +
		"The guard writes it before it allows a deletion. Delete it to start with an empty record."
)

// requestTimeout bounds a request to the API server: others wait for the budget.
const requestTimeout = 5 * time.Second

// Keep has the budget kept in the cluster. Call it before Run.
func (b *Budget) Keep(client typedcorev1.ConfigMapInterface) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.store = &configMap{client: client}
}

// load reads the window that was saved last, by any replica; its zero value if none was.
func (s *configMap) load(ctx context.Context, key string) (w window, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	s.last = nil
	found, err := s.client.Get(ctx, contract.GuardConfigMap, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return w, nil
	case err != nil:
		return w, fmt.Errorf("reading the record of the mass-deletion guard: %w", err)
	}
	s.last = found
	if text := found.Data[key]; text != "" {
		err = json.Unmarshal([]byte(text), &w)
	}
	if err != nil {
		return window{}, fmt.Errorf("configmap %s/%s holds no valid record of the mass-deletion guard; "+
			"delete it to start with an empty record: %w", contract.GuardNamespace, contract.GuardConfigMap, err)
	}
	return w, nil
}

// save writes the window. It is errChanged if somebody else has written since.
func (s *configMap) save(ctx context.Context, key string, w window) error {
	text, err := json.Marshal(w)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	next, write := s.last.DeepCopy(), s.update
	if next == nil {
		write = s.create
		next = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Name: contract.GuardConfigMap, Namespace: contract.GuardNamespace,
			Labels: map[string]string{"app.kubernetes.io/managed-by": "cloud-controller-manager"},
		}}
	}
	if next.Data == nil {
		next.Data = map[string]string{}
	}
	next.Data[key], next.Data[aboutKey] = string(text), about
	saved, err := write(ctx, next)
	switch {
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err):
		return errChanged
	case err != nil:
		return fmt.Errorf("writing the record of the mass-deletion guard: %w", err)
	}
	s.last = saved
	return nil
}

func (s *configMap) create(ctx context.Context, next *corev1.ConfigMap) (*corev1.ConfigMap, error) {
	return s.client.Create(ctx, next, metav1.CreateOptions{})
}

func (s *configMap) update(ctx context.Context, next *corev1.ConfigMap) (*corev1.ConfigMap, error) {
	return s.client.Update(ctx, next, metav1.UpdateOptions{})
}

// confirmed is the number of the window whose budget a person had raised when the ConfigMap was last read or
// written, 0 if none.
func (s *configMap) confirmed(annotation string) int {
	if s.last == nil {
		return 0
	}
	number, err := strconv.Atoi(s.last.Annotations[annotation])
	if err != nil {
		return 0 // It is not a number.
	}
	return number
}
