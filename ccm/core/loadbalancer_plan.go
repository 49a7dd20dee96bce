package core

// The step from the balancer that the cloud has to the one that the Service asks
// for. It says what it does, so that the log tells what is about to be done.

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/utils/ptr"

	"github.com/ccmlab/ccmlab/ccm/annotations"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// planStep returns nil when the cloud already has what is wanted. Otherwise the balancer is changed only if it is still
// in the version that was compared. Names are not compared: nothing is found by them, and another balancer may have the
// wanted name now.
func planStep(have *api.LoadBalancer, want balancerSpec) *step {
	if have == nil {
		return planCreate(want)
	}
	u := update{}
	u.compareTargets(have, want)
	if !want.targetsOnly {
		if why := immutableDifferences(have, want); len(why) > 0 {
			return planReplace(have, want, why)
		}
		u.compareTraffic(have, want)
		u.compareOptions(have, want)
	}
	if len(u.changes) == 0 {
		return nil
	}
	text := fmt.Sprintf("update load balancer %s: %s", have.ID, strings.Join(u.changes, "; "))
	return &step{text: text, apply: func(ctx context.Context, cloud Cloud) (*api.LoadBalancer, error) {
		return cloud.UpdateLoadBalancer(client.IfMatch(ctx, have.Version), have.ID, u.request)
	}}
}

// checkFamilies refuses IPv6 for a balancer that was created without it. Families are final, and the
// cloud tells whether it has IPv6 only when a balancer is created. A replacement might fail, and would
// cost the Service its address.
func checkFamilies(have *api.LoadBalancer, want balancerSpec) error {
	if have == nil || want.ipv6 != ipv6Required || have.IPv6Address != "" {
		return nil
	}
	return newReasonError(contract.ReasonInvalidService,
		"the Service's load balancer %s was made without an IPv6 address and cannot get one: "+
			"delete the Service and create it anew, or leave IPv6 out of its ipFamilies", have.ID)
}

// immutableDifferences are those that no update can remove. A balancer is replaced only if it lacks
// something that the Service asks for, not if it has more, such as an address or IPv6.
func immutableDifferences(have *api.LoadBalancer, want balancerSpec) []string {
	var why []string
	if !want.address.isHeldBy(have) {
		why = append(why, fmt.Sprintf("address %s to %s", have.Address, want.address))
	}
	if want.Scheme == api.SchemeInternal && have.AddressID != "" {
		why = append(why, fmt.Sprintf("address %s is reserved, which an internal load balancer cannot use", have.Address))
	}
	return why
}

// step is one change of the cloud.
type step struct {
	text string // what it does, for the log
	// apply returns the balancer as the change leaves it.
	apply    func(context.Context, Cloud) (*api.LoadBalancer, error)
	replaces bool
}

// planCreate gives no idempotency key: a key that stands for the Service would make the cloud answer with a balancer
// that was deleted since. A second balancer is prevented by the name, which contains the start of the Service's UID.
func planCreate(want balancerSpec) *step {
	lb := want.LoadBalancerCreate
	lb.IPFamilies = api.IPFamilies{api.IPv4} // Each balancer has an IPv4 address.
	if want.ipv6 != ipv6NotWanted {
		lb.IPFamilies = api.IPFamilies{api.IPv4, api.IPv6}
	}
	if want.Kind == api.KindProxy {
		lb.Kind = "" // Releases of the cloud without kinds have proxies.
	}
	text := fmt.Sprintf("create load balancer %s with listeners %s and %d targets",
		lb.Name, listenerList(lb.Listeners), len(lb.Targets))
	if want.address != (addressChoice{}) {
		text += " at address " + want.address.String()
	}
	if want.address.id != "" {
		lb.AddressID = want.address.id
	}
	return &step{text: text, apply: func(ctx context.Context, cloud Cloud) (*api.LoadBalancer, error) {
		return cloud.CreateLoadBalancer(ctx, lb)
	}}
}

// planReplace deletes a balancer that cannot be changed into the wanted one, if it is still in the version that was
// compared. A later sync creates the new one, once the name and the address are free.
func planReplace(have *api.LoadBalancer, want balancerSpec, differences []string) *step {
	text := fmt.Sprintf("delete load balancer %s, to create %s anew: %s",
		have.ID, want.Name, strings.Join(differences, "; "))
	unprotect := have.DeletionProtection && !ptr.Deref(wantedProtection(have, want), true)
	return &step{text: text, replaces: true, apply: func(ctx context.Context, cloud Cloud) (*api.LoadBalancer, error) {
		return deleteSeen(ctx, cloud, have, unprotect)
	}}
}

// update collects the differences that an update of the balancer can remove.
type update struct {
	request api.LoadBalancerUpdate
	changes []string
}

func (u *update) addChange(format string, args ...any) {
	u.changes = append(u.changes, fmt.Sprintf(format, args...))
}

func (u *update) compareTargets(have *api.LoadBalancer, want balancerSpec) {
	targets := slices.Clone(have.Targets)
	sortTargets(targets)
	if want.Targets != nil && !slices.Equal(targets, want.Targets) {
		u.request.Targets = &want.Targets
		u.addChange("targets %d to %d", len(targets), len(want.Targets))
	}
}

