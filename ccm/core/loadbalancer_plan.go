package core

// The steps from the balancer that the cloud has to the one that the Service asks
// for. They can be printed, so that the log says what is about to be done.

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ccmlab/ccmlab/ccm/annotations"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// planSteps returns no steps when the cloud already has what is wanted. Names are
// not compared: nothing is found by them, and another balancer may have the wanted name now.
func planSteps(have *api.LoadBalancer, want balancerSpec) []step {
	if have == nil {
		return []step{createStep(want)}
	}
	u := updateStep{id: have.ID, version: have.Version}
	u.compareTargets(have, want)
	if want.scope == targetsOnly {
		return u.stepsIfChanged()
	}
	if why := immutableDifferences(have, want); len(why) > 0 {
		return []step{replaceStep{id: have.ID, version: have.Version, name: want.Name, differences: why}}
	}
	u.compareTraffic(have, want)
	u.compareOptions(have, want)
	return u.stepsIfChanged()
}

// checkFamilies refuses IPv6 for a balancer that was created without it. Families are final, and the
// cloud tells whether it has IPv6 only when a balancer is created. A replacement might fail, and would
// cost the Service its address.
func checkFamilies(have *api.LoadBalancer, want balancerSpec) error {
	if have == nil || want.ipv6 != ipv6Required || have.IPv6Address != nil {
		return nil
	}
	return &reasonError{contract.ReasonInvalidService, fmt.Errorf(
		"the Service's load balancer %s was made without an IPv6 address and cannot get one: "+
			"delete the Service and create it anew, or leave IPv6 out of its ipFamilies", have.ID)}
}

// immutableDifferences are those that no update can remove. A balancer is replaced only if it lacks
// something that the Service asks for, not if it has more, such as an address or IPv6.
func immutableDifferences(have *api.LoadBalancer, want balancerSpec) []string {
	var why []string
	if !want.address.isHeldBy(have) {
		why = append(why, fmt.Sprintf("address %s to %s", have.Address, want.address))
	}
	if *want.Scheme == api.SchemeInternal && have.AddressID != nil {
		why = append(why, fmt.Sprintf("address %s is reserved, which an internal load balancer cannot use", have.Address))
	}
	return why
}

// step is one change of the cloud.
type step interface {
	fmt.Stringer
	// apply returns the balancer as the change leaves it.
	apply(context.Context, Cloud) (*api.LoadBalancer, error)
}

// createStep has no idempotency key: a key that stands for the Service would make
// the cloud answer with a balancer that was deleted since. A second balancer is
// prevented by the name, which contains the Service's UID.
type createStep balancerSpec

func (s createStep) String() string {
	text := fmt.Sprintf("create load balancer %s with listeners %s and %d targets",
		s.Name, listenerList(s.Listeners), len(*s.Targets))
	if s.address != (addressChoice{}) {
		text += " at address " + s.address.String()
	}
	return text
}

func (s createStep) apply(ctx context.Context, cloud Cloud) (*api.LoadBalancer, error) {
	lb := s.LoadBalancerCreate
	lb.IPFamilies = &api.IPFamilies{api.IPv4} // Each balancer has an IPv4 address.
	if s.ipv6 != ipv6NotWanted {
		lb.IPFamilies = &api.IPFamilies{api.IPv4, api.IPv6}
	}
	if *s.Kind == api.KindProxy {
		lb.Kind = nil // Releases of the cloud without kinds have proxies.
	}
	if s.address.id != "" {
		lb.AddressID = &s.address.id
	}
	return cloud.CreateLoadBalancer(ctx, lb)
}

// updateStep changes the balancer only if it is still in the version that was
// compared.
type updateStep struct {
	id      string
	version int64
	update  api.LoadBalancerUpdate
	changes []string
}

func (s updateStep) String() string {
	return fmt.Sprintf("update load balancer %s: %s", s.id, strings.Join(s.changes, "; "))
}

func (s updateStep) apply(ctx context.Context, cloud Cloud) (*api.LoadBalancer, error) {
	return cloud.UpdateLoadBalancer(client.IfMatch(ctx, s.version), s.id, s.update)
}

func (s *updateStep) addChange(format string, args ...any) {
	s.changes = append(s.changes, fmt.Sprintf(format, args...))
}

func (s *updateStep) compareTargets(have *api.LoadBalancer, want balancerSpec) {
	targets := slices.Clone(have.Targets)
	sortTargets(targets)
	if want.Targets != nil && !slices.Equal(targets, *want.Targets) {
		s.update.Targets = want.Targets
		s.addChange("targets %d to %d", len(targets), len(*want.Targets))
	}
}

func (s *updateStep) compareTraffic(have *api.LoadBalancer, want balancerSpec) {
	listeners := slices.Clone(have.Listeners)
	sortListeners(listeners)
	if !slices.Equal(listeners, want.Listeners) {
		s.update.Listeners = &want.Listeners
		s.addChange("listeners %s to %s", listenerList(listeners), listenerList(want.Listeners))
	}
	ranges := slices.Sorted(slices.Values(have.SourceRanges))
	if !slices.Equal(ranges, *want.SourceRanges) {
		s.update.SourceRanges = want.SourceRanges
		s.addChange("source ranges %s to %s", shortList(ranges), shortList(*want.SourceRanges))
	}
	check := api.HealthCheck{Protocol: api.HealthCheckNone}
	if have.HealthCheck != nil {
		check = *have.HealthCheck
	}
	if check != *want.HealthCheck && !keepsNoHealthCheck(have, want) {
		s.update.HealthCheck = want.HealthCheck
		s.addChange("health check %s to %s", healthCheckString(check), healthCheckString(*want.HealthCheck))
	}
}

