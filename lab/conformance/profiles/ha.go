package profiles

// Several CCMs side by side: exactly one acts, another one does when that one cannot, and nothing is done
// twice or left behind where one takes over from the other.

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/faultproxy"
)

const (
	fromElection  = "k8s.io/client-go tools/leaderelection"
	fromLostLease = "k8s.io/cloud-provider app: OnStoppedLeading (a leader that has lost its lease ends)"
	fromLeases    = "kubernetes.io: Leases, Leader election"
)

var replicas = []conformance.Feature{conformance.FeatureReplicas}

var haTests = []conformance.Test{
	{
		ID: "ha-one-acts", Capability: conformance.CapabilityHA, Source: fromLeases + "; " + fromElection,
		Requires: "Of two CCMs one acts, and the other does nothing before it holds the Lease that the first one held.",
		Needs:    replicas, Alone: true,
		Run: func(t *conformance.T) {
			leader, _ := startLeaderAndStandby(t)
			svc, b := newServiceWithBalancer(t)
			_, changed := checkLeaseTakenOver(t)
			t.Must(leader.Freeze(), "freezing the CCM that acts")
			node := newWaitingNode(t)
			t.HoldsUntil("Node "+node+" is to wait while the Lease is that of the frozen one",
				checkNotInitialized(t, node, changed), "the other one to have taken the Lease", changed)
			t.AwaitInitialized(node)
			t.AwaitBalancer(svc, sameBalancer(b))
		},
	}, {
		ID: "ha-leader-killed", Capability: conformance.CapabilityHA, Source: fromElection + ": LeaseDuration",
		Requires: "When the CCM that acts is killed, another one does its work as soon as the Lease has run out.",
		Needs:    replicas, Alone: true, Bound: time.Minute, // Upstream's default Lease runs out after 15 s.
		Run: func(t *conformance.T) {
			leader, _ := startLeaderAndStandby(t)
			t.Must(leader.Kill(t.Context()), "killing the CCM that acts")
			t.AwaitInitialized(newWaitingNode(t))
		},
	}, {
		ID: "ha-leader-stopped", Capability: conformance.CapabilityHA,
		Source:   fromElection + "; " + fromEnsure + "; " + fromDelete,
		Requires: "When the CCM that acts is stopped, another one takes over what it made: balancers are kept, changed and deleted.",
		Needs:    replicas, Alone: true,
		Run: func(t *conformance.T) {
			leader, _ := startLeaderAndStandby(t)
			kept, deleted := t.NewService(), t.NewService()
			b := t.AwaitBalancer(kept)
			t.AwaitBalancer(deleted)
			t.Must(leader.Stop(t.Context()), "stopping the CCM that acts")
			t.DeleteService(deleted)
			changePort(t, kept)
			newServiceWithListeners(t)
			t.AwaitGone(deleted)
			t.AwaitBalancer(kept, listensFor(t, kept), sameBalancer(b))
		},
	}, {
		ID: "ha-leader-killed-creating-balancer", Capability: conformance.CapabilityHA,
		Source:   fromEnsure + " (\"creates a new load balancer 'name', or updates the existing one\")",
		Requires: "When the CCM that acts is killed before it hears that its balancer was made, the Service has exactly one balancer in the end, and none when it is deleted.",
		Needs:    slices.Concat(replicas, faultFeatures(conformance.FaultLost)),
		Alone:    true,
		Run:      haLeaderKilledCreatingBalancer,
	}, {
		ID: "ha-leader-frozen", Capability: conformance.CapabilityHA,
		Source:   fromLostLease + "; " + fromElection + ": RenewDeadline",
		Requires: "A CCM that was frozen in the middle of its work until another took over undoes nothing when it goes on, and does nothing more once it must know: it ends, or waits for the Lease.",
		Needs:    slices.Concat(replicas, faultFeatures(conformance.FaultTimeout)),
		Alone:    true, Bound: 3 * time.Minute,
		Run: haLeaderFrozen,
	}, {
		ID: "ha-lease-held", Capability: conformance.CapabilityHA,
		Source:   fromElection + " (a Lease is acquired when it has not been renewed for its duration)",
		Requires: "A CCM that starts does nothing while somebody else holds and renews the Lease, and acts once it has run out.",
		Needs:    replicas, Alone: true, Bound: 3 * time.Minute,
		Run: haLeaseHeld,
	}, {
		ID: "ha-migration-lease-held", Capability: conformance.CapabilityHA,
		Source: "KEP-2436 Controller Manager Leader Migration; k8s.io/controller-manager pkg/leadermigration: " +
			"ControllerMigrated (\"should start this controller with the migration lock\"), config: " +
			"DefaultLeaderMigrationConfiguration",
		Requires: "With --enable-leader-migration no Node is deleted while another manager holds the migration lease, though its instance has ended, and other Nodes are initialised; when the lease has run out, the Node goes.",
		Needs:    takesFlags, Alone: true, Bound: 3 * time.Minute,
		Run: haMigrationLeaseHeld,
	}, {
		ID: "ha-api-server-away", Capability: conformance.CapabilityHA,
		Source:   fromLostLease + "; " + fromElection + ": RenewDeadline, LeaseDuration",
		Requires: "When a CCM that acts cannot reach the API server for longer than its Lease lasts, it may end and be started again: once it reaches it, it holds the Lease again and does what had to wait.",
		Needs:    []conformance.Feature{conformance.FeatureFlags, conformance.FeatureLocalAPIServer},
		Alone:    true, Bound: 3 * time.Minute,
		Run: haAPIServerAway,
	},
}

