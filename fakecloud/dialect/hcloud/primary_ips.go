package hcloud

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dialect"
)

// ipRecord is what a primary or floating IP was told and its reserved address does not have. Fields are only ever added.
type ipRecord struct {
	Floating    bool              `json:"floating,omitempty"`
	AutoDelete  bool              `json:"autoDelete,omitempty"`
	Location    string            `json:"location,omitempty"`
	Description string            `json:"description,omitempty"`
	Protection  protection        `json:"protection,omitzero"`
	DNSPtr      map[string]string `json:"dnsPtr,omitempty"`
	// Assignee is the number of the server that has it, if it is of IPv6, which leads nowhere.
	Assignee int64 `json:"assignee,omitempty"`
}

func ipRecordOf(a *api.ReservedAddress) (record ipRecord, err error) {
	return record, dialect.ReadRecord(name, a.Records, &record)
}

// ipCollection is a collection of addresses. Those of IPv4 are reserved ones, and those of IPv6 are records.
func ipCollection[T any](
	one string,
	show dialect.Handler[*api.ReservedAddress, T],
	filters ...string,
) collection[api.ReservedAddress, T] {
	isOther := func(a api.ReservedAddress) bool {
		record, err := ipRecordOf(&a)
		return err != nil || record.Floating != (one == floatingIPOne) ||
			api.ValueOf(a.Holder).Kind == api.HolderLoadBalancer
	}
	return collection[api.ReservedAddress, T]{
		one: one, kind: api.ResourceAddress, filters: filters, show: show,
		list: func(ctx context.Context, r *dialect.Request, name string) ([]api.ReservedAddress, error) {
			found, err := r.ListAddresses(ctx, client.AddressFilter{Name: name})
			if err != nil {
				return nil, err
			}
			records, err := listRecords(ctx, r, one)
			for _, d := range records {
				found = append(found, toIPv6(d))
			}
			query := r.HTTP.URL.Query()
			return slices.DeleteFunc(found, func(a api.ReservedAddress) bool {
				return isOther(a) || slices.Contains(filters, "ip") && query.Has("ip") && a.IP != query.Get("ip")
			}), err
		},
		read: func(ctx context.Context, r *dialect.Request, serial int64) (*api.ReservedAddress, error) {
			id, err := r.Cloud.ResourceID(ctx, r.Project, api.ResourceAddress, serial)
			if err == nil && id != "" {
				a, err := r.GetAddress(ctx, id)
				if err == nil && isOther(*a) {
					err = dialect.NotFound("%s with ID %d not found", one, serial)
				}
				return a, err
			}
			if id, err = r.ResourceID(ctx, api.ResourceDialectRecord, serial); err != nil {
				return nil, err
			}
			d, err := getRecord(ctx, r, one, id)
			return new(toIPv6(*d)), err
		},
		update: func(
			r *dialect.Request, ctx context.Context, id string, u api.ResourceUpdate,
		) (*api.ReservedAddress, error) {
			if !isRecord(id) {
				return r.UpdateAddress(ctx, id, u)
			}
			d, err := updateRecord(ctx, r, one, id, u)
			return new(toIPv6(*d)), err
		},
		record: func(records api.Records, q updateRequest) (api.Records, error) {
			return withRecord(records, func(record *ipRecord) {
				if q.AutoDelete != nil {
					record.AutoDelete = *q.AutoDelete
				}
				if q.Description != nil {
					record.Description = *q.Description
				}
			})
		},
	}
}

// isRecord tells whether an ID is that of a record.
func isRecord(id string) bool { return strings.HasPrefix(id, "dr-") }

// toIPv6 shows a record as the address that it is.
func toIPv6(d cloud.DialectRecord) api.ReservedAddress {
	return api.ReservedAddress{Metadata: d.Metadata, IP: recordedIPv6(d.Serial).String()}
}

// assigneeOf gives the number of the server that has an address; 0 if none has.
func assigneeOf(ctx context.Context, r *dialect.Request, a *api.ReservedAddress) (int64, error) {
	record, err := ipRecordOf(a)
	if err != nil || a.Holder == nil {
		return record.Assignee, err
	}
	instances, err := r.Instances(ctx)
	return instances[a.Holder.ID].Serial, err
}

