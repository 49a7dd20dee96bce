// Package cli is the lab's command line.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/state"
)

// Exit codes.
const (
	exitFailed = 1
	exitUsage  = 2
)

// usageError is a mistake in the command line, not in the lab.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// Main runs the command line and returns the exit code.
func Main() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cmd := newRoot()
	err := cmd.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	var silent silentError
	if !errors.As(err, &silent) {
		fmt.Fprintln(os.Stderr, "lab:", err)
	}
	var usage usageError
	if errors.As(err, &usage) {
		fmt.Fprintln(os.Stderr, "`lab --help` and `lab COMMAND --help` explain.")
		return exitUsage
	}
	return exitFailed
}

// silentError fails a command that has already said everything.
type silentError struct{ error }

// options every command has.
type options struct{ name string }

func newRoot() *cobra.Command {
	o := &options{}
	root := &cobra.Command{
		Use:     "lab",
		Version: release,
		Short:   "A cloud, a Kubernetes cluster and a cloud controller manager on your own machine",
		Long: `lab brings up a simulated cloud, a genuine Kubernetes control plane with
--cloud-provider=external, nodes, and a cloud controller manager (CCM), and
shows what happens: taints lifted, nodes labelled, load balancers provisioned,
nodes removed. The cluster is made of plain processes (no Docker, no root), or
of containers (kind), or is one that you have already.`,
		Example: `  lab up                      # everything, and a first answer through a load balancer
  lab up --without-ccm        # nodes stay tainted, pods Pending; then: lab ccm start
  eval "$(lab env)"           # kubectl and fakecloud now speak to the lab
  fakecloud instances create  # a fourth node, seconds later
  lab watch                   # what happens, as it happens
  lab down`,
		SilenceUsage: true, SilenceErrors: true,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	name := "lab"
	if v := os.Getenv("LAB_NAME"); v != "" {
		name = v
	}
	root.PersistentFlags().StringVar(&o.name, "name", name, "the lab's name; several can be up at once (default from LAB_NAME)")
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
		newEnv(o),
		newKubeconfig(o),
		newCCM(o),
		newConformance(o),
		newBundle(o),
		newAgent(),
	)
	usageArgs(root)
	return root
}

// usageArgs makes a wrong number of arguments, or an unknown command, a usage
// error everywhere.
func usageArgs(cmd *cobra.Command) {
	check := cmd.Args
	if check == nil {
		check = cobra.NoArgs
	}
	cmd.Args = func(c *cobra.Command, args []string) error {
		if err := check(c, args); err != nil {
			return usageError{err}
		}
		return nil
	}
	for _, sub := range cmd.Commands() {
		usageArgs(sub)
	}
}

// outputFlag is -o with the formats a command has.
type outputFlag struct {
	value   string
	formats []string
}

func addOutput(cmd *cobra.Command, formats ...string) {
	f := &outputFlag{value: formats[0], formats: formats}
	cmd.Flags().VarP(f, "output", "o", "output format: "+strings.Join(formats, ", "))
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
}

func (f *outputFlag) String() string { return f.value }
func (f *outputFlag) Type() string   { return "format" }
func (f *outputFlag) Set(v string) error {
	if !slices.Contains(f.formats, v) {
		return fmt.Errorf("want one of %s", strings.Join(f.formats, ", "))
	}
	f.value = v
	return nil
}

func printAs(w io.Writer, format string, v any) error {
	if format == "yaml" {
		data, err := yaml.Marshal(v)
		if err != nil {
			return err
		}
		_, err = w.Write(data)
		return err
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

func (o *options) open() (*lab.Lab, error) {
	if _, err := state.Dir(o.name); err != nil {
		return nil, usageError{err}
	}
	return lab.Open(o.name)
}

// release is set by the build, where it knows: see lab/build.
var release = "devel"
