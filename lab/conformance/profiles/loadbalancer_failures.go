package profiles

// Balancers while the CCM is away or the cloud fails, and balancers that others delete, rename or name alike.

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/ccmlab/ccmlab/lab/conformance"
)

var whileUnavailable = faultFeatures(conformance.FaultUnavailable)

var balancerFailureTests = []conformance.Test{
	{
		ID: "lb-created-while-ccm-down", Source: fromService,
		Requires: "A Service that was created while no CCM ran gets its balancer when one runs.",
		Alone:    true,
		Run: func(t *conformance.T) {
			restart := stopCCM(t)
			svc := t.NewService()
			restart()
			t.AwaitBalancer(svc, listensFor(t, svc))
		},
	}, {
		ID: "lb-changed-while-ccm-down", Source: fromEnsure,
		Requires: "What changed about a Service while no CCM ran is done to its balancer when one runs.",
		Alone:    true,
		Run: func(t *conformance.T) {
			changed, retyped := t.NewService(), t.NewService()
			t.AwaitBalancer(changed, listensFor(t, changed))
			t.AwaitBalancer(retyped)
			restart := stopCCM(t)
			changePort(t, changed)
			t.Change(retyped, func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP })
			restart()
			t.AwaitBalancer(changed, listensFor(t, changed))
			t.AwaitNoBalancer(retyped)
		},
	}, {
		ID: "lb-deleted-with-ccm-down", Source: fromCleanup,
		Requires: "A Service that is deleted while no CCM runs stays, and so does its balancer, until one runs; then both go.",
		Alone:    true,
		Run: func(t *conformance.T) {
			svc, b := newServiceWithBalancer(t)
			restart := stopCCM(t)
			t.DeleteService(svc)
			t.Must(checkFinalizer(t.Context(), t, svc), "looking at a deleted Service while no CCM runs")
			_, there, err := t.Cloud.GetBalancer(t.Context(), b.ID)
			t.Must(err, "looking at balancer %s", b.ID)
			require.True(t, there, "the balancer is gone, and there is no CCM")
			restart()
			t.AwaitGone(svc)
		},
	}, {
		ID: "lb-create-retried", Source: fromEnsure,
		Requires: "A Service that is created while the cloud is not available gets exactly one balancer when it is.",
		Needs:    whileUnavailable, Alone: true,
		Run: func(t *conformance.T) {
			fault := makeBalancersUnavailable(t)
			svc := t.NewService()
			t.Await("the CCM to have tried again", checkRetried(t, svc, fault))
			liftFault(t, fault)
			before := t.AwaitBalancer(svc, listensFor(t, svc))
			after := changePortAndAwait(t, svc) // Whatever was left to be tried again is over after this.
			assert.Equal(t, before.ID, after.ID)
		},
	}, {
		ID: "lb-delete-retried", Source: fromCleanup,
		Requires: "A Service that is deleted while the cloud is not available stays as long as its balancer, and both go when the cloud is available.",
		Needs:    whileUnavailable, Alone: true,
		Incident: cloudDownWhileDeletingIncident,
		Run: func(t *conformance.T) {
			svc, b := newServiceWithBalancer(t)
			fault := makeBalancersUnavailable(t)
			tried := checkRetried(t, svc, fault)
			t.DeleteService(svc)
			holdsUntilFaultLifted(t, svc, b, fault, tried)
		},
	}, {
		ID: "lb-delete-retried-after-restart", Source: fromCleanup,
		Requires: "A Service that is deleted before a CCM starts that cannot ask the cloud stays as long as its balancer, and both go when the cloud is available.",
		Needs:    whileUnavailable, Alone: true,
		Run: lbDeleteRetriedAfterRestart,
	}, {
		ID: "lb-change-retried", Source: fromEnsure,
		Requires: "Ports of a Service that change while the cloud is not available, and change again after the CCM has tried, are those of its balancer soon after the cloud is available.",
		Needs:    append([]conformance.Feature{conformance.FeatureListeners}, whileUnavailable...), Alone: true,
		Run: func(t *conformance.T) {
			svc, before := newServiceWithListeners(t)
			fault := makeBalancersUnavailable(t)
			tried := checkRetried(t, svc, fault)
			changePort(t, svc)
			t.Await("the CCM to have tried again", tried)
			t.Change(svc, func(s *corev1.Service) { addPort(t, s) })
			liftFault(t, fault)
			assert.Equal(t, before.ID, t.AwaitBalancer(svc, listensFor(t, svc)).ID)
		},
	}, {
		ID: "lb-namespace-deleted-with-cloud-down", Source: fromCleanup + "; kubernetes.io: Finalizers",
		Requires: "When a namespace is deleted while the cloud is not available, its Services stay as long as their balancers, and all go when the cloud is available.",
		Needs:    whileUnavailable, Alone: true,
		Run: func(t *conformance.T) {
			services := newServicesWithBalancers(t, 2)
			fault := makeBalancersUnavailable(t)
			tried := checkFaultHits(t, fault, 2*t.Attempts+1) // No Event tells: the namespace takes none any more.
			deleteNamespace(t)
			t.HoldsUntil("the Services stay", func(ctx context.Context) error {
				return errors.Join(checkFinalizer(ctx, t, services[0]), checkFinalizer(ctx, t, services[1]))
			}, "the CCM to have tried again", tried)
			liftFault(t, fault)
			for _, svc := range services {
				t.AwaitGone(svc)
			}
		},
	}, {
		ID: "lb-deleted-with-others-credentials", Capability: conformance.CapabilityOwnProject,
		Source:   fromDelete + " (another project's cloud cannot say that it does not exist)",
		Requires: "A Service that is deleted while a CCM that has just started has the credentials of another project, in which there is nothing, leaves nothing behind when it has its own.",
		Needs:    []conformance.Feature{conformance.FeatureOtherProject}, Alone: true,
		Run: lbDeletedWithOthersCredentials,
	}, {
		ID: "lb-targets-retried", Source: fromUpdate + "; " + fromNodeSet,
		Requires: "A balancer's targets that could not be changed while the cloud was not available are right when it is, though nothing else changes.",
		Needs:    append([]conformance.Feature{conformance.FeatureTargets}, whileUnavailable...), Alone: true,
		Bound: 4 * time.Minute, // The service controller tries again every 100 s (nodeSyncPeriod).
		Run: func(t *conformance.T) {
			svc := t.NewService()
			own := t.AwaitBalancer(svc, listensFor(t, svc)).Targets
			instance, node := t.NewWorker(conformance.NodeSpec{Balanced: true})
			t.AwaitBalancer(svc, leadsTo(own, instance.ID))
			fault := makeBalancersUnavailable(t)
			setExclusionLabel(t, node.Name, `"true"`)
			t.Await("the CCM to have tried", checkFaultHits(t, fault, t.Attempts+1))
			liftFault(t, fault)
			t.AwaitBalancer(svc, leadsTo(own))
		},
	}, {
		ID: "lb-says-why", Capability: conformance.CapabilityExplains,
		Source:   "kubernetes.io: Debug Services; k8s.io/cloud-provider controllers/service: SyncLoadBalancerFailed",
		Requires: "While a Service cannot get its balancer because the cloud is not available, an Event of type Warning on it says that.",
		Needs:    whileUnavailable, Alone: true,
		Run: func(t *conformance.T) {
			fault := makeBalancersUnavailable(t)
			svc := t.NewService()
			t.Await("a Warning on the Service that the cloud is not available", checkWarning(t, svc, aboutOutage))
			liftFault(t, fault)
			t.AwaitBalancer(svc)
		},
	}, {
		ID: "lb-no-address-while-building", Capability: conformance.CapabilityActiveStatus,
		Source:   fromPublished,
		Requires: "As long as the cloud is still building its balancer, a Service has no address; then it has the balancer's.",
		Needs:    faultFeatures(conformance.FaultStuck),
		Alone:    true, // No other balancer gets done either.
		Run: func(t *conformance.T) {
			fault := injectOnBalancers(t, conformance.FaultStuck)
			svc := awaitNoAddress(t, fault)
			liftFault(t, fault)
			t.AwaitBalancer(svc, listensFor(t, svc))
		},
	}, {
		ID: "lb-no-address-when-failed", Capability: conformance.CapabilityActiveStatus, Source: fromPublished,
		Requires: "A Service whose balancer the cloud could not build has no address, and is deleted with the balancer like any other.",
		Needs:    faultFeatures(conformance.FaultBuildFails),
		Alone:    true, // No other balancer is built either.
		Run: func(t *conformance.T) {
			fault := injectOnBalancers(t, conformance.FaultBuildFails)
			svc := awaitNoAddress(t, fault)
			liftFault(t, fault)
			// Whether a balancer that has failed can still become one that works is a matter of the cloud.
			deleteAndAwaitGone(t, svc)
		},
	}, {
		ID: "lb-deleted-out-of-band-then-changed", Capability: conformance.CapabilityDrift,
		Source:   fromEnsure + " (\"creates a new load balancer 'name', or updates the existing one\")",
		Requires: "When the balancer was deleted behind the CCM's back, the next change of the Service gives it a new one, and the new address.",
		Run: func(t *conformance.T) {
			svc, old := newServiceWithoutBalancer(t)
			b := changePortAndAwait(t, svc)
			assert.NotEqual(t, old.ID, b.ID)
		},
	}, {
		ID: "lb-deleted-out-of-band-then-service-deleted", Source: fromDelete,
		Requires: "A Service whose balancer was deleted behind the CCM's back can be deleted.",
		Run: func(t *conformance.T) {
			svc, _ := newServiceWithoutBalancer(t)
			deleteAndAwaitGone(t, svc)
		},
	}, {
		ID: "lb-deleted-out-of-band-comes-back", Capability: conformance.CapabilityRepair, Source: fromService,
		Requires: "A balancer that was deleted behind the CCM's back is replaced without anybody touching the Service.",
		Incident: deletedByHandIncident,
		Run: func(t *conformance.T) {
			svc, old := newServiceWithoutBalancer(t)
			awaitRepaired(t, svc, halfAMinute)
			b := t.AwaitBalancer(svc)
			assert.NotEqual(t, old.ID, b.ID)
		},
	}, {
		ID: "lb-renamed-balancer", Capability: conformance.CapabilityRename, Source: fromEnsure,
		Requires: "A balancer that was renamed behind the CCM's back stays the Service's: changes reach it, there is no second, and it goes with the Service.",
		Needs:    []conformance.Feature{conformance.FeatureRenameBalancer},
		Incident: renamedBalancerIncident,
		Run: func(t *conformance.T) {
			svc, b := newServiceWithBalancer(t)
			renameBalancer(t, b)
			assert.Equal(t, b.ID, changePortAndAwait(t, svc).ID)
			renameBalancer(t, b)
			deleteAndAwaitGone(t, svc)
		},
	}, {
		ID: "lb-stranger-of-same-name", Capability: conformance.CapabilityRename, Source: fromEnsure,
		Requires: "Somebody else's balancer that has the name that the Service's one had is left alone, and the Service's own, renamed, is not.",
		Needs:    []conformance.Feature{conformance.FeatureRenameBalancer, conformance.FeatureStrangers},
		Run: func(t *conformance.T) {
			svc, b := newServiceWithBalancer(t)
			renameBalancer(t, b)
			stranger := createStranger(t, b.Name)

			assert.Equal(t, b.ID, changePortAndAwait(t, svc).ID)
			deleteAndAwaitGone(t, svc)
			now, there, err := t.Cloud.GetBalancer(t.Context(), stranger.ID)
			t.Must(err, "looking at balancer %s", stranger.ID)
			require.True(t, there, "the stranger's balancer is gone")
			assert.Equal(t, balancerIdentity(stranger), balancerIdentity(now))
		},
	}, {
		ID: "lb-of-namesake-cluster", Capability: conformance.CapabilityNamesakeClusters,
		Source:   fromEnsure + "; config: KubeCloudSharedConfiguration.ClusterName, which every cluster has by default",
		Requires: "A balancer of another cluster that has the same name, in the same project, is left alone, though there is no Service here that it is for.",
		Needs:    []conformance.Feature{conformance.FeatureNamesakeBalancers}, Alone: true, // The CCM is restarted.
		Bound: conformance.DefaultBound + namesakePatience,
		Run:   lbOfNamesakeCluster,
	}, {
		ID: "lb-name-taken", Capability: conformance.CapabilityRename, Source: fromEnsure,
		Requires: "Somebody else's balancer that has the name that the Service's own would get is left alone, and not taken for the Service's; when it is gone, the Service gets its own.",
		Needs:    []conformance.Feature{conformance.FeatureStrangers}, Alone: true, // No CCM runs meanwhile.
		Run: lbNameTaken,
	}, {
		ID: "lb-quiet", Capability: conformance.CapabilityQuiet, Source: fromEnsure,
		Requires: "A change of the Service that asks nothing of its balancer has nothing written to the cloud.",
		Needs:    []conformance.Feature{conformance.FeatureCalls},
		Alone:    true, // The calls of all tests are counted together.
		Run:      lbQuiet,
	},
}

