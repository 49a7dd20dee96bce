package cloud

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/store"
	"github.com/ccmlab/ccmlab/fakecloud/store/db"
)

// The sizes that a network can have, as lengths of its prefix.
const (
	largestNetwork  = 16
	smallestNetwork = 30
)

// Network is where instances get their addresses from. All projects' default networks
// share one CIDR, Config.InstanceCIDR, since the addresses are this machine's own.
type Network struct{ api.Network }

func (n Network) describe() description {
	return description{rowOf(api.ResourceNetwork, n.Metadata), ""}
}

// prefix is the network's CIDR, which was checked at the create.
func (n Network) prefix() netip.Prefix {
	p, _ := netip.ParsePrefix(n.Cidr)
	return p
}

func (c *Cloud) networks() Kind[Network, api.NetworkCreate, api.ResourceUpdate] {
	return Kind[Network, api.NetworkCreate, api.ResourceUpdate]{
		cloud: c, idPrefix: "n", quota: QuotaNetworks,
		check: func(spec api.NetworkCreate) (api.ResourceUpdate, error) {
			cidr, err := parseCIDR("cidr", spec.Cidr)
			if err == nil && (cidr.Bits() < largestNetwork || cidr.Bits() > smallestNetwork) {
				err = refuse(
					InvalidRequest, "a network of /%d: want one from /%d to /%d", cidr.Bits(), largestNetwork, smallestNetwork,
				).withField("cidr", "is too large or too small")
			}
			return api.ResourceUpdate{Name: &spec.Name, Tags: spec.Tags, Records: spec.Records}, err
		},
		build: func(ctx context.Context, tx *changeTx, p Project, spec api.NetworkCreate) (Network, error) {
			n := Network{api.Network{Cidr: spec.Cidr}}
			return n, c.checkNetworkCIDR(ctx, tx.Tx, p, n.prefix())
		},
		beforeDelete: checkNetworkUnused,
	}
}

// checkNetworkCIDR refuses a CIDR that overlaps with another network of the project or
// with the load balancers' addresses.
func (c *Cloud) checkNetworkCIDR(ctx context.Context, tx *store.Tx, p Project, cidr netip.Prefix) error {
	if pool := c.cfg.LoadBalancerCIDR; pool.Overlaps(cidr) {
		return refuse(
			NetworkConflict,
			"%s overlaps with %s, where this cloud's load balancers get their addresses: choose another", cidr, pool,
		).withField("cidr", "overlaps with the load balancers' %s", pool)
	}
	has, err := resourcesIn[Network](ctx, tx, p.ID)
	if err != nil {
		return err
	}
	for _, n := range has {
		if n.prefix().Overlaps(cidr) {
			return refuse(
				NetworkConflict,
				"network %q (%s) has %s, which overlaps with %s: choose another, or delete that network first", n.Name,
				n.ID, n.Cidr, cidr,
			).withField("cidr", "overlaps with %s of network %s", n.Cidr, n.ID)
		}
	}
	return nil
}

// checkNetworkUnused refuses to delete the default network, and one that an instance or a balancer is in.
func checkNetworkUnused(ctx context.Context, tx *changeTx, p Project, n Network) error {
	if n.Default {
		return refuse(InUse, "network %q (%s) is the project's default one: it is deleted with the project", n.Name, n.ID)
	}
	in, err := tx.ResourceInNetwork(ctx, db.ResourceInNetworkParams{ProjectID: p.ID, Network: &n.ID})
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil
	case err != nil:
		return err
	}
	return refuse(
		InUse, "network %q (%s) is in use, by %s among others: terminate its instances, and detach or delete "+
			"its load balancers, first", n.Name, n.ID, in,
	)
}

// instanceNetwork is the network asked for, or the project's default one.
func instanceNetwork(ctx context.Context, tx *store.Tx, p Project, want string) (Network, error) {
	if want == "" {
		n, err := resourceByID[Network](ctx, tx, defaultNetworkID(p.ID))
		if err != nil {
			return Network{}, fmt.Errorf("default network of project %s: %w", p.ID, err)
		}
		return n, nil
	}
	return networkToUse(ctx, tx, p, want)
}

// networkToUse is the network that a request names by its networkId.
func networkToUse(ctx context.Context, tx *store.Tx, p Project, want string) (Network, error) {
	n, err := loadResource[Network](ctx, tx, p, want)
	var refused *Error
	if errors.As(err, &refused) {
		return n, refuse(UnknownNetwork, "no network %q in project %q", want, p.Name).
			withField("networkId", "is not a network of the project")
	}
	return n, err
}

// defaultNetworkID is as in the migration that added default networks.
func defaultNetworkID(project string) string { return "n" + strings.TrimPrefix(project, "p") }
