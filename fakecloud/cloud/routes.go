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

// CreateRoute gives the new route, which is in force.
func (c *Cloud) CreateRoute(ctx context.Context, p Project, spec RouteSpec) (Route, Outcome, error) {
	destination, err := parseCIDR("destination", spec.Destination)
	if err = errors.Join(checkName(spec.Name), err, checkTags(spec.Tags)); err != nil {
		return Route{}, Outcome{}, err
	}
	return createResource(ctx, c.change, c, p, func(ctx context.Context, tx *changeTx, now time.Time) (Route, error) {
		return c.newRoute(ctx, tx, p, spec, destination, now)
	})
}

func (c *Cloud) newRoute(
	ctx context.Context,
	tx *changeTx,
	p Project,
	spec RouteSpec,
	destination netip.Prefix,
	now time.Time,
) (Route, error) {
	if err := withinQuota(ctx, tx.Tx, p, QuotaRoutes); err != nil {
		return Route{}, err
	}
	if err := checkRouteName(ctx, tx.Tx, p, spec.Name); err != nil {
		return Route{}, err
	}
	in, err := nextHop(ctx, tx.Tx, p, spec.Instance)
	if err != nil {
		return Route{}, err
	}
	if err := c.checkDestination(ctx, tx.Tx, p, in.Network, destination); err != nil {
		return Route{}, err
	}
	id, err := c.random.newID("r", now)
	if err != nil {
		return Route{}, err
	}
	r := Route{
		ID: id, Project: p.ID, Name: spec.Name, Network: in.Network, Destination: destination, Instance: in.ID,
		Tags: withDefaults(spec.Tags, p.DefaultTags), Version: 1, CreatedAt: now, UpdatedAt: now,
	}
	r.State, r.StateReason = routeStateFor(in.State)
	return r, insertRoute(ctx, tx, r)
}

// routeStateFor is the state of a route via an instance in that state, and why.
func routeStateFor(state InstanceState) (RouteState, string) {
	switch state {
	case InstanceRunning:
		return RouteActive, ""
	case instanceNone:
		return RouteBlackhole, "instance is gone"
	}
	return RouteBlackhole, "instance is " + string(state)
}

func checkRouteName(ctx context.Context, tx *store.Tx, p Project, name string) error {
	id, err := tx.RouteNamed(ctx, db.RouteNamedParams{ProjectID: p.ID, Name: name})
	return checkUnused(err, id, "", "route", p, name, "delete")
}

// nextHop finds the instance that a new route leads to.
func nextHop(ctx context.Context, tx *store.Tx, p Project, id string) (Instance, error) {
	in, err := loadInstance(ctx, tx, p, id)
	var refused *Error
	switch {
	case errors.As(err, &refused):
		return in, refuse(
			UnknownInstance, "no instance %q in project %q: a route needs one as its next hop", id, p.Name,
		).withField("instanceId", "is no instance of the project")
	case err != nil:
		return in, err
	case in.State == InstanceTerminated:
		return in, refuse(
			UnknownInstance, "instance %q (%s) is terminated: a route needs one that is not", in.Name, id,
		).withField("instanceId", "is terminated")
	}
	return in, nil
}

// checkDestination refuses a destination that overlaps with the network itself or with
// another of its routes.
func (c *Cloud) checkDestination(
	ctx context.Context,
	tx *store.Tx,
	p Project,
	network string,
	want netip.Prefix,
) error {
	n, err := c.loadNetwork(ctx, tx, p, network)
	if err != nil {
		return err
	}
	if n.CIDR.Overlaps(want) {
		return refuse(
			RouteConflict, "%s overlaps with %s, which is the network %q (%s) itself: choose another destination", want,
			n.CIDR, n.Name, n.ID,
		).
			withField("destination", "overlaps with the network's %s", n.CIDR)
	}
	// A network's routes do not overlap: of those that begin no later than the
	// destination ends, only the last can reach into it.
	_, last := addressRange(want)
	row, err := tx.LastRouteUpTo(ctx, db.LastRouteUpToParams{NetworkID: network, Address: int64(last)})
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil
	case err != nil:
		return err
	}
	has, err := netip.ParsePrefix(row.Destination)
	if err != nil {
		return fmt.Errorf("stored route %s: %w", row.ID, err)
	}
	if has.Overlaps(want) {
		return refuse(
			RouteConflict,
			"route %q (%s) is for %s, which overlaps with %s: choose another destination, or delete that route first",
			row.Name, row.ID, has, want,
		).
			withField("destination", "overlaps with %s of route %s", has, row.ID)
	}
	return nil
}

// GetRoute reads one route.
func (c *Cloud) GetRoute(ctx context.Context, p Project, id string) (Route, error) {
	return readOne(ctx, c, func(tx *store.Tx) (Route, error) { return loadRoute(ctx, tx, p, id) })
}

