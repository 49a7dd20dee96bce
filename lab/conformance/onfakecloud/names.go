package onfakecloud

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// Names are what a CCM calls the marks by which the driver tells what is its cluster's. A name that
// is "" is that of the lab's own CCM.
type Names struct {
	// ClusterTag is the tag with the cluster's name, on balancers and routes.
	ClusterTag string
	// ClusterUIDTag is the tag with the UID of the cluster, on balancers and routes: that of its
	// namespace kube-system.
	ClusterUIDTag string
	// ServiceTag is the tag with the UID of a balancer's Service.
	ServiceTag string
	// ProviderIDPrefix is what a provider ID has before the instance's ID.
	ProviderIDPrefix string
	// Dialect, unless "", is that of another cloud's CCM, which calls an instance as the dialect does.
	Dialect string
	// RegionIsZone tells that its cloud has no regions beside what this one calls zones.
	RegionIsZone bool
	// InstanceTypes are its cloud's names of types, by this one's, where they differ.
	InstanceTypes map[string]string
	// Region is its cloud's name for the region; "" is this one's.
	Region string
	// ExternalAddresses tells that instances have external addresses alone to it, and an IPv6 one beside each.
	ExternalAddresses bool
	// AddressPrefix, unless "", tells that a Service's balancer is a reserved address that is attached to one
	// Node's instance. Its name begins so, and goes on with the Service's namespace and name.
	AddressPrefix string
}

// fields are the names by what they are called on a command line.
func (n *Names) fields() map[string]*string {
	return map[string]*string{
		"cluster-tag": &n.ClusterTag, "cluster-uid-tag": &n.ClusterUIDTag, "service-tag": &n.ServiceTag,
		"provider-id": &n.ProviderIDPrefix,
	}
}

// NameKinds are what can be named otherwise.
func NameKinds() []string { return slices.Sorted(maps.Keys(new(Names).fields())) }

// ParseNames reads names by their kind. All mistakes are told at once.
func ParseNames(given map[string]string) (Names, error) {
	var names Names
	fields := names.fields()
	var wrong []string
	for kind, name := range given {
		field, known := fields[kind]
		if !known || name == "" {
			wrong = append(wrong, fmt.Sprintf("%q", kind+"="+name))
			continue
		}
		*field = name
	}
	if len(wrong) > 0 {
		slices.Sort(wrong)
		return Names{}, fmt.Errorf(
			"%s: want KIND=NAME, of the kinds %s", strings.Join(wrong, ", "), strings.Join(NameKinds(), ", "),
		)
	}
	return names, nil
}

func (n Names) clusterTag() string { return cmp.Or(n.ClusterTag, contract.TagCluster) }
func (n Names) clusterUIDTag() string {
	return cmp.Or(n.ClusterUIDTag, contract.TagClusterUID)
}
func (n Names) serviceTag() string { return cmp.Or(n.ServiceTag, contract.TagServiceUID) }

func (n Names) providerID(i *api.Instance) string {
	if n.Dialect != "" {
		return i.Identities[n.Dialect]
	}
	return n.providerIDPrefix() + i.ID
}

func (n Names) providerIDPrefix() string {
	return cmp.Or(n.ProviderIDPrefix, contract.ProviderIDPrefix)
}

// KubeletProviderIDs is the template of what a lab's kubelets are given as --provider-id.
func (n Names) KubeletProviderIDs() string {
	if n.Dialect != "" {
		return "{{.Identities." + n.Dialect + "}}"
	}
	return n.providerIDPrefix() + "{{.ID}}"
}

// instanceTags mark an instance as the cluster's, for the CCM and for the lab, which runs a machine
// for it unless it is to be none.
func (n Names) instanceTags(cluster string, machine bool) api.Tags {
	tags := api.Tags{contract.TagCluster: cluster, n.clusterTag(): cluster}
	if !machine {
		tags[contract.TagMachine] = contract.NoMachine
	}
	return tags
}
