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

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/ccm/core"
)

const (
	// refreshPeriod is how often a stopped budget looks for a confirmation.
	refreshPeriod = 2 * time.Second
	// heldRetry is how soon upstream asks again about a held object: soon, as it may be confirmed.
	heldRetry = 10 * time.Second
	// maxRecheckPause is the longest time between two questions to the cloud about a held object.
	maxRecheckPause = time.Minute
)

// Limits are the numbers of a budget.
type Limits struct {
	// Within Window, the larger of Share (from 0 to 1, of all objects, rounded up) and Minimum may be deleted.
	Share   float64
	Minimum int
	Window  time.Duration
	// Hold is how long a window lasts once more deletions were asked for.
	Hold time.Duration
}

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
	// Object receives the Events about it; nil for none.
	Object core.Object
	Why    string
	// InUse is true for a Ready Node: its kubelet contradicts the cloud. Such candidates have half of the
	// budget, and none of a window that follows one that was stopped.
	InUse bool
}

// Topics of Events.
const (
	topicHeld    = "existence"
	topicStopped = "mass-deletion"
)

// Budget is how many objects may be deleted in a window. The window begins with its first deletion. A
// candidate over the budget stops it: nothing more is deleted until the window is over, which it is after
// Limits.Hold, or until a person raises the budget by an annotation. The next window has a budget of its own.
//
// The window is kept in the cluster, so that neither a restart nor a new leader spends a budget twice. No
// deletion is allowed that cannot be recorded first. Safe for concurrent use.
type Budget struct {
	kind       Kind
	limits     Limits
	clock      clock.PassiveClock
	events     core.Events
	configMaps typedcorev1.ConfigMapInterface // set by Keep
	// list returns the UIDs of all objects.
	list   func() sets.Set[types.UID]
	synced cache.InformerSynced // whether list is complete; nil before Watch

	mu sync.Mutex
	// record is as it was last read or written: nil if it must be read again, without a name if there is none.
	record  *corev1.ConfigMap
	now     window              // in the record
	allowed sets.Set[types.UID] // by this process, of objects that are still there
	held    map[types.UID]time.Time
}

// New makes a budget. Call Keep, Watch and Run before the controllers start.
func New(kind Kind, limits Limits, events core.Events) *Budget {
	b := &Budget{
		kind: kind, limits: limits, clock: clock.RealClock{}, events: events,
		allowed: sets.New[types.UID](), held: map[types.UID]time.Time{},
	}
	b.updateMetrics()
	return b
}

// Watch sets what lists the UIDs of all objects, and what tells whether that is complete.
func (b *Budget) Watch(list func() sets.Set[types.UID], synced cache.InformerSynced) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.list, b.synced = list, synced
}

// Run looks for confirmations until ctx ends.
func (b *Budget) Run(ctx context.Context) { wait.UntilWithContext(ctx, b.refresh, refreshPeriod) }

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
		return b.refuse(c, err)
	}
	now := b.clock.Now()
	if !now.Before(b.now.Ends) {
		b.now = b.now.next(now.Add(b.limits.Window))
		b.allowed = b.allowed.Intersection(b.list())
	}
	if b.allowed.Has(c.UID) {
		return nil // Its deletion was allowed and is pending.
	}
	// A budget must not shrink while it is spent.
	b.now.Known = max(b.now.Known, b.list().Insert(c.UID).Len())
	limit := b.limits.budget(b.now.Known)
	most := limit // for this candidate
	if c.InUse && b.now.Strict {
		most = 0
	} else if c.InUse {
		most = (limit + 1) / 2
	}
	switch {
	case b.now.Raised, !b.now.Stopped && b.now.Spent < most:
		return b.spend(ctx, c)
	case !b.now.Stopped && !b.now.Strict && b.now.Spent < limit:
		return cloudproviderapi.NewRetryError(fmt.Sprintf("%s, but the %s is still in use, and the deletion "+
			"budget for such is spent: it is kept until it is no longer in use", c.Why, b.kind.One), heldRetry)
	case !b.now.Stopped:
		if err := b.stop(ctx, now); err != nil {
			return b.refuse(c, err)
		}
	}
	b.hold(c, now)
	return b.retryError()
}

