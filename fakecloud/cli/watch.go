// This file answers: how does --watch show a list, and then what changes?

package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

func addWatch(cmd *cobra.Command, watch *bool) {
	cmd.Flags().BoolVarP(watch, "watch", "w", false, "go on with a line for each change, until interrupted; --state narrows the first list only")
}

// watching is a kind of resource whose list can be watched.
type watching[T any] struct {
	// list gives what is there now.
	list func(context.Context) ([]T, error)
	// changed gives those that an event is about, if they belong in the list.
	changed func(context.Context, api.Event) ([]T, error)
	// mark gives an item's ID, and a number that grows with each change of it.
	mark func(T) (id string, version int64)
	// print is that of the list.
	print func(cmd *cobra.Command, value any, items []T) error
}

// shown is one line of JSON, or one YAML document.
type shown struct {
	// Type is how the item comes to be shown: listed, created, updated, deleted.
	Type string `json:"type"`
	Item any    `json:"item"`
}

// watchList shows the list, then changes until ctx ends. What happens between
// the two is shown once: the event stream is followed from before the list was
// made, and what the list knew already is left out.
func watchList[T any](a *app, cmd *cobra.Command, c *client.Client, w watching[T]) error {
	ctx := cmd.Context()
	from, err := c.NewestEvent(ctx)
	if err != nil {
		return err
	}
	items, err := w.list(ctx)
	if err != nil {
		return err
	}
	show := &changes{out: cmd.OutOrStdout(), format: a.output}
	seen := map[string]int64{}
	one := func(kind string, item T, first bool) error {
		id, version := w.mark(item)
		if last, known := seen[id]; known && version <= last {
			return nil
		}
		seen[id] = version
		return show.item(kind, item, first, func() (header string, row []string, err error) {
			a.capture = func(h string, rows [][]string) { header, row = h, rows[0] }
			defer func() { a.capture = nil }()
			return header, row, w.print(cmd, item, []T{item})
		})
	}
	for _, item := range items {
		if err := one("listed", item, true); err != nil {
			return err
		}
	}
	if err := show.flush(); err != nil {
		return err
	}
	err = c.Follow(ctx, from, func(ev api.Event) error {
		changed, err := w.changed(ctx, ev)
		for _, item := range changed {
			if err == nil {
				err = one(string(ev.Type), item, false)
			}
		}
		return err
	}, sayBroken(cmd.ErrOrStderr()))
	if ctx.Err() != nil {
		return nil //nolint:nilerr // Ctrl-C is how watching ends.
	}
	return err
}

// changes shows items one by one, in columns that fit those of the first list.
type changes struct {
	out     io.Writer
	format  string
	widths  []int
	waiting [][]string // rows of the first list
}

func (s *changes) item(kind string, item any, first bool, row func() (string, []string, error)) error {
	switch s.format {
	case "json":
		return json.NewEncoder(s.out).Encode(shown{kind, item})
	case "yaml":
		if _, err := fmt.Fprintln(s.out, "---"); err != nil {
			return err
		}
		return printYAML(s.out, shown{kind, item})
	}
	header, cells, err := row()
	if err != nil {
		return err
	}
	if s.widths == nil {
		s.add(append([]string{"CHANGE"}, strings.Fields(header)...))
	}
	s.add(append([]string{kind}, cells...))
	if first {
		return nil
	}
	return s.flush()
}

func (s *changes) add(row []string) {
	for i, cell := range row {
		if i == len(s.widths) {
			s.widths = append(s.widths, 0)
		}
		s.widths[i] = max(s.widths[i], len(cell))
	}
	s.waiting = append(s.waiting, row)
}

func (s *changes) flush() error {
	for _, row := range s.waiting {
		var line strings.Builder
		for i, cell := range row {
			fmt.Fprintf(&line, "%-*s   ", s.widths[i], cell)
		}
		if _, err := fmt.Fprintln(s.out, strings.TrimRight(line.String(), " ")); err != nil {
			return err
		}
	}
	s.waiting = nil
	return nil
}

func hasTags(tags map[string]string, want []string) bool {
	return !slices.ContainsFunc(want, func(w string) bool {
		return !cloud.ParseTagFilter(w).Matches(tags)
	})
}

