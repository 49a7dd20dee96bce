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

// ipRecord is what a primary IP was told and its reserved address does not have. Fields are only ever added.
type ipRecord struct {
	AutoDelete bool              `json:"autoDelete,omitempty"`
	Location   string            `json:"location,omitempty"`
	Protection protection        `json:"protection,omitzero"`
	DNSPtr     map[string]string `json:"dnsPtr,omitempty"`
	// Assignee is the number of the server that has it, if it is of IPv6, which leads nowhere.
	Assignee int64 `json:"assignee,omitempty"`
}

const onePrimaryIP = "primary_ip"

// primaryIPs are the addresses that are no balancers'. Those of IPv4 are reserved ones, and those of IPv6 are records.
var primaryIPs = collection[api.ReservedAddress, primaryIP]{
	one: onePrimaryIP, kind: api.ResourceAddress, filters: []string{"ip"}, unnamed: true,
	list: listPrimaryIPs, read: readPrimaryIP, update: updatePrimaryIP, show: toPrimaryIP,
	record: func(records api.Records, q updateRequest) (api.Records, error) {
		return withRecord(records, func(record *ipRecord) error {
			record.AutoDelete = api.ValueOf(q.AutoDelete)
			return nil
		})
	},
}

var primaryIPCalls = []dialect.Call{
	dialect.Handle(http.MethodPost, primaryIPs.path(), nil, createPrimaryIP).Answers(http.StatusCreated),
	deleteCall(&primaryIPs, releaseIP),
	changeAction(&primaryIPs, "change_protection", func(record *ipRecord, q protectionRequest) error {
		return q.applyTo(&record.Protection)
	}),
	changeAction(&primaryIPs, "change_dns_ptr", func(record *ipRecord, q dnsPtrRequest) error {
		return q.putInto(&record.DNSPtr)
	}),
	actionCall(&primaryIPs, "assign", "assign_primary_ip", assignPrimaryIP),
	actionCall(&primaryIPs, "unassign", "unassign_primary_ip", func(
		ctx context.Context, r *dialect.Request, a *api.ReservedAddress, _ struct{},
	) (references, error) {
		return nil, unassignIP(ctx, r, a)
	}),
}

func isOfBalancer(a api.ReservedAddress) bool {
	return api.ValueOf(a.Holder).Kind == api.HolderLoadBalancer
}

func listPrimaryIPs(ctx context.Context, r *dialect.Request, name string) ([]api.ReservedAddress, error) {
	found, err := r.ListAddresses(ctx, client.AddressFilter{Name: name})
	if err != nil {
		return nil, err
	}
	records, err := listRecords(ctx, r, onePrimaryIP)
	for _, d := range records {
		found = append(found, toIPv6(d))
	}
	query := r.HTTP.URL.Query()
	return slices.DeleteFunc(found, func(a api.ReservedAddress) bool {
		return isOfBalancer(a) || query.Has("ip") && a.IP != query.Get("ip")
	}), err
}

func readPrimaryIP(ctx context.Context, r *dialect.Request, serial int64) (*api.ReservedAddress, error) {
	id, err := r.Cloud.ResourceID(ctx, r.Project, api.ResourceAddress, serial)
	if err == nil && id != "" {
		a, err := r.GetAddress(ctx, id)
		if err == nil && isOfBalancer(*a) {
			err = dialect.NotFound("primary IP with ID %d not found", serial)
		}
		return a, err
	}
	if id, err = r.ResourceID(ctx, api.ResourceDialectRecord, serial); err != nil {
		return nil, err
	}
	d, err := getRecord(ctx, r, onePrimaryIP, id)
	return new(toIPv6(*d)), err
}

func updatePrimaryIP(
	r *dialect.Request,
	ctx context.Context,
	id string,
	u api.ResourceUpdate,
) (*api.ReservedAddress, error) {
	if !isRecord(id) {
		return r.UpdateAddress(ctx, id, u)
	}
	d, err := updateRecord(ctx, r, onePrimaryIP, id, u)
	return new(toIPv6(*d)), err
}

// isRecord tells whether an ID is that of a record.
func isRecord(id string) bool { return strings.HasPrefix(id, "dr-") }

