package lifecycle

// `lab up`, step by step. Every step looks at what is there and does what is
// missing, so that up on a lab that is up, or that a crash left in pieces,
// completes it.

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/apply"
	"github.com/ccmlab/ccmlab/lab/bundle"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/state"
	"github.com/ccmlab/ccmlab/lab/timeline"
	"github.com/ccmlab/ccmlab/lab/ui"
	"github.com/ccmlab/ccmlab/manifests"
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

func (u *up) createInstances(ctx context.Context, _ func(string)) (string, error) {
	have, err := u.liveInstances(ctx)
	if err != nil {
		return "", err
	}
	zones, err := u.cloud.ListZones(ctx)
	if err != nil {
		return "", err
	}
	made, err := u.registerPresent(ctx, have, zones)
	if err != nil {
		return "", err
	}
	for i := range u.State.Nodes {
		name := fmt.Sprintf("node-%d", i+1)
		if instanceNamed(have, name) != nil {
			continue
		}
		created, err := u.createInstance(ctx, api.InstanceCreate{Name: &name, Zone: &zones[i%len(zones)].Name})
		if err != nil {
			return "", err
		}
		made = append(made, name+" in "+created.Zone)
	}
	if err := startAgent(u.Lab, u.hold); err != nil {
		return "", err
	}
	u.agent = true
	if len(made) > 0 {
		u.did("created " + strings.Join(made, ", "))
	}
	if len(made) == 0 {
		return fmt.Sprintf("%d there already", len(have)), nil
	}
	return strings.Join(made, ", "), nil
}

// registerPresent makes instances of the machines that are there without the
// cloud's doing.
func (u *up) registerPresent(ctx context.Context, have []api.Instance, zones []api.Zone) (made []string, err error) {
	present, err := u.Cluster.Present(ctx)
	if err != nil {
		return nil, err
	}
	for i, m := range present {
		instance := instanceNamed(have, m.Name)
		if instance == nil {
			spec := api.InstanceCreate{Name: &m.Name, Zone: &zones[i%len(zones)].Name}
			if m.Address != "" { // A node's may be the CCM's to set; then the cloud chooses it.
				spec.Address = &m.Address
			}
			instance, err = u.createInstance(ctx, spec)
			if err != nil {
				return made, err
			}
			made = append(made, m.Name+" in "+instance.Zone)
		}
		// A stopped control plane could be asked nothing, not even by this run.
		if instance.State == api.InstanceStopped {
			if _, err := u.cloud.StartInstance(ctx, instance.ID); err != nil {
				return made, err
			}
		}
		m.ID = instance.ID
		if err := u.Cluster.Adopt(m); err != nil {
			return made, err
		}
	}
	return made, nil
}

func (u *up) createInstance(ctx context.Context, spec api.InstanceCreate) (*api.Instance, error) {
	spec.Tags = &api.Tags{contract.TagCluster: u.State.Name}
	created, err := u.cloud.CreateInstance(ctx, spec)
	if err != nil {
		return nil, fmt.Errorf("creating instance %s: %w", *spec.Name, err)
	}
	return created, nil
}

func instanceNamed(all []api.Instance, name string) *api.Instance {
	if i := slices.IndexFunc(all, func(i api.Instance) bool { return i.Name == name }); i >= 0 {
		return &all[i]
	}
	return nil
}

func (u *up) liveInstances(ctx context.Context) ([]api.Instance, error) {
	return u.cloud.ListInstances(ctx, client.InstanceFilter{Tags: []string{u.Tag()}, States: []api.InstanceState{
		api.InstancePending, api.InstanceRunning, api.InstanceStopping, api.InstanceStopped,
	}})
}

// awaitNodes waits for a Ready node of each instance that runs or is about to.
func (u *up) awaitNodes(ctx context.Context, note func(string)) (string, error) {
	ended, err := u.deaths()
	if err != nil {
		return "", err
	}
	defer func() { _ = ended.news.Close() }()
	if err := u.clearNames(ctx, note); err != nil {
		return "", err
	}
	err = u.poll(ctx, "every running instance to have a Ready node; `lab logs` has a log per node", func(ctx context.Context) error {
		if err := u.look(ctx); err != nil {
			return err
		}
		note(fmt.Sprintf("%d of %d Ready", u.census.ready(), len(u.census.wanted)))
		lacks := u.census.lacks()
		if lacks == nil {
			return nil
		}
		machine, err := ended.often()
		if machine != "" {
			return hopeless{fmt.Errorf("machine %s ends again and again\n%s", machine, u.LogHint("node/"+machine))}
		}
		return errors.Join(lacks, err)
	})
	if u.Cluster.Traits().NoCloudProvider {
		return fmt.Sprintf("%d Ready, none tainted: their kubelets wait for nobody", u.census.ready()), err
	}
	return fmt.Sprintf("%d Ready, %d of them tainted node.cloudprovider.kubernetes.io/uninitialized", u.census.ready(), u.census.tainted), err
}

