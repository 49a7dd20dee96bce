package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/clikit"
)

func (a *app) firewallsCommand() *cobra.Command {
	k := a.firewallKind()
	var f client.FirewallFilter
	const example = `  fakecloud firewalls create web --instance node-1 --allow tcp:30080
  fakecloud firewalls update web --allow tcp:30080 --allow tcp:31000-31010
  fakecloud load-balancers health web`
	return groupCommand("firewalls", "What instances let in from load balancers", example,
		filteredListCommand(
			k, "List firewalls, oldest first", "  fakecloud firewalls list --tag cluster=lab", &f, &f.Tags,
			(*client.Client).ListFirewalls,
		),
		k.getCommand("Show firewalls", "  fakecloud firewalls get web -o yaml"),
		a.firewallsCreate(), a.firewallsUpdate(),
		k.deleteCommand("delete", "Delete firewalls", "  fakecloud firewalls delete web", (*client.Client).DeleteFirewall))
}

func (a *app) firewallKind() resourceKind[api.Firewall] {
	return resourceKind[api.Firewall]{
		app: a, name: "firewall", group: "firewalls", prefix: "f-", refs: "NAME|ID",
		list: func(ctx context.Context, c *client.Client, name string) ([]api.Firewall, error) {
			return c.ListFirewalls(ctx, client.FirewallFilter{Name: name})
		},
		get:     (*client.Client).GetFirewall,
		columns: "NAME ID INSTANCES ALLOWED AGE",
		row: func(f api.Firewall) []string {
			var allowed []string
			for _, r := range f.Rules {
				allowed = append(allowed, formatFirewallRule(r))
			}
			return []string{
				f.Name, f.ID, strconv.Itoa(len(f.InstanceIDs)), orDash(new(strings.Join(allowed, ","))),
				a.formatAge(f.CreatedAt),
			}
		},
	}
}

func formatFirewallRule(r api.FirewallRule) string {
	if r.FirstPort == r.LastPort {
		return fmt.Sprintf("%s:%d", r.Protocol, r.FirstPort)
	}
	return fmt.Sprintf("%s:%d-%d", r.Protocol, r.FirstPort, r.LastPort)
}

// firewallFlags are the flags that say what a firewall is.
type firewallFlags struct{ instances, rules []string }

func (a *app) addFirewallFlags(cmd *cobra.Command) *firewallFlags {
	var f firewallFlags
	cmd.Flags().StringArrayVar(&f.instances, "instance", nil, "name or ID of an instance that it is for; repeatable")
	cmd.Flags().StringArrayVar(
		&f.rules, "allow", nil, "what to let in, as PROTOCOL:PORT or PROTOCOL:FIRST-LAST; repeatable",
	)
	clikit.CompleteFlagBy(cmd, "instance", a.instanceKind().completeRefs())
	return &f
}

// resolveNames gives the flags as the API has them; nil stands for a flag that was not given.
func (f firewallFlags) resolveNames(
	ctx context.Context,
	c *client.Client,
) (instances *api.FirewallInstances, rules *api.FirewallRules, err error) {
	for _, name := range f.instances {
		in, err := resolveInstance(ctx, c, name)
		if err != nil {
			return nil, nil, err
		}
		instances = appendTo(instances, in.ID)
	}
	for _, text := range f.rules {
		rule, err := parseFirewallRule(text)
		if err != nil {
			return nil, nil, err
		}
		rules = appendTo(rules, rule)
	}
	return instances, rules, nil
}

func appendTo[T any](all *[]T, one T) *[]T {
	if all == nil {
		return &[]T{one}
	}
	return new(append(*all, one))
}

func parseFirewallRule(text string) (api.FirewallRule, error) {
	protocol, ports, _ := strings.Cut(text, ":")
	first, last, isRange := strings.Cut(ports, "-")
	if !isRange {
		last = first
	}
	low, err1 := strconv.Atoi(first)
	high, err2 := strconv.Atoi(last)
	if err1 != nil || err2 != nil {
		return api.FirewallRule{}, clikit.Usagef("--allow %s: want PROTOCOL:PORT or PROTOCOL:FIRST-LAST, as tcp:30080", text)
	}
	return api.FirewallRule{Protocol: api.FirewallRuleProtocol(protocol), FirstPort: low, LastPort: high}, nil
}

func (a *app) firewallsCreate() *cobra.Command {
	var body api.FirewallCreate
	var flags *firewallFlags
	cmd := a.firewallKind().callCommand(&cobra.Command{
		Use: "create [NAME]", Short: "Create a firewall", Args: clikit.RequireArguments(0, 1),
		Long: "Create a firewall, in force at once: its instances let in from load balancers what it, or another\n" +
			"firewall of theirs, allows, and nothing else.",
		Example: "  fakecloud firewalls create web --instance node-1 --allow tcp:30080",
	}, func(ctx context.Context, c *client.Client, args []string) (_ *api.Firewall, err error) {
		if len(args) == 1 {
			body.Name = &args[0]
		}
		if body.InstanceIDs, body.Rules, err = flags.resolveNames(ctx, c); err != nil {
			return nil, err
		}
		return c.CreateFirewall(ctx, body)
	})
	flags = a.addFirewallFlags(cmd)
	addTags(cmd, &body.Tags, "tag", "KEY=VALUE; repeatable")
	return cmd
}

func (a *app) firewallsUpdate() *cobra.Command {
	var body api.FirewallUpdate
	var flags *firewallFlags
	k := a.firewallKind()
	cmd := k.callCommand(&cobra.Command{
		Use: "update NAME|ID", Short: "Change a firewall; what is given replaces the old values", Args: clikit.RequireArguments(1, 1),
		Example:           "  fakecloud firewalls update web --allow tcp:30080 --allow tcp:31000-31010",
		ValidArgsFunction: k.completeRefs(),
	}, func(ctx context.Context, c *client.Client, args []string) (*api.Firewall, error) {
		f, err := k.findByRef(ctx, c, args[0])
		if err != nil {
			return nil, err
		}
		if body.InstanceIDs, body.Rules, err = flags.resolveNames(ctx, c); err != nil {
			return nil, err
		}
		if body.InstanceIDs == nil && body.Rules == nil && body.Name == nil && body.Tags == nil {
			return nil, clikit.Usagef("nothing to update: give --instance, --allow, --name or --tag")
		}
		return c.UpdateFirewall(ctx, f.ID, body)
	})
	flags = a.addFirewallFlags(cmd)
	addText(cmd, &body.Name, "name", "a new name")
	addTags(cmd, &body.Tags, "tag", "KEY=VALUE, in place of all tags; repeatable")
	return cmd
}
