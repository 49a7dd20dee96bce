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
	"github.com/ccmlab/ccmlab/fakecloud/clikit"
	"github.com/ccmlab/ccmlab/fakecloud/store"
)

func (a *app) snapshotsCommand() *cobra.Command {
	k := a.snapshotKind()
	g := groupCommand("snapshots", "The state of the whole cloud, put aside", `  fakecloud snapshots save before-lesson-2
  fakecloud snapshots list
  fakecloud snapshots export before-lesson-2 room.db`,
		k.listCommand("List snapshots by name", "  fakecloud snapshots list -o json"),
		k.getCommand("Show snapshots", "  fakecloud snapshots get before-lesson-2 -o yaml"),
		a.snapshotsSave(), a.snapshotsExport(),
		k.deleteByRefCommand(
			"delete", "Delete snapshots", "  fakecloud snapshots delete before-lesson-2",
			(*client.Client).DeleteSnapshot,
		))
	g.Aliases = []string{"snapshot"}
	return g
}

func (a *app) snapshotKind() resourceKind[api.Snapshot] {
	return resourceKind[api.Snapshot]{
		app: a, refs: "NAME", get: (*client.Client).GetSnapshot,
		list: func(ctx context.Context, c *client.Client, _ map[string]any) ([]api.Snapshot, error) {
			return c.ListSnapshots(ctx)
		},
		cells: map[string]func(api.Snapshot) string{
			"SIZE": func(s api.Snapshot) string { return fmt.Sprintf("%.1f MB", float64(s.Bytes)/1e6) },
		},
	}
}

func (a *app) snapshotsSave() *cobra.Command {
	return a.snapshotKind().callCommand(&cobra.Command{
		Use: "save NAME", Short: "Put the present state aside, while the cloud goes on", Args: clikit.RequireArguments(1, 1),
		Long: `Put the present state aside, while the cloud goes on: all projects, resources,
tokens and events, as they are at one time. The file lies beside the cloud's
data.`,
		Example: "  fakecloud snapshots save before-lesson-2",
	}, func(ctx context.Context, c *client.Client, args []string) (*api.Snapshot, error) {
		return c.CreateSnapshot(ctx, args[0])
	})
}

func (a *app) snapshotsExport() *cobra.Command {
	return &cobra.Command{
		Use: "export NAME FILE", Short: "Copy a snapshot out of the cloud; \"fakecloud restore\" brings it back",
		Args:              clikit.RequireArguments(2, 2),
		Example:           "  fakecloud snapshots export before-lesson-2 room.db",
		ValidArgsFunction: a.snapshotKind().completeRefs(),
		RunE: a.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
			return writeFile(args[1], func(f *os.File) error { return c.SnapshotContent(cmd.Context(), args[0], f) })
		}),
	}
}

// writeFile writes a new file that only its owner can read, completely or not at all.
func writeFile(path string, write func(*os.File) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".export-*") // With mode 0600.
	if err != nil {
		return err
	}
	defer func() {
		// The content is in place once the link below is made. Link fails if path exists.
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

// restoreCommand works on a data file that no running cloud uses.
func (a *app) restoreCommand() *cobra.Command {
	var data string
	cmd := &cobra.Command{
		Use: "restore FILE", Short: "Make an exported snapshot the state of a cloud that does not run",
		Args: clikit.RequireArguments(1, 1),
		Long: `Make an exported snapshot the state of a cloud that does not run, wholly or not
at all. What the data file held before is gone, but for its tokens: they stay as
they are, so that none comes back that was deleted or rotated since. A data file
that is missing is created, with the snapshot's tokens.`,
		Example:           "  fakecloud restore room.db --data cloud.db",
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := store.Restore(cmd.Context(), data, args[0]); err != nil {
				return err
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s now holds what %s did\n", data, args[0])
			return err
		},
	}
	cmd.Flags().StringVar(&data, "data", dataFile(), "file that holds the state")
	return cmd
}
