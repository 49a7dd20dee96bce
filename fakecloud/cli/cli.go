// Package cli is the fakecloud command: the cloud itself (`serve`), and what
// people and scripts ask of it.
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
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

const defaultListen = "127.0.0.1:8470"

// Run runs one command line and gives its exit code. It ends early, and
// orderly, with ctx.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	a := &app{}
	root := a.root()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	for line := range strings.Lines(a.explain(err).Error()) { // Several errors are several lines.
		_, _ = fmt.Fprintf(stderr, "fakecloud: %s\n", strings.TrimSuffix(line, "\n")) // There is nobody else to tell.
	}
	var usage usageError
	if !a.started || errors.As(err, &usage) {
		return exitUsage
	}
	return exitFailed
}

// usageError is a command line that makes no sense.
type usageError struct{ error }

func misuse(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// app is what the commands share.
type app struct {
	url, tokenFile, caFile string
	output                 string
	wide                   bool // all columns
	// ctx is the command's; cloudTime is as of when a virtual clock was last read.
	ctx       context.Context
	readAt    time.Time
	cloudTime *time.Time
	// capture, unless nil, is given what would be printed.
	capture func(header string, rows [][]string)
	// started tells errors of the command from errors of the command line.
	started bool
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "fakecloud",
		Short: "A simulated cloud: instances with a life cycle, routes, load balancers that forward for real",
		Long: `A simulated cloud that fits in one process. "fakecloud serve" runs it; the
other commands talk to one that runs, wherever FAKECLOUD_URL points.`,
		Example: `  fakecloud serve --profile realistic
  fakecloud instances create node-1 --wait
  fakecloud events --follow`,
		Version:       version(),
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			a.started, a.ctx = true, cmd.Context()
			return a.checkOutput()
		},
	}
	root.SetFlagErrorFunc(explainFlag)
	flags := root.PersistentFlags()
	flags.StringVar(&a.url, "url", cmp.Or(os.Getenv("FAKECLOUD_URL"), "http://"+defaultListen), "where the cloud is (FAKECLOUD_URL)")
	flags.StringVar(&a.tokenFile, "token-file", cmp.Or(os.Getenv("FAKECLOUD_TOKEN_FILE"), filepath.Join(stateDir(), "token")), "file with the bearer token (FAKECLOUD_TOKEN_FILE)")
	flags.StringVar(&a.caFile, "ca-file", os.Getenv("FAKECLOUD_CA_FILE"), "PEM bundle to verify an https cloud with (FAKECLOUD_CA_FILE; default: the system's)")
	root.AddCommand(a.serve(), a.apply(), a.regions(), a.zones(), a.instanceTypes(), a.networks(), a.instances(), a.addresses(),
		a.loadBalancers(), a.routes(), a.operations(), a.events(), a.audit(), a.faults(), a.scenarios(), a.quotas(),
		a.projects(), a.tokens(), a.clock(), a.snapshots(), a.restore())
	offerNoFiles(root)
	return root
}

// release is set by the build, where it knows: see lab/build.
var release string

// version is the release, the module's, or the commit that was built.
func version() string {
	if release != "" {
		return release + " (" + runtime.Version() + ")"
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	v := info.Main.Version
	if v == "" || v == "(devel)" {
		v = "devel"
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				v += "-" + s.Value[:min(12, len(s.Value))]
			}
		}
	}
	return v + " (" + info.GoVersion + ")"
}

// stateDir is where the cloud keeps its data unless told otherwise.
func stateDir() string {
	dir := os.Getenv("XDG_STATE_HOME")
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			home = "." // No home: the data stays with who started it.
		}
		dir = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(dir, "fakecloud")
}

// dataFile is where the state is unless told otherwise.
func dataFile() string { return filepath.Join(stateDir(), "cloud.db") }

// group is a command that only holds others.
func group(use, short, example string, subcommands ...*cobra.Command) *cobra.Command {
	g := &cobra.Command{
		Use: use, Short: short, Example: example,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return misuse("unknown command %q for %q; see `%s --help`", args[0], cmd.CommandPath(), cmd.CommandPath())
			}
			return cmd.Help()
		},
	}
	g.AddCommand(subcommands...)
	return g
}

