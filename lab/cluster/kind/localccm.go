package kind

// The CCM as a process of this machine instead of a Deployment, for somebody who
// restarts or replaces it more often than a Deployment allows.

import (
	"net/netip"
	"strconv"

	"github.com/ccmlab/ccmlab/lab/cluster"
)

// localPort is upstream's for a CCM.
const localPort = 10258

var _ cluster.LocalCCM = (*Cluster)(nil)

// loopbackOf is this machine's own address for a lab, and no other lab's: the
// network's gateway with another first byte. Embedded labs are below it.
func loopbackOf(subnet netip.Prefix) netip.Addr {
	b := gatewayOf(subnet).As4()
	b[0] = 127
	return netip.AddrFrom4(b)
}

// CCMCommand implements cluster.LocalCCM. A CCM that is run so has the operator's
// rights.
func (c *Cluster) CCMCommand() cluster.CCMCommand {
	address := ""
	if subnet, err := c.parseSubnet(); err == nil {
		address = loopbackOf(subnet).String()
	}
	config := c.lab.Path("cloud-config.yaml")
	return cluster.CCMCommand{
		Path: c.bin.Program("ccm"), CloudConfig: config, Address: address, Port: localPort, ClusterCIDR: podSubnet,
		Args: append([]string{
			"--kubeconfig=" + c.Kubeconfig(), "--authentication-kubeconfig=" + c.Kubeconfig(),
			"--authorization-kubeconfig=" + c.Kubeconfig(),
			"--cloud-config=" + config, "--bind-address=" + address, "--secure-port=" + strconv.Itoa(localPort),
			"--profiling=false",
			"--configure-cloud-routes=false", // Of a flag that comes twice the last counts.
		}, c.ccmArgs()...),
	}
}
