package oci

import (
	"cmp"
	"context"
	"net/http"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/dialect"
)

const networkLoadBalancers = nlbPath + "/networkLoadBalancers"

var nlbCalls = append([]dialect.Call{
	dialect.Handle(http.MethodPost, networkLoadBalancers, nil, createNetworkLoadBalancer),
	dialect.Handle(http.MethodPut, networkLoadBalancers+"/{id}", nil, handleChange(nlbService, updateNetworkLoadBalancer)),
	get(nlbPath+"/workRequests/{id}", readNetworkWorkRequest),
}, nlbService.calls(networkLoadBalancers)...)

// nlbFields are those that network load balancers alone have.
type nlbFields struct {
	SubnetID                    string    `json:"subnetId"`
	NlbIPVersion                string    `json:"nlbIpVersion"`
	TimeUpdated                 time.Time `json:"timeUpdated"`
	LifecycleDetails            *string   `json:"lifecycleDetails,omitempty"`
	IsPreserveSourceDestination *bool     `json:"isPreserveSourceDestination,omitempty"`
}

// nlbCreation is what is read of a network load balancer that is created.
type nlbCreation struct {
	creation
	SubnetID                    string  `json:"subnetId"`
	NlbIPVersion                *string `json:"nlbIpVersion,omitempty"`
	IsPreserveSourceDestination *bool   `json:"isPreserveSourceDestination,omitempty"`
}

func createNetworkLoadBalancer(ctx context.Context, r *dialect.Request, q nlbCreation) (*dialect.Answer, error) {
	if err := checkIPVersion("nlbIpVersion", q.NlbIPVersion); err != nil {
		return nil, err
	}
	rec := record{Asked: hash(q), PreserveSource: q.IsPreserveSourceDestination, Subnet: q.SubnetID}
	return nlbService.createBalancer(ctx, r, q.creation, rec)
}

// nlbUpdate is what is read of a network load balancer that is changed.
type nlbUpdate struct {
	NlbIPVersion                *string `json:"nlbIpVersion,omitempty"`
	IsPreserveSourceDestination *bool   `json:"isPreserveSourceDestination,omitempty"`
	tags
}

func updateNetworkLoadBalancer(b *balancer, _ string, q nlbUpdate) error {
	b.rec.PreserveSource = cmp.Or(q.IsPreserveSourceDestination, b.rec.PreserveSource)
	dialect.Overlay(&b.rec.tags, q.tags)
	return checkIPVersion("nlbIpVersion", q.NlbIPVersion)
}
