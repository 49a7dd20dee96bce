package ccm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"strings"
	"time"

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
	"k8s.io/component-base/version/verflag"
	"k8s.io/klog/v2"

	"github.com/ccmlab/ccmlab/ccm/calls"
	"github.com/ccmlab/ccmlab/ccm/config"
	"github.com/ccmlab/ccmlab/ccm/contract"
	ccmversion "github.com/ccmlab/ccmlab/ccm/version"
	"github.com/ccmlab/ccmlab/ccm/watch"
)

// NewCommand is the ccm's command line: k8s.io/cloud-provider's app with this provider in
// it. Upstream's flags work, except --use-service-account-credentials; some defaults differ.
func NewCommand() (*cobra.Command, error) {
	opts, err := options.NewCloudControllerManagerOptions()
	if err != nil {
		return nil, fmt.Errorf("building the options of the cloud controller manager: %w", err)
	}
	opts.KubeCloudShared.CloudProvider.Name = contract.ProviderName
	setDefaultsForThousandNodes(opts)
	cmd := app.NewCloudControllerManagerCommand(opts, initializeCloud, controllerConstructors(),
		controllerAliases(), cliflag.NamedFlagSets{}, wait.NeverStop)
	cmd.Use = "ccm"
	cmd.Long = `ccm is the cloud controller manager for fakecloud. It initialises Nodes from the
cloud's instances, removes Nodes whose instance has ended, taints those that are
shut down, builds load balancers for Services, and repairs what is changed in
the cloud behind the cluster's back. With --cluster-cidr it also
routes each Node's pod range to its instance.

It needs a kubeconfig (--kubeconfig; by default that of the pod it runs in) and
the address of the cloud (--cloud-config, or FAKECLOUD_URL,
FAKECLOUD_TOKEN_FILE and FAKECLOUD_PROJECT in the environment). This build was
tested with Kubernetes ` + ccmversion.Supported + `.

Examples:
  # A cluster named lab, from outside
  ccm --kubeconfig=admin.conf --cloud-config=cloud.yaml --cluster-name=lab
  # With a route for each Node's pods
  ccm --kubeconfig=admin.conf --cloud-config=cloud.yaml --cluster-cidr=10.244.0.0/16
  # Without load balancers; short names of controllers work too
  ccm --kubeconfig=admin.conf --cloud-config=cloud.yaml --controllers=*,-service-lb-controller

Exit codes: 0 after --help and --version; 1 when the command line, the cloud
config or the kubeconfig is wrong, or leadership was lost.`
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		// --version=raw and --version=v1.2.3 keep upstream's meaning.
		if cmd.Flag("version").Value.String() == string(verflag.VersionTrue) {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), ccmversion.Get())
			return err
		}
		if opts.KubeCloudShared.UseServiceAccountCredentials {
			return errServiceAccountCredentials
		}
		return run(cmd, args)
	}
	// Upstream would print all flags, and there are a hundred.
	cmd.SilenceUsage = true
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w; %s --help shows all flags", err, cmd.Name())
	})
	return cmd, nil
}

// errServiceAccountCredentials refuses a flag with which upstream's client builder ends the process: it makes a service
// account for each controller, for which the CCM has no rights, and Kubernetes has no roles for what they would be.
var errServiceAccountCredentials = errors.New("--use-service-account-credentials is not supported: " +
	"all controllers use the CCM's own account, whose rights are in manifests/ccm/base/rbac; leave the flag out")

// setDefaultsForThousandNodes sets the defaults that are not upstream's. Flags change them as
// usual.
func setDefaultsForThousandNodes(o *options.CloudControllerManagerOptions) {
	// With upstream's 20 calls a second to the API server, 1,000 Nodes would take minutes:
	// each takes several calls. The burst holds most of them; the API server's own priority
	// and fairness defends it from more.
	o.Generic.ClientConnection.QPS, o.Generic.ClientConnection.Burst = 500, 2000
	// Each worker waits for the API server most of its time: 30 of them keep it
	// busy. Upstream's is 1. Status updates take as many (their flag is 0).
	o.NodeController.ConcurrentNodeSyncs = 30
	// Upstream's is 1: a Service whose balancer is refused would keep all others waiting. A
	// Service is never with two workers at once.
	o.ServiceController.ConcurrentServiceSyncs = 20
	// Changed addresses are noticed within a minute, not five: instances are read from
	// memory, and a Node is written only when it differs.
	o.NodeStatusUpdateFrequency.Duration = time.Minute
}

