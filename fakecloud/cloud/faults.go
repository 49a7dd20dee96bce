package cloud

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"math"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/store"
	"github.com/ccmlab/ccmlab/fakecloud/store/db"
)

// Subject is what a fault rule can tell resources apart by.
type Subject struct {
	Project string // its ID
	Kind    Resource
	ID      string
	Tags    map[string]string
}

// Faults decide which life cycles go wrong. Within transactions they are asked, so they
// must not call the cloud. They count the matches of their rules; they pass to undo what
// takes a count back, for when the transaction fails. undo is nil outside of a
// transaction.
type Faults interface {
	// Stuck tells whether the resource stays in its transitional state.
	Stuck(s Subject, now time.Time, undo func(func())) bool
	// Fail tells whether building the resource fails, and for what reason.
	Fail(s Subject, now time.Time, undo func(func())) (reason string, fails bool)
	// Crash tells whether the running instance goes to state error. Unless rule is empty,
	// only that rule counts.
	Crash(s Subject, now time.Time, rule string, undo func(func())) bool
	// Outage tells whether the project has lost the zone, and by which rule.
	Outage(project, zone string, now time.Time) (rule string, lost bool)
	// Sweeps gives what is to be carried out now, because a rule's window began or ended,
	// and when there will be more; zero if that is not known.
	Sweeps(now time.Time) (due []FaultSweep, next time.Time)
	// Swept is called after a sweep was carried out, with the number of instances it took.
	Swept(FaultSweep, int)
	// Suspend takes out of force the rules that the project made and those about it, and
	// gives their IDs. finish then removes them, or puts them back.
	Suspend(project string) (ids []string, finish func(remove bool))
}

// FaultPhase is how much of a rule's window has been carried out.
type FaultPhase int64

// The phases of a rule.
const (
	FaultNew FaultPhase = iota
	FaultBegun
	FaultEnded
)

// FaultSweep is the begin or the end of a rule's window, which is to be carried out.
type FaultSweep struct {
	Rule    string
	Project string // the ID
	To      FaultPhase
	// Zone is that of an outage. If it is empty, running instances crash when the window
	// begins.
	Zone string
}

// StoredFault is a fault rule as it is stored.
type StoredFault struct {
	ID            string
	Project       string // the ID of the project that made it
	Spec          []byte
	CreatedAt     time.Time
	Matched, Hits int64
	Phase         FaultPhase
}

// heldDue is the due time of what a fault holds: it never comes.
var heldDue = int64(math.MaxInt64 >> 16)

// Clock is the one that the cloud runs on.
func (c *Cloud) Clock() clockwork.Clock { return c.clock }

// SetFaults puts f in force from now on, in place of any others.
func (c *Cloud) SetFaults(f Faults) {
	c.activeFaults.Store(&f)
	c.wakeWorker()
}

// currentFaults gives the faults in force; nil if there are none.
func (c *Cloud) currentFaults() Faults {
	if f := c.activeFaults.Load(); f != nil {
		return *f
	}
	return nil
}

// StoredFaults gives all rules of all projects, oldest first.
func (c *Cloud) StoredFaults(ctx context.Context) ([]StoredFault, error) {
	return readOne(ctx, c, func(tx *store.Tx) (all []StoredFault, err error) {
		rows, err := tx.AllFaults(ctx)
		for _, r := range rows {
			all = append(all, StoredFault{
				ID: r.ID, Project: r.ProjectID, Spec: []byte(r.Spec), CreatedAt: fromMillis(r.CreatedAt),
				Matched: r.Matched, Hits: r.Hits, Phase: FaultPhase(r.Phase),
			})
		}
		return all, err
	})
}

// SaveFault stores a new rule.
func (c *Cloud) SaveFault(ctx context.Context, f StoredFault) error {
	return c.change(ctx, func(ctx context.Context, tx *changeTx) error {
		return tx.InsertFault(ctx, db.InsertFaultParams{
			ID: f.ID, ProjectID: f.Project, Spec: string(f.Spec), CreatedAt: f.CreatedAt.UnixMilli(),
			Matched: f.Matched, Hits: f.Hits, Phase: int64(f.Phase),
		})
	})
}

