package cloud

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/store"
	"github.com/ccmlab/ccmlab/fakecloud/store/db"
)

// toJSON encodes maps, slices and structs of strings and numbers, which always have a JSON
// form.
func toJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("marshalling %T: %v", v, err))
	}
	return string(b)
}

func millisOrNull(t *time.Time) *int64 {
	if t == nil {
		return nil
	}
	ms := t.UnixMilli()
	return &ms
}

func fromMillis(ms int64) time.Time { return time.UnixMilli(ms).UTC() }

func timeOrNil(ms *int64) *time.Time {
	if ms == nil {
		return nil
	}
	t := fromMillis(*ms)
	return &t
}

func addressOrNull(a netip.Addr) *string {
	if !a.IsValid() {
		return nil
	}
	s := a.String()
	return &s
}

func textOrNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func checkOrNull(h *HealthCheck) *string {
	if h == nil {
		return nil
	}
	s := toJSON(h)
	return &s
}

func instanceFrom(row db.Instance) (Instance, error) {
	in := Instance{
		ID: row.ID, Project: row.ProjectID, Name: row.Name, Region: row.Region, Zone: row.Zone,
		Type: InstanceType(row.Type), Network: row.NetworkID, State: InstanceState(row.State),
		StateReason: row.StateReason,
		Version:     row.Version, CreatedAt: fromMillis(row.CreatedAt), UpdatedAt: fromMillis(row.UpdatedAt),
		due: timeOrNil(row.DueAt),
	}
	var err error
	if row.Address != nil {
		in.Address, err = netip.ParseAddr(*row.Address)
	}
	if row.External != nil {
		err = errors.Join(err, json.Unmarshal([]byte(*row.External), &in.External))
	}
	if err = errors.Join(err, json.Unmarshal([]byte(row.Tags), &in.Tags)); err != nil {
		return Instance{}, fmt.Errorf("stored instance %s: %w", row.ID, err)
	}
	return in, nil
}

// loadInstance reads an instance; another project's is not found.
func loadInstance(ctx context.Context, tx *store.Tx, p Project, id string) (Instance, error) {
	row, err := tx.GetInstance(ctx, id)
	if errors.Is(err, sql.ErrNoRows) || err == nil && row.ProjectID != p.ID {
		return Instance{}, refuse(NotFound, "no instance %q in project %q", id, p.Name)
	}
	if err != nil {
		return Instance{}, err
	}
	return instanceFrom(row)
}

// insertInstance writes a new instance and its event.
func insertInstance(ctx context.Context, tx *changeTx, in Instance) error {
	err := tx.InsertInstance(ctx, db.InsertInstanceParams{
		ID: in.ID, ProjectID: in.Project, Name: in.Name, Region: in.Region, Zone: in.Zone,
		Type: string(in.Type), NetworkID: in.Network, State: string(in.State), StateReason: in.StateReason,
		Address: addressOrNull(in.Address), Tags: toJSON(in.Tags), Version: in.Version,
		CreatedAt: in.CreatedAt.UnixMilli(), UpdatedAt: in.UpdatedAt.UnixMilli(), DueAt: millisOrNull(in.due),
	})
	if err != nil {
		return err
	}
	return appendEvent(ctx, tx, Created, instanceNone, in)
}

// saveInstance writes an instance as its next version, and the event.
func saveInstance(ctx context.Context, tx *changeTx, from InstanceState, in *Instance, now time.Time) error {
	in.Version++
	in.UpdatedAt = now
	err := tx.UpdateInstance(ctx, db.UpdateInstanceParams{
		ID: in.ID, State: string(in.State), StateReason: in.StateReason, Address: addressOrNull(in.Address),
		Version: in.Version, UpdatedAt: now.UnixMilli(), DueAt: millisOrNull(in.due),
	})
	if err != nil {
		return err
	}
	return appendEvent(ctx, tx, Updated, from, *in)
}

