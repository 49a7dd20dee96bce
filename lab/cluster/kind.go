package cluster

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"

	"github.com/ccmlab/ccmlab/lab/state"
)

// Names of the kinds of clusters, as --cluster takes them and a lab's record has them.
const (
	KindEmbedded = "embedded"
	KindKind     = "kind"
	KindExternal = "external"
)

// DefaultKind is a new lab's, and that of a record that names none.
const DefaultKind = KindEmbedded

// Kind is a kind of cluster: how to create one, and what is known before one exists.
// Functions that a kind does not need are nil.
type Kind struct {
	Name string
	// New describes the cluster of a recorded lab; nothing is started.
	New func(lab *state.Lab, bin Binaries) (Cluster, error)
	// Choose records the settings of a new lab's cluster, as far as they can be chosen.
	Choose func(ctx context.Context, lab *state.Lab, s Settings, bin Binaries) error
	// Available says in a few words why this machine can have such a cluster; an error
	// says why it cannot, and what to do. It is nil for what every machine can have.
	Available func(ctx context.Context) (why string, err error)
	// Programs are those that a cluster of so many nodes needs, the project's own and
	// upstream's.
	Programs func(nodes int) (own, kube []string)
	// DeleteRemains ends and deletes what is left of a lab of which only the folder is
	// known, beside its processes. ended counts what was ended.
	DeleteRemains func(ctx context.Context, lab *state.Lab) (ended int, err error)
	// LendToSuite returns an error when a CCM under test would change what is in
	// somebody's cluster. With useNodes, the suite may use nodes that wait for a CCM.
	// tidy removes what the CCM leaves behind.
	LendToSuite func(ctx context.Context, kubeconfig string, useNodes bool) (tidy func(context.Context) error, err error)

	// NodeImages are the images that nodes can have, PodNetworks how pods on different
	// nodes can reach each other; the preferred one first.
	NodeImages, PodNetworks []string
	// TakesKubeconfig says that the cluster belongs to somebody, and is found by a
	// kubeconfig file. The lab creates no nodes in it.
	TakesKubeconfig bool
	// CloudProviderOptional tells that there are such clusters without an external cloud
	// provider.
	CloudProviderOptional bool
	// Hollow tells that nodes simulate their containers: several such clusters beside each
	// other cost a machine little, and nothing of an image runs on them.
	Hollow bool
}

var kinds []*Kind

// RegisterKinds makes the kinds known. Package kinds does so, for every program that
// imports it.
func RegisterKinds(all ...*Kind) { kinds = all }

// KindNamed is the kind of this name, or nil. "" is DefaultKind.
func KindNamed(name string) *Kind {
	if len(kinds) == 0 {
		panic("no kind of cluster is registered: import lab/cluster/kinds")
	}
	for _, k := range kinds {
		if k.Name == KindName(name) {
			return k
		}
	}
	return nil
}

// KindName is the kind that a record or a flag names; "" is DefaultKind.
func KindName(name string) string { return cmp.Or(name, DefaultKind) }

// Kinds are all that are registered, the default first.
func Kinds() []*Kind { return kinds }

// KindNames are the names of all that are registered, the default first.
func KindNames() []string {
	var names []string
	for _, k := range kinds {
		names = append(names, k.Name)
	}
	return names
}

// Settings are what a person may choose of a new lab's cluster; "" is the default. Each
// is for some kinds only.
type Settings struct{ NodeImage, PodNetwork, Kubeconfig, KubeletProviderIDs string }

// RecordedSettings are the settings that a lab's record has.
func RecordedSettings(lab *state.Lab) Settings {
	s := Settings{KubeletProviderIDs: lab.KubeletProviderIDs}
	if lab.Kind != nil {
		s.NodeImage, s.PodNetwork = lab.Kind.Image, lab.Kind.PodNetwork
	}
	if lab.External != nil {
		s.Kubeconfig = lab.External.Kubeconfig
	}
	return s
}

// RecordedNetwork is the address range that a lab has for itself; "" if it has none.
func RecordedNetwork(lab *state.Lab) string {
	switch {
	case lab.Slot != 0:
		return fmt.Sprintf("127.%d.0.0/16", lab.Slot)
	case lab.Kind != nil:
		return lab.Kind.Subnet
	}
	return ""
}

// KubeconfigPath is the kubeconfig's full path; "" for none.
func (s Settings) KubeconfigPath() string {
	if s.Kubeconfig == "" {
		return ""
	}
	if full, err := filepath.Abs(s.Kubeconfig); err == nil {
		return full
	}
	return s.Kubeconfig
}
