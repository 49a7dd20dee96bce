package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/clikit"
	"github.com/ccmlab/ccmlab/lab/conformance/driver"
	"github.com/ccmlab/ccmlab/lab/suite"
	"github.com/ccmlab/ccmlab/lab/ui"
)

func newConformanceDriver() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "driver",
		Short:   "Write a driver of another cloud, and look at it",
		Example: "  lab conformance driver new --language go nebula-driver\n  lab conformance driver check ./nebula-driver",
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newConformanceDriverCheck(), newConformanceDriverNew())
	return cmd
}

func newConformanceDriverNew() *cobra.Command {
	var language string
	cmd := &cobra.Command{
		Use:   "new --language LANGUAGE DIR",
		Short: "Write a driver to start from",
		Long: `new writes a driver into a folder that is new or empty. It answers the suite's first
request, and says of all else that it is not written yet: comments say where to begin.
It needs nothing but what comes with its language.`,
		Example: "  lab conformance driver new --language python nebula-driver",
		Args:    clikit.RequireArguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := clikit.CheckChoice("language", language, driver.StarterLanguages()); err != nil {
				return err
			}
			build, program, err := driver.WriteStarter(language, args[0])
			if err != nil {
				return clikit.Usage(err)
			}
			if build != "" {
				build = fmt.Sprintf("(cd %s && %s) && ", args[0], build)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "Try it, and go on from what it says is missing:\n  %s%s conformance driver check %s\n",
				build, invokedAs(), filepath.Join(args[0], program))
			return err
		},
	}
	cmd.Flags().StringVar(&language, "language", "", "`LANGUAGE` of the driver: "+
		strings.Join(driver.StarterLanguages(), ", "))
	clikit.CompleteFlag(cmd, "language", driver.StarterLanguages()...)
	return cmd
}

func newConformanceDriverCheck() *cobra.Command {
	f := &conformanceFlags{}
	var trying suite.Trying
	cmd := &cobra.Command{
		Use:   "check [flags] DRIVER",
		Short: "Try a driver without a CCM and without a lab",
		Long: `check greets a driver, fills in the templates by which it starts the CCM, has it make
an instance of your cloud and terminate it, and lists the balancers of its cluster. It sees
whether the instance's addresses change when they are to, and so with a balancer of
nobody's, if the driver can make one. Then it says what the suite's proxy takes calls of
the cloud for, by the driver's rules: one call for each rule, so that a rule shows that
an earlier one hides, and those of --call. Of GET calls that list, and of the instance that
was made, it sees whether the faults that leave something out change the cloud's answer, and
fails if what a rule names is not there; --header gives these calls the CCM's credentials.
In the end it says which features the driver
does not have, and which core tests are skipped without them.

DRIVER is a program, or an address of one that runs, as for lab conformance --driver.`,
		Example: `  lab conformance driver check ./nebula-driver --driver-arg --cluster={{.ClusterName}} \
      --call 'GET /v1/servers' --call 'DELETE /v1/load_balancers/42'`,
		Args: clikit.RequireArguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.driver = args[0]
			if err := f.parseDriver(); err != nil {
				return err
			}
			trying.Driver = f.opts.Driver
			tried, err := trying.Try(cmd.Context(), ui.New(os.Stderr, false))
			if err != nil {
				return err
			}
			return clikit.Print(cmd, tried, func(w io.Writer) error { return printTriedDriver(w, tried) })
		},
	}
	fl := cmd.Flags()
	fl.StringArrayVar(&f.driverArgs, "driver-arg", nil, "`TEMPLATE` for an argument of the driver; can be repeated")
	fl.StringArrayVar(&f.driverEnv, "driver-env", nil, "`NAME=TEMPLATE` for the driver's environment; can be repeated")
	fl.StringArrayVar(
		&trying.Calls, "call", nil, "`CALL` of the cloud, as GET /v1/servers, to match with the rules; can be repeated",
	)
	fl.StringArrayVar(&trying.Headers, "header", nil,
		"`NAME: TEMPLATE` for a header of calls that try faults, as 'Authorization: Bearer {{readFile \"token\"}}'")
	fl.StringVar(&trying.Values.ClusterName, "cluster-name", "driver-check", "the cluster's `NAME`, {{.ClusterName}}")
	fl.StringVar(&trying.Values.Kubeconfig, "kubeconfig", "", "`FILE` for {{.Kubeconfig}}")
	clikit.AddOutput(cmd, "table", "json", "yaml")
	return cmd
}

// printTriedDriver prints what became of each call, and what is lost.
func printTriedDriver(w io.Writer, tried *suite.TriedDriver) error {
	p := newParagraphWriter(w)
	table := func(header []string, rows [][]string) {
		if len(rows) > 0 {
			p.printTable(header, rows)
			p.printLine("")
		}
	}
	var unknown, calls, faults, lost [][]string
	for _, name := range tried.Unknown {
		unknown = append(unknown, []string{name, driver.UnknownFeature})
	}
	table([]string{"LEFT ASIDE", "WHY"}, unknown)
	for _, c := range tried.Calls {
		thing, rule := string(c.Thing), fmt.Sprint(c.Rule)
		if c.Rule == 0 {
			thing, rule = "nothing: no fault meets it", ""
		}
		if c.Meant != 0 {
			rule += fmt.Sprintf(", which hides rule %d", c.Meant)
		}
		calls = append(calls, []string{c.Call, thing, rule})
	}
	table([]string{"CALL", "IS ABOUT", "BY RULE"}, calls)
	for _, f := range tried.Faults {
		made := "yes"
		if !f.Made {
			made = "not known: " + f.NotMade
		}
		faults = append(faults, []string{string(f.Fault), f.Call, made})
	}
	table([]string{"FAULT", "IN THE ANSWER TO", "IS MADE"}, faults)
	for _, l := range tried.Lost {
		lost = append(lost, []string{string(l.Feature), fmt.Sprint(l.Extended), strings.Join(l.Core, ", ")})
	}
	p.printTable([]string{"NOT THERE", "EXTENDED", "CORE TESTS SKIPPED"}, lost)
	return p.err
}
