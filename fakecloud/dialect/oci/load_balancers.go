package oci

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/dialect"
)

const loadBalancers = lbPath + "/loadBalancers"

var lbCalls = append([]dialect.Call{
	dialect.Handle(http.MethodPost, loadBalancers, nil, createLoadBalancer),
	dialect.Handle(http.MethodPut, loadBalancers+"/{id}/updateShape", nil, handleChange(lbService, updateShape)),
	list(loadBalancers+"/{id}/workRequests", nil, listWorkRequests),
	get(lbPath+"/loadBalancerWorkRequests/{id}", lbService.readWorkRequest),
}, slices.Concat(lbService.calls(loadBalancers), certificateCalls)...)

// calls are those that both services have on their balancers, whose path is given.
func (s *service) calls(path string) []dialect.Call {
	one := path + "/{id}"
	sets, listeners := one+"/backendSets", one+"/listeners"
	return []dialect.Call{
		list(path, []string{"compartmentId", "displayName"}, s.listShown),
		get(one, s.getShown),
		dialect.Handle(http.MethodDelete, one, nil, s.deleteBalancer),
		dialect.Handle(http.MethodPut, one+"/networkSecurityGroups", nil, s.changeSecurityGroups),
		dialect.Handle(http.MethodPost, sets, nil, handleChange(s, addBackendSet)),
		dialect.Handle(http.MethodPut, sets+"/{name}", nil, handleChange(s, updateBackendSet)),
		dialect.Handle(http.MethodDelete, sets+"/{name}", nil, handleChange(s, deleteBackendSet)),
		dialect.Handle(http.MethodPost, listeners, nil, handleChange(s, addListener)),
		dialect.Handle(http.MethodPut, listeners+"/{name}", nil, handleChange(s, updateListener)),
		dialect.Handle(http.MethodDelete, listeners+"/{name}", nil, handleChange(s, deleteListener)),
	}
}

// handleChange makes a handler that changes a balancer, or the part of it that the path names, and answers with the
// work request.
func handleChange[B any](s *service, change func(b *balancer, name string, body B) error) dialect.Handler[B, any] {
	return func(ctx context.Context, r *dialect.Request, body B) (any, error) {
		return s.changeBalancer(ctx, r, func(b *balancer) error { return change(b, r.Var("name"), body) })
	}
}

// loadBalancer is a balancer as its service shows it.
type loadBalancer struct {
	resource
	IsPrivate               bool                   `json:"isPrivate"`
	IPAddresses             []ipAddress            `json:"ipAddresses"`
	Listeners               map[string]listener    `json:"listeners"`
	BackendSets             map[string]*backendSet `json:"backendSets"`
	NetworkSecurityGroupIDs []string               `json:"networkSecurityGroupIds"`
	*lbFields
	*nlbFields
}

// lbFields are those that load balancers alone have. What is a struct{} there is none of.
type lbFields struct {
	shape
	SubnetIDs    []string               `json:"subnetIds"`
	IPMode       string                 `json:"ipMode"`
	Certificates map[string]certificate `json:"certificates"`
	RuleSets     struct{}               `json:"ruleSets"`
	Hostnames    struct{}               `json:"hostnames"`
}

type shape struct {
	ShapeName    string        `json:"shapeName"`
	ShapeDetails *shapeDetails `json:"shapeDetails,omitempty"`
}

// shapeDetails are the bounds of a flexible shape's bandwidth, in Mbit/s.
type shapeDetails struct {
	Minimum int `json:"minimumBandwidthInMbps"`
	Maximum int `json:"maximumBandwidthInMbps"`
}

const defaultShape = "100Mbps"

// check refuses a shape that OCI has not.
func (s shape) check() error {
	fixed := []string{"10Mbps", "10Mbps-Micro", defaultShape, "400Mbps", "8000Mbps"}
	d := s.ShapeDetails
	switch {
	case slices.Contains(fixed, s.ShapeName):
		return nil
	case s.ShapeName != "flexible":
		return dialect.Invalid("shapeName", "%q is none: want flexible, or one of %v", s.ShapeName, fixed)
	case d == nil || d.Minimum < 10 || d.Maximum > 8000 || d.Minimum > d.Maximum:
		return dialect.Invalid("shapeDetails", "must be a range within 10 to 8000 Mbit/s")
	}
	return nil
}

