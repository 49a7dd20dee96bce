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

// CloudProviderExternal is the only value that kubelet's --cloud-provider has
// left (KEP-2395).
const CloudProviderExternal = "external"

func cloudProvider(flags *options.KubeletFlags, o Options) {
	// With external, the kubelet itself registers the node with the taint
	// node.cloudprovider.kubernetes.io/uninitialized (initialNode), and without a
	// NodeIP it leaves the node's addresses to the cloud controller manager.
	flags.CloudProvider = o.CloudProvider
	if o.CloudProvider == "" {
		// Without a NodeIP it would guess: by DNS, then by the default route,
		// which is the real machine's address, or none at all.
		flags.NodeIP = o.Address.String()
	}
}

// ownAddress is the one address that the simulated machine has.
type ownAddress netip.Addr

// validate stands in for upstream's validateNodeIP, which looks for the address
// on the real machine's interfaces and refuses loopback.
func (a ownAddress) validate(ip net.IP) error {
	if given, ok := netip.AddrFromSlice(ip); !ok || given.Unmap() != netip.Addr(a) {
		return fmt.Errorf("node IP %s is not this simulated machine's, which is %s", ip, netip.Addr(a))
	}
	return nil
}

const nodeIPValidator = "nodeIPValidator"

// attach is a kubelet.Option: NewMainKubelet calls it before it makes the setters
// of the node's status, which take the validator from the kubelet's private field.
// A test guards its name and type against the pinned version.
func (a ownAddress) attach(k *kubeletpkg.Kubelet) {
	var upstream func(net.IP) error
	if err := readField(k, nodeIPValidator, &upstream); err != nil {
		panic(err) // a test would have failed: the pinned kubelet changed
	}
	field := reflect.ValueOf(k).Elem().FieldByName(nodeIPValidator)
	reflect.NewAt(field.Type(), unsafe.Pointer(field.UnsafeAddr())).Elem().Set(reflect.ValueOf(a.validate))
}
