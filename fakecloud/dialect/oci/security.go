package oci

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dialect"
)

// Security lists and network security groups are records of firewalls that have no instances. A network's one
// security list has a firewall from its first change on.

const (
	securityLists  = corePath + "/securityLists"
	securityGroups = corePath + "/networkSecurityGroups"
)

var securityCalls = []dialect.Call{
	handleFirewall(http.MethodGet, securityLists+"/{id}", readSecurityList),
	handleFirewall(http.MethodPut, securityLists+"/{id}", updateSecurityList),
	list(securityGroups, []string{"compartmentId", "displayName", "vcnId", "sortBy", "sortOrder"}, listSecurityGroups),
	handleFirewall(http.MethodPost, securityGroups, createSecurityGroup),
	handleFirewall(http.MethodGet, securityGroups+"/{id}", getSecurityGroup),
	handleFirewall(http.MethodPut, securityGroups+"/{id}", updateSecurityGroup),
	dialect.Handle(http.MethodDelete, securityGroups+"/{id}", nil, deleteSecurityGroup).Answers(http.StatusNoContent),
	list(securityGroups+"/{id}/securityRules", []string{"direction"}, listSecurityRules),
	dialect.Handle(http.MethodPost, securityGroups+"/{id}/actions/addSecurityRules", nil, addSecurityRules),
	dialect.Handle(
		http.MethodPost, securityGroups+"/{id}/actions/removeSecurityRules", nil, removeSecurityRules,
	).Answers(http.StatusNoContent),
}

// handleFirewall makes a call that answers with a security list or a network security group, and with its etag.
func handleFirewall[B any](method, path string, do dialect.Handler[B, *firewall]) dialect.Call {
	handle := func(ctx context.Context, r *dialect.Request, body B) (*dialect.Answer, error) {
		f, err := do(ctx, r, body)
		if err != nil {
			return nil, err
		}
		return &dialect.Answer{Header: http.Header{"Etag": {f.etag()}}, Body: f.show(r)}, nil
	}
	return dialect.Handle(method, path, nil, handle)
}

var securityGroupKind = newKind("networksecuritygroup", "network security group", api.ResourceFirewall)

// securityRule is a rule of a security list, or of a network security group, whose rules alone have the first four
// fields.
type securityRule struct {
	ID              string           `json:"id,omitempty"`
	Direction       string           `json:"direction,omitempty"`
	IsValid         *bool            `json:"isValid,omitempty"`
	TimeCreated     *time.Time       `json:"timeCreated,omitempty"`
	Protocol        string           `json:"protocol"` // an IANA number, or "all"
	Source          *string          `json:"source,omitempty"`
	SourceType      *string          `json:"sourceType,omitempty"`
	Destination     *string          `json:"destination,omitempty"`
	DestinationType *string          `json:"destinationType,omitempty"`
	IsStateless     *bool            `json:"isStateless,omitempty"`
	TCPOptions      *portOptions     `json:"tcpOptions,omitempty"`
	UDPOptions      *portOptions     `json:"udpOptions,omitempty"`
	ICMPOptions     *json.RawMessage `json:"icmpOptions,omitempty"`
	Description     *string          `json:"description,omitempty"`
}

type portOptions struct {
	DestinationPortRange *portRange `json:"destinationPortRange,omitempty"`
	SourcePortRange      *portRange `json:"sourcePortRange,omitempty"`
}

type portRange struct {
	Min int `json:"min"`
	Max int `json:"max"`
}

// check refuses a rule that OCI would not take for its direction, and fills in the type of its peer.
func (s *securityRule) check(direction string) error {
	peer, kind, what := &s.Source, &s.SourceType, "source"
	if direction == egress {
		peer, kind, what = &s.Destination, &s.DestinationType, "destination"
	}
	if *kind == nil {
		*kind = new("CIDR_BLOCK")
	}
	if *peer == nil {
		return dialect.Invalid(what, "of a security rule must be given")
	}
	if _, err := netip.ParsePrefix(**peer); err != nil && **kind == "CIDR_BLOCK" {
		return dialect.Invalid(what, "%q is no CIDR block", **peer)
	}
	if number, err := strconv.Atoi(s.Protocol); s.Protocol != "all" && (err != nil || number < 0 || number > 255) {
		return dialect.Invalid("protocol", "%q is no number of a protocol, and not \"all\"", s.Protocol)
	}
	for _, options := range []*portOptions{s.TCPOptions, s.UDPOptions} {
		if options == nil {
			continue
		}
		for _, ports := range []*portRange{options.DestinationPortRange, options.SourcePortRange} {
			if ports != nil && (ports.Min < 1 || ports.Max > 65535 || ports.Min > ports.Max) {
				return dialect.Invalid("ports", "%d to %d are no range of them", ports.Min, ports.Max)
			}
		}
	}
	return nil
}