// initializeCloud makes the provider for upstream's app. It ends the process if the configuration is
// wrong.
func initializeCloud(cfg *cloudcontrollerconfig.CompletedConfig) cloudprovider.Interface {
	disableRoutesWithoutCIDR(&cfg.ComponentConfig.KubeCloudShared)
	if warning := clusterNameWarning(cfg.ComponentConfig.KubeCloudShared.ClusterName); warning != "" {
		klog.Warning(warning)
	}
	provider := cfg.ComponentConfig.KubeCloudShared.CloudProvider
	if provider.Name != contract.ProviderName {
		klog.ErrorS(nil, "This binary supports one cloud only", "want", contract.ProviderName, "got", provider.Name)
		klog.FlushAndExit(klog.ExitFlushTimeout, 1)
	}
	cloud, err := openCloud(provider.CloudConfigFile, cfg.ComponentConfig.KubeCloudShared.ClusterName)
	if err != nil {
		fmt.Fprintf(os.Stderr, "ccm: %v\n", err)
		klog.FlushAndExit(klog.ExitFlushTimeout, 1)
	}
	go ccmversion.LogSkew(context.Background(), cfg.VersionedClient.Discovery())
	return cloud
}

// disableRoutesWithoutCIDR switches the route controller off, which is on by default, where
// it would end the process: without the cluster's range it cannot tell which routes are its
// own.
func disableRoutesWithoutCIDR(shared *cpconfig.KubeCloudSharedConfiguration) {
	if shared.ConfigureCloudRoutes && strings.TrimSpace(shared.ClusterCIDR) == "" {
		klog.Warning("No cloud routes are created: set --cluster-cidr, the range of the cluster's pods, to create them, " +
			"or --configure-cloud-routes=false to silence this warning")
		shared.ConfigureCloudRoutes = false
	}
}

// defaultClusterName is upstream's default of --cluster-name.
const defaultClusterName = "kubernetes"

// clusterNameWarning is the warning about a cluster name that others may have, too; "" for any other
// name.
func clusterNameWarning(name string) string {
	if name != defaultClusterName {
		return ""
	}
	return fmt.Sprintf("--cluster-name is %q, upstream's default, which other clusters of the cloud's project "+
		"may have, too: give each cluster its own name. Load balancers and routes without the tag of the "+
		"cluster's UID are told apart by the name", name)
}

// openCloud reads the configuration, from the environment alone if there is no file, and
// makes the provider. Upstream's InitCloudProvider would answer a missing file with a stack
// trace.
func openCloud(configFile, cluster string) (*cloud, error) {
	var file io.Reader
	if configFile != "" {
		f, err := os.Open(configFile)
		if err != nil {
			return nil, fmt.Errorf("--cloud-config: %w", err)
		}
		defer func() { _ = f.Close() }()
		file = f
	}
	cfg, err := config.Read(file, os.Getenv)
	if err != nil {
		return nil, err
	}
	return newCloud(cfg, cluster)
}

func binaryVersion() string { return ccmversion.Get().Version }

// controllerConstructors are those of upstream's controllers and of the cloud watch, by the names that --controllers
// takes.
func controllerConstructors() map[string]app.ControllerInitFuncConstructor {
	all := maps.Clone(app.DefaultInitFuncConstructors)
	all[names.NodeRouteController] = withRoutedNodes(all[names.NodeRouteController])
	watch.AddControllers(all)
	return all
}

// controllerAliases are the short names that --controllers takes too.
func controllerAliases() map[string]string {
	aliases := names.CCMControllerAliases()
	aliases["cloud-watch"] = calls.CloudWatch
	return aliases
}
