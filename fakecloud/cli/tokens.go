package cli

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/clikit"
)

func (a *app) tokensCommand() *cobra.Command {
	return groupCommand("tokens", "Bearer tokens, and what they may do; for admins", `  fakecloud tokens list
  fakecloud tokens create ci --role viewer --expires-in 720h --out ci.token
  fakecloud tokens rotate ci --grace 5m --out ci.token
  fakecloud tokens delete ci
  fakecloud tokens keys add ccm --file key.pub.pem`,
		a.tokensList(), a.tokensGet(), a.tokensCreate(), a.tokensRotate(), a.tokensDelete(), a.tokenKeysCommand())
}

func (a *app) tokensList() *cobra.Command {
	var project string
	cmd := a.tokenKind(&project).listCommand(
		"List a project's tokens, expired ones included", "  fakecloud tokens list --project team-a",
	)
	a.addProjectFlag(cmd, &project)
	return cmd
}

// tokenKind is the kind of tokens in a project; "" stands for the caller's own project.
func (a *app) tokenKind(project *string) resourceKind[api.Token] {
	return resourceKind[api.Token]{
		app: a,
		list: func(ctx context.Context, c *client.Client, _ map[string]any) ([]api.Token, error) {
			p, err := resolveProject(ctx, c, *project)
			if err != nil {
				return nil, err
			}
			return c.ListTokens(ctx, p.ID)
		},
	}
}

func (a *app) tokensGet() *cobra.Command {
	var project string
	cmd := &cobra.Command{
		Use: "get NAME...", Short: "Show tokens, without their secrets", Args: clikit.RequireArguments(1, 0),
		Example: "  fakecloud tokens get ci -o yaml", ValidArgsFunction: a.tokenKind(&project).completeRefs(),
		RunE: a.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
			p, err := resolveProject(cmd.Context(), c, project)
			if err != nil {
				return err
			}
			found, err := doForEach(args, func(name string) (*api.Token, error) {
				return c.GetToken(cmd.Context(), p.ID, name)
			})
			return a.tokenKind(&project).printFound(cmd, found, len(args), err)
		}),
	}
	a.addOutput(cmd)
	a.addProjectFlag(cmd, &project)
	return cmd
}

// keepSecret writes a new secret to the file out and prints the token. Without a file it prints
// both; as a table, only the secret, for scripts.
func (a *app) keepSecret(cmd *cobra.Command, out string, t *api.TokenWithSecret) error {
	switch {
	case out != "":
		if err := writeSecret(out, []byte(t.Secret+"\n")); err != nil {
			return fmt.Errorf(
				"token %s has a new secret that could not be kept: %w; `fakecloud tokens rotate %s --out FILE` gives another",
				t.Token.Name, err, t.Token.Name,
			)
		}
		return a.tokenKind(new(string)).printOne(cmd, &t.Token, nil)
	case a.output == "table":
		_, err := fmt.Fprintln(cmd.OutOrStdout(), t.Secret)
		return err
	}
	return a.printOutput(cmd, t, "", nil)
}

func (a *app) tokensCreate() *cobra.Command {
	var project, role, out, at string
	var in time.Duration
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Create a token, and print its secret once or write it to a file",
		Args: clikit.RequireArguments(1, 1),
		Example: `  fakecloud tokens create ci --role viewer --expires-in 720h --out ci.token
  fakecloud tokens create team-a-admin --project team-a --role admin --out team-a.token`,
		RunE: a.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
			body := api.TokenCreate{Name: args[0], Role: api.Role(role)}
			if !body.Role.Valid() {
				return clikit.Usagef("--role %q: choose viewer, editor or admin", role)
			}
			if _, err := os.Lstat(out); err == nil {
				return clikit.Usagef("--out %s exists already: choose another name, or remove it", out)
			}
			var err error
			if body.ExpiresAt, err = expiryTime(cmd, a.cloudNow, in, at); err != nil {
				return err
			}
			p, err := resolveProject(cmd.Context(), c, project)
			if err != nil {
				return err
			}
			made, err := c.CreateToken(cmd.Context(), p.ID, body)
			if err != nil {
				return err
			}
			return a.keepSecret(cmd, out, made)
		}),
	}
	a.addOutput(cmd)
	a.addProjectFlag(cmd, &project)
	cmd.Flags().StringVar(&role, "role", string(api.RoleEditor), "viewer, editor or admin")
	cmd.Flags().DurationVar(&in, "expires-in", 0, "how long it is valid (default: for ever)")
	cmd.Flags().StringVar(&at, "expires-at", "", "when it ends, such as 2027-01-31T12:00:00Z")
	cmd.Flags().
		StringVar(&out, "out", "", "write the secret to this file, which only you can read, instead of printing it")
	clikit.CompleteFlag(cmd, "role", "viewer", "editor", "admin")
	return cmd
}

