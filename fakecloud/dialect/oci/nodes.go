package oci

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dialect"
	"github.com/ccmlab/ccmlab/fakecloud/identity"
)

var nodeCalls = []dialect.Call{
	dialect.Handle(http.MethodGet, corePath+"/availabilityDomains", inCompartment, listAvailabilityDomains),
	dialect.Handle(
		http.MethodGet, corePath+"/instances", listBy("displayName", "availabilityDomain"), listInstances,
	),
	dialect.Handle(http.MethodGet, corePath+"/instances/{id}", nil, getInstance),
	dialect.Handle(http.MethodGet, corePath+"/vnicAttachments", listBy("instanceId", "vnicId"), listVNICAttachments),
	dialect.Handle(http.MethodGet, corePath+"/vnics/{id}", nil, getVNIC),
	dialect.Handle(http.MethodGet, corePath+"/subnets/{id}", nil, getSubnet),
}

// lifecycleStates are OCI's words for the states of instances. It has none for one in error, which does not run.
var lifecycleStates = map[api.InstanceState]string{
	api.InstancePending:     "STARTING",
	api.InstanceRunning:     "RUNNING",
	api.InstanceStopping:    "STOPPING",
	api.InstanceStopped:     "STOPPED",
	api.InstanceTerminating: "TERMINATING",
	api.InstanceTerminated:  "TERMINATED",
	api.InstanceError:       "STOPPED",
}

// tags are what each resource has of them. What Oracle's own services set there is empty.
type tags struct {
	FreeformTags map[string]string         `json:"freeformTags"`
	DefinedTags  map[string]map[string]any `json:"definedTags"`
	SystemTags   map[string]map[string]any `json:"systemTags"`
}

func newTags(freeform map[string]string) tags {
	t := tags{FreeformTags: freeform, DefinedTags: map[string]map[string]any{}, SystemTags: map[string]map[string]any{}}
	if t.FreeformTags == nil {
		t.FreeformTags = map[string]string{}
	}
	return t
}

type instance struct {
	ID                 string      `json:"id"`
	CompartmentID      string      `json:"compartmentId"`
	DisplayName        string      `json:"displayName"`
	AvailabilityDomain string      `json:"availabilityDomain"`
	FaultDomain        string      `json:"faultDomain"`
	Region             string      `json:"region"`
	Shape              string      `json:"shape"`
	ShapeConfig        shapeConfig `json:"shapeConfig"`
	LifecycleState     string      `json:"lifecycleState"`
	TimeCreated        time.Time   `json:"timeCreated"`
	tags
}

type shapeConfig struct {
	VCPUs       int     `json:"vcpus"`
	MemoryInGBs float64 `json:"memoryInGBs"`
}

// domainPrefix is what names of availability domains have before the zone's. It is the tenancy's at Oracle.
const domainPrefix = "fc1:"

// faultDomains is how many of them an availability domain has.
const faultDomains = 3

func toInstance(r *dialect.Request, in api.Instance) instance {
	out := instance{
		ID: instanceKind.Write(in.Serial), CompartmentID: compartmentOf(r), DisplayName: in.Name,
		AvailabilityDomain: domainPrefix + in.Zone, FaultDomain: fmt.Sprintf("FAULT-DOMAIN-%d", 1+in.Serial%faultDomains),
		Region: in.Region, Shape: string(in.Type), LifecycleState: lifecycleStates[in.State], TimeCreated: in.CreatedAt,
		tags: newTags(in.Tags),
	}
	for _, size := range cloud.InstanceSizes {
		if string(size.Type) == string(in.Type) {
			out.ShapeConfig = shapeConfig{VCPUs: size.VCPUs, MemoryInGBs: float64(size.MemoryMiB) / 1024}
		}
	}
	return out
}

