package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/clikit"
)

func (a *app) projectsCommand() *cobra.Command {
	k := a.projectKind()
	update := k.renameCommand()
	update.Short = "Rename a project, or replace its default tags"
	update.Example = `  fakecloud projects update team-a --name team-b
  fakecloud projects update team-a --default-tag team=b`
	return groupCommand("projects", "Projects, each with resources and tokens of its own; for admins", `  fakecloud projects list
  fakecloud projects create team-a --default-tag team=a
  fakecloud tokens create team-a-admin --project team-a --role admin --out team-a.token`,
		k.listCommand("List the cloud's projects, oldest first", "  fakecloud projects list -o json"),
		a.projectsGet(),
		k.createCommand(&cobra.Command{
			Use: "create NAME", Short: "Create a project",
			Long:    "Create a project. It has a network \"default\", and no token yet: `fakecloud tokens create` makes one.",
			Example: "  fakecloud projects create team-a --default-tag team=a",
		}),
		update,
		k.deleteCommand(
			"delete", "Delete projects in which nothing lives", "  fakecloud projects delete team-a",
			(*client.Client).DeleteProject,
		))
}

func (a *app) projectKind() resourceKind[api.Project] {
	return resourceKind[api.Project]{
		app: a, name: "project", group: "projects", refs: "NAME|ID", findSpecially: resolveProject,
		list: func(ctx context.Context, c *client.Client, _ map[string]any) ([]api.Project, error) {
			return c.ListProjects(ctx, "")
		},
		create: createBy((*client.Client).CreateProject), update: updateBy((*client.Client).UpdateProject),
	}
}

func (a *app) projectsGet() *cobra.Command {
	k := a.projectKind()
	cmd := k.getCommand("Show projects; without arguments, your token's own", `  fakecloud projects get
  fakecloud projects get team-a -o yaml`)
	named := cmd.RunE
	cmd.Use, cmd.Args = "get [NAME|ID...]", cobra.ArbitraryArgs
	cmd.RunE = a.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
		if len(args) > 0 {
			return named(cmd, args)
		}
		p, err := c.Project(cmd.Context())
		return k.printOne(cmd, p, err)
	})
	return cmd
}

// resolveProject finds a project by name or ID; "" stands for the caller's own.
func resolveProject(ctx context.Context, c *client.Client, ref string) (*api.Project, error) {
	if ref == "" {
		return c.Project(ctx)
	}
	items, err := c.ListProjects(ctx, ref)
	switch {
	case err != nil:
		return nil, err
	case len(items) > 0: // Names are unique.
		return &items[0], nil
	case strings.HasPrefix(ref, "p-"):
		return c.GetProject(ctx, ref)
	}
	return nil, fmt.Errorf("no project is named %q; `fakecloud projects list` shows those there are", ref)
}

// addProjectFlag adds --project. By default it is the caller's own project.
func (a *app) addProjectFlag(cmd *cobra.Command, ref *string) {
	cmd.Flags().StringVar(ref, "project", "", "name or ID of the project (default: your token's own)")
	clikit.CompleteFlagBy(cmd, "project", a.projectKind().completeRefs())
}

// tagText is the tags, for a cell of a table.
func tagText(tags map[string]string) string {
	if len(tags) == 0 {
		return "-"
	}
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(tags)) {
		parts = append(parts, k+"="+tags[k])
	}
	return strings.Join(parts, ",")
}