// awaySeconds is how long a Lease lasts that the CCM cannot renew. No other Lease in the cluster lasts as long.
const awaySeconds = 7

func haAPIServerAway(t *conformance.T) {
	host, _, err := net.SplitHostPort(t.APIServer)
	t.Must(err, "the API server's address")
	gate, err := faultproxy.OpenGate(host, t.APIServer)
	t.Must(err, "opening a way to the API server")
	t.Cleanup(func(context.Context) error { return gate.Close() })
	t.RestartCCM("--master=https://"+gate.Address(), "--leader-elect=true",
		fmt.Sprintf("--leader-elect-lease-duration=%ds", awaySeconds),
		"--leader-elect-renew-deadline=5s", "--leader-elect-retry-period=1s")
	nodes := newFleet(t, 2)
	svc, b := newServiceWithListeners(t)

	away := t.ShutGate("the CCM's way to the API server", gate)
	late := newJoiningWorker(t)
	changePort(t, svc)
	t.HoldsUntil("Node "+late.Name+" is to wait", checkStaysUninitialized(t, late.Name),
		"the CCM to have failed to renew its Lease", allHold(checkFaultHits(t, away, 1), checkLeaseRunOut(t)))
	before, err := renewalOf(t.Context(), t)
	t.Must(err, "looking at the Lease")
	renewed := func(ctx context.Context) error {
		now, err := renewalOf(ctx, t)
		if err == nil && now.Equal(before) {
			err = errors.New("nobody has renewed the Lease")
		}
		return err
	}
	liftFault(t, away)
	t.HoldsUntil("Nodes are to be kept", nodes.checkNodesKept,
		"the CCM to hold the Lease again, and to initialise Node "+late.Name, allHold(renewed, late.checkInitialized))
	t.AwaitBalancer(svc, listensFor(t, svc), sameBalancer(b))
}

// renewalOf returns when the Lease was renewed that lasts awaySeconds.
func renewalOf(ctx context.Context, t *conformance.T) (time.Time, error) {
	all, err := listLeases(ctx, t)
	for _, l := range all {
		if d := l.Spec.LeaseDurationSeconds; d != nil && *d == awaySeconds && l.Spec.RenewTime != nil {
			return l.Spec.RenewTime.Time, nil
		}
	}
	return time.Time{}, errors.Join(err, fmt.Errorf("no Lease lasts %d s", awaySeconds))
}

// checkLeaseRunOut returns an error until the Lease was not renewed for as long as it lasts, by our clock.
func checkLeaseRunOut(t *conformance.T) func(context.Context) error {
	var last, seen time.Time
	return func(ctx context.Context) error {
		now, err := renewalOf(ctx, t)
		if err != nil {
			return err
		}
		if !now.Equal(last) {
			last, seen = now, time.Now()
		}
		return checkTimePassed(seen, awaySeconds*time.Second, "it lasts for another %s")(ctx)
	}
}

// startLeaderAndStandby returns the CCM, which leads, and another one that runs beside it.
func startLeaderAndStandby(t *conformance.T) (leader, standby conformance.Replica) {
	leader, standby = t.Replica(0), t.Replica(1)
	newWorker(t) // The CCM acts, and was first.
	t.Must(standby.Start(t.Context()), "starting a second CCM")
	return leader, standby
}