func listAvailabilityDomains(ctx context.Context, r *dialect.Request, _ struct{}) (*dialect.Answer, error) {
	if err := checkCompartment(r, r.HTTP.URL.Query().Get("compartmentId")); err != nil {
		return nil, err
	}
	type availabilityDomain struct {
		Name          string `json:"name"`
		ID            string `json:"id"`
		CompartmentID string `json:"compartmentId"`
	}
	zones, err := r.ListZones(ctx)
	if err != nil {
		return nil, err
	}
	var all []availabilityDomain
	for _, z := range zones {
		all = append(all, availabilityDomain{
			domainPrefix + z.Name, "ocid1.availabilitydomain.fc1.." + z.Name, compartmentOf(r),
		})
	}
	return answerList(r, all, asArray)
}

// listInstances answers with instances that have ended, too, while this cloud keeps them, as OCI does.
func listInstances(ctx context.Context, r *dialect.Request, _ struct{}) (*dialect.Answer, error) {
	query := r.HTTP.URL.Query()
	if err := checkCompartment(r, query.Get("compartmentId")); err != nil {
		return nil, err
	}
	domain := query.Get("availabilityDomain")
	zone, known := strings.CutPrefix(domain, domainPrefix)
	if domain != "" && !known {
		return nil, dialect.Invalid("availabilityDomain", "%q is none: they begin with %s", domain, domainPrefix)
	}
	found, err := r.ListInstances(ctx, client.InstanceFilter{Name: query.Get("displayName"), Zone: zone})
	if err != nil {
		return nil, err
	}
	var all []instance
	for _, in := range found {
		all = append(all, toInstance(r, in))
	}
	return answerList(r, all, asArray)
}

// readInstance reads the instance that an OCID names: of itself, of its VNIC or of the attachment of that.
func readInstance(ctx context.Context, r *dialect.Request, kind dialect.Kind, ocid string) (*api.Instance, error) {
	id, err := kind.NativeID(ctx, r, ocid)
	if err != nil {
		return nil, err
	}
	return r.GetInstance(ctx, id)
}

func getInstance(ctx context.Context, r *dialect.Request, _ struct{}) (*dialect.Answer, error) {
	in, err := readInstance(ctx, r, instanceKind, dialect.InPath(r))
	if err != nil {
		return nil, err
	}
	return dialect.OK(toInstance(r, *in)), nil
}

type vnicAttachment struct {
	ID                 string    `json:"id"`
	CompartmentID      string    `json:"compartmentId"`
	AvailabilityDomain string    `json:"availabilityDomain"`
	InstanceID         string    `json:"instanceId"`
	VnicID             string    `json:"vnicId"`
	SubnetID           string    `json:"subnetId"`
	LifecycleState     string    `json:"lifecycleState"`
	TimeCreated        time.Time `json:"timeCreated"`
}

func listVNICAttachments(ctx context.Context, r *dialect.Request, _ struct{}) (*dialect.Answer, error) {
	query := r.HTTP.URL.Query()
	if err := checkCompartment(r, query.Get("compartmentId")); err != nil {
		return nil, err
	}
	networks, err := r.NetworkSerials(ctx)
	if err != nil {
		return nil, err
	}
	var found []api.Instance
	if ocid := query.Get("instanceId"); ocid != "" {
		in, err := readInstance(ctx, r, instanceKind, ocid)
		if err != nil {
			return nil, err
		}
		found = append(found, *in)
	} else if found, err = r.ListInstances(ctx, client.InstanceFilter{}); err != nil {
		return nil, err
	}
	var all []vnicAttachment
	for _, in := range found {
		a := vnicAttachment{
			ID: attachmentKind.Write(in.Serial), CompartmentID: compartmentOf(r),
			AvailabilityDomain: domainPrefix + in.Zone, InstanceID: instanceKind.Write(in.Serial),
			VnicID: vnicKind.Write(in.Serial), SubnetID: subnetKind.Write(networks[in.NetworkID]),
			LifecycleState: "ATTACHED", TimeCreated: in.CreatedAt,
		}
		if dialect.IsGone(in) {
			a.LifecycleState = "DETACHED"
		}
		if wanted := query.Get("vnicId"); wanted == "" || wanted == a.VnicID {
			all = append(all, a)
		}
	}
	return answerList(r, all, asArray)
}