// keepsNoHealthCheck tells whether the balancer has no health check because the release that made it gave none,
// unlike one that lost it: such a balancer has a tag.
func keepsNoHealthCheck(have *api.LoadBalancer, want balancerSpec) bool {
	hasNone := have.HealthCheck == nil || have.HealthCheck.Protocol == api.HealthCheckNone
	return want.keepsNoHealthCheck && hasNone && have.Tags[contract.TagHealthCheck] == ""
}

// compareOption adds a change if the balancer does not have what is wanted. format takes both.
func compareOption[T comparable](s *updateStep, format string, have T, want *T, update **T) {
	if have != *want {
		*update = want
		s.addChange(format, have, *want)
	}
}

func (s *updateStep) compareOptions(have *api.LoadBalancer, want balancerSpec) {
	compareOption(s, "kind %s to %s", cmp.Or(have.Kind, api.KindProxy), want.Kind, &s.update.Kind)
	compareOption(s, "scheme %s to %s", cmp.Or(have.Scheme, api.SchemePublic), want.Scheme, &s.update.Scheme)
	compareOption(s, "algorithm %s to %s",
		cmp.Or(have.Algorithm, api.AlgorithmRoundRobin), want.Algorithm, &s.update.Algorithm)
	compareOption(s, "client affinity %d s to %d s",
		have.ClientAffinitySeconds, want.ClientAffinitySeconds, &s.update.ClientAffinitySeconds)
	compareOption(s, "idle timeout %d s to %d s",
		have.IdleTimeoutSeconds, want.IdleTimeoutSeconds, &s.update.IdleTimeoutSeconds)
	compareOption(s, "drain %d s to %d s", have.DrainSeconds, want.DrainSeconds, &s.update.DrainSeconds)
	protection := want.DeletionProtection
	if protection == nil && have.Tags[contract.TagOnDelete] == string(annotations.Refuse) {
		protection = new(false) // The Service asked for it before.
	}
	if protection != nil && have.DeletionProtection != *protection {
		s.update.DeletionProtection = protection
		s.addChange("deletion protection to %t", *protection)
	}
	tags := maps.Clone(*want.Tags)
	if keepsNoHealthCheck(have, want) {
		delete(tags, contract.TagHealthCheck)
	}
	s.compareTags(have.Tags, tags)
}

// compareTags keeps other people's tags on our balancer. It removes tags that the Service no longer
// asks for.
func (s *updateStep) compareTags(have, want api.Tags) {
	tags := api.Tags{}
	maps.Copy(tags, have)
	for _, key := range slices.Concat(optionTags, strings.Split(have[contract.TagServiceTags], ",")) {
		delete(tags, key)
	}
	maps.Copy(tags, want)
	if maps.Equal(tags, have) {
		return
	}
	s.update.Tags = &tags
	s.addChange("tags")
	if before, now := have[contract.TagCluster], tags[contract.TagCluster]; before != now {
		s.addChange("cluster %q to %q", before, now)
	}
}

func (s *updateStep) stepsIfChanged() []step {
	if len(s.changes) == 0 {
		return nil
	}
	return []step{*s}
}

// replaceStep deletes a balancer that cannot be changed into the wanted one, if it is still in the
// version that was compared. A later sync creates the new one, once the name and the address are
// free.
type replaceStep struct {
	id          string
	version     int64
	name        string
	differences []string
}

func (s replaceStep) String() string {
	return fmt.Sprintf("delete load balancer %s, to create %s anew: %s",
		s.id, s.name, strings.Join(s.differences, "; "))
}

func (s replaceStep) apply(ctx context.Context, cloud Cloud) (*api.LoadBalancer, error) {
	return cloud.DeleteLoadBalancer(client.IfMatch(ctx, s.version), s.id)
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

// maxListed is how many items of a list a message has.
const maxListed = 5

// shortList prints the first items of a list, and how many more there are.
func shortList(items []string) string {
	if more := len(items) - maxListed; more > 0 {
		items = append(slices.Clone(items[:maxListed]), fmt.Sprintf("… and %d more", more))
	}
	return "[" + strings.Join(items, " ") + "]"
}

func healthCheckString(c api.HealthCheck) string {
	if c.Protocol == api.HealthCheckNone {
		return "none"
	}
	text := fmt.Sprintf("%s:%d%s every %d s within %d s, up after %d, down after %d",
		c.Protocol, c.Port, annotations.Shorten(c.Path),
		c.IntervalSeconds, c.TimeoutSeconds, c.HealthyThreshold, c.UnhealthyThreshold)
	if c.ExpectedCodes != "" {
		text += ", expecting " + annotations.Shorten(c.ExpectedCodes)
	}
	return text
}
