// Package guard limits how many objects the CCM deletes because the cloud, or the API server, said that
// something is gone. Such answers may be wrong for many objects at once: a cloud has lost its data, or etcd
// was restored from an older backup. Begin with Budget.
package guard

import (
	"context"
	"fmt"
	"maps"
	"math"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	cloudproviderapi "k8s.io/cloud-provider/api"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/ccmlab/ccmlab/ccm/config"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/ccm/core"
	"github.com/ccmlab/ccmlab/ccm/ring"
)

const (
	// refreshPeriod is how often a stopped budget looks for a confirmation.
	refreshPeriod = 2 * time.Second
	// heldRetry is how soon upstream asks again about a held object: soon, as it may be confirmed.
	heldRetry = 10 * time.Second
	// maxRecheckPause is the longest time between two questions to the cloud about a held object.
	maxRecheckPause = time.Minute
)

// Kind describes the objects that a budget is for.
type Kind struct {
	Key          string // of the record in the ConfigMap
	Confirmation string // the annotation of the ConfigMap by which a person raises the budget
	One, Many    string
	// Finding is why they would be deleted, and Remedy what to do if that is wrong.
	Finding, Remedy string
}

// Candidate is an object that is about to be deleted.
type Candidate struct {
	UID types.UID
	Why string
	// InUse is true for a Ready Node: its kubelet contradicts the cloud. Such candidates have half of the
	// budget, and none of a window that follows one that was stopped.
	InUse bool
}

// Budget is how many objects may be deleted in a window. The window begins with its first deletion. A
// candidate over the budget stops it: nothing more is deleted until the window is over, which it is after
// MassDeletion.Hold, or until a person raises the budget by an annotation. The next window has a budget of its own.
//
// The window is kept in the cluster, so that neither a restart nor a new leader spends a budget twice. No
// deletion is allowed that cannot be recorded first. Safe for concurrent use.
type Budget struct {
	kind       Kind
	limits     config.MassDeletion
	clock      clock.PassiveClock
	events     ring.Events
	configMaps typedcorev1.ConfigMapInterface
	// list returns the UIDs of all objects.
	list   func() sets.Set[types.UID]
	synced cache.InformerSynced // whether list is complete; nil before Watch

	mu      sync.Mutex
	record  *corev1.ConfigMap   // as it was last read or written; nil before that, without a name if there is none
	now     window              // in the record
	allowed sets.Set[types.UID] // by this process, of objects that are still there
	held    map[types.UID]time.Time
}

// New makes a budget. Call Start and Watch before the controllers start.
func New(kind Kind, limits config.MassDeletion, events ring.Events) *Budget {
	b := &Budget{
		kind: kind, limits: limits, clock: clock.RealClock{}, events: events,
		allowed: sets.New[types.UID](), held: map[types.UID]time.Time{},
	}
	b.updateMetrics()
	return b
}

// Start has the window kept under one key of a ConfigMap that all budgets share (the CCM's Role allows this name
// only), and looks for confirmations until ctx ends.
func (b *Budget) Start(ctx context.Context, configMaps typedcorev1.ConfigMapInterface) {
	b.configMaps = configMaps
	go wait.UntilWithContext(ctx, b.refresh, refreshPeriod)
}

// Watch sets what lists the UIDs of all objects, and what tells whether that is complete.
func (b *Budget) Watch(list func() sets.Set[types.UID], synced cache.InformerSynced) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.list, b.synced = list, synced
}

// refresh reads a stopped window again: a person may have raised its budget.
func (b *Budget) refresh(ctx context.Context) {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.updateMetrics()
	if b.record == nil || b.isHolding() {
		if err := b.load(ctx); err != nil {
			klog.V(2).InfoS("Mass-deletion guard: cannot read its record", "kind", b.kind.Many, "err", err)
			return
		}
	}
	there := b.list()
	b.allowed = b.allowed.Intersection(there)
	maps.DeleteFunc(b.held, func(uid types.UID, _ time.Time) bool { return !there.Has(uid) })
}

// isHolding tells whether nothing more may be deleted until the window is over.
func (b *Budget) isHolding() bool {
	return b.now.Stopped && !b.now.Raised && b.clock.Now().Before(b.now.Ends)
}

// Admit allows the deletion of a candidate that was just reported gone. An error keeps it.
func (b *Budget) Admit(ctx context.Context, c Candidate) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.updateMetrics()
	if err := b.load(ctx); err != nil {
		return b.refuse(ctx, c, err)
	}
	if b.allowed.Has(c.UID) {
		return nil // Its deletion was allowed and is pending.
	}
	now, next := b.clock.Now(), b.now
	if !now.Before(next.Ends) {
		next = window{
			Number: next.Number + 1, Ends: now.Add(b.limits.Window.Duration).UTC(), Strict: next.Stopped && !next.Raised,
		}
	}
	next.Known = max(next.Known, b.list().Insert(c.UID).Len()) // A budget must not shrink while it is spent.
	limit := maxDeletions(b.limits, next.Known)
	most := limit // for this candidate
	if c.InUse && next.Strict {
		most = 0
	} else if c.InUse {
		most = (limit + 1) / 2
	}
	admitted := next.Raised || !next.Stopped && next.Spent < most
	switch {
	case admitted:
		next.Spent++
	case next.Stopped:
		return b.hold(ctx, c)
	case next.Spent < limit && !next.Strict:
		return cloudproviderapi.NewRetryError(fmt.Sprintf("%s, but the %s is still in use, and the deletion "+
			"budget for such is spent: it is kept until it is no longer in use", c.Why, b.kind.One), heldRetry)
	default: // It is recorded, so that the window has the same number after a restart.
		next.Stopped, next.Ends = true, now.Add(b.limits.Hold.Duration)
	}
	if err := b.save(ctx, next); err != nil {
		return b.refuse(ctx, c, err)
	}
	if !admitted {
		b.reportStop()
		return b.hold(ctx, c)
	}
	b.allowed.Insert(c.UID)
	delete(b.held, c.UID)
	return nil
}

