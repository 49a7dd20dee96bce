// Package annotations parses the annotations with which a Service configures its load balancer.
// Definitions is the table of all annotations: Parse uses it, and ANNOTATIONS.md is generated from
// it. Package ccm applies the values.
package annotations

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/pmezard/go-difflib/difflib"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// Prefix begins the names of all our annotations. An annotation that begins with it and is not defined is an error: a
// typo must not be silent.
const Prefix = contract.AnnotationPrefix

// The names of the annotations, without Prefix. None sets the balancer's name: that holds the Service's UID, so that a
// second balancer of the same Service cannot be made.
const (
	Kind                          = contract.NameKind
	Scheme                        = "scheme"
	Algorithm                     = "algorithm"
	IdleTimeout                   = "idle-timeout"
	Drain                         = "drain"
	ConnectionLimit               = "connection-limit"
	ProxyProtocol                 = "proxy-protocol"
	HealthCheck                   = contract.NameHealthCheck
	HealthCheckPort               = "health-check-port"
	HealthCheckPath               = "health-check-path"
	HealthCheckCodes              = "health-check-codes"
	HealthCheckInterval           = "health-check-interval"
	HealthCheckTimeout            = "health-check-timeout"
	HealthCheckHealthyThreshold   = "health-check-healthy-threshold"
	HealthCheckUnhealthyThreshold = "health-check-unhealthy-threshold"
	Address                       = "address"
	Tags                          = "tags"
	IPMode                        = "ip-mode"
	Hostname                      = "hostname"
	OnDelete                      = "on-delete"
	NodeSelector                  = "node-selector"
)

// OnDeletion is what happens to a balancer when its Service is deleted or no longer a LoadBalancer.
type OnDeletion string

// The values of OnDelete.
const (
	Delete OnDeletion = "delete"
	Keep   OnDeletion = "keep"
	Refuse OnDeletion = "refuse"
)

// Values are what the annotations of one Service say. A field is zero if its annotation was not given, or is wrong.
type Values struct {
	Kind      api.LoadBalancerKind
	Scheme    api.LoadBalancerScheme
	Algorithm api.LoadBalancerAlgorithm
	// IdleTimeout and Drain are in seconds.
	IdleTimeout, Drain api.Seconds
	ConnectionLimit    PerPort[int]
	ProxyProtocol      PerPort[api.ProxyProtocol]
	HealthCheck        api.HealthCheck
	// Address is the name or the ID of a reserved address.
	Address string
	Tags    api.Tags
	// IPMode and Hostname are for the Service's status alone.
	IPMode   corev1.LoadBalancerIPMode
	Hostname string
	OnDelete OnDeletion
	// NodeSelector chooses among the Nodes that may be targets; nil if it is not given, or wrong.
	NodeSelector labels.Selector
	given        map[string]string
	wrong        map[string]error
}

// Given tells whether the annotation was there.
func (v Values) Given(name string) bool {
	_, given := v.given[name]
	return given
}

// ErrorOf is nil if the annotation was not given, or has a value that it takes.
func (v Values) ErrorOf(name string) error { return v.wrong[name] }

// Error says what the annotation of that name is, and what it should be.
func (v Values) Error(name, format string, args ...any) error {
	return fmt.Errorf("annotation %s%s is %s; %s", Prefix, name, Quote(v.given[name]), fmt.Sprintf(format, args...))
}

// maxQuoted is how many bytes of a value are repeated in a message.
const maxQuoted = 80

// Quote quotes what somebody wrote, for a message. It cuts what is long, so that the reason stays in sight.
func Quote(value string) string { return strconv.Quote(Shorten(value)) }

// Shorten cuts what is long, as Quote does.
func Shorten(value string) string {
	if len(value) <= maxQuoted {
		return value
	}
	return strings.ToValidUTF8(value[:maxQuoted], "") + "…"
}

// Definition is one annotation.
type Definition struct {
	// Name is without Prefix.
	Name string
	// Want describes the values that it takes.
	Want    string
	Default string
	Example string
	// Effect is what it becomes in the cloud.
	Effect string

	set func(v *Values, value string) bool
}

// Parse reads those annotations of a Service that are ours. Its error names everything that is wrong with them, without
// regard to the rest of the Service.
func Parse(all map[string]string) (Values, error) {
	v := Values{given: map[string]string{}, wrong: map[string]error{}}
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(all)) {
		name, ours := strings.CutPrefix(key, Prefix)
		if !ours {
			continue
		}
		i := slices.IndexFunc(Definitions, func(d Definition) bool { return d.Name == name })
		if i < 0 {
			errs = append(errs, fmt.Errorf("annotation %s is unknown; did you mean %s%s?", key, Prefix, nearestName(name)))
			continue
		}
		v.given[name] = all[key]
		if parsed := v; Definitions[i].set(&parsed, all[key]) {
			v = parsed
		} else {
			v.wrong[name] = v.Error(name, "want %s", Definitions[i].Want)
			errs = append(errs, v.wrong[name])
		}
	}
	return v, errors.Join(append(errs, v.conflictErrors())...)
}

// Reject gives an error for each of the named annotations that the Service has.
func (v Values) Reject(why string, names ...string) error {
	var errs []error
	for _, name := range names {
		if v.Given(name) {
			errs = append(errs, v.Error(name, "%s", why))
		}
	}
	return errors.Join(errs...)
}

// conflictErrors are the errors of annotations that exclude each other.
func (v Values) conflictErrors() error {
	var errs []error
	rejectIf := func(broken bool, why string, names ...string) {
		if broken {
			errs = append(errs, v.Reject(why, names...))
		}
	}
	rejectIf(v.Scheme == api.SchemeInternal,
		"an internal load balancer takes no reserved address: leave it out, or "+Prefix+Scheme, Address)
	asKind := fmt.Sprintf(", as %s%s is %q: leave one of the two out", Prefix, Kind, v.Kind)
	isNetwork := v.Kind == api.KindNetwork
	rejectIf(!isNetwork && v.Algorithm == api.AlgorithmFlowHash, "a proxy does not have it"+asKind, Algorithm)
	rejectIf(isNetwork, "the load balancer only passes packets on"+asKind, ConnectionLimit, IdleTimeout, ProxyProtocol)
	rejectIf(isNetwork && v.Algorithm != api.AlgorithmFlowHash && v.Algorithm != api.AlgorithmSourceHash,
		"the load balancer spreads by flow-hash or source-hash"+asKind, Algorithm)
	rejectIf(isNetwork && v.IPMode == corev1.LoadBalancerIPModeProxy,
		"kube-proxy must take the packets for the Service's"+asKind, IPMode)
	p := v.HealthCheck.Protocol
	rejectIf(p == api.HealthCheckTCP || p == api.HealthCheckNone,
		fmt.Sprintf("it is for HTTP checks, and %s%s is %s", Prefix, HealthCheck, p), HealthCheckPath, HealthCheckCodes)
	return errors.Join(errs...)
}

// nearestName is the defined name that is most like name.
func nearestName(name string) string {
	likeness := func(d Definition) float64 {
		return difflib.NewMatcher(strings.Split(name, ""), strings.Split(d.Name, "")).Ratio()
	}
	return slices.MaxFunc(Definitions, func(a, b Definition) int { return cmp.Compare(likeness(a), likeness(b)) }).Name
}
