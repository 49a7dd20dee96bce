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

// massDeletion says how many deletions the guard allows, and when it goes on by itself.
type massDeletion struct {
	// Share, from 0 to 1, of what there is, rounded up, and Minimum, a number: as many as the
	// larger of both may be deleted within Window.
	Share   float64
	Minimum int
	Window  time.Duration
	// Hold is how long a trip keeps what is left, unless a person confirms it before.
	Hold time.Duration
}

const (
	// releaseInterval is the least time between two deletions after a hold that nobody has
	// confirmed: who comes late can still stop it.
	releaseInterval = time.Second
	// guardPeriod is how often the guard looks for a confirmation while it holds something.
	guardPeriod = 2 * time.Second
	// guardSavePeriod is how often the guard writes, while it holds something, that it still does.
	guardSavePeriod = 30 * time.Second
	// maxRecheckPause is the longest time until it is asked again whether what is held is gone,
	// and quietTime is longer than all would be asked about in twice: a trip is over when nothing
	// was said to be gone in it.
	maxRecheckPause = time.Minute
	quietTime       = 2*maxRecheckPause + 10*time.Second
)

// guarded is what a guard keeps from being deleted, and the words for it.
type guarded struct {
	key          string // of the ConfigMap's data, under which the guard remembers
	confirmation string // the annotation of the ConfigMap by which a person confirms
	one, many    string
	// claim is why they would be deleted, and whenWrong what to do if that is not so.
	claim, whenWrong string
}

// candidate is a thing that would be deleted.
type candidate struct {
	uid types.UID
	// object is what Events about it are on, nil for none.
	object object
	why    string
	// contradicted is whether somebody says that it is still in use: the kubelet of a Ready
	// Node. Such candidates have half of the budget, and go after a hold only if a person has
	// confirmed it.
	contradicted bool
}

// deletionGuard stands between the verdict that something is gone and its deletion. The verdict
// may be wrong for many at once, each time with a definite answer: a cloud that has lost its
// data, an etcd that was restored from an older backup. So the guard has a budget, a share of
// what there was within Window. What goes beyond it trips the guard: everything else is kept
// until a person confirms the trip, or the same was said for the time of Hold. A contradiction,
// "it exists" of something that is held, begins that time anew; an error does not.
//
// A trip is over when for a while nothing was said to be gone, or after twice the time of Hold.
//
// The guard remembers in the cluster, so that neither a restart nor another leader spends the
// budget twice. What it cannot write down it does not allow.
type deletionGuard struct {
	guarded
	limits  massDeletion
	clock   clock.PassiveClock
	explain *explainer
	store   *guardConfigMap // set before the controllers start
	// list are those that there are. Set before the controllers start.
	list func() sets.Set[types.UID]

	mu           sync.Mutex
	synced       cache.InformerSynced // list knows all; nil before the controllers start
	loaded       bool                 // state is what the store has
	state        guardState
	letGo        map[types.UID]letGo // by this process, within Window
	held         map[types.UID]heldCandidate
	contradicted time.Time // when it last was
	lastSaid     time.Time // when something was last said to be gone during a trip
	lastRelease  time.Time
	lastError    string // that was logged
}

// letGo is when one was let go, and whether the budget was spent for that.
type letGo struct {
	at    time.Time
	spent bool
}

// heldCandidate is one that is held, and when it was last said to be gone.
type heldCandidate struct {
	candidate
	said time.Time
}

func newDeletionGuard(
	what guarded, limits massDeletion, clock clock.PassiveClock, explain *explainer,
) *deletionGuard {
	g := &deletionGuard{
		guarded: what, limits: limits, clock: clock, explain: explain,
		letGo: map[types.UID]letGo{}, held: map[types.UID]heldCandidate{},
	}
	g.updateMetrics()
	return g
}

// Run looks for confirmations until ctx ends.
func (g *deletionGuard) Run(ctx context.Context) {
	if cache.WaitForCacheSync(ctx.Done(), g.knowsAll) {
		wait.UntilWithContext(ctx, g.refresh, guardPeriod)
	}
}