// FaultsChanged has the worker ask again what begins or ends next. SaveFault would do so
// too early: a new rule is put in force after it is stored.
func (c *Cloud) FaultsChanged() { c.wakeWorker() }

// CountFaults stores what rules have counted.
func (c *Cloud) CountFaults(ctx context.Context, counts []StoredFault) error {
	if len(counts) == 0 {
		return nil
	}
	return c.store.Write(ctx, func(tx *store.Tx) error {
		for _, f := range counts {
			if err := tx.CountFault(ctx, db.CountFaultParams{ID: f.ID, Matched: f.Matched, Hits: f.Hits}); err != nil {
				return err
			}
		}
		return nil
	})
}

// LiftFaults removes rules that are out of force. Instances that their outages took start
// again, and resources that they held go on.
func (c *Cloud) LiftFaults(ctx context.Context, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	return c.change(ctx, func(ctx context.Context, tx *changeTx) error {
		return c.liftFaults(ctx, tx, ids)
	})
}

func (c *Cloud) liftFaults(ctx context.Context, tx *changeTx, ids []string) error {
	for _, id := range ids {
		if err := c.endOutage(ctx, tx, id); err != nil {
			return err
		}
		if err := tx.DeleteFault(ctx, id); err != nil {
			return err
		}
	}
	return releaseHeld(ctx, tx)
}

// liftFaultsOf lifts the rules that a project made and those about it, as the project is
// being deleted.
func (c *Cloud) liftFaultsOf(ctx context.Context, tx *changeTx, project string) error {
	f := c.currentFaults()
	if f == nil {
		return nil
	}
	ids, finish := f.Suspend(project)
	tx.OnRollback(func() { finish(false) })
	tx.AfterCommit(func() { finish(true) })
	return c.liftFaults(ctx, tx, ids)
}

// ReleaseOrphans lets go of what no rule holds any more: instances that the outage of a
// lost rule took, and stuck resources of all projects but those whose IDs are given.
func (c *Cloud) ReleaseOrphans(ctx context.Context, stuck []string) error {
	return c.change(ctx, func(ctx context.Context, tx *changeTx) error {
		orphans, err := resourcesFrom[Instance](tx.OutageOrphans(ctx))
		if err != nil {
			return err
		}
		return errors.Join(c.recoverInstances(ctx, tx, orphans), releaseHeld(ctx, tx, stuck...))
	})
}

// releaseHeld makes everything that is held due now, of all projects but those whose IDs are given.
func releaseHeld(ctx context.Context, tx *changeTx, except ...string) error {
	ms := tx.now.UnixMilli()
	return tx.ReleaseHeld(ctx, db.ReleaseHeldParams{Now: &ms, Held: &heldDue, But: listJSON(except)})
}

// SweepFaults carries out what begins or ends now.
func (c *Cloud) SweepFaults(ctx context.Context) error {
	f := c.currentFaults()
	if f == nil {
		return nil
	}
	c.sweepMu.Lock()
	defer c.sweepMu.Unlock()
	due, _ := f.Sweeps(c.now())
	for _, s := range due {
		if err := c.carryOutSweep(ctx, f, s); err != nil {
			return err
		}
	}
	return nil
}

// nextSweep is when there will be something to carry out; zero if that is not known.
func (c *Cloud) nextSweep() time.Time {
	f := c.currentFaults()
	if f == nil {
		return time.Time{}
	}
	now := c.now()
	due, next := f.Sweeps(now)
	if len(due) > 0 {
		return now // Something became due after the last sweep.
	}
	return next
}

