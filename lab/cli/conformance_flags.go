package cli

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/ccmlab/ccmlab/fakecloud/clikit"
	"github.com/ccmlab/ccmlab/fakecloud/identity"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/driver"
	"github.com/ccmlab/ccmlab/lab/conformance/driver/protocol"
	"github.com/ccmlab/ccmlab/lab/conformance/onfakecloud"
	"github.com/ccmlab/ccmlab/lab/conformance/profiles"
	"github.com/ccmlab/ccmlab/lab/conformance/program"
	"github.com/ccmlab/ccmlab/lab/conformance/report"
	"github.com/ccmlab/ccmlab/lab/state"
	"github.com/ccmlab/ccmlab/lab/suite"
)

// selection are the flags that select tests.
type selection struct {
	profiles []string
	focus    string
}

// addSelectionFlags adds --profile and --focus to cmd.
func addSelectionFlags(cmd *cobra.Command) *selection {
	s := &selection{}
	var names []string
	for _, p := range conformance.Profiles {
		names = append(names, string(p))
	}
	cmd.Flags().StringSliceVar(
		&s.profiles, "profile", nil,
		"only tests of this profile, `NAME`: "+strings.Join(names, ", ")+"; can be repeated (default all)",
	)
	cmd.Flags().StringVar(&s.focus, "focus", "", "only tests whose ID this regular `expression` matches")
	clikit.CompleteFlag(cmd, "profile", names...)
	return s
}

// selectTests returns the selected tests, with the profiles and the expression that
// select them. It is a mistake to select none.
func (s selection) selectTests(all []conformance.Test) (chosen []conformance.Test, p []conformance.Profile, focus *regexp.Regexp, err error) {
	var errs []error
	for _, name := range s.profiles {
		profile, err := conformance.ProfileNamed(name)
		if err != nil {
			errs = append(errs, clikit.Usagef("--profile: %w", err))
		}
		p = append(p, profile)
	}
	if s.focus != "" {
		if focus, err = regexp.Compile(s.focus); err != nil {
			errs = append(errs, clikit.Usagef("--focus: %w", err))
		}
	}
	if len(errs) > 0 {
		return nil, nil, nil, errors.Join(errs...)
	}
	if chosen = conformance.Select(all, p, focus); len(chosen) == 0 {
		err = clikit.Usagef(
			"--focus %q matches no test of the profiles asked for; `lab conformance list` prints all tests", s.focus,
		)
	}
	return chosen, p, focus, err
}

// conformanceFlags are the flags of lab conformance and lab incident run, as they were
// given.
type conformanceFlags struct {
	*selection
	opts suite.Options
	// driver is the value of --driver; driverArgs and driverEnv are what the program gets.
	driver                string
	driverArgs, driverEnv []string
	ccm, config, dialect  string
	command               string // see describeRun
	rbac                  string
	ccmNames              map[string]string
	env                   []string
	claims                []string
	unsupported           []string
	reportDir             string
	budget                string
	failFast              bool
}

