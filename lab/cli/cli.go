// Package cli is the lab's command line.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/state"
	"github.com/ccmlab/ccmlab/lab/ui"
)

// Exit codes; `lab --help` documents them.
const (
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130 // What a shell has for a program that Ctrl-C ended.
)

// usageError is a mistake in the command line, not in the lab.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// Main runs the command line and returns the exit code.
func Main() int {
	endSignals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	hangup := !signal.Ignored(syscall.SIGHUP) // As nohup has it.
	if hangup {
		endSignals = append(endSignals, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), endSignals...)
	defer stop()
	// After the first Ctrl-C things are cleared up; the second ends that too. A
	// terminal that closes hangs up twice, by the kernel and by the shell.
	context.AfterFunc(ctx, func() {
		if hangup {
			signal.Ignore(syscall.SIGHUP)
		}
		stop()
	})
	return exitCode(ctx, os.Stderr, newRoot().ExecuteContext(ctx))
}

// exitCode says what went wrong, unless that has been said.
func exitCode(ctx context.Context, stderr io.Writer, err error) int {
	if err == nil {
		return 0
	}
	var silent silentError
	if !errors.As(err, &silent) {
		_, _ = fmt.Fprintln(stderr, "lab:", err)
	}
	var usage usageError
	switch {
	case errors.As(err, &usage):
		_, _ = fmt.Fprintln(stderr, "`lab --help` and `lab COMMAND --help` explain.")
		return exitUsage
	case ctx.Err() != nil:
		return exitInterrupted
	}
	return exitFailed
}

// silentError fails a command that has already said everything.
type silentError struct{ error }

// globalOptions every command has.
type globalOptions struct {
	name           string
	quiet, verbose bool
}

// newSteps shows a command's steps, or its problems alone.
func (o *globalOptions) newSteps() *ui.Steps { return ui.New(os.Stderr, o.quiet) }

func newRoot() *cobra.Command {
	o := &globalOptions{}
	root := &cobra.Command{
		Use:     "lab",
		Version: release,
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
	root.SetFlagErrorFunc(rewordFlagError)
	name := "lab"
	if v := os.Getenv("LAB_NAME"); v != "" {
		name = v
	}
	root.PersistentFlags().StringVar(&o.name, "name", name, "the lab's name; several can be up at once (default from LAB_NAME)")
	root.PersistentFlags().BoolVarP(&o.quiet, "quiet", "q", false, "print problems, and what was asked for, only")
	root.PersistentFlags().BoolVarP(&o.verbose, "verbose", "v", false, "say which programs are started, and what is waited for")
	_ = root.RegisterFlagCompletionFunc("name", completeLabs(1))
	root.AddCommand(
		newUp(o),
		newDown(o),
		newStatus(o),
		newList(o),
		newCompare(),
		newWatch(o),
		newLogs(o),
		newDoctor(o),
		newExplain(o),
		newEnv(o),
		newKubeconfig(o),
		newCCM(o),
		newConformance(o),
		newIncident(o),
		newLesson(o),
		newClassroom(o),
		newBundle(o),
		newLessonParts(o),
		newVersion(o),
		newAgent(),
	)
	root.InitDefaultCompletionCmd()
	describeShellCompletion(root)
	wrapArgumentErrors(root)
	return root
}

func (o *globalOptions) openLab() (*lab.Lab, error) {
	if _, err := state.Dir(o.name); err != nil {
		return nil, usageError{err}
	}
	return lab.Open(o.name)
}

// release is set by the build, where it knows: see lab/build.
var release = "devel"

// configureLogging sets how much is told.
func (o *globalOptions) configureLogging() error {
	if o.quiet && o.verbose {
		return usagef("--quiet and --verbose: want one of them")
	}
	if o.verbose {
		slog.SetDefault(slog.New(ui.Verbose(os.Stderr)))
	}
	return nil
}
