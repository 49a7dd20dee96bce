package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/ccmlab/ccmlab/fakecloud/clikit"
	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/profiles"
	"github.com/ccmlab/ccmlab/lab/suite"
	"github.com/ccmlab/ccmlab/lab/ui"
)

func newIncident(o *globalOptions) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "incident",
		Short: "Play what has happened to users of CCMs, and say what this CCM makes of it",
		Long: `incident plays failures that users of cloud controller managers have met: a create
whose answer is lost, a balancer that somebody deletes, a list without its second
page. Each is a test of the conformance suite, played alone and told as it happens.`,
		Example: `  lab incident list
  lab incident run lost-create`,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newIncidentList(), newIncidentRun(o))
	return cmd
}

// listedIncident is an incident in `lab incident list -o json`.
type listedIncident struct {
	Name string `json:"name"`
	suite.IncidentFacts
}

func newIncidentList() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "Print every incident",
		Example: "  lab incident list\n  lab incident list -o yaml   # with what happened, why it is dangerous, and where it is told of",
		RunE: func(cmd *cobra.Command, _ []string) error {
			var list []listedIncident
			var rows [][]string
			for _, t := range suite.Incidents() {
				i := t.Incident
				list = append(list, listedIncident{i.Name, suite.FactsOf(t)})
				rows = append(rows, []string{i.Name, i.Title, string(t.Profile), string(t.Level)})
			}
			return clikit.Print(cmd, list, func(w io.Writer) error {
				return clikit.WriteTable(w, []string{"NAME", "TITLE", "PROFILE", "LEVEL"}, rows)
			})
		},
	}
	clikit.AddOutput(cmd, "table", "json", "yaml")
	return cmd
}

