package profiles

// Incidents beyond single answers: the CCM's credentials are wrong, clocks differ, or half of the machines
// are lost.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/ccmlab/ccmlab/lab/conformance"
)

const fromLeaderElection = "k8s.io/client-go tools/leaderelection (\"only acts on timestamps captured locally\"; tolerant to arbitrary clock skew)"

// resilienceClusterTests are incidents with credentials, clocks and zones.
var resilienceClusterTests = []conformance.Test{
	{
		ID: "resilience-expired-credentials", Capability: conformance.CapabilityRenewedCredentials,
		Source: instanceExists +
			": what is no answer is an error; kubernetes.io: Secrets (a mounted Secret is updated in a running container)",
		Requires: "While the CCM's credentials have expired no Node is deleted; when they are renewed where the CCM has them, its work goes on without a restart.",
		Needs:    []conformance.Feature{conformance.FeatureExpiry}, Alone: true, Bound: incidentBound,
		Incident: &conformance.Incident{
			Name:  "expired-credentials",
			Title: "The credentials expire, and are renewed",
			Happened: "The token that the CCM shows to the cloud expires, and each call is refused with 401. Somebody notices, and puts a new one into the " +
				"Secret, from where it comes into the CCM's file. A careless CCM has deleted Nodes by then, since it could not confirm that their instances " +
				"exist; or it read the file once, when it started, and goes on with the old token.",
			Danger: "A kubelet that is late for a minute costs its Node and the pods on it. And where the CCM must be restarted to see the new token, the " +
				"one who renewed it thinks that all is well, while new machines stay tainted and Services get no address.",
			Watch: "In kubectl get nodes -w: three workers, of which one is NotReady, and a fourth that joins and waits. The cloud's audit has the 401s, until the " +
				"file has the new token.",
			Right: "It keeps all Nodes, says that it is refused, reads the file again, and goes on with what had to wait as soon as it is let in.",
			Known: []string{
				"https://github.com/kubernetes/cloud-provider-vsphere/issues/479",
				"https://github.com/kubernetes/kubernetes/issues/69100",
				"https://github.com/kubernetes/cloud-provider-vsphere/pull/1780",
			},
		},
		Run: func(t *conformance.T) {
			nodes, others := newFleet(t, 3), newFleet(t, 3)
			expiry, err := t.Cloud.ExpireCredentials(t.Context())
			t.Must(err, "having the CCM's credentials expire")
			restartAfterTest(t)
			t.Cleanup(expiry.Lift)
			testWrongCredentials(t, nodes, others, expiry, func() {
				t.Must(expiry.Renew(t.Context()), "renewing the CCM's credentials")
			})
		},
	}, {
		ID: "resilience-token-swapped", Capability: conformance.CapabilityOwnProject,
		Source:   instanceExists + " (another project's cloud cannot say that it does not exist)",
		Requires: "While the CCM's credentials are those of another project, in which there is nothing, no Node is deleted; when it has its own again, its work goes on without a restart.",
		Needs:    []conformance.Feature{conformance.FeatureOtherProject}, Alone: true, Bound: incidentBound,
		Incident: &conformance.Incident{
			Name:  "token-swapped",
			Title: "The token is another project's",
			Happened: "Two clusters' tokens are mixed up, and this one's CCM gets a good token of another project. Every call succeeds: lists are empty, and " +
				"each instance that is asked for does not exist, there. A careless CCM believes it, and deletes each Node that is not Ready.",
			Danger: "It is the one mistake in which no call fails and no alarm goes off. All Nodes look gone, and each goes at its kubelet's next hiccup; " +
				"a CCM that also tidies up deletes balancers and routes of the project into which it has strayed.",
			Watch: "In kubectl get nodes -w: three workers, of which one is NotReady, and a fourth that joins and waits. The other project, which is empty, is " +
				"where the CCM's calls now are.",
			Right: "It notices whose answers these are, by the project that they name or by asking once for each token; it takes none of them for its own " +
				"cloud's, keeps all Nodes, and goes on when it has its own token again.",
			Known: []string{
				"https://github.com/openshift/origin/issues/15948",
				"https://github.com/oracle/oci-cloud-controller-manager/issues/434",
			},
		},
		Run: func(t *conformance.T) {
			nodes, others := newFleet(t, 3), newFleet(t, 3)
			swap, err := t.Cloud.SwapCredentials(t.Context())
			t.Must(err, "giving the CCM another project's credentials")
			restartAfterTest(t)
			t.Cleanup(swap.Lift)
			testWrongCredentials(t, nodes, others, swap, func() {
				t.Must(swap.Lift(t.Context()), "giving the CCM its own credentials back")
			})
		},
	}, {
		ID: "resilience-renewed-ca", Capability: conformance.CapabilityRenewedCA,
		Source: "kubernetes.io: ConfigMaps (mounted ConfigMaps are updated automatically), Manual Rotation of CA Certificates " +
			"(the bundle has both CAs before the certificate changes)",
		Requires: "When the cloud shows a certificate that a new CA signed, and that CA is beside the former one in the CCM's file, its work goes on without a restart.",
		Needs:    []conformance.Feature{conformance.FeatureCARenewal}, Alone: true,
		Incident: &conformance.Incident{
			Name:  "renewed-ca",
			Title: "The CA of the cloud's certificate is renewed",
			Happened: "The CA that signed the certificate of the cloud's API is about to expire. Its successor comes into the bundle of every cluster, " +
				"beside the former one, and a week later the cloud shows a certificate of the new CA. A careless CCM has read its bundle when it " +
				"started: from now on each of its calls ends in the TLS handshake.",
			Danger: "New machines stay tainted, and Services get no address, in all clusters at once, though each has the right bundle. A kubelet that is " +
				"late meanwhile is asked about in vain.",
			Watch: "In kubectl get nodes -w: a Node that joins and waits for its instance to be asked for. The cloud's audit has no call of such a CCM any more, " +
				"as it sees none that ends before it is sent.",
			Right: "It reads the file again, at each connection or when it has changed, and initialises the Node as ever.",
			Known: []string{"https://github.com/aws/eks-anywhere/issues/8043"},
		},
		Run: func(t *conformance.T) {
			newWorker(t) // The CCM works, and has its connections.
			renewed, err := t.Cloud.RenewCA(t.Context())
			t.Must(err, "renewing the cloud's CA")
			restartAfterTest(t)
			t.Cleanup(renewed.Lift)
			accepted := checkFaultHits(t, renewed, 1)
			node := newWaitingNode(t)
			t.HoldsUntil("the CCM is to go on", checkNoCrash(t),
				"Node "+node+" to be initialised by what the cloud says under its new certificate",
				allHold(checkNodeInitialized(t, node), accepted))
		},
	}, {
		ID: "resilience-clock-skew", Capability: conformance.CapabilityHA, Source: fromLeaderElection,
		Requires: "A CCM does nothing while another holder, whose clock is an hour slow, renews the lease; when it is renewed no more, the CCM takes over.",
		Alone:    true, Bound: incidentBound,
		Run: clockSkew,
		Incident: &conformance.Incident{
			Name:  "clock-skew",
			Title: "The leader's clock is an hour slow",
			Happened: "Two CCMs run on two machines, and the clock of the one that leads is an hour slow. It renews its lease every second, with a time that " +
				"to the other is long past. A careless CCM compares that time with its own clock, takes the lease for one that ended an hour ago, and leads, too.",
			Danger: "Two CCMs work at once: two balancers for a Service, of which one is forgotten and paid for; targets that one adds and the other removes; " +
				"and Nodes deleted by the one with the older picture.",
			Watch: "In kubectl get leases -A -w: the CCM's lease is held by somebody whose name begins with clock-skew, and is renewed each second. A Node that " +
				"has joined keeps its taint until those renewals stop.",
			Right: "It looks only at whether the lease changes, by its own clock. It waits for as long as it does, and takes over when it has not changed " +
				"for as long as the lease says.",
			Known: []string{
				"https://github.com/kubernetes/client-go/issues/448",
				"https://github.com/kubernetes/kubernetes/pull/120824",
				"https://github.com/kubernetes/kubernetes/pull/19511",
			},
		},
	}, {
		ID: "resilience-zone-outage", Source: instanceExists + " (one that has failed exists); " + fromNodeSet,
		Requires: "When a zone is lost with all its instances, their Nodes are kept, and the others' instances stay targets of balancers; when it is back, all Nodes are there without the shutdown taint, and all are targets.",
		Needs: []conformance.Feature{
			conformance.FeatureZoneOutage, conformance.FeatureZones, conformance.FeatureTargets,
		},
		Alone: true, Bound: incidentBound,
		Run: zoneOutage,
		Incident: &conformance.Incident{
			Name:  "zone-outage",
			Title: "A zone with half of the Nodes is lost",
			Happened: "A data centre loses power. The instances there are not gone: the cloud shows them as failed, and starts them again when it can. A careless " +
				"CCM knows an instance that runs and one that does not exist, and nothing in between: it deletes half of the Nodes.",
			Danger: "What could have come back within minutes is torn apart: pods and the record of where their volumes are attached go with the Nodes, and " +
				"machines that return find that they are not of the cluster any more. If the balancers' targets are rewritten in the turmoil, the half " +
				"that still serves is lost to clients, too.",
			Watch: "In kubectl get nodes -L topology.kubernetes.io/zone -w: two workers of one zone become NotReady, and stay. The balancer's targets in the cloud: " +
				"those of the other zone are there all the time.",
			Right: "It keeps the Nodes of the lost zone and the targets of the other one, does other work meanwhile, and has everything as it was " +
				"when the zone is back.",
			Known: []string{
				"https://github.com/kubernetes/kubernetes/pull/53855",
				"https://github.com/kubernetes/kubernetes/issues/45118",
				"https://github.com/oracle/oci-cloud-controller-manager/issues/99",
				"https://github.com/kubernetes/kubernetes/issues/114295",
			},
		},
	},
}

