package cloud

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/store"
	"github.com/ccmlab/ccmlab/fakecloud/store/db"
)

// Forwarding is a balancer's configuration as the data plane needs it.
type Forwarding struct {
	ID   string
	Kind LoadBalancerKind
	// Addresses are those that it serves on, of either family: each has all Listeners.
	Addresses []netip.Addr
	Listeners []Listener
	// Certificates are those of listeners of https and tls, by ID.
	Certificates map[string]tls.Certificate
	// Backends are the balancer's own targets that run.
	Backends []Backend
	// Own are those of listeners that have targets of their own.
	Own map[ListenerKey][]Backend
	// Targets is how many targets there are, including those that do not run.
	Targets int
	// Algorithm chooses among them; round robin when empty.
	Algorithm Algorithm
	// ConnectionLimit is how many connections (of UDP, clients) there may be at a time, on all
	// listeners together; 0 is no limit.
	ConnectionLimit int
	// SourceRanges are who may connect; empty is everybody.
	SourceRanges []netip.Prefix
	// Affinity keeps a client on one target until the client has been silent for so long;
	// 0 turns it off.
	Affinity time.Duration
	// IdleTimeout ends connections that have been silent for so long. If it is 0, TCP
	// connections never end for that, and UDP sessions after a time of the data plane's
	// own.
	IdleTimeout time.Duration
	// Drain is how long a TCP connection may go on after its listener or backend has been
	// removed; 0 means without limit.
	Drain time.Duration
	// HealthCheck may be nil.
	HealthCheck *HealthCheck
}

// ListenerKey tells the listeners of a balancer apart.
type ListenerKey struct {
	Protocol Protocol
	Port     int
}

// BackendsOf gives the targets of a listener that run.
func (f *Forwarding) BackendsOf(l Listener) []Backend {
	if l.Targets == nil {
		return f.Backends
	}
	return f.Own[ListenerKey{l.Protocol, l.Port}]
}

// AllBackends gives each target that runs once, the balancer's own first.
func (f *Forwarding) AllBackends() []Backend {
	if len(f.Own) == 0 {
		return f.Backends
	}
	all, known := slices.Clone(f.Backends), map[string]bool{}
	for _, b := range all {
		known[b.Target] = true
	}
	for _, l := range f.Listeners {
		for _, b := range f.Own[ListenerKey{l.Protocol, l.Port}] {
			if !known[b.Target] {
				known[b.Target] = true
				all = append(all, b)
			}
		}
	}
	return all
}

// Backend is a target that runs, its address, what its firewalls let in, and how it shares in new connections.
type Backend struct {
	Target  string // its name
	Address netip.Addr
	LetIn   LetIn
	Weight  int // 0 is 1
	Drain   bool
	Backup  bool
}

// WithoutShare is the backend as health checks know it: they go on when its share of connections changes.
func (b Backend) WithoutShare() Backend {
	b.Weight, b.Drain, b.Backup = 0, false, false
	return b
}

// DataPlane forwards packets for load balancers. Calls for one balancer do not
// overlap.
type DataPlane interface {
	// CanForward says why there can be no balancers of a kind, and what helps; nil if there can.
	CanForward(LoadBalancerKind) error
	// Apply puts a balancer's forwarding in force. It either does so completely, or leaves
	// in force what was there before and returns an error, which is a sentence a person
	// can act on. It ends only connections that have to end. The error is a ListenError if
	// an address and port cannot be listened on.
	Apply(Forwarding) error
	// Remove ends a balancer's listeners and connections. It accepts unknown IDs.
	Remove(id string)
	// Stats gives a balancer's counters since the process started. Targets are the current ones, in their
	// order; of the data plane's own, some that were targets follow.
	Stats(id string) api.LoadBalancerStats
	// Health gives the health of each backend of a balancer.
	Health(id string) []api.TargetHealth
	// Condition says why a balancer that is in force cannot serve clients now, in a
	// sentence a person can act on; it is empty if it can. It is not known while it
	// depends on targets whose first health check is yet to end.
	Condition(id string) (reason string, known bool)
	// Notify registers changed, which is called when a balancer's condition may have
	// changed or become known by itself, and not by Apply. changed must return at once and
	// must not call the data plane, whose locks may be held.
	Notify(changed func(id string))
}

// ListenError is why a data plane cannot listen on an address and port.
type ListenError struct{ Err error }

func (e *ListenError) Error() string { return e.Err.Error() }
func (e *ListenError) Unwrap() error { return e.Err }

// stateReasonCode classifies why a balancer cannot be built. It is empty for
// what has no code.
func stateReasonCode(failure error) api.StateReasonCode {
	var cannotListen *ListenError
	if errors.As(failure, &cannotListen) {
		return api.ReasonCannotListen
	}
	return ""
}

// targetIDs are the IDs of the instances among the targets.
func (lb LoadBalancer) targetIDs() (ids []string) {
	for _, t := range lb.AllTargets() {
		if t.InstanceID != "" {
			ids = append(ids, t.InstanceID)
		}
	}
	return ids
}

