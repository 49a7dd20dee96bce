// Package annotations is what a Service may ask of its load balancer beyond what
// a Service has fields for. The table of definitions is what is parsed by and
// what ANNOTATIONS.md is written from, so that neither can be ahead of the other.
package annotations

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

//go:generate go run ./docs ../ANNOTATIONS.md

// Prefix is that of all our annotations. One that begins with it and is not
// defined is an error: a typo must not be silent.
const Prefix = contract.AnnotationPrefix

// The names of the annotations, without Prefix. There is none for a balancer's
// name: it holds the Service's UID, which is what keeps a second balancer of the
// same Service from being made.
const (
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
)

// Values are the annotations of one Service. What was not given is zero.
type Values struct {
	Scheme    api.LoadBalancerScheme
	Algorithm api.LoadBalancerAlgorithm
	// IdleTimeout and Drain are in seconds.
	IdleTimeout, Drain int
	ConnectionLimit    PerPort[int]
	ProxyProtocol      PerPort[api.ProxyProtocol]
	HealthCheck        api.HealthCheck
	// Address is the name or the ID of a reserved address.
	Address string
	Tags    api.Tags
	given   map[string]string
}

// Given tells whether the annotation was there.
func (v Values) Given(name string) bool {
	_, given := v.given[name]
	return given
}

// Error is about the annotation of that name: what it is, and what it should be.
func (v Values) Error(name, format string, args ...any) error {
	return invalid(name, v.given[name], fmt.Sprintf(format, args...))
}

func invalid(name, value, want string) error {
	return fmt.Errorf("annotation %s%s is %q; %s", Prefix, name, value, want)
}

// Definition is one annotation.
type Definition struct {
	// Name is without Prefix.
	Name string
	// Want are the values that it takes, as a person would say it.
	Want    string
	Default string
	Example string
	// Effect is what it becomes in the cloud.
	Effect string

	set func(v *Values, value string) bool
}

// Parse reads the annotations of a Service that are ours, and reports all that is
// wrong with them by themselves at once.
func Parse(all map[string]string) (Values, error) {
	v := Values{given: map[string]string{}}
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(all)) {
		name, ours := strings.CutPrefix(key, Prefix)
		if !ours {
			continue
		}
		i := slices.IndexFunc(Definitions, func(d Definition) bool { return d.Name == name })
		if i < 0 {
			errs = append(errs, fmt.Errorf("annotation %s is unknown; did you mean %s%s?", key, Prefix, nearest(name)))
			continue
		}
		v.given[name] = all[key]
		if !Definitions[i].set(&v, all[key]) {
			errs = append(errs, invalid(name, all[key], "want "+Definitions[i].Want))
		}
	}
	return v, errors.Join(append(errs, v.together()...)...)
}

// together are the errors of annotations that do not go with each other.
func (v Values) together() []error {
	var errs []error
	if v.Scheme == api.SchemeInternal && v.Given(Address) {
		errs = append(errs, v.Error(Address, "an internal load balancer takes no reserved address: leave it out, or %s%s", Prefix, Scheme))
	}
	if v.HealthCheck.Protocol != api.HealthCheckHTTP {
		for _, name := range []string{HealthCheckPath, HealthCheckCodes} {
			if v.Given(name) {
				errs = append(errs, v.Error(name, "it is for %s%s: http only", Prefix, HealthCheck))
			}
		}
	}
	return errs
}

// nearest is the defined name with the fewest letters' difference.
func nearest(name string) string {
	return slices.MinFunc(Definitions, func(a, b Definition) int {
		return cmp.Compare(distance(name, a.Name), distance(name, b.Name))
	}).Name
}

// distance is Levenshtein's.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
