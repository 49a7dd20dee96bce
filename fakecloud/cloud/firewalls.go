package cloud

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/store"
	"github.com/ccmlab/ccmlab/fakecloud/store/db"
)

const (
	maxFirewalls         = 1000 // of a project
	maxFirewallRules     = 100
	maxFirewallInstances = 5000
)

// Firewall says what its instances let in from load balancers: what a rule of it names. An instance that
// is in several lets in what any of them does, and one that is in none lets in everything. What comes
// otherwise than from a load balancer, by an attached address or from another instance, is not filtered.
type Firewall struct {
	Metadata
	Instances []string       `json:"instances"` // IDs; of some that may be gone
	Rules     []FirewallRule `json:"rules"`
	// Records are as a load balancer's.
	Records map[string]json.RawMessage `json:"records,omitempty"`
}

// FirewallRule lets in what is for one of a range of ports.
type FirewallRule struct {
	Protocol  Protocol `json:"protocol"`
	FirstPort int      `json:"firstPort"`
	LastPort  int      `json:"lastPort"`
}

// FirewallSpec asks for a firewall; the cloud chooses a name that is left empty.
type FirewallSpec struct {
	Name      string
	Instances []string
	Rules     []FirewallRule
	Records   map[string]json.RawMessage
	Tags      map[string]string
}

// FirewallUpdate replaces what is not nil.
type FirewallUpdate struct {
	ResourceUpdate
	Instances *[]string
	Rules     *[]FirewallRule
	Records   map[string]json.RawMessage
}

// CreateFirewall gives the new firewall, which is in force.
func (c *Cloud) CreateFirewall(ctx context.Context, p Project, spec FirewallSpec) (Firewall, Outcome, error) {
	f, outcome, err := createResource(ctx, c.change, c, p, func(ctx context.Context, tx *changeTx) (Firewall, error) {
		count, err := tx.CountResourcesOf(ctx, db.CountResourcesOfParams{ProjectID: p.ID, Kind: string(FirewallResource)})
		if err != nil {
			return Firewall{}, err
		}
		if count >= maxFirewalls {
			return Firewall{}, refuse(QuotaExceeded, "project %q has %d firewalls, which is the limit", p.Name, maxFirewalls)
		}
		if spec.Name == "" {
			spec.Name = "firewall-" + c.random.letters(6)
		}
		f := Firewall{
			Metadata: Metadata{Metadata: api.Metadata{
				Project: p.ID, Name: spec.Name, Tags: withDefaults(spec.Tags, p.DefaultTags), Version: 1,
				CreatedAt: tx.now, UpdatedAt: tx.now,
			}},
			Instances: spec.Instances, Rules: spec.Rules, Records: spec.Records,
		}
		if err := checkFirewall(ctx, tx.Tx, p, f, nil); err != nil {
			return Firewall{}, err
		}
		if f.ID, f.Serial, err = c.newIdentity(ctx, tx, "f"); err != nil {
			return Firewall{}, err
		}
		return f, insertResource(ctx, tx, f)
	})
	if err == nil {
		c.refreshBalancersOf(context.WithoutCancel(ctx), f.Instances...)
	}
	return f, outcome, err
}

// checkFirewall refuses what a firewall cannot be. Instances that left it are not re-evaluated.
func checkFirewall(ctx context.Context, tx *store.Tx, p Project, f Firewall, before []string) error {
	errs := []error{checkName(f.Name), checkTags(f.Tags), checkRecords(f.Records)}
	if len(f.Rules) > maxFirewallRules || len(f.Instances) > maxFirewallInstances {
		return refuse(
			InvalidRequest, "a firewall has at most %d rules and %d instances", maxFirewallRules, maxFirewallInstances,
		)
	}
	for i, r := range f.Rules {
		if r.Protocol != TCP && r.Protocol != UDP || !validPort(r.FirstPort) || !validPort(r.LastPort) ||
			r.FirstPort > r.LastPort {
			field := fmt.Sprintf("rules.%d", i)
			errs = append(errs, refuse(
				InvalidRequest, "%s: want protocol tcp or udp and a range of ports from 1 to 65535", field,
			).withField(field, "is not valid"))
		}
	}
	if errs[0] == nil {
		errs = append(errs, checkUnused(ctx, tx, FirewallResource, p, f.ID, f.Name))
	}
	for i, id := range f.Instances {
		if !slices.Contains(before, id) {
			errs = append(errs, checkFirewallInstance(ctx, tx, p, f.Instances, i))
		}
	}
	return joinRefusals(errs...)
}

