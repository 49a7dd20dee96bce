package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/ccmlab/ccmlab/fakecloud/clikit"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/driver"
	"github.com/ccmlab/ccmlab/lab/conformance/driver/protocol"
	"github.com/ccmlab/ccmlab/lab/conformance/profiles"
	"github.com/ccmlab/ccmlab/lab/suite"
)

// executeCommand runs a command line that starts no lab.
func executeCommand(t *testing.T, args ...string) (stdout string, err error) {
	t.Setenv("CCMLAB_HOME", t.TempDir())
	root := newRoot()
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(args)
	err = root.ExecuteContext(t.Context())
	return out.String(), err
}

var conformanceTable = []conformance.Test{
	{ID: "node-a", Profile: conformance.Node, Level: conformance.Core},
	{
		ID: "lb-a", Profile: conformance.LoadBalancer, Level: conformance.Extended,
		Capability: conformance.CapabilityUDP, Needs: []conformance.Feature{conformance.FeatureTargets},
	},
}

func newConformanceFlags(change func(*conformanceFlags)) *conformanceFlags {
	f := &conformanceFlags{
		selection: &selection{},
		opts:      suite.Options{Name: "lab", Cluster: cluster.KindEmbedded},
	}
	change(f)
	return f
}

func TestConformanceFlags(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "cloud.conf")
	require.NoError(t, os.WriteFile(config, []byte("url = {{.CloudURL}}"), 0o600))
	f := newConformanceFlags(func(f *conformanceFlags) {
		f.profiles, f.focus = []string{"node", "LOADBALANCER"}, "a$"
		f.ccm, f.config, f.env = "/bin/true", config, []string{"A={{.Project}}"}
		f.claims, f.unsupported = []string{"udp-services"}, []string{"targets=they are = secret", "node=kubelets do it"}
		f.reportDir = filepath.Join(dir, "new", "reports")
	})
	tests, err := f.completeOptions(conformanceTable, []string{"--kubeconfig={{.Kubeconfig}}"})
	require.NoError(t, err)
	assert.Len(t, tests, 2)
	assert.Equal(t, []conformance.Profile{conformance.Node, conformance.LoadBalancer}, f.opts.Profiles)
	assert.Equal(t, "a$", f.opts.Focus.String())
	assert.Equal(t, []conformance.Capability{conformance.CapabilityUDP}, f.opts.Implementation.Claims)
	assert.Equal(
		t, conformance.Unsupported{
			string(conformance.FeatureTargets): "they are = secret", string(conformance.Node): "kubelets do it",
		}, f.opts.Implementation.Unsupported,
	)
	assert.Equal(t, "/bin/true", f.opts.Program.Path)
	assert.Equal(t, []string{"--kubeconfig={{.Kubeconfig}}"}, f.opts.Program.Args)
	assert.Equal(t, []string{"A={{.Project}}"}, f.opts.Program.Env)
	assert.Equal(t, "url = {{.CloudURL}}", f.opts.Program.ConfigTemplate)
	assert.DirExists(t, f.reportDir)

	f = newConformanceFlags(func(f *conformanceFlags) { f.ccm = "conformance_test.go" })
	_, err = f.completeOptions(conformanceTable, nil)
	require.ErrorContains(t, err, "is not an executable file")
	assert.True(t, filepath.IsAbs(f.opts.Program.Path))
	f = newConformanceFlags(func(*conformanceFlags) {})
	tests, err = f.completeOptions(conformanceTable, nil)
	require.NoError(t, err)
	assert.Len(t, tests, 2)
	assert.Nil(t, f.opts.Program, "our own")
	assert.Nil(t, f.opts.Focus)
}