// addCCMFlags adds the flags that say which CCM is tested, and on which kind of lab.
func (f *conformanceFlags) addCCMFlags(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(
		&f.opts.Cluster, "cluster", cluster.KindEmbedded, "kind of cluster: "+strings.Join(cluster.KindNames(), ", "),
	)
	fl.StringVar(
		&f.opts.Kubeconfig, "kubeconfig", "",
		"external: the cluster's kubeconfig `FILE`, with all rights; nothing in it is touched but what the suite makes",
	)
	fl.StringVar(
		&f.driver, "driver", "",
		"driver of another cloud: `PROGRAM` that is started, or unix:///PATH or http://127.0.0.1:PORT of one that runs",
	)
	fl.StringArrayVar(&f.driverArgs, "driver-arg", nil, "`TEMPLATE` for an argument of the driver; can be repeated")
	fl.StringArrayVar(&f.driverEnv, "driver-env", nil, "`NAME=TEMPLATE` for the driver's environment; can be repeated")
	fl.StringVar(
		&f.ccm, "ccm", "", "the CCM to run, a program at `PATH`, with the arguments after -- (default our own)",
	)
	fl.StringVar(&f.opts.CCMVersion, "ccm-version", "", "version of --ccm, for the reports (default: what its build says)")
	fl.StringVar(
		&f.dialect, "dialect", "",
		"the CCM is that of another cloud, run and judged by its preset: "+strings.Join(identity.Dialects(), ", "),
	)
	clikit.CompleteFlag(cmd, "dialect", identity.Dialects()...)
	fl.StringArrayVar(&f.env, "ccm-env", nil, "`NAME=TEMPLATE` for the CCM's environment; can be repeated")
	fl.StringVar(&f.config, "ccm-config", "", "`FILE` that is the template of the CCM's cloud configuration")
	fl.StringVar(
		&f.rbac, "rbac", "",
		"`FILE` of manifests: the CCM may do in the cluster what its roles and bindings allow a ServiceAccount, and no more",
	)
	fl.StringToStringVar(
		&f.ccmNames, "ccm-names", nil,
		"`KIND=NAME` for what the CCM marks on fakecloud otherwise than our own does: "+
			strings.Join(onfakecloud.NameKinds(), ", ")+"; can be repeated",
	)
	fl.BoolVar(
		&f.opts.KubeletProviderIDs, "kubelet-provider-ids", false,
		"kubelets are given --provider-id, for a CCM on fakecloud that does not find instances by Node name",
	)
	fl.StringSliceVar(&f.claims, "claim", nil, "`CAPABILITY` that the CCM has: its tests are required; can be repeated")
	fl.StringArrayVar(
		&f.unsupported, "unsupported", nil,
		"`NAME=REASON` for a feature, a capability or a profile that cloud or CCM does not have: "+
			"its tests are skipped; can be repeated",
	)
	fl.IntVar(
		&f.opts.Implementation.Attempts, "attempts", 0,
		"how often the CCM's client sends a call that fails before it reports that (default 3)",
	)
	fl.DurationVar(
		&f.opts.Bound, "bound", 0, "the longest that any test may take (default: what each test allows, mostly 2m)",
	)
	fl.Float64Var(
		&f.opts.BoundsFactor, "bounds-factor", 1,
		"how many times as long as it says each test may take, and cleaning up after it: for slow clouds",
	)
	fl.BoolVar(
		&f.opts.WithoutMachines, "without-machines", false,
		"no machines in the cluster: tests that need machines or traffic are skipped",
	)
	fl.StringVar(
		&f.opts.Bundle, "bundle", "",
		"run from a bundle, a `FILE` that lab bundle packed, instead of what was built here",
	)
	fl.StringVar(
		&f.opts.Recordings, "recordings", "",
		"write what happened in each lab into this `FOLDER`, as pages that a browser opens: picture, story and slider",
	)
	fl.BoolVar(&f.opts.Keep, "keep", false, "leave the lab up afterwards, to look at")
	fl.StringVar(
		&f.opts.CCMPath, "ccm-build", "",
		"another build of the lab's own CCM, a program at `PATH`, with the lab's own arguments",
	)
	_ = fl.MarkHidden("ccm-build") // It is for testing mutants of the CCM.
	clikit.CompleteFlag(cmd, "cluster", cluster.KindNames()...)
	capabilities, features := capabilitiesAndFeatures(profiles.All())
	clikit.CompleteFlag(cmd, "claim", capabilities...)
	_ = cmd.RegisterFlagCompletionFunc(
		"unsupported",
		cobra.FixedCompletions(features, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace),
	)
}

// maxBoundsFactor gives a balancer more than three hours.
const maxBoundsFactor = 100

