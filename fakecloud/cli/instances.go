package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/clikit"
)

func (a *app) instancesCommand() *cobra.Command {
	k := a.instanceKind()
	act := func(
		verb, short string,
		do func(*client.Client, context.Context, string) (*api.Instance, error),
	) *cobra.Command {
		return k.actCommand(
			verb, short, fmt.Sprintf("  fakecloud instances %s node-1 node-2 --wait", verb), do,
			(*waiter).awaitInstances,
		)
	}
	return groupCommand("instances", "Machines, and what can be done with them", `  fakecloud instances list
  fakecloud instances create node-1 --zone nebula-1b --wait
  fakecloud instances stop node-1 node-2`,
		a.instancesList(),
		k.getCommand("Show instances", "  fakecloud instances get node-1 -o yaml"),
		k.createCommand(&cobra.Command{
			Use: "create [NAME]", Short: "Create an instance",
			Long: "Create an instance. By default, the cloud chooses a name and the zone with the fewest instances.",
			Example: `  fakecloud instances create node-4 --wait
  fakecloud instances create --zone nebula-1b --type large --tag role=worker
  fakecloud instances create node-5 --address 172.18.0.5
  fakecloud instances create node-6 --secondary-address fd00:16::6`,
		}),
		k.renameCommand(),
		act("reboot", "Reboot running instances", (*client.Client).RebootInstance),
		act("start", "Start instances that are stopped or in error", (*client.Client).StartInstance),
		act(
			"stop", "Stop instances that run or are in error; they keep their addresses", (*client.Client).StopInstance,
		),
		act("terminate", "End instances for good", (*client.Client).TerminateInstance))
}

func (a *app) instanceKind() resourceKind[api.Instance] {
	return resourceKind[api.Instance]{
		app: a, name: "instance", group: "instances", refs: "NAME|ID",
		list: func(ctx context.Context, c *client.Client, _ map[string]any) ([]api.Instance, error) {
			return c.ListInstances(ctx, client.InstanceFilter{States: liveStates})
		},
		findSpecially: resolveInstance,
		get:           (*client.Client).GetInstance,
		create:        createBy((*client.Client).CreateInstance),
		update:        updateBy((*client.Client).UpdateInstance),
		await:         (*waiter).awaitInstances,
		cells: map[string]func(api.Instance) string{
			"ADDRESS":  showInstanceAddresses(api.AddressInternal),
			"EXTERNAL": showInstanceAddresses(api.AddressExternal),
		},
	}
}

func showInstanceAddresses(of api.AddressType) func(api.Instance) string {
	return func(in api.Instance) string {
		var ips []string
		for _, ad := range in.Addresses {
			if ad.Type == of {
				ips = append(ips, ad.IP)
			}
		}
		return cmp.Or(strings.Join(ips, ","), "-")
	}
}

func (a *app) instancesList() *cobra.Command {
	var f client.InstanceFilter
	var all bool
	cmd := a.instanceKind().listCommandOf(
		"List instances, oldest first", `  fakecloud instances list
  fakecloud instances list --tag cluster=lab --state running -o json`,
		func(ctx context.Context, c *client.Client) ([]api.Instance, error) {
			if len(f.States) == 0 && !all {
				f.States = liveStates
			}
			return c.ListInstances(ctx, f)
		},
		func(_ context.Context, _ *client.Client, ev api.Event) ([]api.Instance, error) {
			return resourceInEvent(ev, func(in api.Instance) bool {
				return hasTags(in.Tags, f.Tags) && (f.Zone == "" || in.Zone == f.Zone)
			}), nil
		})
	cmd.Long = "List instances, oldest first. Terminated ones are left out unless --all or --state asks for them."
	cmd.Flags().StringVar(&f.Zone, "zone", "", "only those in this zone")
	clikit.CompleteFlagBy(cmd, "zone", a.completeZones())
	addTagFilter(cmd, &f.Tags)
	addStateFlag(cmd, &f.States, resourceStates["Instance"]...)
	cmd.Flags().BoolVar(&all, "all", false, "terminated ones too")
	return cmd
}

var liveStates = []api.InstanceState{
	api.InstancePending, api.InstanceRunning, api.InstanceStopping, api.InstanceStopped, api.InstanceTerminating,
	api.InstanceError,
}

func orEmpty[T any](v []T) []T {
	if v == nil {
		return []T{}
	}
	return v
}

// resolveInstance finds an instance by name or ID. Of several instances of that name it takes
// the one that is not terminated, or, if all are, the newest one.
func resolveInstance(ctx context.Context, c *client.Client, ref string) (*api.Instance, error) {
	if ref == "" {
		return nil, errNoRef
	}
	items, err := c.ListInstances(ctx, client.InstanceFilter{Name: ref})
	if err != nil {
		return nil, err
	}
	live := slices.DeleteFunc(slices.Clone(items), func(in api.Instance) bool {
		return in.State == api.InstanceTerminated
	})
	switch {
	case len(live) == 1:
		return &live[0], nil
	case len(live) > 1:
		return nil, fmt.Errorf(
			"%d instances are named %q: give the ID of one (`fakecloud instances list`)", len(live), ref,
		)
	}
	if strings.HasPrefix(ref, "i-") {
		in, err := c.GetInstance(ctx, ref)
		if err == nil || !client.IsNotFound(err) || len(items) == 0 {
			return in, err
		}
	}
	if len(items) == 0 {
		return nil, fmt.Errorf("no instance is named %q; `fakecloud instances list` shows those there are", ref)
	}
	last := slices.MaxFunc(items, func(a, b api.Instance) int { return cmp.Compare(a.ID, b.ID) })
	return &last, nil
}
