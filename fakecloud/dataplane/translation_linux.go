package dataplane

// The kernel's part of addresses that are attached to instances: a second nftables table, which translates
// both addresses of what comes to an attached one. The instance sees its own address as the destination, and
// the attached one as the source, so that its answers come back here and are translated again.

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// createTranslation makes the table. It returns why there can be none.
func (f *packetForwarder) createTranslation() error {
	if err := checkForwardingIsOn(f.iface); err != nil {
		return err
	}
	table := &nftables.Table{Name: f.table.Name, Family: nftables.TableFamilyIPv4}
	attached := &nftables.Set{
		Table: table, Name: string(attachedMap), KeyType: nftables.TypeIPAddr, IsMap: true,
		DataType: nftables.TypeIPAddr,
	}
	err := f.exchangeMessages(func(c *nftables.Conn) error {
		c.AddTable(table) // So that there is one to delete.
		c.DelTable(table)
		c.AddTable(table)
		if err := c.AddSet(attached, nil); err != nil {
			return err
		}
		addTranslationRules(c, table)
		return c.Flush()
	})
	if err != nil {
		return fmt.Errorf("%w (and nft_nat)", err)
	}
	f.translation, f.sets[attachedMap] = table, attached
	return nil
}

func addTranslationRules(c *nftables.Conn, table *nftables.Table) {
	chain := func(name string, hook *nftables.ChainHook, priority *nftables.ChainPriority) *nftables.Chain {
		return c.AddChain(&nftables.Chain{
			Table: table, Name: name, Type: nftables.ChainTypeNAT, Hooknum: hook, Priority: priority,
		})
	}
	const address, instance = 1, 2 // registers
	lookup := &expr.Lookup{
		SourceRegister: address, DestRegister: instance, IsDestRegSet: true, SetName: string(attachedMap),
	}
	c.AddRule(&nftables.Rule{
		Table: table, Chain: chain("prerouting", nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest),
		Exprs: []expr.Any{
			&expr.Payload{DestRegister: address, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4},
			lookup,
			&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: instance},
		},
	})
	c.AddRule(&nftables.Rule{
		Table: table, Chain: chain("postrouting", nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource),
		Exprs: []expr.Any{
			&expr.Ct{Register: address, Key: expr.CtKeyDST}, // as it was sent: the original direction's
			lookup,
			&expr.NAT{Type: expr.NATTypeSourceNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: address},
		},
	})
}

// checkForwardingIsOn returns an error if the kernel drops what comes to the interface for others.
func checkForwardingIsOn(iface string) error {
	on, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + iface + "/forwarding")
	if err != nil {
		return err
	}
	if on[0] != '1' {
		return fmt.Errorf("network interface %s forwards no packets: set `sysctl -w net.ipv4.conf.%s.forwarding=1`, "+
			"or start a container with --sysctl net.ipv4.ip_forward=1", iface, iface)
	}
	return nil
}

// forgetTranslatedFlows has the kernel forget the flows to addresses that lead elsewhere now: it would pass
// them on to the previous instance, which may be gone.
func forgetTranslatedFlows(attached []nftables.SetElement) error {
	if len(attached) == 0 {
		return nil
	}
	var filters []netlink.CustomConntrackFilter
	for _, e := range attached {
		filter := &netlink.ConntrackFilter{}
		if err := filter.AddIP(netlink.ConntrackOrigDstIP, net.IP(e.Key)); err != nil {
			return err
		}
		filters = append(filters, filter)
	}
	_, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, filters...)
	if errors.Is(err, syscall.ENOENT) {
		return nil // One ended by itself meanwhile.
	}
	return err
}
