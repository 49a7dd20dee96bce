package ccm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	cloudproviderapi "k8s.io/cloud-provider/api"
	nodeutil "k8s.io/component-helpers/node/util"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/ccmlab/ccmlab/ccm/contract"
)

// massDeletion says how many Nodes may go at once before the guard stops, and when it goes on
// by itself.
type massDeletion struct {
	// Share of the Nodes, from 0 to 1, rounded up, and Minimum, a number of them: when more
	// than both are found gone within Window, further ones are held.
	Share   float64
	Minimum int
	Window  time.Duration
	// Hold is for how long the cloud must say, without interruption, that the instance of a
	// held Node is gone, until the Node goes though nobody has confirmed it.
	Hold time.Duration
}

const (
	// releaseInterval is the least time between two held Nodes that go unconfirmed: who
	// comes late can still stop it.
	releaseInterval = time.Second
	// guardPeriod is how often the guard looks for a confirmation, while it holds Nodes.
	guardPeriod = 2 * time.Second
	// guardSavePeriod is how often the guard writes, while it holds Nodes, that it still does.
	guardSavePeriod = 30 * time.Second
	// maxRecheckPause is the longest time until the cloud is asked again about a held Node.
	maxRecheckPause = time.Minute
)

// deletionGuard stands between the verdict that an instance is gone and the controllers that
// delete its Node. The cloud may be wrong about many instances at once, each time with a
// definite answer, and Nodes that are deleted take their pods with them. So when too many are
// gone within a short time the guard stops: the rest are held until a person confirms it, until
// the cloud says that the instances are there, or until it has said the same for a long time.
//
// It remembers in the cluster, so that neither a restart nor another leader lets further Nodes
// go. What it cannot write down it does not allow.
type deletionGuard struct {
	limits  massDeletion
	clock   clock.PassiveClock
	explain *explainer
	store   guardStore             // set before the controllers start
	nodes   corelisters.NodeLister // likewise

	mu     sync.Mutex
	synced cache.InformerSynced // nodes has all Nodes; nil before the controllers start
	// loaded is whether the fields below are what the store has. It is false at the start, and
	// after somebody else has written to the store.
	loaded bool
	// letGo are the Nodes that were let go within the last Window, and when; before are those
	// that a predecessor let go, and nodesBefore is how many Nodes there were then.
	letGo       map[types.UID]time.Time
	before      []letGoCount
	nodesBefore int
	held        map[types.UID]*heldNode
	// interrupted are the Nodes of which the cloud said something else than that the instance is
	// gone, and the store may not have that yet. If load reads that they are held, their time begins anew.
	interrupted map[types.UID]bool
	// active is true from when the guard trips until it has nothing more to hold, a person
	// has confirmed, or Hold is over and no more Nodes than usual are gone.
	active      bool
	trip        int // the number of the last one
	trippedAt   time.Time
	lastRelease time.Time
	// unsaved is whether the store lacks a change. Only a change that lets no Node go may be
	// unsaved: that a Node goes is saved before it does.
	unsaved   bool
	savedAt   time.Time
	droppedAt time.Time // when dropExpired last did so
	lastError string    // the last one that was logged
}

// heldNode is a Node that is held.
type heldNode struct {
	node *corev1.Node
	// The cloud has said since then, without interruption, that the Node's instance is gone,
	// and it said so last at said. since is zero after an interruption, until the cloud says it
	// again.
	since, said time.Time
	// confirmed is whether a person has confirmed that it may go.
	confirmed bool
}

func newDeletionGuard(limits massDeletion, clock clock.PassiveClock, explain *explainer) *deletionGuard {
	return &deletionGuard{
		limits: limits, clock: clock, explain: explain,
		letGo: map[types.UID]time.Time{}, held: map[types.UID]*heldNode{}, interrupted: map[types.UID]bool{},
	}
}

// Run looks for confirmations, and saves what can wait, until ctx ends.
func (g *deletionGuard) Run(ctx context.Context) {
	if cache.WaitForCacheSync(ctx.Done(), g.knowsNodes) {
		wait.UntilWithContext(ctx, g.refresh, guardPeriod)
	}
}

// setSynced sets the function that tells whether g.nodes has all Nodes.
func (g *deletionGuard) setSynced(synced cache.InformerSynced) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.synced = synced
}

func (g *deletionGuard) knowsNodes() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.synced != nil && g.synced()
}