// restartAfterTest restarts the CCM after the test, when what is registered later is undone. A CCM that reads
// its credentials only now and then would keep the test's credentials, which end with the test, and fail the
// next tests.
func restartAfterTest(t *conformance.T) {
	t.Cleanup(func(ctx context.Context) error { return errors.Join(t.CCM.Stop(ctx), t.CCM.Start(ctx)) })
}

// testWrongCredentials checks that Nodes are kept while the CCM's credentials are not good, until mend has
// mended them.
func testWrongCredentials(t *conformance.T, nodes, others fleet, wrong conformance.Injection, mend func()) {
	nodes[0].NotReady()
	holds := nodes.checkNodesKept
	// More than in other doubts: a CCM that starts asks for all Nodes at once, and
	// for much else, before it looks at those that are not Ready. And one that has
	// seen whose credentials these are asks for no instance at all.
	c := chance{calls: 4 * chanceIn(conformance.FaultUnauthorized, t.Attempts).calls, rounds: 20, silent: true}
	holdsThroughFault(t, wrong, c, others, "all Nodes are to be kept", holds)
	late := joinDuringFault(t, wrong, c, others[0], holds)
	mend()
	awaitRecovery(t, late, holds)
}

func clockSkew(t *conformance.T) {
	held := leasesOfCCM(t)
	restart := stopCCM(t)
	holder := &skewed{t: t, leases: held, name: t.Name("clock-skew")}
	t.Must(holder.renewLeases(t.Context()), "taking the CCM's leases for another holder")
	restart()
	node := newJoiningWorker(t)
	holds := allHold(checkStaysUninitialized(t, node.Name), checkNoCrash(t))
	// A careless CCM leads at its first look. One that merely waits for as long as a
	// lease lasts, whether it is renewed or not, does so soon after that.
	enough := 3 * holder.holdsLeases() / 2
	t.HoldsUntil("while somebody else renews the lease, Node "+node.Name+" is to wait", holds,
		fmt.Sprintf("the lease to have been renewed for %s", enough), holder.renewsFor(enough))
	t.HoldsUntil(
		"the CCM is to go on", checkNoCrash(t), "the CCM to take over, and to initialise Node "+node.Name,
		node.checkInitialized,
	)
}

