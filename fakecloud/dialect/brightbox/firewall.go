package brightbox

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dialect"
)

// firewallRecord says which of the two a firewall is: a server group, the policy of one, or both. One that is
// neither any more goes.
type firewallRecord struct {
	Version int           `json:"version"`
	Group   *groupRecord  `json:"group,omitempty"`
	Policy  *policyRecord `json:"policy,omitempty"`
}

type groupRecord struct {
	part
	// Servers are the native IDs of those in the group. The firewall has them while there is a policy.
	Servers []string `json:"servers"`
}

type policyRecord struct {
	part
	Rules    []ruleRecord `json:"rules"`
	LastRule int64        `json:"lastRule"`
}

// part is what groups and policies have.
type part struct {
	Name        string    `json:"name"`
	Description string    `json:"description"`
	CreatedAt   time.Time `json:"createdAt"`
}

// partRequest is what is read of a group or a policy that is created.
type partRequest struct {
	Name        *string `json:"name,omitempty"`
	Description *string `json:"description,omitempty"`
}

func (q partRequest) newPart(r *dialect.Request) part {
	return part{Name: api.ValueOf(q.Name), Description: api.ValueOf(q.Description), CreatedAt: r.Now()}
}

type ruleRecord struct {
	Number    int64     `json:"number"` // within the policy
	CreatedAt time.Time `json:"createdAt"`
	ruleFields
}

// ruleFields are those of a rule that requests give. One that is empty is for all.
type ruleFields struct {
	Source          *string `json:"source"`
	SourcePort      *string `json:"source_port"`
	Destination     *string `json:"destination"`
	DestinationPort *string `json:"destination_port"`
	Protocol        *string `json:"protocol"`
	ICMPTypeName    *string `json:"icmp_type_name"`
	Description     *string `json:"description"`
}

type serverGroup struct {
	resource
	Description    string            `json:"description"`
	Default        bool              `json:"default"`
	FirewallPolicy *resource         `json:"firewall_policy"`
	Servers        []serverReference `json:"servers"`
}

type firewallPolicy struct {
	resource
	Description string         `json:"description"`
	Default     bool           `json:"default"`
	ServerGroup *resource      `json:"server_group"`
	Rules       []firewallRule `json:"rules"`
}

type firewallRule struct {
	ID           string    `json:"id"`
	ResourceType string    `json:"resource_type"`
	URL          string    `json:"url"`
	CreatedAt    time.Time `json:"created_at"`
	ruleFields
	FirewallPolicy *resource `json:"firewall_policy,omitempty"`
}

// maxRules is one more than the number of the last rule that a policy can have.
const maxRules = 1000

// firewall is a firewall as both sides see it.
type firewall struct {
	*api.Firewall
	firewallRecord
}

func toFirewall(native *api.Firewall) (*firewall, error) {
	f := &firewall{Firewall: native}
	return f, dialect.ReadRecord(name, native.Records, &f.firewallRecord)
}

// changeFirewall changes the firewall of a serial number, all of it or nothing, and removes it when it is neither
// group nor policy any more.
func changeFirewall(
	ctx context.Context,
	r *dialect.Request,
	serial int64,
	change func(f *firewall) error,
) (*firewall, error) {
	id, err := r.ResourceID(ctx, api.ResourceFirewall, serial)
	if err != nil {
		return nil, err
	}
	return dialect.Change(func() (*firewall, error) {
		native, err := r.GetFirewall(ctx, id)
		if err != nil {
			return nil, err
		}
		return toFirewall(native)
	}, change, func(f *firewall) error { return f.saveChange(client.IfMatch(ctx, f.Firewall.Version), r) })
}

// saveChange has this cloud know what the firewall is now.
func (f *firewall) saveChange(ctx context.Context, r *dialect.Request) error {
	if f.Group == nil && f.Policy == nil {
		return r.DeleteFirewall(ctx, f.ID)
	}
	servers, rules, err := f.inForce()
	if err != nil {
		return err
	}
	f.Version = recordVersion
	_, err = r.UpdateFirewall(ctx, f.ID, api.FirewallUpdate{
		InstanceIDs: &servers, Rules: &rules, Records: dialect.WithRecord(name, f.Records, f.firewallRecord),
	})
	return err
}

