package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/clikit"
	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/explain"
)

// explainKinds are the kinds that can be explained, by the names and short names that
// kubectl knows.
var explainKinds = map[string]string{
	"node": explain.KindNode, "nodes": explain.KindNode, "no": explain.KindNode,
	"service": explain.KindService, "services": explain.KindService, "svc": explain.KindService,
}

func newExplain(o *globalOptions) *cobra.Command {
	var namespace string
	cmd := &cobra.Command{
		Use:   "explain node/NAME | service/[NAMESPACE/]NAME",
		Short: "Say why a node or a service is not ready, and what to do",
		Long: `explain looks at what the cloud, the CCM, the cluster and the lab's processes
say of a node or a service, and tells in sentences why it is not ready, where each
fact was seen, and what to do next; or that all is well, and how. It changes nothing.

It exits with 0 when the node or the service is ready, with 1 when it is not, or
cannot be explained, and with 2 when it was called wrongly.`,
		Example: `  lab explain node/node-1
  lab explain service/web
  lab explain service/kube-system/dns -o json
  lab explain node            # which nodes there are`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 || len(args) > 2 {
				return clikit.Usagef("explain what? want node/NAME or service/[NAMESPACE/]NAME, one at a time")
			}
			return nil
		},
		ValidArgsFunction: func(
			cmd *cobra.Command,
			args []string,
			toComplete string,
		) ([]string, cobra.ShellCompDirective) {
			return completeExplainTarget(cmd, o, args, toComplete)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			target, err := parseExplainTarget(args, namespace)
			if err != nil {
				return err
			}
			l, err := o.openLab()
			if err != nil {
				return err
			}
			if target.name == "" {
				return printExplainable(cmd, l, target.kind)
			}
			x, err := explain.OfLab(cmd.Context(), l, target.kind, target.namespace, target.name)
			if err != nil {
				return err
			}
			err = clikit.Print(cmd, x, func(w io.Writer) error {
				return printExplanation(w, x, os.Getenv("KUBECONFIG") == l.Cluster.Kubeconfig(), o.name)
			})
			if err == nil && !x.Serves() {
				err = silentError{errors.New(x.Verdict)}
			}
			return err
		},
	}
	cmd.Flags().StringVarP(
		&namespace, "namespace", "n", "", `of a service, unless it is given with the name (default "default")`,
	)
	clikit.AddOutput(cmd, "table", "json", "yaml")
	return cmd
}

// explainTarget is the object that the arguments name. Without a name it means all
// objects of the kind.
type explainTarget struct{ kind, namespace, name string }

// parseExplainTarget reads the arguments KIND/NAME, KIND NAME or KIND.
func parseExplainTarget(args []string, namespace string) (explainTarget, error) {
	word, name, slash := strings.Cut(args[0], "/")
	kind := explainKinds[strings.ToLower(word)]
	switch {
	case kind == "":
		return explainTarget{}, clikit.Usagef("%q cannot be explained; want node/NAME or service/[NAMESPACE/]NAME", args[0])
	case len(args) == 2 && slash:
		return explainTarget{}, clikit.Usagef("%q and %q: one thing at a time; want %s/NAME", args[0], args[1], kind)
	case len(args) == 2:
		name = args[1]
	}
	if slash && name == "" || len(args) == 2 && name == "" {
		return explainTarget{}, clikit.Usagef(
			"%q has no name; `lab explain %s` lists what there is", strings.Join(args, " "), kind,
		)
	}
	if kind == explain.KindNode {
		if namespace != "" || strings.Contains(name, "/") {
			return explainTarget{}, clikit.Usagef("nodes have no namespace; want node/NAME")
		}
		return explainTarget{kind, "", name}, nil
	}
	serviceNamespace, serviceName, given := strings.Cut(name, "/")
	switch {
	case !given:
		serviceNamespace, serviceName = "default", name
		if namespace != "" {
			serviceNamespace = namespace
		}
	case serviceNamespace == "" || serviceName == "" || strings.Contains(serviceName, "/"):
		return explainTarget{}, clikit.Usagef("service %q: want service/NAME or service/NAMESPACE/NAME", name)
	case namespace != "" && namespace != serviceNamespace:
		return explainTarget{}, clikit.Usagef("service %q is not in namespace %q; give one of the two", name, namespace)
	}
	return explainTarget{kind, serviceNamespace, serviceName}, nil
}

// explainableArguments returns the names of all objects of a kind, as arguments of
// explain.
func explainableArguments(cmd *cobra.Command, l *lab.Lab, kind string) ([]string, error) {
	names, err := explain.Names(cmd.Context(), l, kind)
	for i, name := range names {
		names[i] = kind + "/" + strings.TrimPrefix(name, "default/")
	}
	return names, err
}

// printExplainable lists the objects of a kind that can be explained.
func printExplainable(cmd *cobra.Command, l *lab.Lab, kind string) error {
	names, err := explainableArguments(cmd, l, kind)
	if err != nil {
		return err
	}
	return clikit.Print(cmd, append([]string{}, names...), func(w io.Writer) error {
		for _, name := range names {
			_, _ = fmt.Fprintln(w, name)
		}
		return nil
	})
}

// completeExplainTarget completes the kind, and then the name of an object in the lab.
func completeExplainTarget(
	cmd *cobra.Command,
	o *globalOptions,
	args []string,
	toComplete string,
) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	word, _, slash := strings.Cut(toComplete, "/")
	kind := explainKinds[word]
	if !slash || kind == "" {
		return []string{"node/", "service/"}, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
	l, err := o.openLab()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	names, err := explainableArguments(cmd, l, kind)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	for i, name := range names { // Shells need the prefix that was typed, such as svc/.
		names[i] = word + strings.TrimPrefix(name, kind)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// printExplanation prints an explanation for a person. The parameter ready tells
// whether the person's shell speaks to this lab already.
func printExplanation(w io.Writer, x explain.Explanation, ready bool, name string) error {
	var text strings.Builder
	p := func(format string, args ...any) { _, _ = fmt.Fprintf(&text, format+"\n", args...) }
	p("%s", x.Verdict)
	if len(x.Because) > 0 {
		p("\nbecause")
		for _, f := range x.Because {
			p("  %-8s %s", f.Where+":", strings.ReplaceAll(f.What, "\n", "\n           "))
		}
	}
	if len(x.Next) > 0 {
		p("\nnext")
		for _, s := range x.Next {
			p("  %s", s.Do)
			if command, ours := strings.CutPrefix(s.Command, "lab "); ours {
				p("      %s %s", invokedAs(), command)
			} else if s.Command != "" {
				p("      %s", s.Command)
			}
		}
	}
	if !ready && slices.ContainsFunc(x.Next, func(s explain.Step) bool {
		return strings.HasPrefix(s.Command, "kubectl ") || strings.HasPrefix(s.Command, "fakecloud ")
	}) {
		p("\nkubectl and fakecloud speak to this lab after\n      eval \"$(%s env --name %s)\"", invokedAs(), name)
	}
	if len(x.Missing) > 0 {
		p("\nnot known")
		for _, m := range x.Missing {
			p("  %s", m)
		}
	}
	_, err := io.WriteString(w, text.String())
	return err
}