func (u *update) compareTraffic(have *api.LoadBalancer, want balancerSpec) {
	listeners := slices.Clone(have.Listeners)
	sortListeners(listeners)
	if !slices.EqualFunc(listeners, want.Listeners, api.Listener.Equal) {
		u.request.Listeners = &want.Listeners
		u.addChange("listeners %s to %s", listenerList(listeners), listenerList(want.Listeners))
	}
	ranges := slices.Sorted(slices.Values(have.SourceRanges))
	if !slices.Equal(ranges, want.SourceRanges) {
		u.request.SourceRanges = &want.SourceRanges
		u.addChange("source ranges %s to %s", shortList(ranges), shortList(want.SourceRanges))
	}
	check := api.HealthCheck{Protocol: api.HealthCheckNone}
	if have.HealthCheck != nil {
		check = *have.HealthCheck
	}
	if check != *want.HealthCheck && !keepsNoHealthCheck(have, want) {
		u.request.HealthCheck = want.HealthCheck
		u.addChange("health check %s to %s", healthCheckString(check), healthCheckString(*want.HealthCheck))
	}
}

// keepsNoHealthCheck tells whether the balancer was made without a health check, by a release that gave none. One
// that lost its health check has the tag TagHealthCheck.
func keepsNoHealthCheck(have *api.LoadBalancer, want balancerSpec) bool {
	hasNone := have.HealthCheck == nil || have.HealthCheck.Protocol == api.HealthCheckNone
	return want.keepsNoHealthCheck && hasNone && have.Tags[contract.TagHealthCheck] == ""
}

// compareOption adds a change if the balancer does not have what is wanted. format takes both.
func compareOption[T comparable](u *update, format string, have, want T, request **T) {
	if have != want {
		*request = &want
		u.addChange(format, have, want)
	}
}

func (u *update) compareOptions(have *api.LoadBalancer, want balancerSpec) {
	compareOption(u, "kind %s to %s", cmp.Or(have.Kind, api.KindProxy), want.Kind, &u.request.Kind)
	compareOption(u, "scheme %s to %s", cmp.Or(have.Scheme, api.SchemePublic), want.Scheme, &u.request.Scheme)
	compareOption(u, "algorithm %s to %s",
		cmp.Or(have.Algorithm, api.AlgorithmRoundRobin), want.Algorithm, &u.request.Algorithm)
	compareOption(u, "client affinity %v s to %v s",
		have.ClientAffinitySeconds, want.ClientAffinitySeconds, &u.request.ClientAffinitySeconds)
	compareOption(u, "idle timeout %v s to %v s",
		have.IdleTimeoutSeconds, want.IdleTimeoutSeconds, &u.request.IdleTimeoutSeconds)
	compareOption(u, "drain %v s to %v s", have.DrainSeconds, want.DrainSeconds, &u.request.DrainSeconds)
	if wanted := wantedProtection(have, want); wanted != nil && have.DeletionProtection != *wanted {
		u.request.DeletionProtection = wanted
		u.addChange("deletion protection to %t", *wanted)
	}
	tags := maps.Clone(want.Tags)
	if keepsNoHealthCheck(have, want) {
		delete(tags, contract.TagHealthCheck)
	}
	u.compareTags(have.Tags, tags)
}

// wantedProtection is whether the balancer is to be protected from deletion; nil for whatever it is.
func wantedProtection(have *api.LoadBalancer, want balancerSpec) *bool {
	if want.DeletionProtection == nil && have.Tags[contract.TagOnDelete] == string(annotations.Refuse) {
		return new(false) // The Service asked for it before.
	}
	return want.DeletionProtection
}

// compareTags keeps other people's tags on our balancer. It removes tags that the Service no longer asks for.
func (u *update) compareTags(have, want api.Tags) {
	tags := api.Tags{}
	maps.Copy(tags, have)
	for _, key := range slices.Concat(optionTags, strings.Split(have[contract.TagServiceTags], ",")) {
		delete(tags, key)
	}
	maps.Copy(tags, want)
	if maps.Equal(tags, have) {
		return
	}
	u.request.Tags = &tags
	u.addChange("tags")
	if before, now := have[contract.TagCluster], tags[contract.TagCluster]; before != now {
		u.addChange("cluster %q to %q", before, now)
	}
}

func listenerList(listeners api.Listeners) string {
	parts := make([]string, len(listeners))
	for i, l := range listeners {
		parts[i] = fmt.Sprintf("%s:%d→%d", l.Protocol, l.Port, l.TargetPort)
		if l.ProxyProtocol != "" {
			parts[i] += "+proxy-" + string(l.ProxyProtocol)
		}
		if l.ConnectionLimit != 0 {
			parts[i] += fmt.Sprintf("+limit-%d", l.ConnectionLimit)
		}
	}
	return shortList(parts)
}

// shortList prints the first items of a list, and how many more there are.
func shortList(items []string) string {
	const maxListed = 5
	if more := len(items) - maxListed; more > 0 {
		items = append(slices.Clone(items[:maxListed]), fmt.Sprintf("… and %d more", more))
	}
	return "[" + strings.Join(items, " ") + "]"
}

func healthCheckString(c api.HealthCheck) string {
	if c.Protocol == api.HealthCheckNone {
		return "none"
	}
	text := fmt.Sprintf("%s:%d%s every %v s within %v s, up after %d, down after %d",
		c.Protocol, c.Port, annotations.Shorten(c.Path),
		c.IntervalSeconds, c.TimeoutSeconds, c.HealthyThreshold, c.UnhealthyThreshold)
	if c.ExpectedCodes != "" {
		text += ", expecting " + annotations.Shorten(c.ExpectedCodes)
	}
	return text
}
