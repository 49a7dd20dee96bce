// Package dialects has what the lab must know of other clouds' CCMs to run one unmodified: a
// preset for each dialect that the lab's cloud speaks, and for CCMs that call no cloud, one
// readable file each. It knows neither clusters nor clouds. Begin with Named.
package dialects

import (
	"embed"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

//go:embed presets/*.yaml
var files embed.FS

// Preset is how the CCM of a dialect's cloud is run. Its texts are templates, as those of
// program.CCM are.
type Preset struct {
	// Summary says in a sentence which program it is for.
	Summary string `json:"summary"`
	// Env and Args are what the program gets, before what a person adds.
	Env  map[string]string `json:"env"`
	Args []string          `json:"args"`
	// Client is what `lab env` gives the cloud's own tools, for whom the token is the operator's.
	Client map[string]string `json:"client"`
	// Config, unless "", is the template of the file that the program finds as {{.CloudConfig}}.
	Config string `json:"config"`
	// WithoutAPI tells that the program makes its cloud's answers up and calls nobody: there is no
	// dialect to speak, and nothing to judge.
	WithoutAPI bool `json:"withoutAPI"`
	// Region and Zones are those of the cloud of a lab that is made for the program; "" is fakecloud's own.
	Region string   `json:"region"`
	Zones  []string `json:"zones"`
	// KubeletProviderIDs is what kubelets get as --provider-id, a template of cluster.KubeletProviderID,
	// for a program that does not find instances by Node name.
	KubeletProviderIDs string `json:"kubeletProviderIDs"`
	// WithoutBalancers tells that it makes no load balancers: Services stay pending.
	WithoutBalancers bool `json:"withoutBalancers"`
	// WithoutRoutes tells that it makes no routes. Where nodes need them, the lab makes them.
	WithoutRoutes bool `json:"withoutRoutes"`
	// AddressNames tells that it resolves the names of load balancers' addresses.
	AddressNames bool `json:"addressNames"`
	// Suite is what the conformance suite must know beside that.
	Suite Suite `json:"suite"`
	// Limits say what a person who knows the real cloud must know of the lab, a sentence each.
	Limits []string `json:"limits"`
}

// Suite is how a dialect's CCM is judged.
type Suite struct {
	// Env and Args come after the preset's.
	Env  map[string]string `json:"env"`
	Args []string          `json:"args"`
	// ServiceTag is the tag by which the CCM marks a balancer with its Service's UID.
	ServiceTag string `json:"serviceTag"`
	// AddressPrefix is for a CCM whose balancers are reserved addresses: what their names have before the Service's
	// namespace and name.
	AddressPrefix string `json:"addressPrefix"`
	// Region is what it calls the region of the lab's cloud; the cloud's name for it if empty.
	Region string `json:"region"`
	// ExternalAddresses tells that all addresses of Nodes are external ones to it, and that each has an IPv6
	// address beside it.
	ExternalAddresses bool `json:"externalAddresses"`
	// InstanceTypes are its cloud's names of the types of the lab's, where they differ.
	InstanceTypes map[string]string `json:"instanceTypes"`
	// RegionIsZone tells that its cloud has no regions beside what the lab's calls zones.
	RegionIsZone bool `json:"regionIsZone"`
	// Claims are capabilities that the CCM has. Unsupported are features and capabilities that
	// it or its cloud does not have, each with the reason.
	Claims      []string          `json:"claims"`
	Unsupported map[string]string `json:"unsupported"`
}

// Names are those of all presets, sorted: the dialects, and those without an API.
func Names() (names []string) {
	all, _ := fs.Glob(files, "presets/*.yaml") // The pattern is a good one.
	for _, file := range all {
		names = append(names, strings.TrimSuffix(path.Base(file), ".yaml"))
	}
	return names
}

// Source is the preset's file, with its comments.
func Source(dialect string) ([]byte, error) {
	if !slices.Contains(Names(), dialect) {
		return nil, fmt.Errorf("no dialect %q: choose %s", dialect, strings.Join(Names(), ", "))
	}
	return files.ReadFile("presets/" + dialect + ".yaml")
}

// Named reads the preset of a dialect.
func Named(dialect string) (*Preset, error) {
	source, err := Source(dialect)
	if err != nil {
		return nil, err
	}
	p := &Preset{}
	if err := yaml.UnmarshalStrict(source, p); err != nil {
		return nil, fmt.Errorf("preset %s: %w", dialect, err)
	}
	return p, nil
}

// Environment gives Env as NAME=value, sorted.
func (p *Preset) Environment() []string { return pairs(p.Env) }

// Environment gives Env as NAME=value, sorted.
func (s Suite) Environment() []string { return pairs(s.Env) }

func pairs(env map[string]string) (all []string) {
	for _, name := range slices.Sorted(maps.Keys(env)) {
		all = append(all, name+"="+env[name])
	}
	return all
}