// expiryTime is when a token shall expire, or nil for never.
func expiryTime(cmd *cobra.Command, now func() time.Time, in time.Duration, at string) (*time.Time, error) {
	inGiven, atGiven := cmd.Flags().Changed("expires-in"), cmd.Flags().Changed("expires-at")
	switch {
	case inGiven && atGiven:
		return nil, clikit.Usagef("--expires-in and --expires-at: give one")
	case inGiven && in <= 0:
		return nil, clikit.Usagef("--expires-in %s: give more than 0s", in)
	case inGiven:
		t := now().Add(in).UTC().Truncate(time.Second)
		return &t, nil
	case !atGiven:
		return nil, nil
	}
	t, err := time.Parse(time.RFC3339, at)
	if err != nil {
		return nil, clikit.Usagef("--expires-at %q: want a time such as 2027-01-31T12:00:00Z", at)
	}
	return &t, nil
}

func (a *app) tokensRotate() *cobra.Command {
	var project, out string
	var grace time.Duration
	cmd := &cobra.Command{
		Use: "rotate NAME", Short: "Give a token a new secret, and print it once or write it to a file",
		Args: clikit.RequireArguments(1, 1),
		Long: `Give a token a new secret, and print it once or write it to a file.

One that "fakecloud serve --token" gives cannot be rotated: change its file and
restart "fakecloud serve".`,
		Example:           "  fakecloud tokens rotate ci --grace 5m --out ci.token",
		ValidArgsFunction: a.tokenKind(&project).completeRefs(),
		RunE: a.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
			if grace < 0 || grace%time.Second != 0 {
				return clikit.Usagef("--grace %s: give whole seconds", grace)
			}
			p, err := resolveProject(cmd.Context(), c, project)
			if err != nil {
				return err
			}
			rotated, err := c.RotateToken(
				cmd.Context(), p.ID, args[0], api.TokenRotate{GraceSeconds: int(grace.Seconds())},
			)
			if err != nil {
				return err
			}
			return a.keepSecret(cmd, out, rotated)
		}),
	}
	a.addOutput(cmd)
	a.addProjectFlag(cmd, &project)
	cmd.Flags().DurationVar(&grace, "grace", 0, "how long the old secret stays valid")
	cmd.Flags().
		StringVar(&out, "out", "", "write the secret to this file, which only you can read, instead of printing it")
	return cmd
}

func (a *app) tokensDelete() *cobra.Command {
	var project string
	cmd := &cobra.Command{
		Use: "delete NAME...", Short: "Delete tokens; they are not valid any more", Args: clikit.RequireArguments(1, 0),
		Long: `Delete tokens; they are not valid any more.

One that "fakecloud serve --token" gives cannot be deleted: restart "fakecloud
serve" without it.`,
		Example: "  fakecloud tokens delete ci", ValidArgsFunction: a.tokenKind(&project).completeRefs(),
		RunE: a.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
			p, err := resolveProject(cmd.Context(), c, project)
			if err != nil {
				return err
			}
			return doForEachRef(args, func(name string) error { return c.DeleteToken(cmd.Context(), p.ID, name) })
		}),
	}
	a.addProjectFlag(cmd, &project)
	return cmd
}
