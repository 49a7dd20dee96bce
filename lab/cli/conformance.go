package cli

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/profiles"
	"github.com/ccmlab/ccmlab/lab/conformance/program"
	"github.com/ccmlab/ccmlab/lab/conformance/report"
	"github.com/ccmlab/ccmlab/lab/state"
	"github.com/ccmlab/ccmlab/lab/suite"
	"github.com/ccmlab/ccmlab/lab/ui"
)

// selection is which tests a command is about.
type selection struct {
	profiles []string
	focus    string
}

func addSelectionFlags(cmd *cobra.Command) *selection {
	s := &selection{}
	var names []string
	for _, p := range conformance.Profiles {
		names = append(names, string(p))
	}
	cmd.Flags().StringSliceVar(&s.profiles, "profile", nil, "only tests of this profile, `NAME`: "+strings.Join(names, ", ")+"; can be repeated (default all)")
	cmd.Flags().StringVar(&s.focus, "focus", "", "only tests whose ID this regular `expression` matches")
	_ = cmd.RegisterFlagCompletionFunc("profile", cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp))
	return s
}

// selectTests are those selected; none at all is a mistake.
func (s selection) selectTests(all []conformance.Test) (chosen []conformance.Test, p []conformance.Profile, focus *regexp.Regexp, err error) {
	var errs []error
	for _, name := range s.profiles {
		profile, err := conformance.ProfileNamed(name)
		if err != nil {
			errs = append(errs, usagef("--profile: %w", err))
		}
		p = append(p, profile)
	}
	if s.focus != "" {
		if focus, err = regexp.Compile(s.focus); err != nil {
			errs = append(errs, usagef("--focus: %w", err))
		}
	}
	if len(errs) > 0 {
		return nil, nil, nil, errors.Join(errs...)
	}
	if chosen = conformance.Select(all, p, focus); len(chosen) == 0 {
		err = usagef("--focus %q matches no test of the profiles asked for; `lab conformance list` prints all tests", s.focus)
	}
	return chosen, p, focus, err
}

// conformanceFlags are the command's, as they are given.
type conformanceFlags struct {
	*selection
	opts        suite.Options
	ccm, config string
	env         []string
	claims      []string
	unsupported []string
	reportDir   string
	budget      string
}

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
by itself. Core tests are required of every CCM, extended ones of a CCM that
claims their capability.

