// Package cli is the command line of lab: its commands, their flags and help texts, and
// what they print.
//
// What the commands do is in other packages: lifecycle brings a lab up and down,
// status, doctor, explain, compare and watch look at it, suite runs the conformance
// tests, and lessons and classroom teach. This package must not start processes of a
// lab or speak to its cloud by itself.
//
// Begin with newRoot, which lists all commands. Each command is in the file of its
// name. What all commands share is in output.go and shell.go, and what they share with
// those of fakecloud is in fakecloud/clikit.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/clikit"
	"github.com/ccmlab/ccmlab/fakecloud/release"
	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/state"
	"github.com/ccmlab/ccmlab/lab/ui"
)

// Exit codes; `lab --help` documents them.
const (
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130 // As shells report a program that Ctrl-C ended.
)

// Main runs the command line and returns the exit code.
func Main() int {
	endSignals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	hangup := !signal.Ignored(syscall.SIGHUP) // nohup ignores it.
	if hangup {
		endSignals = append(endSignals, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), endSignals...)
	defer stop()
	// The first Ctrl-C starts the cleanup, and the second ends that too. SIGHUP is ignored
	// from then on: a terminal that closes sends it twice, by the kernel and by the shell.
	context.AfterFunc(ctx, func() {
		if hangup {
			signal.Ignore(syscall.SIGHUP)
		}
		stop()
	})
	return exitCode(ctx, os.Stderr, newRoot().ExecuteContext(ctx))
}

// exitCode returns the exit code for err. It prints err to stderr unless err is a
// silentError.
func exitCode(ctx context.Context, stderr io.Writer, err error) int {
	if err == nil {
		return 0
	}
	var silent silentError
	if !errors.As(err, &silent) {
		_, _ = fmt.Fprintln(stderr, "lab:", err)
	}
	var usage clikit.UsageError
	switch {
	case errors.As(err, &usage):
		_, _ = fmt.Fprintln(stderr, "`lab --help` and `lab COMMAND --help` explain.")
		return exitUsage
	case ctx.Err() != nil:
		return exitInterrupted
	}
	return exitFailed
}

// silentError makes a command fail without another message, because the command has
// already printed everything.
type silentError struct{ error }

// globalOptions are the flags that every command has.
type globalOptions struct {
	name           string
	quiet, verbose bool
}

// newSteps returns a printer of a command's steps on standard error. With --quiet it
// prints only problems.
func (o *globalOptions) newSteps() *ui.Steps { return ui.New(os.Stderr, o.quiet) }

// newRoot returns the command lab with all its subcommands.
func newRoot() *cobra.Command {
	o := &globalOptions{}
	root := &cobra.Command{
		Use:     "lab",
		Version: release.Version(),
		Short:   "A cloud, a Kubernetes cluster and a cloud controller manager on your own machine",
		Long: `lab brings up a simulated cloud, a genuine Kubernetes control plane with
--cloud-provider=external, nodes, and a cloud controller manager (CCM), and
shows what happens: taints lifted, nodes labelled, load balancers provisioned,
nodes removed. The cluster is made of plain processes (no Docker, no root), or
of containers (kind), or is one that you have already.

Exit codes: 0 done; 1 it failed, or what was asked about is not as it should be;
2 the command line is wrong; 130 interrupted (Ctrl-C; a second one ends clearing
up too, and lab down completes it).

Environment: LAB_NAME is the default of --name; CCMLAB_HOME is the folder of all
labs (default ~/.local/state/ccmlab); LAB_KUBE_BIN is a folder of Kubernetes'
programs; NO_COLOR turns colours off. Secrets are in the lab's folder, and are
never printed.`,
		Example: `  lab up                      # everything, and a first answer through a load balancer
  lab up --without-ccm        # nodes stay tainted, pods Pending; then: lab ccm start
  eval "$(lab env)"           # kubectl and fakecloud now speak to the lab
  fakecloud instances create  # a fourth node, seconds later
  lab watch                   # what happens, as it happens
  lab doctor                  # is this machine fit for it?
  lab down
  source <(lab completion bash)`,
		SilenceUsage: true, SilenceErrors: true,
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(*cobra.Command, []string) error { return o.configureLogging() },
	}
	name := "lab"
	if v := os.Getenv("LAB_NAME"); v != "" {
		name = v
	}
	root.PersistentFlags().
		StringVar(&o.name, "name", name, "the lab's name; several can be up at once (default from LAB_NAME)")
	root.PersistentFlags().BoolVarP(&o.quiet, "quiet", "q", false, "print problems, and what was asked for, only")
	root.PersistentFlags().
		BoolVarP(&o.verbose, "verbose", "v", false, "say which programs are started, and what is waited for")
	_ = root.RegisterFlagCompletionFunc("name", completeLabs(1))
	root.AddCommand(
		newUp(o),
		newDown(o),
		newStatus(o),
		newList(o),
		newCompare(),
		newWatch(o),
		newConsole(o),
		newRecord(o),
		newLogs(o),
		newDoctor(o),
		newExplain(o),
		newEnv(o),
		newKubeconfig(o),
		newCCM(o), newDialect(),
		newConformance(o),
		newIncident(o),
		newLesson(o),
		newClassroom(o),
		newBundle(o),
		newLessonParts(o),
		newVersion(o),
		newAgent(),
	)
	clikit.Finish(root)
	return root
}

// addNameFlag has the help of a command say which lab it takes without --name, where that is not everybody's default.
func (o *globalOptions) addNameFlag(cmd *cobra.Command, otherwise string) {
	name := o.name
	cmd.PersistentFlags().StringVar(&o.name, "name", "", "the lab's name (default "+otherwise+")")
	o.name = name
}

// openLab opens the lab that --name names.
func (o *globalOptions) openLab() (*lab.Lab, error) {
	if _, err := state.Dir(o.name); err != nil {
		return nil, clikit.Usage(err)
	}
	return lab.Open(o.name)
}

// configureLogging checks --quiet and --verbose, and turns on log messages for
// --verbose.
func (o *globalOptions) configureLogging() error {
	if o.quiet && o.verbose {
		return clikit.Usagef("--quiet and --verbose: want one of them")
	}
	if o.verbose {
		slog.SetDefault(slog.New(ui.Verbose(os.Stderr)))
	}
	return nil
}

// completeLabs completes names of existing labs, up to most arguments.
func completeLabs(most int) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		names, err := state.List()
		if err != nil || len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return without(names, args), cobra.ShellCompDirectiveNoFileComp
	}
}

// without removes the arguments that are there already from what may complete the next one.
func without(names, args []string) []string {
	return slices.DeleteFunc(names, func(name string) bool { return slices.Contains(args, name) })
}
