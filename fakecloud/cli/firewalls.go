package cli

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

func (a *app) firewallsCommand() *cobra.Command {
	k := a.firewallKind()
	return k.kindCommand(
		"What instances let in from load balancers", `  fakecloud firewalls create web --instance node-1 --allow tcp:30080
  fakecloud firewalls update web --allow tcp:30080 --allow tcp:31000-31010
  fakecloud load-balancers health web`, "web",
		k.createCommand(&cobra.Command{
			Use: "create [NAME]", Short: "Create a firewall",
			Long: "Create a firewall, in force at once: its instances let in from load balancers what it, or another\n" +
				"firewall of theirs, allows, and nothing else.",
			Example: "  fakecloud firewalls create web --instance node-1 --allow tcp:30080",
		}),
		k.updateCommand(&cobra.Command{
			Short:   "Change a firewall; what is given replaces the old values",
			Example: "  fakecloud firewalls update web --allow tcp:30080 --allow tcp:31000-31010",
		}),
	)
}

func (a *app) firewallKind() resourceKind[api.Firewall] {
	return resourceKind[api.Firewall]{
		app: a, name: "firewall", group: "firewalls", prefix: "f-", refs: "NAME|ID",
		list: listBy((*client.Client).ListFirewalls),
		get:  (*client.Client).GetFirewall, remove: (*client.Client).DeleteFirewall,
		create: createBy((*client.Client).CreateFirewall), update: updateBy((*client.Client).UpdateFirewall),
		cells: map[string]func(api.Firewall) string{"ALLOWED": func(f api.Firewall) string {
			var allowed []string
			for _, r := range f.Rules {
				allowed = append(allowed, formatFirewallRule(r))
			}
			return strings.Join(allowed, ",")
		}},
	}
}

func formatFirewallRule(r api.FirewallRule) string {
	text := fmt.Sprintf("%s:%d", r.Protocol, r.FirstPort)
	if r.FirstPort != r.LastPort {
		text += fmt.Sprintf("-%d", r.LastPort)
	}
	return strings.Join(append([]string{text}, r.Sources...), "@")
}

func parseFirewallRule(text string) (any, error) {
	what, sources, hasSources := strings.Cut(text, "@")
	protocol, ports, _ := strings.Cut(what, ":")
	first, last, isRange := strings.Cut(ports, "-")
	if !isRange {
		last = first
	}
	low, err1 := strconv.Atoi(first)
	high, err2 := strconv.Atoi(last)
	if err1 != nil || err2 != nil {
		return nil, errors.New("want PROTOCOL:PORT or PROTOCOL:FIRST-LAST, as tcp:30080, and with a source tcp:30080@10.0.0.0/8")
	}
	r := api.FirewallRule{Protocol: api.FirewallRuleProtocol(protocol), FirstPort: low, LastPort: high}
	if hasSources {
		r.Sources = strings.Split(sources, "@")
	}
	return r, nil
}