// setSynced sets the function that tells whether g.list has all.
func (g *deletionGuard) setSynced(synced cache.InformerSynced) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.synced = synced
}

func (g *deletionGuard) knowsAll() bool {
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

// load reads what the store has, unless that is known, and forgets what has expired.
func (g *deletionGuard) load(ctx context.Context) error {
	now := g.clock.Now()
	if !g.loaded {
		if g.synced == nil || !g.synced() {
			return fmt.Errorf("it does not know all %s yet", g.many)
		}
		state, err := g.store.load(ctx, g.key)
		if err != nil {
			return err
		}
		g.state, g.loaded = state, true
		if state.isTripped() && g.lastSaid.IsZero() {
			// Another process's trip. What would have been said in the meantime nobody knows.
			g.state.Since = state.Since.Add(now.Sub(state.SavedAt))
			if err := g.save(ctx); err != nil {
				return err
			}
			g.lastSaid = now
			klog.InfoS("Mass-deletion guard: it goes on with the trip of before this process led",
				"of", g.many, "trip", state.Trip)
		}
	}
	g.state.Spent = slices.DeleteFunc(g.state.Spent, func(s spending) bool { return now.Sub(s.At) >= g.limits.Window })
	maps.DeleteFunc(g.letGo, func(_ types.UID, l letGo) bool { return now.Sub(l.at) >= g.limits.Window })
	return nil
}

// refreshTrip has the trip confirmed, ended or begun anew, if it is time for that.
func (g *deletionGuard) refreshTrip(ctx context.Context) error {
	now, before := g.clock.Now(), g.state
	there := g.list()
	for uid := range g.held {
		if !there.Has(uid) {
			delete(g.held, uid)
		}
	}
	if g.state.Since.Before(g.contradicted) {
		g.state.Since = g.contradicted
	}
	isConfirmed := g.store.confirmedTrip(g.confirmation) == g.state.Trip
	isQuiet := now.Sub(g.lastSaid) >= quietTime
	switch {
	case isConfirmed && !g.state.Confirmed:
		g.state.Confirmed, g.state.Spent = true, nil // What went before is confirmed, too.
		clear(g.letGo)
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
		klog.InfoS("Mass-deletion guard: the trip is over", "of", g.many, "trip", g.state.Trip)
		clear(g.held)
		g.lastSaid = time.Time{}
	case g.state.Confirmed && !before.Confirmed:
		klog.InfoS("Mass-deletion guard: a person has confirmed the trip",
			"of", g.many, "trip", g.state.Trip, "held", len(g.held))
		g.explain.recordNormalEvent(g.store.last, contract.ReasonMassDeletionConfirmed,
			"Trip %d was confirmed: %d %s go as soon as it is said once more that they are gone",
			g.state.Trip, len(g.held), g.many)
	}
	return nil
}

// save writes the state. After an error nothing may be let go by it.
func (g *deletionGuard) save(ctx context.Context) error {
	g.state.SavedAt = g.clock.Now()
	err := g.store.save(ctx, g.key, g.state)
	g.loaded = err == nil
	return err
}

// logError logs an error once, as long as it stays the same.
func (g *deletionGuard) logError(err error) {
	text := ""
	if err != nil && !errors.Is(err, errGuardStateChanged) {
		text = err.Error()
	}
	if text != "" && text != g.lastError {
		klog.ErrorS(err, "The mass-deletion guard cannot keep its record: nothing is let go until it can", "of", g.many)
	}
	g.lastError = text
}

// admit lets a candidate go that was just found gone. An error keeps it.
func (g *deletionGuard) admit(ctx context.Context, c candidate) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	defer g.updateMetrics()
	if err := g.load(ctx); err != nil {
		return g.refuse(c, err)
	}
	now := g.clock.Now()
	if _, again := g.letGo[c.uid]; again {
		return nil // It was let go, and is yet to be deleted.
	}
	if !g.state.isTripped() {
		gone, budget := g.countGone()+1, g.budget(c.uid)
		switch {
		case gone <= budget && (!c.contradicted || gone <= (budget+1)/2):
			return g.spend(ctx, c, now)
		case gone <= budget:
			return cloudproviderapi.NewRetryError(fmt.Sprintf("%s, but it is in use, and of those only half of the "+
				"usual number may go: it waits until it is not", c.why), 5*guardPeriod)
		}
		if err := g.startTrip(ctx, gone, now); err != nil {
			return g.refuse(c, err)
		}
	}
	if g.isBelieved(c, now) {
		return g.release(c, now)
	}
	g.hold(c, now)
	return g.retryError(now)
}