// lbDeleteRetriedAfterRestart restarts the CCM, so that it remembers no balancer.
func lbDeleteRetriedAfterRestart(t *conformance.T) {
	svc, b := newServiceWithBalancer(t)
	restart := stopCCM(t)
	t.DeleteService(svc)
	fault := makeBalancersUnavailable(t)
	tried := checkRetried(t, svc, fault)
	restart()
	holdsUntilFaultLifted(t, svc, b, fault, tried)
}

// holdsUntilFaultLifted watches that a Service that is being deleted stays, with its balancer, until the CCM
// has tried again. Then it lifts the fault, and waits for both to go.
func holdsUntilFaultLifted(
	t *conformance.T, svc *corev1.Service, b conformance.Balancer, fault conformance.Injection,
	tried func(context.Context) error,
) {
	t.HoldsUntil("the Service and its balancer stay", func(ctx context.Context) error {
		_, there, err := t.Cloud.GetBalancer(ctx, b.ID)
		if err == nil && !there {
			err = errors.New("the balancer is gone, and the cloud was not available")
		}
		return errors.Join(err, checkFinalizer(ctx, t, svc))
	}, "the CCM to have tried again", tried)
	liftFault(t, fault)
	t.AwaitGone(svc)
}

func lbDeletedWithOthersCredentials(t *conformance.T) {
	svc, b := newServiceWithBalancer(t)
	// By force, or the end of the Service waits for a CCM that has given it up.
	t.Cleanup(func(ctx context.Context) error { return t.Cloud.DeleteBalancer(ctx, b.ID) })
	restart := stopCCM(t)
	swap, err := t.Cloud.SwapCredentials(t.Context())
	t.Must(err, "giving the CCM another project's credentials")
	restartAfterTest(t)
	t.Cleanup(swap.Lift)
	t.DeleteService(svc)
	toldTwice := checkFailuresTold(t, svc)
	restart()
	gone := func(ctx context.Context) error { return t.NoService(ctx, svc) }
	t.Await("the CCM to have tried twice", eitherHolds(gone, toldTwice))
	t.Must(swap.Lift(t.Context()), "giving the CCM its own credentials back")
	t.AwaitGone(svc)
}

