package oci

import (
	"context"
	"encoding/json"
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

var securityCalls = []dialect.Call{
	dialect.Handle(http.MethodGet, corePath+"/securityLists/{id}", nil, getSecurityList),
	dialect.Handle(http.MethodPut, corePath+"/securityLists/{id}", nil, updateSecurityList),
	dialect.Handle(
		http.MethodGet, corePath+"/networkSecurityGroups", listBy("displayName", "vcnId", "sortBy", "sortOrder"),
		listSecurityGroups,
	),
	dialect.Handle(http.MethodPost, corePath+"/networkSecurityGroups", nil, createSecurityGroup),
	dialect.Handle(http.MethodGet, corePath+"/networkSecurityGroups/{id}", nil, getSecurityGroup),
	dialect.Handle(http.MethodPut, corePath+"/networkSecurityGroups/{id}", nil, updateSecurityGroup),
	dialect.Handle(http.MethodDelete, corePath+"/networkSecurityGroups/{id}", nil, deleteSecurityGroup),
	dialect.Handle(
		http.MethodGet, corePath+"/networkSecurityGroups/{id}/securityRules", []string{"direction", "page", "limit"},
		listSecurityRules,
	),
	dialect.Handle(
		http.MethodPost, corePath+"/networkSecurityGroups/{id}/actions/addSecurityRules", nil, addSecurityRules,
	),
	dialect.Handle(
		http.MethodPost, corePath+"/networkSecurityGroups/{id}/actions/removeSecurityRules", nil, removeSecurityRules,
	),
	dialect.Handle(http.MethodPost, corePath+"/publicIps/actions/getByIpAddress", nil, getPublicIP),
}

var securityGroupKind = newKind("networksecuritygroup", "network security group", cloud.FirewallResource)

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

func checkRules(direction string, rules []securityRule) error {
	for i := range rules {
		if err := rules[i].check(direction); err != nil {
			return err
		}
	}
	return nil
}

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
	Name         string                    `json:"name"`
	VcnID        string                    `json:"vcnId"`
	FreeformTags map[string]string         `json:"freeformTags"`
	DefinedTags  map[string]map[string]any `json:"definedTags"`
	Rules        []securityRule            `json:"rules"`
	LastRule     int                       `json:"lastRule"`
}

// firewall is a firewall as both sides see it.
type firewall struct {
	*api.Firewall
	firewallRecord
}

func toFirewall(native *api.Firewall) (*firewall, error) {
	f := &firewall{Firewall: native}
	return f, dialect.ReadRecord(name, native.Records, &f.firewallRecord)
}

// etagOf is the entity tag of a version. A security list that was never changed has version 0.
func etagOf(version int64) string { return strconv.FormatInt(version, 10) }

func withEtag(answer *dialect.Answer, version int64) *dialect.Answer {
	answer.Header = http.Header{"Etag": {etagOf(version)}}
	return answer
}

// matchVersion has a change made of the version that the request names, or else of the one that was read.
func matchVersion(ctx context.Context, r *dialect.Request, version int64) (context.Context, error) {
	if wanted := r.HTTP.Header.Get("If-Match"); wanted != "" && wanted != "*" && wanted != etagOf(version) {
		return ctx, &cloud.Error{
			Code:    cloud.PreconditionFailed,
			Message: "the etag is " + etagOf(version) + ", and not " + wanted + ": read it again",
		}
	}
	return client.IfMatch(ctx, version), nil
}

type securityList struct {
	ID             string         `json:"id"`
	CompartmentID  string         `json:"compartmentId"`
	VcnID          string         `json:"vcnId"`
	DisplayName    string         `json:"displayName"`
	Ingress        []securityRule `json:"ingressSecurityRules"`
	Egress         []securityRule `json:"egressSecurityRules"`
	LifecycleState string         `json:"lifecycleState"`
	TimeCreated    time.Time      `json:"timeCreated"`
	tags
}

// defaultRules are those of a VCN's default security list: SSH and what tells of lost packets come in, and all goes
// out. See "Default Security List" in OCI's documentation.
func defaultRules(cidr string) *listRecord {
	raw := json.RawMessage(`{"type":3,"code":4}`)
	ssh := &portOptions{DestinationPortRange: &portRange{22, 22}}
	rule := func(protocol, peer string) securityRule {
		return securityRule{Protocol: protocol, Source: &peer, IsStateless: new(false)}
	}
	list := &listRecord{
		Ingress: []securityRule{rule("6", "0.0.0.0/0"), rule("1", "0.0.0.0/0"), rule("1", cidr)},
		Egress:  []securityRule{{Protocol: "all", Destination: new("0.0.0.0/0"), IsStateless: new(false)}},
	}
	list.Ingress[0].TCPOptions, list.Ingress[1].ICMPOptions = ssh, &raw
	for i := range list.Ingress {
		_ = list.Ingress[i].check(ingress)
	}
	_ = list.Egress[0].check(egress)
	return list
}

