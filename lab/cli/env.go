package cli

import (
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/atomicfile"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/dialects"
	"github.com/ccmlab/ccmlab/lab/lessons"
)

func newEnv(o *globalOptions) *cobra.Command {
	return &cobra.Command{
		Use:   "env",
		Short: "Print exports that make kubectl, fakecloud and lab speak to this lab",
		Long: `env prints exports for a shell: kubectl, fakecloud and lab speak to this lab, and so do the
tools of the cloud whose dialect was chosen (lab up --dialect). Where
lessons take place, go compiles a CCM as the lab does; in a bundle that is its own Go.`,
		Example: `  eval "$(lab env)"`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := o.openLab()
			if err != nil {
				return err
			}
			seat, err := lessons.Take(l.State.Name)
			if err != nil {
				return err
			}
			tools, err := seat.Tools()
			if err != nil {
				return err
			}
			client, err := clientEnv(l)
			if err != nil {
				return err
			}
			for _, v := range slices.Concat(l.Env(), client, tools) {
				line := "export " + v.Name + "=" + shellQuote(v.Value)
				if v.Before != "" {
					line += fmt.Sprintf("\"${%s:+%s$%[1]s}\"", v.Name, v.Before)
				}
				_, _ = fmt.Fprintln(cmd.OutOrStdout(), line)
			}
			return nil
		},
	}
}

// clientEnv is what the tools of the cloud need whose dialect the lab was brought up with.
func clientEnv(l *lab.Lab) (vars []lab.Var, err error) {
	if l.State.Dialect == "" {
		return nil, nil
	}
	preset, err := dialects.Named(l.State.Dialect)
	if err != nil {
		return nil, err
	}
	values := l.CCMValues(l.State.Dialect)
	values.TokenFile = l.Cluster.Cloud().TokenFile(cluster.CallerOperator)
	if values.CAFile, err = writeTrusted(l); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(preset.Client)) {
		value, err := values.Fill([]string{preset.Client[name]})
		if err != nil {
			return nil, err
		}
		vars = append(vars, lab.Var{Name: name, Value: value[0]})
	}
	return vars, nil
}

// systemRoots are where systems have the certificates that they trust, as crypto/x509 looks for them.
var systemRoots = []string{
	"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem",
	"/etc/ssl/cert.pem",
}

// writeTrusted writes a file of the CA of the lab's cloud, and of those that this machine trusts: a shell that trusts
// the first alone reaches nothing else by TLS.
func writeTrusted(l *lab.Lab) (name string, err error) {
	name = l.State.Path("trusted.crt")
	trusted, err := os.ReadFile(l.Cluster.Cloud().CAFile)
	if err != nil {
		return "", err
	}
	for _, file := range systemRoots {
		if roots, err := os.ReadFile(file); err == nil {
			trusted = append(trusted, roots...)
			break
		}
	}
	return name, atomicfile.Write(name, trusted)
}

func newKubeconfig(o *globalOptions) *cobra.Command {
	return &cobra.Command{
		Use:     "kubeconfig",
		Short:   "Print the path of the operator's kubeconfig",
		Example: `  kubectl --kubeconfig "$(lab kubeconfig)" get nodes`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := o.openLab()
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), l.Cluster.Kubeconfig())
			return err
		},
	}
}