// budget is how many of so many objects may be deleted in a window, at least one.
func (l Limits) budget(known int) int {
	const rounding = 1e-9 // A third of 300 is not 100.00000000000001.
	return max(int(math.Ceil(l.Share*float64(known)-rounding)), l.Minimum, 1)
}

// spend records, in the store first, that a candidate may be deleted.
func (b *Budget) spend(ctx context.Context, c Candidate) error {
	b.now.Spent++
	if err := b.save(ctx); err != nil {
		return b.refuse(c, err)
	}
	b.allowed.Insert(c.UID)
	b.release(c.UID, c.Object)
	return nil
}

// refuse returns the error for a candidate that is kept because the window cannot be read or saved.
func (b *Budget) refuse(c Candidate, err error) error {
	isRace := apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) // Somebody has written since it was read.
	if c.Object != nil && !isRace {
		b.events.WarnOnce(c.Object, topicHeld, contract.ReasonMassDeletionGuardFailed, "", fmt.Sprintf(
			"%s is not deleted, although %s: the mass-deletion guard cannot save its record: %v; allow the CCM to get, "+
				"create and update configmap %s/%s (see manifests/ccm/base/rbac)",
			b.kind.One, c.Why, err, contract.GuardNamespace, contract.GuardConfigMap))
	}
	return fmt.Errorf("the mass-deletion guard deletes no %s while it cannot save its record: %w", b.kind.One, err)
}

// stop holds further candidates until the window is over. It is recorded, so that the window has the same
// number after a restart.
func (b *Budget) stop(ctx context.Context, now time.Time) error {
	b.now.Stopped, b.now.Ends = true, now.Add(b.limits.Hold)
	if err := b.save(ctx); err != nil {
		return err
	}
	trips.WithLabelValues(b.kind.One).Inc()
	message := fmt.Sprintf("Mass deletion stopped (trip %d): more than %d of %d %s %s within %s. "+
		"No more are deleted for %s. %s. To confirm the deletions, run: %s.", b.now.Number, b.now.Spent, b.now.Known,
		b.kind.Many, b.kind.Finding, b.limits.Window, b.limits.Hold, b.kind.Remedy, b.confirmCommand())
	klog.ErrorS(nil, message)
	b.events.WarnOnce(b.record, topicStopped, contract.ReasonMassDeletionStopped, fmt.Sprint(b.now.Number), message)
	return nil
}

// confirmCommand is the command with which a person raises the budget of this window.
func (b *Budget) confirmCommand() string {
	return fmt.Sprintf("kubectl -n %s annotate --overwrite configmap %s %s=%d",
		contract.GuardNamespace, contract.GuardConfigMap, b.kind.Confirmation, b.now.Number)
}

// hold keeps a candidate, and writes an Event on it.
func (b *Budget) hold(c Candidate, now time.Time) {
	b.held[c.UID] = now
	if c.Object == nil {
		return
	}
	b.events.WarnOnce(c.Object, topicHeld, contract.ReasonMassDeletionHeld, fmt.Sprint(b.now.Number), fmt.Sprintf(
		"%s is not deleted: %s, but too many others are gone, too (trip %d). %s. To confirm the deletions, run: %s.",
		b.kind.One, c.Why, b.now.Number, b.kind.Remedy, b.confirmCommand()))
}

// CheckHeld returns an error for a held object until it is time to ask the cloud about it again.
func (b *Budget) CheckHeld(uid types.UID) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	since, isHeld := b.held[uid]
	now := b.clock.Now()
	pause := min(maxRecheckPause, b.limits.Hold/5)
	if !isHeld || b.now.Raised || !now.Before(b.now.Ends) || !now.Before(since.Add(pause)) {
		return nil
	}
	return b.retryError()
}

// RecordExists records that an object, which may be held, exists. obj is nil if it has no Events.
func (b *Budget) RecordExists(uid types.UID, obj core.Object) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.allowed.Delete(uid)
	if _, isHeld := b.held[uid]; isHeld {
		klog.InfoS("Mass-deletion guard: a held object exists after all and is kept", "kind", b.kind.Many, "uid", uid)
		b.release(uid, obj)
		b.updateMetrics()
	}
}

func (b *Budget) release(uid types.UID, obj core.Object) {
	delete(b.held, uid)
	if obj != nil {
		b.events.Resolve(obj, topicHeld)
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
