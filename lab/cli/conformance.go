package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/ccmlab/ccmlab/fakecloud/clikit"
	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/driver/protocol"
	"github.com/ccmlab/ccmlab/lab/conformance/profiles"
	"github.com/ccmlab/ccmlab/lab/conformance/program"
	"github.com/ccmlab/ccmlab/lab/conformance/report"
	"github.com/ccmlab/ccmlab/lab/suite"
	"github.com/ccmlab/ccmlab/lab/ui"
)

func newConformance(o *globalOptions) *cobra.Command {
	f := &conformanceFlags{}
	cmd := &cobra.Command{
		Use:   "conformance [flags] [-- CCM-ARGS...]",
		Short: "Say whether a CCM does what Kubernetes expects of it",
		Long: `conformance brings up labs of its own, without a CCM, runs one beside each, ours
or any program, and tries what is required of a CCM. Tests start, stop and
restart it. Then the labs are taken down. Most of the time is waiting, so that
three labs that share the tests need less than half of one lab's time.

On --cluster external the suite makes Nodes of its own. It refuses a cluster that
has a CCM, or anything that a CCM would touch.

The exit code is 0 only if everything required passed and the CCM never ended
by itself, unless the suite had made the cloud misbehave. Core tests are required
of every CCM, extended ones of a CCM that claims their capability.

Tests build on others: all that waits for a balancer on the one that a Service
gets a balancer. Where that one has failed, and failed once more, those are
blocked: they are not run, and have not passed. --bounds-factor is for clouds
that take minutes over a balancer.

With --ccm PATH the arguments after --, --ccm-env and the content of
--ccm-config are templates over these fields:
  ` + wrapHelpText(program.ValueNames()) + `
{{.CloudConfig}} is the file made of --ccm-config.

{{.Kubeconfig}} gives all rights, and our own CCM has those of its manifests. With
--rbac FILE either has what the file's roles and bindings allow the ServiceAccount
that they name: output of kubectl kustomize or helm template will do.

Another cloud than ours is reached through a driver, a program of yours that the
suite's README describes: --driver PROGRAM starts it, with templates of the same
fields in --driver-arg and --driver-env, and ends it with the run; what it writes is
among the lab's logs. --driver unix:///PATH is one that runs already, or
http://127.0.0.1:PORT, with its token in ` + protocol.EnvToken + `. The driver says how
its CCM is started, or --ccm does; {{.CloudURL}} is then the way through the suite's
proxy, if the driver asks for that.`,
		Example: `  lab conformance
  lab conformance --profile Node,Lifecycle --report-dir reports
  lab conformance --focus '^node-' --keep        # and look at the lab afterwards
  lab conformance --ccm ./my-ccm --claim udp-services -- --kubeconfig={{.Kubeconfig}} --cloud-config={{.CloudConfig}} \
      --cluster-name={{.ClusterName}} --bind-address={{.Address}} --secure-port={{.Port}}
  lab conformance --rbac my-ccm.yaml --ccm ./my-ccm -- --kubeconfig={{.Kubeconfig}} --cloud-config={{.CloudConfig}}
  lab conformance --cluster external --kubeconfig empty.yaml --bounds-factor 5
  lab conformance --driver ./nebula-driver --driver-arg --cluster={{.ClusterName}} --ccm ./nebula-ccm
  lab conformance --profile Budget --budget budget.yaml
  lab conformance list --profile LoadBalancer
  lab conformance budget > budget.yaml
  lab conformance driver check ./nebula-driver`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if dash := cmd.ArgsLenAtDash(); dash > 0 || dash < 0 && len(args) > 0 {
				return clikit.Usagef("unexpected argument %q; what the CCM is to be given comes after --", args[0])
			}
			f.opts.Name = ownLabName(cmd, o, "conformance")
			tests, err := f.completeOptions(profiles.All(), args)
			if err != nil {
				return err
			}
			f.command = describeRun(cmd, args)
			return f.runSuite(cmd, tests)
		},
	}
	o.addNameFlag(cmd, "a random one")
	f.addCCMFlags(cmd)
	fl := cmd.Flags()
	fl.BoolVar(
		&f.opts.Traffic, "traffic", false,
		"external: the cluster's nodes that wait for a CCM are the suite's, and their ports are reached from this machine; "+
			"with --driver: instances of the lab's own cloud, which become nodes, are the driver's",
	)
	fl.StringVar(
		&f.opts.Workload.Image, "workload", "",
		"kind, external: `IMAGE` of the pods that answer, on port 8080, with their name in it (default ccmlab/hello:dev)",
	)
	fl.IntVar(
		&f.opts.Labs, "labs", 0,
		"how many labs share the tests (default: embedded up to 3, as many as the tests are worth; else 1)",
	)
	fl.IntVar(&f.opts.Parallel, "parallel", 0, "how many tests run at once, of those that may (default 8)")
	fl.StringVar(
		&f.reportDir, "report-dir", "",
		"write report.yaml, junit.xml and report.html, a page with the timeline of each test, into this `DIR` (default: nothing is written)",
	)
	fl.StringVar(
		&f.budget, "budget", "",
		"`FILE` with limits for the profile Budget, as lab conformance budget prints them (default: these)",
	)
	fl.BoolVar(
		&f.opts.RunBlocked, "run-blocked", false, "run tests also where what they build on has failed; that takes long",
	)
	fl.BoolVar(&f.opts.RequiredOnly, "required-only", false, "skip extended tests whose capability is not claimed")
	fl.BoolVar(
		&f.failFast, "fail-fast", false,
		"end the run at the first required test that fails; the reports say what was not run",
	)
	f.selection = addSelectionFlags(cmd)
	clikit.AddOutput(cmd, "table", "json", "yaml")
	cmd.AddCommand(newConformanceList(), newConformanceBudget(), newConformanceDriver(), newConformanceTable())
	return cmd
}

