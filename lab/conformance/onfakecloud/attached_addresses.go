package onfakecloud

import (
	"context"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/driver/protocol"
)

// balancersAreAddresses tells whether the CCM makes no load balancers, but attaches reserved addresses to Nodes'
// instances: what Names.AddressPrefix says.
func (c *Cloud) balancersAreAddresses() bool { return c.Names.AddressPrefix != "" }

func (c *Cloud) listAttachedAddresses(ctx context.Context) (out protocol.BalancerList, err error) {
	all, err := c.API.ListAddresses(ctx, client.AddressFilter{})
	for _, a := range all {
		if strings.HasPrefix(a.Name, c.Names.AddressPrefix) {
			out.Balancers = append(out.Balancers, c.balancerFromAddress(&a))
		}
	}
	return out, err
}

func (c *Cloud) getAttachedAddress(ctx context.Context, id string) (conformance.Balancer, error) {
	a, err := c.API.GetAddress(ctx, id)
	if err != nil {
		return conformance.Balancer{}, orNotFound(err)
	}
	return c.balancerFromAddress(a), nil
}

// balancerFromAddress is active while the address is attached.
func (c *Cloud) balancerFromAddress(a *api.ReservedAddress) conformance.Balancer {
	b := conformance.Balancer{
		ID: a.ID, Name: a.Name, Address: a.IP, Service: types.UID(strings.TrimPrefix(a.Name, c.Names.AddressPrefix)),
	}
	if a.Holder != nil && a.Holder.Kind == api.HolderInstance {
		b.Active, b.Targets = true, []string{a.Holder.ID}
	}
	return b
}

func (c *Cloud) deleteAttachedAddress(ctx context.Context, id string) error {
	if _, err := c.API.DetachAddress(ctx, id); err != nil {
		return unlessNotFound(err)
	}
	return unlessNotFound(c.API.ReleaseAddress(ctx, id))
}
