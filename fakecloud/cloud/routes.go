package cloud

import (
	"context"
	"database/sql"
	"errors"
	"net/netip"

	"github.com/ccmlab/ccmlab/fakecloud/store"
	"github.com/ccmlab/ccmlab/fakecloud/store/db"
)

// CreateRoute gives the new route, which is in force.
func (c *Cloud) CreateRoute(ctx context.Context, p Project, spec RouteSpec) (Route, Outcome, error) {
	destination, err := parseCIDR("destination", spec.Destination)
	if err = errors.Join(checkName(spec.Name), err, checkTags(spec.Tags)); err != nil {
		return Route{}, Outcome{}, err
	}
	return createResource(ctx, c.change, c, p, func(ctx context.Context, tx *changeTx) (Route, error) {
		if err := c.withinQuota(ctx, tx.Tx, p, QuotaRoutes); err != nil {
			return Route{}, err
		}
		if err := checkUnused(ctx, tx.Tx, RouteResource, p, "", spec.Name); err != nil {
			return Route{}, err
		}
		in, err := instanceToUse(
			ctx, tx.Tx, p, spec.Instance, ": a route needs one as its next hop", "a route needs one that is not",
		)
		if err != nil {
			return Route{}, err
		}
		if err := c.checkDestination(ctx, tx.Tx, p, in.Network, destination); err != nil {
			return Route{}, err
		}
		metadata, err := c.newMetadata(ctx, tx, p, "r", spec.Name, spec.Tags)
		if err != nil {
			return Route{}, err
		}
		r := Route{Metadata: metadata, Network: in.Network, Destination: destination, Instance: in.ID}
		r.State, r.StateReason = routeStateFor(in.State)
		return r, insertResource(ctx, tx, r)
	})
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
		).withField("destination", "overlaps with the network's %s", n.CIDR)
	}
	// A network's routes do not overlap: of those that begin no later than the
	// destination ends, only the last can reach into it.
	_, last := addressRange(want)
	address := int64(last)
	row, err := tx.LastRouteUpTo(ctx, db.LastRouteUpToParams{Network: &network, Address: &address})
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil
	case err != nil:
		return err
	}
	has, err := resourceFrom[Route](row)
	if err != nil {
		return err
	}
	if has.Destination.Overlaps(want) {
		return refuse(
			RouteConflict,
			"route %q (%s) is for %s, which overlaps with %s: choose another destination, or delete that route first",
			has.Name, has.ID, has.Destination, want,
		).withField("destination", "overlaps with %s of route %s", has.Destination, has.ID)
	}
	return nil
}

// GetRoute reads one route.
func (c *Cloud) GetRoute(ctx context.Context, p Project, id string) (Route, error) {
	return getResource[Route](ctx, c, p, id)
}

// ListRoutes gives one page, oldest first, and whether more follow.
func (c *Cloud) ListRoutes(ctx context.Context, p Project, f Filter) (page []Route, more bool, err error) {
	return listResources[Route](ctx, c, p, f)
}

// UpdateRoute replaces what is given.
func (c *Cloud) UpdateRoute(ctx context.Context, p Project, id string, u ResourceUpdate) (Route, error) {
	return updateResource(ctx, c, p, id, u, func(_ *Route, name string) error { return checkName(name) })
}

// DeleteRoute ends a route at once.
func (c *Cloud) DeleteRoute(ctx context.Context, p Project, id string) error {
	return c.change(ctx, func(ctx context.Context, tx *changeTx) error {
		r, err := loadToChange[Route](ctx, tx, p, id)
		if err != nil {
			return err
		}
		return deleteResource(ctx, tx, &r)
	})
}

// updateRoutesVia gives the routes via an instance the state that follows from the
// instance's state, in the transaction in which that changed.
func updateRoutesVia(ctx context.Context, tx *changeTx, instance string, state InstanceState) error {
	routes, err := resourcesReferringTo[Route](ctx, tx.Tx, instance)
	if err != nil {
		return err
	}
	for _, r := range routes {
		from, reason := r.State, r.StateReason
		r.State, r.StateReason = routeStateFor(state)
		if r.State == from && r.StateReason == reason {
			continue
		}
		if err := saveResource(ctx, tx, from, &r); err != nil {
			return err
		}
	}
	return nil
}
