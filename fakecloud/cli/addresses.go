// This file answers: what can be done with reserved addresses from the command
// line?

package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

func (a *app) addresses() *cobra.Command {
	return group("addresses", "Reserved addresses, and who holds them", `  fakecloud addresses reserve web
  fakecloud addresses attach web node-1
  fakecloud load-balancers create web --listener 8080:30080 --address web`,
		a.addressesList(), a.addressesGet(), a.addressesReserve(), a.addressesUpdate(), a.addressesAttach(), a.addressesDetach(), a.addressesRelease())
}

func (a *app) printAddresses(cmd *cobra.Command, value any, items []api.ReservedAddress) error {
	var rows [][]string
	for _, r := range items {
		holder := "-"
		if r.Holder != nil {
			holder = r.Holder.ID // The prefix tells its kind.
		}
		rows = append(rows, []string{r.Name, r.ID, r.IP, string(r.State), holder, a.age(r.CreatedAt)})
	}
	return a.print(cmd.OutOrStdout(), value, "NAME ID IP STATE HOLDER AGE", rows)
}

func (a *app) addressesList() *cobra.Command {
	var f client.AddressFilter
	var watch bool
	cmd := &cobra.Command{
		Use: "list", Short: "List reserved addresses, oldest first", Args: cobra.NoArgs,
		Example: "  fakecloud addresses list --state available",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return usageError{err}
			}
			if watch {
				return a.watchAddresses(cmd, c, f)
			}
			items, err := c.ListAddresses(cmd.Context(), f)
			if err != nil {
				return err
			}
			return a.printAddresses(cmd, api.ReservedAddressList{Items: orEmpty(items)}, items)
		},
	}
	a.addOutput(cmd)
	addWatch(cmd, &watch)
	cmd.Flags().StringArrayVar(&f.Tags, "tag", nil, "only those with this KEY or KEY=VALUE; repeatable")
	stateFlag(cmd, &f.States, "an address", api.AddressAvailable, api.AddressHeld)
	return cmd
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
	return nil, fmt.Errorf("no address of that name or IP is reserved: %q; `fakecloud addresses list` shows those there are", ref)
}

func (a *app) completeAddresses() cobra.CompletionFunc {
	return a.complete(func(ctx context.Context, c *client.Client) (names []string, err error) {
		items, err := c.ListAddresses(ctx, client.AddressFilter{})
		for _, r := range items {
			names = append(names, r.Name)
		}
		return names, err
	})
}

func (a *app) addressesGet() *cobra.Command {
	return a.eachAddress("get", "Show reserved addresses", "  fakecloud addresses get web -o yaml", func(_ context.Context, _ *client.Client, r *api.ReservedAddress) (*api.ReservedAddress, error) {
		return r, nil
	})
}

func (a *app) addressesDetach() *cobra.Command {
	return a.eachAddress("detach", "Take addresses from their instances", "  fakecloud addresses detach web", func(ctx context.Context, c *client.Client, r *api.ReservedAddress) (*api.ReservedAddress, error) {
		return c.DetachAddress(ctx, r.ID)
	})
}

// eachAddress is a command that does one thing with each address named, and
// shows them.
func (a *app) eachAddress(verb, short, example string, do func(context.Context, *client.Client, *api.ReservedAddress) (*api.ReservedAddress, error)) *cobra.Command {
	cmd := &cobra.Command{
		Use: verb + " NAME|ID|IP...", Short: short, Args: cobra.MinimumNArgs(1), Example: example, ValidArgsFunction: a.completeAddresses(),
		RunE: func(cmd *cobra.Command, args []string) error {
			done, err := a.forAddresses(cmd, args, do)
			switch {
			case len(done) == 0:
				return err
			case len(args) == 1:
				return errors.Join(err, a.printAddresses(cmd, done[0], done))
			}
			return errors.Join(err, a.printAddresses(cmd, api.ReservedAddressList{Items: done}, done))
		},
	}
	a.addOutput(cmd)
	return cmd
}