func TestConformanceDriverFlags(t *testing.T) {
	f := newConformanceFlags(func(f *conformanceFlags) {
		f.driver, f.driverArgs, f.driverEnv = "/bin/true", []string{"{{.ClusterName}}"}, []string{"A={{.CloudURL}}"}
		f.opts.Traffic = true
	})
	_, err := f.completeOptions(conformanceTable, nil)
	require.NoError(t, err)
	assert.Equal(t, &suite.Driver{
		Path: "/bin/true", Args: []string{"{{.ClusterName}}"}, Env: []string{"A={{.CloudURL}}"},
	}, f.opts.Driver)

	t.Setenv(protocol.EnvToken, "secret")
	f = newConformanceFlags(func(f *conformanceFlags) { f.driver = "http://127.0.0.1:9000" })
	_, err = f.completeOptions(conformanceTable, nil)
	require.NoError(t, err)
	want, err := driver.ParseAddress("http://127.0.0.1:9000", "secret")
	require.NoError(t, err)
	assert.Equal(t, want, f.opts.Driver.Address)
}

// All mistakes of a command line are told at once.
func TestConformanceTellsAllMistakes(t *testing.T) {
	_, err := executeCommand(t, strings.Fields(`conformance --name No --cluster minikube --parallel -1
		--profile node,pods,jobs --focus ( --claim quick --unsupported targets --unsupported slow=yes
		--ccm /none --ccm-config /none.conf --ccm-env A={{.B}} -- {{`)...)
	var usage clikit.UsageError
	require.ErrorAs(t, err, &usage)
	for _, want := range []string{
		`lab name "No"`, `--cluster "minikube": want one of embedded, kind, external`, "--parallel -1",
		`no profile "pods": choose from Node, Lifecycle, LoadBalancer`, `no profile "jobs"`,
		"--focus: error parsing regexp", `--unsupported "targets": want NAME=REASON`,
		"/none: no such file", "/none.conf: no such file", `environment "A={{.B}}"`, "argument 1",
	} {
		assert.ErrorContains(t, err, want)
	}
	// What tests are about is that of the tests.
	_, err = newConformanceFlags(func(f *conformanceFlags) {
		f.claims, f.unsupported = []string{"quick"}, []string{"slow=it is"}
	}).completeOptions(conformanceTable, nil)
	require.ErrorContains(t, err, `--claim "quick": no test is about that; capabilities are udp-services`)
	require.ErrorContains(t, err, `--unsupported "slow": no test needs that; features, capabilities and profiles are `+
		"LoadBalancer, Node, targets, udp-services")
}

// Each command line is refused before a lab is started.
func TestConformanceUsageErrors(t *testing.T) {
	const external = "--cluster external --kubeconfig x "
	tooLong := strings.Repeat("a", 39)
	for line, want := range map[string]string{
		"lst":                         `unexpected argument "lst"`,
		"--ccm /bin/true x -- y":      `unexpected argument "x"`,
		"-- list":                     "arguments after -- are for --ccm PATH",
		"list --profile pods":         `there is no profile "pods"`,
		"list --focus ^$":             "matches no test",
		"-o xml":                      `--output "xml": want one of`,
		"--profile Node --focus ^lb-": "matches no test of the profiles asked for; `lab conformance list` prints all tests",
		"--ccm-names provider-id=x":   "are for --ccm PATH",
		"--ccm-env A=b":               "are for --ccm PATH",

		"--ccm /bin/true --ccm-names cloud=x":        `--ccm-names "cloud=x": want KIND=NAME`,
		"--ccm /bin/true --ccm-config " + os.DevNull: "is empty",

		"--driver /none": "/none: no such file",
		"--driver /none --driver-arg {{.Cluster}}":           "the fields are .Kubeconfig",
		"--driver http://10.0.0.1:9000":                      "not this machine's own",
		"--driver unix:///run/nebula --driver-env A=b":       "unix:///run/nebula runs already",
		"--driver unix:///run/nebula --labs 2":               "--labs 2: unix:///run/nebula is one driver",
		"--driver /bin/true --ccm-names cluster=x":           "--ccm-build and --ccm-names are for the lab's own cloud",
		"--driver-arg -v":                                    "are for --driver PROGRAM",
		"--claim udp-services --unsupported udp-services=no": "udp-services cannot be both claimed and unsupported",

		"--cluster external":                      "--cluster external needs --kubeconfig FILE",
		external + "--rbac /none":                 "--rbac is for clusters that the suite makes",
		external + "--labs 2":                     "--labs 2: a cluster of --cluster external can have one CCM",
		external + "--keep":                       "--keep: nothing stays",
		external + "--traffic --without-machines": "--traffic and --without-machines",
		"--kubeconfig x":                          "--kubeconfig is for --cluster external, and --traffic for that or --driver",

		"--rbac /none":                     "--rbac /none: open",
		"--workload x":                     "--workload: nothing of an image runs on --cluster embedded",
		"--bounds-factor 0.5":              "--bounds-factor 0.5: want 1 to 100, or 0 for the default; --bound shortens",
		"--labs -1":                        "--labs -1",
		"--labs 2 --name " + tooLong:       `lab name "` + tooLong + `-2"`,
		"--report-dir conformance_test.go": "--report-dir conformance_test.go: ",
		"--budget conformance_test.go":     "; `lab conformance budget` prints one to edit",
		"--budget /none":                   "--budget: open /none",
	} {
		_, err := executeCommand(t, append([]string{"conformance"}, strings.Fields(line)...)...)
		var usage clikit.UsageError
		if assert.ErrorAs(t, err, &usage, line) {
			assert.ErrorContains(t, err, want)
		}
	}
}

