package scene

// Objects of the cloud's resources.

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// ProviderKey is the key of the instance with the identity, or provider ID.
func ProviderKey(id string) string { return "provider:" + id }

// TagKey is the key of whatever has a tag with the value.
func TagKey(value string) string { return "tag:" + value }

// AddressKey is the key of what has the address.
func AddressKey(ip string) string { return "address:" + ip }

// CloudKey is the key of the resource with the ID.
func CloudKey(id string) string { return "cloud:" + id }

// OfInstance is one of the cloud's.
func OfInstance(i api.Instance) Object {
	t := Object{
		ID: "instance/" + i.Name, Kind: KindInstance, Name: i.Name, Zone: i.Zone, State: string(i.State), Level: LevelBusy,
		CloudID: i.ID, Reason: i.StateReason, Keys: []string{CloudKey(i.ID), ProviderKey("fakecloud://" + i.ID)},
	}
	switch i.State {
	case api.InstanceRunning:
		t.Level = LevelOK
	case api.InstanceStopped, api.InstanceTerminated:
		t.Level = LevelOff
	case api.InstanceError:
		t.Level = LevelBad
	}
	for _, identity := range slices.Sorted(maps.Values(i.Identities)) {
		t.Keys = append(t.Keys, ProviderKey(identity))
	}
	t.AddFact("ID", i.ID)
	t.AddFact("type", string(i.Type))
	for _, a := range i.Addresses {
		t.AddFact(string(a.Type)+" address", a.IP)
	}
	return t
}

// OfBalancer is a load balancer, linked to its targets.
func OfBalancer(lb api.LoadBalancer) Object {
	t := Object{
		ID: "balancer/" + lb.Name, Kind: KindBalancer, Name: lb.Name, State: string(lb.State), Level: LevelBusy,
		CloudID: lb.ID, Reason: lb.StateReason, Keys: []string{CloudKey(lb.ID)},
	}
	switch lb.State {
	case api.LoadBalancerActive:
		t.Level = LevelOK
		if t.Reason != "" { // All its targets are unhealthy, say.
			t.Level = LevelBad
		}
	case api.LoadBalancerError:
		t.Level = LevelBad
	}
	for _, value := range slices.Sorted(maps.Values(lb.Tags)) {
		t.Keys = append(t.Keys, TagKey(value))
	}
	// Oracle's CCM names a network load balancer NAMESPACE/SERVICE/UID, and other ones UID.
	if at := strings.LastIndex(lb.Tags["name"], "/"); at >= 0 {
		t.Keys = append(t.Keys, TagKey(lb.Tags["name"][at+1:]))
	}
	// Brightbox's CCM gives a balancer its Service's name, SERVICE.NAMESPACE.CLUSTER, and nothing else.
	if service, rest, ok := strings.Cut(lb.Tags["name"], "."); ok {
		namespace, _, _ := strings.Cut(rest, ".")
		t.Keys = append(t.Keys, TagKey(namespace+"/"+service))
	}
	t.AddFact("ID", lb.ID)
	t.AddFact("kind", string(lb.Kind))
	for _, a := range slices.Concat([]string{lb.Address}, lb.AttachedAddresses) {
		t.AddFact("address", a)
		t.Keys = append(t.Keys, AddressKey(a))
	}
	for _, l := range lb.Listeners {
		t.AddFact("listener", fmt.Sprintf("%s %d, to port %d", l.Protocol, l.Port, l.TargetPort))
	}
	for _, target := range lb.AllTargets() {
		if target.IP != "" {
			t.AddFact("target", target.IP)
			continue
		}
		t.Links = append(t.Links, Link{To: CloudKey(target.InstanceID)})
	}
	return t
}

// OfRoute is a route, linked to its instance.
func OfRoute(r api.Route) Object {
	t := Object{
		ID: "route/" + r.Name, Kind: KindRoute, Name: r.Destination, State: string(r.State), Level: LevelOK,
		CloudID: r.ID, Reason: r.StateReason, Links: []Link{{To: CloudKey(r.InstanceID)}},
	}
	if r.State == api.RouteBlackhole {
		t.Level = LevelBad
	}
	t.AddFact("name", r.Name)
	return t
}

// OfAddress is a reserved address, linked to what holds it.
func OfAddress(a api.ReservedAddress) Object {
	t := Object{
		ID: "address/" + a.Name, Kind: KindAddress, Name: a.IP, State: string(a.State), Level: LevelOK, CloudID: a.ID,
		Reason: api.ValueOf(a.StateReason), Keys: []string{CloudKey(a.ID)},
	}
	t.AddFact("name", a.Name)
	if a.Holder == nil {
		t.Level = LevelOff
	} else {
		t.Links = []Link{{To: CloudKey(a.Holder.ID)}}
	}
	return t
}

