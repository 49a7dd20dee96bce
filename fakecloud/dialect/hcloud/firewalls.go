package hcloud

import (
	"context"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dialect"
)

// firewallRecord is a firewall. Fields are only ever added.
type firewallRecord struct {
	Rules     []schema.FirewallRule     `json:"rules"`
	AppliedTo []schema.FirewallResource `json:"appliedTo"`
}

const (
	maxFirewallRules = 50
	maxFirewalls     = 5 // of a server
)

// firewalls filter nothing: Hetzner's are about public networks alone, and no traffic of those comes to servers here.
var firewalls = recordCollection("firewall", toFirewall)

var firewallCalls = []dialect.Call{
	dialect.Handle(http.MethodPost, firewalls.path(), nil, createFirewall).Answers(http.StatusCreated),
	deleteCall(&firewalls, checkFirewallUnused),
	firewallAction("set_rules", "set_firewall_rules", setFirewallRules),
	firewallAction("apply_to_resources", "apply_firewall", applyFirewall),
	firewallAction("remove_from_resources", "remove_firewall", removeFirewall),
}

// firewallAction makes the call of an action, which answers a list of actions.
func firewallAction[Q any](
	call, command string,
	change func(ctx context.Context, r *dialect.Request, f *firewallRecord, q Q) error,
) dialect.Call {
	path := firewalls.path() + "/{id}/actions/" + call
	return dialect.Handle(http.MethodPost, path, nil, func(ctx context.Context, r *dialect.Request, q Q) (any, error) {
		d, err := firewalls.find(ctx, r, struct{}{})
		if err == nil {
			err = changeRecord(ctx, r, &firewalls, d, func(f *firewallRecord) error { return change(ctx, r, f, q) })
		}
		if err != nil {
			return nil, err
		}
		action, err := recordAction(ctx, r, command, "", d.ID, firewalls.refer(d))
		return schema.FirewallActionSetRulesResponse{Actions: []schema.Action{action}}, err
	}).Answers(http.StatusCreated)
}

func toFirewall(ctx context.Context, r *dialect.Request, d *cloud.DialectRecord) (schema.Firewall, error) {
	var record firewallRecord
	f := schema.Firewall{
		ID: d.Serial, Name: d.Name, Labels: d.Tags, Created: d.CreatedAt, Rules: []schema.FirewallRule{},
		AppliedTo: []schema.FirewallResource{},
	}
	if err := dialect.ReadRecord(name, d.Records, &record); err != nil {
		return f, err
	}
	f.Rules = append(f.Rules, record.Rules...)
	for _, to := range record.AppliedTo {
		matched, err := serversOf(ctx, r, to)
		if err != nil {
			return f, err
		}
		switch {
		case to.Type == "label_selector":
			to.AppliedToResources = []schema.FirewallResource{}
			for _, serial := range matched {
				to.AppliedToResources = append(to.AppliedToResources, serverResource(serial))
			}
		case len(matched) == 0: // The server was deleted.
			continue
		}
		f.AppliedTo = append(f.AppliedTo, to)
	}
	return f, nil
}

func serverResource(serial int64) schema.FirewallResource {
	return schema.FirewallResource{Type: "server", Server: &schema.FirewallResourceServer{ID: serial}}
}

// serversOf gives the numbers of the servers that a firewall is applied to by one of its resources.
func serversOf(ctx context.Context, r *dialect.Request, to schema.FirewallResource) (all []int64, err error) {
	var selector selector
	if to.LabelSelector != nil {
		if selector, err = parseSelector(to.LabelSelector.Selector); err != nil {
			return nil, err
		}
	}
	instances, err := r.Instances(ctx)
	for _, in := range instances {
		if isThere(in) && (to.LabelSelector != nil && selector.matches(in.Tags) ||
			to.LabelSelector == nil && to.Server != nil && to.Server.ID == in.Serial) {
			all = append(all, in.Serial)
		}
	}
	slices.Sort(all)
	return all, err
}

