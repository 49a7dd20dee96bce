// Package cloud is the simulated cloud itself: resources, their life cycles and rules. It
// knows nothing of HTTP. The state is in package store, and the load balancers' sockets are
// behind DataPlane. Begin with types.go for the resources, states.go for their life cycles
// and worker.go for what makes transitions happen.
package cloud

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/store"
)

const (
	// DefaultRegion is the region when none is given.
	DefaultRegion = "nebula-1"
	// DefaultRetention is a Config.Retention for those who have no preference.
	DefaultRetention = time.Hour
)

// The default address pools. On Linux all of 127/8 is there without root.
var (
	DefaultInstanceCIDR     = netip.MustParsePrefix("127.30.16.0/20")
	DefaultLoadBalancerCIDR = netip.MustParsePrefix("127.30.64.0/18")
)

// Config is what a cloud is made of. Store, DataPlane and Profile are required; zero is
// fine for the rest.
type Config struct {
	Store     *store.Store
	DataPlane DataPlane
	Profile   Profile

	Clock clockwork.Clock // a steadyClock when nil
	// Virtual, unless nil, takes the place of Clock. Nothing happens by itself then, not
	// even what takes no time, until Advance is called.
	Virtual          *VirtualTime
	Logger           *slog.Logger // silent when nil
	Region           string
	Zones            []string // <region>a to <region>c when empty
	InstanceCIDR     netip.Prefix
	LoadBalancerCIDR netip.Prefix
	// TargetRanges are where balancers may send to beside InstanceCIDR.
	TargetRanges []netip.Prefix
	// LoadBalancerCIDR6 is the pool of IPv6 addresses; an invalid prefix means that there
	// is none.
	LoadBalancerCIDR6 netip.Prefix
	// AccessTokenLifetime is how long a secret of GrantAccess is valid; 0 is DefaultAccessTokenLifetime.
	AccessTokenLifetime time.Duration
	// Retention is how long a terminated instance stays readable; not at all
	// when zero.
	Retention time.Duration
	// Seed, unless 0, makes what is drawn repeatable, in the order in which it is drawn:
	// delays, made-up names and the random part of IDs. The other part of an ID is the
	// clock's time, and calls that come at once have no order.
	Seed int64
	// InstanceQuota, unless 0, takes the place of DefaultQuotas[QuotaInstances]. QuotaAdvice is who raises a quota,
	// and how, for the error of one that is used up; "" names an admin.
	InstanceQuota int64
	QuotaAdvice   string
	// SnapshotDir is where snapshots are kept; there are none without it.
	SnapshotDir string
}

// Cloud is the simulated cloud. It is safe for concurrent use. Its transitions happen
// while Run runs.
type Cloud struct {
	Addresses      Kind[ReservedAddress, api.ReservedAddressCreate, api.ResourceUpdate]
	Certificates   Kind[Certificate, api.CertificateCreate, api.ResourceUpdate]
	DialectRecords Kind[DialectRecord, DialectRecordCreate, api.ResourceUpdate]
	Firewalls      Kind[Firewall, api.FirewallCreate, api.FirewallUpdate]
	Networks       Kind[Network, api.NetworkCreate, api.ResourceUpdate]
	Routes         Kind[Route, api.RouteCreate, api.ResourceUpdate]

	cfg     Config
	store   *store.Store
	clock   clockwork.Clock
	log     *slog.Logger
	random  *random
	wake    chan struct{} // tells the worker that something may be due
	ready   chan struct{} // closed by Run once balancers are restored
	waiters operationWaiters

	admissions    admissionCache[[sha256.Size]byte] // by the hash of a secret
	keyAdmissions admissionCache[string]            // by the fingerprint of a key
	keptKeys      store.Kept
	usedIPv4      usedAddresses
	usedIPv6      usedAddresses // of the IPv6 pool

	transitions transitionCounter

	activeFaults atomic.Pointer[Faults] // nil: none
	// sweepMu lets one goroutine at a time carry out what faults begin and end. It is
	// locked before planeMu.
	sweepMu sync.Mutex

	// planeMu orders all calls that change the data plane: what is read under it is never
	// older than what was applied before. It is locked before a transaction, never within
	// one.
	planeMu sync.Mutex
	// forwarding are the balancers as the data plane forwards for them now, by ID. A
	// balancer differs from its stored form while an update is not built yet or cannot be.
	forwarding map[string]LoadBalancer
	// balancersByTarget has the IDs of the forwarding balancers by the IDs of their
	// targets.
	balancersByTarget map[string]map[string]bool
	staleBalancers    map[string]bool // in force, but with targets that could not be refreshed

	conditionQueue conditionQueue

	snapshots snapshotFiles
}

