package cloud

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
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
//
// A rule's sources are compared with the balancer's own address, never with its clients': a proxy's connections come
// from there, Oracle's CCM allows node ports from the balancers' subnet, and Hetzner's firewalls see no clients behind
// a balancer. A network balancer, whose targets do see clients' addresses, is taken for the same: the rules say who may
// reach the instance, and its clients are filtered by its source ranges.
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
			c.refreshBalancersOf(ctx, slices.Concat(before.InstanceIDs, after.InstanceIDs, []string{ofIPTargets})...)
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
		for j, source := range r.Sources {
			_, err := parseRange(fmt.Sprintf("rules.%d.sources.%d", i, j), source)
			errs = append(errs, err)
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
	if err != nil || in.State == api.InstanceTerminated {
		return refuse(UnknownInstance, "no instance %q that is not terminated in project %q", id, p.Name).
			withField(field, "is not an instance of the project")
	}
	return nil
}

// LetIn is what an instance lets in, as text: "tcp 30080-30080,udp 53-53"; empty if that is everything.
type LetIn string

// nothing is what an instance lets in whose firewalls have no rule.
const nothing LetIn = "nothing"

// letInFrom gives what instances that are in a firewall let in from a balancer, by their IDs and addresses.
func letInFrom(ctx context.Context, tx *store.Tx, lb LoadBalancer) (map[string]LetIn, error) {
	firewalls, err := resourcesIn[Firewall](ctx, tx, lb.Project)
	if err != nil || len(firewalls) == 0 {
		return nil, err
	}
	rules := map[string]api.FirewallRules{}
	for _, f := range firewalls {
		for _, in := range f.InstanceIDs {
			rules[in] = append(rules[in], f.Rules...)
		}
	}
	rows, err := tx.InstancesOf(ctx, listJSON(slices.Collect(maps.Keys(rules))))
	all := map[string]LetIn{}
	for _, in := range rows {
		from, texts := lb.addressTowards(in.NetworkID), []string{string(nothing)}
		for _, r := range rules[in.ID] {
			if hasSource(r, from) {
				texts = append(texts, fmt.Sprintf("%s %d-%d", r.Protocol, r.FirstPort, r.LastPort))
			}
		}
		slices.Sort(texts)
		all[in.ID] = LetIn(strings.Join(slices.Compact(texts), ","))
		all[api.ValueOf(in.Address)] = all[in.ID]
	}
	return all, err
}

// addressTowards is where the balancer's connections to an instance of a network come from.
func (lb LoadBalancer) addressTowards(network *string) netip.Addr {
	if lb.PrivateAddress != "" && lb.NetworkID == api.ValueOf(network) {
		return addressOrZero(lb.PrivateAddress)
	}
	return addressOrZero(lb.Address)
}

func hasSource(r api.FirewallRule, from netip.Addr) bool {
	return len(r.Sources) == 0 || slices.ContainsFunc(r.Sources, func(source string) bool {
		prefix, err := netip.ParsePrefix(source)
		return err == nil && prefix.Contains(from)
	})
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