// refresh does what needs no question about a Node: it drops what has expired, looks for a
// confirmation, and saves what has waited.
func (g *deletionGuard) refresh(ctx context.Context) {
	g.mu.Lock()
	defer g.mu.Unlock()
	defer g.updateMetrics()
	err := g.load(ctx)
	if err == nil {
		g.droppedAt = time.Time{}
		now := g.dropExpired()
		if len(g.held) > 0 || g.active {
			err = g.applyConfirmation(ctx)
			g.unsaved = g.unsaved || now.Sub(g.savedAt) >= guardSavePeriod
		}
		if err == nil && g.loaded && g.unsaved {
			err = g.save(ctx)
		}
	}
	g.logError(err)
}

// logError logs an error once, as long as it stays the same.
func (g *deletionGuard) logError(err error) {
	text := ""
	if err != nil && !errors.Is(err, errGuardStateChanged) {
		text = err.Error()
	}
	if text != "" && text != g.lastError {
		klog.ErrorS(err, "The mass-deletion guard cannot keep its record: no Node is let go until it can")
	}
	g.lastError = text
}

// load reads what the store has, unless that is what the guard has.
func (g *deletionGuard) load(ctx context.Context) error {
	if g.loaded {
		return nil
	}
	if g.synced == nil || !g.synced() {
		return errors.New("it does not know all Nodes yet")
	}
	state, err := g.store.load(ctx)
	if err != nil {
		return err
	}
	now := g.clock.Now()
	// Nobody knows what the cloud would have said in the meantime, so that does not count.
	gap := max(0, now.Sub(state.SavedAt))
	g.loaded, g.unsaved, g.savedAt = true, false, state.SavedAt
	g.active, g.trip, g.trippedAt = state.Active, state.Trip, state.TrippedAt.Add(gap)
	g.letGo, g.before, g.nodesBefore = map[types.UID]time.Time{}, state.LetGo, state.Nodes
	g.lastRelease = state.SavedAt // No held Node went later than that.
	g.held = map[types.UID]*heldNode{}
	for _, r := range state.Held {
		h := &heldNode{
			node:  &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: r.Node, UID: r.UID}},
			since: r.Since, said: now.Add(-g.recheckPause()), confirmed: r.Confirmed,
		}
		switch {
		case g.interrupted[r.UID]:
			h.since, g.unsaved = time.Time{}, true
		case !h.since.IsZero():
			h.since = h.since.Add(gap)
		}
		g.held[r.UID] = h
	}
	maps.DeleteFunc(g.interrupted, func(uid types.UID, _ bool) bool { return g.held[uid] == nil })
	if g.active {
		klog.InfoS("Mass-deletion guard: it goes on holding Nodes, as it did before this process led",
			"trip", g.trip, "held", len(g.held))
	}
	return nil
}

// save writes the state to the store. After an error no Node may be let go.
func (g *deletionGuard) save(ctx context.Context) error {
	now := g.clock.Now()
	state := guardState{
		SavedAt: now, Trip: g.trip, Active: g.active, TrippedAt: g.trippedAt, Nodes: g.countNodes(),
		LetGo: g.letGoCounts(), Held: g.heldRecords(),
	}
	err := g.store.save(ctx, state)
	switch {
	case errors.Is(err, errGuardStateChanged):
		g.loaded = false
	case err == nil:
		g.unsaved, g.savedAt = false, now
		clear(g.interrupted)
	}
	return err
}

// letGoCounts are the Nodes that were let go, by the step of the window.
func (g *deletionGuard) letGoCounts() []letGoCount {
	step := max(time.Second, g.limits.Window/letGoSteps)
	counts := map[time.Time]int{}
	for _, b := range g.before {
		counts[b.At] += b.Nodes
	}
	for _, at := range g.letGo {
		// Rounded up: a Node must not be forgotten too early.
		counts[at.Add(step-1).Truncate(step).UTC()]++
	}
	var all []letGoCount
	for _, at := range slices.SortedFunc(maps.Keys(counts), time.Time.Compare) {
		all = append(all, letGoCount{At: at, Nodes: counts[at]})
	}
	return all
}

// heldRecords are the Nodes that are held, those that are longest held first.
func (g *deletionGuard) heldRecords() []heldRecord {
	var all []heldRecord
	for uid, h := range g.held {
		all = append(all, heldRecord{Node: h.node.Name, UID: uid, Since: h.since, Confirmed: h.confirmed})
	}
	slices.SortFunc(all, func(a, b heldRecord) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Node, b.Node))
	})
	return all[:min(len(all), maxRecordedHeld)]
}