const (
	ingress = "INGRESS"
	egress  = "EGRESS"
)

// firewallRecord is what a firewall is here: the security list of a network, or a network security group. Its form
// is kept with the firewall, so that fields are only ever added.
type firewallRecord struct {
	Version int          `json:"version"`
	List    *listRecord  `json:"list,omitempty"`
	Group   *groupRecord `json:"group,omitempty"`
}

type listRecord struct {
	Ingress []securityRule `json:"ingress"`
	Egress  []securityRule `json:"egress"`
}

type groupRecord struct {
	Name  string `json:"name"`
	VcnID string `json:"vcnId"`
	tags
	Asked    string         `json:"asked"` // a hash of the request that made the group
	Rules    []securityRule `json:"rules"`
	LastRule int            `json:"lastRule"`
}

// firewall is a firewall as both sides see it. A security list that was never changed has no ID and version 0.
type firewall struct {
	*api.Firewall
	firewallRecord
	network *api.Network // of a security list
}

func toFirewall(native *api.Firewall) (*firewall, error) {
	f := &firewall{Firewall: native}
	return f, dialect.ReadRecord(name, native.Records, &f.firewallRecord)
}

func (f *firewall) etag() string { return strconv.FormatInt(f.Firewall.Version, 10) }

// checkEtag refuses a change of another version than the one that was read.
func (f *firewall) checkEtag(r *dialect.Request) error {
	if wanted := r.HTTP.Header.Get("If-Match"); wanted != "" && wanted != "*" && wanted != f.etag() {
		message := fmt.Sprintf("the etag is %s, and not %s: read it again", f.etag(), wanted)
		return &cloud.Error{Code: cloud.PreconditionFailed, Message: message}
	}
	return nil
}

// save has this cloud know what the firewall is now, if it is still of the version that was read. Who made it first
// meanwhile came before.
func (f *firewall) save(ctx context.Context, r *dialect.Request) error {
	if err := f.checkEtag(r); err != nil {
		return err
	}
	f.Version = recordVersion
	records := dialect.WithRecord(name, f.Records, f.firewallRecord)
	var saved *api.Firewall
	var err error
	if f.ID == "" {
		saved, err = r.CreateFirewall(ctx, api.FirewallCreate{Name: &f.Name, Records: records})
	} else {
		matching := client.IfMatch(ctx, f.Firewall.Version)
		saved, err = r.UpdateFirewall(matching, f.ID, api.FirewallUpdate{Records: records})
	}
	switch {
	case client.HasCode(err, api.ProblemCode(cloud.NameTaken)):
		return &cloud.Error{Code: cloud.PreconditionFailed, Message: "it was created meanwhile: read it again"}
	case err == nil:
		f.Firewall = saved
	}
	return err
}

type securityList struct {
	resource
	VcnID   string         `json:"vcnId"`
	Ingress []securityRule `json:"ingressSecurityRules"`
	Egress  []securityRule `json:"egressSecurityRules"`
}

type securityGroup struct {
	resource
	VcnID string `json:"vcnId"`
}

// show gives the security list or the network security group.
func (f *firewall) show(r *dialect.Request) any {
	if n := f.network; n != nil {
		id, called := securityListKind.Write(n.Serial), "Default Security List for "+n.Name
		return securityList{
			newResource(r, id, called, available, n.CreatedAt, tags{}), vcnKind.Write(n.Serial), f.List.Ingress, f.List.Egress,
		}
	}
	return f.showGroup(r)
}

func (f *firewall) showGroup(r *dialect.Request) securityGroup {
	id := securityGroupKind.Write(f.Serial)
	return securityGroup{newResource(r, id, f.Group.Name, available, f.CreatedAt, f.Group.tags), f.Group.VcnID}
}

// defaultRules are those of a VCN's default security list, with the CIDR block of the VCN left out: SSH and what
// tells of lost packets come in, and all goes out. See "Default Security List" in OCI's documentation.
const defaultRules = `{
	"ingress": [
		{"protocol": "6", "source": "0.0.0.0/0", "sourceType": "CIDR_BLOCK", "isStateless": false,
			"tcpOptions": {"destinationPortRange": {"min": 22, "max": 22}}},
		{"protocol": "1", "source": "0.0.0.0/0", "sourceType": "CIDR_BLOCK", "isStateless": false,
			"icmpOptions": {"type": 3, "code": 4}},
		{"protocol": "1", "source": %q, "sourceType": "CIDR_BLOCK", "isStateless": false, "icmpOptions": {"type": 3}}
	],
	"egress": [
		{"protocol": "all", "destination": "0.0.0.0/0", "destinationType": "CIDR_BLOCK", "isStateless": false}
	]
}`

