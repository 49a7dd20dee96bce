// my-ccm is a cloud controller manager for fakecloud, written step by step.
package main

// This file is finished: it makes upstream's controllers and your provider one
// program. All of upstream's flags work.

import (
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

func main() {
	opts, err := options.NewCloudControllerManagerOptions()
	if err != nil {
		fmt.Fprintln(os.Stderr, "my-ccm:", err)
		os.Exit(1)
	}
	opts.KubeCloudShared.CloudProvider.Name = providerName
	cmd := app.NewCloudControllerManagerCommand(opts, newCloudProvider, app.DefaultInitFuncConstructors,
		names.CCMControllerAliases(), cliflag.NamedFlagSets{}, wait.NeverStop)
	cmd.Use = "my-ccm"
	os.Exit(cli.Run(cmd))
}

// newCloudProvider reads the file of --cloud-config.
func newCloudProvider(cfg *config.CompletedConfig) cloudprovider.Interface {
	shared := cfg.ComponentConfig.KubeCloudShared
	p, err := newProvider(shared.CloudProvider.CloudConfigFile, shared.ClusterName)
	if err != nil {
		fmt.Fprintln(os.Stderr, "my-ccm:", err)
		os.Exit(1)
	}
	return p
}