// lease is a Lease's name, with its namespace.
type lease struct{ namespace, name string }

// listLeases lists all Leases except those of Nodes.
func listLeases(ctx context.Context, t *conformance.T) ([]coordinationv1.Lease, error) {
	list, err := t.Kube.CoordinationV1().Leases(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.Items, func(l coordinationv1.Lease) bool {
		return l.Namespace == corev1.NamespaceNodeLease
	}), nil
}

// leaseHolders returns the holder of each Lease, without the Leases of Nodes.
func leaseHolders(ctx context.Context, t *conformance.T) (map[lease]string, error) {
	all, err := listLeases(ctx, t)
	held := map[lease]string{}
	for _, l := range all {
		if l.Spec.HolderIdentity != nil {
			held[lease{l.Namespace, l.Name}] = *l.Spec.HolderIdentity
		}
	}
	return held, err
}

// checkLeaseTakenOver returns an error until one of the Leases that are held now has another holder. It then
// sets taken to that Lease. No other Lease changes hands while the tests of HA run.
func checkLeaseTakenOver(t *conformance.T) (taken *lease, check func(context.Context) error) {
	before, err := leaseHolders(t.Context(), t)
	t.Must(err, "looking who holds which Lease")
	taken = new(lease)
	return taken, func(ctx context.Context) error {
		now, err := leaseHolders(ctx, t)
		if err != nil {
			return err
		}
		for l, holder := range before {
			if now[l] != "" && now[l] != holder {
				*taken = l
				return nil
			}
		}
		return fmt.Errorf("of %d Leases that are not of Nodes, none has changed hands", len(before))
	}
}

// newWaitingNode makes an instance and its Node, which waits for a CCM.
func newWaitingNode(t *conformance.T) string {
	return t.NewNodeOf(t.NewInstance(t.Name("waiting")), conformance.NodeSpec{}).Name
}

// checkNotInitialized fails if the CCM initialised the Node while allowed returned an error.
func checkNotInitialized(t *conformance.T, node string, allowed func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		if checkStaysUninitialized(t, node)(ctx) == nil {
			return nil
		}
		if _, err := t.Initialized(ctx, node); err != nil {
			return err
		}
		if err := allowed(ctx); err != nil {
			return fmt.Errorf("it was initialised, and %w", err)
		}
		return nil
	}
}

// sameBalancer checks that a balancer has the ID of the one before.
func sameBalancer(before conformance.Balancer) func(conformance.Balancer) error {
	return func(b conformance.Balancer) error {
		if b.ID != before.ID {
			return fmt.Errorf("it is %s, and was %s", b.ID, before.ID)
		}
		return nil
	}
}

func haLeaderKilledCreatingBalancer(t *conformance.T) {
	leader, _ := startLeaderAndStandby(t)
	fault := injectFault(t, "having the cloud's answers get lost", conformance.FaultLost, conformance.Balancers)
	svc := t.NewService()
	t.Await("the cloud to have made a balancer of which the CCM does not know", func(ctx context.Context) error {
		there, err := t.BalancersOf(ctx, svc)
		if err == nil && len(there) == 0 {
			err = errors.New("there is none")
		}
		return err
	})
	t.Must(leader.Kill(t.Context()), "killing the CCM that acts")
	liftFault(t, fault)
	requireOnlyBalancer(t, svc)
}

// requireOnlyBalancer requires that the Service has one balancer, as the checks want, which takes a change and
// goes with the Service.
func requireOnlyBalancer(t *conformance.T, svc *corev1.Service, checks ...func(conformance.Balancer) error) {
	before := t.AwaitBalancer(svc, append(checks, listensFor(t, svc))...)
	changePortAndAwait(t, svc, sameBalancer(before))
	deleteAndAwaitGone(t, svc)
}