// firewallsOf gives those that a server has.
func firewallsOf(ctx context.Context, r *dialect.Request, serial int64) ([]schema.ServerFirewall, error) {
	shown := []schema.ServerFirewall{}
	all, err := listRecords(ctx, r, firewalls.one)
	for _, d := range all {
		var record firewallRecord
		if err := dialect.ReadRecord(name, d.Records, &record); err != nil {
			return nil, err
		}
		for _, to := range record.AppliedTo {
			matched, err := serversOf(ctx, r, to)
			if err != nil {
				return nil, err
			}
			if slices.Contains(matched, serial) {
				shown = append(shown, schema.ServerFirewall{ID: d.Serial, Status: "applied"})
				break
			}
		}
	}
	return shown, err
}

type firewallRequest struct {
	Name    string                    `json:"name"`
	Labels  *map[string]string        `json:"labels,omitempty"`
	Rules   []schema.FirewallRule     `json:"rules,omitempty"`
	ApplyTo []schema.FirewallResource `json:"apply_to,omitempty"`
}

func createFirewall(ctx context.Context, r *dialect.Request, q firewallRequest) (any, error) {
	record := firewallRecord{Rules: []schema.FirewallRule{}, AppliedTo: []schema.FirewallResource{}}
	if err := setFirewallRules(ctx, r, &record, rulesRequest{q.Rules}); err != nil {
		return nil, err
	}
	if err := applyFirewall(ctx, r, &record, applyRequest{q.ApplyTo}); err != nil {
		return nil, err
	}
	d, err := createRecord(ctx, r, firewalls.one, q.Name, q.Labels, record)
	if err != nil {
		return nil, err
	}
	actions := []schema.Action{}
	for _, command := range []string{"set_firewall_rules", "apply_firewall"} {
		if command == "set_firewall_rules" && len(q.Rules) == 0 || command == "apply_firewall" && len(q.ApplyTo) == 0 {
			continue
		}
		a, err := recordAction(ctx, r, command, "", d.ID, firewalls.refer(d))
		if err != nil {
			return nil, err
		}
		actions = append(actions, a)
	}
	f, err := toFirewall(ctx, r, d)
	return schema.FirewallCreateResponse{Firewall: f, Actions: actions}, err
}

// checkFirewallUnused refuses to delete a firewall that is applied to something.
func checkFirewallUnused(ctx context.Context, r *dialect.Request, d *cloud.DialectRecord) error {
	f, err := toFirewall(ctx, r, d)
	if err == nil && len(f.AppliedTo) > 0 {
		err = &cloud.Error{
			Code: "resource_in_use", Message: "firewall with ID " + strconv.FormatInt(d.Serial, 10) + " is still in use",
		}
	}
	return err
}

type rulesRequest struct {
	Rules []schema.FirewallRule `json:"rules,omitempty"`
}

func setFirewallRules(_ context.Context, _ *dialect.Request, f *firewallRecord, q rulesRequest) error {
	if len(q.Rules) > maxFirewallRules {
		return dialect.Invalid("rules", "are more than %d", maxFirewallRules)
	}
	f.Rules = []schema.FirewallRule{}
	for _, rule := range q.Rules {
		if rule.SourceIPs == nil {
			rule.SourceIPs = []string{}
		}
		if rule.DestinationIPs == nil {
			rule.DestinationIPs = []string{}
		}
		if err := checkFirewallRule(rule); err != nil {
			return err
		}
		f.Rules = append(f.Rules, rule)
	}
	slices.SortStableFunc(f.Rules, func(a, b schema.FirewallRule) int { return strings.Compare(a.Direction, b.Direction) })
	return nil
}

