package cli

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/clikit"
)

// resourceKind is one kind of resource, for the commands that several kinds have.
type resourceKind[T any] struct {
	*app
	name, group string // "network" and "networks", for messages
	prefix      string // of its IDs; empty if get takes the reference as it is
	refs        string // how the command line refers to one, in usage texts
	// list lists those that a filter matches, which has the names of the client's fields: Name, Tags, States.
	list      func(ctx context.Context, c *client.Client, filter map[string]any) ([]T, error)
	states    []string // those that --state filters by
	remove    func(*client.Client, context.Context, string) error
	removable string // which ones that is, if not all
	get       func(*client.Client, context.Context, string) (*T, error)
	// findSpecially, unless nil, finds one otherwise than by name or ID.
	findSpecially func(ctx context.Context, c *client.Client, ref string) (*T, error)
	create        request[T]
	update        request[T]
	// completeRequest, unless nil, completes a request to create one, or to update the one that there is.
	completeRequest func(cmd *cobra.Command, given map[string]any, has *T) error
	// await, unless nil, waits for changes.
	await func(*waiter, *cobra.Command, *client.Client, []T) error
	// cells are those of a table, by their header, that are more than a field.
	cells map[string]func(T) string
	// version grows with each change; nil if the field Version does.
	version func(T) int64
}

// itemList is how the API's lists are written.
type itemList[T any] struct {
	Items []T `json:"items"`
}

// fieldValue returns a field of a resource by its Go name.
func fieldValue[F any](resource any, name string) F {
	return reflect.ValueOf(resource).FieldByName(name).Interface().(F)
}

func (k resourceKind[T]) idOf(one T) string { return fieldValue[string](one, "ID") }

func (k resourceKind[T]) versionOf(one T) int64 {
	if k.version != nil {
		return k.version(one)
	}
	return fieldValue[int64](one, "Version")
}

// completeRefs completes arguments with the resources' names, or their IDs if these are how
// the command line refers to one.
func (k resourceKind[T]) completeRefs() cobra.CompletionFunc {
	return k.completeNames(func(ctx context.Context, c *client.Client) (refs []string, err error) {
		items, err := k.list(ctx, c, nil)
		for _, one := range items {
			if k.refs == "ID" {
				refs = append(refs, k.idOf(one))
			} else {
				refs = append(refs, fieldValue[string](one, "Name"))
			}
		}
		return refs, err
	})
}

// findByRef finds a resource by its unique name, or by its ID.
func (k resourceKind[T]) findByRef(ctx context.Context, c *client.Client, ref string) (*T, error) {
	switch {
	case k.findSpecially != nil:
		return k.findSpecially(ctx, c, ref)
	case k.prefix == "":
		return k.get(c, ctx, ref)
	case ref == "":
		return nil, errNoRef
	}
	items, err := k.list(ctx, c, map[string]any{"Name": ref})
	switch {
	case err != nil:
		return nil, err
	case len(items) > 0:
		return &items[0], nil
	case strings.HasPrefix(ref, k.prefix):
		return k.get(c, ctx, ref)
	}
	return nil, fmt.Errorf("no %s is named %q; `fakecloud %s list` shows those there are", k.name, ref, k.group)
}

// printItems prints a value as JSON or YAML, or the items as a table, by -o.
func (k resourceKind[T]) printItems(cmd *cobra.Command, value any, items []T) error {
	var rows [][]string
	if k.output == "table" {
		for _, one := range items {
			rows = append(rows, k.cellsOf(one))
		}
	}
	header, _ := k.header()
	return k.printOutput(cmd, value, header, rows)
}

// printFound prints the resources that were found of the asked number: as itself if one was
// asked for, otherwise as a list. err is the error of those that were not found, and is
// returned.
func (k resourceKind[T]) printFound(cmd *cobra.Command, found []T, asked int, err error) error {
	switch {
	case len(found) == 0:
		return err
	case asked == 1:
		return errors.Join(err, k.printItems(cmd, found[0], found))
	}
	return errors.Join(err, k.printItems(cmd, itemList[T]{found}, found))
}

// printOne prints the result of a call, unless the call failed.
func (k resourceKind[T]) printOne(cmd *cobra.Command, one *T, err error) error {
	if err != nil {
		return err
	}
	return k.printItems(cmd, one, []T{*one})
}

// listCommand is the command that prints all resources.
func (k resourceKind[T]) listCommand(short, example string) *cobra.Command {
	return k.listCommandOf(short, example, func(ctx context.Context, c *client.Client) ([]T, error) {
		return k.list(ctx, c, nil)
	}, nil)
}