// applyConfirmation lets all Nodes go that are held, if a person has confirmed the last trip.
func (g *deletionGuard) applyConfirmation(ctx context.Context) error {
	confirmed, err := g.store.confirmedTrip(ctx)
	if errors.Is(err, errGuardStateChanged) {
		g.loaded = false // It is loaded at the next call.
	}
	isNews := g.active || slices.ContainsFunc(slices.Collect(maps.Values(g.held)), func(h *heldNode) bool {
		return !h.confirmed
	})
	if err != nil || confirmed == 0 || confirmed != g.trip || !isNews {
		return err
	}
	g.active = false
	g.letGo, g.before = map[types.UID]time.Time{}, nil // They were confirmed with the others.
	for _, h := range g.held {
		h.confirmed = true
	}
	if err := g.save(ctx); err != nil {
		g.loaded = false // So that it is confirmed again, from what the store has.
		return err
	}
	klog.InfoS("Mass-deletion guard: a person has confirmed that the held Nodes may go",
		"trip", g.trip, "held", len(g.held))
	if obj := g.store.object(); obj != nil {
		g.explain.recordNormalEvent(obj, contract.ReasonMassDeletionConfirmed,
			"Trip %d was confirmed: %d Nodes go as soon as the cloud says once more that their instances are gone",
			g.trip, len(g.held))
	}
	return nil
}

// checkHeld is an error for a Node that is held, as long as the cloud need not be asked.
func (g *deletionGuard) checkHeld(ctx context.Context, node *corev1.Node) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.load(ctx) != nil {
		return nil // It matters only if the cloud says that the instance is gone: see admitDeletion.
	}
	now := g.dropExpired()
	h := g.held[node.UID]
	if h == nil || g.isDue(h, now) || !now.Before(h.said.Add(g.recheckPause())) {
		return nil
	}
	return g.retryError(h, now)
}

// checkNotReplaced is an error if there is another Node of that name by now. Upstream makes
// its rounds with the Nodes that it saw at their beginning, and deletes by name: on a busy
// machine that can be the Node of a new instance, which has registered meanwhile.
func (g *deletionGuard) checkNotReplaced(node *corev1.Node) error {
	if g.nodes == nil {
		return nil
	}
	now, err := g.nodes.Get(node.Name)
	if err == nil && now.UID != node.UID {
		return fmt.Errorf("node %s has registered anew, and what is asked about is the one before", node.Name)
	}
	return nil
}

// admitDeletion lets a Node go whose instance was just found gone. If it holds the Node it is
// an error.
func (g *deletionGuard) admitDeletion(ctx context.Context, node *corev1.Node, why string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	defer g.updateMetrics()
	if err := g.load(ctx); err != nil {
		return g.refuse(node, err)
	}
	now := g.dropExpired()
	if h := g.held[node.UID]; h != nil {
		return g.admitHeld(ctx, h, why, now)
	}
	if _, again := g.letGo[node.UID]; again {
		return nil // It was let go, and its Node is yet to be deleted.
	}
	if !g.active && g.isWithinLimits(g.countGone()+1, g.countNodes(node.UID)) {
		return g.letNodeGo(ctx, node, now)
	}
	g.held[node.UID] = &heldNode{node: node, since: now, said: now}
	g.unsaved = true
	if !g.active {
		g.startTrip(ctx, now)
	}
	g.explain.warnOnce(node, topicExistence, cause{contract.ReasonMassDeletionHeld, fmt.Sprint(g.trip)},
		"Node is not deleted: %s, and so are too many others' at once (%d of %d Nodes). If they are there, "+
			"mend the cloud, and the Nodes stay. If they are gone: %s. Otherwise the Node goes when the cloud "+
			"has said so for %s", why, g.countGone(), g.countNodes(), confirmCommand(g.trip), g.limits.Hold)
	return g.retryError(g.held[node.UID], now)
}

// letNodeGo records, first of all in the store, that a Node is let go.
func (g *deletionGuard) letNodeGo(ctx context.Context, node *corev1.Node, now time.Time) error {
	g.letGo[node.UID] = now
	if err := g.save(ctx); err != nil {
		delete(g.letGo, node.UID)
		return g.refuse(node, err)
	}
	return nil
}

// refuse is the error for a Node that is not let go because the store cannot be used.
func (g *deletionGuard) refuse(node *corev1.Node, err error) error {
	if !errors.Is(err, errGuardStateChanged) {
		g.explain.warnOnce(node, topicExistence, cause{reason: contract.ReasonMassDeletionGuardFailed},
			"Node is not deleted, though its instance is gone: the mass-deletion guard cannot keep its record: %v; %s",
			err, nextStep(contract.ReasonMassDeletionGuardFailed))
	}
	return fmt.Errorf("the mass-deletion guard lets no node go while it cannot keep its record: %w", err)
}

