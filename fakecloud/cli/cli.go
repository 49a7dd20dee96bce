// Package cli is the fakecloud command: `serve` runs the cloud, and the other commands
// talk to a running one through fakecloud/client. Of the cloud's own packages only `serve`
// and `restore` use what runs it; the others take from them no more than names to complete
// and to check.
//
// Begin with Run and app.rootCommand in this file. Each command group has a file
// (instances.go, tokens.go, …). What they share: resourceKind in kinds.go, flags and columns
// that follow from the API's spec in kind_commands.go, others in flags.go and output.go, --wait in
// wait.go, --watch in watch.go.
package cli

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/clikit"
	"github.com/ccmlab/ccmlab/fakecloud/release"
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

const defaultListen = "127.0.0.1:8470"

// Run runs one command line and returns its exit code. It ends early, in good order, when
// ctx ends.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	a := &app{}
	root := a.rootCommand()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	for line := range strings.Lines(a.explainError(err).Error()) { // Joined errors take a line each.
		// An error of stderr itself cannot be reported.
		_, _ = fmt.Fprintf(stderr, "fakecloud: %s\n", strings.TrimSuffix(line, "\n"))
	}
	if clikit.IsUsage(err) {
		return exitUsage
	}
	return exitFailed
}

// app holds the global flags and what else the commands share.
type app struct {
	url, tokenFile, caFile string
	output                 string
	wide                   bool // all columns
	// ctx is the context of the running command.
	ctx context.Context
	// cloudTime is the time of a virtual clock when it was read, at clockReadAt. It is
	// nil with a real clock.
	clockReadAt time.Time
	cloudTime   *time.Time
	// capture, unless nil, gets the table that would be printed.
	capture func(header []string, rows [][]string)
}

func (a *app) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "fakecloud",
		Short: "A simulated cloud: instances with a life cycle, routes, load balancers that forward for real",
		Long: `A simulated cloud that fits in one process. "fakecloud serve" runs it; the
other commands talk to one that runs, wherever FAKECLOUD_URL points.`,
		Example: `  fakecloud serve --profile realistic
  fakecloud instances create node-1 --wait
  fakecloud events --follow`,
		Version:       buildVersion(),
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          showHelp,
		PersistentPreRun: func(cmd *cobra.Command, _ []string) {
			a.ctx, a.output = cmd.Context(), clikit.Output(cmd)
			if a.output == "wide" {
				a.output, a.wide = "table", true
			}
		},
	}
	flags := root.PersistentFlags()
	flags.StringVar(
		&a.url, "url", cmp.Or(os.Getenv("FAKECLOUD_URL"), "http://"+defaultListen),
		"where the cloud is (FAKECLOUD_URL)",
	)
	flags.StringVar(
		&a.tokenFile, "token-file", cmp.Or(os.Getenv("FAKECLOUD_TOKEN_FILE"), filepath.Join(stateDir(), "token")),
		"file with the bearer token (FAKECLOUD_TOKEN_FILE)",
	)
	flags.StringVar(
		&a.caFile, "ca-file", os.Getenv("FAKECLOUD_CA_FILE"),
		"PEM bundle to verify an https cloud with (FAKECLOUD_CA_FILE; default: the system's)",
	)
	root.AddCommand(a.serveCommand(), a.applyCommand(), a.regionsCommand(), a.zonesCommand(),
		a.instanceTypesCommand(), a.loadBalancerTypesCommand(), a.dialectsCommand(),
		a.networksCommand(), a.firewallsCommand(), a.certificatesCommand(), a.instancesCommand(), a.addressesCommand(),
		a.loadBalancersCommand(), a.routesCommand(), a.operationsCommand(), a.eventsCommand(), a.auditCommand(),
		a.faultsCommand(), a.consoleCommand(), a.quotasCommand(),
		a.projectsCommand(), a.tokensCommand(), a.clockCommand(), a.snapshotsCommand(), a.restoreCommand())
	clikit.Finish(root)
	disableFileCompletion(root)
	return root
}

// buildVersion is the release, and the Go that compiled it.
func buildVersion() string { return release.Version() + " (" + runtime.Version() + ")" }

// stateDir is the default folder of the data and the token file.
func stateDir() string {
	dir := os.Getenv("XDG_STATE_HOME")
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			home = "." // Without a home, the working directory.
		}
		dir = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(dir, "fakecloud")
}