// readSecurityList reads the security list in the call's path.
func readSecurityList(ctx context.Context, r *dialect.Request, _ struct{}) (*firewall, error) {
	n, err := dialect.Find(ctx, r, securityListKind, dialect.InPath(r), r.GetNetwork)
	if err != nil {
		return nil, err
	}
	f := &firewall{Firewall: &api.Firewall{Metadata: api.Metadata{Name: "oci-security-list-" + n.ID}}}
	found, err := r.ListFirewalls(ctx, client.FirewallFilter{Name: f.Name})
	if err == nil && len(found) > 0 {
		f, err = toFirewall(&found[0])
	}
	if err == nil && f.List == nil {
		err = json.Unmarshal(fmt.Appendf(nil, defaultRules, n.Cidr), &f.List)
	}
	f.network = n
	return f, err
}

func updateSecurityList(ctx context.Context, r *dialect.Request, q struct {
	Ingress []securityRule `json:"ingressSecurityRules"`
	Egress  []securityRule `json:"egressSecurityRules"`
}) (*firewall, error) {
	f, err := readSecurityList(ctx, r, struct{}{})
	if err != nil {
		return nil, err
	}
	for i := range q.Ingress {
		err = errors.Join(err, q.Ingress[i].check(ingress))
	}
	for i := range q.Egress {
		err = errors.Join(err, q.Egress[i].check(egress))
	}
	if err != nil {
		return nil, err
	}
	dialect.Overlay(f.List, listRecord{q.Ingress, q.Egress})
	return f, f.save(ctx, r)
}

// readSecurityGroup reads the group that has an OCID.
func readSecurityGroup(ctx context.Context, r *dialect.Request, ocid string) (*firewall, error) {
	native, err := dialect.Find(ctx, r, securityGroupKind, ocid, r.GetFirewall)
	if err != nil {
		return nil, err
	}
	f, err := toFirewall(native)
	if err == nil && f.Group == nil {
		err = securityGroupKind.NotFound(ocid)
	}
	return f, err
}

func listSecurityGroups(ctx context.Context, r *dialect.Request) (all []securityGroup, err error) {
	found, err := r.ListFirewalls(ctx, client.FirewallFilter{})
	if err != nil {
		return nil, err
	}
	query := r.HTTP.URL.Query()
	matches := func(has, parameter string) bool { return cmp.Or(query.Get(parameter), has) == has }
	for i := range found {
		f, err := toFirewall(&found[i])
		if err != nil {
			return nil, err
		}
		if f.Group != nil && matches(f.Group.Name, "displayName") && matches(f.Group.VcnID, "vcnId") {
			all = append(all, f.showGroup(r))
		}
	}
	if query.Get("sortOrder") == "DESC" { // They are in order of their creation.
		slices.Reverse(all)
	}
	return all, nil
}

// createSecurityGroup makes a group. Who sends a retry token again gets the one that was made for it.
func createSecurityGroup(ctx context.Context, r *dialect.Request, q struct {
	CompartmentID string `json:"compartmentId"`
	VcnID         string `json:"vcnId"`
	DisplayName   string `json:"displayName"`
	tags
}) (*firewall, error) {
	if err := checkCompartment(r, q.CompartmentID); err != nil {
		return nil, err
	}
	if _, err := vcnKind.NativeID(ctx, r, q.VcnID); err != nil {
		return nil, dialect.Invalid("vcnId", "%q is none", q.VcnID)
	}
	f := &firewall{Firewall: &api.Firewall{Metadata: api.Metadata{Name: nativeName(r, "oci-nsg-")}}}
	f.Group = &groupRecord{Name: q.DisplayName, VcnID: q.VcnID, tags: q.tags, Asked: hash(q)}
	refused := f.save(ctx, r)
	if refused == nil {
		return f, nil
	}
	found, err := r.ListFirewalls(ctx, client.FirewallFilter{Name: f.Name})
	if err != nil || len(found) == 0 {
		return nil, refused
	}
	made, err := toFirewall(&found[0])
	if err == nil && (made.Group == nil || made.Group.Asked != f.Group.Asked) {
		err = errTokenReused
	}
	return made, err
}

func getSecurityGroup(ctx context.Context, r *dialect.Request, _ struct{}) (*firewall, error) {
	return readSecurityGroup(ctx, r, dialect.InPath(r))
}

// changeSecurityGroup changes the group in the call's path, all of it or nothing.
func changeSecurityGroup(
	ctx context.Context,
	r *dialect.Request,
	change func(g *groupRecord) error,
) (*firewall, error) {
	return dialect.Change(
		func() (*firewall, error) { return getSecurityGroup(ctx, r, struct{}{}) },
		func(f *firewall) error { return change(f.Group) }, func(f *firewall) error { return f.save(ctx, r) },
	)
}