// Several labs share the tests only if there are enough tests to share.
func TestConformanceLabs(t *testing.T) {
	tests := func(n int) []conformance.Test {
		all := slices.Repeat([]conformance.Test{{ID: "beside"}}, 50)
		return append(all, slices.Repeat([]conformance.Test{{ID: "alone", Alone: true}}, n)...)
	}
	three := []string{"lab", "lab-2", "lab-3"}
	for name, tc := range map[string]struct {
		change func(*suite.Options)
		alone  int
		want   []string
	}{
		"all":           {func(*suite.Options) {}, 40, three},
		"one":           {func(*suite.Options) {}, 1, three[:1]},
		"some":          {func(*suite.Options) {}, 6, three[:2]},
		"as asked":      {func(o *suite.Options) { o.Labs = 2 }, 40, three[:2]},
		"kept":          {func(o *suite.Options) { o.Keep = true }, 40, three[:1]},
		"kept as asked": {func(o *suite.Options) { o.Keep, o.Labs = true, 3 }, 40, three},
		"in containers": {func(o *suite.Options) { o.Cluster = cluster.KindKind }, 40, three[:1]},
		"somebody's":    {func(o *suite.Options) { o.Cluster = cluster.KindExternal }, 40, three[:1]},
		"a driver's":    {func(o *suite.Options) { o.Driver = &suite.Driver{} }, 40, three[:1]},
	} {
		o := newConformanceFlags(func(*conformanceFlags) {}).opts
		tc.change(&o)
		assert.Equal(t, tc.want, o.Names(tests(tc.alone)), name)
	}
}

func TestDescribeLabsAndDownCommands(t *testing.T) {
	assert.Equal(t, "Lab a", describeLabs([]string{"a"}))
	assert.Equal(t, "2 labs, a, a-2", describeLabs([]string{"a", "a-2"}))
	assert.Equal(t, invokedAs()+" down --name a; "+invokedAs()+" down --name a-2", downCommands([]string{"a", "a-2"}))
}