func haLeaderFrozen(t *conformance.T) {
	leader, other := startLeaderAndStandby(t)
	its, changed := checkLeaseTakenOver(t)
	svc := freezeWhileCreating(t, leader)
	t.Await("the other one to have taken the Lease", changed)
	t.AwaitInitialized(newWaitingNode(t))
	before := t.AwaitBalancer(svc, listensFor(t, svc))

	duration := leaseDuration(t, *its)
	t.Must(leader.Thaw(), "thawing the CCM that lost its Lease")
	thawed := time.Now()
	// It may take as long to notice as it is allowed to be unable to renew its Lease,
	// which is less than the Lease lasts. Until then there are two that act.
	t.HoldsUntil("what the other one made is to stay as it is", func(ctx context.Context) error {
		b, err := t.TheBalancer(ctx, svc)
		return errors.Join(err, sameBalancer(before)(b))
	}, "the thawed one to have noticed",
		eitherHolds(checkEnded(leader), checkTimePassed(thawed, duration, "it has %s left to notice")))
	if leader.Running() {
		requireWaitsForLease(t, leader, other)
	}
	t.Must(leader.Start(t.Context()), "starting the first one again") // The other may have lost the Lease, too.
	requireOnlyBalancer(t, svc, sameBalancer(before))
}

// requireWaitsForLease requires that a CCM that lost the Lease does nothing while the other one, which is
// frozen, holds it.
func requireWaitsForLease(t *conformance.T, loser, other conformance.Replica) {
	_, changed := checkLeaseTakenOver(t)
	t.Must(other.Freeze(), "freezing the CCM that acts by now")
	node := newWaitingNode(t)
	t.HoldsUntil("Node "+node+" is to wait while the Lease is the other one's", checkNotInitialized(t, node, changed),
		"the one that lost it to have ended, or to have it again", eitherHolds(changed, checkEnded(loser)))
	t.Must(other.Thaw(), "thawing the other one")
}

// checkEnded returns an error while the replica runs.
func checkEnded(r conformance.Replica) func(context.Context) error {
	return func(context.Context) error {
		if r.Running() {
			return errors.New("it runs")
		}
		return nil
	}
}

// leaseDuration returns how long the Lease lasts when it is not renewed.
func leaseDuration(t *conformance.T, l lease) time.Duration {
	now, err := t.Kube.CoordinationV1().Leases(l.namespace).Get(t.Context(), l.name, metav1.GetOptions{})
	t.Must(err, "looking at Lease %s", l.name)
	if now.Spec.LeaseDurationSeconds == nil {
		t.Fatalf("Lease %s does not say how long it lasts", l.name)
	}
	return time.Duration(*now.Spec.LeaseDurationSeconds) * time.Second
}

// freezeWhileCreating freezes the leader while it makes the balancer of a Service, which it returns.
func freezeWhileCreating(t *conformance.T, leader conformance.Replica) *corev1.Service {
	fault := injectFault(t, "having the cloud not answer", conformance.FaultTimeout, conformance.Balancers)
	about := checkFaultHits(t, fault, 1)
	svc := t.NewService()
	t.Await("the CCM to be about the Service's balancer", about)
	t.Must(leader.Freeze(), "freezing the CCM that acts")
	liftFault(t, fault)
	return svc
}

func haLeaseHeld(t *conformance.T) {
	newWorker(t) // The CCM acts, so it holds its Lease.
	// Which Lease it is, and how long it takes the CCM to start and to get it, shows
	// when it does.
	its, changed := checkLeaseTakenOver(t)
	restart := stopCCM(t)
	began := time.Now()
	restart()
	t.Await("the CCM to take its Lease", changed)
	lasts := leaseDuration(t, *its)
	enough := time.Since(began) + lasts // If it were to run out.

	t.Must(t.CCM.Stop(t.Context()), "stopping the CCM")
	held, release := holdLease(t, *its, lasts)
	t.Must(t.CCM.Start(t.Context()), "starting the CCM")
	began = time.Now()
	node := newWaitingNode(t)
	t.HoldsUntil("Node "+node+" is to wait while Lease "+its.name+" is held", func(ctx context.Context) error {
		return errors.Join(checkStaysUninitialized(t, node)(ctx), held(ctx))
	}, "the CCM to have had as long as it took before, and the Lease lasts",
		checkTimePassed(began, enough, "it has %s left"))
	release()
	t.AwaitInitialized(node)
}

// migrationLease is that of upstream's DefaultLeaderMigrationConfiguration, whose holder runs the
// cloud-node-lifecycle-controller.
const migrationLease = "cloud-provider-extraction-migration"

