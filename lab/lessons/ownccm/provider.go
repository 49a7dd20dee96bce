package main

// This file is finished, too: it says where the cloud is, and which of the things
// that a cloud may have this one has.

import (
	// step 7
	"errors"
	// end
	"fmt"
	// step 7
	"io"
	// before
	// "os"
	// end

	cloudprovider "k8s.io/cloud-provider"
	"sigs.k8s.io/yaml"

	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// step 6
// before
// import "errors"
// end

const (
	// providerName is what the provider is called.
	providerName = "fakecloud"
	// scheme begins its provider IDs: fakecloud://INSTANCE-ID.
	scheme = providerName + "://"
)

// Tags by which we know what is ours in the cloud.
const (
	// tagCluster, on instances, balancers and routes, names the cluster they belong to.
	tagCluster = "kubernetes-cluster"
	// tagServiceUID, on balancers, is the UID of the Service they are for.
	tagServiceUID = "kubernetes-service-uid"
	// tagService is its namespace and name, for people.
	tagService = "kubernetes-service"
	// tagNode, on routes, is the name of the Node they lead to.
	tagNode = "kubernetes-node"
)

// provider is the cloud as Kubernetes' controllers see it.
type provider struct {
	cloud *client.Client
	// project is the name of the cloud's project that the cluster is in.
	project string
	// cluster is the cluster's name, --cluster-name.
	cluster string
}

// step 7

// newProvider is a cloudprovider.Factory. The configuration is nil without --cloud-config.
func newProvider(configuration io.Reader) (cloudprovider.Interface, error) {
	if configuration == nil {
		return nil, errors.New("--cloud-config is missing")
	}
	data, err := io.ReadAll(configuration)
	// before
	// func newProvider(configFile, cluster string) (*provider, error) {
	// 	data, err := os.ReadFile(configFile)
	// end
	if err != nil {
		return nil, fmt.Errorf("--cloud-config: %w", err)
	}
	var config struct {
		URL       string `json:"url"`
		TokenFile string `json:"tokenFile"`
		Project   string `json:"project"`
		CAFile    string `json:"caFile"`
	}
	if err := yaml.UnmarshalStrict(data, &config); err != nil {
		return nil, fmt.Errorf("--cloud-config: %w", err)
	}
	cloud, err := client.New(
		client.Config{URL: config.URL, TokenFile: config.TokenFile, CAFile: config.CAFile, UserAgent: "my-ccm"},
	)
	// step 7
	return &provider{cloud: cloud, project: config.Project}, err
	// before
	// return &provider{cloud: cloud, project: config.Project, cluster: cluster}, err
	// end
}

// step 6
// before
// // errNotWritten is what a method answers until you have written it. An error makes
// // nothing worse: the controllers try again later.
// var errNotWritten = errors.New("this is not written yet")
// end

// Initialize implements cloudprovider.Interface.
func (p *provider) Initialize(cloudprovider.ControllerClientBuilder, <-chan struct{}) {}

// ProviderName implements cloudprovider.Interface.
func (p *provider) ProviderName() string { return providerName }

// HasClusterID implements cloudprovider.Interface.
// step 7
func (p *provider) HasClusterID() bool { return p.cluster != "" }

// before
// func (p *provider) HasClusterID() bool { return true }
// end

// InstancesV2 implements cloudprovider.Interface: see instances.go.
func (p *provider) InstancesV2() (cloudprovider.InstancesV2, bool) { return p, true }

// LoadBalancer implements cloudprovider.Interface: see balancers.go.
func (p *provider) LoadBalancer() (cloudprovider.LoadBalancer, bool) { return p, true }

// Instances, Zones and Clusters are older interfaces that InstancesV2 has replaced.
func (p *provider) Instances() (cloudprovider.Instances, bool) { return nil, false }

// Zones implements cloudprovider.Interface.
func (p *provider) Zones() (cloudprovider.Zones, bool) { return nil, false }

// Clusters implements cloudprovider.Interface.
func (p *provider) Clusters() (cloudprovider.Clusters, bool) { return nil, false }

// step 6

// Routes implements cloudprovider.Interface: see routes.go.
func (p *provider) Routes() (cloudprovider.Routes, bool) { return p, true }

// before
// // Routes implements cloudprovider.Interface: the cloud's routes are somebody else's, so
// // far. The last lesson is about routes.go.
// func (p *provider) Routes() (cloudprovider.Routes, bool) { return nil, false }
// end
