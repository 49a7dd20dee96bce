package oci

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/dialect"
)

var lbCalls = append([]dialect.Call{
	dialect.Handle(http.MethodGet, lbPath+"/loadBalancers", listBy("displayName"), listLoadBalancers),
	dialect.Handle(http.MethodPost, lbPath+"/loadBalancers", nil, createLoadBalancer),
	dialect.Handle(http.MethodGet, lbPath+"/loadBalancers/{id}", nil, getLoadBalancer),
	dialect.Handle(http.MethodDelete, lbPath+"/loadBalancers/{id}", nil, deleteLoadBalancer),
	dialect.Handle(http.MethodPut, lbPath+"/loadBalancers/{id}/updateShape", nil, updateShape),
	dialect.Handle(
		http.MethodGet, lbPath+"/loadBalancers/{id}/workRequests", []string{"page", "limit"}, listWorkRequests,
	),
	dialect.Handle(http.MethodGet, lbPath+"/loadBalancerWorkRequests/{id}", nil, getWorkRequest),
}, lbService.partCalls(lbPath+"/loadBalancers/{id}")...)

// partCalls are those that change a part of a balancer, whose path is given.
func (s *service) partCalls(path string) []dialect.Call {
	sets, listeners := path+"/backendSets", path+"/listeners"
	return []dialect.Call{
		dialect.Handle(http.MethodPut, path+"/networkSecurityGroups", nil, s.changeSecurityGroups),
		dialect.Handle(http.MethodPost, sets, nil, changeAnswered(s, addBackendSet)),
		dialect.Handle(http.MethodPut, sets+"/{name}", nil, changeAnswered(s, updateBackendSet)),
		dialect.Handle(http.MethodDelete, sets+"/{name}", nil, changeAnswered(s, deleteBackendSet)),
		dialect.Handle(http.MethodPost, listeners, nil, changeAnswered(s, addListener)),
		dialect.Handle(http.MethodPut, listeners+"/{name}", nil, changeAnswered(s, updateListener)),
		dialect.Handle(http.MethodDelete, listeners+"/{name}", nil, changeAnswered(s, deleteListener)),
	}
}

// loadBalancer is a balancer as its service shows it.
type loadBalancer struct {
	ID                      string                `json:"id"`
	CompartmentID           string                `json:"compartmentId"`
	DisplayName             string                `json:"displayName"`
	LifecycleState          string                `json:"lifecycleState"`
	TimeCreated             time.Time             `json:"timeCreated"`
	IsPrivate               bool                  `json:"isPrivate"`
	IPAddresses             []ipAddress           `json:"ipAddresses"`
	Listeners               map[string]listener   `json:"listeners"`
	BackendSets             map[string]backendSet `json:"backendSets"`
	NetworkSecurityGroupIDs []string              `json:"networkSecurityGroupIds"`
	tags
	*lbFields
	*nlbFields
}