// spend records, first of all in the store, that a candidate is let go.
func (g *deletionGuard) spend(ctx context.Context, c candidate, now time.Time) error {
	g.state.Spent = addSpending(g.state.Spent, now, max(time.Second, g.limits.Window/spentSteps))
	if err := g.save(ctx); err != nil {
		return g.refuse(c, err)
	}
	g.letGo[c.uid] = letGo{now, true}
	return nil
}

// refuse is the error for a candidate that is not let go because the store cannot be used.
func (g *deletionGuard) refuse(c candidate, err error) error {
	if c.object != nil && !errors.Is(err, errGuardStateChanged) {
		g.explain.warnOnce(c.object, topicExistence, cause{reason: contract.ReasonMassDeletionGuardFailed},
			"%s is not deleted, though %s: the mass-deletion guard cannot keep its record: %v; %s",
			g.one, c.why, err, nextStep(contract.ReasonMassDeletionGuardFailed))
	}
	return fmt.Errorf("the mass-deletion guard lets no %s go while it cannot keep its record: %w", g.one, err)
}

// startTrip begins to hold what is found gone. It is written down, so that the trip has the same
// number after a restart.
func (g *deletionGuard) startTrip(ctx context.Context, gone int, now time.Time) error {
	g.state.Trip++
	g.state.Since, g.state.Confirmed = now, false
	if err := g.save(ctx); err != nil {
		return err
	}
	massDeletionTrips.WithLabelValues(g.one).Inc()
	known := g.countKnown()
	klog.ErrorS(nil, "Mass-deletion guard: too many are gone, so no further one is deleted", "of", g.many,
		"claim", g.claim, "trip", g.state.Trip, "gone", gone, "known", known, "window", g.limits.Window,
		"hold", g.limits.Hold, "confirm", g.confirmCommand())
	g.explain.warnOnce(g.store.last, topicMassDeletion,
		cause{contract.ReasonMassDeletionStopped, fmt.Sprint(g.state.Trip)},
		"%s: so it is said of %d of %d %s within %s, and no further %s is deleted. %s. If it is so: %s. "+
			"Otherwise they go one by one when it has been said for %s",
		g.claim, gone, known, g.many, g.limits.Window, g.one, g.whenWrong, g.confirmCommand(), g.limits.Hold)
	return nil
}

// confirmCommand is what a person types who confirms the trip.
func (g *deletionGuard) confirmCommand() string {
	return fmt.Sprintf("kubectl -n %s annotate --overwrite configmap %s %s=%d",
		contract.GuardNamespace, contract.GuardConfigMap, g.confirmation, g.state.Trip)
}

// isBelieved tells whether a candidate may go though the guard has tripped: it was confirmed, or
// the hold is over, the candidate was held in it, and its turn has come.
func (g *deletionGuard) isBelieved(c candidate, now time.Time) bool {
	_, isHeld := g.held[c.uid]
	isHoldOver := !now.Before(g.state.Since.Add(g.limits.Hold)) && !g.contradicted.After(g.state.Since)
	return g.state.Confirmed ||
		isHoldOver && isHeld && !c.contradicted && now.Sub(g.lastRelease) >= releaseInterval
}

// release lets a candidate go by the trip.
func (g *deletionGuard) release(c candidate, now time.Time) error {
	if c.object != nil {
		g.explain.markResolved(c.object, topicExistence)
	}
	delete(g.held, c.uid)
	g.letGo[c.uid], g.lastSaid, g.lastRelease = letGo{now, false}, now, now
	klog.InfoS("The mass-deletion guard lets go what was said to be gone", "of", g.many, "uid", c.uid,
		"why", c.why, "trip", g.state.Trip, "since", g.state.Since, "confirmed", g.state.Confirmed)
	return nil
}

