package lab

// The conformance suite on labs of its own: a control plane and two machines each,
// no CCM and no demo. The suite runs the CCM itself. Several labs share the tests.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/cluster/external"
	"github.com/ccmlab/ccmlab/lab/cluster/local"
	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/inmemory"
	"github.com/ccmlab/ccmlab/lab/conformance/onfakecloud"
	"github.com/ccmlab/ccmlab/lab/conformance/profiles"
	"github.com/ccmlab/ccmlab/lab/state"
	"github.com/ccmlab/ccmlab/lab/ui"
)

// Implementations that the suite has a driver for.
const (
	// ImplementationFakecloud is fakecloud, with its CCM or another one.
	ImplementationFakecloud = "fakecloud"
	// ImplementationInMemory is a cloud in the suite's own memory, with a
	// minimal CCM: it shows that the suite takes any.
	ImplementationInMemory = "in-memory"
)

// Implementations are all of them, the default first.
var Implementations = []string{ImplementationFakecloud, ImplementationInMemory}

// ConformanceOptions of Conformance.
type ConformanceOptions struct {
	// Name is that of the lab, and the beginning of the others' names.
	Name string
	// Labs is how many labs share the tests; 0 is as many as they are worth.
	Labs int
	// Cluster is the kind of cluster; "" is Embedded.
	Cluster string
	// Kubeconfig is for External: whose cluster it is.
	Kubeconfig string
	// Traffic says of External that its Nodes that wait for a CCM are the suite's,
	// and that their ports are reached from this machine.
	Traffic bool
	// Workload is the image of pods that answer; "" is the lab's own.
	Workload       string
	Implementation string // "" is ImplementationFakecloud.
	// Program is the CCM; nil is the lab's own.
	Program *conformance.Program
	// CCMPath is another build of the lab's own CCM, run in its place.
	CCMPath     string
	Claims      []conformance.Feature
	Unsupported map[conformance.Feature]string
	Profiles    []conformance.Profile
	Focus       *regexp.Regexp
	// RequiredOnly skips tests of capabilities that are not claimed.
	RequiredOnly bool
	// WithoutMachines has no kubelets: what needs machines or traffic is
	// skipped. A control plane of another minor may have none that fit.
	WithoutMachines bool
	// Attempts is as in conformance.Implementation; 0 is its default.
	Attempts int
	// Bound is the longest that any test may take; 0 is what each allows.
	Bound    time.Duration
	Parallel int
	// Limits are Budget's; nil is conformance.DefaultLimits.
	Limits   conformance.Limits
	Observer func(conformance.TestReport)
	// Bundle is a file to run from instead of what was built here.
	Bundle string
	// Keep leaves the lab up.
	Keep bool

	// attend, unless nil, is called before the suite runs on a lab; leave when it
	// has. step is told what the suite does, as conformance.Options.Step is.
	attend func(*Lab) (leave func())
	step   func(what string, failed bool)
}

// OwnClaims are the capabilities of the lab's own CCM.
var OwnClaims = []conformance.Feature{
	conformance.CapabilityForeignNodes, conformance.CapabilityProvidedIP, conformance.CapabilityExplains,
	conformance.CapabilityUDP, conformance.CapabilitySourceRanges, conformance.CapabilityAffinity,
	conformance.CapabilityLocalTraffic, conformance.CapabilityRename, conformance.CapabilityQuiet,
	conformance.CapabilityRepair, conformance.CapabilityDoubtfulBalancers, conformance.CapabilityLoadBalancerIP,
	conformance.CapabilityPromptInitialization, conformance.CapabilityPromptRemoval, conformance.CapabilityMassDeletionGuard,
	conformance.CapabilityPodRoutes, conformance.CapabilityHA, conformance.CapabilityCallBudget,
	conformance.CapabilityRenewedCredentials, conformance.CapabilityOwnProject, conformance.CapabilityDoubtfulInstances,
}

// ownArgs are what the lab's own CCM is given for the suite, over what it has in any
// lab.
var ownArgs = []string{
	"--bind-address={{.Address}}", "--secure-port={{.Port}}", // Each replica has its own.
	"--node-monitor-period=1s", // More often: less to wait for.
	// Shorter than the budget's rest, which is to see what that costs.
	"--node-status-update-frequency=10s",
	// Longer than in other labs: a leader that cannot renew its lease in time ends,
	// and on a machine that several suites share an API server was seen to be silent
	// for 5 s. Only a replica that takes over waits for it: the suite gives it back.
	"--leader-elect-lease-duration=10s", "--leader-elect-renew-deadline=8s", "--leader-elect-retry-period=1s",
	// The cloud has routes, as records, though loopback needs none.
	"--configure-cloud-routes=true", "--allocate-node-cidrs=true", "--cluster-cidr={{.ClusterCIDR}}", "--route-reconciliation-period=1s",
}

// noise is what upstream's route controller says of each Node each time.
var noise = regexp.MustCompile(`route_controller\.go:\d+\] (action for Node|set node .* was canceled)`)

