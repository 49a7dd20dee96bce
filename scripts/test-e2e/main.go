// test-e2e runs Kubernetes' own end-to-end tests, unmodified, against a lab on kind: by default
// those of load balancers. It builds the tests in the version that lab/kube pins and the image of
// their pods, brings up a lab with three workers, and takes that down at the end. The tests' output
// and a JUnit report are in bin/test-e2e. `make test-e2e` calls it, from the root of a clone.
//
// The exit code is that of the tests.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ccmlab/ccmlab/lab/build"
	"github.com/ccmlab/ccmlab/lab/ui"
)

const (
	labProgram     = "bin/lab"
	kubectlProgram = "bin/kube/kubectl"
	// testsDir has the tests' programs.
	testsDir = "bin/kube-e2e"
	// reportDir gets what a run of the tests leaves.
	reportDir = "bin/test-e2e"
	// workers is how many nodes the tests want beside the control plane; some are skipped with fewer.
	workers = 3
)

// options are the flags.
type options struct {
	focus, skip string
	procs       int
	timeout     time.Duration
	lab         string
	keep        bool
}

func main() {
	var o options
	flag.StringVar(&o.focus, "focus", `\[sig-network\] LoadBalancers`, "run the tests whose names match")
	flag.StringVar(&o.skip, "skip", "", "leave out the tests whose names match")
	flag.IntVar(&o.procs, "procs", 4, "how many tests run at a time")
	flag.DurationVar(&o.timeout, "timeout", time.Hour, "how long all tests may take together")
	flag.StringVar(&o.lab, "lab", "", "the name of a lab on kind that is up, and stays up (default: one of its own)")
	flag.BoolVar(&o.keep, "keep", false, "leave the lab up, for a look at it; then: -lab "+ownLab)
	flag.Parse()
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "test-e2e:", err)
		var failed testsFailedError
		if errors.As(err, &failed) {
			os.Exit(int(failed))
		}
		os.Exit(1)
	}
}

// testsFailedError is the exit code of tests that have run, and failed.
type testsFailedError int

func (e testsFailedError) Error() string {
	return fmt.Sprintf("the tests failed (exit code %d)", int(e))
}

// ownLab is the lab that is brought up for the tests.
const ownLab = "e2e"

func run(o options) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	steps := ui.New(os.Stderr, false)
	if err := buildTests(ctx, steps); err != nil {
		return err
	}
	if err := buildImage(ctx, steps); err != nil {
		return err
	}
	lab := o.lab
	if lab == "" {
		lab = ownLab
		if !o.keep {
			defer func() { err = errors.Join(err, runLab(context.WithoutCancel(ctx), "down", "--name", lab)) }()
		}
		if err := runLab(
			ctx, "up", "--cluster", "kind", "--name", lab, "--nodes", strconv.Itoa(workers),
		); err != nil {
			return fmt.Errorf("bring up the lab: %w", err)
		}
	}
	out, err := exec.CommandContext(ctx, labProgram, "kubeconfig", "--name", lab).Output()
	if err != nil {
		return fmt.Errorf("look for the lab %s: %w", lab, err)
	}
	kubeconfig := strings.TrimSpace(string(out))
	nodes, err := nodeContainers(ctx, lab)
	if err != nil {
		return err
	}
	if err := loadImage(ctx, steps, nodes); err != nil {
		return err
	}
	if err := rejectUnserved(ctx, kubeconfig, nodes); err != nil {
		return err
	}
	leave, err := enterFromOutside(ctx, lab, nodes[0])
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, leave()) }()
	schedulable, err := countWorkers(ctx, kubeconfig)
	if err != nil {
		return err
	}
	return runTests(ctx, o, kubeconfig, schedulable)
}

// buildTests builds the tests and what runs them.
func buildTests(ctx context.Context, steps *ui.Steps) error {
	return steps.Do("build tests", func(note func(string)) (string, error) {
		m, err := build.EndToEndTests(".")
		if err != nil {
			return "", err
		}
		return m.BuildStep(ctx, testsDir, note)
	})
}

// downBound is how long an interrupted command of the lab may take to clean up.
const downBound = 2 * time.Minute

func runLab(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, labProgram, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = downBound
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	return cmd.Run()
}

// runTests runs the tests with ginkgo. Their output is in a file; each result is printed when a
// test has ended.
func runTests(ctx context.Context, o options, kubeconfig string, schedulable int) error {
	dir, err := filepath.Abs(reportDir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	kubectl, err := filepath.Abs(kubectlProgram)
	if err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(dir, "output.txt"))
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	args := []string{
		"-v", "--no-color", "--procs", strconv.Itoa(o.procs), "--timeout", o.timeout.String(), "--focus", o.focus,
	}
	if o.skip != "" {
		args = append(args, "--skip", o.skip)
	}
	args = append(args, filepath.Join(testsDir, "e2e.test"), "--",
		// The provider of clusters about whose cloud the tests know nothing. Tests of features of
		// Kubernetes are not skipped there, those of another cloud's are.
		"--provider=skeleton", "--kubeconfig="+kubeconfig, "--kubectl-path="+kubectl, "--report-dir="+dir,
		// Without the number only the first of the parallel processes counts the nodes, and in others
		// tests that want two are skipped.
		"--num-nodes="+strconv.Itoa(schedulable))
	cmd := exec.CommandContext(ctx, filepath.Join(testsDir, "ginkgo"), args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = downBound
	results := newResultPrinter(os.Stdout)
	cmd.Stdout = io.MultiWriter(log, results)
	cmd.Stderr = cmd.Stdout
	err = cmd.Run()
	results.Summarize()
	_, _ = fmt.Fprintf(os.Stdout, "The tests' output is in %s, the JUnit report beside it.\n", log.Name())
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() > 0 {
		return testsFailedError(exit.ExitCode())
	}
	return err
}