// injectOnBalancers injects a fault into calls about balancers, or into balancers that are made from now on.
func injectOnBalancers(t *conformance.T, kind conformance.FaultKind) conformance.Injection {
	return injectFault(t, "injecting "+string(kind), kind, conformance.Balancers)
}

// buildPatience is how long a CCM that waits for a balancer is given to say that it has one.
const buildPatience = 20 * time.Second

// awaitNoAddress makes a Service, and watches that it gets no address until the CCM has had its chance to give
// it one: until its balancer has met the fault, and then those of two other Services, one after the other. A
// CCM that waits for its balancer makes no other meanwhile: for it, buildPatience is enough.
func awaitNoAddress(t *conformance.T, fault conformance.Injection) *corev1.Service {
	svc, befallen := newServiceUnderFault(t, fault)
	noAddress := func(ctx context.Context) error {
		now, err := t.GetService(ctx, svc)
		if err == nil && len(now.Status.LoadBalancer.Ingress) > 0 {
			err = fmt.Errorf("it has %v", now.Status.LoadBalancer.Ingress)
		}
		return err
	}
	what := "Service " + svc.Name + " is to have no address"
	t.HoldsUntil(what, noAddress, "its balancer to meet the fault", befallen)
	waits := checkTimePassed(time.Now(), buildPatience, "the CCM may wait for the first balancer for another %s")
	for range 2 {
		other, befallen := newServiceUnderFault(t, fault)
		until := "the balancer of Service " + other.Name + " to meet it, too"
		t.HoldsUntil(what, noAddress, until, eitherHolds(befallen, waits))
	}
	return svc
}

