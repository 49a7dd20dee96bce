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
	"github.com/ccmlab/ccmlab/fakecloud/dialect"
	"github.com/ccmlab/ccmlab/fakecloud/identity"
)

var nodeCalls = []dialect.Call{
	list(corePath+"/availabilityDomains", []string{"compartmentId"}, listAvailabilityDomains),
	list(corePath+"/instances", []string{"compartmentId", "displayName", "availabilityDomain"}, listInstances),
	get(corePath+"/instances/{id}", getInstance),
	list(corePath+"/vnicAttachments", []string{"compartmentId", "instanceId", "vnicId"}, listVNICAttachments),
	get(corePath+"/vnics/{id}", getVNIC),
	get(corePath+"/subnets/{id}", getSubnet),
	dialect.Handle(http.MethodPost, corePath+"/publicIps/actions/getByIpAddress", nil, getPublicIP),
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

type instance struct {
	resource
	AvailabilityDomain string      `json:"availabilityDomain"`
	FaultDomain        string      `json:"faultDomain"`
	Region             string      `json:"region"`
	Shape              string      `json:"shape"`
	ShapeConfig        shapeConfig `json:"shapeConfig"`
}

type shapeConfig struct {
	VCPUs       int     `json:"vcpus"`
	MemoryInGBs float64 `json:"memoryInGBs"`
}

// domainPrefix is what names of availability domains have before the zone's. It is the tenancy's at Oracle.
const domainPrefix = "fc1:"

// toInstance gives an instance as OCI shows it. An availability domain has three fault domains.
func toInstance(r *dialect.Request, in api.Instance) instance {
	id, state, tagged := instanceKind.Write(in.Serial), lifecycleStates[in.State], tags{FreeformTags: in.Tags}
	_, size := dialect.SizeOf(in.Type)
	return instance{
		resource:           newResource(r, id, in.Name, state, in.CreatedAt, tagged),
		AvailabilityDomain: domainPrefix + in.Zone, FaultDomain: fmt.Sprintf("FAULT-DOMAIN-%d", 1+in.Serial%3),
		Region: in.Region, Shape: string(in.Type),
		ShapeConfig: shapeConfig{VCPUs: size.Vcpus, MemoryInGBs: float64(size.MemoryMiB) / 1024},
	}
}

type availabilityDomain struct {
	ID            string `json:"id"`
	CompartmentID string `json:"compartmentId"`
	Name          string `json:"name"`
}

func listAvailabilityDomains(ctx context.Context, r *dialect.Request) (all []availabilityDomain, err error) {
	zones, err := r.ListZones(ctx)
	for _, z := range zones {
		id := "ocid1.availabilitydomain.fc1.." + z.Name
		all = append(all, availabilityDomain{id, compartmentOf(r), domainPrefix + z.Name})
	}
	return all, err
}

// listInstances gives instances that have ended, too, while this cloud keeps them, as OCI does.
func listInstances(ctx context.Context, r *dialect.Request) (all []instance, err error) {
	query := r.HTTP.URL.Query()
	domain := query.Get("availabilityDomain")
	zone, known := strings.CutPrefix(domain, domainPrefix)
	if domain != "" && !known {
		return nil, dialect.Invalid("availabilityDomain", "%q is none: they begin with %s", domain, domainPrefix)
	}
	found, err := r.ListInstances(ctx, client.InstanceFilter{Name: query.Get("displayName"), Zone: zone})
	for _, in := range found {
		all = append(all, toInstance(r, in))
	}
	return all, err
}

func getInstance(ctx context.Context, r *dialect.Request, ocid string) (shown instance, err error) {
	in, err := dialect.Find(ctx, r, instanceKind, ocid, r.GetInstance)
	if err != nil {
		return shown, err
	}
	return toInstance(r, *in), nil
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

func listVNICAttachments(ctx context.Context, r *dialect.Request) (all []vnicAttachment, err error) {
	networks, err := r.NetworkSerials(ctx)
	if err != nil {
		return nil, err
	}
	query := r.HTTP.URL.Query()
	var found []api.Instance
	if ocid := query.Get("instanceId"); ocid != "" {
		in, err := dialect.Find(ctx, r, instanceKind, ocid, r.GetInstance)
		if err != nil {
			return nil, err
		}
		found = append(found, *in)
	} else if found, err = r.ListInstances(ctx, client.InstanceFilter{}); err != nil {
		return nil, err
	}
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
	return all, nil
}

type vnic struct {
	resource
	AvailabilityDomain string   `json:"availabilityDomain"`
	HostnameLabel      string   `json:"hostnameLabel"`
	IsPrimary          bool     `json:"isPrimary"`
	PrivateIP          *string  `json:"privateIp"`
	PublicIP           *string  `json:"publicIp"`
	IPv6Addresses      []string `json:"ipv6Addresses"`
	SubnetID           string   `json:"subnetId"`
}

// getVNIC gives the first address of each sort that an instance has. OCI has the others as private IPs of their own,
// which no call here shows.
func getVNIC(ctx context.Context, r *dialect.Request, ocid string) (out vnic, err error) {
	in, err := dialect.Find(ctx, r, vnicKind, ocid, r.GetInstance)
	if err != nil {
		return out, err
	}
	if dialect.IsGone(*in) {
		return out, vnicKind.NotFound(ocid)
	}
	networks, err := r.NetworkSerials(ctx)
	out = vnic{
		resource:           newResource(r, ocid, in.Name, available, in.CreatedAt, tags{}),
		AvailabilityDomain: domainPrefix + in.Zone, HostnameLabel: in.Name, IsPrimary: true, IPv6Addresses: []string{},
		SubnetID: subnetKind.Write(networks[in.NetworkID]),
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
	return out, err
}

type subnet struct {
	resource
	VcnID              string   `json:"vcnId"`
	CidrBlock          string   `json:"cidrBlock"`
	AvailabilityDomain *string  `json:"availabilityDomain"` // of a regional subnet none
	SecurityListIDs    []string `json:"securityListIds"`
	RouteTableID       string   `json:"routeTableId"`
	VirtualRouterIP    string   `json:"virtualRouterIp"`
	VirtualRouterMac   string   `json:"virtualRouterMac"`
}

func getSubnet(ctx context.Context, r *dialect.Request, ocid string) (out subnet, err error) {
	n, err := dialect.Find(ctx, r, subnetKind, ocid, r.GetNetwork)
	if err != nil {
		return out, err
	}
	cidr, err := netip.ParsePrefix(n.Cidr)
	return subnet{
		resource: newResource(r, ocid, n.Name, available, n.CreatedAt, tags{FreeformTags: n.Tags}),
		VcnID:    vcnKind.Write(n.Serial), CidrBlock: n.Cidr, SecurityListIDs: []string{securityListKind.Write(n.Serial)},
		// Its router is made up: this cloud has none.
		RouteTableID:    identity.OCID("routetable") + identity.Code(n.Serial),
		VirtualRouterIP: cidr.Masked().Addr().Next().String(), VirtualRouterMac: "00:00:17:00:00:01",
	}, err
}

type publicIP struct {
	resource
	IPAddress string `json:"ipAddress"`
	Lifetime  string `json:"lifetime"`
	Scope     string `json:"scope"`
}

// getPublicIP answers with the reserved address of an IP address.
func getPublicIP(ctx context.Context, r *dialect.Request, q struct {
	IPAddress string `json:"ipAddress"`
}) (any, error) {
	all, err := r.ListAddresses(ctx, client.AddressFilter{})
	if err != nil {
		return nil, err
	}
	for _, a := range all {
		if a.IP != q.IPAddress {
			continue
		}
		state := available
		if a.Holder != nil {
			state = "ASSIGNED"
		}
		return publicIP{
			resource:  newResource(r, publicIPKind.Write(a.Serial), a.Name, state, a.CreatedAt, tags{FreeformTags: a.Tags}),
			IPAddress: a.IP, Lifetime: "RESERVED", Scope: "REGION",
		}, nil
	}
	return nil, dialect.NotFound("public IP %q not found", q.IPAddress)
}
