package ccm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	cloudproviderapi "k8s.io/cloud-provider/api"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/ccmlab/ccmlab/ccm/contract"
)

// massDeletion limits how many deletions the guard allows, and says when a trip ends without a person.
type massDeletion struct {
	// Within Window, the larger of Share (from 0 to 1, of all objects, rounded up) and Minimum may be deleted.
	Share   float64
	Minimum int
	Window  time.Duration
	// Hold is how long a trip keeps the remaining objects, unless a person confirms it earlier.
	Hold time.Duration
}

const (
	// releaseInterval is the least time between two deletions after a hold that nobody has
	// confirmed, so that a person who comes late can still stop them.
	releaseInterval = time.Second
	// guardPeriod is how often the guard looks for a confirmation while it holds something.
	guardPeriod = 2 * time.Second
	// guardSavePeriod is how often the guard renews its record while it holds something.
	guardSavePeriod = 30 * time.Second
	// maxRecheckPause is the longest time between two checks of a held object. A trip is over when
	// nothing was reported gone for quietTime, in which every held object is checked twice.
	maxRecheckPause = time.Minute
	quietTime       = 2*maxRecheckPause + 10*time.Second
)

// guarded describes the kind of object that a guard protects.
type guarded struct {
	key          string // of the guard's record in the ConfigMap
	confirmation string // the annotation of the ConfigMap by which a person confirms
	one, many    string
	// finding is why they would be deleted, and remedy what to do if that is wrong.
	finding, remedy string
}

// candidate is an object that is about to be deleted.
type candidate struct {
	uid types.UID
	// object receives the Events about it; nil for none.
	object object
	why    string
	// inUse is true for a Ready Node: its kubelet contradicts the cloud. Such candidates have half
	// of the budget, and are deleted after a hold only if a person has confirmed it.
	inUse bool
}

// deletionGuard limits how many objects are deleted because they were reported gone. Such reports
// may be wrong for many objects at once: the cloud has lost its data, or etcd was restored from an
// older backup. So the guard has a budget, a share of the objects that existed within Window. A
// report beyond it trips the guard: everything else is kept until a person confirms the trip, or
// was reported gone throughout Hold. If a held object turns out to exist, Hold starts again; an
// error does not restart it.
//
// A trip is over when nothing was reported gone for quietTime, or after twice Hold.
//
// The guard keeps its record in the cluster, so that neither a restart nor a new leader spends the
// budget twice. It allows no deletion that it cannot record first.
type deletionGuard struct {
	guarded
	limits  massDeletion
	clock   clock.PassiveClock
	explain *explainer
	store   *guardConfigMap // set before the controllers start
	// list returns the UIDs of all objects. Set before the controllers start.
	list func() sets.Set[types.UID]

	mu          sync.Mutex
	synced      cache.InformerSynced // whether list is complete; nil before the controllers start
	loaded      bool                 // state equals the stored record
	state       guardState
	admitted    map[types.UID]admission // by this process, within Window
	held        map[types.UID]heldCandidate
	lastExists  time.Time // when a held object was last found to exist
	lastReport  time.Time // when an object was last reported gone during a trip
	lastRelease time.Time
	lastError   string // that was logged
}

// admission is when a deletion was allowed, and whether it counts against the budget.
type admission struct {
	at    time.Time
	spent bool
}

// heldCandidate is a candidate that is kept, and when it was last reported gone.
type heldCandidate struct {
	candidate
	reportedAt time.Time
}

func newDeletionGuard(
	what guarded, limits massDeletion, clock clock.PassiveClock, explain *explainer,
) *deletionGuard {
	g := &deletionGuard{
		guarded: what, limits: limits, clock: clock, explain: explain,
		admitted: map[types.UID]admission{}, held: map[types.UID]heldCandidate{},
	}
	g.updateMetrics()
	return g
}

// Run looks for confirmations until ctx ends.
func (g *deletionGuard) Run(ctx context.Context) {
	if cache.WaitForCacheSync(ctx.Done(), g.hasSynced) {
		wait.UntilWithContext(ctx, g.refresh, guardPeriod)
	}
}

// setSynced sets the function that tells whether g.list is complete.
func (g *deletionGuard) setSynced(synced cache.InformerSynced) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.synced = synced
}

func (g *deletionGuard) hasSynced() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.synced != nil && g.synced()
}