// newServiceUnderFault makes a Service. befallen returns an error until the Service has a balancer, and the
// fault has befallen one more thing since.
func newServiceUnderFault(
	t *conformance.T, fault conformance.Injection,
) (svc *corev1.Service, befallen func(context.Context) error) {
	hit := checkFaultHits(t, fault, 1)
	svc = t.NewService()
	return svc, allHold(hit, func(ctx context.Context) error {
		have, err := t.BalancersOf(ctx, svc)
		if err == nil && len(have) == 0 {
			err = fmt.Errorf("service %s has no balancer yet", svc.Name)
		}
		return err
	})
}

// makeBalancersUnavailable has the cloud answer 503 to calls about balancers.
func makeBalancersUnavailable(t *conformance.T) conformance.Injection {
	return injectFault(t, "making the cloud unavailable", conformance.FaultUnavailable, conformance.Balancers)
}

// checkRetried returns an error until the CCM has given up on the Service's balancer and begun anew: Events
// tell of two failures, as upstream's service controller sends one for each, or enough calls have met the
// fault. Its client may send a call several times before the CCM hears that it failed, and as many times
// another call, such as a list of all balancers to remember.
func checkRetried(t *conformance.T, svc *corev1.Service, fault conformance.Injection) func(context.Context) error {
	toldTwice := checkFailuresTold(t, svc)
	return eitherHolds(checkFaultHits(t, fault, 2*t.Attempts+1), toldTwice)
}

