// my-ccm is a cloud controller manager for fakecloud, written step by step.
package main

// step 7
// This file makes upstream's controllers and a provider one program: the provider that
// --cloud-provider names. All of upstream's flags work.
// before
// // This file is finished: it makes upstream's controllers and your provider one
// // program. All of upstream's flags work.
// end

import (
	// step 7
	"errors"
	// end
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/util/wait"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/app"
	"k8s.io/cloud-provider/app/config"
	"k8s.io/cloud-provider/names"
	"k8s.io/cloud-provider/options"
	"k8s.io/component-base/cli"
	cliflag "k8s.io/component-base/cli/flag"
)

// step 7

func init() { cloudprovider.RegisterCloudProvider(providerName, newProvider) }

// end

func main() {
	opts, err := options.NewCloudControllerManagerOptions()
	if err != nil {
		fmt.Fprintln(os.Stderr, "my-ccm:", err)
		os.Exit(1)
	}
	// step 7
	// before
	// opts.KubeCloudShared.CloudProvider.Name = providerName
	// end
	cmd := app.NewCloudControllerManagerCommand(opts, newCloudProvider, app.DefaultInitFuncConstructors,
		names.CCMControllerAliases(), cliflag.NamedFlagSets{}, wait.NeverStop)
	cmd.Use = "my-ccm"
	os.Exit(cli.Run(cmd))
}

// step 7

// newCloudProvider makes the provider that --cloud-provider names. Its factory gets the
// file of --cloud-config; what else it needs comes from here.
func newCloudProvider(cfg *config.CompletedConfig) cloudprovider.Interface {
	shared := cfg.ComponentConfig.KubeCloudShared
	cloud, err := cloudprovider.InitCloudProvider(shared.CloudProvider.Name, shared.CloudProvider.CloudConfigFile)
	if p, ok := cloud.(*provider); ok {
		p.cluster = shared.ClusterName
	}
	switch {
	case err != nil:
	case cloud == nil: // The name is "external".
		err = fmt.Errorf("--cloud-provider=%s names no provider", shared.CloudProvider.Name)
	case !cloud.HasClusterID() && !shared.AllowUntaggedCloud:
		err = errors.New("no cluster ID: give --cluster-name, or --allow-untagged-cloud")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "my-ccm:", err)
		os.Exit(1)
	}
	return cloud
}

// before
// // newCloudProvider reads the file of --cloud-config.
// func newCloudProvider(cfg *config.CompletedConfig) cloudprovider.Interface {
// 	shared := cfg.ComponentConfig.KubeCloudShared
// 	p, err := newProvider(shared.CloudProvider.CloudConfigFile, shared.ClusterName)
// 	if err != nil {
// 		fmt.Fprintln(os.Stderr, "my-ccm:", err)
// 		os.Exit(1)
// 	}
// 	return p
// }
// end
