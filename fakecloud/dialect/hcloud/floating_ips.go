package hcloud

import (
	"context"
	"net/http"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dialect"
)

const floatingIPOne = "floating_ip"

// floatingIPs are reserved addresses whose record says so.
var floatingIPs = ipCollection(floatingIPOne, toFloatingIP)

var floatingIPCalls = append(
	ipActions(&floatingIPs),
	dialect.Handle(http.MethodPost, floatingIPs.path(), nil, createFloatingIP).Answers(http.StatusCreated),
	floatingIPAction("assign", "assign_floating_ip", assignFloatingIP),
	floatingIPAction("unassign", "unassign_floating_ip", unassignFloatingIP),
)

func toFloatingIP(ctx context.Context, r *dialect.Request, a *api.ReservedAddress) (schema.FloatingIP, error) {
	record, err := ipRecordOf(a)
	if err != nil {
		return schema.FloatingIP{}, err
	}
	shown := schema.FloatingIP{
		ID: a.Serial, Name: a.Name, Description: &record.Description, Created: a.CreatedAt, IP: a.IP, Labels: a.Tags,
		Type: typeOfIP(a), DNSPtr: []schema.FloatingIPDNSPtr{}, HomeLocation: locationNamed(r, record.Location),
		Protection: schema.FloatingIPProtection{Delete: record.Protection.Delete},
	}
	for ip, to := range namesOf(a.IP, record.DNSPtr) {
		shown.DNSPtr = append(shown.DNSPtr, schema.FloatingIPDNSPtr{IP: ip, DNSPtr: to})
	}
	assignee, err := assigneeOf(ctx, r, a)
	if assignee != 0 {
		shown.Server = &assignee
	}
	return shown, err
}

type floatingIPRequest struct {
	Type         string             `json:"type"`
	HomeLocation *schema.IDOrName   `json:"home_location,omitempty"`
	Server       *int64             `json:"server,omitempty"`
	Description  string             `json:"description"`
	Labels       *map[string]string `json:"labels,omitempty"`
	Name         string             `json:"name"`
}

func createFloatingIP(ctx context.Context, r *dialect.Request, q floatingIPRequest) (any, error) {
	record := ipRecord{Floating: true, Description: q.Description}
	switch {
	case q.Server != nil:
		in, err := servers.readSerial(ctx, r, *q.Server)
		if err != nil {
			return nil, err
		}
		record.Location = in.Zone
	case q.HomeLocation == nil:
		return nil, dialect.Invalid("home_location", "or server must be given")
	}
	if q.HomeLocation != nil {
		l, err := findLocation(r, *q.HomeLocation, "home_location")
		if err != nil {
			return nil, err
		}
		record.Location = l
	}
	a, err := reserveIP(ctx, r, floatingIPs.one, q.Type, q.Name, q.Labels, record)
	if err != nil {
		return nil, err
	}
	answer := schema.FloatingIPCreateResponse{}
	if q.Server != nil {
		if err := assignIP(ctx, r, &floatingIPs, a, *q.Server); err != nil {
			return nil, err
		}
		action, err := recordAction(ctx, r, "assign_floating_ip", "", a.ID, floatingIPs.refer(a),
			schema.ActionResourceReference{ID: *q.Server, Type: servers.one})
		if err != nil {
			return nil, err
		}
		answer.Action = &action
		if a, err = floatingIPs.readSerial(ctx, r, a.Serial); err != nil {
			return nil, err
		}
	}
	answer.FloatingIP, err = toFloatingIP(ctx, r, a)
	return answer, err
}

type assignFloatingRequest struct {
	Server int64 `json:"server"`
}

func floatingIPAction(
	call, command string,
	do func(
		ctx context.Context, r *dialect.Request, a *api.ReservedAddress, q assignFloatingRequest,
	) (server int64, _ error),
) dialect.Call {
	path := floatingIPs.path() + "/{id}/actions/" + call
	act := func(ctx context.Context, r *dialect.Request, q assignFloatingRequest) (any, error) {
		a, err := floatingIPs.find(ctx, r, struct{}{})
		if err != nil {
			return nil, err
		}
		about := []schema.ActionResourceReference{floatingIPs.refer(a)}
		server, err := do(ctx, r, a, q)
		if err != nil {
			return nil, err
		}
		if server != 0 {
			about = append(about, schema.ActionResourceReference{ID: server, Type: servers.one})
		}
		action, err := recordAction(ctx, r, command, "", a.ID, about...)
		return schema.ActionGetResponse{Action: action}, err
	}
	return dialect.Handle(http.MethodPost, path, nil, act).Answers(http.StatusCreated)
}

func assignFloatingIP(
	ctx context.Context,
	r *dialect.Request,
	a *api.ReservedAddress,
	q assignFloatingRequest,
) (int64, error) {
	assignee, err := assigneeOf(ctx, r, a)
	switch {
	case err != nil:
		return 0, err
	case assignee == q.Server:
		return 0, &cloud.Error{Code: "floating_ip_assigned", Message: "floating IP is already assigned to this server"}
	}
	return q.Server, assignIP(ctx, r, &floatingIPs, a, q.Server)
}

func unassignFloatingIP(
	ctx context.Context,
	r *dialect.Request,
	a *api.ReservedAddress,
	_ assignFloatingRequest,
) (int64, error) {
	assignee, err := assigneeOf(ctx, r, a)
	if err == nil && assignee == 0 {
		err = dialect.Invalid("floating_ip", "is not assigned")
	}
	if err != nil {
		return 0, err
	}
	return assignee, unassignIP(ctx, r, &floatingIPs, a)
}
