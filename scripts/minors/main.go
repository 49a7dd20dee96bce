// minors says whether our CCM behaves on the other Kubernetes minors that it
// supports: of each that lab/kube/minor pins it builds the control plane into
// bin/kube-MINOR, and runs the conformance suite on that, without machines,
// whose kubelets would be newer than their API server. `make test-minors` calls
// it, from the root of a clone.
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

// run goes on with the next minor when one fails. What comes after -- is for the
// suite.
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
		if err := test(ctx, steps, name, m, args); err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", name, err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(problems...)
}

func test(ctx context.Context, steps *ui.Steps, name string, m build.Module, args []string) error {
	bin, err := filepath.Abs(filepath.Join("bin", "kube-"+name))
	if err != nil {
		return err
	}
	if err := steps.Do("build "+name, func(note func(string)) (string, error) {
		built, err := m.Build(ctx, bin, note)
		if err != nil {
			return "", err
		}
		if !built {
			return bin + " is up to date", borrow(bin)
		}
		return fmt.Sprintf("%d programs in %s", len(m.Mains), bin), borrow(bin)
	}); err != nil {
		return err
	}
	dir := filepath.Join("bin", "conformance-"+name)
	suite := suite(ctx, bin, append([]string{"conformance", "--without-machines", "--report-dir", dir}, args...))
	return cmp.Or(suite, onVersion(m, filepath.Join(dir, "report.yaml")))
}

// borrow has bin hold what need not be of its minor: etcd is not Kubernetes, and
// kubectl may be one minor newer than the API server.
func borrow(bin string) error {
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

func suite(ctx context.Context, bin string, args []string) error {
	cmd := exec.CommandContext(ctx, filepath.Join("bin", "lab"), args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = downBound
	cmd.Env = append(os.Environ(), "LAB_KUBE_BIN="+bin)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd.Run()
}

// onVersion is an error if the suite ran on another Kubernetes than it was to:
// then what it says is of no worth here.
func onVersion(m build.Module, file string) error {
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