// admitHeld lets a held Node go, of which the cloud has just said again that its instance is
// gone, if a person has confirmed that or it is time. Else it is an error.
func (g *deletionGuard) admitHeld(ctx context.Context, h *heldNode, why string, now time.Time) error {
	if h.since.IsZero() {
		h.since, g.unsaved = now, true
	}
	h.said = now
	if !g.isDue(h, now) {
		return g.retryError(h, now)
	}
	g.releaseNode(h.node.UID)
	if !h.confirmed { // A confirmation is in the store already.
		if err := g.letNodeGo(ctx, h.node, now); err != nil {
			g.held[h.node.UID] = h
			return err
		}
		g.lastRelease = now
	}
	klog.InfoS("Letting go a Node that the mass-deletion guard held; the cloud has said it again",
		"node", klog.KObj(h.node), "why", why, "saidSince", h.since, "confirmed", h.confirmed)
	return nil
}

// startTrip begins to hold Nodes.
func (g *deletionGuard) startTrip(ctx context.Context, now time.Time) {
	g.active, g.trippedAt = true, now
	g.trip++
	massDeletionTrips.Inc()
	count, known := g.countGone(), g.countNodes()
	klog.ErrorS(nil, "Mass-deletion guard: too many instances are gone at once, so no further Node is deleted. "+
		"If the instances are there, mend the cloud: the Nodes then stay. If they are gone, confirm that",
		"trip", g.trip, "found", count, "nodes", known, "window", g.limits.Window, "share", g.limits.Share,
		"minimum", g.limits.Minimum, "hold", g.limits.Hold, "confirm", confirmCommand(g.trip))
	// So that the trip has the same number after a restart. Nothing is let go by it.
	g.logError(g.save(ctx))
	if obj := g.store.object(); obj != nil {
		g.explain.warnOnce(obj, topicMassDeletion, cause{contract.ReasonMassDeletionStopped, fmt.Sprint(g.trip)},
			"The cloud says that the instances of %d of %d Nodes are gone, all within %s: no further Node "+
				"is deleted. If they are there, mend the cloud, and the Nodes stay. If they are gone: %s. "+
				"Otherwise each Node goes when the cloud has said so for %s",
			count, known, g.limits.Window, confirmCommand(g.trip), g.limits.Hold)
	}
}

// confirmCommand is what a person types who confirms that the Nodes of a trip may go.
func confirmCommand(trip int) string {
	return fmt.Sprintf("kubectl -n %s annotate --overwrite configmap %s %s=%d",
		contract.GuardNamespace, contract.GuardConfigMap, contract.AnnotationConfirmMassDeletion, trip)
}

// recordExists releases a Node whose instance exists after all.
func (g *deletionGuard) recordExists(node *corev1.Node) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.recordInterruption(node)
	if _, went := g.letGo[node.UID]; g.held[node.UID] == nil && !went {
		return
	}
	defer g.updateMetrics()
	g.unsaved = true
	delete(g.letGo, node.UID)
	if g.held[node.UID] != nil {
		klog.InfoS("The instance of a held Node is there after all; the Node stays", "node", klog.KObj(node))
		g.releaseNode(node.UID)
	}
	g.dropExpired()
}

// recordDoubt records that the cloud was asked about a Node's instance and gave no definite
// answer. If the Node is held, its time begins anew.
func (g *deletionGuard) recordDoubt(node *corev1.Node) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.recordInterruption(node)
	if h := g.held[node.UID]; h != nil {
		h.since, g.unsaved = time.Time{}, true
	}
}

// recordInterruption records that the cloud gave another answer than "gone" about a Node that is
// held, or may be by what the store has.
func (g *deletionGuard) recordInterruption(node *corev1.Node) {
	if !g.loaded || g.held[node.UID] != nil {
		g.interrupted[node.UID] = true
	}
}

// isDue tells whether a held Node may go, if the cloud says again that its instance is gone.
func (g *deletionGuard) isDue(h *heldNode, now time.Time) bool {
	return h.confirmed || !h.since.IsZero() && !now.Before(g.dueAt(h))
}

// dueAt is when a held Node goes unconfirmed.
func (g *deletionGuard) dueAt(h *heldNode) time.Time {
	due := h.since.Add(g.limits.Hold)
	if slow := g.lastRelease.Add(releaseInterval); slow.After(due) {
		due = slow
	}
	return due
}

// recheckPause is the time until the cloud is asked again about a held Node.
func (g *deletionGuard) recheckPause() time.Duration { return min(maxRecheckPause, g.limits.Hold/5) }

