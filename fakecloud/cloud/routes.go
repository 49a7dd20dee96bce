package cloud

import (
	"context"
	"database/sql"
	"errors"
	"net/netip"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/store"
	"github.com/ccmlab/ccmlab/fakecloud/store/db"
)

// Route sends packets for a destination to an instance. The instance and its network may be gone.
type Route struct{ api.Route }

func (r Route) describe() description {
	row := rowOf(api.ResourceRoute, r.Metadata)
	first, _ := addressRange(r.prefix())
	row.State, row.NetworkID, row.RefersTo = string(r.State), &r.NetworkID, textOrNull(r.InstanceID)
	row.FirstAddress = new(int64(first))
	return description{row, r.StateReason}
}

// prefix is the destination, which was checked at the create.
func (r Route) prefix() netip.Prefix {
	p, _ := netip.ParsePrefix(r.Destination)
	return p
}

func (c *Cloud) routes() Kind[Route, api.RouteCreate, api.ResourceUpdate] {
	return Kind[Route, api.RouteCreate, api.ResourceUpdate]{
		cloud: c, idPrefix: "r", quota: QuotaRoutes,
		check: func(spec api.RouteCreate) (api.ResourceUpdate, error) {
			_, err := parseCIDR("destination", spec.Destination)
			return api.ResourceUpdate{Name: &spec.Name, Tags: spec.Tags}, err
		},
		build: c.newRoute,
	}
}

// newRoute is in force at once.
func (c *Cloud) newRoute(ctx context.Context, tx *changeTx, p Project, spec api.RouteCreate) (r Route, err error) {
	in, err := instanceToUse(
		ctx, tx.Tx, p, spec.InstanceID, ": a route needs one as its next hop", "a route needs one that is not",
	)
	if err != nil {
		return r, err
	}
	r.NetworkID, r.Destination, r.InstanceID = in.Network, spec.Destination, in.ID
	r.State, r.StateReason = routeStateFor(in.State)
	return r, c.checkDestination(ctx, tx.Tx, p, in.Network, r.prefix())
}

// routeStateFor is the state of a route via an instance in that state, and why.
func routeStateFor(state api.InstanceState) (api.RouteState, string) {
	switch state {
	case api.InstanceRunning:
		return api.RouteActive, ""
	case instanceNone:
		return api.RouteBlackhole, "instance is gone"
	}
	return api.RouteBlackhole, "instance is " + string(state)
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
	n, err := loadResource[Network](ctx, tx, p, network)
	if err != nil {
		return err
	}
	if n.prefix().Overlaps(want) {
		return refuse(
			RouteConflict, "%s overlaps with %s, which is the network %q (%s) itself: choose another destination", want,
			n.Cidr, n.Name, n.ID,
		).withField("destination", "overlaps with the network's %s", n.Cidr)
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
	if has.prefix().Overlaps(want) {
		return refuse(
			RouteConflict,
			"route %q (%s) is for %s, which overlaps with %s: choose another destination, or delete that route first",
			has.Name, has.ID, has.Destination, want,
		).withField("destination", "overlaps with %s of route %s", has.Destination, has.ID)
	}
	return nil
}

// updateRoutesVia gives the routes via an instance the state that follows from the
// instance's state, in the transaction in which that changed.
func updateRoutesVia(ctx context.Context, tx *changeTx, instance string, state api.InstanceState) error {
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