// clearNames starts the CCM before its turn where a node is missing in a lab that
// was there: a new machine waits until a CCM has deleted an earlier one's Node.
func (u *up) clearNames(ctx context.Context, note func(string)) error {
	if u.fresh || !u.ccm {
		return nil
	}
	if err := u.look(ctx); err == nil && u.census.lacks() == nil {
		return nil
	}
	note("starting the CCM, which deletes the Nodes of instances that are gone")
	return u.StartCCM(ctx)
}

// look takes the census anew.
func (u *up) look(ctx context.Context) error {
	instances, err := u.liveInstances(ctx)
	if err != nil {
		return err
	}
	alive, err := u.aliveNodes(ctx)
	if err != nil {
		return err
	}
	u.census = takeCensus(instances, alive)
	return nil
}

// aliveNodes are those whose kubelet renews its lease now: after a crash, what
// a Node says of itself is still what it said before. In a new lab there is no
// before, and the first renewal need not be waited for.
func (u *up) aliveNodes(ctx context.Context) ([]corev1.Node, error) {
	nodes, err := u.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil || u.fresh {
		return nodes.Items, err
	}
	leases, err := u.kube.CoordinationV1().Leases(corev1.NamespaceNodeLease).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	renewed := map[string]bool{}
	for _, l := range leases.Items {
		renewed[l.Name] = l.Spec.RenewTime != nil && l.Spec.LeaseDurationSeconds != nil &&
			time.Since(l.Spec.RenewTime.Time) < time.Duration(*l.Spec.LeaseDurationSeconds)*time.Second
	}
	if u.Cluster.Traits().HollowNodes { // A machine that has ended just now has renewed it, too.
		machines, err := u.Cluster.Machines(ctx)
		if err != nil {
			return nil, err
		}
		runs := map[string]bool{}
		for m := range machines {
			runs[m.Name] = true
		}
		maps.DeleteFunc(renewed, func(name string, _ bool) bool { return !runs[name] })
	}
	return slices.DeleteFunc(nodes.Items, func(n corev1.Node) bool { return !renewed[n.Name] }), nil
}

func (u *up) deployDemo(ctx context.Context, note func(string)) (string, error) {
	if err := u.poll(ctx, "the API server to accept the demo", func(ctx context.Context) error {
		// What somebody has made of the demo since stays.
		made, err := apply.Missing(ctx, u.Cluster.Kubeconfig(), u.demo())
		if len(made) > 0 {
			u.did("created " + strings.Join(made, ", "))
		}
		return err
	}); err != nil {
		return "", err
	}
	demo, err := u.kube.AppsV1().Deployments(manifests.DemoNamespace).Get(ctx, manifests.DemoName, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	switch {
	case demo.Spec.Replicas != nil && *demo.Spec.Replicas == 0:
		u.idle = asleep
	case len(u.census.workers) == 0:
		u.idle = noNode
	}
	if u.idle != "" {
		return u.idle, nil
	}
	var said string
	err = u.poll(ctx, "the demo's pods to be scheduled, or to have an event that says why not", func(ctx context.Context) error {
		pods, err := u.demoPods(ctx)
		if err != nil {
			return err
		}
		if len(pods) == 0 {
			return errors.New("kube-controller-manager has not created the demo's pods yet")
		}
		note("waiting for the scheduler's word")
		scheduled, why := 0, ""
		for _, p := range pods {
			if p.Spec.NodeName != "" {
				scheduled++
			} else if i := slices.IndexFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodScheduled }); i >= 0 {
				why = p.Status.Conditions[i].Message
			}
		}
		if scheduled == len(pods) {
			said = "scheduled"
			return nil
		}
		if why != "" && !u.fresh { // Somebody may have seen to it that they fit nowhere.
			said = "Pending: " + ui.FirstSentence(why)
			return nil
		}
		events, err := u.kube.CoreV1().Events(manifests.DemoNamespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=FailedScheduling"})
		if err != nil {
			return err
		}
		for _, e := range events.Items {
			if strings.Contains(e.Message, "untolerated taint") {
				said = "Pending: " + ui.FirstSentence(e.Message)
				return nil
			}
		}
		return errors.New("no FailedScheduling event that speaks of the taint yet")
	})
	return said, err
}

// demo is the manifest, on another port where the usual one is held by
// somebody on 0.0.0.0.
func (u *up) demo() []byte {
	port := u.Cluster.Traits().DemoPort
	return bytes.ReplaceAll(manifests.Demo, []byte("8080"), []byte(strconv.Itoa(port)))
}