// ListRoutes gives one page, oldest first, and whether more follow.
func (c *Cloud) ListRoutes(ctx context.Context, p Project, f Filter) (page []Route, more bool, err error) {
	return readPage(ctx, c, f.Limit, routeFrom, func(tx *store.Tx) ([]db.Route, error) {
		return tx.ListRoutes(ctx, db.ListRoutesParams{
			ProjectID: p.ID, After: f.After, Name: f.Name, Tags: listJSON(f.Tags), Max: int64(f.Limit) + 1,
		})
	})
}

// UpdateRoute replaces what is given.
func (c *Cloud) UpdateRoute(ctx context.Context, p Project, id string, u ResourceUpdate) (Route, error) {
	var r Route
	err := c.change(ctx, func(ctx context.Context, tx *changeTx, now time.Time) (err error) {
		if r, err = loadRoute(ctx, tx.Tx, p, id); err != nil {
			return err
		}
		if err := checkIfMatch(ctx, r.ID, r.Version); err != nil {
			return err
		}
		name, tags, differs, err := u.mergeInto(r.Name, r.Tags)
		if err != nil || !differs {
			return err
		}
		if name != r.Name {
			if err := checkRouteName(ctx, tx.Tx, p, name); err != nil {
				return err
			}
		}
		r.Name, r.Tags, r.UpdatedAt = name, tags, now
		r.Version++
		err = tx.RenameRoute(ctx, db.RenameRouteParams{
			ID: r.ID, Name: r.Name, Tags: toJSON(r.Tags), Version: r.Version, UpdatedAt: now.UnixMilli(),
		})
		if err != nil {
			return err
		}
		return appendEvent(ctx, tx, Updated, r.State, r)
	})
	return r, err
}

// DeleteRoute ends a route at once.
func (c *Cloud) DeleteRoute(ctx context.Context, p Project, id string) error {
	return c.change(ctx, func(ctx context.Context, tx *changeTx, now time.Time) error {
		r, err := loadRoute(ctx, tx.Tx, p, id)
		if err != nil {
			return err
		}
		if err := checkIfMatch(ctx, r.ID, r.Version); err != nil {
			return err
		}
		if err := tx.DeleteRoute(ctx, id); err != nil {
			return err
		}
		r.Version++
		r.UpdatedAt = now
		return appendEvent(ctx, tx, Deleted, r.State, r)
	})
}

// updateRoutesVia gives the routes via an instance the state that follows from the
// instance's state, in the transaction in which that changed.
func updateRoutesVia(ctx context.Context, tx *changeTx, instance string, state InstanceState, now time.Time) error {
	rows, err := tx.RoutesVia(ctx, instance)
	if err != nil {
		return err
	}
	for _, row := range rows {
		r, err := routeFrom(row)
		if err != nil {
			return err
		}
		from := r.State
		r.State, r.StateReason = routeStateFor(state)
		if r.State == from && r.StateReason == row.StateReason {
			continue
		}
		r.Version++
		r.UpdatedAt = now
		err = tx.UpdateRoute(ctx, db.UpdateRouteParams{
			ID: r.ID, State: string(r.State), StateReason: r.StateReason, Version: r.Version,
			UpdatedAt: now.UnixMilli(),
		})
		if err != nil {
			return err
		}
		if err := appendEvent(ctx, tx, Updated, from, r); err != nil {
			return err
		}
	}
	return nil
}

func loadRoute(ctx context.Context, tx *store.Tx, p Project, id string) (Route, error) {
	row, err := tx.GetRoute(ctx, id)
	if errors.Is(err, sql.ErrNoRows) || err == nil && row.ProjectID != p.ID {
		return Route{}, refuse(NotFound, "no route %q in project %q", id, p.Name)
	}
	if err != nil {
		return Route{}, err
	}
	return routeFrom(row)
}

func routeFrom(row db.Route) (Route, error) {
	r := Route{
		ID: row.ID, Project: row.ProjectID, Name: row.Name, Network: row.NetworkID, Instance: row.InstanceID,
		State: RouteState(row.State), StateReason: row.StateReason,
		Version: row.Version, CreatedAt: fromMillis(row.CreatedAt), UpdatedAt: fromMillis(row.UpdatedAt),
	}
	var err error
	r.Destination, err = netip.ParsePrefix(row.Destination)
	if err = errors.Join(err, json.Unmarshal([]byte(row.Tags), &r.Tags)); err != nil {
		return Route{}, fmt.Errorf("stored route %s: %w", row.ID, err)
	}
	return r, nil
}

// insertRoute writes a new route and its event.
func insertRoute(ctx context.Context, tx *changeTx, r Route) error {
	first, _ := addressRange(r.Destination)
	err := tx.InsertRoute(ctx, db.InsertRouteParams{
		ID: r.ID, ProjectID: r.Project, Name: r.Name, NetworkID: r.Network, InstanceID: r.Instance,
		Destination: r.Destination.String(), FirstAddress: int64(first),
		State: string(r.State), StateReason: r.StateReason, Tags: toJSON(r.Tags), Version: r.Version,
		CreatedAt: r.CreatedAt.UnixMilli(), UpdatedAt: r.UpdatedAt.UnixMilli(),
	})
	if err != nil {
		return err
	}
	return appendEvent(ctx, tx, Created, routeNone, r)
}