// lbFields are those that load balancers alone have. What is a struct{} there is none of.
type lbFields struct {
	shape
	SubnetIDs    []string            `json:"subnetIds"`
	IPMode       string              `json:"ipMode"`
	Certificates map[string]struct{} `json:"certificates"`
	RuleSets     map[string]struct{} `json:"ruleSets"`
	Hostnames    map[string]struct{} `json:"hostnames"`
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

const (
	defaultShape  = "100Mbps"
	flexibleShape = "flexible"
	minBandwidth  = 10
	maxBandwidth  = 8000
)

// check refuses a shape that OCI has not.
func (s shape) check() error {
	fixed := []string{"10Mbps", "10Mbps-Micro", defaultShape, "400Mbps", "8000Mbps"}
	d := s.ShapeDetails
	switch {
	case s.ShapeName != flexibleShape && !slices.Contains(fixed, s.ShapeName):
		return dialect.Invalid("shapeName", "%q is none: want %s, or one of %v", s.ShapeName, flexibleShape, fixed)
	case s.ShapeName == flexibleShape && d == nil:
		return dialect.Invalid("shapeDetails", "must be given for the shape %s", flexibleShape)
	case s.ShapeName == flexibleShape && (d.Minimum < minBandwidth || d.Maximum > maxBandwidth || d.Minimum > d.Maximum):
		return dialect.Invalid(
			"shapeDetails", "from %d to %d Mbps: want a range within %d to %d", d.Minimum, d.Maximum, minBandwidth, maxBandwidth,
		)
	}
	return nil
}

// show gives the balancer as its service shows it.
func (b *balancer) show(ctx context.Context, r *dialect.Request) (loadBalancer, error) {
	addresses, err := b.ipAddresses(ctx, r)
	if err != nil {
		return loadBalancer{}, err
	}
	out := loadBalancer{
		ID: b.service.kind.Write(b.Serial), CompartmentID: compartmentOf(r), DisplayName: b.displayName(),
		LifecycleState: b.state(), TimeCreated: b.CreatedAt, IsPrivate: b.Scheme == api.SchemeInternal,
		IPAddresses: addresses, Listeners: b.listeners, BackendSets: map[string]backendSet{},
		NetworkSecurityGroupIDs: []string{}, tags: newTags(b.rec.FreeformTags),
	}
	if b.rec.DefinedTags != nil {
		out.DefinedTags = b.rec.DefinedTags
	}
	out.NetworkSecurityGroupIDs = append(out.NetworkSecurityGroupIDs, b.rec.SecurityGroups...)
	for name, set := range b.sets {
		out.BackendSets[name] = *set
	}
	if b.service == nlbService {
		out.nlbFields = &nlbFields{
			SubnetID: b.rec.Subnet, NlbIPVersion: "IPV4", TimeUpdated: b.UpdatedAt,
			LifecycleDetails: b.StateReason, IsPreserveSourceDestination: b.rec.PreserveSource,
		}
		return out, nil
	}
	none := map[string]struct{}{}
	out.lbFields = &lbFields{
		shape: b.rec.Shape, SubnetIDs: []string{b.rec.Subnet}, IPMode: "IPV4", Certificates: none, RuleSets: none,
		Hostnames: none,
	}
	return out, nil
}

// changeAnswered makes a change of a part of a balancer, and answers with its work request.
func changeAnswered[B any](
	s *service,
	change func(b *balancer, name string, body B) error,
) func(context.Context, *dialect.Request, B) (*dialect.Answer, error) {
	return func(ctx context.Context, r *dialect.Request, body B) (*dialect.Answer, error) {
		request, err := s.changeBalancer(ctx, r, func(b *balancer) error { return change(b, r.Var("name"), body) })
		return answerAccepted(s.accepted, request, nil), err
	}
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

// setUpdate is what is read of a backend set that is changed. What a network load balancer's leaves out stays.
type setUpdate struct {
	Policy        *string        `json:"policy,omitempty"`
	HealthChecker *healthChecker `json:"healthChecker,omitempty"`
	Backends      *[]backend     `json:"backends,omitempty"`
	setOptions
	unsupportedParts
}

func updateBackendSet(b *balancer, name string, q setUpdate) error {
	if b.sets[name] == nil {
		return dialect.NotFound("backend set %q not found", name)
	}
	set := *b.sets[name]
	set.unsupportedParts = q.unsupportedParts
	set.setOptions = set.withChange(q.setOptions)
	if q.Policy != nil {
		set.Policy = *q.Policy
	}
	if q.HealthChecker != nil {
		set.HealthChecker = *q.HealthChecker
	}
	if q.Backends != nil {
		set.Backends = *q.Backends
	}
	return b.putSet(name, set)
}

func addListener(b *balancer, _ string, l listener) error {
	if _, has := b.listeners[l.Name]; has {
		return dialect.Invalid("name", "%q is one that the balancer has a listener of", l.Name)
	}
	return b.putListener(l.Name, l)
}

func updateListener(b *balancer, name string, l listener) error {
	has, ok := b.listeners[name]
	if !ok {
		return dialect.NotFound("listener %q not found", name)
	}
	return b.putListener(name, has.withChange(l))
}

func deleteListener(b *balancer, name string, _ struct{}) error {
	if _, ok := b.listeners[name]; !ok {
		return dialect.NotFound("listener %q not found", name)
	}
	delete(b.listeners, name)
	return nil
}

func listLoadBalancers(ctx context.Context, r *dialect.Request, _ struct{}) (*dialect.Answer, error) {
	return answerBalancers(ctx, r, lbService, asArray)
}

func answerBalancers(
	ctx context.Context,
	r *dialect.Request,
	s *service,
	wrap func(items []loadBalancer) any,
) (*dialect.Answer, error) {
	query := r.HTTP.URL.Query()
	if err := checkCompartment(r, query.Get("compartmentId")); err != nil {
		return nil, err
	}
	found, err := s.listBalancers(ctx, r, query.Get("displayName"))
	if err != nil {
		return nil, err
	}
	var all []loadBalancer
	for _, b := range found {
		shown, err := b.show(ctx, r)
		if err != nil {
			return nil, err
		}
		all = append(all, shown)
	}
	return answerList(r, all, wrap)
}

func getLoadBalancer(ctx context.Context, r *dialect.Request, _ struct{}) (*dialect.Answer, error) {
	return answerBalancer(ctx, r, lbService)
}

func answerBalancer(ctx context.Context, r *dialect.Request, s *service) (*dialect.Answer, error) {
	b, err := s.readBalancer(ctx, r)
	if err != nil {
		return nil, err
	}
	shown, err := b.show(ctx, r)
	return dialect.OK(shown), err
}

// lbCreation is what is read of a load balancer that is created.
type lbCreation struct {
	creation
	shape
	SubnetIDs    []string            `json:"subnetIds"`
	IPMode       *string             `json:"ipMode,omitempty"`
	Certificates map[string]struct{} `json:"certificates"`
	RuleSets     map[string]struct{} `json:"ruleSets"`
}

func createLoadBalancer(ctx context.Context, r *dialect.Request, q lbCreation) (*dialect.Answer, error) {
	network, err := checkSubnets(ctx, r, q.SubnetIDs...)
	if err != nil {
		return nil, err
	}
	switch {
	case q.IPMode != nil && *q.IPMode != "" && *q.IPMode != "IPV4":
		return nil, dialect.Invalid("ipMode", "%s cannot be had: this imitation has IPV4", *q.IPMode)
	case len(q.Certificates) > 0:
		return nil, dialect.Invalid("certificates", "cannot be had: nothing ends TLS in this imitation")
	case len(q.RuleSets) > 0:
		return nil, dialect.Invalid("ruleSets", "cannot be had: this imitation has no rule sets")
	}
	if err := q.check(); err != nil {
		return nil, err
	}
	rec := record{Shape: q.shape, Subnet: q.SubnetIDs[0]}
	_, request, err := lbService.createBalancer(ctx, r, q.creation, network, rec)
	return answerAccepted(http.StatusNoContent, request, nil), err
}

func updateShape(ctx context.Context, r *dialect.Request, q shape) (*dialect.Answer, error) {
	request, err := lbService.changeBalancer(ctx, r, func(b *balancer) error {
		b.rec.Shape = q
		return q.check()
	})
	return answerAccepted(http.StatusNoContent, request, nil), err
}

func deleteLoadBalancer(ctx context.Context, r *dialect.Request, _ struct{}) (*dialect.Answer, error) {
	request, err := lbService.deleteBalancer(ctx, r)
	return answerAccepted(http.StatusNoContent, request, nil), err
}
