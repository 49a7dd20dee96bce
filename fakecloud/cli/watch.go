package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/clikit"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

func addWatch(cmd *cobra.Command, watch *bool) {
	cmd.Flags().BoolVarP(
		watch, "watch", "w", false,
		"print a line for each change until interrupted; --state filters the first list only",
	)
}

// changeRecord is what --watch prints of one item: a line of JSON, or a YAML document.
type changeRecord struct {
	// Type is listed, created, updated or deleted.
	Type string `json:"type"`
	Item any    `json:"item"`
}

// watchList prints the list, then each change until ctx ends. No change is missed and none is
// printed twice: the event stream is followed from before the list was read, and versions
// that the list had already are left out.
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
	show := &changePrinter{out: cmd.OutOrStdout(), format: k.output}
	printedVersions := map[string]int64{}
	printChange := func(kind string, item T, first bool) error {
		id, version := k.idOf(item), k.versionOf(item)
		if last, known := printedVersions[id]; known && version <= last {
			return nil
		}
		printedVersions[id] = version
		return show.printItem(kind, item, first, func() (header, row []string, err error) {
			k.capture = func(h []string, rows [][]string) { header, row = h, rows[0] }
			defer func() { k.capture = nil }()
			return header, row, k.printItems(cmd, item, []T{item})
		})
	}
	for _, item := range items {
		if err := printChange("listed", item, true); err != nil {
			return err
		}
	}
	if err := show.flushRows(); err != nil {
		return err
	}
	err = c.Follow(ctx, from, func(ev api.Event) error {
		items, err := changed(ctx, c, ev)
		for _, item := range items {
			if err == nil {
				err = printChange(string(ev.Type), item, false)
			}
		}
		return err
	}, reportStreamBreaks(cmd.ErrOrStderr()))
	if ctx.Err() != nil {
		return nil //nolint:nilerr // Ctrl-C is how watching ends.
	}
	return err
}

// changePrinter prints items one by one, in columns as wide as those of the first list.
type changePrinter struct {
	out    io.Writer
	format string
	widths []int
	// pendingRows are not printed yet. The columns widen until all rows of the first list
	// are in it.
	pendingRows [][]string
}

func (s *changePrinter) printItem(kind string, item any, first bool, row func() (header, row []string, err error)) error {
	if s.format != "table" {
		return clikit.PrintRecord(s.out, s.format, changeRecord{kind, item})
	}
	header, cells, err := row()
	if err != nil {
		return err
	}
	if s.widths == nil {
		s.addRow(append([]string{"CHANGE"}, header...))
	}
	s.addRow(append([]string{kind}, cells...))
	if first {
		return nil
	}
	return s.flushRows()
}

func (s *changePrinter) addRow(row []string) {
	for i, cell := range row {
		if i == len(s.widths) {
			s.widths = append(s.widths, 0)
		}
		s.widths[i] = max(s.widths[i], len(cell))
	}
	s.pendingRows = append(s.pendingRows, row)
}

func (s *changePrinter) flushRows() error {
	for _, row := range s.pendingRows {
		var line strings.Builder
		for i, cell := range row {
			fmt.Fprintf(&line, "%-*s   ", s.widths[i], cell)
		}
		if _, err := fmt.Fprintln(s.out, strings.TrimRight(line.String(), " ")); err != nil {
			return err
		}
	}
	s.pendingRows = nil
	return nil
}

func hasTags(tags map[string]string, want []string) bool {
	return !slices.ContainsFunc(want, func(w string) bool {
		return !cloud.ParseTagFilter(w).Matches(tags)
	})
}
