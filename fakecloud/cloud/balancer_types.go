package cloud

import (
	"slices"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// LoadBalancerSizes are the limited types offered, the smallest first.
var LoadBalancerSizes = []api.LoadBalancerSize{
	{Name: api.LoadBalancerSmall, MaxListeners: 5, MaxTargets: 25, MaxConnections: 10_000},
	{Name: api.LoadBalancerMedium, MaxListeners: 15, MaxTargets: 75, MaxConnections: 20_000},
	{Name: api.LoadBalancerLarge, MaxListeners: 30, MaxTargets: 150, MaxConnections: 40_000},
}

// sizeOf gives a type's limits. There are none of api.LoadBalancerUnlimited.
func sizeOf(t api.LoadBalancerType) (size api.LoadBalancerSize, limited bool) {
	at := slices.IndexFunc(LoadBalancerSizes, func(s api.LoadBalancerSize) bool { return s.Name == t })
	if at < 0 {
		return api.LoadBalancerSize{}, false
	}
	return LoadBalancerSizes[at], true
}

func checkBalancerType(t api.LoadBalancerType) error {
	if !t.Valid() {
		return refuse(InvalidRequest, "no load balancer type %q: choose small, medium, large or unlimited", t).
			withField("type", "is unknown")
	}
	return nil
}

// checkSize refuses more listeners and targets than a type allows. Listeners that redirect do not count.
func checkSize(t api.LoadBalancerType, listeners []Listener, targets int) error {
	size, limited := sizeOf(t)
	if !limited {
		return nil
	}
	within := func(field string, has, most int) error {
		if has <= most {
			return nil
		}
		return refuse(
			QuotaExceeded, "a load balancer of type %s has at most %d %s, not %d: choose a larger type",
			t, most, field, has,
		).withField(field, "are more than the %d of type %s", most, t)
	}
	serving := slices.DeleteFunc(slices.Clone(listeners), func(l Listener) bool { return l.RedirectPort > 0 })
	return joinRefusals(within("listeners", len(serving), size.MaxListeners), within("targets", targets, size.MaxTargets))
}
