// This file answers: how is the cloud's state put aside and brought back from the
// command line?

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/store"
)

func (a *app) snapshots() *cobra.Command {
	g := group("snapshots", "The state of the whole cloud, put aside and brought back", `  fakecloud snapshots save before-lesson-2
  fakecloud snapshots list
  fakecloud snapshots restore before-lesson-2`,
		a.snapshotsList(), a.snapshotsGet(), a.snapshotsSave(), a.snapshotsRestore(), a.snapshotsExport(), a.snapshotsDelete())
	g.Aliases = []string{"snapshot"}
	return g
}

func (a *app) printSnapshots(cmd *cobra.Command, value any, items ...api.Snapshot) error {
	var rows [][]string
	for _, s := range items {
		rows = append(rows, []string{s.Name, fmt.Sprintf("%.1f MB", float64(s.Bytes)/1e6), a.age(s.CreatedAt)})
	}
	return a.print(cmd.OutOrStdout(), value, "NAME SIZE AGE", rows)
}

func (a *app) completeSnapshots() cobra.CompletionFunc {
	return a.complete(func(ctx context.Context, c *client.Client) (names []string, err error) {
		items, err := c.ListSnapshots(ctx)
		for _, s := range items {
			names = append(names, s.Name)
		}
		return names, err
	})
}

func (a *app) snapshotsList() *cobra.Command {
	cmd := &cobra.Command{
		Use: "list", Short: "List snapshots by name", Args: cobra.NoArgs,
		Example: "  fakecloud snapshots list -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return usageError{err}
			}
			items, err := c.ListSnapshots(cmd.Context())
			if err != nil {
				return err
			}
			return a.printSnapshots(cmd, api.SnapshotList{Items: orEmpty(items)}, items...)
		},
	}
	a.addOutput(cmd)
	return cmd
}

func (a *app) snapshotsGet() *cobra.Command {
	cmd := &cobra.Command{
		Use: "get NAME...", Short: "Show snapshots", Args: cobra.MinimumNArgs(1),
		Example: "  fakecloud snapshots get before-lesson-2 -o yaml", ValidArgsFunction: a.completeSnapshots(),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return usageError{err}
			}
			found, err := each(args, func(name string) (*api.Snapshot, error) { return c.GetSnapshot(cmd.Context(), name) })
			switch {
			case len(found) == 0:
				return err
			case len(args) == 1:
				return a.printSnapshots(cmd, found[0], found...)
			}
			return errors.Join(err, a.printSnapshots(cmd, api.SnapshotList{Items: found}, found...))
		},
	}
	a.addOutput(cmd)
	return cmd
}

func (a *app) snapshotsSave() *cobra.Command {
	cmd := &cobra.Command{
		Use: "save NAME", Short: "Put the present state aside, while the cloud goes on", Args: cobra.ExactArgs(1),
		Long: `Put the present state aside, while the cloud goes on: all projects, resources,
tokens and events, as they are at one time. The file lies beside the cloud's
data.`,
		Example:           "  fakecloud snapshots save before-lesson-2",
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return usageError{err}
			}
			s, err := c.CreateSnapshot(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.printSnapshots(cmd, s, *s)
		},
	}
	a.addOutput(cmd)
	return cmd
}

func (a *app) snapshotsRestore() *cobra.Command {
	cmd := &cobra.Command{
		Use: "restore NAME", Short: "Make a snapshot's state the cloud's; what has happened since is gone", Args: cobra.ExactArgs(1),
		Example:           "  fakecloud snapshots restore before-lesson-2",
		ValidArgsFunction: a.completeSnapshots(),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return usageError{err}
			}
			s, err := c.RestoreSnapshot(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.printSnapshots(cmd, s, *s)
		},
	}
	a.addOutput(cmd)
	return cmd
}

func (a *app) snapshotsExport() *cobra.Command {
	return &cobra.Command{
		Use: "export NAME FILE", Short: "Copy a snapshot out of the cloud; \"fakecloud restore\" takes it elsewhere", Args: cobra.ExactArgs(2),
		Example:           "  fakecloud snapshots export before-lesson-2 room.db",
		ValidArgsFunction: a.completeSnapshots(),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return usageError{err}
			}
			return writeFile(args[1], func(f *os.File) error { return c.SnapshotContent(cmd.Context(), args[0], f) })
		},
	}
}

// writeFile makes a file that was not there, wholly or not at all; only its
// owner reads it.
func writeFile(path string, write func(*os.File) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".export-*") // With mode 0600.
	if err != nil {
		return err
	}
	defer func() {
		// A link is made where nothing is, or not at all.
		err = errors.Join(err, os.Remove(f.Name()))
	}()
	if err := errors.Join(write(f), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Link(f.Name(), path); !errors.Is(err, os.ErrExist) {
		return err
	}
	return fmt.Errorf("%s exists already; choose another name", path)
}

func (a *app) snapshotsDelete() *cobra.Command {
	return &cobra.Command{
		Use: "delete NAME...", Short: "Delete snapshots", Args: cobra.MinimumNArgs(1),
		Example:           "  fakecloud snapshots delete before-lesson-2",
		ValidArgsFunction: a.completeSnapshots(),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return usageError{err}
			}
			_, err = each(args, func(name string) (*struct{}, error) { return &struct{}{}, c.DeleteSnapshot(cmd.Context(), name) })
			return err
		},
	}
}

// restore works on a data file that no cloud runs on.
func (a *app) restore() *cobra.Command {
	var data string
	cmd := &cobra.Command{
		Use: "restore FILE", Short: "Make an exported snapshot the state of a cloud that does not run", Args: cobra.ExactArgs(1),
		Long: `Make an exported snapshot the state of a cloud that does not run, wholly or not
at all. What the data file held before is gone; one that is missing is created.
A cloud that runs takes a snapshot of its own: "fakecloud snapshots restore".`,
		Example:           "  fakecloud restore room.db --data cloud.db",
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			s, err := store.Open(cmd.Context(), data)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, s.Close()) }()
			if err := s.Restore(cmd.Context(), args[0]); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s now holds what %s did\n", data, args[0])
			return err
		},
	}
	cmd.Flags().StringVar(&data, "data", dataFile(), "file that holds the state")
	return cmd
}