// errFailedFast ends a run because a test has failed.
var errFailedFast = errors.New("a required test has failed, and the run was to end at the first")

// runSuite runs the suite. It shows the progress on standard error, and prints the
// report on standard output.
func (f *conformanceFlags) runSuite(cmd *cobra.Command, tests []conformance.Test) error {
	// Tests cancel watches and requests in flight, and client-go logs errors about that.
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	steps, progress := ui.New(os.Stderr, false), ui.NewTests(os.Stderr, len(tests))
	names := f.opts.Names(tests)
	steps.Say("   %s; if this run is killed, `%s` ends what it leaves.", describeLabs(names), downCommands(names))
	f.opts.RunBlocked = f.opts.RunBlocked || f.failFast // Whether it blocks is not asked any more.
	ctx, end := context.WithCancelCause(cmd.Context())
	defer end(nil)
	f.opts.Observer = func(t conformance.TestReport) {
		showTestProgress(progress, t)
		if f.failFast && t.Required && t.Result == conformance.Failed {
			end(errFailedFast)
		}
	}
	stopInterruptNotice := context.AfterFunc(cmd.Context(), func() {
		progress.Close()
		steps.Say("\nInterrupted: what the tests made is taken away.")
	})
	report, err := suite.Run(ctx, f.opts, steps)
	stopInterruptNotice()
	progress.Close()
	if report != nil && errors.Is(context.Cause(ctx), errFailedFast) {
		return f.deliverReport(cmd, steps, report)
	}
	if report == nil || report.Unfinished != "" {
		// A partial report must not be taken for a whole one. It is printed for people,
		// and never as data.
		if report != nil && len(report.Tests) > 0 && clikit.Output(cmd) == "table" {
			err = errors.Join(err, printReport(cmd.OutOrStdout(), report))
		}
		if err == nil && report != nil {
			err = errors.New(report.Unfinished)
		}
		return err
	}
	// The report is complete, even if the lab failed afterwards.
	if deliverErr := f.deliverReport(cmd, steps, report); err == nil {
		err = deliverErr
	}
	return err
}

// deliverReport writes the report's files and prints the report. It returns a
// silentError if the CCM did not pass.
func (f *conformanceFlags) deliverReport(cmd *cobra.Command, steps *ui.Steps, result *conformance.Report) (err error) {
	result.Command = f.command
	var files []string
	if f.reportDir != "" {
		result.Recordings = f.opts.RecordingsFrom(f.reportDir)
		if files, err = report.WriteFiles(result, f.reportDir); err != nil {
			return fmt.Errorf("writing the report: %w", err)
		}
	}
	err = clikit.Print(cmd, result, func(w io.Writer) error { return printReport(w, result) })
	f.printNextSteps(steps, result, files)
	if err == nil && !result.Passed() {
		err = silentError{errors.New("not conformant")}
	}
	return err
}

// printNextSteps prints where the reports are, and how to look at labs that were kept.
func (f *conformanceFlags) printNextSteps(steps *ui.Steps, report *conformance.Report, files []string) {
	switch {
	case len(files) > 0:
		steps.Say("reports: %s", strings.Join(files, ", "))
		steps.Say("The last is for a browser: it needs nothing else, and has what happened in each test.")
	case !report.Passed():
		steps.Say("--report-dir DIR keeps a report with the CCM's last lines at each failure.")
	}
	if f.opts.Keep {
		names := f.opts.Names(f.opts.SelectTests())
		steps.Say(
			"%s: up. Look with eval \"$(%s env --name %s)\", and `%s` at the end.", describeLabs(names), invokedAs(),
			f.opts.Name, downCommands(names),
		)
	}
}

// describeLabs returns the names of labs, with their number if there are several.
func describeLabs(names []string) string {
	if len(names) == 1 {
		return "Lab " + names[0]
	}
	return fmt.Sprintf("%d labs, %s", len(names), strings.Join(names, ", "))
}

// downCommands returns the command line that takes the labs down.
func downCommands(names []string) string {
	var commands []string
	for _, name := range names {
		commands = append(commands, fmt.Sprintf("%s down --name %s", invokedAs(), name))
	}
	return strings.Join(commands, "; ")
}

// showTestProgress shows that a test begins, if it has no result yet, or how it ended.
func showTestProgress(progress *ui.Tests, t conformance.TestReport) {
	outcome := map[conformance.Result]ui.Outcome{
		conformance.Passed: ui.Pass, conformance.Skipped: ui.Skip, conformance.Failed: ui.Fail,
		conformance.Blocked: ui.Block,
	}[t.Result]
	why := strings.Join(t.Reasons, "\n")
	switch {
	case t.Result == "":
		progress.Begin(t.ID)
		return
	case t.Result == conformance.Failed && !t.Required:
		outcome = ui.Tolerated
	case t.Result == conformance.Blocked:
		why = "blocked " + t.WhyBlocked()
		if t.BlockedBy == "" {
			why = strings.Join(t.Reasons, "\n")
		}
	}
	progress.End(t.ID, outcome, time.Duration(t.Seconds*float64(time.Second)), why)
}
