package lab

// The conformance suite on a lab of its own: a control plane and two machines,
// no CCM and no demo. The suite runs the CCM itself.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/ccmlab/ccmlab/lab/cluster"
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
	// Name is that of the lab.
	Name string
	// Cluster is the kind of cluster; "" is Embedded, the only one so far.
	Cluster        string
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
	Observer func(conformance.TestReport)
	// Bundle is a file to run from instead of what was built here.
	Bundle string
	// Keep leaves the lab up.
	Keep bool
}

// OwnClaims are the capabilities of the lab's own CCM.
var OwnClaims = []conformance.Feature{
	conformance.CapabilityForeignNodes, conformance.CapabilityProvidedIP, conformance.CapabilityExplains,
	conformance.CapabilityUDP, conformance.CapabilitySourceRanges, conformance.CapabilityAffinity,
	conformance.CapabilityLocalTraffic, conformance.CapabilityRename, conformance.CapabilityQuiet,
	conformance.CapabilityRepair, conformance.CapabilityDoubtfulBalancers, conformance.CapabilityLoadBalancerIP,
	conformance.CapabilityPromptInitialization, conformance.CapabilityPromptRemoval, conformance.CapabilityMassDeletionGuard,
	conformance.CapabilityPodRoutes, conformance.CapabilityHA,
}

// ownArgs are what the lab's own CCM is given for the suite, over what it has in any
// lab.
var ownArgs = []string{
	"--bind-address={{.Address}}", "--secure-port={{.Port}}", // Each replica has its own.
	"--node-monitor-period=1s", // More often: less to wait for.
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

// Conformance brings a lab up, runs the suite on it, and takes it down. An
// error means that the suite could not be run; what it found is in the report,
// which there is also when ctx ends early.
func Conformance(ctx context.Context, o ConformanceOptions, steps *ui.Steps) (report *conformance.Report, err error) {
	if o.Program != nil {
		if err := o.Program.Check(); err != nil {
			return nil, err
		}
	}
	if _, err := state.Open(o.Name); !errors.Is(err, state.ErrNone) {
		return nil, errors.Join(fmt.Errorf("there is a lab %q already; the suite wants one of its own: give another --name, or `lab down --name %s`", o.Name, o.Name), err)
	}
	up := Options{Name: o.Name, Cluster: cmp.Or(o.Cluster, Embedded), Nodes: conformanceNodes, WithoutCCM: true, WithoutDemo: true, Bundle: o.Bundle, Fleeting: !o.Keep}
	if o.Implementation == ImplementationInMemory || o.WithoutMachines {
		up.Nodes = NoNodes
	}
	l, err := Up(ctx, up, steps)
	if err != nil {
		return nil, err
	}
	if !o.Keep {
		defer func() {
			_, downErr := Down(context.WithoutCancel(ctx), o.Name)
			err = errors.Join(err, downErr)
		}()
	}
	return l.conformance(ctx, o)
}

func (l *Lab) conformance(ctx context.Context, o ConformanceOptions) (*conformance.Report, error) {
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
	for f, why := range o.Unsupported {
		under.Unsupported[f] = why
	}
	report, err := conformance.Run(ctx, conformance.Options{
		Cluster: cfg, ClusterName: cmp.Or(l.State.Cluster, Embedded), Implementation: under,
		Workload: conformance.Workload{Image: "ccmlab/hello:dev", Port: 8080, Path: "/"},
		Tests:    profiles.All(), Profiles: o.Profiles, Focus: o.Focus, RequiredOnly: o.RequiredOnly, Parallel: o.Parallel, Bound: o.Bound, Observer: o.Observer,
	})
	return report, errors.Join(err, closeDriver())
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
		return none, nil, fmt.Errorf("the CCM of a cluster of kind %s is no process of this machine, and only such a one can be tested so far", l.State.Cluster)
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
	gate, err := onfakecloud.OpenGate(u.Hostname(), u.Host)
	if err != nil {
		return none, nil, err
	}
	u.Host = gate.Address()

	under := conformance.Implementation{Name: ImplementationFakecloud}
	program := &conformance.Program{
		Path: cmp.Or(o.CCMPath, command.Path), Args: append(command.Args, ownArgs...),
		ConfigTemplate: local.CCMConfig("{{.CloudURL}}", "{{.TokenFile}}", "{{.Project}}"), Noise: noise,
	}
	if o.Program == nil {
		under.Claims = slices.Clone(OwnClaims)
	} else {
		own := program.ConfigTemplate
		program = o.Program
		program.ConfigTemplate = cmp.Or(program.ConfigTemplate, own)
		under.Name = program.Name()
	}
	program.Values = conformance.Values{
		Kubeconfig: l.Cluster.Kubeconfig(), CloudConfig: command.CloudConfig, ClusterName: l.State.Name, ClusterCIDR: command.ClusterCIDR,
		CloudURL: strings.TrimSuffix(u.String(), "/"), TokenFile: cloud.TokenFile(cluster.CallerCCM), Project: l.State.Name, CAFile: cloud.CAFile,
		Address: command.Address, Port: command.Port,
	}
	program.Host, program.LogFile = l.host, l.State.Path("logs", "conformance-ccm.log")
	under.CCM = program
	under.Cloud = &onfakecloud.Cloud{API: api, Cluster: l.State.Name, Token: cluster.CallerCCM, Gate: gate, Machines: !o.WithoutMachines, Traffic: !o.WithoutMachines}
	return under, gate.Close, nil
}
