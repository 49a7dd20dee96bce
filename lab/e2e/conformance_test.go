package e2e

// The conformance suite as its users run it: the command, real clusters, real
// CCMs. What the suite finds in our CCM is for `make conformance`; here are the
// ways to run it.

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/ccmlab/ccmlab/lab/conformance"
)

// runSuite runs the command with a lab of its own, of which nothing is left.
func runSuite(t *testing.T, args ...string) (report conformance.Report, code int) {
	f := newFixture(t)
	dir := t.TempDir()
	args = append([]string{"conformance", "--name", f.name + "-suite", "--report-dir", dir}, args...)
	out, err := f.try(args...)
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	} else {
		require.NoError(t, err)
	}
	t.Logf("%s", out)
	assert.NoDirExists(t, filepath.Join(f.home, f.name+"-suite"))
	data, err := os.ReadFile(filepath.Join(dir, "report.yaml"))
	require.NoError(t, err)
	require.NoError(t, yaml.UnmarshalStrict(data, &report))
	assert.FileExists(t, filepath.Join(dir, "junit.xml"))
	return report, code
}

// The suite knows no cloud: with one that is nothing but records, in the memory of a driver that shares no code with
// this repository, our CCM passes what it can be asked of core. What is compared of balancers is what they have.
func TestConformanceOfAnotherCloud(t *testing.T) {
	report, code := runSuite(t, "--driver", buildExampleDriver(t), "--ccm", ownCCM(t),
		"--focus", "^(node-|lb-|lifecycle-(stopped|doubt-404))", "--required-only",
		"--unsupported", "node-ports=nobody compares them")
	assert.Zero(t, code)
	assert.Equal(t, "example", report.Implementation.Name)
	passed := map[conformance.Profile]int{}
	for _, p := range report.Profiles {
		if p.Core != nil { // Not every profile has core tests.
			assert.Empty(t, p.Core.FailedTests, p.Name)
			passed[p.Name] = p.Core.Statistics.Passed
		}
	}
	for _, p := range []conformance.Profile{conformance.Node, conformance.Lifecycle, conformance.LoadBalancer} {
		assert.NotZero(t, passed[p], p)
	}
	for _, test := range report.Tests {
		assert.Equal(t, test.Result == conformance.Skipped, slices.ContainsFunc(test.Reasons, func(why string) bool {
			return why != ""
		}),
			"%s is %s: %v", test.ID, test.Result, test.Reasons)
	}
}

// ownCCM is the path of our CCM, built with the lab.
func ownCCM(t *testing.T) string {
	path, err := filepath.Abs("../../bin/ccm")
	require.NoError(t, err)
	return path
}

// buildExampleDriver builds the driver that is there to be copied, and returns the program's path.
func buildExampleDriver(t *testing.T) string {
	example := filepath.Join(t.TempDir(), "example-driver")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", example, ".")
	build.Dir = filepath.Join("..", "conformance", "driver", "example")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return example
}

// A driver may be of a cloud whose instances become Nodes, and whose balancers carry traffic: here of our own, by a
// program that has nothing but the protocol with the suite in common. The suite's proxy makes the faults.
func TestConformanceOfADriver(t *testing.T) {
	tests := []string{
		"node-taint-lifted", "node-provider-id", "lb-created", "lb-deleted", "lb-traffic-reaches-pods",
		"lb-create-retried", "lb-quiet", "lifecycle-doubt-503",
	}
	report, code := runSuite(t, "--driver", os.Args[0], "--driver-env", driverEnv+"={{.ClusterName}}",
		"--driver-env", "FAKECLOUD_URL={{.CloudURL}}", "--driver-env", "FAKECLOUD_TOKEN_FILE={{.TokenFile}}",
		"--driver-env", "FAKECLOUD_CA_FILE={{.CAFile}}", "--traffic", "--ccm", ownCCM(t),
		"--focus", "^("+strings.Join(tests, "|")+")$")
	assert.Zero(t, code)
	assert.Equal(t, "a program", report.Implementation.Name)
	passed := []string{}
	for _, test := range report.Tests {
		if assert.Equal(t, conformance.Passed, test.Result, "%s: %v", test.ID, test.Reasons) {
			passed = append(passed, test.ID)
		}
	}
	assert.ElementsMatch(t, tests, passed)
}

// A program that is no CCM fails, at once and with a report, which says that a run that ends at the first failure is
// not whole.
func TestConformanceFailsFast(t *testing.T) {
	report, code := runSuite(t, "--profile", "node", "--fail-fast", "--ccm", "/bin/false")
	assert.Equal(t, 1, code)
	assert.NotEmpty(t, report.Crashes)
	assert.Contains(t, report.Unfinished, "at the first")
	assert.True(t, slices.ContainsFunc(report.Tests, func(r conformance.TestReport) bool {
		return r.Required && r.Result == conformance.Failed
	}))
}