// checkFailuresTold returns an error until Events have told of two more failures with the Service.
func checkFailuresTold(t *conformance.T, svc *corev1.Service) func(context.Context) error {
	before := countFailureEvents(t, svc)
	return func(context.Context) error {
		if now := countFailureEvents(t, svc); now < before+2 {
			return fmt.Errorf("of %d failures it was told in Events, want 2", now-before)
		}
		return nil
	}
}

// newServiceWithoutBalancer makes a Service and deletes its balancer behind the CCM's back.
func newServiceWithoutBalancer(t *conformance.T) (*corev1.Service, conformance.Balancer) {
	svc, b := newServiceWithBalancer(t)
	t.Must(t.Cloud.DeleteBalancer(t.Context(), b.ID), "deleting balancer %s", b.ID)
	return svc, b
}

// namesakePatience is how long a CCM may look at a balancer without a Service before it deletes it.
const namesakePatience = 2 * time.Minute

// lbOfNamesakeCluster makes an orphan of this cluster beside the balancer of the other one: a CCM that deletes
// the orphan has seen the other one, too.
func lbOfNamesakeCluster(t *conformance.T) {
	// The older one: who judges both at once begins with it.
	theirs, err := t.Cloud.CreateNamesakeBalancer(t.Context(), conformance.Name{Name: t.Name("namesake")})
	t.Must(err, "creating a balancer of another cluster of the same name")
	t.Cleanup(func(ctx context.Context) error { return t.Cloud.DeleteBalancer(ctx, theirs.ID) })
	orphaning, served := t.NewService(), t.NewService()
	orphan := t.AwaitBalancer(orphaning)
	t.Cleanup(func(ctx context.Context) error { return t.Cloud.DeleteBalancer(ctx, orphan.ID) })
	t.AwaitBalancer(served)
	restart := stopCCM(t)
	t.Change(orphaning, func(s *corev1.Service) { s.Finalizers = nil })
	t.DeleteService(orphaning)
	restart()
	deleteAndAwaitGone(t, served)
	t.HoldsUntil(
		"the other cluster's balancer is to be left alone", func(ctx context.Context) error {
			now, there, err := t.Cloud.GetBalancer(ctx, theirs.ID)
			switch {
			case err != nil:
				return err
			case !there:
				return errors.New("it is gone")
			case !assert.ObjectsAreEqual(balancerIdentity(theirs), balancerIdentity(now)):
				return fmt.Errorf("%v has become %v", balancerIdentity(theirs), balancerIdentity(now))
			}
			return nil
		},
		"the CCM to have looked for balancers without a Service",
		eitherHolds(checkTimePassed(time.Now(), namesakePatience, "that is in %s"), func(ctx context.Context) error {
			_, there, err := t.Cloud.GetBalancer(ctx, orphan.ID)
			if err == nil && there {
				err = fmt.Errorf("%s is still there", orphan.ID)
			}
			return err
		}),
	)
}