func haMigrationLeaseHeld(t *conformance.T) {
	workers := fleet{newWorker(t), newWorker(t)}
	var its lease
	t.Cleanup(func(ctx context.Context) error { return removeMigrationLease(ctx, t, its) }) // The flag is gone then.
	main, led := checkLeaseTakenOver(t)
	t.RestartCCM("--enable-leader-migration")
	t.Await("the CCM to lead", led)
	its = lease{main.namespace, migrationLease} // Upstream has both in one namespace.
	grantMigrationLease(t, its)
	t.Await("the CCM to take the migration lease", func(ctx context.Context) error {
		held, err := leaseHolders(ctx, t)
		if err == nil && (held[its] == "" || held[its] == holder) {
			err = fmt.Errorf("%q holds Lease %s", held[its], its.name)
		}
		return err
	})
	t.Must(t.CCM.Stop(t.Context()), "stopping the CCM")
	held, release := holdLease(t, its, leaseDuration(t, its))
	t.Must(t.CCM.Start(t.Context()), "starting the CCM")
	notReady := endInstancesLeftToOthers(t, workers, held)
	release()
	t.AwaitNoNode(notReady.Name)
}

// grantMigrationLease makes the lease and lets the CCM take it, as the documentation of leader migration has it
// (Grant access to Migration Lease). Whom the API server takes the CCM for is not known here.
func grantMigrationLease(t *conformance.T, l lease) {
	named := metav1.ObjectMeta{Name: l.name, Namespace: l.namespace}
	_, err1 := t.Kube.CoordinationV1().Leases(l.namespace).
		Create(t.Context(), &coordinationv1.Lease{ObjectMeta: named}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err1) {
		err1 = nil
	}
	mayTake := rbacv1.PolicyRule{
		APIGroups: []string{coordinationv1.GroupName}, Resources: []string{"leases"}, ResourceNames: []string{l.name},
		Verbs: []string{"get", "update"},
	}
	_, err2 := t.Kube.RbacV1().Roles(l.namespace).
		Create(t.Context(), &rbacv1.Role{ObjectMeta: named, Rules: []rbacv1.PolicyRule{mayTake}}, metav1.CreateOptions{})
	_, err3 := t.Kube.RbacV1().RoleBindings(l.namespace).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: named, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: l.name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "system:authenticated"}},
	}, metav1.CreateOptions{})
	t.Must(errors.Join(err1, err2, err3), "letting the CCM take Lease %s", l.name)
}

func removeMigrationLease(ctx context.Context, t *conformance.T, l lease) error {
	if l.name == "" {
		return nil
	}
	return errors.Join(
		t.Kube.RbacV1().RoleBindings(l.namespace).Delete(ctx, l.name, metav1.DeleteOptions{}),
		t.Kube.RbacV1().Roles(l.namespace).Delete(ctx, l.name, metav1.DeleteOptions{}),
		t.Kube.CoordinationV1().Leases(l.namespace).Delete(ctx, l.name, metav1.DeleteOptions{}),
	)
}

// holder is the identity with which the suite holds a Lease.
const holder = "the-conformance-suite"

// holdLease takes the Lease and renews it until it is released, as another CCM would. held returns an error
// once somebody has taken the Lease away. lasts is its duration as it was when the CCM held it: a CCM that
// gives its Lease back leaves a duration of a second.
func holdLease(t *conformance.T, l lease, lasts time.Duration) (held func(context.Context) error, release func()) {
	leases := t.Kube.CoordinationV1().Leases(l.namespace)
	renew := func(ctx context.Context) error {
		now, err := leases.Get(ctx, l.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		by, at, seconds := holder, metav1.NowMicro(), int32(lasts.Seconds())
		now.Spec.HolderIdentity, now.Spec.RenewTime, now.Spec.LeaseDurationSeconds = &by, &at, &seconds
		_, err = leases.Update(ctx, now, metav1.UpdateOptions{})
		return err
	}
	held = func(ctx context.Context) error {
		now, err := leases.Get(ctx, l.name, metav1.GetOptions{})
		if err == nil && (now.Spec.HolderIdentity == nil || *now.Spec.HolderIdentity != holder) {
			err = errors.New("the Lease was taken from its holder, which renews it")
		}
		return err
	}
	t.Must(renew(t.Context()), "taking Lease %s", l.name)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			if held(ctx) == nil {
				if err := renew(ctx); err != nil && ctx.Err() == nil {
					t.Logf("renewing Lease %s: %v", l.name, err)
				}
			}
		}
	}()
	release = func() { cancel(); <-ended }
	t.Cleanup(func(context.Context) error { release(); return nil })
	return held, release
}