// maxSilence is how long the cloud may say nothing about a held Node's instance. A longer
// silence is an interruption: the Node's time begins anew.
func (g *deletionGuard) maxSilence() time.Duration { return 3*g.recheckPause() + g.limits.Window }

// retryError is an api.RetryError for a held Node. It says when to ask again.
func (g *deletionGuard) retryError(h *heldNode, now time.Time) error {
	next := h.said.Add(g.recheckPause())
	if due := g.dueAt(h); !h.since.IsZero() && due.Before(next) {
		next = due
	}
	// A confirmation has to be noticed, too.
	next = now.Add(min(max(next.Sub(now), releaseInterval), 5*guardPeriod))
	why := fmt.Sprintf("the cloud says that the instance is gone, as it says of %d other nodes' (trip %d of the "+
		"mass-deletion guard): this node is kept until that is confirmed, or the cloud has said so for %s",
		g.countGone()-1, g.trip, g.limits.Hold)
	return cloudproviderapi.NewRetryError(why, next.Sub(now))
}

func (g *deletionGuard) releaseNode(uid types.UID) {
	g.explain.markResolved(g.held[uid].node, topicExistence)
	delete(g.held, uid)
	g.unsaved = true
}

// isWithinLimits tells whether count of the known Nodes may go within Window. One always may.
func (g *deletionGuard) isWithinLimits(count, known int) bool {
	const rounding = 1e-9 // A third of 300 Nodes is not 100.00000000000001.
	share := int(math.Ceil(g.limits.Share*float64(known) - rounding))
	return count <= max(share, g.limits.Minimum, 1)
}

// countGone counts the Nodes that were found gone within Window, or are held.
func (g *deletionGuard) countGone() int {
	n := len(g.letGo) + len(g.held)
	for _, b := range g.before {
		n += b.Nodes
	}
	return n
}

// countNodes counts the Nodes, and with them those that were let go within Window, are held,
// or are asked about: a cluster that shrinks must not trip the guard sooner.
func (g *deletionGuard) countNodes(asked ...types.UID) int {
	all, err := g.nodes.List(labels.Everything())
	if err != nil {
		return 0 // A lister that reads memory gives no error.
	}
	n := len(asked) + len(g.letGo) + len(g.held)
	for _, node := range all {
		_, went := g.letGo[node.UID]
		if !went && g.held[node.UID] == nil && !slices.Contains(asked, node.UID) {
			n++
		}
	}
	if len(g.before) > 0 {
		// Which those are nobody knows any more, and some may not be deleted yet.
		n = max(n, g.nodesBefore)
	}
	return n
}

// dropExpired drops what is no longer of use. It does so once a second at most: there may be
// thousands of Nodes, and a question about each.
func (g *deletionGuard) dropExpired() (now time.Time) {
	now = g.clock.Now()
	if now.Sub(g.droppedAt) < time.Second {
		return now
	}
	g.droppedAt = now
	for uid, at := range g.letGo {
		if now.Sub(at) >= g.limits.Window {
			delete(g.letGo, uid)
		}
	}
	g.before = slices.DeleteFunc(g.before, func(b letGoCount) bool { return now.Sub(b.At) >= g.limits.Window })
	for uid, h := range g.held {
		silence := now.Sub(h.said)
		node, err := g.nodes.Get(h.node.Name)
		switch {
		case err != nil || node.UID != uid:
			g.releaseNode(uid) // Somebody has deleted it.
		case silence > g.limits.Hold+g.maxSilence() && isReady(node):
			g.releaseNode(uid) // Nobody asks about it any more.
		case silence > g.maxSilence() && !h.since.IsZero():
			h.since, g.unsaved = time.Time{}, true
		}
	}
	isOver := len(g.held) == 0 ||
		now.Sub(g.trippedAt) >= g.limits.Hold && g.isWithinLimits(g.countGone(), g.countNodes())
	if g.active && isOver {
		g.active, g.unsaved = false, true
		klog.InfoS("Mass-deletion guard: no more instances than usual are gone; Nodes are deleted at once again",
			"trip", g.trip, "held", len(g.held))
	}
	return now
}

// updateMetrics shows what the guard does.
func (g *deletionGuard) updateMetrics() {
	active := 0.0
	if g.active {
		active = 1
	}
	massDeletionActive.Set(active)
	massDeletionHeld.Set(float64(len(g.held)))
}

func isReady(node *corev1.Node) bool {
	_, ready := nodeutil.GetNodeCondition(&node.Status, corev1.NodeReady)
	return ready != nil && ready.Status == corev1.ConditionTrue
}
