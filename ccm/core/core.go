// Package core is the model of a cloud controller manager: what k8s.io/cloud-provider asks of a cloud, answered by
// the calls of Cloud. Each method observes, compares, acts and returns; waiting is left to the controllers' retries.
// It has no memory, no limit, no Events and no controllers of its own: rings around it add them.
//
// Begin with Cloud, and with New. The way of a Node begins in instances.go, that of a Service in loadbalancer.go,
// that of a route in routes.go.
package core

import "github.com/ccmlab/ccmlab/ccm/config"

// Options are the parts of the configuration that say what is written on Nodes and asked of the cloud.
type Options struct {
	Labels    config.NodeLabels
	Addresses config.NodeAddresses
	// Defaults are annotations, without their prefix, of Services that do not have them.
	Defaults map[string]string
}

// New makes the provider for a cluster. Call Routes.Follow before the controllers start.
func New(cloud Cloud, cluster *Cluster, o Options) Provider {
	i := &instances{api: cloud, cluster: cluster, labels: o.Labels, addresses: o.Addresses}
	return Provider{
		Instances:     i,
		LoadBalancers: &loadBalancers{api: cloud, cluster: cluster, defaults: o.Defaults},
		Routes:        &routes{api: cloud, cluster: cluster, instances: i},
	}
}