// inForce are the servers whose traffic is filtered, by which rules. A group without a policy filters nothing, and
// a policy without a group nobody's.
func (f *firewall) inForce() (servers []string, rules []api.FirewallRule, err error) {
	servers, rules = []string{}, []api.FirewallRule{}
	if f.Policy == nil {
		return servers, rules, nil
	}
	if f.Group != nil {
		servers = append(servers, f.Group.Servers...)
	}
	for _, rule := range f.Policy.Rules {
		filter, err := rule.toNative()
		if err != nil {
			return nil, nil, err
		}
		rules = append(rules, filter...)
	}
	return servers, rules, nil
}

// toNative gives what a rule lets in from balancers. Of other protocols they send nothing.
func (f ruleFields) toNative() (rules []api.FirewallRule, err error) {
	protocols := []api.FirewallRuleProtocol{api.FirewallTCP, api.FirewallUDP}
	switch protocol := api.ValueOf(f.Protocol); protocol {
	case "":
	case "tcp", "udp":
		protocols = []api.FirewallRuleProtocol{api.FirewallRuleProtocol(protocol)}
	case "icmp":
		return nil, nil
	default:
		return nil, dialect.Invalid("protocol", "%q is none of tcp, udp and icmp", protocol)
	}
	ports := api.ValueOf(f.DestinationPort)
	if ports == "" {
		ports = "1-65535"
	}
	for text := range strings.SplitSeq(ports, ",") {
		low, high, isRange := strings.Cut(strings.TrimSpace(text), "-")
		if !isRange {
			high = low
		}
		first, err1 := strconv.Atoi(low)
		last, err2 := strconv.Atoi(high)
		if err1 != nil || err2 != nil {
			return nil, dialect.Invalid("destination_port", "%q is no list of ports and ranges of them", ports)
		}
		for _, protocol := range protocols {
			rules = append(rules, api.FirewallRule{Protocol: protocol, FirstPort: first, LastPort: last})
		}
	}
	return rules, nil
}

// resource is what is shown of a group or a policy within the other.
func (p part) resource(r *dialect.Request, k kind, f *firewall) *resource {
	shown := k.newResource(r, f.Serial, p.Name)
	shown.CreatedAt = &p.CreatedAt
	return &shown
}

func (f *firewall) groupResource(r *dialect.Request) *resource {
	if f.Group == nil {
		return nil
	}
	return f.Group.resource(r, groupKind, f)
}

func (f *firewall) policyResource(r *dialect.Request) *resource {
	if f.Policy == nil {
		return nil
	}
	return f.Policy.resource(r, policyKind, f)
}

func (f *firewall) toGroup(r *dialect.Request, instances map[string]cloud.Instance) serverGroup {
	return serverGroup{
		resource: *f.groupResource(r), Description: f.Group.Description, FirewallPolicy: f.policyResource(r),
		Servers: referToServers(r, instances, f.Group.Servers),
	}
}

func (f *firewall) toPolicy(r *dialect.Request) firewallPolicy {
	out := firewallPolicy{
		resource: *f.policyResource(r), Description: f.Policy.Description, ServerGroup: f.groupResource(r),
		Rules: []firewallRule{},
	}
	for _, rule := range f.Policy.Rules {
		out.Rules = append(out.Rules, f.toRule(r, rule))
	}
	return out
}

func (f *firewall) toRule(r *dialect.Request, rule ruleRecord) firewallRule {
	shown := ruleKind.newResource(r, f.Serial*maxRules+rule.Number, "")
	return firewallRule{
		ID: shown.ID, ResourceType: shown.ResourceType, URL: shown.URL, CreatedAt: rule.CreatedAt, ruleFields: rule.ruleFields,
	}
}