// maxDeletions is how many of so many objects may be deleted in a window, at least one.
func maxDeletions(limits config.MassDeletion, known int) int {
	const rounding = 1e-9 // A third of 300 is not 100.00000000000001.
	return max(int(math.Ceil(limits.Share*float64(known)-rounding)), limits.Minimum, 1)
}

// refuse returns the error for a candidate that is kept because the window cannot be read or saved.
func (b *Budget) refuse(ctx context.Context, c Candidate, err error) error {
	isRace := apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) // Somebody has written since it was read.
	if !isRace {
		notify(ctx, contract.ReasonMassDeletionGuardFailed, "", "%s is not deleted, although %s: the mass-deletion guard "+
			"cannot save its record: %v; allow the CCM to get, create and update configmap %s/%s (see "+
			"manifests/ccm/base/rbac)", b.kind.One, c.Why, err, contract.GuardNamespace, contract.GuardConfigMap)
	}
	return fmt.Errorf("the mass-deletion guard deletes no %s while it cannot save its record: %w", b.kind.One, err)
}

// reportStop says that the window is stopped.
func (b *Budget) reportStop() {
	trips.WithLabelValues(b.kind.One).Inc()
	message := fmt.Sprintf("Mass deletion stopped (trip %d): more than %d of %d %s %s within %s. "+
		"No more are deleted for %s. %s.", b.now.Number, b.now.Spent, b.now.Known, b.kind.Many, b.kind.Finding,
		b.limits.Window.Duration, b.limits.Hold.Duration, b.remedy())
	klog.ErrorS(nil, message)
	b.events.WarnOnce(b.record, "mass-deletion", contract.ReasonMassDeletionStopped, fmt.Sprint(b.now.Number), message)
}

// remedy is what to do if the deletions are wrong, and with which command a person raises the budget of this window.
func (b *Budget) remedy() string {
	return fmt.Sprintf("%s. To confirm the deletions, run: kubectl -n %s annotate --overwrite configmap %s %s=%d",
		b.kind.Remedy, contract.GuardNamespace, contract.GuardConfigMap, b.kind.Confirmation, b.now.Number)
}

// hold keeps a candidate.
func (b *Budget) hold(ctx context.Context, c Candidate) error {
	b.held[c.UID] = b.clock.Now()
	notify(ctx, contract.ReasonMassDeletionHeld, fmt.Sprint(b.now.Number), "%s is not deleted: %s, but too many others "+
		"are gone, too (trip %d). %s.", b.kind.One, c.Why, b.now.Number, b.remedy())
	return b.retryError()
}

// notify tells what becomes of a candidate, for an Event on it.
func notify(ctx context.Context, reason, detail, format string, args ...any) {
	core.Notify(ctx, core.Notice{Cause: core.Cause{Reason: reason, Detail: detail}, Message: fmt.Sprintf(format, args...)})
}

// CheckHeld returns an error for a held object until it is time to ask the cloud about it again.
func (b *Budget) CheckHeld(uid types.UID) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	since, isHeld := b.held[uid]
	pause := min(maxRecheckPause, b.limits.Hold.Duration/5)
	if isHeld && b.isHolding() && b.clock.Since(since) < pause {
		return b.retryError()
	}
	return nil
}

// RecordExists records that an object, which may be held, exists.
func (b *Budget) RecordExists(uid types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.allowed.Delete(uid)
	if _, isHeld := b.held[uid]; isHeld {
		klog.InfoS("Mass-deletion guard: a held object exists after all and is kept", "kind", b.kind.Many, "uid", uid)
		delete(b.held, uid)
		b.updateMetrics()
	}
}

// retryError says when to ask again, and why.
func (b *Budget) retryError() error {
	return cloudproviderapi.NewRetryError(fmt.Sprintf("%d other %s %s, too (trip %d of the mass-deletion guard): "+
		"this %s is kept until %s, or until somebody confirms the deletions", len(b.held)+b.now.Spent-1, b.kind.Many,
		b.kind.Finding, b.now.Number, b.kind.One, b.now.Ends.UTC().Format(time.RFC3339)), heldRetry)
}

func (b *Budget) updateMetrics() {
	holding := 0.0
	if b.isHolding() {
		holding = 1
	}
	active.WithLabelValues(b.kind.One).Set(holding)
	holds.WithLabelValues(b.kind.One).Set(float64(len(b.held)))
}