// each runs do for every reference, whatever becomes of the others; for none if
// the command line makes no sense.
func each[T any](refs []string, do func(ref string) (*T, error)) ([]T, error) {
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

// eachRef is each for what gives nothing.
func eachRef(refs []string, do func(ref string) error) error {
	_, err := each(refs, func(ref string) (*struct{}, error) { return &struct{}{}, do(ref) })
	return err
}

// named finds a resource by its name, which is unique, or by its ID, which has
// that prefix.
func named[T any](ctx context.Context, kind, group, prefix, ref string, list func(context.Context) ([]T, error), get func(context.Context, string) (*T, error)) (*T, error) {
	if ref == "" {
		return nil, errNoRef
	}
	items, err := list(ctx)
	switch {
	case err != nil:
		return nil, err
	case len(items) > 0:
		return &items[0], nil
	case strings.HasPrefix(ref, prefix):
		return get(ctx, ref)
	}
	return nil, fmt.Errorf("no %s is named %q; `fakecloud %s list` shows those there are", kind, ref, group)
}

// errNoRef is for a reference that would match everything.
var errNoRef = misuse("an empty name or ID refers to nothing: give one")

// complete offers the names that list gives, but those given already. A cloud
// that does not answer soon has none to offer.
func (a *app) complete(list func(context.Context, *client.Client) ([]string, error)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, given []string, _ string) ([]string, cobra.ShellCompDirective) {
		c, err := a.client()
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

func (a *app) client() (*client.Client, error) {
	return client.New(client.Config{URL: a.url, TokenFile: a.tokenFile, CAFile: a.caFile, UserAgent: "fakecloud-cli/" + version()})
}

// withClient is what a command does that begins with asking the cloud.
func (a *app) withClient(run func(cmd *cobra.Command, c *client.Client, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := a.client()
		if err != nil {
			return usageError{err}
		}
		return run(cmd, c, args)
	}
}

// explain adds to an error what helps against it.
func (a *app) explain(err error) error {
	var transport *url.Error
	var file *os.PathError
	var answer *client.Error
	var untrusted *tls.CertificateVerificationError
	switch {
	case errors.Is(err, os.ErrNotExist) && errors.As(err, &file) && file.Path == a.tokenFile:
		return fmt.Errorf("%w; is `fakecloud serve` running? Set FAKECLOUD_TOKEN_FILE to the token file of the one that is", err)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("no cloud answers at %s (connection refused); is `fakecloud serve` running? Set FAKECLOUD_URL to where it is", a.url)
	case errors.As(err, &untrusted):
		return fmt.Errorf("%w; set FAKECLOUD_CA_FILE to the bundle that this cloud's certificate can be verified with (that of `fakecloud serve --tls-self-signed` is ca.crt beside its data, %s by default)", err, filepath.Join(stateDir(), "ca.crt"))
	case errors.As(err, &answer) && strings.Contains(answer.Problem.Detail, "HTTP request to an HTTPS server"):
		return fmt.Errorf("the cloud at %s speaks https: set FAKECLOUD_URL to https://%s", a.url, strings.TrimPrefix(a.url, "http://"))
	case client.HasCode(err, api.Unauthenticated):
		return fmt.Errorf("%w; the token came from %s; set FAKECLOUD_TOKEN_FILE to one of this cloud's token files", err, a.tokenFile)
	case errors.Is(err, context.Canceled):
		return errors.New("interrupted")
	case errors.As(err, &transport) && transport.Timeout():
		return fmt.Errorf("the cloud at %s did not answer in time: %w", a.url, err)
	}
	return err
}

// explainFlag says what fits, where a flag's own error does not.
func explainFlag(_ *cobra.Command, err error) error {
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) && invalid.GetFlag().Value.Type() == "duration" {
		return fmt.Errorf("--%s %q: give numbers with units, such as 90s, 10m or 1h30m", invalid.GetFlag().Name, invalid.GetValue())
	}
	return err
}

// age is how long ago something was, in one unit or two.
func (a *app) age(t time.Time) string {
	if a.output != "table" {
		return "" // Nobody sees it.
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