// listFirewalls reads what is a group or a policy, or both.
func listFirewalls(ctx context.Context, r *dialect.Request) (all []*firewall, err error) {
	natives, err := r.ListFirewalls(ctx, client.FirewallFilter{})
	for i := 0; err == nil && i < len(natives); i++ {
		var f *firewall
		f, err = toFirewall(&natives[i])
		all = append(all, f)
	}
	return all, err
}

func listServerGroups(ctx context.Context, r *dialect.Request, _ struct{}) ([]serverGroup, error) {
	all, err := listFirewalls(ctx, r)
	if err != nil {
		return nil, err
	}
	instances, err := r.Instances(ctx)
	out := []serverGroup{}
	for _, f := range all {
		if f.Group != nil {
			out = append(out, f.toGroup(r, instances))
		}
	}
	return out, err
}

func createServerGroup(ctx context.Context, r *dialect.Request, q partRequest) (any, error) {
	group := groupRecord{part: q.newPart(r)}
	f, err := createFirewall(ctx, r, firewallRecord{Version: recordVersion, Group: &group}, group.Name)
	if err != nil {
		return nil, err
	}
	return f.toGroup(r, nil), nil
}

func createFirewall(ctx context.Context, r *dialect.Request, rec firewallRecord, wireName string) (*firewall, error) {
	native, err := r.CreateFirewall(ctx, api.FirewallCreate{
		Records: dialect.WithRecord(name, nil, rec), Tags: &api.Tags{dialect.TagName: wireName},
	})
	if err != nil {
		return nil, err
	}
	return toFirewall(native)
}

// changeGroup changes the server group in the call's path, and answers with it.
func changeGroup(ctx context.Context, r *dialect.Request, change func(f *firewall) error) (any, error) {
	serial, err := groupKind.Serial(dialect.InPath(r))
	if err != nil {
		return nil, err
	}
	instances, err := r.Instances(ctx)
	if err != nil {
		return nil, err
	}
	var group serverGroup
	_, err = changeFirewall(ctx, r, serial, func(f *firewall) error {
		if f.Group == nil {
			return groupKind.NotFound(dialect.InPath(r))
		}
		if err := change(f); err != nil {
			return err
		}
		if f.Group != nil {
			group = f.toGroup(r, instances)
		}
		return nil
	})
	return group, err
}

// members is what says which servers come into a group, or leave it.
type members struct {
	Servers []struct {
		Server string `json:"server"`
	} `json:"servers"`
}

func (m members) nativeIDs(ctx context.Context, r *dialect.Request) (ids []string, err error) {
	for _, s := range m.Servers {
		id, err := serverKind.NativeID(ctx, r, s.Server)
		if err != nil {
			return nil, dialect.Invalid("servers", "%q is no server", s.Server)
		}
		ids = append(ids, id)
	}
	return ids, nil
}

func addServers(ctx context.Context, r *dialect.Request, body members) (any, error) {
	ids, err := body.nativeIDs(ctx, r)
	if err != nil {
		return nil, err
	}
	return changeGroup(ctx, r, func(f *firewall) error {
		for _, id := range ids {
			if !slices.Contains(f.Group.Servers, id) {
				f.Group.Servers = append(f.Group.Servers, id)
			}
		}
		return nil
	})
}

func removeServers(ctx context.Context, r *dialect.Request, body members) (any, error) {
	ids, err := body.nativeIDs(ctx, r)
	if err != nil {
		return nil, err
	}
	return changeGroup(ctx, r, func(f *firewall) error {
		f.Group.Servers = slices.DeleteFunc(f.Group.Servers, func(id string) bool { return slices.Contains(ids, id) })
		return nil
	})
}

// deleteServerGroup deletes a group, and answers with what it was.
func deleteServerGroup(ctx context.Context, r *dialect.Request, _ struct{}) (any, error) {
	var was serverGroup
	_, err := changeGroup(ctx, r, func(f *firewall) error {
		was = f.toGroup(r, nil)
		f.Group = nil
		return nil
	})
	return was, err
}

func listFirewallPolicies(ctx context.Context, r *dialect.Request, _ struct{}) ([]firewallPolicy, error) {
	all, err := listFirewalls(ctx, r)
	out := []firewallPolicy{}
	for _, f := range all {
		if f.Policy != nil {
			out = append(out, f.toPolicy(r))
		}
	}
	return out, err
}

