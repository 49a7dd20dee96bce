package cli

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/clikit"
)

func (a *app) tokenKeysCommand() *cobra.Command {
	return groupCommand("keys", "Public keys of a token, for dialects whose clients sign their calls",
		`  openssl genrsa -out key.pem 2048 && openssl rsa -in key.pem -pubout -out key.pub.pem
  fakecloud tokens keys add ccm --file key.pub.pem
  fakecloud tokens keys list ccm
  fakecloud tokens keys delete ccm 41:01:92:0a:ea:a0:12:7d:a1:e0:62:d0:c4:e4:e3:82`,
		a.tokenKeysList(), a.tokenKeysAdd(), a.tokenKeysDelete())
}

func (a *app) tokenKeyKind() resourceKind[api.TokenKey] {
	return resourceKind[api.TokenKey]{
		app: a,
	}
}

// tokenKeysCall completes a command about the keys of the token that its first argument names.
func (a *app) tokenKeysCall(
	cmd *cobra.Command,
	call func(cmd *cobra.Command, c *client.Client, project, token string, more []string) error,
) *cobra.Command {
	var project string
	complete := a.tokenKind(&project).completeRefs()
	cmd.ValidArgsFunction = func(
		cmd *cobra.Command,
		given []string,
		prefix string,
	) ([]string, cobra.ShellCompDirective) {
		if len(given) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return complete(cmd, given, prefix)
	}
	cmd.RunE = a.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
		p, err := resolveProject(cmd.Context(), c, project)
		if err != nil {
			return err
		}
		return call(cmd, c, p.ID, args[0], args[1:])
	})
	a.addProjectFlag(cmd, &project)
	return cmd
}

func (a *app) tokenKeysList() *cobra.Command {
	cmd := a.tokenKeysCall(&cobra.Command{
		Use: "list TOKEN", Short: "List a token's keys, oldest first", Args: clikit.RequireArguments(1, 1),
		Example: "  fakecloud tokens keys list ccm",
	}, func(cmd *cobra.Command, c *client.Client, project, token string, _ []string) error {
		keys, err := c.ListTokenKeys(cmd.Context(), project, token)
		if err != nil {
			return err
		}
		return a.tokenKeyKind().printItems(cmd, itemList[api.TokenKey]{orEmpty(keys)}, keys)
	})
	a.addOutput(cmd)
	return cmd
}

func (a *app) tokenKeysAdd() *cobra.Command {
	var file string
	cmd := a.tokenKeysCall(&cobra.Command{
		Use: "add TOKEN --file FILE", Short: "Give a token a public key, beside those it has", Args: clikit.RequireArguments(1, 1),
		Example: "  fakecloud tokens keys add ccm --file key.pub.pem",
	}, func(cmd *cobra.Command, c *client.Client, project, token string, _ []string) error {
		if file == "" {
			return clikit.Usagef("a key needs --file FILE")
		}
		publicKey, err := os.ReadFile(file)
		if err != nil {
			return clikit.Usagef("--file: %w", err)
		}
		k, err := c.AddTokenKey(cmd.Context(), project, token, api.TokenKeyCreate{PublicKey: string(publicKey)})
		return a.tokenKeyKind().printOne(cmd, k, err)
	})
	a.addOutput(cmd)
	cmd.Flags().StringVar(&file, "file", "", "the public key, an RSA one of 2048 to 4096 bits in PEM")
	return cmd
}

func (a *app) tokenKeysDelete() *cobra.Command {
	return a.tokenKeysCall(&cobra.Command{
		Use: "delete TOKEN FINGERPRINT...", Short: "Delete keys of a token; they are not valid any more",
		Args:    clikit.RequireArguments(2, 0),
		Example: "  fakecloud tokens keys delete ccm 41:01:92:0a:ea:a0:12:7d:a1:e0:62:d0:c4:e4:e3:82",
	}, func(cmd *cobra.Command, c *client.Client, project, token string, fingerprints []string) error {
		return doForEachRef(fingerprints, func(fingerprint string) error {
			return c.DeleteTokenKey(cmd.Context(), project, token, fingerprint)
		})
	})
}