type vnic struct {
	ID                 string    `json:"id"`
	CompartmentID      string    `json:"compartmentId"`
	AvailabilityDomain string    `json:"availabilityDomain"`
	DisplayName        string    `json:"displayName"`
	HostnameLabel      string    `json:"hostnameLabel"`
	IsPrimary          bool      `json:"isPrimary"`
	PrivateIP          *string   `json:"privateIp"`
	PublicIP           *string   `json:"publicIp"`
	IPv6Addresses      []string  `json:"ipv6Addresses"`
	SubnetID           string    `json:"subnetId"`
	LifecycleState     string    `json:"lifecycleState"`
	TimeCreated        time.Time `json:"timeCreated"`
	tags
}

// getVNIC answers with the first address of each sort that an instance has. OCI has the others as private IPs of
// their own, which no call here shows.
func getVNIC(ctx context.Context, r *dialect.Request, _ struct{}) (*dialect.Answer, error) {
	in, err := readInstance(ctx, r, vnicKind, dialect.InPath(r))
	if err != nil {
		return nil, err
	}
	networks, err := r.NetworkSerials(ctx)
	if err != nil {
		return nil, err
	}
	if dialect.IsGone(*in) {
		return nil, vnicKind.NotFound(dialect.InPath(r))
	}
	out := vnic{
		ID: vnicKind.Write(in.Serial), CompartmentID: compartmentOf(r), AvailabilityDomain: domainPrefix + in.Zone,
		DisplayName: in.Name, HostnameLabel: in.Name, IsPrimary: true, IPv6Addresses: []string{},
		SubnetID: subnetKind.Write(networks[in.NetworkID]), LifecycleState: "AVAILABLE", TimeCreated: in.CreatedAt,
		tags: newTags(nil),
	}
	for _, a := range in.Addresses {
		switch {
		case strings.Contains(a.IP, ":"):
			out.IPv6Addresses = append(out.IPv6Addresses, a.IP)
		case a.Type == api.AddressInternal && out.PrivateIP == nil:
			out.PrivateIP = &a.IP
		case a.Type == api.AddressExternal && out.PublicIP == nil:
			out.PublicIP = &a.IP
		}
	}
	return dialect.OK(out), nil
}

type subnet struct {
	ID                 string    `json:"id"`
	CompartmentID      string    `json:"compartmentId"`
	VcnID              string    `json:"vcnId"`
	DisplayName        string    `json:"displayName"`
	CidrBlock          string    `json:"cidrBlock"`
	AvailabilityDomain *string   `json:"availabilityDomain"` // of a regional subnet none
	SecurityListIDs    []string  `json:"securityListIds"`
	RouteTableID       string    `json:"routeTableId"`
	VirtualRouterIP    string    `json:"virtualRouterIp"`
	VirtualRouterMac   string    `json:"virtualRouterMac"`
	LifecycleState     string    `json:"lifecycleState"`
	TimeCreated        time.Time `json:"timeCreated"`
	tags
}

func getSubnet(ctx context.Context, r *dialect.Request, _ struct{}) (*dialect.Answer, error) {
	id, err := subnetKind.NativeID(ctx, r, dialect.InPath(r))
	if err != nil {
		return nil, err
	}
	n, err := r.GetNetwork(ctx, id)
	if err != nil {
		return nil, err
	}
	cidr, err := netip.ParsePrefix(n.Cidr)
	if err != nil {
		return nil, err
	}
	return dialect.OK(subnet{ // Its router is made up: this cloud has none.
		RouteTableID: identity.OCID("routetable") + identity.Code(n.Serial), VirtualRouterMac: "00:00:17:00:00:01",
		VirtualRouterIP: cidr.Masked().Addr().Next().String(),
		ID:              subnetKind.Write(n.Serial), CompartmentID: compartmentOf(r), VcnID: vcnKind.Write(n.Serial),
		DisplayName: n.Name, CidrBlock: n.Cidr, SecurityListIDs: []string{securityListKind.Write(n.Serial)},
		LifecycleState: "AVAILABLE", TimeCreated: n.CreatedAt, tags: newTags(n.Tags),
	}), nil
}