// toIPv6 shows a record as the address that it is.
func toIPv6(d cloud.DialectRecord) api.ReservedAddress {
	return api.ReservedAddress{Metadata: d.Metadata, IP: recordedIPv6(d.Serial).String()}
}

// assigneeOf gives the number of the server that has an address; 0 if none has.
func assigneeOf(ctx context.Context, r *dialect.Request, a *api.ReservedAddress) (int64, error) {
	record, err := readRecord[ipRecord](a.Records)
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
	kind, called string,
	labels *map[string]string,
	record ipRecord,
) (*api.ReservedAddress, error) {
	if err := checkLabels(api.ValueOf(labels)); err != nil {
		return nil, err
	}
	switch kind {
	case "ipv4":
		a := api.ReservedAddressCreate{Tags: (*api.Tags)(labels), Records: dialect.WithRecord(name, nil, record)}
		if called != "" {
			a.Name = &called
		}
		return r.ReserveAddress(ctx, a)
	case "ipv6":
		d, err := createRecord(ctx, r, onePrimaryIP, cmp.Or(called, dialect.NewName("address-")), labels, record)
		if err != nil {
			return nil, err
		}
		return new(toIPv6(*d)), nil
	}
	return nil, dialect.Invalid("type", "must be ipv4 or ipv6")
}

func releaseIP(ctx context.Context, r *dialect.Request, a *api.ReservedAddress) error {
	if isRecord(a.ID) {
		return r.Cloud.DialectRecords.Delete(ctx, r.Project, a.ID)
	}
	return r.ReleaseAddress(ctx, a.ID)
}

// assignIP gives an address to a server.
func assignIP(ctx context.Context, r *dialect.Request, a *api.ReservedAddress, server int64) error {
	in, err := servers.readSerial(ctx, r, server)
	switch {
	case err != nil:
		return err
	case isRecord(a.ID):
		return recordAssignee(ctx, r, a, server)
	}
	_, err = r.AttachAddress(ctx, a.ID, api.AddressAttach{InstanceID: in.ID})
	return err
}

func unassignIP(ctx context.Context, r *dialect.Request, a *api.ReservedAddress) error {
	if isRecord(a.ID) {
		return recordAssignee(ctx, r, a, 0)
	}
	_, err := r.DetachAddress(ctx, a.ID)
	return err
}

func recordAssignee(ctx context.Context, r *dialect.Request, a *api.ReservedAddress, server int64) error {
	return changeRecord(ctx, r, &primaryIPs, a, func(record *ipRecord) error {
		record.Assignee = server
		return nil
	})
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

// primaryIP is one with the deprecated field that other clients than Go's read.
type primaryIP struct {
	schema.PrimaryIP
	Datacenter schema.Datacenter `json:"datacenter"`
}

func toPrimaryIP(ctx context.Context, r *dialect.Request, a *api.ReservedAddress) (primaryIP, error) {
	record, err := readRecord[ipRecord](a.Records)
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
	schema.PrimaryIPCreateRequest
	Datacenter string `json:"datacenter"`
}

func createPrimaryIP(ctx context.Context, r *dialect.Request, q primaryIPRequest) (any, error) {
	if q.Name == "" {
		return nil, dialect.Invalid("name", "must be given")
	}
	zone, err := zoneOf(r, q.Location, q.Datacenter)
	if err != nil {
		return nil, err
	}
	record := ipRecord{AutoDelete: api.ValueOf(q.AutoDelete), Location: zone}
	a, err := reserveIP(ctx, r, q.Type, q.Name, q.Labels, record)
	if err == nil && q.AssigneeID != nil {
		if err = assignIP(ctx, r, a, *q.AssigneeID); err == nil {
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
	action, err := primaryIPs.recordAction(ctx, r, "create_primary_ip", "", a)
	return map[string]any{"primary_ip": shown, "action": action}, err
}

func assignPrimaryIP(
	ctx context.Context,
	r *dialect.Request,
	a *api.ReservedAddress,
	q schema.PrimaryIPActionAssignRequest,
) (references, error) {
	assignee, err := assigneeOf(ctx, r, a)
	switch {
	case err != nil:
		return nil, err
	case assignee != 0:
		return nil, &cloud.Error{Code: "primary_ip_assigned", Message: "primary IP is already assigned"}
	}
	return nil, assignIP(ctx, r, a, q.AssigneeID)
}
