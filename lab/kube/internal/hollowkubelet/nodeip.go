package hollowkubelet

import (
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"unsafe"

	"k8s.io/kubernetes/cmd/kubelet/app/options"
	kubeletpkg "k8s.io/kubernetes/pkg/kubelet"
)

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