func TestConformanceList(t *testing.T) {
	table, err := executeCommand(t, "conformance", "list")
	require.NoError(t, err)
	asJSON, err := executeCommand(t, "conformance", "list", "-o", "json")
	require.NoError(t, err)
	var list []listedTest
	require.NoError(t, json.Unmarshal([]byte(asJSON), &list))
	require.Len(t, list, len(profiles.All()))
	ordered := profiles.All()
	slices.SortStableFunc(ordered, func(a, b conformance.Test) int {
		return cmp.Compare(slices.Index(conformance.Profiles, a.Profile), slices.Index(conformance.Profiles, b.Profile))
	})
	for i, test := range ordered {
		assert.Equal(
			t, listedTest{
				test.ID, test.Profile, test.Level, test.Capability, test.Needs, test.BuildsOn, test.Requires, test.Source,
			},
			list[i],
		)
		for _, what := range []string{test.ID, string(test.Capability), test.Requires, test.Source} {
			assert.Contains(t, table, what)
		}
	}
	asYAML, err := executeCommand(t, "conformance", "list", "--profile", "lifecycle", "-o", "yaml")
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal([]byte(asYAML), &list))
	require.NotEmpty(t, list)
	for _, test := range list {
		assert.Equal(t, conformance.Lifecycle, test.Profile)
	}
}

func TestPrintReport(t *testing.T) {
	r := &conformance.Report{
		Implementation: conformance.Identity{Name: "fakecloud"},
		Cluster:        conformance.Identity{Name: "embedded", Version: "v1.36.3"}, Seconds: 61.4, Focus: "a",
		Crashes: []string{"first", "panic: oh\ngoroutine 1"},
		Profiles: []conformance.ProfileReport{
			{Name: conformance.Node, Core: &conformance.Summary{
				Statistics: conformance.Statistics{Passed: 13, Failed: 1}, FailedTests: []string{"node-a"},
			}},
			{
				Name: conformance.LoadBalancer,
				Core: &conformance.Summary{Statistics: conformance.Statistics{Skipped: 2}},
				Extended: &conformance.Summary{
					Statistics:  conformance.Statistics{Passed: 6, Failed: 2, Skipped: 1, Blocked: 2},
					FailedTests: []string{"lb-a"}, NotRequired: []string{"lb-b"},
				},
			},
		},
		BoundsFactor: 2.5,
		Tests: []conformance.TestReport{
			{ID: "lb-c", Result: conformance.Blocked, BlockedBy: "lb-a"},
			{ID: "lb-d", Result: conformance.Blocked, BlockedBy: "lb-a"},
		},
	}
	var out strings.Builder
	require.NoError(t, printReport(&out, r))
	assert.Equal(t, `
PROFILE        CORE    EXTENDED                           SKIPPED
Node           13/14   -                                  0
LoadBalancer   -       6/10 (2 blocked, 1 not required)   3

failed, not required: lb-b
failed: node-a, lb-a
blocked by lb-a: lb-c, lb-d
the CCM ended by itself, times: 2; the last time it said:
    panic: oh
    goroutine 1
fakecloud has not passed (of what "a" matches; core tests skipped: 2; with 2.5 times the time) on embedded v1.36.3, 61 s
`, out.String())
}

func TestConformanceBudget(t *testing.T) {
	text, err := executeCommand(t, "conformance", "budget")
	require.NoError(t, err)
	assert.Contains(t, text, "150:\n  initialise: # per Node\n    node: 0.4\n")
	file := filepath.Join(t.TempDir(), "budget.yaml")
	require.NoError(t, os.WriteFile(file, []byte(strings.Replace(text, "node: 0.4", "node: 7", 1)), 0o600))
	f := newConformanceFlags(func(f *conformanceFlags) { f.budget = file })
	_, err = f.completeOptions(conformanceTable, nil)
	require.NoError(t, err)
	want := conformance.DefaultLimits()
	want[150][conformance.PhaseInitialize][conformance.ControllerNode] = 7
	assert.Equal(t, want, f.opts.Limits)
}

