package guard

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

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

const (
	aboutKey = "about" // says what the ConfigMap is
	about    = "The record of the mass-deletion guard of the cloud controller manager. " +
		"The guard writes it before it allows a deletion. Delete it to start with an empty record."
	// requestTimeout bounds a request to the API server: others wait for the budget.
	requestTimeout = 5 * time.Second
)

// load reads the window that was saved last, by any replica, and takes in a confirmation.
func (b *Budget) load(ctx context.Context) error {
	if b.synced == nil || !b.synced() {
		return fmt.Errorf("the list of %s is not complete yet", b.kind.Many)
	}
	getCtx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	record, err := b.configMaps.Get(getCtx, contract.GuardConfigMap, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		record, err = &corev1.ConfigMap{}, nil
	}
	if err != nil {
		return fmt.Errorf("reading the record of the mass-deletion guard: %w", err)
	}
	var stored window
	if err := json.Unmarshal([]byte(cmp.Or(record.Data[b.kind.Key], "{}")), &stored); err != nil {
		return fmt.Errorf("configmap %s/%s holds no valid record of the mass-deletion guard; "+
			"delete it to start with an empty record: %w", contract.GuardNamespace, contract.GuardConfigMap, err)
	}
	b.record, b.now = record, stored
	if !b.now.Stopped || b.now.Raised || record.Annotations[b.kind.Confirmation] != fmt.Sprint(b.now.Number) {
		return nil
	}
	stored.Raised = true
	if err := b.save(ctx, stored); err != nil {
		return err
	}
	message := fmt.Sprintf("Trip %d was confirmed: %d %s are deleted as soon as each is reported gone once more",
		b.now.Number, len(b.held), b.kind.Many)
	klog.InfoS(message)
	b.events.Note(b.record, contract.ReasonMassDeletionConfirmed, message)
	return nil
}

// save writes the window, and then goes by it. It fails if somebody else has written since it was read.
func (b *Budget) save(ctx context.Context, next window) error {
	text, err := json.Marshal(next)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	record := b.record.DeepCopy()
	if record.Data == nil {
		record.Data = map[string]string{}
	}
	record.Data[b.kind.Key], record.Data[aboutKey] = string(text), about
	if record.Name == "" {
		record.ObjectMeta = metav1.ObjectMeta{
			Name: contract.GuardConfigMap, Namespace: contract.GuardNamespace,
			Labels: map[string]string{"app.kubernetes.io/managed-by": "cloud-controller-manager"},
		}
		record, err = b.configMaps.Create(ctx, record, metav1.CreateOptions{})
	} else {
		record, err = b.configMaps.Update(ctx, record, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("writing the record of the mass-deletion guard: %w", err)
	}
	b.record, b.now = record, next
	return nil
}