// hold keeps a candidate, and says so on it.
func (g *deletionGuard) hold(c candidate, now time.Time) {
	g.held[c.uid], g.lastSaid = heldCandidate{c, now}, now
	if c.object != nil {
		g.explain.warnOnce(c.object, topicExistence, cause{contract.ReasonMassDeletionHeld, fmt.Sprint(g.state.Trip)},
			"%s is not deleted: %s, and so are too many others. %s. If it is so: %s. Otherwise it goes when it "+
				"has been said for %s", g.one, c.why, g.whenWrong, g.confirmCommand(), g.limits.Hold)
	}
}

// checkHeld is an error for what is held, as long as nobody need be asked about it again.
func (g *deletionGuard) checkHeld(uid types.UID) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.clock.Now()
	held, isHeld := g.held[uid]
	if !isHeld || g.isBelieved(held.candidate, now) || !now.Before(held.said.Add(g.recheckPause())) {
		return nil
	}
	return g.retryError(now)
}

// recordExists records that something exists. If it is held, what was said is not to be
// believed, and the time of the others' hold begins anew.
func (g *deletionGuard) recordExists(uid types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	held, isHeld := g.held[uid]
	if !isHeld {
		return
	}
	klog.InfoS("What the mass-deletion guard held is there after all, and stays", "of", g.many, "uid", uid)
	if held.object != nil {
		g.explain.markResolved(held.object, topicExistence)
	}
	delete(g.held, uid)
	g.contradicted = g.clock.Now()
	g.updateMetrics()
}

// recordContradiction records that what was said of something that is held was said by somebody
// who does not know it.
func (g *deletionGuard) recordContradiction(uid types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, isHeld := g.held[uid]; isHeld {
		g.contradicted = g.clock.Now()
	}
}

// recheckPause is the time until it is asked again about what is held.
func (g *deletionGuard) recheckPause() time.Duration { return min(maxRecheckPause, g.limits.Hold/5) }

// retryError is an api.RetryError that says when to ask again: soon, since a confirmation has to
// be noticed, too.
func (g *deletionGuard) retryError(now time.Time) error {
	after := min(max(g.state.Since.Add(g.limits.Hold).Sub(now), releaseInterval), 5*guardPeriod)
	return cloudproviderapi.NewRetryError(fmt.Sprintf("%s, so it is said of %d others, too (trip %d of the "+
		"mass-deletion guard): this %s is kept until that is confirmed, or was said for %s",
		g.claim, len(g.held)+g.countGone()-1, g.state.Trip, g.one, g.limits.Hold), after)
}

// budget is how many may go within Window, if there are those of g.list and the one that is
// asked about. One always may.
func (g *deletionGuard) budget(asked types.UID) int {
	const rounding = 1e-9 // A third of 300 is not 100.00000000000001.
	share := int(math.Ceil(g.limits.Share*float64(g.countKnown(asked)) - rounding))
	return max(share, g.limits.Minimum, 1)
}

// countGone counts those that were let go within Window.
func (g *deletionGuard) countGone() (n int) {
	for _, s := range g.state.Spent {
		n += s.Count
	}
	return n
}

// countKnown counts those that there were within Window, as far as the guard let them go: a
// budget must not shrink while it is spent.
func (g *deletionGuard) countKnown(asked ...types.UID) int {
	there := g.list().Insert(asked...)
	n := there.Len() + g.countGone()
	for uid, l := range g.letGo {
		if l.spent && there.Has(uid) {
			n-- // It is yet to be deleted.
		}
	}
	return n
}

// updateMetrics shows what the guard does.
func (g *deletionGuard) updateMetrics() {
	active := 0.0
	if g.state.isTripped() && !g.state.Confirmed {
		active = 1
	}
	massDeletionActive.WithLabelValues(g.one).Set(active)
	massDeletionHeld.WithLabelValues(g.one).Set(float64(len(g.held)))
}
