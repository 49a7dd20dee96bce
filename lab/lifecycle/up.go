// Package lifecycle brings labs up, completes what is missing of them, and takes them down,
// for good or to come back. Up is a list of named steps; every step looks at what is there
// and does what is missing, so that up on a lab that is up, or that a crash left in
// pieces, completes it. RunAgent is the process that a lab has meanwhile. The package knows
// no kind of cluster: that is for the cluster's interface. Begin with Up and upRun.runSteps.
package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/bundle"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/state"
	"github.com/ccmlab/ccmlab/lab/ui"
)

const (
	// stepBound is how long a step may take before it gives up and says what it waited
	// for; nodeBound is added for each node. They are meant for a busy machine: on an idle
	// one a step takes seconds.
	stepBound = 4 * time.Minute
	nodeBound = 3 * time.Second
	// prepareBound is the bound of a step whose images may have to come over a network.
	prepareBound = 15 * time.Minute
)

// upRun carries one run of Up.
type upRun struct {
	*lab.Lab
	// result is what this run did.
	result Outcome
	opts   Options
	steps  *ui.Steps
	cloud  *client.Client
	kube   *kubernetes.Clientset
	hold   cluster.Hold
	// fresh says that there was no lab before.
	fresh bool
	// lastPIDs are the components that ran when they were last listed, with their process
	// IDs.
	lastPIDs map[string]int
	// waited says that the current step did not find at once what it looked for.
	waited bool
	// demoIdle says why the demo has nothing to wait for, if somebody has made it so.
	demoIdle string
	// wantsCCM says that the CCM is to run, agentStarted that the agent runs.
	wantsCCM, agentStarted bool
	// prepared says that everything that the first start needs is there.
	prepared bool
	// nodes is as the last update found them.
	nodes   nodeReadiness
	demoURL string
}

// Up brings the lab up, or completes it. A new lab that does not come up is taken down if it
// was interrupted, is Fleeting, or has nothing yet to go on with.
func Up(ctx context.Context, o Options, steps *ui.Steps) (*lab.Lab, Outcome, error) {
	u, err := openOrCreate(ctx, o, steps)
	if err != nil {
		return nil, Outcome{}, err
	}
	defer u.State.Unlock()
	if u.hold != nil {
		defer func() { _ = u.hold.Close() }()
	}
	err = u.runAll(ctx)
	switch {
	case err == nil:
		return u.Lab, u.result, nil
	case ctx.Err() != nil && u.fresh:
		steps.Say("\nInterrupted: taking down what was started.")
		return nil, Outcome{}, errors.Join(errors.New("interrupted"), u.removeLab(ctx))
	case u.fresh && (u.opts.Fleeting || !u.prepared):
		return nil, Outcome{}, errors.Join(err, u.removeLab(ctx)) // There is nothing to look at, or to go on with.
	default:
		return nil, Outcome{}, fmt.Errorf(
			"%w\n\nThe lab is left as it is. Look at it with `lab status` and `lab logs`, go on with `lab up`, or remove it with `lab down` (all with --name %s)",
			err, o.Name,
		)
	}
}

// removeLab takes down and deletes a lab that did not come up.
func (u *upRun) removeLab(ctx context.Context) error {
	_, err := endLab(context.WithoutCancel(ctx), u.Lab)
	return errors.Join(err, u.State.Remove())
}

// openOrCreate locks the lab of the name and takes hold of it, or records a new one.
func openOrCreate(ctx context.Context, o Options, steps *ui.Steps) (*upRun, error) {
	if err := o.unpackBundle(ctx, steps); err != nil {
		return nil, err
	}
	st, fresh, err := state.Enter(o.Name)
	if err != nil {
		return nil, err
	}
	u := &upRun{opts: o, steps: steps, fresh: fresh}
	take := resumeLab
	if fresh {
		take = createLab
	}
	began := time.Now()
	if u.Lab, u.hold, err = take(ctx, st, o); err != nil {
		st.Unlock()
		return nil, err
	}
	u.Say, u.result.Began = steps.Say, began
	return u, nil
}