// show gives the balancer as its service shows it.
func (b *balancer) show(ctx context.Context, r *dialect.Request) (loadBalancer, error) {
	addresses, err := b.ipAddresses(ctx, r)
	certificates, unreadable := b.readCertificates(ctx, r)
	err = errors.Join(err, unreadable)
	out := loadBalancer{
		resource: newResource(
			r, b.service.kind.Write(b.Serial), dialect.NameOf(b.Name, b.Tags), b.state(), b.CreatedAt, b.rec.tags,
		),
		IsPrivate: b.Scheme == api.SchemeInternal, IPAddresses: addresses, Listeners: b.listeners, BackendSets: b.sets,
		NetworkSecurityGroupIDs: append([]string{}, b.rec.SecurityGroups...),
	}
	if b.service == nlbService {
		out.nlbFields = &nlbFields{
			SubnetID: b.rec.Subnet, NlbIPVersion: ipv4, TimeUpdated: b.UpdatedAt,
			LifecycleDetails: b.StateReason, IsPreserveSourceDestination: b.rec.PreserveSource,
		}
		return out, err
	}
	out.lbFields = &lbFields{shape: b.rec.Shape, SubnetIDs: []string{b.rec.Subnet}, IPMode: ipv4, Certificates: certificates}
	return out, err
}

func (s *service) getShown(ctx context.Context, r *dialect.Request, ocid string) (shown loadBalancer, err error) {
	b, err := s.readBalancer(ctx, r, ocid)
	if err != nil {
		return shown, err
	}
	return b.show(ctx, r)
}

func (s *service) listShown(ctx context.Context, r *dialect.Request) (all []loadBalancer, err error) {
	found, err := s.listBalancers(ctx, r)
	if err != nil {
		return nil, err
	}
	named := r.HTTP.URL.Query().Get("displayName")
	for _, b := range found {
		shown, err := b.show(ctx, r)
		if err != nil {
			return nil, err
		}
		if named == "" || named == shown.DisplayName {
			all = append(all, shown)
		}
	}
	return all, nil
}

func addBackendSet(b *balancer, _ string, set backendSet) error {
	if b.sets[set.Name] != nil {
		return dialect.Invalid("name", "%q is one that the balancer has a backend set of", set.Name)
	}
	return b.putSet(set.Name, set)
}

func deleteBackendSet(b *balancer, name string, _ struct{}) error {
	if b.sets[name] == nil {
		return dialect.NotFound("backend set %q not found", name)
	}
	if b.isServed(name) {
		return dialect.Invalid("backendSetName", "%q cannot be deleted while a listener names it", name)
	}
	delete(b.sets, name)
	return nil
}

func updateBackendSet(b *balancer, name string, change backendSet) error {
	if b.sets[name] == nil {
		return dialect.NotFound("backend set %q not found", name)
	}
	set := *b.sets[name]
	dialect.Overlay(&set, change)
	return b.putSet(name, set)
}

func addListener(b *balancer, _ string, l listener) error {
	if _, has := b.listeners[l.Name]; has {
		return dialect.Invalid("name", "%q is one that the balancer has a listener of", l.Name)
	}
	return b.putListener(l.Name, l)
}

func updateListener(b *balancer, name string, change listener) error {
	l, known := b.listeners[name]
	if !known {
		return dialect.NotFound("listener %q not found", name)
	}
	dialect.Overlay(&l, change)
	l.SSLConfiguration = change.SSLConfiguration // What is left out is given up.
	return b.putListener(name, l)
}

func deleteListener(b *balancer, name string, _ struct{}) error {
	if _, ok := b.listeners[name]; !ok {
		return dialect.NotFound("listener %q not found", name)
	}
	delete(b.listeners, name)
	return nil
}

// lbCreation is what is read of a load balancer that is created.
type lbCreation struct {
	creation
	shape
	SubnetIDs    []string                      `json:"subnetIds"`
	IPMode       *string                       `json:"ipMode,omitempty"`
	Certificates map[string]certificateDetails `json:"certificates"`
	RuleSets     map[string]struct{}           `json:"ruleSets"`
}

func createLoadBalancer(ctx context.Context, r *dialect.Request, q lbCreation) (*dialect.Answer, error) {
	switch {
	case len(q.SubnetIDs) != 1:
		return nil, dialect.Invalid("subnetIds", "must be exactly one: subnets are regional here")
	case len(q.RuleSets) > 0:
		return nil, dialect.Invalid("ruleSets", "is not supported: this imitation has no rule sets")
	}
	if err := errors.Join(checkIPVersion("ipMode", q.IPMode), q.check()); err != nil {
		return nil, err
	}
	rec := record{Asked: hash(q), Shape: q.shape, Subnet: q.SubnetIDs[0]}
	return lbService.createBalancer(ctx, r, q.creation, q.Certificates, rec)
}

func updateShape(b *balancer, _ string, q shape) error {
	b.rec.Shape = q
	return q.check()
}

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
	LifecycleDetails            string    `json:"lifecycleDetails,omitempty"`
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
	return nlbService.createBalancer(ctx, r, q.creation, nil, rec)
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