func (a *app) watchInstances(cmd *cobra.Command, c *client.Client, f client.InstanceFilter) error {
	return watchList(a, cmd, c, watching[api.Instance]{
		list: func(ctx context.Context) ([]api.Instance, error) { return c.ListInstances(ctx, f) },
		changed: func(_ context.Context, ev api.Event) ([]api.Instance, error) {
			if in := ev.Instance; in != nil && hasTags(in.Tags, f.Tags) && (f.Zone == "" || in.Zone == f.Zone) {
				return []api.Instance{*in}, nil
			}
			return nil, nil
		},
		mark:  func(in api.Instance) (string, int64) { return in.ID, in.Version },
		print: a.printInstances,
	})
}

func (a *app) watchBalancers(cmd *cobra.Command, c *client.Client, f client.LoadBalancerFilter) error {
	return watchList(a, cmd, c, watching[api.LoadBalancer]{
		list: func(ctx context.Context) ([]api.LoadBalancer, error) { return c.ListLoadBalancers(ctx, f) },
		changed: func(_ context.Context, ev api.Event) ([]api.LoadBalancer, error) {
			if lb := ev.LoadBalancer; lb != nil && hasTags(lb.Tags, f.Tags) {
				return []api.LoadBalancer{*lb}, nil
			}
			return nil, nil
		},
		mark:  func(lb api.LoadBalancer) (string, int64) { return lb.ID, lb.Version },
		print: a.printBalancers,
	})
}

func (a *app) watchRoutes(cmd *cobra.Command, c *client.Client, f client.RouteFilter) error {
	return watchList(a, cmd, c, watching[api.Route]{
		list: func(ctx context.Context) ([]api.Route, error) { return c.ListRoutes(ctx, f) },
		changed: func(_ context.Context, ev api.Event) ([]api.Route, error) {
			if r := ev.Route; r != nil && hasTags(r.Tags, f.Tags) {
				return []api.Route{*r}, nil
			}
			return nil, nil
		},
		mark:  func(r api.Route) (string, int64) { return r.ID, r.Version },
		print: a.printRoutes,
	})
}

func (a *app) watchAddresses(cmd *cobra.Command, c *client.Client, f client.AddressFilter) error {
	return watchList(a, cmd, c, watching[api.ReservedAddress]{
		list: func(ctx context.Context) ([]api.ReservedAddress, error) { return c.ListAddresses(ctx, f) },
		changed: func(_ context.Context, ev api.Event) ([]api.ReservedAddress, error) {
			if r := ev.Address; r != nil && hasTags(r.Tags, f.Tags) {
				return []api.ReservedAddress{*r}, nil
			}
			return nil, nil
		},
		mark:  func(r api.ReservedAddress) (string, int64) { return r.ID, r.Version },
		print: a.printAddresses,
	})
}

func (a *app) watchNetworks(cmd *cobra.Command, c *client.Client, f client.NetworkFilter) error {
	return watchList(a, cmd, c, watching[api.Network]{
		list: func(ctx context.Context) ([]api.Network, error) { return c.ListNetworks(ctx, f) },
		changed: func(_ context.Context, ev api.Event) ([]api.Network, error) {
			if n := ev.Network; n != nil && hasTags(n.Tags, f.Tags) {
				return []api.Network{*n}, nil
			}
			return nil, nil
		},
		mark:  func(n api.Network) (string, int64) { return n.ID, n.Version },
		print: a.printNetworks,
	})
}

// watchOperations asks for a resource's operations at each of its events: they
// begin and end with those.
func (a *app) watchOperations(cmd *cobra.Command, c *client.Client, f client.OperationFilter) error {
	return watchList(a, cmd, c, watching[api.Operation]{
		list: func(ctx context.Context) ([]api.Operation, error) { return c.ListOperations(ctx, f) },
		changed: func(ctx context.Context, ev api.Event) ([]api.Operation, error) {
			if ev.Instance == nil && ev.LoadBalancer == nil || f.Resource != "" && ev.ID != f.Resource {
				return nil, nil
			}
			all, err := c.ListOperations(ctx, client.OperationFilter{Resource: ev.ID, Types: f.Types})
			return slices.DeleteFunc(all, func(op api.Operation) bool { return op.EndedAt != nil && op.EndedAt.Before(ev.Time) }), err
		},
		mark: func(op api.Operation) (string, int64) {
			if op.EndedAt != nil {
				return op.ID, 1
			}
			return op.ID, 0
		},
		print: a.printOperations,
	})
}