// reserveIP gives a new address. What it is called is made up unless it is given.
func reserveIP(
	ctx context.Context,
	r *dialect.Request,
	one, kind, called string,
	labels *map[string]string,
	record ipRecord,
) (*api.ReservedAddress, error) {
	if err := checkLabels(api.ValueOf(labels)); err != nil {
		return nil, err
	}
	switch kind {
	case "ipv4":
		return r.ReserveAddress(ctx, api.ReservedAddressCreate{
			Name: textOrNil(called), Tags: (*api.Tags)(labels), Records: dialect.WithRecord(name, nil, record),
		})
	case "ipv6":
		d, err := createRecord(ctx, r, one, cmp.Or(called, dialect.NewName("address-")), labels, record)
		if err != nil {
			return nil, err
		}
		return new(toIPv6(*d)), nil
	}
	return nil, dialect.Invalid("type", "must be ipv4 or ipv6")
}

func textOrNil(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

func releaseIP(ctx context.Context, r *dialect.Request, a *api.ReservedAddress) error {
	if isRecord(a.ID) {
		return r.Cloud.DialectRecords.Delete(ctx, r.Project, a.ID)
	}
	return r.ReleaseAddress(ctx, a.ID)
}

// assignIP gives an address to a server.
func assignIP[T any](
	ctx context.Context,
	r *dialect.Request,
	c *collection[api.ReservedAddress, T],
	a *api.ReservedAddress,
	server int64,
) error {
	in, err := servers.readSerial(ctx, r, server)
	switch {
	case err != nil:
		return err
	case isRecord(a.ID):
		return changeRecord(ctx, r, c, a, func(record *ipRecord) error {
			record.Assignee = server
			return nil
		})
	}
	_, err = r.AttachAddress(ctx, a.ID, api.AddressAttach{InstanceID: in.ID})
	return err
}

func unassignIP[T any](
	ctx context.Context,
	r *dialect.Request,
	c *collection[api.ReservedAddress, T],
	a *api.ReservedAddress,
) error {
	if isRecord(a.ID) {
		return changeRecord(ctx, r, c, a, func(record *ipRecord) error {
			record.Assignee = 0
			return nil
		})
	}
	_, err := r.DetachAddress(ctx, a.ID)
	return err
}

// namesOf gives the names that addresses lead to. One of IPv4 always has one.
func namesOf(ip string, recorded map[string]string) map[string]string {
	all := maps.Clone(recorded)
	if all == nil {
		all = map[string]string{}
	}
	if _, has := all[ip]; !has && !strings.Contains(ip, ":") {
		parts := strings.Split(ip, ".")
		slices.Reverse(parts)
		all[ip] = "static." + strings.Join(parts, ".") + ".clients.your-server.de"
	}
	return all
}

// ipActions are those that primary and floating IPs have alike.
func ipActions[T any](c *collection[api.ReservedAddress, T]) []dialect.Call {
	return []dialect.Call{
		dialect.Handle(http.MethodDelete, c.path()+"/{id}", nil,
			func(ctx context.Context, r *dialect.Request, _ struct{}) (any, error) {
				a, err := c.find(ctx, r, struct{}{})
				if err != nil {
					return nil, err
				}
				record, err := ipRecordOf(a)
				if err == nil {
					err = c.protected(record.Protection)
				}
				if err == nil && a.Holder != nil && record.Floating {
					err = unassignIP(ctx, r, c, a)
				}
				if err != nil {
					return nil, err
				}
				return nil, releaseIP(ctx, r, a)
			}).Answers(http.StatusNoContent),
		resourceAction(c, "change_protection", func(
			_ context.Context, _ *dialect.Request, _ *api.ReservedAddress, record *ipRecord, q protectionRequest,
		) error {
			if q.Delete != nil {
				record.Protection.Delete = *q.Delete
			}
			return nil
		}),
		resourceAction(c, "change_dns_ptr", func(
			_ context.Context, _ *dialect.Request, _ *api.ReservedAddress, record *ipRecord, q dnsPtrRequest,
		) error {
			return q.putInto(&record.DNSPtr)
		}),
	}
}

// primaryIPs are reserved addresses but those of balancers and floating IPs.
var primaryIPs = func() collection[api.ReservedAddress, primaryIP] {
	c := ipCollection("primary_ip", toPrimaryIP, "ip")
	c.sorts = []string{"id", "created"}
	return c
}()

var primaryIPCalls = append(
	ipActions(&primaryIPs),
	dialect.Handle(http.MethodPost, primaryIPs.path(), nil, createPrimaryIP).Answers(http.StatusCreated),
	primaryIPAction("assign", assignPrimaryIP), primaryIPAction("unassign", unassignPrimaryIP),
)

// primaryIP is one with the deprecated field that other clients than Go's read.
type primaryIP struct {
	schema.PrimaryIP
	Datacenter schema.Datacenter `json:"datacenter"`
}

func toPrimaryIP(ctx context.Context, r *dialect.Request, a *api.ReservedAddress) (primaryIP, error) {
	record, err := ipRecordOf(a)
	if err != nil {
		return primaryIP{}, err
	}
	shown := primaryIP{PrimaryIP: schema.PrimaryIP{
		ID: a.Serial, IP: a.IP, Labels: a.Tags, Name: a.Name, Type: typeOfIP(a), AssigneeType: "server",
		AutoDelete: record.AutoDelete, Created: a.CreatedAt, DNSPtr: []schema.PrimaryIPDNSPTR{},
		Protection: schema.PrimaryIPProtection{Delete: record.Protection.Delete},
	}}
	for ip, to := range namesOf(a.IP, record.DNSPtr) {
		shown.DNSPtr = append(shown.DNSPtr, schema.PrimaryIPDNSPTR{IP: ip, DNSPtr: to})
	}
	assignee, err := assigneeOf(ctx, r, a)
	if err != nil {
		return shown, err
	}
	zone := cmp.Or(record.Location, r.Cloud.Zones()[0].Name)
	if assignee != 0 {
		shown.AssigneeID = &assignee
		instances, err := r.Instances(ctx)
		if err != nil {
			return shown, err
		}
		for _, in := range instances {
			if in.Serial == assignee {
				zone = in.Zone
			}
		}
	}
	shown.Location, shown.Datacenter = locationNamed(r, zone), datacenterOf(r, zone)
	return shown, nil
}

func typeOfIP(a *api.ReservedAddress) string {
	if isRecord(a.ID) {
		return "ipv6"
	}
	return "ipv4"
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
	if q.Name == "" {
		return nil, dialect.Invalid("name", "must be given")
	}
	record := ipRecord{AutoDelete: q.AutoDelete}
	for _, z := range r.Cloud.Zones() {
		if q.Location == z.Name || q.Datacenter == datacenterOf(r, z.Name).Name {
			record.Location = z.Name
		}
	}
	if record.Location == "" && q.Location+q.Datacenter != "" {
		return nil, dialect.Invalid("location", "%q is none that there is", q.Location+q.Datacenter)
	}
	a, err := reserveIP(ctx, r, primaryIPs.one, q.Type, q.Name, q.Labels, record)
	if err == nil && q.AssigneeID != nil {
		if err = assignIP(ctx, r, &primaryIPs, a, *q.AssigneeID); err == nil {
			a, err = primaryIPs.readSerial(ctx, r, a.Serial)
		}
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

func assignPrimaryIP(ctx context.Context, r *dialect.Request, a *api.ReservedAddress, q assignRequest) error {
	assignee, err := assigneeOf(ctx, r, a)
	switch {
	case err != nil:
		return err
	case assignee != 0:
		return &cloud.Error{Code: "primary_ip_assigned", Message: "primary IP is already assigned"}
	}
	return assignIP(ctx, r, &primaryIPs, a, q.AssigneeID)
}

func unassignPrimaryIP(ctx context.Context, r *dialect.Request, a *api.ReservedAddress, _ assignRequest) error {
	return unassignIP(ctx, r, &primaryIPs, a)
}
