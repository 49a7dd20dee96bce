package hcloud

import (
	"context"
	"net/http"
	"slices"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dialect"
)

// primaryIPRecord is what a primary IP was told and its reserved address does not have. Fields are only ever added.
type primaryIPRecord struct {
	AutoDelete bool              `json:"autoDelete,omitempty"`
	Location   string            `json:"location,omitempty"`
	Protection protection        `json:"protection,omitzero"`
	DNSPtr     map[string]string `json:"dnsPtr,omitempty"`
}

// primaryIPs are reserved addresses but those of balancers.
var primaryIPs = collection[api.ReservedAddress, primaryIP]{
	one: "primary_ip", kind: api.ResourceAddress, filters: []string{"ip"}, sorts: []string{"id", "created"},
	show: toPrimaryIP, get: (*dialect.Request).GetAddress, update: updateAddress,
	record: func(records api.Records, q updateRequest) (api.Records, error) {
		return withRecord(records, func(a *primaryIPRecord) { a.AutoDelete = api.ValueOf(q.AutoDelete) })
	},
	gone: func(a api.ReservedAddress) bool { return api.ValueOf(a.Holder).Kind == api.HolderLoadBalancer },
	list: func(ctx context.Context, r *dialect.Request, name string) ([]api.ReservedAddress, error) {
		found, err := r.ListAddresses(ctx, client.AddressFilter{Name: name})
		query := r.HTTP.URL.Query()
		return slices.DeleteFunc(found, func(a api.ReservedAddress) bool {
			return query.Has("ip") && a.IP != query.Get("ip")
		}), err
	},
}

var primaryIPCalls = []dialect.Call{
	dialect.Handle(http.MethodPost, primaryIPs.path(), nil, createPrimaryIP).Answers(http.StatusCreated),
	dialect.Handle(http.MethodDelete, primaryIPs.path()+"/{id}", nil, deletePrimaryIP).Answers(http.StatusNoContent),
	primaryIPAction("assign", assignPrimaryIP), primaryIPAction("unassign", unassignPrimaryIP),
	resourceAction(&primaryIPs, "change_protection", func(
		_ context.Context, _ *dialect.Request, _ *api.ReservedAddress, a *primaryIPRecord, q protectionRequest,
	) error {
		if q.Delete != nil {
			a.Protection.Delete = *q.Delete
		}
		return nil
	}),
	resourceAction(&primaryIPs, "change_dns_ptr", func(
		_ context.Context, _ *dialect.Request, _ *api.ReservedAddress, a *primaryIPRecord, q dnsPtrRequest,
	) error {
		return q.putInto(&a.DNSPtr)
	}),
}

func updateAddress(
	r *dialect.Request,
	ctx context.Context,
	id string,
	u api.ResourceUpdate,
) (*api.ReservedAddress, error) {
	return r.UpdateAddress(ctx, id, u)
}

// primaryIP is one with the deprecated field that other clients than Go's read.
type primaryIP struct {
	schema.PrimaryIP
	Datacenter schema.Datacenter `json:"datacenter"`
}

func autoDelete(a api.ReservedAddress) bool {
	var record primaryIPRecord
	return dialect.ReadRecord(name, a.Records, &record) == nil && record.AutoDelete
}

func toPrimaryIP(ctx context.Context, r *dialect.Request, a *api.ReservedAddress) (primaryIP, error) {
	var record primaryIPRecord
	if err := dialect.ReadRecord(name, a.Records, &record); err != nil {
		return primaryIP{}, err
	}
	zone := r.Cloud.Zones()[0].Name
	if record.Location != "" {
		zone = record.Location
	}
	shown := primaryIP{PrimaryIP: schema.PrimaryIP{
		ID: a.Serial, IP: a.IP, Labels: a.Tags, Name: a.Name, Type: "ipv4", AssigneeType: "server",
		AutoDelete: record.AutoDelete, Created: a.CreatedAt, DNSPtr: []schema.PrimaryIPDNSPTR{},
		Protection: schema.PrimaryIPProtection{Delete: record.Protection.Delete},
	}}
	for ip, to := range record.DNSPtr {
		shown.DNSPtr = append(shown.DNSPtr, schema.PrimaryIPDNSPTR{IP: ip, DNSPtr: to})
	}
	if a.Holder != nil {
		instances, err := r.Instances(ctx)
		if err != nil {
			return shown, err
		}
		holder := instances[a.Holder.ID]
		shown.AssigneeID, zone = &holder.Serial, holder.Zone
	}
	shown.Location, shown.Datacenter = locationNamed(r, zone), datacenterOf(r, zone)
	return shown, nil
}