// filteredListCommand is the command that prints the resources with the tags and in the states that are asked for.
func (k resourceKind[T]) filteredListCommand(short, example string) *cobra.Command {
	var tags, states []string
	cmd := k.listCommandOf(
		short, example, func(ctx context.Context, c *client.Client) ([]T, error) {
			filter := map[string]any{"Tags": tags}
			if states != nil {
				filter["States"] = states
			}
			return k.list(ctx, c, filter)
		},
		func(_ context.Context, _ *client.Client, ev api.Event) ([]T, error) {
			return resourceInEvent(ev, func(one T) bool { return hasTags(fieldValue[api.Tags](one, "Tags"), tags) }), nil
		})
	addTagFilter(cmd, &tags)
	if k.states != nil {
		addStateFlag(cmd, &states, k.states...)
	}
	return cmd
}

// listCommandOf is a command that prints what list returns. Unless changed is nil, it has
// --watch: changed returns the resources of an event that belong in the list.
func (k resourceKind[T]) listCommandOf(
	short, example string,
	list func(context.Context, *client.Client) ([]T, error),
	changed func(context.Context, *client.Client, api.Event) ([]T, error),
) *cobra.Command {
	var watch bool
	cmd := &cobra.Command{Use: "list", Short: short, Example: example}
	cmd.RunE = k.withClient(func(cmd *cobra.Command, c *client.Client, _ []string) error {
		if watch {
			return watchList(cmd, c, k, list, changed)
		}
		items, err := list(cmd.Context(), c)
		if err != nil {
			return err
		}
		return k.printItems(cmd, itemList[T]{orEmpty(items)}, items)
	})
	k.addOutput(cmd)
	if changed != nil {
		addWatch(cmd, &watch)
	}
	return cmd
}

// resourceInEvent is the resource in an event, if it is one of kind T that is wanted.
func resourceInEvent[T any](ev api.Event, wanted func(T) bool) []T {
	_, field := ev.Payload()
	if one, ok := field.(**T); ok && *one != nil && wanted(**one) {
		return []T{**one}
	}
	return nil
}

func (k resourceKind[T]) getCommand(short, example string) *cobra.Command {
	return k.actCommand("get", short, example, nil, nil)
}

// actCommand is a command that calls do, unless that is nil, for each resource named, and
// prints them. Unless await is nil, it can --wait until the change is done.
func (k resourceKind[T]) actCommand(
	verb, short, example string,
	do func(*client.Client, context.Context, string) (*T, error),
	await func(*waiter, *cobra.Command, *client.Client, []T) error,
) *cobra.Command {
	var w waiter
	cmd := &cobra.Command{
		Use: verb + " " + k.refs + "...", Short: short, Args: clikit.RequireArguments(1, 0), Example: example,
		ValidArgsFunction: k.completeRefs(),
		RunE: k.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
			found, err := doForEach(args, func(ref string) (*T, error) {
				one, err := k.findByRef(cmd.Context(), c, ref)
				if err != nil || do == nil {
					return one, err
				}
				err = w.recordOperation(cmd.Context(), func(ctx context.Context) (id string, err error) {
					id = k.idOf(*one)
					one, err = do(c, ctx, id)
					return id, err
				})
				return one, err
			})
			if await != nil {
				err = errors.Join(err, await(&w, cmd, c, found))
			}
			return k.printFound(cmd, found, len(args), err)
		}),
	}
	k.addOutput(cmd)
	if await != nil {
		w.addFlags(k.app, cmd)
	}
	return cmd
}

// callCommand completes a command that makes one call and prints the resource that is answered.
func (k resourceKind[T]) callCommand(
	cmd *cobra.Command,
	call func(ctx context.Context, c *client.Client, args []string) (*T, error),
) *cobra.Command {
	cmd.RunE = k.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
		one, err := call(cmd.Context(), c, args)
		return k.printOne(cmd, one, err)
	})
	k.addOutput(cmd)
	return cmd
}

// deleteCommand is a command that finds each resource named and deletes it by its ID.
func (k resourceKind[T]) deleteCommand(
	verb, short, example string,
	do func(*client.Client, context.Context, string) error,
) *cobra.Command {
	return k.deleteByRefCommand(verb, short, example, func(c *client.Client, ctx context.Context, ref string) error {
		one, err := k.findByRef(ctx, c, ref)
		if err != nil {
			return err
		}
		return do(c, ctx, k.idOf(*one))
	})
}

// deleteByRefCommand is a command that deletes each resource by the reference given, without
// finding it first.
func (k resourceKind[T]) deleteByRefCommand(
	verb, short, example string,
	do func(*client.Client, context.Context, string) error,
) *cobra.Command {
	return &cobra.Command{
		Use: verb + " " + k.refs + "...", Short: short, Args: clikit.RequireArguments(1, 0), Example: example,
		ValidArgsFunction: k.completeRefs(),
		RunE: k.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
			return doForEachRef(args, func(ref string) error { return do(c, cmd.Context(), ref) })
		}),
	}
}