func (c *Cloud) carryOutSweep(ctx context.Context, f Faults, s FaultSweep) error {
	var taken []string
	err := c.change(ctx, func(ctx context.Context, tx *changeTx) (err error) {
		known, err := tx.SetFaultPhase(ctx, db.SetFaultPhaseParams{ID: s.Rule, Phase: int64(s.To)})
		switch {
		case err != nil || known == 0: // The rule has been lifted meanwhile.
			return err
		case s.To == FaultBegun:
			taken, err = c.beginFault(ctx, tx, f, s)
			return err
		}
		return errors.Join(c.endOutage(ctx, tx, s.Rule), releaseHeld(ctx, tx))
	})
	if err != nil {
		return err
	}
	f.Swept(s, len(taken))
	c.refreshBalancersOf(context.WithoutCancel(ctx), taken...)
	return nil
}

// beginFault puts the instances that an outage or a crash takes in state error, and gives
// their IDs.
func (c *Cloud) beginFault(ctx context.Context, tx *changeTx, f Faults, s FaultSweep) (taken []string, err error) {
	states := stateNames(api.InstancePending, api.InstanceRunning)
	instances, err := resourcesIn[Instance](ctx, tx.Tx, s.Project, states...)
	if err != nil {
		return nil, err
	}
	for _, in := range instances {
		rule, _ := findRule(InstanceRules, in.State, Crash)
		switch {
		case s.Zone == in.Zone:
			rule.Reason = "zone " + in.Zone + " has an outage"
			err = tx.InsertFaultInstance(ctx, db.InsertFaultInstanceParams{FaultID: s.Rule, InstanceID: in.ID})
		case s.Zone != "" || in.State != api.InstanceRunning || !f.Crash(instanceSubject(in), tx.now, s.Rule, tx.OnRollback):
			continue
		}
		if err == nil {
			err = c.moveInstance(ctx, tx, &in, rule)
		}
		if err != nil {
			return nil, err
		}
		taken = append(taken, in.ID)
	}
	return taken, nil
}

// endOutage starts the instances again that an outage took. Other rules took none.
func (c *Cloud) endOutage(ctx context.Context, tx *changeTx, rule string) error {
	instances, err := resourcesFrom[Instance](tx.InstancesOfFault(ctx, rule))
	if err != nil {
		return err
	}
	if err := tx.DeleteFaultInstances(ctx, rule); err != nil {
		return err
	}
	return c.recoverInstances(ctx, tx, instances)
}

