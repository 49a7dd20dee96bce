// minors tests our CCM on the other Kubernetes minors that it supports. For each that
// lab/kube/minor pins it builds the control plane into bin/kube-MINOR, and runs the conformance
// suite on that. The suite runs without machines, because their kubelets would be newer than the
// API server. `make test-minors` calls it, from the root of a clone.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/ccmlab/ccmlab/lab/build"
	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/ui"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "minors:", err)
		os.Exit(1)
	}
}

// run tests the named minors, or all. It goes on with the next minor when one fails. Arguments
// after -- are passed to the suite.
func run(names []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	minors, err := build.Minors(".")
	if err != nil {
		return err
	}
	var args []string
	if dash := slices.Index(names, "--"); dash >= 0 {
		names, args = names[:dash], names[dash+1:]
	}
	known := slices.Sorted(maps.Keys(minors))
	if len(names) == 0 {
		names = known
	}
	steps := ui.New(os.Stderr, false)
	var problems []error
	for _, name := range names {
		m, ok := minors[name]
		if !ok {
			return fmt.Errorf("there is no minor %q: choose from %s", name, strings.Join(known, ", "))
		}
		if err := testMinor(ctx, steps, name, m, args); err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", name, err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(problems...)
}

// testMinor builds the control plane of a minor and runs the suite on it.
func testMinor(ctx context.Context, steps *ui.Steps, name string, m build.Module, args []string) error {
	bin, err := filepath.Abs(filepath.Join("bin", "kube-"+name))
	if err != nil {
		return err
	}
	if err := steps.Do("build "+name, func(note func(string)) (string, error) {
		result, err := m.BuildStep(ctx, bin, note)
		if err == nil {
			err = linkSharedPrograms(bin)
		}
		return result, err
	}); err != nil {
		return err
	}
	dir := filepath.Join("bin", "conformance-"+name)
	suiteErr := runSuite(ctx, bin, append([]string{"conformance", "--without-machines", "--report-dir", dir}, args...))
	return cmp.Or(suiteErr, checkVersion(m, filepath.Join(dir, "report.yaml")))
}

// linkSharedPrograms links the programs into bin that need not be of its minor: etcd is not
// Kubernetes, and kubectl may be one minor newer than the API server.
func linkSharedPrograms(bin string) error {
	for _, program := range []string{"etcd", "kubectl"} {
		link := filepath.Join(bin, program)
		if err := os.Remove(link); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if err := os.Symlink(filepath.Join("..", "kube", program), link); err != nil {
			return err
		}
	}
	return nil
}

// downBound is how long an interrupted suite may take to take its lab down.
const downBound = time.Minute

// runSuite runs the lab's command with the programs in bin.
func runSuite(ctx context.Context, bin string, args []string) error {
	cmd := exec.CommandContext(ctx, filepath.Join("bin", "lab"), args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = downBound
	cmd.Env = append(os.Environ(), "LAB_KUBE_BIN="+bin)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd.Run()
}

// checkVersion is an error if the suite ran on another version of Kubernetes than the module's:
// then its report says nothing about the minor.
func checkVersion(m build.Module, file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var report conformance.Report
	if err := yaml.Unmarshal(data, &report); err != nil {
		return err
	}
	want, err := m.Version()
	if err == nil && report.Cluster.Version != want {
		err = fmt.Errorf("the suite ran on Kubernetes %s, want %s", report.Cluster.Version, want)
	}
	return err
}