// New checks the configuration and reads what the cloud keeps in memory.
func New(cfg Config) (*Cloud, error) {
	if cfg.Store == nil || cfg.DataPlane == nil || cfg.Profile.Delays == nil {
		return nil, errors.New("a cloud needs a store, a data plane and a profile")
	}
	cfg.setDefaults()
	cfg.AccessTokenLifetime = cmp.Or(cfg.AccessTokenLifetime, DefaultAccessTokenLifetime)
	if cfg.Retention < 0 {
		return nil, fmt.Errorf("retention %s: cannot be negative", cfg.Retention)
	}
	if err := checkPools(cfg.InstanceCIDR, cfg.LoadBalancerCIDR, cfg.LoadBalancerCIDR6); err != nil {
		return nil, err
	}
	if err := checkTargetRanges(cfg.TargetRanges); err != nil {
		return nil, err
	}
	zoneNames := map[string]bool{}
	for _, z := range cfg.Zones {
		if z == "" || zoneNames[z] {
			return nil, fmt.Errorf("zones %q: each needs a different name", cfg.Zones)
		}
		zoneNames[z] = true
	}
	c := &Cloud{
		cfg: cfg, store: cfg.Store, clock: cfg.Clock, log: cfg.Logger,
		random:   newRandom(cfg.Seed, cfg.startNumber()),
		wake:     make(chan struct{}, 1),
		ready:    make(chan struct{}),
		waiters:  operationWaiters{byID: map[string]*operationWait{}},
		keptKeys: keptKeys,

		usedIPv4: newUsedAddresses(everyIPv4),
		usedIPv6: newUsedAddresses(trackedPrefix(cfg.LoadBalancerCIDR6)),

		snapshots: snapshotFiles{dir: cfg.SnapshotDir},

		forwarding:        map[string]LoadBalancer{},
		balancersByTarget: map[string]map[string]bool{},
		staleBalancers:    map[string]bool{},

		conditionQueue: conditionQueue{queued: map[string]bool{}, reportedAt: map[string]time.Time{}},
	}
	cfg.DataPlane.Notify(c.queueCondition)
	ctx := context.Background()
	c.Addresses, c.Certificates, c.Firewalls = c.addresses(), c.certificates(), c.firewalls()
	c.Networks, c.Routes, c.DialectRecords = c.networks(), c.routes(), c.dialectRecords()
	return c, errors.Join(
		c.snapshots.removePartial(),
		c.store.Read(ctx, func(tx *store.Tx) error { return c.loadUsedAddresses(ctx, tx) }),
		c.store.Write(ctx, func(tx *store.Tx) error { return tx.SetDefaultCIDR(ctx, cfg.InstanceCIDR.String()) }),
	)
}

// startNumber tells apart starts at the same virtual time. With the same time and seed,
// they would make the same IDs.
func (cfg *Config) startNumber() int64 {
	if cfg.Virtual == nil {
		return 0
	}
	return cfg.Virtual.starts
}

func (cfg *Config) setDefaults() {
	if cfg.Virtual != nil {
		cfg.Clock = cfg.Virtual.clock
	}
	if cfg.Clock == nil {
		cfg.Clock = newSteadyClock()
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Region == "" {
		cfg.Region = DefaultRegion
	}
	if len(cfg.Zones) == 0 {
		cfg.Zones = []string{cfg.Region + "a", cfg.Region + "b", cfg.Region + "c"}
	}
	if !cfg.InstanceCIDR.IsValid() {
		cfg.InstanceCIDR = DefaultInstanceCIDR
	}
	if !cfg.LoadBalancerCIDR.IsValid() {
		cfg.LoadBalancerCIDR = DefaultLoadBalancerCIDR
	}
}

// Zones lists the zones, in the order configured.
func (c *Cloud) Zones() []Zone {
	zones := make([]Zone, len(c.cfg.Zones))
	for i, z := range c.cfg.Zones {
		zones[i] = Zone{Name: z, Region: c.cfg.Region}
	}
	return zones
}

// Regions lists the regions: there is one.
func (c *Cloud) Regions() []string { return []string{c.cfg.Region} }

// Ready is closed once Run has restored the balancers.
func (c *Cloud) Ready() <-chan struct{} { return c.ready }

// now is the clock's time in the precision that is stored.
func (c *Cloud) now() time.Time { return c.clock.Now().UTC().Truncate(time.Millisecond) }

// changeTx is the transaction of one change. It records what the change brings
// about beside the stored rows; change passes that on once it is committed.
type changeTx struct {
	*store.Tx
	now             time.Time // the point in time of all that it changes
	endedOperations []string  // IDs
	transitions     []Transition
}

// change runs fn in one transaction, at one point in time, and then wakes the
// worker. The caller's cancellation does not interrupt it: a change that has
// begun is completed even if nobody waits for the answer any more.
func (c *Cloud) change(ctx context.Context, fn func(ctx context.Context, tx *changeTx) error) error {
	ctx = context.WithoutCancel(ctx)
	var made *changeTx
	err := c.store.Write(ctx, func(tx *store.Tx) error {
		made = &changeTx{Tx: tx, now: c.now()}
		if c.cfg.Virtual != nil {
			if err := tx.AdvanceClock(ctx, made.now.UnixMilli()); err != nil {
				return err
			}
		}
		return fn(ctx, made)
	})
	if err != nil {
		return refuseIfFull(err)
	}
	c.waiters.notifyEnded(made.endedOperations)
	c.transitions.addAll(made.transitions)
	c.wakeWorker()
	return nil
}

// wakeWorker has the worker look for what is due. It never blocks.
func (c *Cloud) wakeWorker() {
	select {
	case c.wake <- struct{}{}:
	default: // The worker has been woken already.
	}
}

// isDue tells whether a state that ends at a time, if it does, has ended by now.
func isDue(end *time.Time, now time.Time) bool { return end != nil && !end.After(now) }

// stateEnd is when a state that is entered now ends, or nil if it lasts.
func (c *Cloud) stateEnd(now time.Time, wait Delay) *time.Time {
	if wait == "" {
		return nil
	}
	return new(now.Add(c.drawDelay(wait)))
}