// lbNameTaken learns the name that the CCM chooses from the first balancer, which it then deletes.
func lbNameTaken(t *conformance.T) {
	svc, first := newServiceWithBalancer(t)
	restart := stopCCM(t)
	t.Must(t.Cloud.DeleteBalancer(t.Context(), first.ID), "deleting balancer %s", first.ID)
	stranger := createStranger(t, first.Name)
	restart()
	changePort(t, svc)
	made := checkOneBalancer(t, svc) // A cloud may allow several of a name.
	toldTwice := checkFailuresTold(t, svc)
	t.HoldsUntil("balancer "+stranger.ID+" is to be left alone", func(ctx context.Context) error {
		now, there, err := t.Cloud.GetBalancer(ctx, stranger.ID)
		switch {
		case err != nil:
			return err
		case !there:
			return errors.New("it is gone")
		case !assert.ObjectsAreEqual(balancerIdentity(stranger), balancerIdentity(now)):
			return fmt.Errorf("it was %+v and is %+v", stranger, now)
		}
		return nil
	}, "the CCM to have made another, or to say why not, twice", eitherHolds(made, toldTwice))
	t.Must(t.Cloud.DeleteBalancer(t.Context(), stranger.ID), "deleting balancer %s", stranger.ID)
	touchService(t, svc, "the name is free")
	b := t.AwaitBalancer(svc, listensFor(t, svc))
	assert.NotEqual(t, stranger.ID, b.ID)
}

// createStranger makes somebody else's balancer of this name, until the end of the test.
func createStranger(t *conformance.T, name string) conformance.Balancer {
	stranger, err := t.Cloud.CreateForeignBalancer(t.Context(), conformance.Name{Name: name})
	t.Must(err, "creating a balancer named %s", name)
	t.Cleanup(func(ctx context.Context) error { return t.Cloud.DeleteBalancer(ctx, stranger.ID) })
	return stranger
}

// renameBalancer gives the balancer a name that no CCM gives.
func renameBalancer(t *conformance.T, b conformance.Balancer) {
	err := t.Cloud.RenameBalancer(t.Context(), b.ID, conformance.Name{Name: t.Name("renamed")})
	t.Must(err, "renaming balancer %s", b.ID)
}