// conformanceNodes run the pods that traffic goes to.
const conformanceNodes = 2

const (
	// mostLabs is beyond what two cores have to wait for.
	mostLabs = 3
	// aloneEach is how many tests that run alone make another lab worth its start.
	aloneEach = 5
	// workload is built with the lab.
	workload = "ccmlab/hello:dev"
)

// Tests are those that were asked for.
func (o ConformanceOptions) Tests() []conformance.Test {
	return conformance.Select(profiles.All(), o.Profiles, o.Focus)
}

// Names are those of the labs that share these tests.
func (o ConformanceOptions) Names(tests []conformance.Test) []string {
	labs := o.Labs
	if labs == 0 {
		labs = o.worth(tests)
	}
	names := []string{o.Name}
	for n := 2; n <= labs; n++ {
		names = append(names, fmt.Sprintf("%s-%d", o.Name, n))
	}
	return names
}

// worth is how many labs the tests are worth. Only those that run alone take
// longer on one, and only embedded ones are cheap.
func (o ConformanceOptions) worth(tests []conformance.Test) int {
	if cmp.Or(o.Cluster, Embedded) != Embedded || o.Implementation == ImplementationInMemory || o.Keep {
		return 1
	}
	alone := 0
	for _, t := range tests {
		if t.Alone {
			alone++
		}
	}
	return min(mostLabs, 1+alone/aloneEach)
}

// Conformance brings labs up, runs the suite on them, and takes them down. An
// error means that the suite could not be run; what it found is in the report,
// which there is also when ctx ends early.
func Conformance(ctx context.Context, o ConformanceOptions, steps *ui.Steps) (report *conformance.Report, err error) {
	if o.Program != nil {
		if err := o.Program.Check(); err != nil {
			return nil, err
		}
	}
	tests := o.Tests()
	names := o.Names(tests)
	for _, name := range names {
		if _, err := state.Open(name); !errors.Is(err, state.ErrNone) {
			return nil, errors.Join(fmt.Errorf("there is a lab %q already; the suite wants one of its own: give another --name, or `lab down --name %s`", name, name), err)
		}
	}
	if o.Cluster == External {
		tidy, err := external.ForSuite(ctx, o.Kubeconfig, o.Traffic)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, tidy(context.WithoutCancel(ctx))) }()
	}
	return o.share(ctx, conformance.NewQueue(tests), names, steps)
}

// share has labs share the tests. As long as all tests have run, what became of a
// lab is worth a line and no error.
func (o ConformanceOptions) share(ctx context.Context, queue *conformance.Queue, names []string, steps *ui.Steps) (*conformance.Report, error) {
	reports, errs, downs := make([]*conformance.Report, len(names)), make([]error, len(names)), make([]error, len(names))
	var running sync.WaitGroup
	queue.Expect(len(names))
	shown := make(chan struct{})
	for i, name := range names {
		// One lab's steps are enough to look at, and tests come after them.
		seen, up := ui.Discard(), func() { <-shown }
		if i == 0 {
			seen, up = steps, func() { close(shown) }
		}
		running.Go(func() { reports[i], errs[i], downs[i] = o.on(ctx, name, queue, seen, up) })
	}
	running.Wait()
	down := errors.Join(downs...)
	if len(names) == 1 {
		return reports[0], errors.Join(errs[0], down)
	}
	report, err := queue.Merge(reports)
	if err != nil || report.Unfinished != "" {
		return report, errors.Join(append(errs, err, down)...)
	}
	for i, err := range errs {
		if err != nil {
			steps.Say("   Lab %s did not take part to the end, and others ran its tests: %v", names[i], err)
		}
	}
	return report, down
}

// on runs what the queue has for it on a lab of this name. isUp is called when that
// is up, or will not be. What went wrong when it was taken down is an error of its
// own.
func (o ConformanceOptions) on(ctx context.Context, name string, queue *conformance.Queue, steps *ui.Steps, isUp func()) (report *conformance.Report, err, downErr error) {
	up := Options{
		Name: name, Cluster: cmp.Or(o.Cluster, Embedded), Kubeconfig: o.Kubeconfig,
		Nodes: conformanceNodes, WithoutCCM: true, WithoutDemo: true, Bundle: o.Bundle, Fleeting: !o.Keep,
	}
	switch {
	case o.Cluster == External:
		up.Nodes = 0 // It has those that it has.
	case o.Implementation == ImplementationInMemory || o.WithoutMachines:
		up.Nodes = NoNodes
	}
	l, err := Up(ctx, up, steps)
	isUp()
	if err != nil {
		queue.Missing()
		return nil, err, nil
	}
	if !o.Keep {
		defer func() { _, downErr = Down(context.WithoutCancel(ctx), name) }()
	}
	if report, err = l.conformance(ctx, o, queue); report == nil {
		queue.Missing()
	}
	return report, err, nil
}

