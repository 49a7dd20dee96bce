package cloud

import (
	"slices"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// LoadBalancerSize is what a balancer type allows.
type LoadBalancerSize struct {
	Type        LoadBalancerType
	Listeners   int
	Targets     int
	Connections int // at a time, on all listeners together; of UDP, clients
}

// LoadBalancerSizes are the limited types offered, the smallest first.
var LoadBalancerSizes = []LoadBalancerSize{
	{Type: api.LoadBalancerSmall, Listeners: 5, Targets: 25, Connections: 10_000},
	{Type: api.LoadBalancerMedium, Listeners: 15, Targets: 75, Connections: 20_000},
	{Type: api.LoadBalancerLarge, Listeners: 30, Targets: 150, Connections: 40_000},
}

// sizeOf gives a type's limits. There are none of UnlimitedBalancer.
func sizeOf(t LoadBalancerType) (size LoadBalancerSize, limited bool) {
	at := slices.IndexFunc(LoadBalancerSizes, func(s LoadBalancerSize) bool { return s.Type == t })
	if at < 0 {
		return LoadBalancerSize{}, false
	}
	return LoadBalancerSizes[at], true
}

func checkBalancerType(t LoadBalancerType) error {
	if _, limited := sizeOf(t); !limited && t != api.LoadBalancerUnlimited {
		return refuse(InvalidRequest, "no load balancer type %q: choose small, medium, large or unlimited", t).
			withField("type", "is unknown")
	}
	return nil
}

// checkSize refuses more listeners and targets than a type allows. Listeners that redirect do not count.
func checkSize(t LoadBalancerType, listeners []Listener, targets int) error {
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
	return joinRefusals(within("listeners", len(serving), size.Listeners), within("targets", targets, size.Targets))
}
