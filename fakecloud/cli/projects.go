// This file answers: what can be done with projects from the command line?

package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

func (a *app) projects() *cobra.Command {
	return group("projects", "Projects, each with resources and tokens of its own; for admins", `  fakecloud projects list
  fakecloud projects create team-a --default-tag team=a
  fakecloud tokens create team-a-admin --project team-a --role admin --out team-a.token`,
		a.projectsList(), a.projectsGet(), a.projectsCreate(), a.projectsUpdate(), a.projectsDelete())
}

func (a *app) printProjects(cmd *cobra.Command, value any, items []api.Project) error {
	var rows [][]string
	for _, p := range items {
		rows = append(rows, []string{p.Name, p.ID, tagText(p.DefaultTags), a.age(p.CreatedAt)})
	}
	return a.print(cmd.OutOrStdout(), value, "NAME ID DEFAULT-TAGS AGE", rows)
}

func (a *app) projectsList() *cobra.Command {
	cmd := &cobra.Command{
		Use: "list", Short: "List the cloud's projects, oldest first", Args: cobra.NoArgs,
		Example: "  fakecloud projects list -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return usageError{err}
			}
			items, err := c.ListProjects(cmd.Context(), "")
			if err != nil {
				return err
			}
			return a.printProjects(cmd, api.ProjectList{Items: orEmpty(items)}, items)
		},
	}
	a.addOutput(cmd)
	return cmd
}

// resolveProject finds a project by name or ID; "" is the caller's own.
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

func (a *app) completeProjects() cobra.CompletionFunc {
	return a.complete(func(ctx context.Context, c *client.Client) (names []string, err error) {
		items, err := c.ListProjects(ctx, "")
		for _, p := range items {
			names = append(names, p.Name)
		}
		return names, err
	})
}

// projectFlag adds --project, by default the caller's own.
func (a *app) projectFlag(cmd *cobra.Command, ref *string) {
	cmd.Flags().StringVar(ref, "project", "", "name or ID of the project (default: your token's own)")
	offer(cmd, "project", a.completeProjects())
}

func (a *app) projectsGet() *cobra.Command {
	cmd := &cobra.Command{
		Use: "get [NAME|ID...]", Short: "Show projects; without arguments, your token's own",
		Example: `  fakecloud projects get
  fakecloud projects get team-a -o yaml`, ValidArgsFunction: a.completeProjects(),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return usageError{err}
			}
			if len(args) == 0 {
				p, err := c.Project(cmd.Context())
				if err != nil {
					return err
				}
				return a.printProjects(cmd, p, []api.Project{*p})
			}
			found, err := each(args, func(ref string) (*api.Project, error) { return resolveProject(cmd.Context(), c, ref) })
			switch {
			case len(found) == 0:
				return err
			case len(args) == 1:
				return a.printProjects(cmd, found[0], found)
			}
			return errors.Join(err, a.printProjects(cmd, api.ProjectList{Items: found}, found))
		},
	}
	a.addOutput(cmd)
	return cmd
}

func (a *app) projectsCreate() *cobra.Command {
	var tags map[string]string
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Create a project", Args: cobra.ExactArgs(1),
		Long:              "Create a project. It has a network \"default\", and no token yet: `fakecloud tokens create` makes one.",
		Example:           "  fakecloud projects create team-a --default-tag team=a",
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return usageError{err}
			}
			p, err := c.CreateProject(cmd.Context(), api.ProjectCreate{Name: args[0], DefaultTags: changedTags(cmd, "default-tag", tags)})
			if err != nil {
				return err
			}
			return a.printProjects(cmd, p, []api.Project{*p})
		},
	}
	a.addOutput(cmd)
	cmd.Flags().StringToStringVar(&tags, "default-tag", nil, "KEY=VALUE set on each new resource that lacks the key; repeatable")
	return cmd
}

// changedTags are the tags of a flag, if it was given.
func changedTags(cmd *cobra.Command, flag string, tags map[string]string) *api.Tags {
	if !cmd.Flags().Changed(flag) {
		return nil
	}
	t := api.Tags(tags)
	return &t
}

// newTags are those that an update replaces all tags by: those of a flag, or
// none at all if there is to be none.
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
  fakecloud projects update team-a --default-tag team=b`, ValidArgsFunction: a.completeProjects(),
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
			c, err := a.client()
			if err != nil {
				return usageError{err}
			}
			p, err := resolveProject(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			if p, err = c.UpdateProject(cmd.Context(), p.ID, u); err != nil {
				return err
			}
			return a.printProjects(cmd, p, []api.Project{*p})
		},
	}
	a.addOutput(cmd)
	cmd.Flags().StringVar(&name, "name", "", "a new name")
	cmd.Flags().StringToStringVar(&tags, "default-tag", nil, "KEY=VALUE, in place of all the tags before; repeatable")
	cmd.Flags().BoolVar(&noTags, "no-default-tags", false, "remove all default tags")
	noFiles(cmd, map[string][]string{"name": nil, "default-tag": nil})
	return cmd
}

func (a *app) projectsDelete() *cobra.Command {
	return &cobra.Command{
		Use: "delete NAME|ID...", Short: "Delete projects in which nothing lives", Args: cobra.MinimumNArgs(1),
		Example: "  fakecloud projects delete team-a", ValidArgsFunction: a.completeProjects(),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return usageError{err}
			}
			_, err = each(args, func(ref string) (*api.Project, error) {
				p, err := resolveProject(cmd.Context(), c, ref)
				if err == nil {
					err = c.DeleteProject(cmd.Context(), p.ID)
				}
				return p, err
			})
			return err
		},
	}
}

// tagText is tags in a table's cell.
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