// OfFirewall is a firewall, linked to its instances.
func OfFirewall(f api.Firewall) Object {
	t := Object{
		ID: "firewall/" + f.Name, Kind: KindFirewall, Name: f.Name, State: "lets nothing in", Level: LevelOK, CloudID: f.ID,
	}
	if n := len(f.Rules); n > 0 {
		t.State = fmt.Sprintf("lets in by %d rules", n)
	}
	for _, r := range f.Rules {
		t.AddFact("lets in", fmt.Sprintf("%s %d-%d", r.Protocol, r.FirstPort, r.LastPort))
	}
	for _, id := range f.InstanceIDs {
		t.Links = append(t.Links, Link{To: CloudKey(id)})
	}
	return t
}

// OfCertificate is a certificate as it is at a time.
func OfCertificate(c api.Certificate, now time.Time) Object {
	t := Object{
		ID: "certificate/" + c.Name, Kind: KindCertificate, Name: c.Name, CloudID: c.ID, Keys: []string{CloudKey(c.ID)},
		Expires: c.NotAfter.UTC(),
	}
	t.AddFact("expires", t.Expires.Format(time.RFC3339))
	for _, name := range c.DomainNames {
		t.AddFact("domain", name)
	}
	t.setExpiry(now)
	return t
}

// expirySoon is how long before it expires somebody should look at a certificate.
const expirySoon = 14 * 24 * time.Hour

// setExpiry tells how a certificate is at a time.
func (t *Object) setExpiry(now time.Time) {
	switch left := t.Expires.Sub(now); {
	case left <= 0:
		t.State, t.Level = "expired", LevelBad
	case left <= expirySoon:
		t.State, t.Level = "expires soon", LevelBad
	default:
		t.State, t.Level = "valid", LevelOK
	}
}

// OfFault is a fault rule.
func OfFault(f api.Fault) Object {
	t := Object{
		ID: "fault/" + f.ID, Kind: KindFault, Name: f.Effect.Text(), State: "in force", Level: LevelBusy, CloudID: f.ID,
		Reason: "Somebody has the cloud go wrong on purpose.",
	}
	t.AddFact("applies to", cmp.Or(f.Match.Text(), "everything"))
	t.AddFact("when", f.TurnsText())
	t.AddFact("applied", fmt.Sprint(f.Hits))
	return t
}

// SetTargets puts health and traffic of a balancer's targets on its links. before is the count of
// bytes, by instance, that an earlier call returned, seconds ago.
func (t *Object) SetTargets(
	health []api.TargetHealth,
	stats []api.TargetStats,
	before map[string]int64,
	seconds float64,
) (bytes map[string]int64) {
	bytes = map[string]int64{}
	t.Links = slices.Clone(t.Links)
	for i := range t.Links {
		l := &t.Links[i]
		l.Level, l.State, l.Connections, l.BytesPerSecond = "", "", 0, 0
		for _, h := range health {
			if CloudKey(h.InstanceID) == l.To {
				l.State = cmp.Or(h.Reason, string(h.Health))
				l.Level = map[api.TargetHealthState]Level{
					api.TargetHealthy: LevelOK, api.TargetUnhealthy: LevelBad,
				}[h.Health]
			}
		}
		for _, s := range stats {
			if CloudKey(s.InstanceID) != l.To {
				continue
			}
			sum := s.BytesIn + s.BytesOut
			bytes[s.InstanceID] = sum
			l.Connections = s.ActiveConnections
			if was, known := before[s.InstanceID]; known && sum > was && seconds > 0 {
				l.BytesPerSecond = int64(float64(sum-was) / seconds)
			}
		}
	}
	return bytes
}

// KeepTargets takes over what SetTargets has put on the links of an earlier state of the thing.
func (t *Object) KeepTargets(earlier Object) {
	for i, l := range t.Links {
		if at := slices.IndexFunc(earlier.Links, func(e Link) bool { return e.To == l.To }); at >= 0 {
			t.Links[i] = earlier.Links[at]
		}
	}
}

// AddFact adds a fact, unless its value is "".
func (t *Object) AddFact(name, value string) {
	if value != "" {
		t.Facts = append(t.Facts, Fact{name, value})
	}
}