func (l *Lab) conformance(ctx context.Context, o ConformanceOptions, queue *conformance.Queue) (*conformance.Report, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", l.Cluster.Kubeconfig())
	if err != nil {
		return nil, err
	}
	under, closeDriver, err := l.implementation(o, cfg)
	if err != nil {
		return nil, err
	}
	under.Claims = append(under.Claims, o.Claims...)
	under.Attempts = cmp.Or(o.Attempts, under.Attempts)
	if under.Unsupported == nil {
		under.Unsupported = map[conformance.Feature]string{}
	}
	maps.Copy(under.Unsupported, o.Unsupported)
	healthy, err := l.healthy()
	if err != nil {
		return nil, errors.Join(err, closeDriver())
	}
	if o.attend != nil {
		defer o.attend(l)()
	}
	report, err := conformance.Run(ctx, conformance.Options{
		Cluster: cfg, ClusterName: cmp.Or(l.State.Cluster, Embedded), Implementation: under,
		Workload: conformance.Workload{Image: cmp.Or(o.Workload, workload), Port: 8080, Path: "/"},
		Queue:    queue, Healthy: healthy, Step: o.step,
		Focus: o.Focus, RequiredOnly: o.RequiredOnly, Parallel: o.Parallel, Bound: o.Bound, Observer: o.Observer,
		Limits: o.Limits, PodCIDR: l.podCIDR(),
	})
	return report, errors.Join(err, closeDriver())
}

// healthy asks the API server and the cloud whether they are ready.
func (l *Lab) healthy() (func(context.Context) error, error) {
	kube, err1 := l.Cluster.Operator()
	cloud, err2 := l.Cloud()
	return func(ctx context.Context) error {
		return errors.Join(kube.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error(), cloud.Ready(ctx))
	}, errors.Join(err1, err2)
}

// podCIDR is the range of the pods' addresses, where the lab knows it.
func (l *Lab) podCIDR() string {
	if host, ok := l.Cluster.(cluster.LocalCCM); ok {
		return host.CCMCommand().ClusterCIDR
	}
	return ""
}

func (l *Lab) implementation(o ConformanceOptions, cfg *rest.Config) (under conformance.Implementation, closeDriver func() error, err error) {
	if o.Implementation == ImplementationInMemory {
		return inmemory.New(cfg), func() error { return nil }, nil
	}
	return l.onFakecloud(o)
}

// onFakecloud is the lab's cloud with its CCM, or another one.
func (l *Lab) onFakecloud(o ConformanceOptions) (conformance.Implementation, func() error, error) {
	none := conformance.Implementation{}
	host, ok := l.Cluster.(cluster.LocalCCM)
	if !ok {
		return none, nil, fmt.Errorf("the CCM of a cluster of kind %s is no process of this machine, and only such a one can be tested", l.State.Cluster)
	}
	command, cloud := host.CCMCommand(), l.Cluster.Cloud()
	api, err := cloud.Client(cluster.CallerOperator)
	if err != nil {
		return none, nil, err
	}
	u, err := url.Parse(cloud.URL)
	if err != nil {
		return none, nil, err
	}
	// A container's address is the container's to listen on.
	listen := u.Hostname()
	if ip, err := netip.ParseAddr(listen); err != nil || !ip.IsLoopback() {
		listen = command.Address
	}
	gate, err := onfakecloud.OpenGate(listen, u.Host)
	if err != nil {
		return none, nil, err
	}
	u.Host = gate.Address()

	under := conformance.Implementation{Name: ImplementationFakecloud}
	program := &conformance.Program{
		Path: cmp.Or(o.CCMPath, command.Path), Args: append(command.Args, ownArgs...), Noise: noise,
		ConfigTemplate: local.CCMConfig("{{.CloudURL}}", "{{.TokenFile}}", "{{.Project}}") + "{{if .CAFile}}caFile: {{.CAFile}}\n{{end}}",
	}
	if command.ClusterCIDR == "" {
		under.Unsupported = map[conformance.Feature]string{conformance.FeatureRoutes: "the range of the cluster's pods is not known here"}
	}
	if o.Program == nil {
		under.Claims = slices.Clone(OwnClaims)
	} else {
		own := program.ConfigTemplate
		// Each lab runs its own.
		program = &conformance.Program{Path: o.Program.Path, Args: o.Program.Args, Env: o.Program.Env, ConfigTemplate: cmp.Or(o.Program.ConfigTemplate, own)}
		under.Name = program.Name()
	}
	program.Values = l.ccmValues(command)
	program.Values.CloudURL = strings.TrimSuffix(u.String(), "/") // By way of the gate.
	program.Host, program.LogFile = l.host, l.State.Path("logs", "conformance-ccm.log")
	under.CCM = program
	theirs := l.State.Cluster == External
	under.Cloud = &onfakecloud.Cloud{
		API: api, Cluster: l.State.Name, Token: cluster.CallerCCM, TokenFile: cloud.TokenFile(cluster.CallerCCM), Gate: gate,
		Machines: !o.WithoutMachines && !theirs, Traffic: !o.WithoutMachines && (!theirs || o.Traffic),
	}
	return under, gate.Close, nil
}