func updateSecurityGroup(ctx context.Context, r *dialect.Request, q struct {
	DisplayName *string `json:"displayName,omitempty"`
	tags
}) (*firewall, error) {
	return changeSecurityGroup(ctx, r, func(g *groupRecord) error {
		g.Name = cmp.Or(api.ValueOf(q.DisplayName), g.Name)
		dialect.Overlay(&g.tags, q.tags)
		return nil
	})
}

// deleteSecurityGroup deletes a group that no load balancer is in.
func deleteSecurityGroup(ctx context.Context, r *dialect.Request, _ struct{}) (any, error) {
	ocid := dialect.InPath(r)
	f, err := readSecurityGroup(ctx, r, ocid)
	if err != nil {
		return nil, err
	}
	if err := f.checkEtag(r); err != nil {
		return nil, err
	}
	for _, s := range []*service{lbService, nlbService} {
		all, err := s.listBalancers(ctx, r)
		if err != nil {
			return nil, err
		}
		for _, b := range all {
			if slices.Contains(b.rec.SecurityGroups, ocid) {
				return nil, &cloud.Error{Code: cloud.InUse, Message: s.kind.Write(b.Serial) + " is in the group"}
			}
		}
	}
	return nil, r.DeleteFirewall(ctx, f.ID)
}

func listSecurityRules(ctx context.Context, r *dialect.Request) (all []securityRule, err error) {
	f, err := getSecurityGroup(ctx, r, struct{}{})
	if err != nil {
		return nil, err
	}
	for _, rule := range f.Group.Rules {
		if wanted := r.HTTP.URL.Query().Get("direction"); wanted == "" || wanted == rule.Direction {
			all = append(all, rule)
		}
	}
	return all, nil
}

// maxRules is how many rules a network security group can have. See "Service Limits" in OCI's documentation.
const maxRules = 120

type securityRules struct {
	Rules []securityRule `json:"securityRules"`
}

func addSecurityRules(ctx context.Context, r *dialect.Request, q securityRules) (any, error) {
	_, err := changeSecurityGroup(ctx, r, func(g *groupRecord) error {
		for i := range q.Rules {
			rule := &q.Rules[i]
			if rule.Direction != ingress && rule.Direction != egress {
				return dialect.Invalid("direction", "%q is none: want %s or %s", rule.Direction, ingress, egress)
			}
			if err := rule.check(rule.Direction); err != nil {
				return err
			}
			g.LastRule++
			rule.ID, rule.IsValid, rule.TimeCreated = fmt.Sprintf("%06X", g.LastRule), new(true), new(r.Now())
		}
		g.Rules = append(g.Rules, q.Rules...)
		if len(g.Rules) > maxRules {
			return dialect.Invalid("securityRules", "would be %d in the group: at most %d are allowed", len(g.Rules), maxRules)
		}
		return nil
	})
	return q, err
}

func removeSecurityRules(ctx context.Context, r *dialect.Request, q struct {
	IDs []string `json:"securityRuleIds"`
}) (any, error) {
	_, err := changeSecurityGroup(ctx, r, func(g *groupRecord) error {
		for _, id := range q.IDs {
			at := slices.IndexFunc(g.Rules, func(rule securityRule) bool { return rule.ID == id })
			if at < 0 {
				return dialect.NotFound("security rule %q not found", id)
			}
			g.Rules = slices.Delete(g.Rules, at, at+1)
		}
		return nil
	})
	return nil, err
}

// maxGroups is how many groups a load balancer can be in.
const maxGroups = 5

// checkSecurityGroups refuses groups that there are not.
func checkSecurityGroups(ctx context.Context, r *dialect.Request, ocids []string) error {
	if len(ocids) > maxGroups {
		return dialect.Invalid("networkSecurityGroupIds", "are %d: %d are the most", len(ocids), maxGroups)
	}
	for _, ocid := range ocids {
		if _, err := readSecurityGroup(ctx, r, ocid); err != nil {
			return dialect.Invalid("networkSecurityGroupIds", "have %q, which is none", ocid)
		}
	}
	return nil
}

// changeSecurityGroups puts a balancer into the groups of a request, and out of others.
func (s *service) changeSecurityGroups(
	ctx context.Context,
	r *dialect.Request,
	q struct {
		IDs []string `json:"networkSecurityGroupIds"`
	},
) (*dialect.Answer, error) {
	if err := checkSecurityGroups(ctx, r, q.IDs); err != nil {
		return nil, err
	}
	return s.changeBalancer(ctx, r, func(b *balancer) error {
		b.rec.SecurityGroups = q.IDs
		return nil
	})
}