func loadBalancerFrom(ctx context.Context, tx *store.Tx, row db.LoadBalancer) (LoadBalancer, error) {
	lb := LoadBalancer{
		ID: row.ID, Project: row.ProjectID, Name: row.Name, Region: row.Region,
		State: LoadBalancerState(row.State), StateReason: row.StateReason,
		StateReasonCode: StateReasonCode(row.StateReasonCode),
		Scheme:          Scheme(row.Scheme), Algorithm: Algorithm(row.Algorithm),
		Affinity:    time.Duration(row.Affinity) * time.Millisecond,
		IdleTimeout: time.Duration(row.IdleTimeout) * time.Millisecond,
		Drain:       time.Duration(row.Drain) * time.Millisecond,
		Version:     row.Version, CreatedAt: fromMillis(row.CreatedAt), UpdatedAt: fromMillis(row.UpdatedAt),
		due: timeOrNil(row.DueAt),
	}
	var err error
	lb.Address, err = netip.ParseAddr(row.Address)
	err = errors.Join(err, json.Unmarshal([]byte(row.Tags), &lb.Tags), json.Unmarshal(
		[]byte(row.Listeners), &lb.Listeners,
	),
		json.Unmarshal([]byte(row.SourceRanges), &lb.SourceRanges))
	if row.AddressID != nil {
		lb.AddressID = *row.AddressID
	}
	if row.Address6 != nil {
		var err6 error
		lb.Address6, err6 = netip.ParseAddr(*row.Address6)
		err = errors.Join(err, err6)
	}
	if row.HealthCheck != nil {
		err = errors.Join(err, json.Unmarshal([]byte(*row.HealthCheck), &lb.HealthCheck))
	}
	if err != nil {
		return LoadBalancer{}, fmt.Errorf("stored load balancer %s: %w", row.ID, err)
	}
	lb.Targets, err = tx.TargetsOf(ctx, row.ID)
	return lb, err
}

func loadBalancer(ctx context.Context, tx *store.Tx, p Project, id string) (LoadBalancer, error) {
	row, err := tx.GetLoadBalancer(ctx, id)
	if errors.Is(err, sql.ErrNoRows) || err == nil && row.ProjectID != p.ID {
		return LoadBalancer{}, refuse(NotFound, "no load balancer %q in project %q", id, p.Name)
	}
	if err != nil {
		return LoadBalancer{}, err
	}
	return loadBalancerFrom(ctx, tx, row)
}

func insertLoadBalancer(ctx context.Context, tx *changeTx, lb LoadBalancer) error {
	err := tx.InsertLoadBalancer(ctx, db.InsertLoadBalancerParams{
		ID: lb.ID, ProjectID: lb.Project, Name: lb.Name, Region: lb.Region, Address: lb.Address.String(),
		AddressID: textOrNull(lb.AddressID), Address6: addressOrNull(lb.Address6),
		State: string(lb.State), StateReason: lb.StateReason, StateReasonCode: string(lb.StateReasonCode),
		Scheme: string(lb.Scheme), Algorithm: string(lb.Algorithm), Listeners: toJSON(lb.Listeners),
		IdleTimeout: lb.IdleTimeout.Milliseconds(), Drain: lb.Drain.Milliseconds(),
		SourceRanges: listJSON(lb.SourceRanges), Affinity: lb.Affinity.Milliseconds(),
		HealthCheck: checkOrNull(lb.HealthCheck), Tags: toJSON(lb.Tags),
		Version: lb.Version, CreatedAt: lb.CreatedAt.UnixMilli(), UpdatedAt: lb.UpdatedAt.UnixMilli(),
		DueAt: millisOrNull(lb.due),
	})
	if err != nil {
		return err
	}
	if err := insertTargets(ctx, tx.Tx, lb); err != nil {
		return err
	}
	return appendEvent(ctx, tx, Created, loadBalancerNone, lb)
}