// readSecurityList reads the network of the security list in the call's path, and its firewall, which has no ID
// while the list was never changed.
func readSecurityList(ctx context.Context, r *dialect.Request) (*api.Network, *firewall, error) {
	id, err := securityListKind.NativeID(ctx, r, dialect.InPath(r))
	if err != nil {
		return nil, nil, err
	}
	n, err := r.GetNetwork(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	f := &firewall{Firewall: &api.Firewall{Name: "oci-security-list-" + n.ID}}
	found, err := r.ListFirewalls(ctx, client.FirewallFilter{Name: f.Name})
	if err == nil && len(found) > 0 {
		f, err = toFirewall(&found[0])
	}
	if f.List == nil {
		f.List = defaultRules(n.Cidr)
	}
	return n, f, err
}

func answerSecurityList(r *dialect.Request, n *api.Network, f *firewall) *dialect.Answer {
	return withEtag(dialect.OK(securityList{
		ID: securityListKind.Write(n.Serial), CompartmentID: compartmentOf(r), VcnID: vcnKind.Write(n.Serial),
		DisplayName: "Default Security List for " + n.Name, Ingress: f.List.Ingress, Egress: f.List.Egress,
		LifecycleState: "AVAILABLE", TimeCreated: n.CreatedAt, tags: newTags(nil),
	}), f.Firewall.Version)
}

func getSecurityList(ctx context.Context, r *dialect.Request, _ struct{}) (*dialect.Answer, error) {
	n, f, err := readSecurityList(ctx, r)
	if err != nil {
		return nil, err
	}
	return answerSecurityList(r, n, f), nil
}

func updateSecurityList(ctx context.Context, r *dialect.Request, q struct {
	Ingress *[]securityRule `json:"ingressSecurityRules,omitempty"`
	Egress  *[]securityRule `json:"egressSecurityRules,omitempty"`
}) (*dialect.Answer, error) {
	n, f, err := readSecurityList(ctx, r)
	if err != nil {
		return nil, err
	}
	if q.Ingress != nil {
		f.List.Ingress, err = *q.Ingress, checkRules(ingress, *q.Ingress)
	}
	if q.Egress != nil && err == nil {
		f.List.Egress, err = *q.Egress, checkRules(egress, *q.Egress)
	}
	if err == nil {
		err = f.save(ctx, r)
	}
	if err != nil {
		return nil, err
	}
	return answerSecurityList(r, n, f), nil
}

// save has this cloud know what the firewall is now, if it is still of the version that was read. Who made it first
// meanwhile came before.
func (f *firewall) save(ctx context.Context, r *dialect.Request) error {
	matching, err := matchVersion(ctx, r, f.Firewall.Version)
	if err != nil {
		return err
	}
	f.firewallRecord.Version = recordVersion
	records := dialect.WithRecord(name, f.Records, f.firewallRecord)
	if f.ID != "" {
		saved, err := r.UpdateFirewall(matching, f.ID, api.FirewallUpdate{Records: records})
		if err == nil {
			f.Firewall = saved
		}
		return err
	}
	made, err := r.CreateFirewall(ctx, api.FirewallCreate{Name: &f.Name, Records: records})
	if client.HasCode(err, api.ProblemCode(cloud.NameTaken)) {
		return &cloud.Error{Code: cloud.PreconditionFailed, Message: "the security list was changed meanwhile: read it again"}
	}
	if err == nil {
		f.Firewall = made
	}
	return err
}

type securityGroup struct {
	ID             string    `json:"id"`
	CompartmentID  string    `json:"compartmentId"`
	VcnID          string    `json:"vcnId"`
	DisplayName    string    `json:"displayName"`
	LifecycleState string    `json:"lifecycleState"`
	TimeCreated    time.Time `json:"timeCreated"`
	tags
}

func toSecurityGroup(r *dialect.Request, f *firewall) securityGroup {
	g := securityGroup{
		ID: securityGroupKind.Write(f.Serial), CompartmentID: compartmentOf(r), VcnID: f.Group.VcnID,
		DisplayName: f.Group.Name, LifecycleState: "AVAILABLE", TimeCreated: f.CreatedAt,
		tags: newTags(f.Group.FreeformTags),
	}
	if f.Group.DefinedTags != nil {
		g.DefinedTags = f.Group.DefinedTags
	}
	return g
}

// readSecurityGroup reads the group that has an OCID.
func readSecurityGroup(ctx context.Context, r *dialect.Request, ocid string) (*firewall, error) {
	id, err := securityGroupKind.NativeID(ctx, r, ocid)
	if err != nil {
		return nil, err
	}
	native, err := r.GetFirewall(ctx, id)
	if err != nil {
		return nil, err
	}
	f, err := toFirewall(native)
	if err == nil && f.Group == nil {
		err = securityGroupKind.NotFound(ocid)
	}
	return f, err
}

func listSecurityGroups(ctx context.Context, r *dialect.Request, _ struct{}) (*dialect.Answer, error) {
	query := r.HTTP.URL.Query()
	if err := checkCompartment(r, query.Get("compartmentId")); err != nil {
		return nil, err
	}
	found, err := r.ListFirewalls(ctx, client.FirewallFilter{})
	if err != nil {
		return nil, err
	}
	matches := func(has, wanted string) bool { return wanted == "" || has == wanted }
	var all []securityGroup
	for i := range found {
		f, err := toFirewall(&found[i])
		if err != nil {
			return nil, err
		}
		if f.Group != nil && matches(f.Group.Name, query.Get("displayName")) && matches(f.Group.VcnID, query.Get("vcnId")) {
			all = append(all, toSecurityGroup(r, f))
		}
	}
	if query.Get("sortOrder") == "DESC" { // They are in order of their creation.
		slices.Reverse(all)
	}
	return answerList(r, all, asArray)
}

func createSecurityGroup(ctx context.Context, r *dialect.Request, q struct {
	CompartmentID string                    `json:"compartmentId"`
	VcnID         string                    `json:"vcnId"`
	DisplayName   string                    `json:"displayName"`
	FreeformTags  map[string]string         `json:"freeformTags"`
	DefinedTags   map[string]map[string]any `json:"definedTags"`
}) (*dialect.Answer, error) {
	if err := checkCompartment(r, q.CompartmentID); err != nil {
		return nil, err
	}
	if _, err := vcnKind.NativeID(ctx, r, q.VcnID); err != nil {
		return nil, dialect.Invalid("vcnId", "%q is none", q.VcnID)
	}
	f := &firewall{Firewall: &api.Firewall{Name: dialect.NewName("oci-nsg-")}}
	f.Group = &groupRecord{Name: q.DisplayName, VcnID: q.VcnID, FreeformTags: q.FreeformTags, DefinedTags: q.DefinedTags}
	if err := f.save(ctx, r); err != nil {
		return nil, err
	}
	return withEtag(dialect.OK(toSecurityGroup(r, f)), f.Firewall.Version), nil
}

func getSecurityGroup(ctx context.Context, r *dialect.Request, _ struct{}) (*dialect.Answer, error) {
	f, err := readSecurityGroup(ctx, r, dialect.InPath(r))
	if err != nil {
		return nil, err
	}
	return withEtag(dialect.OK(toSecurityGroup(r, f)), f.Firewall.Version), nil
}

// changeSecurityGroup changes the group in the call's path, all of it or nothing.
func changeSecurityGroup(ctx context.Context, r *dialect.Request, change func(f *firewall) error) (*firewall, error) {
	return dialect.Retry(func() (*firewall, error) {
		f, err := readSecurityGroup(ctx, r, dialect.InPath(r))
		if err == nil {
			err = change(f)
		}
		if err == nil {
			err = f.save(ctx, r)
		}
		return f, err
	})
}

func updateSecurityGroup(ctx context.Context, r *dialect.Request, q struct {
	DisplayName  *string                   `json:"displayName,omitempty"`
	FreeformTags map[string]string         `json:"freeformTags"`
	DefinedTags  map[string]map[string]any `json:"definedTags"`
}) (*dialect.Answer, error) {
	f, err := changeSecurityGroup(ctx, r, func(f *firewall) error {
		if q.DisplayName != nil {
			f.Group.Name = *q.DisplayName
		}
		if q.FreeformTags != nil {
			f.Group.FreeformTags = q.FreeformTags
		}
		if q.DefinedTags != nil {
			f.Group.DefinedTags = q.DefinedTags
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return withEtag(dialect.OK(toSecurityGroup(r, f)), f.Firewall.Version), nil
}

// deleteSecurityGroup deletes a group that no load balancer is in.
func deleteSecurityGroup(ctx context.Context, r *dialect.Request, _ struct{}) (*dialect.Answer, error) {
	ocid := dialect.InPath(r)
	f, err := readSecurityGroup(ctx, r, ocid)
	if err != nil {
		return nil, err
	}
	if _, err = matchVersion(ctx, r, f.Firewall.Version); err != nil {
		return nil, err
	}
	for _, s := range []*service{lbService, nlbService} {
		all, err := s.listBalancers(ctx, r, "")
		if err != nil {
			return nil, err
		}
		for _, b := range all {
			if slices.Contains(b.rec.SecurityGroups, ocid) {
				return nil, &cloud.Error{Code: cloud.InUse, Message: s.kind.Write(b.Serial) + " is in the group"}
			}
		}
	}
	return &dialect.Answer{Status: http.StatusNoContent}, r.DeleteFirewall(ctx, f.ID)
}

func listSecurityRules(ctx context.Context, r *dialect.Request, _ struct{}) (*dialect.Answer, error) {
	f, err := readSecurityGroup(ctx, r, dialect.InPath(r))
	if err != nil {
		return nil, err
	}
	var all []securityRule
	for _, rule := range f.Group.Rules {
		if wanted := r.HTTP.URL.Query().Get("direction"); wanted == "" || wanted == rule.Direction {
			all = append(all, rule)
		}
	}
	return answerList(r, all, asArray)
}

// maxRules is how many rules a network security group can have. See "Service Limits" in OCI's documentation.
const maxRules = 120

type securityRules struct {
	Rules []securityRule `json:"securityRules"`
}

func addSecurityRules(ctx context.Context, r *dialect.Request, q securityRules) (*dialect.Answer, error) {
	var added []securityRule
	_, err := changeSecurityGroup(ctx, r, func(f *firewall) error {
		added = slices.Clone(q.Rules)
		for i := range added {
			if d := added[i].Direction; d != ingress && d != egress {
				return dialect.Invalid("direction", "%q is none: want INGRESS or EGRESS", d)
			}
			if err := added[i].check(added[i].Direction); err != nil {
				return err
			}
			f.Group.LastRule++
			// At Oracle it is six characters of hexadecimal digits, within the group.
			added[i].ID, added[i].IsValid, added[i].TimeCreated = ruleID(f.Group.LastRule), new(true), new(r.Now())
		}
		f.Group.Rules = append(f.Group.Rules, added...)
		if len(f.Group.Rules) > maxRules {
			return dialect.Invalid("securityRules", "would be %d of the group: %d are the most", len(f.Group.Rules), maxRules)
		}
		return nil
	})
	return dialect.OK(securityRules{added}), err
}

func ruleID(number int) string {
	digits := strconv.FormatInt(int64(number), 16)
	return "000000"[:max(6-len(digits), 0)] + digits
}

func removeSecurityRules(ctx context.Context, r *dialect.Request, q struct {
	IDs []string `json:"securityRuleIds"`
}) (*dialect.Answer, error) {
	_, err := changeSecurityGroup(ctx, r, func(f *firewall) error {
		for _, id := range q.IDs {
			at := slices.IndexFunc(f.Group.Rules, func(rule securityRule) bool { return rule.ID == id })
			if at < 0 {
				return dialect.NotFound("security rule %q not found", id)
			}
			f.Group.Rules = slices.Delete(f.Group.Rules, at, at+1)
		}
		return nil
	})
	return &dialect.Answer{Status: http.StatusNoContent}, err
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
	request, err := s.changeBalancer(ctx, r, func(b *balancer) error {
		b.rec.SecurityGroups = q.IDs
		return nil
	})
	return answerAccepted(s.accepted, request, nil), err
}

type publicIP struct {
	ID             string    `json:"id"`
	CompartmentID  string    `json:"compartmentId"`
	DisplayName    string    `json:"displayName"`
	IPAddress      string    `json:"ipAddress"`
	LifecycleState string    `json:"lifecycleState"`
	Lifetime       string    `json:"lifetime"`
	Scope          string    `json:"scope"`
	TimeCreated    time.Time `json:"timeCreated"`
	tags
}

// getPublicIP answers with the reserved address of an IP address.
func getPublicIP(ctx context.Context, r *dialect.Request, q struct {
	IPAddress string `json:"ipAddress"`
}) (*dialect.Answer, error) {
	all, err := r.ListAddresses(ctx, client.AddressFilter{})
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(all, func(a api.ReservedAddress) bool { return a.IP == q.IPAddress })
	if at < 0 {
		return nil, dialect.NotFound("public IP %q not found", q.IPAddress)
	}
	a := all[at]
	out := publicIP{
		ID: publicIPKind.Write(a.Serial), CompartmentID: compartmentOf(r), DisplayName: a.Name, IPAddress: a.IP,
		LifecycleState: "AVAILABLE", Lifetime: "RESERVED", Scope: "REGION", TimeCreated: a.CreatedAt, tags: newTags(a.Tags),
	}
	if a.Holder != nil {
		out.LifecycleState = "ASSIGNED"
	}
	return dialect.OK(out), nil
}
