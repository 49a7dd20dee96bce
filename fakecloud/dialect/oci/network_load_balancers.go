package oci

import (
	"context"
	"net/http"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/dialect"
)

const nlbCollection = nlbPath + "/networkLoadBalancers"

var nlbCalls = append([]dialect.Call{
	dialect.Handle(http.MethodGet, nlbCollection, listBy("displayName"), listNetworkLoadBalancers),
	dialect.Handle(http.MethodPost, nlbCollection, nil, createNetworkLoadBalancer),
	dialect.Handle(http.MethodGet, nlbCollection+"/{id}", nil, getNetworkLoadBalancer),
	dialect.Handle(http.MethodPut, nlbCollection+"/{id}", nil, changeAnswered(nlbService, updateNetworkLoadBalancer)),
	dialect.Handle(http.MethodDelete, nlbCollection+"/{id}", nil, deleteNetworkLoadBalancer),
	dialect.Handle(http.MethodGet, nlbPath+"/workRequests/{id}", nil, getNetworkWorkRequest),
}, nlbService.partCalls(nlbCollection+"/{id}")...)

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

func checkIPVersion(version *string) error {
	if version != nil && *version != "" && *version != "IPV4" {
		return dialect.Invalid("nlbIpVersion", "%s cannot be had: this imitation has IPV4", *version)
	}
	return nil
}

func createNetworkLoadBalancer(ctx context.Context, r *dialect.Request, q nlbCreation) (*dialect.Answer, error) {
	network, err := checkSubnets(ctx, r, q.SubnetID)
	if err != nil {
		return nil, err
	}
	if err := checkIPVersion(q.NlbIPVersion); err != nil {
		return nil, err
	}
	rec := record{PreserveSource: q.IsPreserveSourceDestination, Subnet: q.SubnetID}
	b, request, err := nlbService.createBalancer(ctx, r, q.creation, network, rec)
	if err != nil {
		return nil, err
	}
	shown, err := b.show(ctx, r)
	return answerAccepted(http.StatusAccepted, request, shown), err
}

func listNetworkLoadBalancers(ctx context.Context, r *dialect.Request, _ struct{}) (*dialect.Answer, error) {
	return answerBalancers(ctx, r, nlbService, func(items []loadBalancer) any {
		return struct {
			Items []loadBalancer `json:"items"`
		}{items}
	})
}

func getNetworkLoadBalancer(ctx context.Context, r *dialect.Request, _ struct{}) (*dialect.Answer, error) {
	return answerBalancer(ctx, r, nlbService)
}

// nlbUpdate is what is read of a network load balancer that is changed.
type nlbUpdate struct {
	NlbIPVersion                *string                   `json:"nlbIpVersion,omitempty"`
	IsPreserveSourceDestination *bool                     `json:"isPreserveSourceDestination,omitempty"`
	FreeformTags                map[string]string         `json:"freeformTags"`
	DefinedTags                 map[string]map[string]any `json:"definedTags"`
}

func updateNetworkLoadBalancer(b *balancer, _ string, q nlbUpdate) error {
	if q.IsPreserveSourceDestination != nil {
		b.rec.PreserveSource = q.IsPreserveSourceDestination
	}
	if q.FreeformTags != nil {
		b.rec.FreeformTags = q.FreeformTags
	}
	if q.DefinedTags != nil {
		b.rec.DefinedTags = q.DefinedTags
	}
	return checkIPVersion(q.NlbIPVersion)
}

func deleteNetworkLoadBalancer(ctx context.Context, r *dialect.Request, _ struct{}) (*dialect.Answer, error) {
	request, err := nlbService.deleteBalancer(ctx, r)
	return answerAccepted(http.StatusAccepted, request, nil), err
}