func (a *app) forAddresses(cmd *cobra.Command, refs []string, do func(context.Context, *client.Client, *api.ReservedAddress) (*api.ReservedAddress, error)) ([]api.ReservedAddress, error) {
	c, err := a.client()
	if err != nil {
		return nil, usageError{err}
	}
	return each(refs, func(ref string) (*api.ReservedAddress, error) {
		r, err := resolveAddress(cmd.Context(), c, ref)
		if err != nil {
			return nil, err
		}
		return do(cmd.Context(), c, r)
	})
}

func (a *app) addressesReserve() *cobra.Command {
	var ip string
	var tags map[string]string
	cmd := &cobra.Command{
		Use: "reserve [NAME]", Short: "Reserve an address of the load balancers' pool", Args: cobra.MaximumNArgs(1),
		Long: "Reserve an address of the load balancers' pool. Left to itself, the cloud chooses a name and the lowest free address.",
		Example: `  fakecloud addresses reserve web
  fakecloud addresses reserve web --ip 127.30.64.7 --tag cluster=lab`,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			var body api.ReservedAddressCreate
			if len(args) == 1 {
				body.Name = &args[0]
			}
			if ip != "" {
				body.IP = &ip
			}
			if len(tags) > 0 {
				t := api.Tags(tags)
				body.Tags = &t
			}
			c, err := a.client()
			if err != nil {
				return usageError{err}
			}
			r, err := c.ReserveAddress(cmd.Context(), body)
			if err != nil {
				return err
			}
			return a.printAddresses(cmd, r, []api.ReservedAddress{*r})
		},
	}
	a.addOutput(cmd)
	cmd.Flags().StringVar(&ip, "ip", "", "the address wanted (default: the lowest free one)")
	cmd.Flags().StringToStringVar(&tags, "tag", nil, "KEY=VALUE; repeatable")
	return cmd
}

func (a *app) addressesUpdate() *cobra.Command {
	return a.update("addresses", "address", a.completeAddresses(), func(cmd *cobra.Command, c *client.Client, ref string, u api.ResourceUpdate) error {
		r, err := resolveAddress(cmd.Context(), c, ref)
		if err != nil {
			return err
		}
		if r, err = c.UpdateAddress(cmd.Context(), r.ID, api.ReservedAddressUpdate(u)); err != nil {
			return err
		}
		return a.printAddresses(cmd, r, []api.ReservedAddress{*r})
	})
}

func (a *app) addressesAttach() *cobra.Command {
	cmd := &cobra.Command{
		Use: "attach NAME|ID|IP INSTANCE", Short: "Give an address to an instance", Args: cobra.ExactArgs(2),
		Long: "Give an address to an instance, by the instance's name or ID. The instance shows it as external;\n" +
			"what is sent to it reaches nobody: the cloud forwards for load balancers only.",
		Example: "  fakecloud addresses attach web node-1",
		RunE: func(cmd *cobra.Command, args []string) error {
			done, err := a.forAddresses(cmd, args[:1], func(ctx context.Context, c *client.Client, r *api.ReservedAddress) (*api.ReservedAddress, error) {
				in, err := resolveInstance(ctx, c, args[1])
				if err != nil {
					return nil, err
				}
				return c.AttachAddress(ctx, r.ID, in.ID)
			})
			if err != nil {
				return err
			}
			return a.printAddresses(cmd, done[0], done)
		},
	}
	byPlace := []cobra.CompletionFunc{a.completeAddresses(), a.completeInstances()}
	cmd.ValidArgsFunction = func(cmd *cobra.Command, given []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(given) >= len(byPlace) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return byPlace[len(given)](cmd, given, prefix)
	}
	a.addOutput(cmd)
	return cmd
}

func (a *app) addressesRelease() *cobra.Command {
	return &cobra.Command{
		Use: "release NAME|ID|IP...", Short: "End reservations", Args: cobra.MinimumNArgs(1),
		Long:    "End reservations. An address that is in use is not released.",
		Example: "  fakecloud addresses release web", ValidArgsFunction: a.completeAddresses(),
		RunE: func(cmd *cobra.Command, args []string) error {
			_, err := a.forAddresses(cmd, args, func(ctx context.Context, c *client.Client, r *api.ReservedAddress) (*api.ReservedAddress, error) {
				return r, c.ReleaseAddress(ctx, r.ID)
			})
			return err
		},
	}
}
