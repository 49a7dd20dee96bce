package scene

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

const (
	// PollInterval is how often Follower.Poll is to be called.
	PollInterval = 2 * time.Second
	// pollBound is how long reading all that no event tells may take.
	pollBound = 10 * time.Second
)

// maxPolledBalancers bounds the balancers whose targets are asked for.
const maxPolledBalancers = 30

// Store keeps a scene. Its methods may be called at the same time.
type Store interface {
	Get(id string) (Object, bool)
	FindByCloudID(id string) (Object, bool)
	Objects() []Object
	Add(Change) error
}

// Follower folds what a cloud tells into a scene: its events, and what no event tells.
type Follower struct {
	// Seq is the number of the newest event that is in the scene already.
	Seq int64

	// Source is the cloud. Whoever follows its events tells it of their stream.
	*Source

	mu      sync.Mutex
	store   Store
	counted map[string]trafficCount
}

// trafficCount is what a balancer had sent to each instance at a time.
type trafficCount struct {
	at    time.Time
	bytes map[string]int64
}

// NewFollower makes a Follower that continues after the event with the number, which the store has since the cloud last
// answered.
func NewFollower(store Store, seq int64, answered time.Time) *Follower {
	return &Follower{
		Seq: seq, store: store, counted: map[string]trafficCount{},
		Source: NewSource(
			store, "cloud", answered, KindInstance, KindBalancer, KindRoute, KindAddress, KindFirewall,
			KindCertificate,
		),
	}
}

// Event adds what an event tells, unless the scene has it already.
func (f *Follower) Event(ev api.Event) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	t, shown := thingOfEvent(ev)
	if ev.Seq <= f.Seq || !shown {
		return nil
	}
	f.Seq = ev.Seq
	known, exists := f.store.Get(t.ID)
	c := Change{Time: ev.Time, CloudSeq: ev.Seq}
	switch {
	case ev.Type != api.EventDeleted:
		if exists {
			t.KeepTargets(known)
		}
		c.Object = &t
	case exists && known.CloudID != t.CloudID: // Another has the name by now.
		return nil
	default:
		c.Gone = t.ID
	}
	return f.store.Add(c)
}

// thingOfEvent is what an event is about, if that is shown.
func thingOfEvent(ev api.Event) (t Object, shown bool) {
	switch {
	case ev.Instance != nil:
		return OfInstance(*ev.Instance), true
	case ev.LoadBalancer != nil:
		return OfBalancer(*ev.LoadBalancer), true
	case ev.Route != nil:
		return OfRoute(*ev.Route), true
	case ev.Address != nil:
		return OfAddress(*ev.Address), true
	case ev.Firewall != nil:
		return OfFirewall(*ev.Firewall), true
	case ev.Certificate != nil:
		return OfCertificate(*ev.Certificate, ev.Time), true
	}
	return t, false
}

// Reader is what Poll asks of the cloud.
type Reader interface {
	ListLoadBalancers(ctx context.Context, f client.LoadBalancerFilter) ([]api.LoadBalancer, error)
	LoadBalancerHealth(ctx context.Context, id string) (*api.LoadBalancerHealth, error)
	LoadBalancerStats(ctx context.Context, id string) (*api.LoadBalancerStats, error)
	ListFaults(ctx context.Context) ([]api.Fault, error)
}

// Poll adds what no event tells: health and traffic of the balancers' targets, faults, and that certificates expire.
// What cannot be read stays as it was, and is unknown soon.
func (f *Follower) Poll(ctx context.Context, cloud Reader) error {
	listing, cancel := context.WithTimeout(ctx, PollInterval)
	defer cancel()
	listed, err := cloud.ListLoadBalancers(listing, client.LoadBalancerFilter{})
	if err == nil {
		reading, cancel := context.WithTimeout(ctx, pollBound)
		defer cancel()
		err = f.pollTraffic(reading, cloud, listed)
	} else {
		err = fmt.Errorf("load balancers: %w", err)
	}
	observed := f.Observe(err)
	asking, cancelAsking := context.WithTimeout(ctx, PollInterval)
	defer cancelAsking()
	// No fault hides the faults.
	return errors.Join(err, observed, f.PollFaults(asking, cloud), f.refreshCertificates())
}

// refreshCertificates marks the certificates that have come to expire.
func (f *Follower) refreshCertificates() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for _, t := range f.store.Objects() {
		if before := t.State; t.Kind == KindCertificate {
			if t.setExpiry(time.Now()); t.State != before {
				errs = append(errs, f.store.Add(Change{Time: time.Now(), Object: &t}))
			}
		}
	}
	return errors.Join(errs...)
}

func (f *Follower) pollTraffic(ctx context.Context, cloud Reader, listed []api.LoadBalancer) error {
	var errs []error
	for _, lb := range listed[:min(len(listed), maxPolledBalancers)] {
		health, err1 := cloud.LoadBalancerHealth(ctx, lb.ID)
		stats, err2 := cloud.LoadBalancerStats(ctx, lb.ID)
		if err := errors.Join(err1, err2); err != nil {
			if !client.IsNotFound(err) { // It may have been deleted just now.
				errs = append(errs, fmt.Errorf("load balancer %s: %w", lb.Name, err))
			}
			continue
		}
		errs = append(errs, f.setTargets(lb.ID, health.Targets, stats.Targets))
	}
	maps.DeleteFunc(f.counted, func(id string, _ trafficCount) bool {
		return !slices.ContainsFunc(listed, func(lb api.LoadBalancer) bool { return lb.ID == id })
	})
	return errors.Join(errs...)
}

// setTargets adds health and traffic of a balancer that the events have told of.
func (f *Follower) setTargets(id string, health []api.TargetHealth, stats []api.TargetStats) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	t, ok := f.store.FindByCloudID(id)
	if !ok {
		return nil
	}
	before, now := f.counted[id], time.Now()
	bytes := t.SetTargets(health, stats, before.bytes, now.Sub(before.at).Seconds())
	f.counted[id] = trafficCount{now, bytes}
	return f.store.Add(Change{Time: now, Object: &t})
}

// PollFaults adds the faults that are in force, if the caller may see them.
func (f *Follower) PollFaults(ctx context.Context, cloud Reader) error {
	faults, err := cloud.ListFaults(ctx)
	if client.HasCode(err, api.Forbidden) { // They are for admins.
		return nil
	}
	if err != nil {
		return fmt.Errorf("faults: %w", err)
	}
	inForce := map[string]Object{}
	for _, rule := range faults {
		if t := OfFault(rule); !rule.Spent {
			inForce[t.ID] = t
		}
	}
	var errs []error
	for _, t := range inForce {
		errs = append(errs, f.store.Add(Change{Time: time.Now(), Object: &t}))
	}
	for _, t := range f.store.Objects() {
		if _, still := inForce[t.ID]; !still && t.Kind == KindFault {
			errs = append(errs, f.store.Add(Change{Time: time.Now(), Gone: t.ID}))
		}
	}
	return errors.Join(errs...)
}