func lbQuiet(t *conformance.T) {
	svc, _ := newServiceWithListeners(t)
	// Whatever an earlier test left the CCM to do is over some time; what a
	// CCM writes for nothing it writes each time.
	last, lastTold, quiet := countCloudCalls(t), countEventsOf(t, svc, ""), 0
	var wrote error // at its last look, if it did
	touchService(t, svc, "0")
	t.Await("the CCM to look twice and write nothing", func(ctx context.Context) error {
		now, err := t.Cloud.CountCalls(ctx)
		if err != nil {
			return err
		}
		// One that remembers what the cloud has need not ask; it says that it looked.
		nowTold := countEventsOf(t, svc, "")
		if now.Reads == last.Reads && nowTold == lastTold {
			return errors.Join(wrote, errors.New(
				"the Service was touched, and it has neither asked the cloud anything nor told of it in an Event",
			))
		}
		if quiet, wrote = quiet+1, nil; now.Writes > last.Writes {
			quiet, wrote = 0, fmt.Errorf("the Service was touched, and it has written %d times", now.Writes-last.Writes)
		}
		if quiet == 2 {
			return nil
		}
		last, lastTold = now, nowTold
		touchService(t, svc, fmt.Sprint(now.Reads, nowTold))
		return errors.Join(wrote, errors.New("it is to look again"))
	})
	before := countCloudCalls(t)
	changePortAndAwait(t, svc)
	if t.HasFeature(conformance.FeatureListeners) {
		assert.Greater(t, countCloudCalls(t).Writes, before.Writes, "a change that matters is written, and counted")
	}
}

// countFailureEvents counts how often the most frequent Warning about the Service has occurred: one failure may
// have several Events.
func countFailureEvents(t *conformance.T, svc *corev1.Service) (most int32) {
	told := map[string]int32{}
	for _, e := range eventsOnService(t, svc) {
		if e.Type == corev1.EventTypeWarning {
			told[e.Reason] += max(1, e.Count)
			most = max(most, told[e.Reason])
		}
	}
	return most
}

func eventsOnService(t *conformance.T, svc *corev1.Service) []corev1.Event {
	events, err := listEvents(t.Context(), t, svc.Namespace, fields.Set{"involvedObject.uid": string(svc.UID)})
	t.Must(err, "listing the Events on Service %s", svc.Name)
	return events
}

func countCloudCalls(t *conformance.T) conformance.Calls {
	c, err := t.Cloud.CountCalls(t.Context())
	t.Must(err, "counting the CCM's calls")
	return c
}

// balancerDoubtTests returns tests of answers that do not say that a balancer is gone.
func balancerDoubtTests() []conformance.Test {
	answers := []struct {
		kind conformance.FaultKind
		what string
		// retried is what a client may send again before the CCM hears of it.
		retried bool
		bound   time.Duration
	}{
		// It is about a leak that lasts.
		{conformance.FaultEmptyList, "is a list with nothing in it", false, time.Minute},
		{
			conformance.FaultForeignNotFound,
			"is that they are not found in another project or account than the CCM's (404)", false, time.Minute,
		},
		{conformance.FaultTimeout, "does not come in time", true, 5 * time.Minute}, // Clients wait long.
	}
	var tests []conformance.Test
	for _, answer := range answers {
		tests = append(tests, conformance.Test{
			ID: "lb-doubt-" + string(answer.kind), Capability: conformance.CapabilityDoubtfulBalancers, Source: fromDelete,
			Requires: "A Service that is deleted while the cloud's answer about balancers " + answer.what +
				" leaves nothing behind: both it and its balancer are gone in the end.",
			Needs: faultFeatures(answer.kind), Alone: true, Bound: answer.bound,
			Run: func(t *conformance.T) { lbDoubt(t, answer.kind, answer.retried) },
		})
	}
	return tests
}

func lbDoubt(t *conformance.T, kind conformance.FaultKind, retried bool) {
	enough := 2 // The CCM has had the answer, and done with it what it does.
	if retried {
		enough = t.Attempts + 1
	}
	svc, b := newServiceWithBalancer(t)
	// By force, or the end of the Service waits for a CCM that has given it up.
	t.Cleanup(func(ctx context.Context) error { return t.Cloud.DeleteBalancer(ctx, b.ID) })
	fault := injectOnBalancers(t, kind)
	asked := eitherHolds(
		checkFaultHits(t, fault, enough), checkCallGivenUp(t, fault),
		func(ctx context.Context) error { return t.NoService(ctx, svc) },
	)
	t.DeleteService(svc)
	t.Await("the CCM to have asked for the balancer", asked)
	liftFault(t, fault)
	t.AwaitGone(svc)
}