With --ccm PATH the arguments after --, --ccm-env and the content of
--ccm-config are templates over these fields:
  ` + wrapHelpText(program.ValueNames()) + `
{{.CloudConfig}} is the file made of --ccm-config.`,
		Example: `  lab conformance
  lab conformance --profile Node,Lifecycle --report-dir reports
  lab conformance --focus '^node-' --keep        # and look at the lab afterwards
  lab conformance --ccm ./my-ccm --claim udp-services -- --kubeconfig={{.Kubeconfig}} --cloud-config={{.CloudConfig}} \
      --cluster-name={{.ClusterName}} --bind-address={{.Address}} --secure-port={{.Port}}
  lab conformance --cluster external --kubeconfig empty.yaml
  lab conformance --profile Budget --budget budget.yaml
  lab conformance list --profile LoadBalancer
  lab conformance budget > budget.yaml`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if dash := cmd.ArgsLenAtDash(); dash > 0 || dash < 0 && len(args) > 0 {
				return usagef("unexpected argument %q; what the CCM is to be given comes after --", args[0])
			}
			f.opts.Name = ownLabName(cmd, o, "conformance")
			tests, err := f.completeOptions(profiles.All(), args)
			if err != nil {
				return err
			}
			return f.runSuite(cmd, tests)
		},
	}
	f.addCCMFlags(cmd)
	fl := cmd.Flags()
	fl.BoolVar(&f.opts.Traffic, "traffic", false, "external: the cluster's nodes that wait for a CCM are the suite's, and their ports are reached from this machine")
	fl.StringVar(&f.opts.Workload, "workload", "", "kind, external: `IMAGE` of the pods that answer, on port 8080, with their name in it (default ccmlab/hello:dev)")
	fl.IntVar(&f.opts.Labs, "labs", 0, "how many labs share the tests (default: embedded up to 3, as many as the tests are worth; else 1)")
	fl.IntVar(&f.opts.Parallel, "parallel", 0, "how many tests run at once, of those that may (default 8)")
	fl.StringVar(&f.reportDir, "report-dir", "", "write report.yaml, junit.xml and report.html, a page with the timeline of each test, into this `DIR` (default: nothing is written)")
	fl.StringVar(&f.budget, "budget", "", "`FILE` with limits for the profile Budget, as lab conformance budget prints them (default: these)")
	fl.BoolVar(&f.opts.RequiredOnly, "required-only", false, "skip extended tests whose capability is not claimed")
	f.selection = addSelectionFlags(cmd)
	addOutputFlag(cmd, "table", "json", "yaml")
	cmd.AddCommand(newConformanceList(), newConformanceBudget())
	return cmd
}

// ownLabName names a lab of the command's own, unless one is named: LAB_NAME is of
// another lab.
func ownLabName(cmd *cobra.Command, o *globalOptions, what string) string {
	if cmd.Flags().Changed("name") {
		return o.name
	}
	return what + "-" + strings.ToLower(rand.Text()[:6])
}

// addCCMFlags adds the flags that say what is tested, and on which lab.
func (f *conformanceFlags) addCCMFlags(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&f.opts.Cluster, "cluster", cluster.KindEmbedded, "kind of cluster: "+strings.Join(cluster.KindNames(), ", "))
	fl.StringVar(&f.opts.Kubeconfig, "kubeconfig", "", "external: the cluster's kubeconfig `FILE`, with all rights; nothing in it is touched but what the suite makes")
	fl.StringVar(&f.opts.Implementation, "implementation", suite.ImplementationFakecloud, "cloud, with its CCM: "+strings.Join(suite.Implementations, ", "))
	fl.StringVar(&f.ccm, "ccm", "", "the CCM to run, a program at `PATH`, with the arguments after -- (default our own)")
	fl.StringArrayVar(&f.env, "ccm-env", nil, "`NAME=TEMPLATE` for the CCM's environment; can be repeated")
	fl.StringVar(&f.config, "ccm-config", "", "`FILE` that is the template of the CCM's cloud configuration")
	fl.StringSliceVar(&f.claims, "claim", nil, "`CAPABILITY` that the CCM has: its tests are required; can be repeated")
	fl.StringArrayVar(&f.unsupported, "unsupported", nil, "`FEATURE=REASON` for what cloud or CCM does not have: its tests are skipped; can be repeated")
	fl.IntVar(&f.opts.Attempts, "attempts", 0, "how often the CCM's client sends a call that fails before it reports that (default 3)")
	fl.DurationVar(&f.opts.Bound, "bound", 0, "the longest that any test may take (default: what each test allows, mostly 2m)")
	fl.BoolVar(&f.opts.WithoutMachines, "without-machines", false, "no machines in the cluster: tests that need machines or traffic are skipped")
	fl.StringVar(&f.opts.Bundle, "bundle", "", "run from a bundle, a `FILE` that lab bundle packed, instead of what was built here")
	fl.BoolVar(&f.opts.Keep, "keep", false, "leave the lab up afterwards, to look at")
	fl.StringVar(&f.opts.CCMPath, "ccm-build", "", "another build of the lab's own CCM, a program at `PATH`, with the lab's own arguments")
	_ = fl.MarkHidden("ccm-build") // For mutants.
	_ = cmd.RegisterFlagCompletionFunc("cluster", cobra.FixedCompletions(cluster.KindNames(), cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("implementation", cobra.FixedCompletions(suite.Implementations, cobra.ShellCompDirectiveNoFileComp))
	capabilities, features := capabilitiesAndFeatures(profiles.All())
	_ = cmd.RegisterFlagCompletionFunc("claim", cobra.FixedCompletions(capabilities, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("unsupported", cobra.FixedCompletions(features, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace))
}

// wrapHelpText breaks a list into the lines of a command's help.
func wrapHelpText(list string) string {
	out, width := "", 0
	for word := range strings.SplitSeq(list, " ") {
		if width += len(word) + 1; width > 76 {
			out, width = strings.TrimRight(out, " ")+"\n  ", len(word)+1
		}
		out += word + " "
	}
	return strings.TrimRight(out, " ")
}

// capabilitiesAndFeatures are the capabilities that the tests are about, and all features, these
// among them, that skip tests where they are missing.
func capabilitiesAndFeatures(tests []conformance.Test) (capabilities, features []string) {
	for _, t := range tests {
		if t.Capability != "" {
			capabilities = append(capabilities, string(t.Capability))
			features = append(features, string(t.Capability))
		}
		for _, f := range t.Needs {
			features = append(features, string(f))
		}
	}
	slices.Sort(capabilities)
	slices.Sort(features)
	return slices.Compact(capabilities), slices.Compact(features)
}

// completeOptions completes the options, and says all that is wrong with the flags before
// anything is started. It returns the tests that will be run or skipped.
func (f *conformanceFlags) completeOptions(all []conformance.Test, ccmArgs []string) ([]conformance.Test, error) {
	var errs []error
	addUsageError := func(format string, args ...any) { errs = append(errs, usagef(format, args...)) }
	for _, name := range f.opts.Names(all) {
		if _, err := state.Dir(name); err != nil {
			errs = append(errs, usageError{err})
		}
	}
	errs = append(errs, f.validateCluster()...)
	if !slices.Contains(suite.Implementations, f.opts.Implementation) {
		addUsageError("--implementation %q: want one of %s", f.opts.Implementation, strings.Join(suite.Implementations, ", "))
	}
	if f.opts.Parallel < 0 {
		addUsageError("--parallel %d: want 1 or more, or 0 for the default", f.opts.Parallel)
	}
	if f.opts.Attempts < 0 || f.opts.Bound < 0 {
		addUsageError("--attempts and --bound: want more than 0, or 0 for the default")
	}
	if f.opts.CCMPath != "" && f.ccm != "" {
		addUsageError("--ccm and --ccm-build: give one")
	}
	tests, p, focus, err := f.selectTests(all)
	f.opts.Profiles, f.opts.Focus = p, focus
	errs = append(errs, err, f.parseClaims(all), f.parseCCMProgram(ccmArgs))
	f.opts.Limits, err = f.readBudgetLimits()
	errs = append(errs, err)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	// Known to be writable now, not after all the tests.
	if f.reportDir != "" {
		err := os.MkdirAll(f.reportDir, 0o755)
		if err == nil {
			err = unix.Access(f.reportDir, unix.W_OK)
		}
		// An earlier run's must not be taken for this one's.
		for _, name := range report.Files {
			if removeErr := os.Remove(filepath.Join(f.reportDir, name)); !errors.Is(removeErr, fs.ErrNotExist) {
				err = errors.Join(err, removeErr)
			}
		}
		if err != nil {
			return nil, usagef("--report-dir %s: %w", f.reportDir, err)
		}
	}
	return tests, nil
}

// validateCluster reads which cluster the suite is to run on.
func (f *conformanceFlags) validateCluster() (errs []error) {
	o := &f.opts
	addUsageError := func(format string, args ...any) { errs = append(errs, usagef(format, args...)) }
	kind := cluster.KindNamed(o.Cluster)
	switch {
	case o.Cluster == "" || kind == nil:
		addUsageError("--cluster %q: want one of %s", o.Cluster, strings.Join(cluster.KindNames(), ", "))
	case kind.TakesKubeconfig && o.Kubeconfig == "":
		addUsageError("--cluster %s needs --kubeconfig FILE: the cluster to run the suite on", kind.Name)
	case kind.TakesKubeconfig && o.Labs > 1:
		addUsageError("--labs %d: a cluster of --cluster %s can have one CCM", o.Labs, kind.Name)
	case kind.TakesKubeconfig && o.Keep:
		addUsageError("--keep: nothing stays in a cluster of --cluster %s", kind.Name)
	case !kind.TakesKubeconfig && (o.Kubeconfig != "" || o.Traffic):
		addUsageError("--kubeconfig and --traffic are for --cluster %s", cluster.KindExternal)
	case o.Traffic && o.WithoutMachines:
		addUsageError("--traffic and --without-machines: want one of them")
	case o.Traffic && o.Implementation == suite.ImplementationInMemory:
		addUsageError("--traffic: the cloud of --implementation %s forwards none", o.Implementation)
	case o.Workload != "" && kind.Hollow:
		addUsageError("--workload: nothing of an image runs on --cluster %s", kind.Name)
	}
	if o.Labs < 0 {
		addUsageError("--labs %d: want 1 or more, or 0 for the default", o.Labs)
	}
	return errs
}

// parseClaims reads --claim and --unsupported.
func (f *conformanceFlags) parseClaims(all []conformance.Test) error {
	var errs []error
	capabilities, features := capabilitiesAndFeatures(all)
	for _, c := range f.claims {
		if !slices.Contains(capabilities, c) {
			errs = append(errs, usagef("--claim %q: no test is about that; capabilities are %s", c, strings.Join(capabilities, ", ")))
		}
		f.opts.Claims = append(f.opts.Claims, conformance.Capability(c))
	}
	for _, u := range f.unsupported {
		name, reason, _ := strings.Cut(u, "=")
		switch {
		case reason == "":
			errs = append(errs, usagef("--unsupported %q: want FEATURE=REASON; the reason goes into the report", u))
		case !slices.Contains(features, name):
			errs = append(errs, usagef("--unsupported %q: no test needs that; features and capabilities are %s", name, strings.Join(features, ", ")))
		case slices.Contains(f.claims, name):
			errs = append(errs, usagef("%s cannot be both claimed and unsupported", name))
		}
		if f.opts.Unsupported == nil {
			f.opts.Unsupported = conformance.Unsupported{}
		}
		f.opts.Unsupported[name] = reason
	}
	return errors.Join(errs...)
}

// parseCCMProgram reads what belongs to --ccm.
func (f *conformanceFlags) parseCCMProgram(args []string) error {
	switch {
	case f.ccm == "" && (len(args) > 0 || len(f.env) > 0 || f.config != ""):
		return usagef("--ccm-env, --ccm-config and arguments after -- are for --ccm PATH")
	case f.ccm == "":
		return nil
	case f.opts.Implementation == suite.ImplementationInMemory:
		return usagef("--ccm: the cloud of --implementation %s has a CCM of its own and can be reached by no other", suite.ImplementationInMemory)
	}
	path, err := filepath.Abs(f.ccm)
	if err != nil {
		return err
	}
	p := &program.CCM{Path: path, Args: args, Env: f.env}
	var errs []error
	if f.config != "" {
		template, err := os.ReadFile(f.config)
		if err == nil && len(template) == 0 {
			err = fmt.Errorf("%s is empty", f.config)
		}
		if err != nil {
			errs = append(errs, usagef("--ccm-config: %w", err))
		}
		p.ConfigTemplate = string(template)
	}
	if err := p.Check(); err != nil {
		errs = append(errs, usageError{err})
	}
	f.opts.Program = p
	return errors.Join(errs...)
}

// runSuite runs the suite and shows it, live on stderr and its report on stdout.
func (f *conformanceFlags) runSuite(cmd *cobra.Command, tests []conformance.Test) error {
	// Tests cancel watches and requests in flight, of which client-go complains.
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	steps, progress := ui.New(os.Stderr, false), ui.NewTests(os.Stderr, len(tests))
	names := f.opts.Names(tests)
	steps.Say("   %s; if this run is killed, `%s` ends what it leaves.", describeLabs(names), downCommands(names))
	f.opts.Observer = func(t conformance.TestReport) { showTestProgress(progress, t) }
	stopInterruptNotice := context.AfterFunc(cmd.Context(), func() {
		progress.Close()
		steps.Say("\nInterrupted: what the tests made is taken away.")
	})
	report, err := suite.Run(cmd.Context(), f.opts, steps)
	stopInterruptNotice()
	progress.Close()
	if report == nil || report.Unfinished != "" {
		// Half a report must not be taken for a whole one: people may see it,
		// programs not.
		if report != nil && len(report.Tests) > 0 && cmd.Flag("output").Value.String() == "table" {
			err = errors.Join(err, printReport(cmd.OutOrStdout(), report))
		}
		if err == nil && report != nil {
			err = errors.New(report.Unfinished)
		}
		return err
	}
	// It is whole, whatever became of the lab afterwards.
	if deliverErr := f.deliverReport(cmd, steps, report); err == nil {
		err = deliverErr
	}
	return err
}

// deliverReport writes the report to where it is wanted.
func (f *conformanceFlags) deliverReport(cmd *cobra.Command, steps *ui.Steps, result *conformance.Report) (err error) {
	var files []string
	if f.reportDir != "" {
		if files, err = report.WriteFiles(result, f.reportDir); err != nil {
			return fmt.Errorf("writing the report: %w", err)
		}
	}
	if format := cmd.Flag("output").Value.String(); format == "table" {
		err = printReport(cmd.OutOrStdout(), result)
	} else {
		err = printAs(cmd.OutOrStdout(), format, result)
	}
	f.printNextSteps(steps, result, files)
	if err == nil && !result.Passed() {
		err = silentError{errors.New("not conformant")}
	}
	return err
}

// printNextSteps says where to look on.
func (f *conformanceFlags) printNextSteps(steps *ui.Steps, report *conformance.Report, files []string) {
	switch {
	case len(files) > 0:
		steps.Say("reports: %s", strings.Join(files, ", "))
		steps.Say("The last is for a browser: it needs nothing else, and has what happened in each test.")
	case !report.Passed():
		steps.Say("--report-dir DIR keeps a report with the CCM's last lines at each failure.")
	}
	if f.opts.Keep {
		names := f.opts.Names(f.opts.Tests())
		steps.Say("%s: up. Look with eval \"$(%s env --name %s)\", and `%s` at the end.", describeLabs(names), invokedAs(), f.opts.Name, downCommands(names))
	}
}

// describeLabs names labs for a person.
func describeLabs(names []string) string {
	if len(names) == 1 {
		return "Lab " + names[0]
	}
	return fmt.Sprintf("%d labs, %s", len(names), strings.Join(names, ", "))
}

// downCommands is the command that takes labs down.
func downCommands(names []string) string {
	var commands []string
	for _, name := range names {
		commands = append(commands, fmt.Sprintf("%s down --name %s", invokedAs(), name))
	}
	return strings.Join(commands, "; ")
}

// showTestProgress shows a test that begins or ends.
func showTestProgress(progress *ui.Tests, t conformance.TestReport) {
	outcome := map[conformance.Result]ui.Outcome{conformance.Passed: ui.Pass, conformance.Skipped: ui.Skip, conformance.Failed: ui.Fail}[t.Result]
	switch {
	case t.Result == "":
		progress.Begin(t.ID)
		return
	case t.Result == conformance.Failed && !t.Required:
		outcome = ui.Tolerated
	}
	progress.End(t.ID, outcome, time.Duration(t.Seconds*float64(time.Second)), strings.Join(t.Reasons, "\n"))
}

// printReport sums a report up for a person.
func printReport(w io.Writer, r *conformance.Report) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	p := func(format string, args ...any) { _, _ = fmt.Fprintf(t, format+"\n", args...) }
	p("\nPROFILE\tCORE\tEXTENDED\tSKIPPED")
	var failed, notRequired []string
	for _, profile := range r.Profiles {
		core, extended := cmp.Or(profile.Core, &conformance.Summary{}), cmp.Or(profile.Extended, &conformance.Summary{})
		p("%s\t%s\t%s\t%d", profile.Name, formatScore(core), formatScore(extended), core.Statistics.Skipped+extended.Statistics.Skipped)
		failed = slices.Concat(failed, core.FailedTests, extended.FailedTests)
		notRequired = slices.Concat(notRequired, core.NotRequired, extended.NotRequired)
	}
	printBudget(p, r.Budget)
	p("")
	if len(notRequired) > 0 {
		p("failed, not required: %s", strings.Join(notRequired, ", "))
	}
	if len(failed) > 0 {
		p("failed: %s", strings.Join(failed, ", "))
	}
	if n := len(r.Crashes); n > 0 {
		p("the CCM ended by itself, times: %d; the last time it said:\n    %s", n, strings.ReplaceAll(r.Crashes[n-1], "\n", "\n    "))
	}
	p("%s %s on %s %s, %.0f s", r.Implementation.Name, r.Verdict(), r.Cluster.Name, r.Cluster.Version, r.Seconds)
	return t.Flush()
}

// formatScore is how many of those that ran passed.
func formatScore(s *conformance.Summary) string {
	ran := s.Statistics.Passed + s.Statistics.Failed
	if ran == 0 {
		return "-"
	}
	text := fmt.Sprintf("%d/%d", s.Statistics.Passed, ran)
	if n := len(s.NotRequired); n > 0 {
		text += fmt.Sprintf(" (%d not required)", n)
	}
	return text
}

// listedTest is a test in a list.
type listedTest struct {
	ID         string                 `json:"id"`
	Profile    conformance.Profile    `json:"profile"`
	Level      conformance.Level      `json:"level"`
	Capability conformance.Capability `json:"capability,omitempty"`
	Needs      []conformance.Feature  `json:"needs,omitempty"`
	Requires   string                 `json:"requires"`
	Source     string                 `json:"source"`
}

func newConformanceList() *cobra.Command {
	var s *selection
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "Print every test: what is required, of whom, and who says so",
		Example: "  lab conformance list",
		RunE: func(cmd *cobra.Command, _ []string) error {
			tests, _, _, err := s.selectTests(profiles.All())
			if err != nil {
				return err
			}
			// A profile's tests together, though some are begun at the very end.
			slices.SortStableFunc(tests, func(a, b conformance.Test) int {
				return cmp.Compare(slices.Index(conformance.Profiles, a.Profile), slices.Index(conformance.Profiles, b.Profile))
			})
			var list []listedTest
			for _, t := range tests {
				list = append(list, listedTest{t.ID, t.Profile, t.Level, t.Capability, t.Needs, t.Requires, t.Source})
			}
			if format := cmd.Flag("output").Value.String(); format != "table" {
				return printAs(cmd.OutOrStdout(), format, list)
			}
			return printTestList(cmd.OutOrStdout(), list)
		},
	}
	s = addSelectionFlags(cmd)
	addOutputFlag(cmd, "table", "json", "yaml")
	return cmd
}

// printTestList is no table: a sentence and its source want lines of their own.
func printTestList(w io.Writer, list []listedTest) error {
	var errs []error
	p := func(format string, args ...any) {
		_, err := fmt.Fprintf(w, format+"\n", args...)
		errs = append(errs, err)
	}
	var profile conformance.Profile
	for _, t := range list {
		if t.Profile != profile {
			profile = t.Profile
			p("%s", profile)
		}
		what := string(t.Level)
		if t.Capability != "" {
			what += " " + string(t.Capability)
		}
		if len(t.Needs) > 0 {
			what += fmt.Sprintf(", needs %s", strings.Trim(fmt.Sprint(t.Needs), "[]"))
		}
		p("  %-44s %s\n      %s\n      %s", t.ID, what, t.Requires, t.Source)
	}
	return errors.Join(errs...)
}
