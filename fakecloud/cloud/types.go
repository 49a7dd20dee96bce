package cloud

import (
	"encoding/json"
	"math"
	"net/netip"
	"strings"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// Project owns resources; tokens act within one.
type Project struct {
	ID   string
	Name string
	// DefaultTags are set on every new resource that does not carry the key
	// itself.
	DefaultTags map[string]string
	Version     int64
	CreatedAt   time.Time
	UpdatedAt   time.Time
}

// Zone is a failure domain of a region.
type Zone struct {
	Name   string
	Region string
}

// InstanceType is the size of an instance. The cloud itself does not depend on it.
type InstanceType string

// InstanceSize is what an instance type stands for.
type InstanceSize struct {
	Type      InstanceType
	VCPUs     int
	MemoryMiB int
}

// InstanceSizes are the sizes offered, the smallest first.
var InstanceSizes = []InstanceSize{
	{Type: Small, VCPUs: 2, MemoryMiB: 4 << 10},
	{Type: Medium, VCPUs: 4, MemoryMiB: 8 << 10},
	{Type: Large, VCPUs: 8, MemoryMiB: 16 << 10},
}

// The sizes offered.
const (
	Small  InstanceType = "small"
	Medium InstanceType = "medium"
	Large  InstanceType = "large"
)

// Metadata is what resources of all kinds have.
type Metadata struct {
	api.Metadata
	schedule
}

type schedule struct {
	due *time.Time // when a state ends by itself, or is tried again
}

func (s *schedule) scheduled() *schedule { return s }

// PageKey is what Filter.After says of the last item of a page.
func (p Project) PageKey() string { return p.ID }

// PageKey is as Metadata's.
func (op Operation) PageKey() string { return op.ID }

// PageKey is as Metadata's, and a name: tokens have no ID.
func (t Token) PageKey() string { return t.Name }

// Instance is a machine. Its JSON form is what the event log keeps.
type Instance struct {
	Metadata
	Region      string        `json:"region"`
	Zone        string        `json:"zone"`
	Type        InstanceType  `json:"type"`
	Network     string        `json:"network"` // the network's ID
	State       InstanceState `json:"state"`
	StateReason string        `json:"stateReason,omitempty"`
	Address     netip.Addr    `json:"address"`             // invalid once terminated
	Secondary   []netip.Addr  `json:"secondary,omitempty"` // further internal ones, of either family
	External    []netip.Addr  `json:"external,omitempty"`  // the reserved addresses it holds
}

// InstanceSpec asks for an instance; the cloud chooses what is left zero.
type InstanceSpec struct {
	Name string
	Zone string
	Type InstanceType
	// Network is an ID; the project's default one when empty.
	Network string
	// Address may lie outside of the pool: a machine that is already there.
	Address string
	// Secondary are further internal addresses, of either family.
	Secondary []string
	Tags      map[string]string
}

// Protocol is what a listener forwards.
type Protocol string

// The protocols: TCP forwards byte streams, UDP datagrams, and HTTP requests.
const (
	TCP  Protocol = "tcp"
	UDP  Protocol = "udp"
	HTTP Protocol = "http" // over TCP, on whose ports it is
)

// ProxyProtocol is the version of the PROXY protocol by which a target learns who connected.
type ProxyProtocol string

// The versions of the PROXY protocol; only TCP carries one.
const (
	ProxyNone ProxyProtocol = ""
	ProxyV1   ProxyProtocol = "v1"
	ProxyV2   ProxyProtocol = "v2"
)

// Listener is a port that clients connect to, and where it leads.
type Listener struct {
	Protocol      Protocol      `json:"protocol"`
	Port          int           `json:"port"`
	TargetPort    int           `json:"targetPort"`
	ProxyProtocol ProxyProtocol `json:"proxyProtocol,omitempty"`
	// ConnectionLimit is how many there may be at a time; 0 is no limit.
	ConnectionLimit int `json:"connectionLimit,omitempty"`
	// HealthCheck replaces the balancer's own for this listener: CheckNone is no check. The zero
	// value leaves the balancer's in force. It is a value, so that listeners can be compared.
	HealthCheck HealthCheck `json:"healthCheck,omitzero"`
}

// CheckInForce gives the health check that decides which targets get traffic from the listener of
// a balancer whose own check is given. The zero value is no check.
func (l Listener) CheckInForce(ofBalancer *HealthCheck) HealthCheck {
	switch {
	case l.HealthCheck.Protocol == CheckNone:
		return HealthCheck{}
	case l.HealthCheck != HealthCheck{}:
		return l.HealthCheck
	case ofBalancer != nil:
		return *ofBalancer
	}
	return HealthCheck{}
}

// HealthCheck says how targets are asked whether they can serve.
type HealthCheck struct {
	// Protocol is TCP (a connection is enough) or HTTP (an expected status of
	// Path).
	Protocol HealthCheckProtocol `json:"protocol"`
	Port     int                 `json:"port"`
	Path     string              `json:"path,omitempty"` // HTTP only
	// ExpectedCodes are statuses and ranges of them, such as "200-299,301"; 200
	// when empty. HTTP only.
	ExpectedCodes string `json:"expectedCodes,omitempty"`
	// Interval is from the start of one check to the start of the next;
	// Timeout is how long one may take, at most Interval.
	Interval time.Duration `json:"interval"`
	Timeout  time.Duration `json:"timeout"`
	// The thresholds are how many checks in a row change a target's health.
	HealthyThreshold   int `json:"healthyThreshold"`
	UnhealthyThreshold int `json:"unhealthyThreshold"`
}

// HealthCheckProtocol is how a target is checked.
type HealthCheckProtocol string

// The kinds of health checks. A balancer without a check has no HealthCheck: of balancers,
// CheckNone occurs in requests only. A listener of CheckNone has no check, whatever its balancer has.
const (
	CheckNone HealthCheckProtocol = "none"
	CheckTCP  HealthCheckProtocol = "tcp"
	CheckHTTP HealthCheckProtocol = "http"
)

// Health is what a balancer knows of a target.
type Health string

// A target that is not checked, or not yet, is unknown and is sent traffic. An unhealthy
// target is not. If all targets are unhealthy, clients are refused.
const (
	Healthy   Health = "healthy"
	Unhealthy Health = "unhealthy"
	Unknown   Health = "unknown"
)

// TargetHealth is one target's health, and the reason for it.
type TargetHealth struct {
	Target string // the instance's ID
	Health Health
	Reason string
	Since  time.Time // zero if that is not known
	// History has the changes that led to it, the latest first. It begins with the process
	// and keeps the last few changes. It is empty while the instance does not run.
	History []HealthChange
	// Listeners has the health by listener, if any listener has a check of its own. Then Health,
	// Reason, Since and History are those of the check that says the worst.
	Listeners []ListenerHealth
}

// ListenerHealth is a target's health by the check of one listener.
type ListenerHealth struct {
	Protocol Protocol
	Port     int
	Health   Health
	Reason   string
}

// HealthChange is a change of a target's health.
type HealthChange struct {
	Health Health
	Reason string
	At     time.Time
}

// LoadBalancer forwards from its addresses to those of its targets that run.
type LoadBalancer struct {
	Metadata
	Region    string     `json:"region"`
	Address   netip.Addr `json:"address"`
	AddressID string     `json:"addressId,omitempty"` // if it is a reserved one
	Address6  netip.Addr `json:"address6,omitzero"`   // its IPv6 address; not valid unless it has one
	// Network is the network that it is attached to, and PrivateAddress its address there; empty
	// and not valid unless it is attached.
	Network        string     `json:"network,omitempty"`
	PrivateAddress netip.Addr `json:"privateAddress,omitzero"`
	// Attached are reserved addresses that are attached to it, on which it serves as well.
	Attached    []netip.Addr      `json:"attached,omitempty"`
	State       LoadBalancerState `json:"state"`
	StateReason string            `json:"stateReason,omitempty"`
	// StateReasonCode is empty where programs need not tell the reason from others.
	StateReasonCode StateReasonCode  `json:"stateReasonCode,omitempty"`
	Listeners       []Listener       `json:"listeners"`      // may be empty: then only the address is held
	Targets         []string         `json:"targets"`        // instance IDs
	Type            LoadBalancerType `json:"type,omitempty"` // empty, as UnlimitedBalancer: no limits
	Kind            LoadBalancerKind `json:"kind,omitempty"` // empty, as ProxyBalancer: it is a proxy
	Scheme          Scheme           `json:"scheme,omitempty"`
	// The fields from here to HealthCheck are as in Forwarding.
	Algorithm    Algorithm      `json:"algorithm,omitempty"`
	SourceRanges []netip.Prefix `json:"sourceRanges,omitempty"`
	Affinity     time.Duration  `json:"affinity,omitempty"`
	IdleTimeout  time.Duration  `json:"idleTimeout,omitempty"`
	Drain        time.Duration  `json:"drain,omitempty"`
	HealthCheck  *HealthCheck   `json:"healthCheck,omitempty"`
	// Records are JSON objects of dialects, by their names: what they were told and the cloud
	// does not have.
	Records map[string]json.RawMessage `json:"records,omitempty"`
	// DeletionProtection has DeleteLoadBalancer refused.
	DeletionProtection bool `json:"deletionProtection,omitempty"`
}

// StateReasonCode says what a balancer's StateReason says, for programs.
type StateReasonCode string

// ReasonCannotListen means that the data plane cannot listen on the balancer's
// address and one of its ports.
const ReasonCannotListen StateReasonCode = "cannot-listen"

// LoadBalancerSpec asks for a balancer.
type LoadBalancerSpec struct {
	Name string
	// AddressID or Address chooses a reserved address, by its ID or its IP.
	AddressID string
	Address   string
	// IPFamilies are those to give it an address of; IPv4 alone when empty.
	IPFamilies []IPFamily
	// NetworkID attaches it to a network. PrivateAddress chooses its address there; the lowest free
	// one when empty.
	NetworkID      string
	PrivateAddress string
	Type           LoadBalancerType // UnlimitedBalancer when empty
	Kind           LoadBalancerKind // ProxyBalancer when empty
	Scheme         Scheme           // public when empty
	Algorithm      Algorithm        // the kind's default when empty
	Listeners      []Listener
	Targets        []string
	// SourceRanges are CIDRs of either family. If there are some and none is of a family,
	// clients of that family are refused.
	SourceRanges []string
	Affinity     time.Duration
	IdleTimeout  time.Duration
	Drain        time.Duration
	// HealthCheck has defaults for what is left zero.
	HealthCheck        *HealthCheck
	Records            map[string]json.RawMessage
	DeletionProtection bool
	Tags               map[string]string
}

// LoadBalancerUpdate replaces what is not nil. CheckNone removes a health check.
type LoadBalancerUpdate struct {
	Name *string
	// These must not differ from what the balancer has.
	AddressID  *string
	Address    *string
	Address6   *string
	IPFamilies *[]IPFamily
	// NetworkID attaches the balancer to a network, or detaches it when it is empty.
	NetworkID          *string
	PrivateAddress     *string
	Type               *LoadBalancerType
	Kind               *LoadBalancerKind
	Scheme             *Scheme
	Algorithm          *Algorithm
	Listeners          *[]Listener
	Targets            *[]string
	SourceRanges       *[]string
	Affinity           *time.Duration
	IdleTimeout        *time.Duration
	Drain              *time.Duration
	HealthCheck        *HealthCheck
	Records            map[string]json.RawMessage
	DeletionProtection *bool
	Tags               *map[string]string
}

// LoadBalancerStats is what a balancer carried since the process started.
type LoadBalancerStats struct {
	Listeners []ListenerStats
	// Targets are the current ones, in their order; of the data plane's own, some that
	// were targets follow.
	Targets []TargetStats
}

// ListenerStats counts what one listener carried.
type ListenerStats struct {
	Listener Listener
	// Connections counts accepted connections, Active those still open, and Failed those
	// closed because no target could be reached.
	Connections, Active, Failed int64
	// Broken counts connections that reached a target and ended otherwise than by both
	// sides' closing: by a reset, an idle timeout or the end of draining.
	Broken int64
	// Refused counts connections from outside of the source ranges or beyond the
	// connection limit. They are not among Connections.
	Refused int64
	// Packets counts those that came for the listener of a network balancer, whose Bytes are those of
	// whole packets and come in only.
	Packets int64
	Bytes
}

// TargetStats counts what one target was sent, on all ports together.
type TargetStats struct {
	Target string // the instance's ID
	// Connections counts those that the target took, Active those still open.
	Connections, Active int64
	// Failed counts the attempts to connect that failed; the client's may have
	// gone to another target.
	Failed int64
	// Broken and Packets are as in ListenerStats.
	Broken, Packets int64
	Bytes
}

// Bytes is payload. In is from clients to targets, Out back.
type Bytes struct{ In, Out int64 }

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

// EventType is what happened to a resource.
type EventType string

// The kinds of events.
const (
	Created EventType = "created"
	Updated EventType = "updated"
	Deleted EventType = "deleted"
)

// Resource is a kind of resource that events are about.
type Resource string

// The kinds of resources.
const (
	InstanceResource     Resource = "instance"
	LoadBalancerResource Resource = "load-balancer"
	AddressResource      Resource = "address"
	RouteResource        Resource = "route"
	NetworkResource      Resource = "network"
	FirewallResource     Resource = "firewall"
	QuotaResource        Resource = "quota" // of events alone
)

// Event is one change. Events are numbered in the order of the changes.
type Event struct {
	Seq      int64
	Project  string // the project's ID
	Time     time.Time
	Type     EventType
	Resource Resource
	ID, Name string
	// From and To are states; From is empty on created, To on deleted.
	From, To string
	Reason   string
	// Tags are the resource's.
	Tags map[string]string
	// Exactly one of these is set: the resource after the change.
	Instance     *Instance
	LoadBalancer *LoadBalancer
	Address      *api.ReservedAddress
	Route        *api.Route
	Network      *api.Network
	Firewall     *api.Firewall
}
