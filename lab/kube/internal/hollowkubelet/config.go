package hollowkubelet

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"reflect"
	"time"
	"unsafe"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	kubeletpkg "k8s.io/kubernetes/pkg/kubelet"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
)

const maxPods = 110

func kubeletFlags(o Options) *options.KubeletFlags {
	flags := options.NewKubeletFlags()
	flags.RootDirectory = o.RootDirectory
	flags.CertDirectory = filepath.Join(o.RootDirectory, "pki")
	flags.HostnameOverride = o.Name
	setCloudProvider(flags, o)
	flags.MinimumGCAge = metav1.Duration{Duration: time.Minute}
	flags.MaxContainerCount = 100
	flags.MaxPerPodContainerCount = 2
	return flags
}

// kubeletConfiguration returns upstream's defaults with the node's changes. It does not begin with
// kubemark.GetHollowKubeletConfig, which leaves a directory in /tmp behind at each start, and sets
// a providerID.
func kubeletConfiguration(o Options) (*kubeletconfig.KubeletConfiguration, error) {
	config, err := options.NewKubeletConfiguration()
	if err != nil {
		return nil, err
	}
	setIdentity(config, o)
	setAuthentication(config, o)
	setFrequencies(config, o)
	disableMachineFeatures(config)
	return config, nil
}

func setIdentity(config *kubeletconfig.KubeletConfiguration, o Options) {
	config.ProviderID = o.ProviderID
	config.Address = o.Address.String()
	config.Port = int32(o.Port)
	config.ReadOnlyPort = 0
	config.HealthzPort = 0
	config.MaxPods = maxPods
	config.MaxOpenFiles = o.MaxOpenFiles
	config.PodLogsDir = filepath.Join(o.RootDirectory, "pod-logs")
	config.StaticPodPath = ""
	config.RegisterNode = true
	// There is no cluster DNS. Without a value the kubelet would warn of that on every pod
	// (MissingClusterDNS). No container reads it.
	config.ClusterDNS = []string{o.Address.String()}
	config.ClusterDomain = "cluster.local"
	// Pulls are simulated: they need no limit and no order.
	config.SerializeImagePulls = false
	config.RegistryPullQPS = 0
}

// setAuthentication has the kubelet refuse anonymous clients, and authenticate and authorize all
// others through the API server.
func setAuthentication(config *kubeletconfig.KubeletConfiguration, o Options) {
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
	// These would show files of the real machine.
	config.EnableSystemLogHandler = false
	config.EnableSystemLogQuery = false
}

// setFrequencies sets how often the kubelet reports and syncs.
func setFrequencies(config *kubeletconfig.KubeletConfiguration, o Options) {
	config.NodeStatusUpdateFrequency.Duration = o.StatusUpdateFrequency
	config.NodeLeaseDurationSeconds = o.LeaseDurationSeconds
	config.SyncFrequency.Duration = 10 * time.Second
	// By default the kubelet watches each ConfigMap and Secret as soon as a pod is bound, which is
	// often before the API server's node authorizer has seen the pod. A refused watch is retried
	// after one or two seconds, a refused get after half a second.
	config.ConfigMapAndSecretChangeDetectionStrategy = kubeletconfig.GetChangeDetectionStrategy
}

// disableMachineFeatures switches off what needs cgroups, netfilter, a disk or root.
func disableMachineFeatures(config *kubeletconfig.KubeletConfiguration) {
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
	// 100 switches the garbage collection of images off.
	config.ImageGCHighThresholdPercent = 100
	config.ImageMaximumGCAge.Duration = 0
}

// CloudProviderExternal is the only value that the kubelet's --cloud-provider still has (KEP-2395).
const CloudProviderExternal = "external"

// setCloudProvider decides who sets the node's addresses: the kubelet, or a cloud controller
// manager.
func setCloudProvider(flags *options.KubeletFlags, o Options) {
	// With external, the kubelet registers the node with the taint
	// node.cloudprovider.kubernetes.io/uninitialized (initialNode). Without a NodeIP it leaves the
	// node's addresses to the cloud controller manager.
	flags.CloudProvider = o.CloudProvider
	if o.CloudProvider == "" {
		// Without a NodeIP the kubelet would look for one: by DNS, then by the default route, where
		// it finds the real machine's address, or none.
		flags.NodeIP = o.Address.String()
	}
}

// machineAddress is the only address of the simulated machine.
type machineAddress netip.Addr

// validateNodeIP replaces upstream's validateNodeIP, which requires an address of the real
// machine's interfaces and refuses loopback.
func (m machineAddress) validateNodeIP(ip net.IP) error {
	if given, ok := netip.AddrFromSlice(ip); !ok || given.Unmap() != netip.Addr(m) {
		return fmt.Errorf("node IP %s is not this simulated machine's, which is %s", ip, netip.Addr(m))
	}
	return nil
}

const nodeIPValidator = "nodeIPValidator"

// attachToKubelet is a kubelet.Option. NewMainKubelet calls it before it makes the setters of the
// node's status, which take the validator from a private field of the kubelet. A test checks the
// field's name and type in the pinned version.
func (m machineAddress) attachToKubelet(k *kubeletpkg.Kubelet) {
	var upstream func(net.IP) error
	if err := readField(k, nodeIPValidator, &upstream); err != nil {
		panic(err) // The pinned kubelet has changed: a test fails, too.
	}
	field := reflect.ValueOf(k).Elem().FieldByName(nodeIPValidator)
	reflect.NewAt(field.Type(), unsafe.Pointer(field.UnsafeAddr())).Elem().Set(reflect.ValueOf(m.validateNodeIP))
}
