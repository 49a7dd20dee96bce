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
)

func (a *app) projectsCommand() *cobra.Command {
	k := a.projectKind()
	return groupCommand("projects", "Projects, each with resources and tokens of its own; for admins", `  fakecloud projects list
  fakecloud projects create team-a --default-tag team=a
  fakecloud tokens create team-a-admin --project team-a --role admin --out team-a.token`,
		k.listCommand(&cobra.Command{
			Short: "List the cloud's projects, oldest first", Example: "  fakecloud projects list -o json",
		}, k.list, nil),
		a.projectsGet(), a.projectsCreate(), a.projectsUpdate(),
		k.deleteCommand(
			"delete", "Delete projects in which nothing lives", "  fakecloud projects delete team-a",
			(*client.Client).DeleteProject,
		))
}

func (a *app) projectKind() resourceKind[api.Project] {
	return resourceKind[api.Project]{
		app: a, refs: "NAME|ID", find: resolveProject, print: a.printProjects,
		list:  func(ctx context.Context, c *client.Client) ([]api.Project, error) { return c.ListProjects(ctx, "") },
		label: func(p api.Project) string { return p.Name },
		id:    func(p api.Project) string { return p.ID },
		wrap:  func(items []api.Project) any { return api.ProjectList{Items: items} },
	}
}

func (a *app) projectsGet() *cobra.Command {
	k := a.projectKind()
	cmd := k.getCommand("Show projects; without arguments, your token's own", `  fakecloud projects get
  fakecloud projects get team-a -o yaml`)
	named := cmd.RunE
	cmd.Use, cmd.Args = "get [NAME|ID...]", nil
	cmd.RunE = a.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
		if len(args) > 0 {
			return named(cmd, args)
		}
		p, err := c.Project(cmd.Context())
		return k.printOne(cmd, p, err)
	})
	return cmd
}

func (a *app) printProjects(cmd *cobra.Command, value any, items []api.Project) error {
	var rows [][]string
	for _, p := range items {
		rows = append(rows, []string{p.Name, p.ID, tagText(p.DefaultTags), a.formatAge(p.CreatedAt)})
	}
	return a.printOutput(cmd.OutOrStdout(), value, "NAME ID DEFAULT-TAGS AGE", rows)
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
	completeFlag(cmd, "project", a.projectKind().completeRefs())
}

func (a *app) projectsCreate() *cobra.Command {
	var tags map[string]string
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Create a project", Args: cobra.ExactArgs(1),
		Long:              "Create a project. It has a network \"default\", and no token yet: `fakecloud tokens create` makes one.",
		Example:           "  fakecloud projects create team-a --default-tag team=a",
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
			p, err := c.CreateProject(
				cmd.Context(), api.ProjectCreate{Name: args[0], DefaultTags: changedTags(cmd, "default-tag", tags)},
			)
			return a.projectKind().printOne(cmd, p, err)
		}),
	}
	a.addOutput(cmd)
	cmd.Flags().StringToStringVar(
		&tags, "default-tag", nil, "KEY=VALUE set on each new resource that lacks the key; repeatable",
	)
	return cmd
}

// someTags are the tags of a flag, or nil if there are none.
func someTags(tags map[string]string) *api.Tags {
	if len(tags) == 0 {
		return nil
	}
	return new(api.Tags(tags))
}

// changedTags are the tags of a flag, or nil if the flag was not given.
func changedTags(cmd *cobra.Command, flag string, tags map[string]string) *api.Tags {
	if !cmd.Flags().Changed(flag) {
		return nil
	}
	return new(api.Tags(tags))
}

// newTags are the tags that replace all tags in an update: those of a flag, no tags if none is
// set, or nil to leave the tags alone.
func newTags(cmd *cobra.Command, flag string, tags map[string]string, none bool) (*api.Tags, error) {
	given := changedTags(cmd, flag, tags)
	switch {
	case none && given != nil:
		return nil, misuse("--%s and --no-%ss: give one", flag, flag)
	case none:
		return &api.Tags{}, nil
	}
	return given, nil
}

func (a *app) projectsUpdate() *cobra.Command {
	var name string
	var tags map[string]string
	var noTags bool
	cmd := &cobra.Command{
		Use: "update NAME|ID", Short: "Rename a project, or replace its default tags", Args: cobra.ExactArgs(1),
		Example: `  fakecloud projects update team-a --name team-b
  fakecloud projects update team-a --default-tag team=b`, ValidArgsFunction: a.projectKind().completeRefs(),
		RunE: func(cmd *cobra.Command, args []string) error {
			var u api.ProjectUpdate
			var err error
			if u.DefaultTags, err = newTags(cmd, "default-tag", tags, noTags); err != nil {
				return err
			}
			if cmd.Flags().Changed("name") {
				u.Name = &name
			}
			if u == (api.ProjectUpdate{}) {
				return misuse("nothing to update: give --name, --default-tag or --no-default-tags")
			}
			c, err := a.newClient()
			if err != nil {
				return usageError{err}
			}
			p, err := resolveProject(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			p, err = c.UpdateProject(cmd.Context(), p.ID, u)
			return a.projectKind().printOne(cmd, p, err)
		},
	}
	a.addOutput(cmd)
	cmd.Flags().StringVar(&name, "name", "", "a new name")
	cmd.Flags().StringToStringVar(&tags, "default-tag", nil, "KEY=VALUE, in place of all the tags before; repeatable")
	cmd.Flags().BoolVar(&noTags, "no-default-tags", false, "remove all default tags")
	completeFlagValues(cmd, map[string][]string{"name": nil, "default-tag": nil})
	return cmd
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