func (u *up) demoPods(ctx context.Context) ([]corev1.Pod, error) {
	list, err := u.kube.CoreV1().Pods(manifests.DemoNamespace).List(ctx, metav1.ListOptions{LabelSelector: manifests.DemoSelector})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// startController starts the CCM and sees the taints lift.
func (u *up) startController(ctx context.Context, note func(string)) (string, error) {
	note("starting")
	if err := u.StartCCM(ctx); err != nil {
		return "", err
	}
	var initialized int
	err := u.poll(ctx, "the CCM to initialise the nodes; `lab logs ccm` says what it does", func(ctx context.Context) error {
		nodes, err := u.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		// In somebody's cluster there may be nodes that are no cloud's.
		waiting := 0
		initialized = 0
		for _, n := range nodes.Items {
			switch {
			case timeline.Uninitialized(&n):
				waiting++
			case n.Spec.ProviderID != "":
				initialized++
			}
		}
		note(fmt.Sprintf("%d nodes initialised, %d are waiting", initialized, waiting))
		if waiting > 0 {
			return fmt.Errorf("%d nodes are initialised, %d are waiting", initialized, waiting)
		}
		return nil
	})
	return fmt.Sprintf("taints lifted from %d nodes; provider IDs, zones and addresses set", initialized), err
}

// asleep is what is said of a demo that somebody has scaled to nothing.
const asleep = "none: deployment web is scaled to 0"

func (u *up) awaitPods(ctx context.Context, note func(string)) (string, error) {
	if u.idle != "" {
		return u.idle, nil
	}
	var m muster
	var meant patience
	err := u.poll(ctx, "the demo's pods to run", func(ctx context.Context) error {
		pods, err := u.demoPods(ctx)
		if err == nil && !u.fresh { // Nodes come and go there.
			err = u.look(ctx)
		}
		if err != nil {
			return err
		}
		m = u.census.muster(pods)
		note(fmt.Sprintf("%d of %d Ready", len(m.nodes), m.all))
		if m.idle != "" || len(m.nodes) >= m.want {
			return nil
		}
		lacks := fmt.Errorf("%d of %d pods are Ready", len(m.nodes), m.want)
		if !u.fresh && u.Cluster.Traits().HollowNodes && meant.gone(m.all > 0 && m.settled, time.Now()) {
			return hopeless{fmt.Errorf("%w, and no other has become so for %s; `lab explain service/%s` says why", lacks, settledBound, manifests.DemoName)}
		}
		return lacks
	})
	if u.idle = m.idle; u.idle != "" {
		return u.idle, err
	}
	return fmt.Sprintf("%d Ready on %s", len(m.nodes), strings.Join(slices.Compact(m.nodes), ", ")), err
}

func (u *up) awaitBalancer(ctx context.Context, note func(string)) (string, error) {
	var svc *corev1.Service
	note("waiting for the Service's address")
	err := u.poll(ctx, "service web to get an address; `kubectl describe service web` shows its events", func(ctx context.Context) error {
		var err error
		if svc, err = u.kube.CoreV1().Services(manifests.DemoNamespace).Get(ctx, manifests.DemoName, metav1.GetOptions{}); err != nil {
			return err
		}
		if svc.Spec.Type != corev1.ServiceTypeLoadBalancer || timeline.IngressIP(svc) != "" {
			return nil
		}
		balancers, err := u.cloud.ListLoadBalancers(ctx, client.LoadBalancerFilter{Tags: []string{contract.TagServiceUID + "=" + string(svc.UID)}})
		if err != nil || len(balancers) == 0 {
			return errors.Join(errors.New("the cloud has no load balancer for it yet"), err)
		}
		lb := balancers[0]
		if lb.StateReason != nil {
			return fmt.Errorf("its load balancer %s is %s: %s", lb.ID, lb.State, *lb.StateReason)
		}
		return fmt.Errorf("its load balancer %s is %s", lb.ID, lb.State)
	})
	if err != nil {
		return "", err
	}
	if svc.Spec.Type != corev1.ServiceTypeLoadBalancer {
		u.idle = fmt.Sprintf(noSuchService, svc.Spec.Type)
		return u.idle, nil
	}
	u.answer = fmt.Sprintf("http://%s:%d/", timeline.IngressIP(svc), svc.Spec.Ports[0].Port)
	return "service web has " + u.answer, nil
}

func (u *up) awaitAnswer(ctx context.Context, _ func(string)) (string, error) {
	if u.idle != "" {
		return u.idle, nil
	}
	var body string
	err := u.poll(ctx, u.answer+" to answer", func(ctx context.Context) error {
		var err error
		body, err = get(ctx, u.answer)
		return err
	})
	if err != nil {
		return "", err
	}
	const first = "first-answer"
	entries, err := u.Timeline().Read()
	if err != nil || slices.ContainsFunc(entries, func(e timeline.Entry) bool { return e.What == first }) {
		return body, err
	}
	return body, u.Timeline().Add(timeline.Change{Source: timeline.SourceCluster, Subject: "service/" + manifests.DemoName, What: first, Detail: body})
}

// get fetches a page once, over a connection of its own, as curl would.
func get(ctx context.Context, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4096))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, resp.Status)
	}
	return strings.TrimSpace(string(body)), err
}
