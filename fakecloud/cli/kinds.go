package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// resourceKind is one kind of resource, for the commands that several kinds have.
type resourceKind[T any] struct {
	*app
	name, group string // "network" and "networks"; for updateCommand
	refs        string // how the command line refers to one, in usage texts
	list        func(context.Context, *client.Client) ([]T, error)
	find        func(ctx context.Context, c *client.Client, ref string) (*T, error)
	// label is the reference that completion offers.
	label func(T) string
	id    func(T) string
	print func(cmd *cobra.Command, value any, items []T) error
	// wrap makes an API list of the items.
	wrap func([]T) any
	// version grows with each change. Only kinds whose list can be watched have it.
	version func(T) int64
}

func (k resourceKind[T]) completeRefs() cobra.CompletionFunc {
	return k.completeNames(func(ctx context.Context, c *client.Client) (labels []string, err error) {
		items, err := k.list(ctx, c)
		for _, one := range items {
			labels = append(labels, k.label(one))
		}
		return labels, err
	})
}

// printFound prints the resources that were found of the asked number: as itself if one was
// asked for, otherwise as a list. err is the error of those that were not found, and is
// returned.
func (k resourceKind[T]) printFound(cmd *cobra.Command, found []T, asked int, err error) error {
	switch {
	case len(found) == 0:
		return err
	case asked == 1:
		return errors.Join(err, k.print(cmd, found[0], found))
	}
	return errors.Join(err, k.print(cmd, k.wrap(found), found))
}

// printOne prints the result of a call, unless the call failed.
func (k resourceKind[T]) printOne(cmd *cobra.Command, one *T, err error) error {
	if err != nil {
		return err
	}
	return k.print(cmd, one, []T{*one})
}

// listCommand completes cmd to a command that prints what list returns. Unless changed is
// nil, it has --watch: changed returns the resources of an event that belong in the list.
func (k resourceKind[T]) listCommand(
	cmd *cobra.Command,
	list func(context.Context, *client.Client) ([]T, error),
	changed func(context.Context, *client.Client, api.Event) ([]T, error),
) *cobra.Command {
	var watch bool
	cmd.Use, cmd.Args = "list", cobra.NoArgs
	cmd.RunE = k.withClient(func(cmd *cobra.Command, c *client.Client, _ []string) error {
		if watch {
			return watchList(cmd, c, k, list, changed)
		}
		items, err := list(cmd.Context(), c)
		if err != nil {
			return err
		}
		return k.print(cmd, k.wrap(orEmpty(items)), items)
	})
	k.addOutput(cmd)
	if changed != nil {
		addWatch(cmd, &watch)
	}
	return cmd
}

// resourceInEvent is the changed function of listCommand for events that hold one resource:
// of takes it out of the event, and wanted tells whether it belongs in the list.
func resourceInEvent[T any](
	of func(api.Event) *T,
	wanted func(*T) bool,
) func(context.Context, *client.Client, api.Event) ([]T, error) {
	return func(_ context.Context, _ *client.Client, ev api.Event) ([]T, error) {
		if one := of(ev); one != nil && wanted(one) {
			return []T{*one}, nil
		}
		return nil, nil
	}
}

func (k resourceKind[T]) getCommand(short, example string) *cobra.Command {
	return k.actCommand("get", short, example, nil)
}

// actCommand is a command that calls do, unless that is nil, for each resource named, and
// prints them.
func (k resourceKind[T]) actCommand(
	verb, short, example string,
	do func(*client.Client, context.Context, string) (*T, error),
) *cobra.Command {
	cmd := &cobra.Command{
		Use: verb + " " + k.refs + "...", Short: short, Args: cobra.MinimumNArgs(1), Example: example,
		ValidArgsFunction: k.completeRefs(),
		RunE: k.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
			found, err := doForEach(args, func(ref string) (*T, error) {
				one, err := k.find(cmd.Context(), c, ref)
				if err != nil || do == nil {
					return one, err
				}
				return do(c, cmd.Context(), k.id(*one))
			})
			return k.printFound(cmd, found, len(args), err)
		}),
	}
	k.addOutput(cmd)
	return cmd
}