func insertTargets(ctx context.Context, tx *store.Tx, lb LoadBalancer) error {
	for i, t := range lb.Targets {
		if err := tx.InsertTarget(
			ctx, db.InsertTargetParams{LoadBalancerID: lb.ID, Position: int64(i), InstanceID: t},
		); err != nil {
			return err
		}
	}
	return nil
}

func replaceTargets(ctx context.Context, tx *store.Tx, lb LoadBalancer) error {
	if err := tx.DeleteTargets(ctx, lb.ID); err != nil {
		return err
	}
	return insertTargets(ctx, tx, lb)
}

// updateLoadBalancerRow writes all of a balancer but its targets, without an event.
func updateLoadBalancerRow(ctx context.Context, tx *store.Tx, lb LoadBalancer) error {
	return tx.UpdateLoadBalancer(ctx, db.UpdateLoadBalancerParams{
		ID: lb.ID, Name: lb.Name, State: string(lb.State), StateReason: lb.StateReason,
		StateReasonCode: string(lb.StateReasonCode),
		Listeners:       toJSON(lb.Listeners), Scheme: string(lb.Scheme), Algorithm: string(lb.Algorithm),
		IdleTimeout: lb.IdleTimeout.Milliseconds(), Drain: lb.Drain.Milliseconds(),
		SourceRanges: listJSON(lb.SourceRanges), Affinity: lb.Affinity.Milliseconds(),
		HealthCheck: checkOrNull(lb.HealthCheck),
		Tags:        toJSON(lb.Tags), Version: lb.Version, UpdatedAt: lb.UpdatedAt.UnixMilli(),
		DueAt: millisOrNull(lb.due),
	})
}

// saveLoadBalancer writes all of a balancer but its targets as its next version, and the
// event.
func saveLoadBalancer(
	ctx context.Context,
	tx *changeTx,
	from LoadBalancerState,
	lb *LoadBalancer,
	now time.Time,
) error {
	lb.Version++
	lb.UpdatedAt = now
	if err := updateLoadBalancerRow(ctx, tx.Tx, *lb); err != nil {
		return err
	}
	return appendEvent(ctx, tx, Updated, from, *lb)
}

// readOne reads one resource.
func readOne[T any](ctx context.Context, c *Cloud, read func(tx *store.Tx) (T, error)) (found T, err error) {
	err = c.store.Read(ctx, func(tx *store.Tx) (err error) {
		found, err = read(tx)
		return err
	})
	return found, err
}

// readPage gives one page of a list, and whether more follow. list reads one row
// more than the limit; from makes a resource of a row.
func readPage[R, T any](
	ctx context.Context,
	c *Cloud,
	limit int,
	from func(R) (T, error),
	list func(tx *store.Tx) ([]R, error),
) (page []T, more bool, err error) {
	return readPageInTx(ctx, c, limit, func(_ *store.Tx, row R) (T, error) { return from(row) }, list)
}

// readPageInTx is readPage for resources that are more than one row.
func readPageInTx[R, T any](
	ctx context.Context,
	c *Cloud,
	limit int,
	from func(*store.Tx, R) (T, error),
	list func(tx *store.Tx) ([]R, error),
) (page []T, more bool, err error) {
	err = c.store.Read(ctx, func(tx *store.Tx) error {
		rows, err := list(tx)
		if err != nil {
			return err
		}
		rows, more = rows[:min(len(rows), limit)], len(rows) > limit
		page, err = mapAll(rows, func(row R) (T, error) { return from(tx, row) })
		return err
	})
	return page, more, err
}

// checkUnused refuses a name that another resource of the kind than self has. err and id
// are what looking the name up gave. verb says what to do to that resource so that the
// name becomes free.
func checkUnused(err error, id, self, kind string, p Project, name, verb string) error {
	switch {
	case errors.Is(err, sql.ErrNoRows) || err == nil && id == self:
		return nil
	case err != nil:
		return err
	}
	return refuse(
		NameTaken, "%s %s in project %q already has the name %q: choose another, or %s that one first", kind, id,
		p.Name, name, verb,
	).withField("name", "is taken")
}
