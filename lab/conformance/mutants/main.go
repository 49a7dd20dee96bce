// mutants proves that the conformance suite can fail: it builds our CCM with one
// mistake at a time, each as an overlay over the sources, and has the suite
// judge it. `make mutants` calls it, from the root of a clone. It fails if a
// mistake goes unseen by the tests meant for it, or if what else fails is not
// what the mutant's declaration says, with the reason.
package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/ccmlab/ccmlab/lab/build"
	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/ui"
)

// out has a folder for each mutant, with its sources, the suite's reports and
// what was said.
const out = "bin/mutants"

func main() {
	quick := flag.Bool("quick", false, "run only the tests meant for each mutant, not the whole suite")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "mutants [-quick] [NAME…] has the conformance suite judge our CCM with a mistake in it; with each mutant's without a name.")
		flag.PrintDefaults()
	}
	flag.Parse()
	if err := run(flag.Args(), *quick); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

// run goes on with the next mutant when one cannot be judged: each takes
// minutes.
func run(names []string, quick bool) error {
	mutants, err := choose(names)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	steps := ui.New(os.Stderr, false)
	results := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(results, "\nMUTANT\tCAUGHT BY\tSECONDS\tALSO FAILED")
	if err := steps.Do(fmt.Sprintf("%-24s", "unmutated"), func(note func(string)) (string, error) { return control(ctx, mutants, quick, note) }); err != nil {
		return err
	}
	var problems []error
	for _, m := range mutants {
		var caught, also []string
		began := time.Now()
		err := steps.Do(fmt.Sprintf("%-24s", m.name), func(note func(string)) (string, error) {
			report, err := m.test(ctx, quick, note)
			if err != nil {
				return "", err
			}
			var wrong []error
			caught, also, wrong = m.judge(report, quick)
			return "caught by " + strings.Join(caught, ", "), errors.Join(wrong...)
		})
		if ctx.Err() != nil {
			problems = append(problems, errors.New("interrupted"))
			break
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w\nmore in %s", m.name, err, filepath.Join(out, m.name)))
		}
		_, _ = fmt.Fprintf(results, "%s\t%s\t%.0f\t%s\n", m.name, cmp.Or(strings.Join(caught, ", "), "nothing meant for it"),
			time.Since(began).Seconds(), strings.Join(also, "\n\t\t\t"))
	}
	_ = results.Flush()
	return errors.Join(problems...)
}

// test builds the mutant and runs the suite on it.
func (m mutant) test(ctx context.Context, quick bool, note func(string)) (*conformance.Report, error) {
	dir := filepath.Join(out, m.name)
	if err := os.RemoveAll(dir); err != nil { // A report of before would be believed.
		return nil, err
	}
	overlay, err := m.overlay(".", dir)
	if err != nil {
		return nil, err
	}
	module := build.Own(".") // With its flags, all but package ccm is compiled already.
	module.Mains = map[string]string{"./cmd/ccm": "ccm"}
	module.Flags = append(module.Flags, "-overlay="+overlay)
	if _, err := module.Build(ctx, dir, note); err != nil {
		return nil, err
	}
	ccm, err := filepath.Abs(filepath.Join(dir, "ccm"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.Remove(ccm) }() // It is large, and quickly built again.
	return suite(ctx, dir, quick, []mutant{m}, note, "--ccm-build", ccm, "--bound", bound)
}

// control has the suite judge our CCM as it is: a test that fails on that, too,
// has caught nothing.
func control(ctx context.Context, mutants []mutant, quick bool, note func(string)) (string, error) {
	dir := filepath.Join(out, "unmutated")
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return "", err
	}
	report, err := suite(ctx, dir, quick, mutants, note)
	if err != nil {
		return "", err
	}
	if !report.Passed() {
		return "", fmt.Errorf("our CCM as it is does not pass; %s says why", filepath.Join(dir, "report.yaml"))
	}
	return "passes", nil
}

// bound shortens what is spent on tests that fail. The slowest that passes takes
// a little more than a minute: a cloud that hangs is asked seven times.
const bound = "90s"

// suite runs the suite, whole or only the tests meant for the mutants.
func suite(ctx context.Context, dir string, quick bool, mutants []mutant, note func(string), args ...string) (*conformance.Report, error) {
	args = append([]string{"conformance", "--report-dir", dir}, args...)
	if quick {
		var meant []string
		for _, m := range mutants {
			meant = append(meant, m.CaughtBy...)
		}
		args = append(args, "--focus", "^("+strings.Join(meant, "|")+")$")
	}
	failed := lab(ctx, args, filepath.Join(dir, "output.log"), note)
	data, err := os.ReadFile(filepath.Join(dir, "report.yaml"))
	if err != nil {
		return nil, fmt.Errorf("the suite could not be run: %w", cmp.Or(failed, err))
	}
	report := &conformance.Report{}
	return report, yaml.Unmarshal(data, report)
}

// downBound is how long an interrupted suite may take to take its lab down.
const downBound = time.Minute

// lab runs the lab's command. What that says goes to a file, too.
func lab(ctx context.Context, args []string, log string, note func(string)) error {
	f, err := os.Create(log)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	cmd := exec.CommandContext(ctx, filepath.Join("bin", "lab"), args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = downBound
	cmd.Stdout = f
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	for lines := bufio.NewReader(io.TeeReader(stderr, f)); ; {
		line, err := lines.ReadString('\n')
		if err != nil {
			return cmd.Wait()
		}
		if !strings.HasPrefix(line, "    ") { // Why a test failed is for the report.
			note(fmt.Sprintf("%.70s", strings.Join(strings.Fields(line), " ")))
		}
	}
}
