package hollowkubelet

import (
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/kubernetes/pkg/kubelet"
)

// nodeIPValidator is private to upstream's kubelet. This test fails when a new version renames it
// or changes its type.
func TestOnlyMachineAddressIsValidNodeIP(t *testing.T) {
	k := &kubelet.Kubelet{}
	machineAddress(netip.MustParseAddr("127.30.16.1")).attachToKubelet(k)
	var validate func(net.IP) error
	require.NoError(t, readField(k, nodeIPValidator, &validate))
	if err := validate(net.ParseIP("127.30.16.1")); err != nil {
		t.Errorf("the machine's own: %v", err)
	}
	for _, bad := range []net.IP{net.ParseIP("127.0.0.1"), net.ParseIP("192.0.2.1"), net.ParseIP("::1"), nil} {
		assert.Error(t, validate(bad), bad)
	}
}

func TestNodeIPByCloudProvider(t *testing.T) {
	for provider, want := range map[string]string{CloudProviderExternal: "", "": "127.30.16.1"} {
		flags := kubeletFlags(
			Options{Name: "node-1", Address: netip.MustParseAddr("127.30.16.1"), CloudProvider: provider},
		)
		assert.Equal(t, want, flags.NodeIP, "provider %q", provider)
		assert.Equal(t, provider, flags.CloudProvider)
	}
}