func newIncidentRun(o *globalOptions) *cobra.Command {
	f := &conformanceFlags{}
	cmd := &cobra.Command{
		Use:   "run NAME [flags] [-- CCM-ARGS...]",
		Short: "Play one incident on a lab of its own, and tell it as it happens",
		Long: `run brings up a lab of its own, runs a CCM beside it, ours or any program, and
plays one incident. It tells the story; then, on one clock, what the suite does,
what the CCM changes in the cloud and which of its calls meet a fault, what becomes
of Nodes, Services and balancers, and what controllers say; and in the end what the
CCM did, whether that is right, and why it would be dangerous if it were not. Then
the lab is taken down.

The exit code is 0 if the CCM behaved, 1 if not or if the incident could not be
played, 2 if the command line is wrong. With -o json or yaml the account is data, on
standard output, and the rest is told on standard error.

Another CCM is given as to lab conformance, whose help explains --ccm, --ccm-env,
--ccm-config and the templates.`,
		Example: `  lab incident run lost-create
  lab incident run stranger-of-same-name --keep   # and look at the lab afterwards
  lab incident run deleted-by-hand -o yaml
  lab incident run lost-create --ccm ./my-ccm -- --kubeconfig={{.Kubeconfig}} --cloud-config={{.CloudConfig}} \
      --cluster-name={{.ClusterName}} --bind-address={{.Address}} --secure-port={{.Port}}`,
		Args: func(cmd *cobra.Command, args []string) error {
			if dash := cmd.ArgsLenAtDash(); dash >= 0 {
				args = args[:dash]
			}
			if len(args) != 1 {
				return clikit.RequireArguments(1, 1)(cmd, args)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			f.opts.Name = ownLabName(cmd, o, "incident")
			test, err := f.findIncident(args[0], args[1:])
			if err != nil {
				return err
			}
			return f.playIncident(cmd, test)
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			var names []string
			for _, t := range suite.Incidents() {
				names = append(names, t.Incident.Name+"\t"+t.Incident.Title)
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
	}
	o.addNameFlag(cmd, "a random one")
	f.addCCMFlags(cmd)
	clikit.AddOutput(cmd, "table", "json", "yaml")
	return cmd
}

// findIncident returns the test of the named incident, and completes the options for
// it. It reports all mistakes in the command line at once.
func (f *conformanceFlags) findIncident(name string, ccmArgs []string) (conformance.Test, error) {
	all := suite.Incidents()
	i := slices.IndexFunc(all, func(t conformance.Test) bool { return t.Incident.Name == name })
	f.selection = &selection{}
	if i < 0 {
		var names []string
		for _, t := range all {
			names = append(names, t.Incident.Name)
		}
		_, err := f.completeOptions(profiles.All(), ccmArgs)
		return conformance.Test{}, errors.Join(
			clikit.Usagef("there is no incident %q%s; `lab incident list` prints all", name, clikit.DidYouMean(name, names)), err,
		)
	}
	f.focus = "^" + regexp.QuoteMeta(all[i].ID) + "$"
	_, err := f.completeOptions(profiles.All(), ccmArgs)
	return all[i], err
}

// playIncident runs the incident's test and prints its story. The text goes to standard
// output or, if the account is printed there as data, to standard error.
func (f *conformanceFlags) playIncident(cmd *cobra.Command, test conformance.Test) error {
	klog.SetSlogLogger(slog.New(slog.DiscardHandler)) // See runSuite.
	format := clikit.Output(cmd)
	textOut := cmd.OutOrStdout()
	if format != "table" {
		textOut = cmd.ErrOrStderr()
	}
	steps := ui.New(os.Stderr, cmd.Flag("quiet").Value.String() == "true")
	if err := printIncidentStory(textOut, test); err != nil {
		return err
	}
	steps.Say("   Lab %s; if this run is killed, `%s down --name %[1]s` ends what it leaves.", f.opts.Name, invokedAs())
	stopInterruptNotice := context.AfterFunc(cmd.Context(), func() {
		steps.Say("\nInterrupted: what the incident made is taken away.")
	})
	account, err := suite.PlayIncident(cmd.Context(), test, suite.IncidentOptions{
		Options: f.opts, Show: timelinePrinter(textOut), Note: func(text string) { steps.Say("lab: %s", text) },
	}, steps)
	stopInterruptNotice()
	if account == nil {
		return err
	}
	// The account is complete, even if the lab failed afterwards.
	err = errors.Join(err, printIncidentAccount(textOut, account))
	if format != "table" {
		err = errors.Join(err, clikit.PrintData(cmd.OutOrStdout(), format, account))
	}
	if f.opts.Keep {
		steps.Say(
			"The lab is up: eval \"$(%s env --name %s)\", and `%[1]s down --name %[2]s` at the end.", invokedAs(),
			f.opts.Name,
		)
	}
	if err == nil && !account.Behaved {
		err = silentError{errors.New("the CCM did not behave")}
	}
	return err
}

// printIncidentStory prints what is about to happen, and what to watch.
func printIncidentStory(w io.Writer, test conformance.Test) error {
	p := newParagraphWriter(w)
	p.printLine("%s (%s)\n", p.bold(test.Incident.Title), test.Incident.Name)
	p.printSection("What happens", test.Incident.Happened)
	p.printSection("What to watch", test.Incident.Watch)
	return p.err
}

// printIncidentAccount prints what the CCM did, whether that was right, and why it
// matters.
func printIncidentAccount(w io.Writer, a *suite.IncidentReport) error {
	p := newParagraphWriter(w)
	p.printLine("")
	verdict, color := "behaved", "32"
	if !a.Behaved {
		verdict, color = "did not behave", "31"
	}
	p.printLine("%s", ui.Paint(
		p.color, color,
		fmt.Sprintf("%s %s in incident %s, which took %.1f s.", a.CCM.Name, verdict, a.Incident, a.Seconds),
	))
	p.printLine("")
	p.printLine("%s", p.bold("What the CCM did"))
	for _, d := range a.Did.Calls {
		p.printLine("  %s", formatCalls(d))
	}
	if len(a.Did.Calls) == 0 {
		p.printLine("  no call of the cloud was seen")
	}
	p.printLine("  Events of type Warning meanwhile: %d", a.Did.Warnings)
	if a.Did.Crashes > 0 {
		p.printLine("  It ended by itself, times: %d", a.Did.Crashes)
	}
	p.printLine("")
	if len(a.Reasons) > 0 {
		p.printLine("%s", p.bold("Where it went wrong"))
		for _, r := range a.Reasons {
			p.printLine("  %s", strings.ReplaceAll(strings.TrimSpace(r), "\n", "\n  "))
		}
		p.printLine("")
	}
	p.printSection("What is required", fmt.Sprintf("%s (%s; %s)", a.Requires, a.Test, describeLevel(a)))
	p.printSection("What is right", a.Right)
	p.printSection("Why the other is dangerous", a.Danger)
	if len(a.Known) > 0 {
		p.printLine("%s", p.bold("Where it was told of"))
		for _, k := range a.Known {
			p.printLine("  %s", k)
		}
	}
	return p.err
}

// formatCalls describes the CCM's calls of one operation.
func formatCalls(d suite.OperationCalls) string {
	text := fmt.Sprintf("%-22s %d times", d.Operation, d.Calls)
	if d.Calls == 1 {
		text = fmt.Sprintf("%-22s once", d.Operation)
	}
	if d.Met > 0 {
		text += fmt.Sprintf(", met a fault: %d", d.Met)
	}
	if d.Failed > 0 {
		text += fmt.Sprintf(", failed: %d", d.Failed)
	}
	return text
}

// describeLevel says which CCMs the incident's test is required of.
func describeLevel(a *suite.IncidentReport) string {
	if a.Capability == "" {
		return "core: required of every CCM"
	}
	return fmt.Sprintf("extended: required of a CCM that claims %s", a.Capability)
}