func forwardingOf(lb LoadBalancer, running map[string]Backend, targets int) (Forwarding, error) {
	pick := func(targets []api.Target) []Backend {
		backends := []Backend{}
		for _, t := range targets {
			if b, runs := running[t.Name()]; runs {
				b.Weight, b.Drain, b.Backup = t.Weight, t.Drain, t.Backup
				backends = append(backends, b)
			}
		}
		return backends
	}
	var own map[ListenerKey][]Backend
	for _, l := range lb.Listeners {
		if l.Targets != nil {
			if own == nil {
				own = map[ListenerKey][]Backend{}
			}
			own[ListenerKey{l.Protocol, l.Port}] = pick(l.Targets)
		}
	}
	size, _ := sizeOf(lb.Type)
	ranges, err := mapAll(lb.SourceRanges, netip.ParsePrefix)
	return Forwarding{
		ID: lb.ID, Kind: lb.Kind, Addresses: lb.servingAddresses(), Listeners: lb.Listeners,
		Backends: pick(lb.Targets), Own: own, Targets: targets,
		ConnectionLimit: size.MaxConnections, Algorithm: lb.Algorithm, SourceRanges: ranges, HealthCheck: lb.HealthCheck,
		Affinity: lb.ClientAffinitySeconds.Duration(), IdleTimeout: lb.IdleTimeoutSeconds.Duration(), Drain: lb.DrainSeconds.Duration(),
	}, err
}

// applyForwarding has the data plane forward to the targets that run now. planeMu is held.
// failure is the data plane's error, err any other.
func (c *Cloud) applyForwarding(ctx context.Context, lb *LoadBalancer) (failure, err error) {
	var f Forwarding
	err = c.store.Read(ctx, func(tx *store.Tx) error {
		running, targets, err := c.runningBackends(ctx, tx, *lb)
		if err != nil {
			return err
		}
		if f, err = forwardingOf(*lb, running, targets); err != nil {
			return err
		}
		if lb.keyPairs == nil {
			lb.keyPairs, err = certificatesOf(ctx, tx, *lb)
		}
		f.Certificates = lb.keyPairs
		return err
	})
	if refused := (*Error)(nil); errors.As(err, &refused) {
		return refused, nil
	}
	if err != nil {
		return nil, err
	}
	failure = c.cfg.DataPlane.Apply(f)
	c.queueCondition(lb.ID)
	return failure, nil
}

// certificatesOf gives those of the balancer's listeners. It refuses one whose private key is not here.
func certificatesOf(ctx context.Context, tx *store.Tx, lb LoadBalancer) (map[string]tls.Certificate, error) {
	all := map[string]tls.Certificate{}
	for _, l := range lb.Listeners {
		for _, id := range l.CertificateIDs {
			pair, err := keyPair(ctx, tx, lb.Project, id)
			if err != nil {
				return nil, err
			}
			all[id] = pair
		}
	}
	return all, nil
}

// buildBalancer brings a balancer's configuration into force, or gives the failure that
// prevents it. planeMu is held.
func (c *Cloud) buildBalancer(ctx context.Context, lb LoadBalancer) (failure, err error) {
	if failure := c.injectedBuildFailure(lb); failure != nil {
		return failure, nil
	}
	failure, err = c.applyForwarding(ctx, &lb)
	if failure == nil && err == nil {
		c.markForwarding(lb)
	}
	return failure, err
}

// recordBuild gives the change that writes what became of a build. The change does nothing
// if the balancer has changed meanwhile: then it is built again.
func (c *Cloud) recordBuild(built LoadBalancer, failure error) pendingChange {
	// Read before the write, as in reportConditionsOf. It is empty until it is known.
	reason, _ := c.cfg.DataPlane.Condition(built.ID)
	on := Built
	if failure != nil {
		on, reason = Failed, failure.Error()
	}
	return func(ctx context.Context, tx *changeTx) error {
		return c.recordOutcome(ctx, tx, built, on, reason, stateReasonCode(failure))
	}
}

func (c *Cloud) recordOutcome(
	ctx context.Context,
	tx *changeTx,
	built LoadBalancer,
	on Action,
	reason string,
	code api.StateReasonCode,
) error {
	lb, err := resourceByID[LoadBalancer](ctx, tx.Tx, built.ID)
	if err != nil || lb.Version != built.Version {
		return err
	}
	rule, ok := findRule(LoadBalancerRules, lb.State, on)
	if !ok || rule.Same {
		return nil
	}
	before := lb
	lb.State, lb.StateReason, lb.StateReasonCode, lb.due = rule.To, reason, code, c.stateEnd(tx.now, rule.Wait)
	if lb.State == before.State && lb.StateReason == before.StateReason &&
		lb.StateReasonCode == before.StateReasonCode {
		// The pauses double up to a minute, so that a balancer that stays broken costs few
		// writes.
		pause := min(max(tx.now.Sub(lb.UpdatedAt), c.drawDelay(rule.Wait)), maxRetryAfter)
		due := tx.now.Add(pause).UnixMilli()
		return tx.SetDue(ctx, db.SetDueParams{ID: lb.ID, DueAt: &due}) // Only the next try moves.
	}
	if on == Failed {
		c.log.Warn("load balancer cannot be built", "id", lb.ID, "name", lb.Name, "reason", reason)
	}
	return saveResource(ctx, tx, before.State, &lb)
}