// refresh looks for a confirmation, and whether the trip is over.
func (g *deletionGuard) refresh(ctx context.Context) {
	g.mu.Lock()
	defer g.mu.Unlock()
	defer g.updateMetrics()
	if g.state.isTripped() {
		g.loaded = false // A person may have confirmed it.
	}
	err := g.load(ctx)
	if err == nil && g.state.isTripped() {
		err = g.refreshTrip(ctx)
	}
	g.logError(err)
}

// load reads the stored record, unless it is loaded, and drops what has expired.
func (g *deletionGuard) load(ctx context.Context) error {
	now := g.clock.Now()
	if !g.loaded {
		if g.synced == nil || !g.synced() {
			return fmt.Errorf("the list of %s is not complete yet", g.many)
		}
		state, err := g.store.load(ctx, g.key)
		if err != nil {
			return err
		}
		g.state, g.loaded = state, true
		if state.isTripped() && g.lastReport.IsZero() {
			// Another process's trip. The time since its last record does not count as held.
			g.state.Since = state.Since.Add(now.Sub(state.SavedAt))
			if err := g.save(ctx); err != nil {
				return err
			}
			g.lastReport = now
			klog.InfoS("Mass-deletion guard: continuing the trip that the previous leader recorded",
				"kind", g.many, "trip", state.Trip)
		}
	}
	g.state.Spent = slices.DeleteFunc(g.state.Spent, func(s spending) bool { return now.Sub(s.At) >= g.limits.Window })
	maps.DeleteFunc(g.admitted, func(_ types.UID, a admission) bool { return now.Sub(a.at) >= g.limits.Window })
	return nil
}

// refreshTrip confirms or ends the trip, or restarts its hold, if it is time for that.
func (g *deletionGuard) refreshTrip(ctx context.Context) error {
	now, before := g.clock.Now(), g.state
	there := g.list()
	for uid := range g.held {
		if !there.Has(uid) {
			delete(g.held, uid)
		}
	}
	if g.state.Since.Before(g.lastExists) {
		g.state.Since = g.lastExists
	}
	isConfirmed := g.store.confirmedTrip(g.confirmation) == g.state.Trip
	isQuiet := now.Sub(g.lastReport) >= quietTime
	switch {
	case isConfirmed && !g.state.Confirmed:
		g.state.Confirmed, g.state.Spent = true, nil // Earlier deletions are confirmed, too.
		clear(g.admitted)
	case isQuiet || now.Sub(g.state.Since) >= 2*g.limits.Hold:
		g.state.Since, g.state.Confirmed = time.Time{}, false
	case g.state.Since.Equal(before.Since) && now.Sub(g.state.SavedAt) < guardSavePeriod:
		return nil
	}
	if err := g.save(ctx); err != nil {
		return err
	}
	switch {
	case !g.state.isTripped():
		klog.InfoS("Mass-deletion guard: the trip is over", "kind", g.many, "trip", g.state.Trip)
		clear(g.held)
		g.lastReport = time.Time{}
	case g.state.Confirmed && !before.Confirmed:
		klog.InfoS("Mass-deletion guard: a person has confirmed the trip",
			"kind", g.many, "trip", g.state.Trip, "held", len(g.held))
		g.explain.recordNormalEvent(g.store.last, contract.ReasonMassDeletionConfirmed,
			"Trip %d was confirmed: %d %s are deleted as soon as each is reported gone once more",
			g.state.Trip, len(g.held), g.many)
	}
	return nil
}

// save writes the state. After an error, the state must be loaded again.
func (g *deletionGuard) save(ctx context.Context) error {
	g.state.SavedAt = g.clock.Now()
	err := g.store.save(ctx, g.key, g.state)
	g.loaded = err == nil
	return err
}

// logError logs an error unless it is the same as the last one.
func (g *deletionGuard) logError(err error) {
	text := ""
	if err != nil && !errors.Is(err, errGuardStateChanged) {
		text = err.Error()
	}
	if text != "" && text != g.lastError {
		klog.ErrorS(err, "Mass-deletion guard: nothing is deleted until its record can be read and saved", "kind", g.many)
	}
	g.lastError = text
}