func createFirewallPolicy(ctx context.Context, r *dialect.Request, body struct {
	partRequest
	ServerGroup *string `json:"server_group,omitempty"`
}) (any, error) {
	policy := &policyRecord{part: body.newPart(r)}
	if body.ServerGroup == nil {
		f, err := createFirewall(ctx, r, firewallRecord{Version: recordVersion, Policy: policy}, policy.Name)
		if err != nil {
			return nil, err
		}
		return f.toPolicy(r), nil
	}
	serial, err := groupKind.Serial(*body.ServerGroup)
	if err != nil {
		return nil, dialect.Invalid("server_group", "%q is none", *body.ServerGroup)
	}
	f, err := changeFirewall(ctx, r, serial, func(f *firewall) error {
		switch {
		case f.Group == nil:
			return dialect.Invalid("server_group", "%q is none", *body.ServerGroup)
		case f.Policy != nil:
			return dialect.Invalid("server_group", "%q has a firewall policy", *body.ServerGroup)
		}
		f.Policy = policy
		return nil
	})
	if err != nil {
		return nil, err
	}
	return f.toPolicy(r), nil
}

// changePolicy changes the firewall policy of a serial number.
func changePolicy(
	ctx context.Context,
	r *dialect.Request,
	serial int64,
	change func(f *firewall) error,
) (*firewall, error) {
	return changeFirewall(ctx, r, serial, func(f *firewall) error {
		if f.Policy == nil {
			return policyKind.NotFound(policyKind.Write(serial))
		}
		return change(f)
	})
}

func deleteFirewallPolicy(ctx context.Context, r *dialect.Request, _ struct{}) (any, error) {
	serial, err := policyKind.Serial(dialect.InPath(r))
	if err != nil {
		return nil, err
	}
	var was firewallPolicy
	_, err = changePolicy(ctx, r, serial, func(f *firewall) error {
		was = f.toPolicy(r)
		f.Policy = nil
		return nil
	})
	return was, err
}

type ruleRequest struct {
	FirewallPolicy *string `json:"firewall_policy,omitempty"`
	ruleFields
}

func createFirewallRule(ctx context.Context, r *dialect.Request, body ruleRequest) (any, error) {
	serial, err := policyKind.Serial(api.ValueOf(body.FirewallPolicy))
	if err != nil {
		return nil, dialect.Invalid("firewall_policy", "%q is none", api.ValueOf(body.FirewallPolicy))
	}
	var shown firewallRule
	_, err = changePolicy(ctx, r, serial, func(f *firewall) error {
		if f.Policy.LastRule+1 >= maxRules {
			return dialect.Invalid("firewall_policy", "%q has had %d rules, which are the most", *body.FirewallPolicy, maxRules-1)
		}
		f.Policy.LastRule++
		rule := ruleRecord{Number: f.Policy.LastRule, CreatedAt: r.Now(), ruleFields: body.ruleFields}
		f.Policy.Rules = append(f.Policy.Rules, rule)
		shown = f.toRule(r, rule)
		shown.FirewallPolicy = f.policyResource(r)
		return nil
	})
	return shown, err
}

func updateFirewallRule(ctx context.Context, r *dialect.Request, body ruleRequest) (any, error) {
	number, err := ruleKind.Serial(dialect.InPath(r))
	if err != nil {
		return nil, err
	}
	var shown firewallRule
	_, err = changePolicy(ctx, r, number/maxRules, func(f *firewall) error {
		at := slices.IndexFunc(f.Policy.Rules, func(rule ruleRecord) bool { return rule.Number == number%maxRules })
		if at < 0 {
			return ruleKind.NotFound(dialect.InPath(r))
		}
		dialect.Overlay(&f.Policy.Rules[at].ruleFields, body.ruleFields)
		shown = f.toRule(r, f.Policy.Rules[at])
		shown.FirewallPolicy = f.policyResource(r)
		return nil
	})
	return shown, err
}
