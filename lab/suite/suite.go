// Package suite runs the conformance suite, and single incidents of it, on labs that
// are there for as long as that takes. It brings the labs up without a CCM, says how the
// suite reaches their clouds and CCMs, and takes them down. What the tests require of a
// CCM is for package conformance to say. Begin with Run.
package suite

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/onfakecloud"
	"github.com/ccmlab/ccmlab/lab/conformance/profiles"
	"github.com/ccmlab/ccmlab/lab/conformance/program"
	"github.com/ccmlab/ccmlab/lab/lifecycle"
	"github.com/ccmlab/ccmlab/lab/state"
	"github.com/ccmlab/ccmlab/lab/ui"
)

// Options of Run.
type Options struct {
	// Options are those of the engine. Run fills in what a lab has: the cluster, cloud and CCM, how healthy they are. Of
	// Implementation it takes the claims, what is unsupported and the attempts, over what the driver says; of Workload
	// the image, "" for the lab's own.
	conformance.Options
	// Name is that of the lab, and the beginning of the others' names.
	Name string
	// Labs is how many labs share the tests; 0 starts as many as save time.
	Labs int
	// Cluster is the kind of cluster; "" is cluster.DefaultKind.
	Cluster string
	// Kubeconfig is for cluster.KindExternal: whose cluster it is.
	Kubeconfig string
	// Traffic says of cluster.KindExternal that its Nodes that wait for a CCM are the suite's,
	// and that their ports are reached from this machine; with Driver, of other clusters, that the
	// instances of the lab's own cloud, which become Nodes, are the driver's.
	Traffic bool
	// Driver, unless nil, is the driver of another cloud than the lab's own.
	Driver *Driver
	// Program is the CCM; nil is the lab's own.
	Program *program.CCM
	// AwaitProgram, unless nil, returns when Program is there; the lab is started meanwhile. Where that fails, the
	// context of Run is to be cancelled.
	AwaitProgram func()
	// Dialect is that of Program, a CCM of another cloud; "" is none.
	Dialect string
	// addressNames tells that it resolves the names of load balancers' addresses.
	addressNames bool
	// CCMVersion is Program's, for the report; "" is what its build says.
	CCMVersion string
	// CCMPath is another build of the lab's own CCM, run in its place.
	CCMPath string
	// RBAC, unless nil, is all that the CCM may do in the cluster.
	RBAC RBAC
	// CCMNames are those by which the CCM marks on fakecloud what is its cluster's.
	CCMNames onfakecloud.Names
	// KubeletProviderIDs has the lab's kubelets given provider IDs.
	KubeletProviderIDs bool

	// WithoutMachines has no kubelets: what needs machines or traffic is
	// skipped. A control plane of another minor may have none that fit.
	WithoutMachines bool
	// First are tests that are begun before all others, by ID.
	First []string
	// Bundle is a file to run from instead of what was built here.
	Bundle string
	// Keep leaves the lab up.
	Keep bool
	// Recordings, unless "", is a folder for the recording of each lab, which opens in a browser.
	Recordings string

	// watchLab, unless nil, is called before the suite runs on a lab; leave when it
	// has.
	watchLab func(*lab.Lab) (leave func())
}

// nodesPerLab run the pods that traffic goes to.
const nodesPerLab = 2

const (
	// maxLabs is beyond what two cores have to wait for.
	maxLabs = 3
	// aloneTestsPerLab is how many tests that run alone make another lab worth its start.
	aloneTestsPerLab = 5
	// defaultWorkload is built with the lab.
	defaultWorkload = "ccmlab/hello:dev"
)

// SelectTests returns those that were asked for.
func (o Options) SelectTests() []conformance.Test {
	return conformance.Select(profiles.All(), o.Profiles, o.Focus)
}

// Names are the names of the labs that share these tests.
func (o Options) Names(tests []conformance.Test) []string {
	labs := o.Labs
	if labs == 0 {
		labs = o.worthwhileLabs(tests)
	}
	names := []string{o.Name}
	for n := 2; n <= labs; n++ {
		names = append(names, fmt.Sprintf("%s-%d", o.Name, n))
	}
	return names
}

// onSomebodysCluster tells that the cluster is not the suite's own.
func (o Options) onSomebodysCluster() bool {
	kind := cluster.KindNamed(o.Cluster)
	return kind != nil && kind.TakesKubeconfig
}

// worthwhileLabs is how many labs the tests are worth. Only those that run alone take
// longer on one, and only embedded ones are cheap.
func (o Options) worthwhileLabs(tests []conformance.Test) int {
	if kind := cluster.KindNamed(o.Cluster); kind == nil || !kind.Hollow ||
		o.Driver != nil || o.Keep {
		return 1
	}
	alone := 0
	for _, t := range tests {
		if t.Alone {
			alone++
		}
	}
	return min(maxLabs, 1+alone/aloneTestsPerLab)
}