func checkFirewallRule(rule schema.FirewallRule) error {
	ips, field := rule.SourceIPs, "rules.source_ips"
	if rule.Direction == "out" {
		ips, field = rule.DestinationIPs, "rules.destination_ips"
	}
	hasPorts := rule.Protocol == "tcp" || rule.Protocol == "udp"
	switch port := api.ValueOf(rule.Port); {
	case rule.Direction != "in" && rule.Direction != "out":
		return dialect.Invalid("rules.direction", "must be in or out")
	case !slices.Contains([]string{"tcp", "udp", "icmp", "esp", "gre"}, rule.Protocol):
		return dialect.Invalid("rules.protocol", "must be one of tcp, udp, icmp, esp, gre")
	case hasPorts && !isPortRange(port):
		return dialect.Invalid("rules.port", "must be a port, a range such as 80-85, or any")
	case !hasPorts && port != "":
		return dialect.Invalid("rules.port", "is of tcp and udp alone")
	case len(ips) == 0 || len(ips) > 100:
		return dialect.Invalid(field, "must have 1 to 100 ranges")
	}
	for _, ip := range slices.Concat(rule.SourceIPs, rule.DestinationIPs) {
		if p, err := netip.ParsePrefix(ip); err != nil || p != p.Masked() {
			return dialect.Invalid(field, "%q is no range in CIDR notation", ip)
		}
	}
	return nil
}

// isPortRange tells whether a text is a port, two with a hyphen between, or any.
func isPortRange(text string) bool {
	first, last, isRange := strings.Cut(text, "-")
	from, err := strconv.ParseUint(first, 10, 16)
	if !isRange {
		return text == "any" || err == nil && from > 0
	}
	to, errTo := strconv.ParseUint(last, 10, 16)
	return err == nil && errTo == nil && from > 0 && from <= to
}

type applyRequest struct {
	ApplyTo []schema.FirewallResource `json:"apply_to,omitempty"`
}

func applyFirewall(ctx context.Context, r *dialect.Request, f *firewallRecord, q applyRequest) error {
	for _, to := range q.ApplyTo {
		if err := checkFirewallResource(ctx, r, to); err != nil {
			return err
		}
		if slices.ContainsFunc(f.AppliedTo, isResource(to)) {
			return &cloud.Error{Code: "firewall_already_applied", Message: "firewall is already applied to the resource"}
		}
		to.AppliedToResources = nil
		f.AppliedTo = append(f.AppliedTo, to)
	}
	return nil
}

// checkFirewallResource refuses what no firewall can be applied to.
func checkFirewallResource(ctx context.Context, r *dialect.Request, to schema.FirewallResource) error {
	switch {
	case to.Type == "label_selector" && to.LabelSelector != nil && to.LabelSelector.Selector != "" && to.Server == nil:
		_, err := parseSelector(to.LabelSelector.Selector)
		return err
	case to.Type != "server" || to.Server == nil || to.LabelSelector != nil:
		return dialect.Invalid("type", "must be server or label_selector, with a field of that name")
	}
	matched, err := serversOf(ctx, r, to)
	switch {
	case err != nil:
		return err
	case len(matched) == 0:
		return &cloud.Error{Code: "firewall_resource_not_found", Message: "server not found"}
	}
	has, err := firewallsOf(ctx, r, to.Server.ID)
	if err == nil && len(has) >= maxFirewalls {
		err = &cloud.Error{Code: cloud.QuotaExceeded, Message: "server has the most firewalls that one can have"}
	}
	return err
}

// isResource tells which resource of a firewall's is another.
func isResource(wanted schema.FirewallResource) func(schema.FirewallResource) bool {
	return func(has schema.FirewallResource) bool {
		return has.Type == wanted.Type && api.ValueOf(has.Server) == api.ValueOf(wanted.Server) &&
			api.ValueOf(has.LabelSelector) == api.ValueOf(wanted.LabelSelector)
	}
}

type removeRequest struct {
	RemoveFrom []schema.FirewallResource `json:"remove_from,omitempty"`
}

func removeFirewall(_ context.Context, _ *dialect.Request, f *firewallRecord, q removeRequest) error {
	for _, from := range q.RemoveFrom {
		left := slices.DeleteFunc(slices.Clone(f.AppliedTo), isResource(from))
		if len(left) == len(f.AppliedTo) {
			return &cloud.Error{Code: "firewall_resource_not_found", Message: "firewall is not applied to the resource"}
		}
		f.AppliedTo = left
	}
	return nil
}
