package cloud

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/netip"
	"strings"

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
type Network struct {
	Metadata
	CIDR    netip.Prefix `json:"cidr"`
	Default bool         `json:"default"`
}

// NetworkSpec asks for a network.
type NetworkSpec struct {
	Name string
	CIDR string
	Tags map[string]string
}

// CreateNetwork gives the new network.
func (c *Cloud) CreateNetwork(ctx context.Context, p Project, spec NetworkSpec) (Network, Outcome, error) {
	cidr, err := parseCIDR("cidr", spec.CIDR)
	if err == nil && (cidr.Bits() < largestNetwork || cidr.Bits() > smallestNetwork) {
		err = refuse(
			InvalidRequest, "a network of /%d: want one from /%d to /%d", cidr.Bits(), largestNetwork, smallestNetwork,
		).withField("cidr", "is too large or too small")
	}
	if err = errors.Join(checkName(spec.Name), err, checkTags(spec.Tags)); err != nil {
		return Network{}, Outcome{}, err
	}
	return createResource(ctx, c.change, c, p, func(ctx context.Context, tx *changeTx) (Network, error) {
		if err := c.withinQuota(ctx, tx.Tx, p, QuotaNetworks); err != nil {
			return Network{}, err
		}
		if err := checkUnused(ctx, tx.Tx, NetworkResource, p, "", spec.Name); err != nil {
			return Network{}, err
		}
		if err := c.checkNetworkCIDR(ctx, tx.Tx, p, cidr); err != nil {
			return Network{}, err
		}
		metadata, err := c.newMetadata(ctx, tx, p, "n", spec.Name, spec.Tags)
		if err != nil {
			return Network{}, err
		}
		n := Network{Metadata: metadata, CIDR: cidr}
		return n, insertResource(ctx, tx, n)
	})
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
		n = c.withDefaultCIDR(n)
		if n.CIDR.Overlaps(cidr) {
			return refuse(
				NetworkConflict,
				"network %q (%s) has %s, which overlaps with %s: choose another, or delete that network first", n.Name,
				n.ID, n.CIDR, cidr,
			).withField("cidr", "overlaps with %s of network %s", n.CIDR, n.ID)
		}
	}
	return nil
}

// GetNetwork reads one network.
func (c *Cloud) GetNetwork(ctx context.Context, p Project, id string) (Network, error) {
	return readOne(ctx, c, func(tx *store.Tx) (Network, error) { return c.loadNetwork(ctx, tx, p, id) })
}

// ListNetworks gives one page, oldest first, and whether more follow.
func (c *Cloud) ListNetworks(ctx context.Context, p Project, f Filter) (page []Network, more bool, err error) {
	page, more, err = listResources[Network](ctx, c, p, f)
	for i, n := range page {
		page[i] = c.withDefaultCIDR(n)
	}
	return page, more, err
}

// UpdateNetwork replaces what is given.
func (c *Cloud) UpdateNetwork(ctx context.Context, p Project, id string, u ResourceUpdate) (Network, error) {
	return updateResource(ctx, c, p, id, u, func(n *Network, name string) error {
		*n = c.withDefaultCIDR(*n)
		return checkName(name)
	})
}

// DeleteNetwork deletes a network that no instance and no balancer is in. The default network
// cannot be deleted.
func (c *Cloud) DeleteNetwork(ctx context.Context, p Project, id string) error {
	return c.change(ctx, func(ctx context.Context, tx *changeTx) error {
		n, err := loadToChange[Network](ctx, tx, p, id)
		if err != nil {
			return err
		}
		if n.Default {
			return refuse(InUse, "network %q (%s) is the project's default one: it is deleted with the project", n.Name, n.ID)
		}
		switch in, err := tx.ResourceInNetwork(ctx, db.ResourceInNetworkParams{ProjectID: p.ID, Network: &n.ID}); {
		case err == nil:
			return refuse(
				InUse, "network %q (%s) is in use, by %s among others: terminate its instances, and detach or delete "+
					"its load balancers, first", n.Name, n.ID, in,
			)
		case !errors.Is(err, sql.ErrNoRows):
			return err
		}
		return deleteResource(ctx, tx, &n)
	})
}

// instanceNetwork is the network asked for, or the project's default one.
func (c *Cloud) instanceNetwork(ctx context.Context, tx *store.Tx, p Project, want string) (Network, error) {
	if want == "" {
		n, err := resourceByID[Network](ctx, tx, defaultNetworkID(p.ID))
		if err != nil {
			return Network{}, fmt.Errorf("default network of project %s: %w", p.ID, err)
		}
		return c.withDefaultCIDR(n), nil
	}
	return c.networkToUse(ctx, tx, p, want)
}

// networkToUse is the network that a request names by its networkId.
func (c *Cloud) networkToUse(ctx context.Context, tx *store.Tx, p Project, want string) (Network, error) {
	n, err := c.loadNetwork(ctx, tx, p, want)
	var refused *Error
	if errors.As(err, &refused) {
		return n, refuse(UnknownNetwork, "no network %q in project %q", want, p.Name).
			withField("networkId", "is not a network of the project")
	}
	return n, err
}

// defaultNetworkID is as in the migration that added default networks.
func defaultNetworkID(project string) string { return "n" + strings.TrimPrefix(project, "p") }

// loadNetwork reads a network; another project's is not found.
func (c *Cloud) loadNetwork(ctx context.Context, tx *store.Tx, p Project, id string) (Network, error) {
	n, err := loadResource[Network](ctx, tx, p, id)
	return c.withDefaultCIDR(n), err
}

// withDefaultCIDR gives a default network the CIDR that the cloud has now, which may have
// been another when the network was stored.
func (c *Cloud) withDefaultCIDR(n Network) Network {
	if n.Default {
		n.CIDR = c.cfg.InstanceCIDR
	}
	return n
}