// runningBackends gives the targets that run, by name, and how many there are, running or not. It leaves out those
// outside of the target ranges, which may have been wider when they were stored.
func (c *Cloud) runningBackends(
	ctx context.Context,
	tx *store.Tx,
	lb LoadBalancer,
) (running map[string]Backend, targets int, err error) {
	rows, err := tx.InstancesOf(ctx, listJSON(lb.targetIDs()))
	if err != nil {
		return nil, 0, err
	}
	letIn, err := letInFrom(ctx, tx, lb)
	if err != nil {
		return nil, 0, err
	}
	running = map[string]Backend{}
	add := func(name, text string) error {
		address, err := netip.ParseAddr(text)
		if err != nil {
			return err
		}
		if err := c.checkTargetAddress(address, "targets"); err != nil {
			c.log.Warn("target gets no traffic", "target", name, "reason", err)
			return nil
		}
		running[name] = Backend{Target: name, Address: address, LetIn: letIn[name]}
		return nil
	}
	for _, in := range rows {
		if api.InstanceState(in.State) != api.InstanceTerminated {
			targets++
		}
		if api.InstanceState(in.State) == api.InstanceRunning && in.Address != nil {
			err = errors.Join(err, add(in.ID, *in.Address))
		}
	}
	for _, t := range lb.AllTargets() {
		if t.IP != "" {
			targets++
			err = errors.Join(err, add(t.IP, t.IP))
		}
	}
	return running, targets, err
}

// refreshBalancersOf updates the forwarding of the balancers that have one of the
// instances as a target: these may have started or stopped running.
func (c *Cloud) refreshBalancersOf(ctx context.Context, instances ...string) {
	c.planeMu.Lock()
	defer c.planeMu.Unlock()
	balancers := map[string]bool{}
	for _, in := range instances {
		maps.Copy(balancers, c.balancersByTarget[in])
	}
	for _, id := range slices.Sorted(maps.Keys(balancers)) {
		if err := c.refreshForwarding(ctx, id); err != nil {
			c.retryForwarding(id, err)
		}
	}
}

// retryForwarding has the worker try again what the data plane could not do. planeMu is held.
func (c *Cloud) retryForwarding(id string, err error) {
	c.log.Error("cannot update all targets, retrying", "err", err)
	c.staleBalancers[id] = true
	c.wakeWorker()
}

// refreshStaleBalancers tries again what retryForwarding has recorded.
func (c *Cloud) refreshStaleBalancers(ctx context.Context) error {
	c.planeMu.Lock()
	defer c.planeMu.Unlock()
	var errs []error
	for id := range c.staleBalancers {
		if err := c.refreshForwarding(ctx, id); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(c.staleBalancers, id)
	}
	return errors.Join(errs...)
}

// refreshForwarding keeps a balancer's configuration and updates which of its targets run. Of an attached
// address, the attachment may have ended with the instance. planeMu is held.
func (c *Cloud) refreshForwarding(ctx context.Context, id string) error {
	lb, marked := c.forwarding[id]
	if !marked || lb.Kind == AttachedAddress { // An address is not marked if it could not be read.
		return c.forwardAttachedAddress(ctx, id)
	}
	failure, err := c.applyForwarding(ctx, &lb)
	if err := cmp.Or(failure, err); err != nil {
		return fmt.Errorf("load balancer %s still forwards to the previous targets: %w", lb.ID, err)
	}
	return nil
}

// ofIPTargets is where balancersByTarget has the balancers that have an IP as a target.
const ofIPTargets = ""

// markForwarding records that the data plane forwards for a balancer. planeMu is held.
func (c *Cloud) markForwarding(lb LoadBalancer) {
	c.unmarkForwarding(lb.ID)
	c.forwarding[lb.ID] = lb
	for _, t := range lb.AllTargets() { // InstanceID is ofIPTargets where a target is an IP.
		if c.balancersByTarget[t.InstanceID] == nil {
			c.balancersByTarget[t.InstanceID] = map[string]bool{}
		}
		c.balancersByTarget[t.InstanceID][lb.ID] = true
	}
}

// stopForwarding ends a balancer's forwarding. planeMu is held.
func (c *Cloud) stopForwarding(id string) {
	c.cfg.DataPlane.Remove(id)
	c.unmarkForwarding(id)
}

// unmarkForwarding undoes markForwarding. planeMu is held.
func (c *Cloud) unmarkForwarding(id string) {
	for _, t := range c.forwarding[id].AllTargets() {
		if delete(c.balancersByTarget[t.InstanceID], id); len(c.balancersByTarget[t.InstanceID]) == 0 {
			delete(c.balancersByTarget, t.InstanceID)
		}
	}
	delete(c.forwarding, id)
	delete(c.staleBalancers, id)
}
