package hollowkubelet

// This file answers how the kubelet is configured. It starts from upstream's
// defaults rather than from kubemark.GetHollowKubeletConfig, which leaves a
// directory in /tmp behind at each start and sets a providerID.

import (
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
)

const maxPods = 110

func kubeletFlags(o Options) *options.KubeletFlags {
	flags := options.NewKubeletFlags()
	flags.RootDirectory = o.RootDirectory
	flags.CertDirectory = filepath.Join(o.RootDirectory, "pki")
	flags.HostnameOverride = o.Name
	cloudProvider(flags, o)
	flags.MinimumGCAge = metav1.Duration{Duration: time.Minute}
	flags.MaxContainerCount = 100
	flags.MaxPerPodContainerCount = 2
	return flags
}

func kubeletConfiguration(o Options) (*kubeletconfig.KubeletConfiguration, error) {
	config, err := options.NewKubeletConfiguration()
	if err != nil {
		return nil, err
	}
	identity(config, o)
	access(config, o)
	heartbeats(config, o)
	noMachine(config)
	return config, nil
}

func identity(config *kubeletconfig.KubeletConfiguration, o Options) {
	config.ProviderID = ""
	config.Address = o.Address.String()
	config.Port = int32(o.Port)
	config.ReadOnlyPort = 0
	config.HealthzPort = 0
	config.MaxPods = maxPods
	config.MaxOpenFiles = o.MaxOpenFiles
	config.PodLogsDir = filepath.Join(o.RootDirectory, "pod-logs")
	config.StaticPodPath = ""
	config.RegisterNode = true
	// There is no cluster DNS. A value keeps the kubelet from warning about its
	// absence on every pod (MissingClusterDNS); no container ever reads it.
	config.ClusterDNS = []string{o.Address.String()}
	config.ClusterDomain = "cluster.local"
	// Pulls are simulated: neither their rate nor their order matters.
	config.SerializeImagePulls = false
	config.RegistryPullQPS = 0
}

// access refuses anonymous clients and asks the API server about all others.
func access(config *kubeletconfig.KubeletConfiguration, o Options) {
	config.TLSCertFile = o.TLSCertFile
	config.TLSPrivateKeyFile = o.TLSPrivateKeyFile
	config.Authentication.X509.ClientCAFile = o.ClientCAFile
	config.Authentication.Anonymous.Enabled = false
	config.Authentication.Webhook.Enabled = true
	config.Authentication.Webhook.CacheTTL.Duration = 2 * time.Minute
	config.Authorization.Mode = kubeletconfig.KubeletAuthorizationModeWebhook
	config.Authorization.Webhook.CacheAuthorizedTTL.Duration = 5 * time.Minute
	config.Authorization.Webhook.CacheUnauthorizedTTL.Duration = 30 * time.Second
	config.EnableServer = true
	config.EnableDebuggingHandlers = true
	// These would show the files of the real machine.
	config.EnableSystemLogHandler = false
	config.EnableSystemLogQuery = false
}

func heartbeats(config *kubeletconfig.KubeletConfiguration, o Options) {
	config.NodeStatusUpdateFrequency.Duration = o.StatusUpdateFrequency
	config.NodeLeaseDurationSeconds = o.LeaseDurationSeconds
	config.SyncFrequency.Duration = 10 * time.Second
	// A watch for each ConfigMap and Secret begins when a pod is bound, and so often
	// before the API server's node authorizer has heard of it; a watch that is
	// refused is tried again after a second or two, a get after half of one.
	config.ConfigMapAndSecretChangeDetectionStrategy = kubeletconfig.GetChangeDetectionStrategy
}

// noMachine turns off what needs cgroups, netfilter, a disk or root.
func noMachine(config *kubeletconfig.KubeletConfiguration) {
	config.FailCgroupV1 = false
	config.FailSwapOn = false
	config.CgroupsPerQOS = false
	config.CgroupRoot = ""
	config.KubeletCgroups = ""
	config.SystemCgroups = ""
	config.EnforceNodeAllocatable = nil
	config.ProtectKernelDefaults = false
	config.MakeIPTablesUtilChains = false
	config.EvictionHard = map[string]string{}
	config.EvictionSoft = map[string]string{}
	// 100 switches the collection of images off.
	config.ImageGCHighThresholdPercent = 100
	config.ImageMaximumGCAge.Duration = 0
}