// recoverInstances starts instances again whose outage is over. If another outage has
// their zone too, they become that one's.
func (c *Cloud) recoverInstances(ctx context.Context, tx *changeTx, instances []Instance) error {
	for _, in := range instances {
		move, ok := findRule(InstanceRules, in.State, Recover)
		if !ok {
			continue
		}
		other, lost := "", false
		if f := c.currentFaults(); f != nil {
			other, lost = f.Outage(in.Project, in.Zone, tx.now)
		}
		var err error
		if lost {
			err = tx.InsertFaultInstance(ctx, db.InsertFaultInstanceParams{FaultID: other, InstanceID: in.ID})
		} else {
			err = c.moveInstance(ctx, tx, &in, move)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func instanceSubject(in Instance) Subject {
	return Subject{Project: in.Project, Kind: api.ResourceInstance, ID: in.ID, Tags: in.Tags}
}

func balancerSubject(lb LoadBalancer) Subject {
	return Subject{Project: lb.Project, Kind: api.ResourceLoadBalancer, ID: lb.ID, Tags: lb.Tags}
}

// endInstanceState ends the state that an instance is in, in the way that faults decide.
func (c *Cloud) endInstanceState(ctx context.Context, tx *changeTx, in *Instance, rule Rule[api.InstanceState]) error {
	f := c.currentFaults()
	if f == nil || in.State == api.InstanceTerminated {
		return c.moveInstance(ctx, tx, in, rule)
	}
	s := instanceSubject(*in)
	if f.Stuck(s, tx.now, tx.OnRollback) {
		return tx.SetDue(ctx, db.SetDueParams{ID: in.ID, DueAt: &heldDue})
	}
	if failed, ok := findRule(InstanceRules, in.State, Failed); ok {
		if reason, fails := f.Fail(s, tx.now, tx.OnRollback); fails {
			rule, rule.Reason = failed, reason
		}
	}
	if err := c.moveInstance(ctx, tx, in, rule); err != nil {
		return err
	}
	if in.State != api.InstanceRunning || !f.Crash(s, tx.now, "", tx.OnRollback) {
		return nil
	}
	rule, _ = findRule(InstanceRules, in.State, Crash)
	return c.moveInstance(ctx, tx, in, rule)
}

// holdIfStuck tells whether a fault keeps a balancer in its transitional state, and if so
// moves its due time out of reach.
func (c *Cloud) holdIfStuck(ctx context.Context, lb LoadBalancer) (holds bool, err error) {
	f := c.currentFaults()
	switch lb.State {
	case api.LoadBalancerProvisioning, api.LoadBalancerUpdating, api.LoadBalancerDeleting:
	default:
		return false, nil
	}
	if f == nil || !f.Stuck(balancerSubject(lb), c.now(), nil) {
		return false, nil
	}
	// The rule may have been lifted since. If it is lifted after this change, lifting it
	// releases the balancer.
	err = c.change(ctx, func(ctx context.Context, tx *changeTx) error {
		stored, err := resourceByID[LoadBalancer](ctx, tx.Tx, lb.ID)
		if err != nil {
			return err
		}
		holds = f.Stuck(balancerSubject(lb), tx.now, tx.OnRollback)
		if !holds || stored.Version != lb.Version || !isDue(stored.due, tx.now) {
			return nil
		}
		return tx.SetDue(ctx, db.SetDueParams{ID: lb.ID, DueAt: &heldDue})
	})
	return holds, err
}

// injectedBuildFailure gives the failure that a fault wants for a balancer that is to be
// built; nil if there is none. An active balancer stays active.
func (c *Cloud) injectedBuildFailure(lb LoadBalancer) error {
	f := c.currentFaults()
	if f == nil || lb.State == api.LoadBalancerActive {
		return nil
	}
	if reason, fails := f.Fail(balancerSubject(lb), c.now(), nil); fails {
		return errors.New(reason)
	}
	return nil
}

// checkZoneAvailable refuses what needs a zone that has an outage.
func (c *Cloud) checkZoneAvailable(p Project, zone string) error {
	if c.hasZoneOutage(p, zone) {
		return refuse(ZoneUnavailable, "zone %s has an outage: choose another, or try again when it is over", zone).
			withField("zone", "has an outage")
	}
	return nil
}

func (c *Cloud) hasZoneOutage(p Project, zone string) bool {
	f := c.currentFaults()
	if f == nil {
		return false
	}
	_, lost := f.Outage(p.ID, zone, c.now())
	return lost
}

// availableZones gives the zones without an outage, or all zones if all have one.
func (c *Cloud) availableZones(p Project) []string {
	var work []string
	for _, z := range c.cfg.Zones {
		if !c.hasZoneOutage(p, z) {
			work = append(work, z)
		}
	}
	if len(work) == 0 {
		return c.cfg.Zones
	}
	return work
}

// HasProject tells whether there is a project of that ID.
func (c *Cloud) HasProject(ctx context.Context, id string) (bool, error) {
	return readOne(ctx, c, func(tx *store.Tx) (bool, error) {
		_, err := tx.FaultProject(ctx, id)
		if errors.Is(err, sql.ErrNoRows) {
			return false, nil
		}
		return err == nil, err
	})
}

// ResourceTags gives the tags of a resource of a kind; none if the project has no
// such resource.
func (c *Cloud) ResourceTags(ctx context.Context, p Project, kind Resource, id string) (api.Tags, error) {
	row, err := readOne(ctx, c, func(tx *store.Tx) (db.GetResourceRow, error) {
		return tx.GetResource(ctx, db.GetResourceParams{ID: id, Kind: string(kind)})
	})
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	var r api.Metadata
	if err == nil {
		err = json.Unmarshal([]byte(row.Document), &r)
	}
	if err != nil || r.Project != p.ID {
		return nil, err
	}
	return r.Tags, nil
}
