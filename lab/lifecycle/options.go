package lifecycle

import (
	"cmp"
	"fmt"
	"time"

	"github.com/ccmlab/ccmlab/lab/cluster"
)

// Options of Up.
type Options struct {
	Name string
	// Cluster is the kind of cluster; "" is the one that the lab has, or
	// cluster.DefaultKind.
	Cluster string
	// CloudProvider is one of cluster.Providers; "" is the one that the lab has,
	// or external. None is for kinds that can do without.
	CloudProvider string
	// Nodes is the number of instances to begin with; 0 is as many as the lab
	// was brought up with before, or as its kind of cluster begins with;
	// NoNodes is none.
	Nodes int
	// Profile is the cloud's; "" is the one that the lab has, or
	// DefaultProfile.
	Profile string
	// WithoutCCM and WithoutDemo leave the CCM and the demo out.
	WithoutCCM, WithoutDemo bool
	// Fleeting has a new lab that does not come up taken down again.
	Fleeting bool
	// NodeImage and PodNetwork are for kind, Kubeconfig is for external; "" is
	// what the lab has, or the default.
	NodeImage, PodNetwork, Kubeconfig string
	// StepTimeout is how long each step may take; 0 is what suits the step.
	StepTimeout time.Duration
	// Bundle is a file to run from instead of what was built here; bin is where
	// it has been unpacked.
	Bundle, bin string
}

// NoNodes makes a lab of a control plane alone.
const NoNodes = -1

// DefaultProfile is a new lab's.
const DefaultProfile = "fast"

// cloudProvider is what a new lab's cluster is to have.
func (o Options) cloudProvider() (string, error) {
	provider := cmp.Or(o.CloudProvider, cluster.ProviderExternal)
	if kind := cluster.KindNamed(o.Cluster); provider == cluster.ProviderNone && (kind == nil ||
		!kind.CloudProviderOptional) {
		return "", fmt.Errorf(
			"a cluster without a cloud provider is embedded only, not of kind %s", cluster.KindName(o.Cluster),
		)
	}
	return provider, nil
}

// settings are those that are for some kinds of clusters only.
func (o Options) settings() cluster.Settings {
	return cluster.Settings{NodeImage: o.NodeImage, PodNetwork: o.PodNetwork, Kubeconfig: o.Kubeconfig}
}
