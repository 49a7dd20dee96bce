package ccm

// The binary: k8s.io/cloud-provider's app with this provider in it. Every
// upstream flag works; only defaults differ.

import (
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/wait"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/app"
	cloudcontrollerconfig "k8s.io/cloud-provider/app/config"
	cpconfig "k8s.io/cloud-provider/config"
	"k8s.io/cloud-provider/names"
	"k8s.io/cloud-provider/options"
	cliflag "k8s.io/component-base/cli/flag"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client-go's metrics on /metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // build info on /metrics
	"k8s.io/klog/v2"
)

// NewCommand is the ccm's command line.
func NewCommand() (*cobra.Command, error) {
	opts, err := options.NewCloudControllerManagerOptions()
	if err != nil {
		return nil, fmt.Errorf("building the options of the cloud controller manager: %w", err)
	}
	opts.KubeCloudShared.CloudProvider.Name = ProviderName
	cmd := app.NewCloudControllerManagerCommand(opts, initialize, app.DefaultInitFuncConstructors,
		names.CCMControllerAliases(), cliflag.NamedFlagSets{}, wait.NeverStop)
	cmd.Use = "ccm"
	cmd.Long = `ccm is the cloud controller manager for fakecloud. It initialises Nodes from the
cloud's instances, removes Nodes whose instance has ended, taints those that are
shut down, and builds load balancers for Services. With --cluster-cidr it also
routes each Node's pod range to its instance.

It needs a kubeconfig (--kubeconfig) and where the cloud is (--cloud-config, or
FAKECLOUD_URL, FAKECLOUD_TOKEN_FILE and FAKECLOUD_PROJECT in the environment).`
	return cmd, nil
}

// initialize ends the process when the configuration is wrong: nothing it
// could do later would be right.
func initialize(cfg *cloudcontrollerconfig.CompletedConfig) cloudprovider.Interface {
	routesNeedCIDR(&cfg.ComponentConfig.KubeCloudShared)
	provider := cfg.ComponentConfig.KubeCloudShared.CloudProvider
	if provider.Name != ProviderName {
		klog.ErrorS(nil, "This binary knows one cloud only", "want", ProviderName, "got", provider.Name)
		klog.FlushAndExit(klog.ExitFlushTimeout, 1)
	}
	ofCluster = cfg.ComponentConfig.KubeCloudShared.ClusterName
	cloud, err := open(provider.CloudConfigFile)
	if err != nil {
		fmt.Fprintf(os.Stderr, "ccm: %v\n", err)
		klog.FlushAndExit(klog.ExitFlushTimeout, 1)
	}
	return cloud
}

// routesNeedCIDR switches the route controller, which is on unless told
// otherwise, off where it would end the process: it cannot tell which routes
// are its business without the cluster's range.
func routesNeedCIDR(shared *cpconfig.KubeCloudSharedConfiguration) {
	if shared.ConfigureCloudRoutes && strings.TrimSpace(shared.ClusterCIDR) == "" {
		klog.Warning("No cloud routes are made: give --cluster-cidr, the range of the cluster's pods, to have them, or --configure-cloud-routes=false to be told no more")
		shared.ConfigureCloudRoutes = false
	}
}

// open reads the file itself where upstream's InitCloudProvider would answer a
// missing one with a stack trace.
func open(file string) (cloudprovider.Interface, error) {
	if file == "" {
		return cloudprovider.GetCloudProvider(ProviderName, nil)
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("--cloud-config: %w", err)
	}
	defer func() { _ = f.Close() }()
	return cloudprovider.GetCloudProvider(ProviderName, f)
}

func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return strings.Trim(info.Main.Version, "()")
	}
	return "devel"
}
