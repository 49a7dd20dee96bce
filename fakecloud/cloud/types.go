package cloud

import (
	"crypto/tls"
	"math"
	"net/netip"
	"strings"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// Project owns resources; tokens act within one.
type Project = api.Project

// Zone is a failure domain of a region. Its state is known to the rules of faults.
type Zone = api.Zone

// InstanceSizes are the sizes offered, the smallest first.
var InstanceSizes = []api.InstanceSize{
	{Name: api.InstanceTypeSmall, Vcpus: 2, MemoryMiB: 4 << 10},
	{Name: api.InstanceTypeMedium, Vcpus: 4, MemoryMiB: 8 << 10},
	{Name: api.InstanceTypeLarge, Vcpus: 8, MemoryMiB: 16 << 10},
}

// schedule is of resources whose states end by themselves. No document has it.
type schedule struct {
	due *time.Time // when a state ends by itself, or is tried again
}

func (s *schedule) scheduled() *schedule { return s }

// Instance is a machine. Its JSON form is what the event log keeps.
type Instance struct {
	api.Metadata
	schedule
	Region      string            `json:"region"`
	Zone        string            `json:"zone"`
	Type        api.InstanceType  `json:"type"`
	Network     string            `json:"network"` // the network's ID
	State       api.InstanceState `json:"state"`
	StateReason string            `json:"stateReason,omitempty"`
	Address     netip.Addr        `json:"address"`             // invalid once terminated
	Secondary   []netip.Addr      `json:"secondary,omitempty"` // further internal ones, of either family
	External    []netip.Addr      `json:"external,omitempty"`  // the reserved addresses it holds
}

//nolint:revive // Balancers consist of types of the API, which says what each is.
type (
	Protocol         = api.Protocol
	Listener         = api.Listener
	HealthCheck      = api.HealthCheck
	LoadBalancerKind = api.LoadBalancerKind
	Algorithm        = api.LoadBalancerAlgorithm
)

// LoadBalancer forwards from its addresses to those of its targets that run.
type LoadBalancer struct {
	api.LoadBalancer
	schedule
	keyPairs map[string]tls.Certificate // as they were read when it was built; nil before
}

// Filter narrows a list; zero fields do not.
type Filter struct {
	Name   string
	Zone   string   // instances only
	Serial int64    // instances only
	States []string // not for routes
	Tags   []TagFilter
	// After is the PageKey of the last item of the page before.
	After string
	// Limit is at least 1. A page of resources may end before it: see listResources.
	Limit int
}

// NoLimit gives all items in one page, whatever their size.
const NoLimit = math.MaxInt32

// TagFilter matches a tag of this key that has this value, or any if Value is nil.
type TagFilter struct {
	Key   string  `json:"key"`
	Value *string `json:"value,omitempty"`
}

// ParseTagFilter reads "key=value", or "key" for any value.
func ParseTagFilter(s string) TagFilter {
	key, value, exact := strings.Cut(s, "=")
	if exact {
		return TagFilter{Key: key, Value: &value}
	}
	return TagFilter{Key: key}
}

// Matches tells whether the filter matches a resource's tags.
func (t TagFilter) Matches(tags map[string]string) bool {
	has, ok := tags[t.Key]
	return ok && (t.Value == nil || has == *t.Value)
}

// Resource is a kind of resource that events are about.
type Resource = api.ResourceKind

// Event is one change. Events are numbered in the order of the changes.
type Event struct {
	api.Event
	Project string   // the project's ID
	Tags    api.Tags // the resource's
}