func checkFirewallInstance(ctx context.Context, tx *store.Tx, p Project, instances []string, i int) error {
	field, id := fmt.Sprintf("instanceIds.%d", i), instances[i]
	if slices.Contains(instances[:i], id) {
		return refuse(InvalidRequest, "instance %q is named twice", id).withField(field, "is named twice")
	}
	in, err := loadResource[Instance](ctx, tx, p, id)
	var refused *Error
	if err != nil && !errors.As(err, &refused) {
		return err
	}
	if err != nil || in.State == InstanceTerminated {
		return refuse(UnknownInstance, "no instance %q that is not terminated in project %q", id, p.Name).
			withField(field, "is not an instance of the project")
	}
	return nil
}

// GetFirewall reads one firewall.
func (c *Cloud) GetFirewall(ctx context.Context, p Project, id string) (Firewall, error) {
	return getResource[Firewall](ctx, c, p, id)
}

// ListFirewalls gives one page, oldest first, and whether more follow.
func (c *Cloud) ListFirewalls(ctx context.Context, p Project, f Filter) (page []Firewall, more bool, err error) {
	return listResources[Firewall](ctx, c, p, f)
}

// UpdateFirewall replaces what is given. An update that changes nothing leaves the version alone.
func (c *Cloud) UpdateFirewall(ctx context.Context, p Project, id string, u FirewallUpdate) (Firewall, error) {
	var old, f Firewall
	err := c.change(ctx, func(ctx context.Context, tx *changeTx) (err error) {
		if old, err = loadToChange[Firewall](ctx, tx, p, id); err != nil {
			return err
		}
		f = old
		replaceIfGiven(&f.Name, u.Name)
		replaceIfGiven(&f.Instances, u.Instances)
		replaceIfGiven(&f.Rules, u.Rules)
		if u.Tags != nil {
			f.Tags = tagsOrEmpty(*u.Tags)
		}
		if u.Records != nil {
			f.Records = u.Records
		}
		if err := checkFirewall(ctx, tx.Tx, p, f, old.Instances); err != nil || sameFirewall(old, f) {
			return err
		}
		return saveResource(ctx, tx, firewallNone, &f)
	})
	if err != nil {
		return Firewall{}, err
	}
	c.refreshBalancersOf(context.WithoutCancel(ctx), slices.Concat(old.Instances, f.Instances)...)
	return f, nil
}

func sameFirewall(a, b Firewall) bool {
	return a.Name == b.Name && sameSet(a.Instances, b.Instances) && slices.Equal(a.Rules, b.Rules) &&
		maps.Equal(a.Tags, b.Tags) && sameRecords(a.Records, b.Records)
}

// DeleteFirewall deletes a firewall. What its instances let in is then up to their others.
func (c *Cloud) DeleteFirewall(ctx context.Context, p Project, id string) error {
	var f Firewall
	err := c.change(ctx, func(ctx context.Context, tx *changeTx) (err error) {
		if f, err = loadToChange[Firewall](ctx, tx, p, id); err != nil {
			return err
		}
		return deleteResource(ctx, tx, &f)
	})
	if err == nil {
		c.refreshBalancersOf(context.WithoutCancel(ctx), f.Instances...)
	}
	return err
}

// LetIn is what an instance lets in, as text: "tcp 30080-30080,udp 53-53"; empty if that is everything.
type LetIn string

// nothing is what an instance lets in whose firewalls have no rule.
const nothing LetIn = "nothing"

// letInByInstance gives what instances of a project let in that are in a firewall.
func letInByInstance(ctx context.Context, tx *store.Tx, project string) (map[string]LetIn, error) {
	firewalls, err := resourcesIn[Firewall](ctx, tx, project)
	rules := map[string][]string{}
	for _, f := range firewalls {
		for _, in := range f.Instances {
			rules[in] = append(rules[in], string(nothing))
			for _, r := range f.Rules {
				rules[in] = append(rules[in], fmt.Sprintf("%s %d-%d", r.Protocol, r.FirstPort, r.LastPort))
			}
		}
	}
	all := map[string]LetIn{}
	for in, texts := range rules {
		slices.Sort(texts)
		all[in] = LetIn(strings.Join(slices.Compact(texts), ","))
	}
	return all, err
}

// Has tells whether what is for a port is let in.
func (l LetIn) Has(protocol Protocol, number int) bool {
	if l == "" {
		return true
	}
	if protocol != UDP {
		protocol = TCP
	}
	for rule := range strings.SplitSeq(string(l), ",") {
		of, ports, _ := strings.Cut(rule, " ")
		low, high, _ := strings.Cut(ports, "-")
		first, _ := strconv.Atoi(low) // letInByInstance wrote them.
		last, _ := strconv.Atoi(high)
		if Protocol(of) == protocol && first <= number && number <= last {
			return true
		}
	}
	return false
}