// admit allows the deletion of a candidate that was just reported gone. An error keeps it.
func (g *deletionGuard) admit(ctx context.Context, c candidate) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	defer g.updateMetrics()
	if err := g.load(ctx); err != nil {
		return g.refuse(c, err)
	}
	now := g.clock.Now()
	if _, again := g.admitted[c.uid]; again {
		return nil // Its deletion was allowed and is pending.
	}
	if !g.state.isTripped() {
		gone, budget := g.countGone()+1, g.budget(c.uid)
		switch {
		case gone <= budget && (!c.inUse || gone <= (budget+1)/2):
			return g.spend(ctx, c, now)
		case gone <= budget:
			return cloudproviderapi.NewRetryError(fmt.Sprintf("%s, but the %s is still in use, and the deletion "+
				"budget for such is spent: it is kept until it is no longer in use", c.why, g.one), 5*guardPeriod)
		}
		if err := g.startTrip(ctx, gone, now); err != nil {
			return g.refuse(c, err)
		}
	}
	if g.canRelease(c, now) {
		return g.release(c, now)
	}
	g.hold(c, now)
	return g.retryError(now)
}

// spend records, in the store first, that a candidate may be deleted.
func (g *deletionGuard) spend(ctx context.Context, c candidate, now time.Time) error {
	g.state.Spent = addSpending(g.state.Spent, now, max(time.Second, g.limits.Window/spentSteps))
	if err := g.save(ctx); err != nil {
		return g.refuse(c, err)
	}
	g.admitted[c.uid] = admission{now, true}
	return nil
}

// refuse returns the error for a candidate that is kept because the store cannot be used.
func (g *deletionGuard) refuse(c candidate, err error) error {
	if c.object != nil && !errors.Is(err, errGuardStateChanged) {
		g.explain.warnOnce(c.object, topicExistence, cause{reason: contract.ReasonMassDeletionGuardFailed},
			"%s is not deleted, although %s: the mass-deletion guard cannot save its record: %v; %s",
			g.one, c.why, err, nextStep(contract.ReasonMassDeletionGuardFailed))
	}
	return fmt.Errorf("the mass-deletion guard deletes no %s while it cannot save its record: %w", g.one, err)
}

// startTrip starts to hold candidates. The trip is recorded, so that it has the same number after a
// restart.
func (g *deletionGuard) startTrip(ctx context.Context, gone int, now time.Time) error {
	g.state.Trip++
	g.state.Since, g.state.Confirmed = now, false
	if err := g.save(ctx); err != nil {
		return err
	}
	massDeletionTrips.WithLabelValues(g.one).Inc()
	known := g.countKnown()
	klog.ErrorS(nil, "Mass-deletion guard: too many objects were reported gone; no more are deleted", "kind", g.many,
		"trip", g.state.Trip, "gone", gone, "known", known, "window", g.limits.Window,
		"hold", g.limits.Hold, "confirm", g.confirmCommand())
	g.explain.warnOnce(g.store.last, topicMassDeletion,
		cause{contract.ReasonMassDeletionStopped, fmt.Sprint(g.state.Trip)},
		"Mass deletion stopped (trip %d): %d of %d %s %s within %s. No more are deleted. %s. To confirm the deletions, "+
			"run: %s. Otherwise they are deleted one per second after %s.", g.state.Trip, gone, known, g.many, g.finding,
		g.limits.Window, g.remedy, g.confirmCommand(), g.limits.Hold)
	return nil
}

// confirmCommand is the command with which a person confirms the trip.
func (g *deletionGuard) confirmCommand() string {
	return fmt.Sprintf("kubectl -n %s annotate --overwrite configmap %s %s=%d",
		contract.GuardNamespace, contract.GuardConfigMap, g.confirmation, g.state.Trip)
}

// canRelease tells whether a candidate may be deleted although the guard has tripped: the trip was
// confirmed, or the hold is over, the candidate was held in it, and releaseInterval has passed.
func (g *deletionGuard) canRelease(c candidate, now time.Time) bool {
	_, isHeld := g.held[c.uid]
	isHoldOver := !now.Before(g.state.Since.Add(g.limits.Hold)) && !g.lastExists.After(g.state.Since)
	return g.state.Confirmed ||
		isHoldOver && isHeld && !c.inUse && now.Sub(g.lastRelease) >= releaseInterval
}

