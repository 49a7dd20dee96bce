package cli

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

func (a *app) loadBalancersCommand() *cobra.Command {
	k := a.balancerKind()
	return groupCommand("load-balancers", "Load balancers, and what they carry", `  fakecloud load-balancers list
  fakecloud load-balancers create web --listener 8080:30080 --target node-1
  fakecloud load-balancers stats web --watch`,
		k.filteredListCommand("List load balancers, oldest first", "  fakecloud load-balancers list --tag cluster=lab"),
		k.actCommand(
			"get", "Show load balancers", "  fakecloud load-balancers get web -o yaml",
			(*client.Client).GetLoadBalancer, nil,
		),
		a.balancersCreate(), a.balancersUpdate(),
		k.actCommand(
			"delete", "Delete load balancers", "  fakecloud load-balancers delete web --wait",
			(*client.Client).DeleteLoadBalancer, (*waiter).awaitBalancers,
		),
		a.balancersStats(), a.balancersHealth())
}

func (a *app) balancerKind() resourceKind[api.LoadBalancer] {
	return resourceKind[api.LoadBalancer]{
		app: a, name: "load balancer", group: "load-balancers", prefix: "lb-", refs: "NAME|ID",
		states: resourceStates["LoadBalancer"],
		list:   listBy((*client.Client).ListLoadBalancers),
		get:    (*client.Client).GetLoadBalancer,
		create: createBy((*client.Client).CreateLoadBalancer), update: updateBy((*client.Client).UpdateLoadBalancer),
		completeRequest: completeBalancer, await: (*waiter).awaitBalancers,
		cells: map[string]func(api.LoadBalancer) string{
			"ADDRESS": showAddresses, "PORTS": showPorts, "CHECK": showCheck, "SOURCES": showSources, "OPTIONS": showOptions,
		},
	}
}

func showPorts(lb api.LoadBalancer) string {
	var ports []string
	for _, l := range lb.Listeners {
		port := fmt.Sprintf("%d:%d/%s", l.Port, l.TargetPort, l.Protocol)
		if l.ProxyProtocol != "" {
			port += "+" + string(l.ProxyProtocol)
		}
		if l.ConnectionLimit > 0 {
			port += fmt.Sprintf("+max%d", l.ConnectionLimit)
		}
		ports = append(ports, port)
	}
	return cmp.Or(strings.Join(ports, ","), "-")
}

func showAddresses(lb api.LoadBalancer) string {
	shown := lb.Address
	for _, also := range []string{lb.IPv6Address, lb.PrivateAddress} {
		if also != "" {
			shown += "," + also
		}
	}
	return shown
}

func showCheck(lb api.LoadBalancer) string {
	h := lb.HealthCheck
	if h == nil {
		return "-"
	}
	return fmt.Sprintf("%s:%d%s", h.Protocol, h.Port, h.Path)
}

func showSources(lb api.LoadBalancer) string {
	switch ranges := lb.SourceRanges; len(ranges) {
	case 0:
		return "any"
	case 1:
		return ranges[0]
	default:
		return fmt.Sprintf("%s+%d", ranges[0], len(ranges)-1)
	}
}