type primaryIPRequest struct {
	Name         string             `json:"name"`
	Type         string             `json:"type"`
	AssigneeType string             `json:"assignee_type"`
	AssigneeID   *int64             `json:"assignee_id,omitempty"`
	AutoDelete   bool               `json:"auto_delete"`
	Location     string             `json:"location"`
	Datacenter   string             `json:"datacenter"`
	Labels       *map[string]string `json:"labels,omitempty"`
}

func createPrimaryIP(ctx context.Context, r *dialect.Request, q primaryIPRequest) (any, error) {
	if q.Type != "ipv4" {
		return nil, refuseUnsupported("a primary IP of type " + q.Type)
	}
	if err := checkLabels(api.ValueOf(q.Labels)); err != nil {
		return nil, err
	}
	record := primaryIPRecord{AutoDelete: q.AutoDelete}
	for _, z := range r.Cloud.Zones() {
		if q.Location == z.Name || q.Datacenter == datacenterOf(r, z.Name).Name {
			record.Location = z.Name
		}
	}
	if record.Location == "" && q.Location+q.Datacenter != "" {
		return nil, dialect.Invalid("location", "%q is none that there is", q.Location+q.Datacenter)
	}
	a, err := r.ReserveAddress(ctx, api.ReservedAddressCreate{
		Name: &q.Name, Tags: (*api.Tags)(q.Labels), Records: dialect.WithRecord(name, nil, record),
	})
	if err == nil && q.AssigneeID != nil {
		a, err = assignTo(ctx, r, a, *q.AssigneeID)
	}
	if err != nil {
		return nil, err
	}
	shown, err := toPrimaryIP(ctx, r, a)
	if err != nil {
		return nil, err
	}
	action, err := recordAction(ctx, r, "create_primary_ip", "", a.ID, primaryIPs.refer(a))
	return map[string]any{"primary_ip": shown, "action": action}, err
}

func deletePrimaryIP(ctx context.Context, r *dialect.Request, _ struct{}) (any, error) {
	a, err := primaryIPs.find(ctx, r, struct{}{})
	if err != nil {
		return nil, err
	}
	var record primaryIPRecord
	if err := dialect.ReadRecord(name, a.Records, &record); err != nil {
		return nil, err
	}
	if err := primaryIPs.protected(record.Protection); err != nil {
		return nil, err
	}
	return nil, r.ReleaseAddress(ctx, a.ID)
}

type assignRequest struct {
	AssigneeID   int64  `json:"assignee_id"`
	AssigneeType string `json:"assignee_type"`
}

func primaryIPAction(
	command string,
	do func(ctx context.Context, r *dialect.Request, a *api.ReservedAddress, q assignRequest) error,
) dialect.Call {
	path := primaryIPs.path() + "/{id}/actions/" + command
	return dialect.Handle(http.MethodPost, path, nil, func(ctx context.Context, r *dialect.Request, q assignRequest) (any, error) {
		a, err := primaryIPs.find(ctx, r, struct{}{})
		if err == nil {
			err = do(ctx, r, a, q)
		}
		if err != nil {
			return nil, err
		}
		action, err := recordAction(ctx, r, command+"_primary_ip", "", a.ID, primaryIPs.refer(a))
		return schema.ActionGetResponse{Action: action}, err
	}).Answers(http.StatusCreated)
}

func assignTo(ctx context.Context, r *dialect.Request, a *api.ReservedAddress, server int64) (*api.ReservedAddress, error) {
	in, err := servers.readSerial(ctx, r, server)
	if err != nil {
		return nil, err
	}
	return r.AttachAddress(ctx, a.ID, api.AddressAttach{InstanceID: in.ID})
}

func assignPrimaryIP(ctx context.Context, r *dialect.Request, a *api.ReservedAddress, q assignRequest) error {
	if a.Holder != nil {
		return &cloud.Error{Code: "primary_ip_assigned", Message: "primary IP is already assigned"}
	}
	_, err := assignTo(ctx, r, a, q.AssigneeID)
	return err
}

func unassignPrimaryIP(ctx context.Context, r *dialect.Request, a *api.ReservedAddress, _ assignRequest) error {
	_, err := r.DetachAddress(ctx, a.ID)
	return err
}