// completeOptions completes the suite's options from the flags. It reports all mistakes
// at once, before anything is started. It returns the tests that will be run or
// skipped.
func (f *conformanceFlags) completeOptions(all []conformance.Test, ccmArgs []string) ([]conformance.Test, error) {
	var errs []error
	addUsageError := func(format string, args ...any) { errs = append(errs, clikit.Usagef(format, args...)) }
	for _, name := range f.opts.Names(all) {
		if _, err := state.Dir(name); err != nil {
			errs = append(errs, clikit.Usage(err))
		}
	}
	errs = append(errs, f.validateCluster()...)
	if f.opts.Parallel < 0 {
		addUsageError("--parallel %d: want 1 or more, or 0 for the default", f.opts.Parallel)
	}
	if f.opts.Implementation.Attempts < 0 || f.opts.Bound < 0 {
		addUsageError("--attempts and --bound: want more than 0, or 0 for the default")
	}
	if factor := f.opts.BoundsFactor; factor != 0 && factor < 1 || factor > maxBoundsFactor {
		addUsageError(
			"--bounds-factor %g: want 1 to %d, or 0 for the default; --bound shortens what a test may take", factor,
			maxBoundsFactor,
		)
	}
	if f.opts.CCMPath != "" && f.ccm != "" {
		addUsageError("--ccm and --ccm-build: give one")
	}
	tests, p, focus, err := f.selectTests(all)
	f.opts.Profiles, f.opts.Focus = p, focus
	errs = append(errs, err, f.parseClaims(all), f.parseDriver(), f.parseCCMProgram(ccmArgs), f.parseRBAC())
	f.opts.Limits, err = f.readBudgetLimits()
	errs = append(errs, err)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	// Find out now whether it is writable, not after all the tests.
	if f.reportDir != "" {
		err := os.MkdirAll(f.reportDir, 0o755)
		if err == nil {
			err = unix.Access(f.reportDir, unix.W_OK)
		}
		// The files of an earlier run must not be taken for this run's.
		for _, name := range report.Files {
			if removeErr := os.Remove(filepath.Join(f.reportDir, name)); !errors.Is(removeErr, fs.ErrNotExist) {
				err = errors.Join(err, removeErr)
			}
		}
		if err != nil {
			return nil, clikit.Usagef("--report-dir %s: %w", f.reportDir, err)
		}
	}
	return tests, nil
}

// validateCluster returns the mistakes in the flags that say which cluster the suite
// runs on.
func (f *conformanceFlags) validateCluster() (errs []error) {
	o := &f.opts
	addUsageError := func(format string, args ...any) { errs = append(errs, clikit.Usagef(format, args...)) }
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
	case !kind.TakesKubeconfig && (o.Kubeconfig != "" || o.Traffic && f.driver == ""):
		addUsageError("--kubeconfig is for --cluster %[1]s, and --traffic for that or --driver", cluster.KindExternal)
	case o.Traffic && o.WithoutMachines:
		addUsageError("--traffic and --without-machines: want one of them")
	case o.Workload.Image != "" && kind.Hollow:
		addUsageError("--workload: nothing of an image runs on --cluster %s", kind.Name)
	}
	if o.KubeletProviderIDs && kind != nil && (kind.TakesKubeconfig || f.driver != "" || f.dialect != "") {
		addUsageError("--kubelet-provider-ids is for --cluster embedded and kind with fakecloud, and without --dialect")
	}
	if o.Labs < 0 {
		addUsageError("--labs %d: want 1 or more, or 0 for the default", o.Labs)
	}
	return errs
}

// parseClaims reads --claim and --unsupported into the options.
func (f *conformanceFlags) parseClaims(all []conformance.Test) error {
	var errs []error
	capabilities, features := capabilitiesAndFeatures(all)
	for _, c := range f.claims {
		if !slices.Contains(capabilities, c) {
			errs = append(
				errs,
				clikit.Usagef("--claim %q: no test is about that; capabilities are %s", c, strings.Join(capabilities, ", ")),
			)
		}
		f.opts.Implementation.Claims = append(f.opts.Implementation.Claims, conformance.Capability(c))
	}
	for _, u := range f.unsupported {
		name, reason, _ := strings.Cut(u, "=")
		if p, err := conformance.ProfileNamed(name); err == nil {
			name = string(p)
		}
		switch {
		case reason == "":
			errs = append(errs, clikit.Usagef("--unsupported %q: want NAME=REASON; the reason goes into the report", u))
		case !slices.Contains(features, name):
			errs = append(errs, clikit.Usagef(
				"--unsupported %q: no test needs that; features, capabilities and profiles are %s", name,
				strings.Join(features, ", "),
			))
		case slices.Contains(f.claims, name):
			errs = append(errs, clikit.Usagef("%s cannot be both claimed and unsupported", name))
		}
		if f.opts.Implementation.Unsupported == nil {
			f.opts.Implementation.Unsupported = conformance.Unsupported{}
		}
		f.opts.Implementation.Unsupported[name] = reason
	}
	return errors.Join(errs...)
}

// capabilitiesAndFeatures returns the capabilities that the tests are about, and all
// features whose lack skips tests. The capabilities and the profiles are among the features.
func capabilitiesAndFeatures(tests []conformance.Test) (capabilities, features []string) {
	for _, t := range tests {
		features = append(features, string(t.Profile))
		if t.Capability != "" {
			capabilities = append(capabilities, string(t.Capability))
			features = append(features, string(t.Capability))
		}
		for _, f := range slices.Concat(t.Needs, t.Compares) {
			features = append(features, string(f))
		}
	}
	slices.Sort(capabilities)
	slices.Sort(features)
	return slices.Compact(capabilities), slices.Compact(features)
}