// Run brings labs up, runs the suite on them, and takes them down. An error means that
// the suite could not be run. The report holds the results, also when ctx ends early.
func Run(ctx context.Context, o Options, steps *ui.Steps) (report *conformance.Report, err error) {
	switch {
	case o.Driver != nil:
		if err := o.Driver.Check(); err != nil {
			return nil, err
		}
	case o.Program != nil && o.AwaitProgram == nil:
		if err := o.Program.Check(); err != nil {
			return nil, err
		}
	}
	tests := o.SelectTests()
	names := o.Names(tests)
	for _, name := range names {
		if _, err := state.Open(name); !errors.Is(err, state.ErrNone) {
			return nil, errors.Join(fmt.Errorf(
				"there is a lab %q already; the suite wants one of its own: give another --name, or `lab down --name %s`",
				name, name,
			), err)
		}
	}
	if kind := cluster.KindNamed(o.Cluster); kind != nil && kind.LendToSuite != nil {
		tidy, err := kind.LendToSuite(ctx, o.Kubeconfig, o.Traffic)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, tidy(context.WithoutCancel(ctx))) }()
	}
	queue := conformance.NewQueue(tests)
	queue.RunFirst(o.First)
	return o.shareTests(ctx, queue, names, steps)
}

// shareTests has labs share the tests. As long as all tests have run, what became of a
// lab is worth a line and no error.
func (o Options) shareTests(
	ctx context.Context,
	queue *conformance.Queue,
	names []string,
	steps *ui.Steps,
) (*conformance.Report, error) {
	reports, errs, downs := make(
		[]*conformance.Report, len(names),
	), make([]error, len(names)), make([]error, len(names))
	var running sync.WaitGroup
	queue.Expect(len(names))
	shown := make(chan struct{})
	for i, name := range names {
		// One lab's steps are enough to look at, and tests come after them.
		seen, up := ui.Discard(), func() { <-shown }
		if i == 0 {
			seen, up = steps, func() { close(shown) }
		}
		running.Go(func() { reports[i], errs[i], downs[i] = o.runOnLab(ctx, name, queue, seen, up) })
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

// runOnLab runs tests from the queue on a lab of this name. isUp is called when the lab
// is up, or has failed to come up. downErr is what went wrong when the lab was taken
// down.
func (o Options) runOnLab(
	ctx context.Context,
	name string,
	queue *conformance.Queue,
	steps *ui.Steps,
	isUp func(),
) (report *conformance.Report, err, downErr error) {
	up := lifecycle.Options{
		Name: name, Cluster: cluster.KindName(o.Cluster), Kubeconfig: o.Kubeconfig,
		Nodes: nodesPerLab, WithoutCCM: true, WithoutDemo: true, Bundle: o.Bundle, Fleeting: !o.Keep,
	}
	switch {
	case o.onSomebodysCluster():
		up.Nodes = 0 // It has those that it has.
	case o.WithoutMachines || o.Driver != nil && !o.Traffic:
		up.Nodes = lifecycle.NoNodes
	}
	if o.KubeletProviderIDs {
		up.KubeletProviderIDs = o.CCMNames.KubeletProviderIDs()
	}
	if o.Driver != nil {
		steps.Say("   The cloud that is judged is the driver's; the lab has its own, fakecloud, beside it.")
	}
	l, _, err := lifecycle.Up(ctx, up, steps)
	isUp()
	if err != nil {
		queue.Missing()
		return nil, err, nil
	}
	if !o.Keep {
		defer func() { _, downErr = lifecycle.Down(context.WithoutCancel(ctx), name) }()
	}
	if o.AwaitProgram != nil {
		o.AwaitProgram()
	}
	if report, err = o.runTests(ctx, l, queue); report == nil {
		queue.Missing()
	}
	if o.Recordings != "" {
		// Also of a run that was interrupted.
		err = errors.Join(err, writeRecording(context.WithoutCancel(ctx), l, o.Recordings))
	}
	return report, err, nil
}

func (o Options) runTests(ctx context.Context, l *lab.Lab, queue *conformance.Queue) (*conformance.Report, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", l.Cluster.Kubeconfig())
	if err != nil {
		return nil, err
	}
	under, closeDriver, err := o.implementationOn(ctx, l)
	if err != nil {
		return nil, err
	}
	if o.RBAC != nil {
		if err := o.restrictCCM(ctx, l, under.CCM); err != nil {
			return nil, errors.Join(err, closeDriver())
		}
	}
	under.Claims = append(under.Claims, o.Implementation.Claims...)
	under.Attempts = cmp.Or(o.Implementation.Attempts, under.Attempts)
	if under.Unsupported == nil {
		under.Unsupported = conformance.Unsupported{}
	}
	maps.Copy(under.Unsupported, o.Implementation.Unsupported)
	healthy, err := o.healthCheck(l, under.Cloud)
	if err != nil {
		return nil, errors.Join(err, closeDriver())
	}
	if o.watchLab != nil {
		defer o.watchLab(l)()
	}
	engine := o.Options
	engine.Cluster, engine.ClusterName, engine.PodCIDR = cfg, l.Kind(), podCIDR(l)
	engine.Implementation, engine.Healthy, engine.Queue, engine.Observer = under, healthy, queue, o.observerOn(l)
	engine.Workload = conformance.Workload{
		Image: cmp.Or(o.Workload.Image, defaultWorkload), Port: 8080, Path: "/",
	}
	report, err := conformance.Run(ctx, engine)
	return report, errors.Join(err, closeDriver())
}