// unpackBundle unpacks the bundle, if one is to be used.
func (o *Options) unpackBundle(ctx context.Context, steps *ui.Steps) error {
	if o.Bundle == "" {
		return nil
	}
	return steps.Do("bundle", func(note func(string)) (done string, err error) {
		o.bin, err = bundle.Unpack(ctx, o.Bundle, note)
		return "unpacked in " + o.bin, err
	})
}

// runAll runs the steps, and once more if a component that a step had found running has
// ended since.
func (u *upRun) runAll(ctx context.Context) error {
	_, preparing := u.Cluster.(cluster.Preparer)
	u.prepared = !preparing
	u.wantsCCM = !u.opts.WithoutCCM && !u.Cluster.Traits().NoCloudProvider
	if !u.fresh {
		if _, err := u.listNewlyStarted(ctx); err != nil {
			return err
		}
	}
	for again := false; ; again = true {
		if err := u.runSteps(ctx); err != nil {
			return err
		}
		missing := u.checkComponents(ctx)
		if missing == nil {
			return u.recordResult()
		}
		if again {
			return missing
		}
		u.steps.Say("Something has ended meanwhile; once more:")
	}
}

// runSteps is the list of the steps.
func (u *upRun) runSteps(ctx context.Context) error {
	type step struct {
		title string
		do    func(context.Context, func(string)) (string, error)
		skip  bool
		bound time.Duration
	}
	_, preparing := u.Cluster.(cluster.Preparer)
	demo := u.Cluster.Traits().Demo && !u.opts.WithoutDemo
	without, ccm := u.Cluster.Traits().NoCloudProvider, u.wantsCCM
	u.kube, u.agentStarted, u.demoIdle = nil, false, ""
	for _, s := range []step{
		{title: "images", do: u.prepareImages, skip: !preparing, bound: prepareBound},
		{title: "cloud", do: u.startCloud},
		{title: "control plane", do: u.startControlPlane},
		{title: "instances", do: u.createInstances},
		{title: "nodes", do: u.waitForNodesReady},
		{title: "demo", do: u.deployDemo, skip: !demo},
		{title: "ccm", do: u.chooseCCM, skip: ccm || u.opts.UseCCM == nil},
		{title: "ccm", do: u.startCCMAndInitializeNodes, skip: !ccm},
		{title: "pods", do: u.waitForDemoPods, skip: !demo || !ccm && !without},
		{title: "load balancer", do: u.waitForLoadBalancer, skip: !ccm || !demo},
		{title: "first answer", do: u.waitForFirstAnswer, skip: !ccm || !demo},
	} {
		if s.skip {
			continue
		}
		err := u.steps.Do(s.title, func(note func(string)) (string, error) {
			bound := cmp.Or(u.opts.StepTimeout, s.bound, stepBound+time.Duration(u.State.Nodes)*nodeBound)
			ctx, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("gave up after %s", bound))
			defer cancel()
			return u.runAndReport(ctx, s.title, func() (string, error) { return u.runUntilExit(ctx, note, s.do) })
		})
		if err != nil {
			return errors.Join(fmt.Errorf("%s: %w", s.title, err), u.CheckNotPaused())
		}
	}
	return nil
}

func (u *upRun) prepareImages(ctx context.Context, note func(string)) (string, error) {
	done, err := u.Cluster.(cluster.Preparer).Prepare(ctx, note)
	u.prepared = err == nil
	return done, err
}

func (u *upRun) startCloud(ctx context.Context, note func(string)) (string, error) {
	if err := u.Cluster.StartCloud(ctx, u.Tag(), note); err != nil {
		return "", err
	}
	var err error
	u.cloud, err = u.Cloud()
	return fmt.Sprintf("fakecloud on %s, profile %s", u.Cluster.Cloud().URL, u.State.Profile), err
}

func (u *upRun) startControlPlane(ctx context.Context, note func(string)) (string, error) {
	if err := u.Cluster.StartControlPlane(ctx, note); err != nil {
		return "", err
	}
	var err error
	if u.kube, err = u.Cluster.Operator(); err != nil {
		return "", err
	}
	version, err := u.kube.Discovery().ServerVersion()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("Kubernetes %s, %s", version.GitVersion, u.Cluster.Traits().Summary), nil
}