// parseDriver reads --driver and what goes with it into the options.
func (f *conformanceFlags) parseDriver() error {
	isAddress := driver.IsAddress(f.driver)
	switch {
	case f.driver == "" && len(f.driverArgs)+len(f.driverEnv) > 0:
		return clikit.Usagef("--driver-arg and --driver-env are for --driver PROGRAM")
	case f.driver == "":
		return nil
	case f.opts.CCMPath != "" || len(f.ccmNames) > 0:
		return clikit.Usagef("--ccm-build and --ccm-names are for the lab's own cloud, and --driver for another")
	case isAddress && len(f.driverArgs)+len(f.driverEnv) > 0:
		return clikit.Usagef("--driver-arg and --driver-env: %s runs already", f.driver)
	case isAddress && f.opts.Labs > 1:
		return clikit.Usagef("--labs %d: %s is one driver, of one cluster", f.opts.Labs, f.driver)
	}
	f.opts.Driver = &suite.Driver{Args: f.driverArgs, Env: f.driverEnv}
	var err error
	if isAddress {
		f.opts.Driver.Address, err = driver.ParseAddress(f.driver, os.Getenv(protocol.EnvToken))
	} else if f.opts.Driver.Path, err = filepath.Abs(f.driver); err == nil {
		err = f.opts.Driver.Check()
	}
	if err != nil {
		return clikit.Usage(err)
	}
	return nil
}

// parseCCMProgram reads --ccm and the flags and arguments that belong to it into the
// options.
func (f *conformanceFlags) parseCCMProgram(args []string) error {
	switch {
	case f.ccm == "" && (len(args) > 0 || len(f.env) > 0 || len(f.ccmNames) > 0 || f.config != "" || f.dialect != ""):
		return clikit.Usagef("--ccm-env, --ccm-config, --ccm-names, --dialect and arguments after -- are for --ccm PATH")
	case f.dialect != "" && f.driver != "":
		return clikit.Usagef("--dialect and --driver: give one")
	case f.ccm == "":
		return nil
	}
	path, err := filepath.Abs(f.ccm)
	if err != nil {
		return err
	}
	p := &program.CCM{Path: path, Args: args, Env: f.env}
	var errs []error
	if f.opts.CCMNames, err = onfakecloud.ParseNames(f.ccmNames); err != nil {
		errs = append(errs, clikit.Usagef("--ccm-names %w", err))
	}
	if f.config != "" {
		template, err := os.ReadFile(f.config)
		if err == nil && len(template) == 0 {
			err = fmt.Errorf("%s is empty", f.config)
		}
		if err != nil {
			errs = append(errs, clikit.Usagef("--ccm-config: %w", err))
		}
		p.ConfigTemplate = string(template)
	}
	if err := p.Check(); err != nil {
		errs = append(errs, clikit.Usage(err))
	}
	f.opts.Program = p
	if f.dialect != "" {
		if err := f.opts.UseDialect(f.dialect); err != nil {
			errs = append(errs, clikit.Usagef("--dialect: %w", err))
		}
	}
	return errors.Join(errs...)
}

// parseRBAC reads the file of --rbac into the options.
func (f *conformanceFlags) parseRBAC() error {
	switch {
	case f.rbac == "":
		return nil
	case f.opts.Cluster == cluster.KindExternal:
		return clikit.Usagef("--rbac is for clusters that the suite makes, not for --cluster %s", f.opts.Cluster)
	}
	manifest, err := os.ReadFile(f.rbac)
	if err == nil {
		f.opts.RBAC, err = suite.ParseRBAC(manifest)
	}
	if err != nil {
		return clikit.Usagef("--rbac %s: %w", f.rbac, err)
	}
	return nil
}

// ownLabName returns a random name for a lab of the command's own, or the value of
// --name. It ignores LAB_NAME, which names another lab.
func ownLabName(cmd *cobra.Command, o *globalOptions, what string) string {
	if cmd.Flags().Changed("name") {
		return o.name
	}
	return what + "-" + strings.ToLower(rand.Text()[:6])
}