// release allows the deletion of a held candidate.
func (g *deletionGuard) release(c candidate, now time.Time) error {
	if c.object != nil {
		g.explain.markResolved(c.object, topicExistence)
	}
	delete(g.held, c.uid)
	g.admitted[c.uid], g.lastReport, g.lastRelease = admission{now, false}, now, now
	klog.InfoS("Mass-deletion guard: releasing a held object for deletion", "kind", g.many, "uid", c.uid,
		"why", c.why, "trip", g.state.Trip, "since", g.state.Since, "confirmed", g.state.Confirmed)
	return nil
}

// hold keeps a candidate, and writes an Event on it.
func (g *deletionGuard) hold(c candidate, now time.Time) {
	g.held[c.uid], g.lastReport = heldCandidate{c, now}, now
	if c.object != nil {
		g.explain.warnOnce(c.object, topicExistence, cause{contract.ReasonMassDeletionHeld, fmt.Sprint(g.state.Trip)},
			"%s is not deleted: %s, but too many others are gone, too (trip %d). %s. To confirm the deletions, run: %s. "+
				"Otherwise it is deleted after %s.", g.one, c.why, g.state.Trip, g.remedy, g.confirmCommand(), g.limits.Hold)
	}
}

// checkHeld returns an error for a held object until it is time to check it again.
func (g *deletionGuard) checkHeld(uid types.UID) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.clock.Now()
	held, isHeld := g.held[uid]
	if !isHeld || g.canRelease(held.candidate, now) || !now.Before(held.reportedAt.Add(g.recheckPause())) {
		return nil
	}
	return g.retryError(now)
}

// recordExists records that an object exists. If it is held, the reports are in doubt, and the hold
// of the others starts again.
func (g *deletionGuard) recordExists(uid types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	held, isHeld := g.held[uid]
	if !isHeld {
		return
	}
	klog.InfoS("Mass-deletion guard: a held object exists after all and is kept", "kind", g.many, "uid", uid)
	if held.object != nil {
		g.explain.markResolved(held.object, topicExistence)
	}
	delete(g.held, uid)
	g.lastExists = g.clock.Now()
	g.updateMetrics()
}

// recordDoubt records that the report about a held object came from a cloud that cannot know it. The
// hold starts again.
func (g *deletionGuard) recordDoubt(uid types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, isHeld := g.held[uid]; isHeld {
		g.lastExists = g.clock.Now()
	}
}

// recheckPause is the time between two checks of a held object.
func (g *deletionGuard) recheckPause() time.Duration { return min(maxRecheckPause, g.limits.Hold/5) }

// retryError is an api.RetryError with a short delay, so that a confirmation is noticed soon.
func (g *deletionGuard) retryError(now time.Time) error {
	after := min(max(g.state.Since.Add(g.limits.Hold).Sub(now), releaseInterval), 5*guardPeriod)
	return cloudproviderapi.NewRetryError(fmt.Sprintf("%d other %s %s, too (trip %d of the "+
		"mass-deletion guard): this %s is kept until the trip is confirmed or has lasted %s",
		len(g.held)+g.countGone()-1, g.many, g.finding, g.state.Trip, g.one, g.limits.Hold), after)
}

// budget is how many objects may be deleted within Window, at least one. It counts those of g.list
// and the one that is asked about.
func (g *deletionGuard) budget(asked types.UID) int {
	const rounding = 1e-9 // A third of 300 is not 100.00000000000001.
	share := int(math.Ceil(g.limits.Share*float64(g.countKnown(asked)) - rounding))
	return max(share, g.limits.Minimum, 1)
}

// countGone counts the deletions that were allowed within Window.
func (g *deletionGuard) countGone() (n int) {
	for _, s := range g.state.Spent {
		n += s.Count
	}
	return n
}

// countKnown counts the objects that existed within Window, including those whose deletion was
// allowed: a budget must not shrink while it is spent.
func (g *deletionGuard) countKnown(asked ...types.UID) int {
	there := g.list().Insert(asked...)
	n := there.Len() + g.countGone()
	for uid, a := range g.admitted {
		if a.spent && there.Has(uid) {
			n-- // Its deletion is pending.
		}
	}
	return n
}

func (g *deletionGuard) updateMetrics() {
	active := 0.0
	if g.state.isTripped() && !g.state.Confirmed {
		active = 1
	}
	massDeletionActive.WithLabelValues(g.one).Set(active)
	massDeletionHeld.WithLabelValues(g.one).Set(float64(len(g.held)))
}