// changeCommand is a command that calls do for each resource named, can --wait until the
// change is done, and prints them.
func (k resourceKind[T]) changeCommand(
	verb, short, example string,
	do func(*client.Client, context.Context, string) (*T, error),
	await func(*waiter, *cobra.Command, *client.Client, []T) error,
) *cobra.Command {
	var w waiter
	cmd := &cobra.Command{
		Use: verb + " " + k.refs + "...", Short: short, Args: cobra.MinimumNArgs(1), Example: example,
		ValidArgsFunction: k.completeRefs(),
		RunE: k.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
			changed, err := doForEach(args, func(ref string) (*T, error) {
				one, err := k.find(cmd.Context(), c, ref)
				if err != nil {
					return nil, err
				}
				err = w.recordOperation(cmd.Context(), func(ctx context.Context) (id string, err error) {
					id = k.id(*one)
					one, err = do(c, ctx, id)
					return id, err
				})
				return one, err
			})
			err = errors.Join(err, await(&w, cmd, c, changed))
			return k.printFound(cmd, changed, len(args), err)
		}),
	}
	k.addOutput(cmd)
	w.addFlags(k.app, cmd)
	return cmd
}

// updateCommand is the command that renames a resource or replaces its tags.
func (k resourceKind[T]) updateCommand(
	do func(*client.Client, context.Context, string, api.ResourceUpdate) (*T, error),
) *cobra.Command {
	var name string
	var tags map[string]string
	var noTags bool
	cmd := &cobra.Command{
		Use: "update NAME|ID", Short: "Rename one " + k.name + ", or replace its tags", Args: cobra.ExactArgs(1),
		Example: fmt.Sprintf(`  fakecloud %s update one --name other
  fakecloud %s update one --tag a=b --tag c=d`, k.group, k.group),
		ValidArgsFunction: k.completeRefs(),
		RunE: func(cmd *cobra.Command, args []string) error {
			var u api.ResourceUpdate
			var err error
			if u.Tags, err = newTags(cmd, "tag", tags, noTags); err != nil {
				return err
			}
			if cmd.Flags().Changed("name") {
				u.Name = &name
			}
			if u == (api.ResourceUpdate{}) {
				return misuse("nothing to update: give --name, --tag or --no-tags")
			}
			c, err := k.newClient()
			if err != nil {
				return usageError{err}
			}
			one, err := k.find(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			one, err = do(c, cmd.Context(), k.id(*one), u)
			return k.printOne(cmd, one, err)
		},
	}
	k.addOutput(cmd)
	cmd.Flags().StringVar(&name, "name", "", "a new name")
	cmd.Flags().StringToStringVar(&tags, "tag", nil, "KEY=VALUE, in place of all the tags before; repeatable")
	cmd.Flags().BoolVar(&noTags, "no-tags", false, "remove all tags")
	completeFlagValues(cmd, map[string][]string{"name": nil, "tag": nil})
	return cmd
}

// deleteCommand is a command that finds each resource named and deletes it by its ID.
func (k resourceKind[T]) deleteCommand(
	verb, short, example string,
	do func(*client.Client, context.Context, string) error,
) *cobra.Command {
	return k.deleteByRefCommand(verb, short, example, func(c *client.Client, ctx context.Context, ref string) error {
		one, err := k.find(ctx, c, ref)
		if err != nil {
			return err
		}
		return do(c, ctx, k.id(*one))
	})
}

// deleteByRefCommand is a command that deletes each resource by the reference given, without
// finding it first.
func (k resourceKind[T]) deleteByRefCommand(
	verb, short, example string,
	do func(*client.Client, context.Context, string) error,
) *cobra.Command {
	return &cobra.Command{
		Use: verb + " " + k.refs + "...", Short: short, Args: cobra.MinimumNArgs(1), Example: example,
		ValidArgsFunction: k.completeRefs(),
		RunE: k.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
			return doForEachRef(args, func(ref string) error { return do(c, cmd.Context(), ref) })
		}),
	}
}
