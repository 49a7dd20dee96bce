package cloud

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/store"
)

const (
	maxFirewalls         = 1000 // of a project
	maxFirewallRules     = 100
	maxFirewallInstances = 5000
)

// Firewall says what its instances let in from load balancers: what a rule of it names. An instance that
// is in several lets in what any of them does, and one that is in none lets in everything. What comes
// otherwise than from a load balancer, by an attached address or from another instance, is not filtered.
// Some of its instances may be gone.
type Firewall struct{ api.Firewall }

func (f Firewall) describe() description {
	return description{rowOf(api.ResourceFirewall, f.Metadata), ""}
}

func (c *Cloud) firewalls() Kind[Firewall, api.FirewallCreate, api.FirewallUpdate] {
	return Kind[Firewall, api.FirewallCreate, api.FirewallUpdate]{
		cloud: c, idPrefix: "f", namePrefix: "firewall-", limit: maxFirewalls,
		check: func(spec api.FirewallCreate) (api.ResourceUpdate, error) {
			return api.FirewallUpdate(spec).NameAndTags(), nil
		},
		build: func(ctx context.Context, tx *changeTx, p Project, spec api.FirewallCreate) (Firewall, error) {
			f := Firewall{api.Firewall{InstanceIDs: []string{}, Rules: api.FirewallRules{}}}
			return f, changeFirewall(ctx, tx, p, &f, api.FirewallUpdate(spec))
		},
		change: changeFirewall,
		committed: func(ctx context.Context, before, after Firewall) {
			c.refreshBalancersOf(ctx, slices.Concat(before.InstanceIDs, after.InstanceIDs)...)
		},
	}
}

// changeFirewall sets what is given. It refuses what a firewall cannot be.
func changeFirewall(ctx context.Context, tx *changeTx, p Project, f *Firewall, u api.FirewallUpdate) error {
	var errs []error
	replaceIfGiven(&f.Rules, u.Rules)
	before := f.InstanceIDs
	if u.InstanceIDs != nil && !sameSet(before, *u.InstanceIDs) {
		f.InstanceIDs = *u.InstanceIDs
	}
	if len(f.Rules) > maxFirewallRules || len(f.InstanceIDs) > maxFirewallInstances {
		return refuse(
			InvalidRequest, "a firewall has at most %d rules and %d instances", maxFirewallRules, maxFirewallInstances,
		)
	}
	for i, r := range f.Rules {
		if r.Protocol != api.FirewallTCP && r.Protocol != api.FirewallUDP || !validPort(r.FirstPort) ||
			!validPort(r.LastPort) || r.FirstPort > r.LastPort {
			field := fmt.Sprintf("rules.%d", i)
			errs = append(errs, refuse(
				InvalidRequest, "%s: want protocol tcp or udp and a range of ports from 1 to 65535", field,
			).withField(field, "is not valid"))
		}
	}
	for i, id := range f.InstanceIDs {
		if !slices.Contains(before, id) { // Those that it has may be gone.
			errs = append(errs, checkFirewallInstance(ctx, tx.Tx, p, f.InstanceIDs, i))
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

// LetIn is what an instance lets in, as text: "tcp 30080-30080,udp 53-53"; empty if that is everything.
type LetIn string

// nothing is what an instance lets in whose firewalls have no rule.
const nothing LetIn = "nothing"

// letInByInstance gives what instances of a project let in that are in a firewall.
func letInByInstance(ctx context.Context, tx *store.Tx, project string) (map[string]LetIn, error) {
	firewalls, err := resourcesIn[Firewall](ctx, tx, project)
	rules := map[string][]string{}
	for _, f := range firewalls {
		for _, in := range f.InstanceIDs {
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
	if protocol != api.ProtocolUDP {
		protocol = api.ProtocolTCP
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
