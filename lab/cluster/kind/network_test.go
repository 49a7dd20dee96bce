package kind

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// In each of the networks to try, everything has its place and nothing meets.
func TestSubnetsAreDivided(t *testing.T) {
	last := netip.Prefix{}
	for n := range uint32(16) {
		subnet := netip.PrefixFrom(addressAt(subnetPool, n<<12), subnetBits)
		require.Equal(t, subnet, subnet.Masked())
		require.True(t, subnetPool.Overlaps(subnet))
		require.False(t, last.Overlaps(subnet))
		last = subnet
		single := func(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, 32) }
		parts := []netip.Prefix{
			single(subnet.Addr()), single(gatewayOf(subnet)), single(cloudAddress(subnet)),
			engineRange(subnet), instanceRange(subnet), balancerRange(subnet),
		}
		for i, p := range parts {
			assert.Equal(t, p, p.Masked(), "no bits beyond the prefix")
			assert.True(t, subnet.Contains(p.Addr()) && subnet.Bits() <= p.Bits())
			for _, q := range parts[:i] {
				assert.False(t, p.Overlaps(q), "%s and %s", p, q)
			}
		}
	}
	subnet := netip.MustParsePrefix("10.123.16.0/20")
	assert.Equal(t, "10.123.16.2", cloudAddress(subnet).String())
	assert.Equal(t, "10.123.20.0/22", instanceRange(subnet).String())
	assert.Equal(t, "10.123.24.0/21", balancerRange(subnet).String())
}

const routeTable = `Iface	Destination	Gateway 	Flags	RefCnt	Use	Metric	Mask		MTU	Window	IRTT
eth0	00000000	0101A8C0	0003	0	0	0	00000000	0	0	0
eth0	0001A8C0	00000000	0001	0	0	0	00FFFFFF	0	0	0
br-1	00107B0A	00000000	0001	0	0	0	00F0FFFF	0	0	0
tun0	0000000A	00000000	0001	0	0	0	000000FF	0	0	0
bad	zz	00000000	0001	0	0	0	00FFFFFF	0	0	0
`

func TestHostRoutes(t *testing.T) {
	routes := routesIn(strings.NewReader(routeTable))
	assert.Equal(t, []netip.Prefix{
		netip.MustParsePrefix("192.168.1.0/24"), netip.MustParsePrefix("10.123.16.0/20"),
		netip.MustParsePrefix("10.0.0.0/8"),
	}, routes, "all but the default route")
	assert.True(t, overlapsAny(routes[:2], netip.MustParsePrefix("10.123.16.0/20")))
	assert.False(t, overlapsAny(routes[:2], netip.MustParsePrefix("10.123.32.0/20")))
	assert.True(t, overlapsAny(routes, netip.MustParsePrefix("10.123.32.0/20")), "a VPN has it all")
	_, err := hostRoutes()
	assert.NoError(t, err)
}

// A network that the engine has in use, though the host has no route to it, is
// passed over; any other refusal ends the search.
func TestClaim(t *testing.T) {
	used, err := hostRoutes()
	require.NoError(t, err)
	var free []string
	for n := range uint32(16) {
		if subnet := netip.PrefixFrom(addressAt(subnetPool, n<<12), subnetBits); !overlapsAny(used, subnet) {
			free = append(free, subnet.String())
		}
	}
	if len(free) < 2 {
		t.Skipf("this machine has routes into nearly all of %s", subnetPool)
	}
	calls := filepath.Join(t.TempDir(), "calls")
	engine := func(refuse, said string) string {
		return `case "$*" in
  "network inspect"*) echo 'network ccmlab-lab not found' >&2; exit 1;;
  *"` + refuse + `"*) echo "$*" >>` + calls + `; echo '` + said + `' >&2; exit 1;;
  "network create"*) echo "$*" >>` + calls + `;;
esac`
	}
	c := newCluster(
		t,
		engine("--subnet "+free[0], "Error response from daemon: Pool overlaps with other one on this address space"),
	)
	c.lab.Kind.Subnet = ""
	hold, err := c.Claim(t.Context())
	require.NoError(t, err)
	assert.Nil(t, hold)
	assert.Equal(t, free[1], c.lab.Kind.Subnet)
	said, err := os.ReadFile(calls)
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(string(said)), "\n")
	require.Len(t, lines, 2)
	subnet := netip.MustParsePrefix(free[1])
	assert.Equal(t, "network create --label "+labelLab+"="+c.lab.Path()+" --subnet "+free[1]+" --gateway "+
		gatewayOf(subnet).String()+" --ip-range "+engineRange(subnet).String()+" ccmlab-lab", lines[1])

	require.NoError(t, os.Remove(calls))
	c = newCluster(t, engine("--subnet", "no space left on device"))
	_, err = c.Claim(t.Context())
	assert.ErrorContains(t, err, "no space left on device")
	c = newCluster(t, engine("--subnet", "Pool overlaps with other one on this address space"))
	_, err = c.Claim(t.Context())
	assert.ErrorContains(t, err, "no free network of /20 in 10.123.0.0/16")
}
