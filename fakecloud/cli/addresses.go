package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/clikit"
)

func (a *app) addressesCommand() *cobra.Command {
	k := a.addressKind()
	release := k.deleteCommand(
		"release", "Release addresses", "  fakecloud addresses release web", (*client.Client).ReleaseAddress,
	)
	release.Long = "Release addresses. An address that is in use is not released."
	return groupCommand("addresses", "Reserved addresses, and who holds them", `  fakecloud addresses reserve web
  fakecloud addresses attach web node-1
  fakecloud load-balancers create web --listener 8080:30080 --address web`,
		k.filteredListCommand("List reserved addresses, oldest first", "  fakecloud addresses list --state available"),
		k.getCommand("Show reserved addresses", "  fakecloud addresses get web -o yaml"),
		k.createCommand(&cobra.Command{
			Use: "reserve [NAME]", Short: "Reserve an address of the load balancers' pool",
			Long: "Reserve an address of the load balancers' pool. By default, the cloud chooses a name and the lowest free address.",
			Example: `  fakecloud addresses reserve web
  fakecloud addresses reserve web --ip 127.30.64.7 --tag cluster=lab`,
		}),
		k.renameCommand(),
		a.addressesAttach(),
		k.actCommand(
			"detach", "Take addresses from their instances", "  fakecloud addresses detach web",
			(*client.Client).DetachAddress, nil,
		),
		release)
}

func (a *app) addressKind() resourceKind[api.ReservedAddress] {
	return resourceKind[api.ReservedAddress]{
		app: a, name: "address", group: "addresses", refs: "NAME|ID|IP",
		states:        resourceStates["ReservedAddress"],
		list:          listBy((*client.Client).ListAddresses),
		findSpecially: resolveAddress,
		get:           (*client.Client).GetAddress,
		create:        createBy((*client.Client).ReserveAddress),
		update:        updateBy((*client.Client).UpdateAddress),
	}
}

// resolveAddress finds a reserved address by name, ID or IP.
func resolveAddress(ctx context.Context, c *client.Client, ref string) (*api.ReservedAddress, error) {
	if ref == "" {
		return nil, errNoRef
	}
	items, err := c.ListAddresses(ctx, client.AddressFilter{})
	if err != nil {
		return nil, err
	}
	for _, same := range []func(api.ReservedAddress) bool{
		func(r api.ReservedAddress) bool { return r.Name == ref },
		func(r api.ReservedAddress) bool { return r.ID == ref || r.IP == ref },
	} {
		if i := slices.IndexFunc(items, same); i >= 0 {
			return &items[i], nil
		}
	}
	if strings.HasPrefix(ref, "a-") {
		return c.GetAddress(ctx, ref)
	}
	return nil, fmt.Errorf(
		"no address of that name or IP is reserved: %q; `fakecloud addresses list` shows those there are", ref,
	)
}

// holderToAttach resolves what an address is attached to: the one instance, or a balancer.
func (a *app) holderToAttach(
	ctx context.Context,
	c *client.Client,
	instance []string,
	balancer string,
) (to api.AddressAttach, err error) {
	switch {
	case (len(instance) == 1) == (balancer != ""):
		return to, clikit.Usagef("name an INSTANCE, or a load balancer by --load-balancer")
	case balancer != "":
		lb, err := a.balancerKind().findByRef(ctx, c, balancer)
		if err == nil {
			to.LoadBalancerID = lb.ID
		}
		return to, err
	}
	in, err := resolveInstance(ctx, c, instance[0])
	if err == nil {
		to.InstanceID = in.ID
	}
	return to, err
}

func (a *app) addressesAttach() *cobra.Command {
	var cmd *cobra.Command
	var balancer string
	cmd = a.addressKind().callCommand(&cobra.Command{
		Use: "attach NAME|ID|IP INSTANCE", Short: "Give an address to an instance or a load balancer",
		Args: clikit.RequireArguments(1, 2),
		Long: "Give an address to an instance, by the instance's name or ID. The instance shows it as external, and\n" +
			"gets all traffic to it, whatever the protocol and port. If the cloud cannot do that,\n" +
			"stateReason says why.\n\n" +
			"With --load-balancer, it is given to a load balancer, which serves on it as well.",
		Example: `  fakecloud addresses attach web node-1
  fakecloud addresses attach web --load-balancer shop`,
	}, func(ctx context.Context, c *client.Client, args []string) (*api.ReservedAddress, error) {
		r, err := resolveAddress(ctx, c, args[0])
		if err != nil {
			return nil, err
		}
		to, err := a.holderToAttach(ctx, c, args[1:], balancer)
		if err != nil {
			return nil, err
		}
		r, err = c.AttachAddress(ctx, r.ID, to)
		if err == nil && r.StateReason != nil {
			cmd.PrintErrf("The instance gets no traffic: %s\n", *r.StateReason)
		}
		return r, err
	})
	cmd.Flags().StringVar(&balancer, "load-balancer", "", "name or ID of a load balancer to give it to")
	clikit.CompleteFlagBy(cmd, "load-balancer", a.balancerKind().completeRefs())
	byPlace := []cobra.CompletionFunc{a.addressKind().completeRefs(), a.instanceKind().completeRefs()}
	cmd.ValidArgsFunction = func(
		cmd *cobra.Command,
		given []string,
		prefix string,
	) ([]string, cobra.ShellCompDirective) {
		if len(given) >= len(byPlace) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return byPlace[len(given)](cmd, given, prefix)
	}
	return cmd
}