// dataFile is the default of --data.
func dataFile() string { return filepath.Join(stateDir(), "cloud.db") }

// groupCommand is a command that only has subcommands.
func groupCommand(use, short, example string, subcommands ...*cobra.Command) *cobra.Command {
	g := &cobra.Command{Use: use, Short: short, Example: example, RunE: showHelp}
	g.AddCommand(subcommands...)
	return g
}

func showHelp(cmd *cobra.Command, _ []string) error { return cmd.Help() }

// doForEach runs do for every reference, even if do fails for others, and returns the
// results and all errors. If a reference is empty, it runs do for none.
func doForEach[T any](refs []string, do func(ref string) (*T, error)) ([]T, error) {
	if slices.Contains(refs, "") {
		return nil, errNoRef
	}
	var done []T
	var errs []error
	for _, ref := range refs {
		one, err := do(ref)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		done = append(done, *one)
	}
	return done, errors.Join(errs...)
}

// doForEachRef is doForEach for a do without a result.
func doForEachRef(refs []string, do func(ref string) error) error {
	_, err := doForEach(refs, func(ref string) (*struct{}, error) { return &struct{}{}, do(ref) })
	return err
}

// errNoRef is the error of an empty reference, which would match everything.
var errNoRef = clikit.Usagef("an empty name or ID refers to nothing: give one")

// completeNames completes arguments with the names that list returns, except those given
// already. It offers none if the cloud does not answer within a second.
func (a *app) completeNames(list func(context.Context, *client.Client) ([]string, error)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, given []string, _ string) ([]string, cobra.ShellCompDirective) {
		c, err := a.newClient()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), time.Second)
		defer cancel()
		names, err := list(ctx, c)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		names = slices.DeleteFunc(names, func(n string) bool { return slices.Contains(given, n) })
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

func (a *app) newClient() (*client.Client, error) {
	return client.New(client.Config{
		URL: a.url, TokenFile: a.tokenFile, CAFile: a.caFile, UserAgent: "fakecloud-cli/" + buildVersion(),
	})
}

// withClient is the RunE of a command that begins by making a client.
func (a *app) withClient(
	run func(cmd *cobra.Command, c *client.Client, args []string) error,
) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := a.newClient()
		if err != nil {
			return clikit.Usage(err)
		}
		return run(cmd, c, args)
	}
}

// explainError adds to an error what helps.
func (a *app) explainError(err error) error {
	var transport *url.Error
	var file *os.PathError
	var answer *client.Error
	var untrusted *tls.CertificateVerificationError
	switch {
	case errors.Is(err, os.ErrNotExist) && errors.As(err, &file) && file.Path == a.tokenFile:
		return fmt.Errorf(
			"%w; is `fakecloud serve` running? Set FAKECLOUD_TOKEN_FILE to the token file of the one that is", err,
		)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf(
			"no cloud answers at %s (connection refused); is `fakecloud serve` running? Set FAKECLOUD_URL to where it is",
			a.url,
		)
	case errors.As(err, &untrusted):
		return fmt.Errorf(
			"%w; set FAKECLOUD_CA_FILE to the bundle that this cloud's certificate can be verified with (that of `fakecloud serve --tls-self-signed` is ca.crt beside its data, %s by default)",
			err, filepath.Join(stateDir(), "ca.crt"),
		)
	case errors.As(err, &answer) && strings.Contains(answer.Problem.Detail, "HTTP request to an HTTPS server"):
		return fmt.Errorf(
			"the cloud at %s speaks https: set FAKECLOUD_URL to https://%s", a.url,
			strings.TrimPrefix(a.url, "http://"),
		)
	case client.HasCode(err, api.Unauthenticated):
		return fmt.Errorf(
			"%w; the token came from %s; set FAKECLOUD_TOKEN_FILE to one of this cloud's token files", err, a.tokenFile,
		)
	case errors.Is(err, context.Canceled):
		return errors.New("interrupted")
	case errors.As(err, &transport) && transport.Timeout():
		return fmt.Errorf("the cloud at %s did not answer in time: %w", a.url, err)
	}
	return err
}

// formatAge is how long ago t was by the cloud's clock, in one or two units.
func (a *app) formatAge(t time.Time) string {
	if a.output != "table" {
		return "" // It is shown in tables only.
	}
	d := max(a.cloudNow().Sub(t), 0)
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 10*time.Minute:
		return fmt.Sprintf("%dm%ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 3*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}
