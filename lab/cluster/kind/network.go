package kind

// The lab's network, in a range that nothing on this machine uses, so that the lab can
// assign every address in it. The engine chooses addresses from a small part of it,
// which only the control plane's container uses: being alone there, it keeps its
// address over restarts.

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
	"text/template"

	"github.com/ccmlab/ccmlab/lab/cluster"
)

// Ranges to try, each as long as the lab's network is: 10.123.X.0/20, away
// from what the engines give out by themselves and from the cluster's own.
const subnetBits = 20

var subnetPool = netip.MustParsePrefix("10.123.0.0/16")

// Where things are in it.
func gatewayOf(subnet netip.Prefix) netip.Addr    { return addressAt(subnet, 1) }
func cloudAddress(subnet netip.Prefix) netip.Addr { return addressAt(subnet, 2) }
func engineRange(subnet netip.Prefix) netip.Prefix {
	return netip.PrefixFrom(addressAt(subnet, 16), 28)
}
func instanceRange(subnet netip.Prefix) netip.Prefix {
	return netip.PrefixFrom(addressAt(subnet, 4<<8), 22)
}
func balancerRange(subnet netip.Prefix) netip.Prefix {
	return netip.PrefixFrom(addressAt(subnet, 8<<8), 21)
}
func addressAt(subnet netip.Prefix, host uint32) netip.Addr {
	b := subnet.Addr().As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+host)
	return netip.AddrFrom4(b)
}

// Claim creates the lab's network. It refuses, and leaves alone, a network or a kind
// cluster of the same name that is not this lab's.
func (c *Cluster) Claim(ctx context.Context) (cluster.Hold, error) {
	if err := c.checkName(ctx); err != nil {
		return nil, err
	}
	used, err := hostRoutes()
	if err != nil {
		return nil, err
	}
	var errs []error
	for n := range uint32(1) << (subnetBits - subnetPool.Bits()) {
		subnet := netip.PrefixFrom(addressAt(subnetPool, n<<(32-subnetBits)), subnetBits)
		if overlapsAny(used, subnet) {
			continue
		}
		_, err := c.engine.run(ctx, "network", "create", "--label", c.labelOfLab(),
			"--subnet", subnet.String(), "--gateway", gatewayOf(subnet).String(), "--ip-range",
			engineRange(subnet).String(), c.name())
		if err == nil {
			c.lab.Kind.Subnet = subnet.String()
			return nil, nil
		}
		if !strings.Contains(strings.ToLower(err.Error()), "overlap") &&
			!strings.Contains(err.Error(), "already used") {
			return nil, err
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("no free network of /%d in %s: %w", subnetBits, subnetPool, errors.Join(errs...))
}

// Reclaim has nothing to do: the network stays as long as the lab.
func (c *Cluster) Reclaim(context.Context) (cluster.Hold, error) { return nil, nil }

func (c *Cluster) checkName(ctx context.Context) error {
	owner, err := c.engine.run(ctx, "network", "inspect", "--format", `{{index .Labels "`+labelLab+`"}}`, c.name())
	switch {
	case err == nil && owner == c.lab.Path():
		return fmt.Errorf(
			"%s still has the network %s of an earlier lab; `lab down --name %s` removes what is left of it",
			c.engine.name, c.name(), c.lab.Name,
		)
	case err == nil:
		return fmt.Errorf(
			"%s has a network %s already, which belongs to %s; choose another --name", c.engine.name, c.name(),
			describeOwners(owner),
		)
	case !isNotFound(err):
		return err
	}
	nodes, err := c.engine.listLabelled(ctx, kindCluster+"="+c.name())
	if err == nil && len(nodes) > 0 {
		err = fmt.Errorf(
			"there is a kind cluster %s already, which is not this lab's and is left alone; choose another --name, or `kind delete cluster --name %s`",
			c.name(), c.name(),
		)
	}
	return err
}

func describeOwners(dir string) string {
	if dir == "" || dir == "<no value>" {
		return "nobody that left a mark"
	}
	return "the lab in " + dir
}

// hostRoutes are the address ranges that this machine has a route to.
func hostRoutes() ([]netip.Prefix, error) {
	f, err := os.Open("/proc/net/route")
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return routesIn(f), nil
}

// routesIn reads the kernel's table (proc_net_route(5)), the default route left
// out.
func routesIn(table io.Reader) []netip.Prefix {
	var all []netip.Prefix
	for lines := bufio.NewScanner(table); lines.Scan(); {
		// Iface Destination Gateway Flags RefCnt Use Metric Mask …, the
		// addresses in hexadecimal with the last octet first.
		fields := strings.Fields(lines.Text())
		if len(fields) < 8 {
			continue
		}
		destination, err1 := hex.DecodeString(fields[1])
		mask, err2 := hex.DecodeString(fields[7])
		if err1 != nil || err2 != nil || len(destination) != 4 || len(mask) != 4 {
			continue // The heading.
		}
		bits := 0
		for _, b := range mask {
			for ; b != 0; b <<= 1 {
				bits++
			}
		}
		if bits > 0 {
			all = append(all, netip.PrefixFrom(
				netip.AddrFrom4([4]byte{destination[3], destination[2], destination[1], destination[0]}), bits,
			))
		}
	}
	return all
}

func overlapsAny(used []netip.Prefix, p netip.Prefix) bool {
	return slices.ContainsFunc(used, p.Overlaps)
}

// routeProtocol marks the lab's routes on a machine (rtnetlink(7): values above 4 are
// free to use).
const routeProtocol = "200"

// connectScript makes a machine's routes to other machines' pods what they
// should be. Where there is none, a packet ends: the machine's default route
// would lead it out of the lab, to whoever answers there. What leaves the
// pods' range leaves it in the machine's name, as everything outside knows only
// that.
var connectScript = template.Must(template.New("connect").Parse(`set -eu
nft -f - <<RULES
table ip ccmlab
delete table ip ccmlab
table ip ccmlab {
  chain postrouting {
    type nat hook postrouting priority srcnat;
    ip saddr {{.Pods}} ip daddr != {{.Pods}} masquerade
  }
}
RULES
ip route replace unreachable {{.Pods}} proto {{.Protocol}}
ip -4 route show proto {{.Protocol}} type unicast | while read -r destination rest; do
  case " {{range .Routes}}{{.Destination}} {{end}}" in
    *" $destination "*) ;;
    *) ip route del "$destination" proto {{.Protocol}} ;;
  esac
done
{{range .Routes}}ip route replace {{.Destination}} via {{.Via}} proto {{$.Protocol}}
{{end}}`))

// Connect sets the given routes on the machine. What comes to addresses that are attached to it is passed on by
// the cloud, to the machine's own address.
func (c *Cluster) Connect(ctx context.Context, m cluster.Machine, n cluster.Network) error {
	if !c.usesCloudRoutes() {
		return nil
	}
	script, err := connectionScript(n.Routes)
	if err != nil {
		return err
	}
	_, err = c.engine.execIn(ctx, c.containerOf(m), script, "sh")
	return err
}

func connectionScript(routes []cluster.Route) (*bytes.Buffer, error) {
	var script bytes.Buffer
	err := connectScript.Execute(
		&script, map[string]any{"Pods": podSubnet, "Protocol": routeProtocol, "Routes": routes},
	)
	return &script, err
}