// renewals is the time between two renewals of a lease that skewed holds.
const renewals = time.Second

// skewed holds leases by a clock that is an hour slow.
type skewed struct {
	t      *conformance.T
	leases []coordinationv1.Lease
	name   string
	last   time.Time // when they were renewed last, by our clock; zero until they are held
}

func (s *skewed) holdsLeases() time.Duration {
	var longest int32
	for _, l := range s.leases {
		if seconds := l.Spec.LeaseDurationSeconds; seconds != nil {
			longest = max(longest, *seconds)
		}
	}
	return time.Duration(longest) * time.Second
}

// renewLeases takes the leases the first time. Later it fails if somebody else holds one.
func (s *skewed) renewLeases(ctx context.Context) error {
	for _, l := range s.leases {
		if err := retry.RetryOnConflict(retry.DefaultRetry, func() error { return s.renewOne(ctx, l) }); err != nil {
			return fmt.Errorf("lease %s of namespace %s: %w", l.Name, l.Namespace, err)
		}
	}
	s.last = time.Now()
	return nil
}

// renewOne keeps the duration that the lease had when the CCM held it: a CCM that gives its lease back leaves a
// duration of a second.
func (s *skewed) renewOne(ctx context.Context, held coordinationv1.Lease) error {
	leases := s.t.Kube.CoordinationV1().Leases(held.Namespace)
	lease, err := leases.Get(ctx, held.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	shown := metav1.NewMicroTime(time.Now().Add(-time.Hour))
	if s.last.IsZero() {
		lease.Spec.AcquireTime = &shown
	} else if now := holderOf(lease); now != s.name {
		return fmt.Errorf("%q took it, though it was renewed %s ago", now, time.Since(s.last).Round(time.Millisecond))
	}
	lease.Spec.HolderIdentity, lease.Spec.RenewTime = &s.name, &shown
	lease.Spec.LeaseDurationSeconds = held.Spec.LeaseDurationSeconds
	_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
	return err
}

// renewsFor renews the leases when it is time, and returns an error until it has done so for that long. It ends
// the test if a lease is lost.
func (s *skewed) renewsFor(enough time.Duration) func(context.Context) error {
	began := time.Now()
	return func(ctx context.Context) error {
		if time.Since(s.last) >= renewals {
			s.t.Must(s.renewLeases(ctx), "renewing for another holder")
		}
		if held := time.Since(began); held < enough {
			return fmt.Errorf("it was renewed for %s", held.Round(time.Second))
		}
		return nil
	}
}

func holderOf(lease *coordinationv1.Lease) string {
	if lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

// leasesOfCCM returns the leases that the CCM holds, whatever their names: they have another holder after the
// CCM was restarted and works again, while other leases keep theirs.
func leasesOfCCM(t *conformance.T) []coordinationv1.Lease {
	before := map[string]string{}
	for _, l := range listCCMLeases(t) {
		before[l.Namespace+"/"+l.Name] = holderOf(&l)
	}
	stopCCM(t)()
	t.AwaitInitialized(newJoiningWorker(t).Name)
	changed := slices.DeleteFunc(listCCMLeases(t), func(l coordinationv1.Lease) bool {
		held, known := before[l.Namespace+"/"+l.Name]
		return known && held == holderOf(&l)
	})
	if len(changed) == 0 {
		t.Fatalf("no lease has another holder since the CCM was started anew: " +
			"it takes none, or has the same name each time")
	}
	return changed
}

func listCCMLeases(t *conformance.T) []coordinationv1.Lease {
	all, err := listLeases(t.Context(), t)
	t.Must(err, "listing leases")
	return all
}

func zoneOutage(t *conformance.T) {
	lost, other := chooseZones(t)
	own := readyNodes(t)
	hit := fleet{newJoiningWorkerIn(t, lost), newJoiningWorkerIn(t, lost)}
	spared := fleet{newJoiningWorkerIn(t, other), newJoiningWorkerIn(t, other)}
	control := newJoiningWorkerIn(t, other)
	for _, w := range slices.Concat(hit, spared, fleet{control}) {
		t.AwaitInitialized(w.Name)
	}
	svc := t.NewService()
	all := slices.Concat(hit, spared)
	b := t.AwaitBalancer(svc, leadsToAll(all))

	outage, err := t.Cloud.InjectZoneOutage(t.Context(), lost)
	t.Must(err, "losing zone %s", lost)
	t.Cleanup(outage.Lift)
	holds := allHold(hit.checkNodesExist, spared.checkNodesKept, checkBalancerStays(t, b, spared))
	for _, w := range hit {
		w.NotReady()
	}
	// Twice: in between, the CCM has looked at all Nodes anew.
	holdsWhileStopped("Nodes, and the other zone's targets, are to be kept", holds, control)
	again := newJoiningWorkerIn(t, other)
	t.AwaitInitialized(again.Name)
	holdsWhileStopped("Nodes, and the other zone's targets, are to be kept", holds, again)

	t.Must(outage.Lift(t.Context()), "bringing zone %s back", lost)
	for _, w := range hit {
		w.Ready()
	}
	targetsBack := func(ctx context.Context) error {
		now, _, err := t.Cloud.GetBalancer(ctx, b.ID)
		if err == nil {
			err = leadsToAll(all)(now)
		}
		return err
	}
	t.HoldsUntil("Nodes, and the other zone's targets, are to be kept afterwards", holds,
		"all to be as it was", allHold(targetsBack, hit.checkNodesKept))
	for _, name := range own { // Some of the cluster's machines may have been hit, too.
		t.Await("Node "+name+" to be Ready again", func(ctx context.Context) error { return t.NodeReady(ctx, name) })
	}
}

// readyNodes returns the names of all Nodes that are Ready.
func readyNodes(t *conformance.T) (names []string) {
	list, err := t.Kube.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	t.Must(err, "listing Nodes")
	for _, n := range list.Items {
		if t.NodeReady(t.Context(), n.Name) == nil {
			names = append(names, n.Name)
		}
	}
	return names
}

// chooseZones returns a zone to lose, with as few of the cluster's own machines as possible, and one to keep.
func chooseZones(t *conformance.T) (lost, other string) {
	zones, err := t.Cloud.ListZones(t.Context())
	t.Must(err, "listing zones")
	if len(zones) < 2 {
		t.Fatalf("the cloud has zones %v, and one is to be lost and one to be kept", zones)
	}
	list, err := t.Kube.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	t.Must(err, "listing Nodes")
	in := map[string]int{}
	for _, n := range list.Items {
		in[n.Labels[corev1.LabelTopologyZone]]++
	}
	slices.SortStableFunc(zones, func(a, b string) int { return cmp.Compare(in[a], in[b]) })
	return zones[0], zones[1]
}

// leadsToAll checks that all workers are among a balancer's targets.
func leadsToAll(f fleet) func(conformance.Balancer) error {
	return func(b conformance.Balancer) error {
		for _, w := range f {
			if !slices.Contains(b.Targets, w.instance.ID) {
				return fmt.Errorf(
					"balancer %s has targets %v, without Node %s's %s", b.ID, b.Targets, w.Name, w.instance.ID,
				)
			}
		}
		return nil
	}
}

// checkBalancerStays returns an error once the balancer is gone, or one of the workers is not its target.
func checkBalancerStays(t *conformance.T, b conformance.Balancer, f fleet) func(context.Context) error {
	return func(ctx context.Context) error {
		now, there, err := t.Cloud.GetBalancer(ctx, b.ID)
		switch {
		case err != nil:
			return err
		case !there:
			return fmt.Errorf("balancer %s is gone", b.ID)
		}
		return leadsToAll(f)(now)
	}
}
