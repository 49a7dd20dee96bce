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

// shown is one line of JSON, or one YAML document.
type shown struct {
	// Type is how the item comes to be shown: listed, created, updated, deleted.
	Type string `json:"type"`
	Item any    `json:"item"`
}

// watchList shows the list, then changes until ctx ends. What happens between
// the two is shown once: the event stream is followed from before the list was
// made, and what the list knew already is left out.
func watchList[T any](
	cmd *cobra.Command,
	c *client.Client,
	k resourceKind[T],
	list func(context.Context, *client.Client) ([]T, error),
	changed func(context.Context, *client.Client, api.Event) ([]T, error),
) error {
	ctx := cmd.Context()
	from, err := c.NewestEvent(ctx)
	if err != nil {
		return err
	}
	items, err := list(ctx, c)
	if err != nil {
		return err
	}
	show := &changes{out: cmd.OutOrStdout(), format: k.output}
	seen := map[string]int64{}
	one := func(kind string, item T, first bool) error {
		id, version := k.id(item), k.version(item)
		if last, known := seen[id]; known && version <= last {
			return nil
		}
		seen[id] = version
		return show.item(kind, item, first, func() (header string, row []string, err error) {
			k.capture = func(h string, rows [][]string) { header, row = h, rows[0] }
			defer func() { k.capture = nil }()
			return header, row, k.print(cmd, item, []T{item})
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
		items, err := changed(ctx, c, ev)
		for _, item := range items {
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