func TestPrintBudget(t *testing.T) {
	spent := func(nodes int, phase conformance.Phase, per string, each, limit float64) (rows []conformance.Spent) {
		for _, c := range conformance.Controllers {
			rows = append(
				rows, conformance.Spent{Nodes: nodes, Phase: phase, Controller: c, Per: per, Each: each, Limit: limit},
			)
		}
		return rows
	}
	r := &conformance.Report{Implementation: conformance.Identity{Name: "nebula"}, Budget: append(
		spent(150, conformance.PhaseInitialize, "Node", 0.333, 0.4),
		spent(1000, conformance.PhaseCreated, "Service", 1200, 20)...)}
	var out strings.Builder
	require.NoError(t, printReport(&out, r))
	assert.Contains(t, out.String(), `
BUDGET, calls/limit            PER       node        service     route       other
150 Nodes, initialise          Node      0.333/0.4   0.333/0.4   0.333/0.4   0.333/0.4
1000 Nodes, services-created   Service   1200/20 !   1200/20 !   1200/20 !   1200/20 !
`)
}

// The example that is there to be copied needs nothing: neither a cloud nor a lab.
func TestConformanceDriverCheckOfTheExample(t *testing.T) {
	example := filepath.Join(t.TempDir(), "example-driver")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", example, ".")
	build.Dir = filepath.Join("..", "conformance", "driver", "example")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	printed, err := executeCommand(t, "conformance", "driver", "check", example, "-o", "json")
	require.NoError(t, err, printed)
	var tried suite.TriedDriver
	require.NoError(t, json.Unmarshal([]byte(printed), &tried))
	assert.Equal(t, "example", tried.Driver.Name)
	require.Len(t, tried.Calls, 9)
	for _, call := range tried.Calls {
		assert.NotEmpty(t, call.Thing, call.Call)
		assert.Zero(t, call.Meant, "a rule of the example hides another: %s", call.Call)
	}
}

// What `driver new` writes can be built and started, and says itself what is to be written first.
func TestConformanceDriverNew(t *testing.T) {
	for language, program := range map[string]string{"go": "driver", "python": "driver.py"} {
		t.Run(language, func(t *testing.T) {
			if _, err := exec.LookPath(language + map[string]string{"python": "3"}[language]); err != nil {
				t.Skip(err)
			}
			folder := filepath.Join(t.TempDir(), "Milky Way-driver")
			printed, err := executeCommand(t, "conformance", "driver", "new", "--language", language, folder)
			require.NoError(t, err, printed)
			assert.Contains(t, printed, " conformance driver check "+filepath.Join(folder, program))
			_, err = executeCommand(t, "conformance", "driver", "new", "--language", language, folder)
			require.ErrorContains(t, err, "has files in it")
			if language == "go" {
				for _, args := range [][]string{{"vet", "."}, {"build", "-o", program, "."}} {
					build := exec.CommandContext(t.Context(), "go", args...)
					build.Dir = folder
					out, err := build.CombinedOutput()
					require.NoError(t, err, "%s", out)
				}
			}
			_, err = executeCommand(t, "conformance", "driver", "check", filepath.Join(folder, program))
			require.ErrorContains(t, err, "is not written yet")
			require.ErrorContains(t, err, "instance: the driver, POST /v1/instances", "it greets, and its templates are right")
			source, err := os.ReadFile(filepath.Join(folder, map[string]string{"go": "main.go", "python": program}[language]))
			require.NoError(t, err)
			assert.Contains(t, string(source), `"name": "milky-way"`)
		})
	}
	_, err := executeCommand(t, "conformance", "driver", "new", "--language", "cobol", t.TempDir())
	require.ErrorContains(t, err, `--language "cobol": want one of go, python`)
}

// A driver that starts as a copy of the example needs nothing but Go's own packages.
func TestExampleDriverNeedsNoModule(t *testing.T) {
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".")
	list.Dir = filepath.Join("..", "conformance", "driver", "example")
	out, err := list.Output()
	require.NoError(t, err)
	assert.Equal(t, "github.com/ccmlab/ccmlab/lab/conformance/driver/example", strings.TrimSpace(string(out)))
}
