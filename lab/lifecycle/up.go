package lifecycle

// `lab up`, step by step. Every step looks at what is there and does what is
// missing, so that up on a lab that is up, or that a crash left in pieces,
// completes it.

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
	// stepBound is when a step gives up and says what it waited for; nodeBound
	// comes on top for each node. They are for a machine that is busy: on an
	// idle one a step takes seconds.
	stepBound = 4 * time.Minute
	nodeBound = 3 * time.Second
	// prepareBound is for images that may have to come over a network.
	prepareBound = 15 * time.Minute
)

// up carries one run of Up.
type up struct {
	*lab.Lab
	// outcome is what this run did.
	outcome Outcome
	opts    Options
	steps   *ui.Steps
	cloud   *client.Client
	kube    *kubernetes.Clientset
	hold    cluster.Hold
	fresh   bool
	// seen is what ran when it was looked at last, with its process ID; waited
	// says that a step did not find at once what it looked for.
	seen   map[string]int
	waited bool
	// idle says why the demo answers nobody, if somebody has made it so.
	idle string
	// ccm says that the CCM is to run, agent that the agent was seen to.
	ccm, agent bool
	// prepared says that all is there that the first start needs.
	prepared bool
	census   census // at the last look
	answer   string // URL of the demo
}

// Up brings the lab up, or completes it.
func Up(ctx context.Context, o Options, steps *ui.Steps) (*lab.Lab, Outcome, error) {
	u, err := begin(ctx, o, steps)
	if err != nil {
		return nil, Outcome{}, err
	}
	defer u.State.Unlock()
	if u.hold != nil {
		defer func() { _ = u.hold.Close() }()
	}
	err = u.run(ctx)
	switch {
	case err == nil:
		return u.Lab, u.outcome, nil
	case ctx.Err() != nil && u.fresh:
		steps.Say("\nInterrupted: taking down what was started.")
		return nil, Outcome{}, errors.Join(errors.New("interrupted"), u.undo(ctx))
	case u.fresh && (u.opts.Fleeting || !u.prepared):
		return nil, Outcome{}, errors.Join(err, u.undo(ctx)) // There is nothing to look at, or to go on with.
	default:
		return nil, Outcome{}, fmt.Errorf("%w\n\nThe lab is left as it is. Look at it with `lab status` and `lab logs`, go on with `lab up`, or remove it with `lab down` (all with --name %s)", err, o.Name)
	}
}

// undo removes a lab that did not come to be.
func (u *up) undo(ctx context.Context) error {
	_, err := endLab(context.WithoutCancel(ctx), u.Lab)
	return errors.Join(err, u.State.Remove())
}

func begin(ctx context.Context, o Options, steps *ui.Steps) (*up, error) {
	if err := o.unpack(ctx, steps); err != nil {
		return nil, err
	}
	st, fresh, err := state.Enter(o.Name)
	if err != nil {
		return nil, err
	}
	u := &up{opts: o, steps: steps, fresh: fresh}
	take := resumeLab
	if fresh {
		take = createLab
	}
	began := time.Now()
	if u.Lab, u.hold, err = take(ctx, st, o); err != nil {
		st.Unlock()
		return nil, err
	}
	u.outcome.Began = began
	return u, nil
}

// unpack sees to the bundle, if one is to be used.
func (o *Options) unpack(ctx context.Context, steps *ui.Steps) error {
	if o.Bundle == "" {
		return nil
	}
	return steps.Do("bundle", func(note func(string)) (done string, err error) {
		o.bin, err = bundle.Unpack(ctx, o.Bundle, note)
		return "unpacked in " + o.bin, err
	})
}

// run goes through the steps, and once more if something has ended since its step
// found it: it was about to.
func (u *up) run(ctx context.Context) error {
	_, preparing := u.Cluster.(cluster.Preparer)
	u.prepared = !preparing
	u.ccm = !u.opts.WithoutCCM && !u.Cluster.Traits().NoCloudProvider
	if !u.fresh {
		if _, err := u.started(ctx); err != nil {
			return err
		}
	}
	for again := false; ; again = true {
		if err := u.goThrough(ctx); err != nil {
			return err
		}
		lacking := u.lacking(ctx)
		if lacking == nil {
			return u.concluded()
		}
		if again {
			return lacking
		}
		u.steps.Say("Something has ended meanwhile; once more:")
	}
}

func (u *up) goThrough(ctx context.Context) error {
	type step struct {
		title string
		do    func(context.Context, func(string)) (string, error)
		skip  bool
		bound time.Duration
	}
	_, preparing := u.Cluster.(cluster.Preparer)
	demo := u.Cluster.Traits().Demo && !u.opts.WithoutDemo
	without, ccm := u.Cluster.Traits().NoCloudProvider, u.ccm
	u.kube, u.agent, u.idle = nil, false, ""
	for _, s := range []step{
		{title: "images", do: u.prepare, skip: !preparing, bound: prepareBound},
		{title: "cloud", do: u.startCloud},
		{title: "control plane", do: u.startControlPlane},
		{title: "instances", do: u.createInstances},
		{title: "nodes", do: u.awaitNodes},
		{title: "demo", do: u.deployDemo, skip: !demo},
		{title: "ccm", do: u.startController, skip: !ccm},
		{title: "pods", do: u.awaitPods, skip: !demo || !ccm && !without},
		{title: "load balancer", do: u.awaitBalancer, skip: !ccm || !demo},
		{title: "first answer", do: u.awaitAnswer, skip: !ccm || !demo},
	} {
		if s.skip {
			continue
		}
		err := u.steps.Do(s.title, func(note func(string)) (string, error) {
			bound := cmp.Or(u.opts.StepTimeout, s.bound, stepBound+time.Duration(u.State.Nodes)*nodeBound)
			ctx, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("gave up after %s", bound))
			defer cancel()
			return u.told(ctx, s.title, func() (string, error) { return u.watched(ctx, note, s.do) })
		})
		if err != nil {
			return errors.Join(fmt.Errorf("%s: %w", s.title, err), u.CheckNotPaused())
		}
	}
	return nil
}

func (u *up) prepare(ctx context.Context, note func(string)) (string, error) {
	done, err := u.Cluster.(cluster.Preparer).Prepare(ctx, note)
	u.prepared = err == nil
	return done, err
}

func (u *up) startCloud(ctx context.Context, note func(string)) (string, error) {
	if err := u.Cluster.StartCloud(ctx, u.Tag(), note); err != nil {
		return "", err
	}
	var err error
	u.cloud, err = u.Cloud()
	return fmt.Sprintf("fakecloud on %s, profile %s", u.Cluster.Cloud().URL, u.State.Profile), err
}

func (u *up) startControlPlane(ctx context.Context, note func(string)) (string, error) {
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
