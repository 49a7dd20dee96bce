package lab

// A cluster with an external cloud provider waits for a CCM; one without does
// not, and a CCM is not started in it.

import (
	"cmp"
	"fmt"

	"github.com/ccmlab/ccmlab/lab/cluster"
)

// provider is what a new lab's cluster is to have.
func (o Options) provider() (string, error) {
	provider, kind := cmp.Or(o.CloudProvider, cluster.ProviderExternal), cmp.Or(o.Cluster, Embedded)
	if provider == cluster.ProviderNone && kind != Embedded {
		return "", fmt.Errorf("a cluster without a cloud provider is embedded only, not of kind %s", kind)
	}
	return provider, nil
}

// provider is what the lab's cluster has, one of cluster.Providers.
func (l *Lab) provider() string {
	if l.Cluster.Traits().NoCloudProvider {
		return cluster.ProviderNone
	}
	return cluster.ProviderExternal
}

// wantsCCM is an error in a cluster that does not wait for a CCM. One would
// initialise no Node there, since it does so only where the taint is
// (k8s.io/cloud-provider, controllers/node), and the kubelets would overwrite the
// addresses that it sets.
func (l *Lab) wantsCCM() error {
	if !l.Cluster.Traits().NoCloudProvider {
		return nil
	}
	return fmt.Errorf("lab %[1]q is a cluster without an external cloud provider: its kubelets run without --cloud-provider=external, so its nodes have no taint and a CCM would initialise none of them; "+
		"`lab up --name OTHER` brings one up beside it that waits for a CCM, and `lab compare %[1]s OTHER` shows the difference", l.State.Name)
}
