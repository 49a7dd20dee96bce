package profiles

// Incidents with balancers: the cloud answers late, in part, or not at all, or neighbours' balancers have the
// same names. Where a test of another profile plays an incident, only its description is here.

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/ccmlab/ccmlab/lab/conformance"
)

// faultFeatures returns the features that a cloud needs for these faults.
func faultFeatures(kinds ...conformance.FaultKind) (needs []conformance.Feature) {
	for _, k := range kinds {
		needs = append(needs, conformance.FaultFeature(k))
	}
	return needs
}

var resilienceBalancerTests = []conformance.Test{
	{
		ID:       "resilience-lost-create",
		Source:   fromEnsure + " (it creates a balancer, or updates the one that is there)",
		Requires: "A Service whose balancer was made by a call that was never answered has exactly that balancer in the end, as the Service asks, and it goes with the Service.",
		Needs:    faultFeatures(conformance.FaultLost), Alone: true,
		Incident: lostCreateIncident,
		Run: func(t *conformance.T) {
			fault := injectOnBalancers(t, conformance.FaultLost)
			svc := t.NewService()
			t.Await("the balancer that nobody was told of", checkBalancerBegun(t, svc))
			made := balancerID(t, svc)
			liftFault(t, fault) // The connection breaks.
			requireStaysOnlyBalancer(t, svc, made)
		},
	}, {
		ID:       "resilience-slow-balancer-api",
		Source:   fromEnsure + " (it creates a balancer, or updates the one that is there)",
		Requires: "A Service whose balancer takes longer to be made than a call may take has exactly one in the end, and it goes with the Service.",
		Needs:    faultFeatures(conformance.FaultSlow, conformance.FaultLost), Alone: true,
		Run: slowBalancerAPI, Incident: slowBalancerIncident,
	}, {
		ID: "resilience-stranger-of-same-name", Capability: conformance.CapabilityRename, Source: fromService,
		Requires: "Another cluster's balancer that has, before the Service asks for one, the name that the CCM would give the Service's is neither changed nor deleted, and the Service does not get its address.",
		Needs:    []conformance.Feature{conformance.FeatureStrangers},
		Run:      strangerOfSameName, Incident: strangerIncident,
	}, {
		ID: "resilience-stale-balancers", Capability: conformance.CapabilityDoubtfulBalancers,
		Source:   fromEnsure + "; " + fromDelete,
		Requires: "While the cloud shows its balancers as they were some time ago, a Service that is created and changed gets no second balancer, and one that is created and deleted leaves none behind.",
		Needs:    faultFeatures(conformance.FaultStale), Alone: true,
		Run: staleBalancers, Incident: staleBalancersIncident,
	}, {
		ID: "resilience-missing-page-of-balancers", Capability: conformance.CapabilityDoubtfulBalancers,
		Source:   fromEnsure + "; " + fromDelete,
		Requires: "While the cloud's lists show one balancer of several, no Service loses its balancer or gets a second, and one that is deleted leaves none behind.",
		Needs:    faultFeatures(conformance.FaultPartialList), Alone: true,
		Run: missingPageOfBalancers, Incident: missingPageIncident,
	},
}

var lostCreateIncident = &conformance.Incident{
	Name:  "lost-create",
	Title: "A balancer is made, and the answer that says so is lost",
	Happened: "A Service asks for a balancer. The cloud makes it, and the connection breaks before the answer is there. " +
		"To the CCM this looks like a create that failed, so a careless one sends it again without looking.",
	Danger: "There are two balancers and one is in no record: it is paid for each month, holds an address and a share of the quota, and is left when the Service goes. " +
		"Where names are unique the second create is refused for ever, and the Service never gets its address.",
	Watch: "Count the balancers of the one Service: createLoadBalancer is met by the fault, and the balancer is provisioned all the same.",
	Right: "It looks what the cloud has before it creates again, finds the balancer by what marks it as this Service's, and goes on with that one.",
	Known: []string{
		"https://github.com/digitalocean/digitalocean-cloud-controller-manager/issues/103",
		"https://github.com/digitalocean/digitalocean-cloud-controller-manager/issues/167",
	},
}

var slowBalancerIncident = &conformance.Incident{
	Name:  "slow-balancer-api",
	Title: "The cloud takes half a minute over every call about balancers",
	Happened: "The cloud is busy: it takes a call and works on it for longer than the caller waits. The look for a balancer comes to nothing at first; " +
		"the create is carried out, and the CCM gives up waiting for it. A careless one takes a call that ran out of time for a \"no\".",
	Danger: "Each attempt that is given up leaves a balancer behind, and each is tried again: a slow hour of the cloud ends with dozens of balancers that nobody knows of, " +
		"an exhausted quota, and a Service that still waits.",
	Watch: "How long the CCM waits for an answer, and what it does first when it has given up: look, or create again.",
	Right: "A call without an answer is neither a yes nor a no. It looks again, and creates only after the cloud has said that there is nothing.",
	Known: []string{
		"https://github.com/kubernetes/cloud-provider-openstack/issues/2753",
		"https://github.com/kubernetes/cloud-provider-openstack/issues/1304",
		"https://github.com/SovereignCloudStack/openstack-health-monitor/pull/124",
	},
}

var strangerIncident = &conformance.Incident{
	Name:  "stranger-of-same-name",
	Title: "Another cluster's balancer has the name that ours would get",
	Happened: "Two clusters share a project of the cloud, and run the same application. One has its balancer; then a Service of the other asks for one, " +
		"for which the CCM has the same name. A careless CCM looks for a balancer by its name, finds the neighbour's, and takes it for its own.",
	Danger: "The neighbour's listeners and targets are overwritten: its users reach the wrong cluster, or nobody. When the Service goes the balancer goes with it, " +
		"and the neighbour's address is lost for good. Neither cluster shows an error.",
	Watch: "The stranger's balancer, which is made first; then whether anything is updated or deleted that is not the Service's.",
	Right: "It owns what it has marked as its own, and nothing else. It makes a balancer of another name, or says in an Event that the name is taken.",
	Known: []string{
		"https://github.com/kubernetes/cloud-provider-openstack/issues/1273",
		"https://github.com/kubernetes/cloud-provider-openstack/issues/3102",
		"https://github.com/digitalocean/digitalocean-cloud-controller-manager/issues/916",
	},
}

var staleBalancersIncident = &conformance.Incident{
	Name:  "stale-balancers",
	Title: "The cloud shows its balancers as they were a while ago",
	Happened: "What is read comes from a copy that lags behind: a balancer that was just made is not in it. One Service is created and changed, another created and deleted meanwhile. " +
		"A careless CCM believes that neither has a balancer.",
	Danger: "The first Service gets a second balancer. The second Service is let go as one that never had any, and its balancer stays, unknown to the cluster and paid for.",
	Watch:  "Two balancers are made. One must still be the only one of its Service at the end; the other must go, though the cloud's lists never showed it.",
	Right: "What it has made itself it remembers, and it asks for that balancer by its ID or waits, rather than believing a list that is older than its own doing. " +
		"What slipped through it finds later, by the marks that it put there.",
	Known: []string{
		"https://github.com/kubernetes-sigs/cloud-provider-azure/pull/1213",
		"https://github.com/hashicorp/terraform-provider-aws/issues/15214",
	},
}

var missingPageIncident = &conformance.Incident{
	Name:  "missing-page-of-balancers",
	Title: "The list of balancers ends after its first page",
	Happened: "Three Services have their balancers. Then the cloud's lists end early, with success and without a word, as they look to whoever forgets to ask for the next page. " +
		"The CCM is restarted, and the Services are changed; one is deleted. A careless CCM finds no balancer for two of the three.",
	Danger: "It goes well in every test with a handful of Services, and breaks on the day the list outgrows a page: " +
		"Services get second balancers with new addresses, their users keep using the old ones, and what is deleted leaves its balancer behind.",
	Watch: "The IDs of the three balancers, which must stay as they are, and the one whose Service is deleted.",
	Right: "It asks for the one balancer that it needs rather than for all, follows pages to their end, and creates nothing that may be there already.",
	Known: []string{
		"https://github.com/apache/cloudstack-kubernetes-provider/issues/99",
		"https://github.com/rackspace/php-opencloud/issues/194",
	},
}

var deletedByHandIncident = &conformance.Incident{
	Name:     "deleted-by-hand",
	Title:    "Somebody deletes a Service's balancer in the cloud's console",
	Happened: "A balancer looks unused, or a script tidies up too much, and it is deleted behind the CCM's back. The Service says nothing of it, and nobody touches the Service. A careless CCM never looks again.",
	Danger:   "The Service shows an address that leads nowhere, for as long as nobody changes it. All that watches the cluster from inside is green while every user outside is cut off.",
	Watch:    "The Service's address: it goes, and another comes, without anybody changing the Service.",
	Right:    "It notices, from the cloud's events or by looking now and then, makes a new balancer, and puts the new address into the Service's status.",
	Known: []string{
		"https://github.com/oracle/oci-cloud-controller-manager/issues/196",
		"https://github.com/kubernetes/kubernetes/issues/86907",
		"https://github.com/gardener-attic/gardener-extensions/issues/384",
	},
}

var renamedBalancerIncident = &conformance.Incident{
	Name:     "renamed-balancer",
	Title:    "Somebody gives a balancer a name that people understand",
	Happened: "The balancer's name is a row of letters and digits, and somebody changes it in the cloud's console. Later the Service is changed, and deleted in the end. A careless CCM finds its balancers by name.",
	Danger:   "At the next change, which may be an upgrade months later, the Service gets a new balancer and a new address, at night and by itself. The old one stays, with the DNS records that lead to it, and is paid for.",
	Watch:    "The balancer's ID: it stays the same through the rename and the change, and it is that one that goes.",
	Right:    "It recognises its balancer by a mark that does not change, such as a tag with the Service's UID or the balancer's ID.",
	Known: []string{
		"https://github.com/digitalocean/digitalocean-cloud-controller-manager/issues/224",
		"https://github.com/hetznercloud/hcloud-cloud-controller-manager/issues/128",
		"https://github.com/ovh/public-cloud-roadmap/issues/197",
	},
}

var cloudDownWhileDeletingIncident = &conformance.Incident{
	Name:     "cloud-down-while-deleting",
	Title:    "The cloud is not available while a Service is deleted",
	Happened: "A Service is deleted, and the cloud answers every call about balancers with 503. A careless CCM tries once, or takes the error for \"there is none\", and lets the Service go.",
	Danger:   "When the cloud is back nothing in the cluster remembers the balancer. It runs on, still sends traffic to the nodes' ports, which another Service may have by then, and is paid for until somebody audits the bill.",
	Watch:    "The finalizer service.kubernetes.io/load-balancer-cleanup, which keeps the Service while the calls fail, and goes only after the balancer.",
	Right:    "It keeps the finalizer and tries again, later each time, until the balancer is gone; then it lets the Service go.",
	Known: []string{
		"https://github.com/kubernetes/kubernetes/issues/53451",
		"https://github.com/kubernetes/kubernetes/issues/78124",
	},
}

// balancerID returns the ID of the Service's only balancer, which need not be active.
func balancerID(t *conformance.T, svc *corev1.Service) string {
	found, err := t.BalancersOf(t.Context(), svc)
	t.Must(err, "looking at the balancers of Service %s", svc.Name)
	if len(found) != 1 {
		t.Fatalf("Service %s has %d balancers, want one", svc.Name, len(found))
	}
	return found[0].ID
}

// requireStaysOnlyBalancer requires that this balancer stays the Service's only one through two changes, and
// goes with the Service. After the first change, whatever was left to be tried again is over.
func requireStaysOnlyBalancer(t *conformance.T, svc *corev1.Service, id string) {
	assert.Equal(t, id, changePortAndAwait(t, svc).ID)
	assert.Equal(t, id, changePortAndAwait(t, svc).ID)
	deleteAndAwaitGone(t, svc)
}

// halfAMinute is how long a slow cloud takes over a call: see conformance.FaultSlow.
const halfAMinute = 30 * time.Second

func slowBalancerAPI(t *conformance.T) {
	// Of a slow cloud, too, that carries out what its caller has given up: it has
	// been told, and does not hear that nobody waits any more.
	late, slow := injectOnBalancers(t, conformance.FaultLost), injectOnBalancers(t, conformance.FaultSlow)
	t.AllowUnmet(slow) // A CCM may create without having looked for anything.
	svc := t.NewService()
	t.Await("the CCM to wait for the cloud", eitherHolds(checkFaultHits(t, slow, 1), checkBalancerBegun(t, svc)))
	liftFault(t, slow) // What it looked for is answered in the end.
	t.Await("the balancer that takes long to be made", checkBalancerBegun(t, svc))
	taken, made := time.Now(), balancerID(t, svc)
	t.Await("the CCM to have given up waiting, or the cloud to be done", eitherHolds(
		checkFaultHits(t, late, 1), checkOneBalancer(t, svc), checkTimePassed(taken, halfAMinute, "that is in %s"),
	))
	liftFault(t, late)
	requireStaysOnlyBalancer(t, svc, made)
}

// checkTimePassed returns an error until d has passed since then; left is its format, for the time that is
// left. It is for a time that the cloud takes over a call, or for a CCM's period, and not for waiting that
// something does not happen.
func checkTimePassed(since time.Time, d time.Duration, left string) func(context.Context) error {
	return func(context.Context) error {
		if remaining := time.Until(since.Add(d)); remaining > 0 {
			return fmt.Errorf(left, remaining.Round(time.Second))
		}
		return nil
	}
}

func strangerOfSameName(t *conformance.T) {
	before := t.NewService()
	name := t.AwaitBalancer(before).Name
	deleteAndAwaitGone(t, before)

	// The second one has the same name and, while it wants no balancer yet, a UID:
	// that is all of which a CCM makes a balancer's name.
	svc := t.NewService(func(s *corev1.Service) { s.Name, s.Spec.Type = before.Name, corev1.ServiceTypeClusterIP })
	stranger, err := t.Cloud.CreateForeignBalancer(
		t.Context(), conformance.Name{Name: guessBalancerName(svc, name, before)})
	t.Must(err, "creating another cluster's balancer")
	t.Cleanup(func(ctx context.Context) error { return t.Cloud.DeleteBalancer(ctx, stranger.ID) })
	const what = "another cluster's balancer is to be left alone"
	alone := func(ctx context.Context) error { return checkLeftToStranger(ctx, t, svc, stranger) }

	t.Change(svc, func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeLoadBalancer })
	t.HoldsUntil(what, alone, "the Service to have a balancer of its own, or a Warning that its name is taken",
		eitherHolds(checkOneBalancer(t, svc), checkWarning(t, svc, aboutTakenName)))
	t.DeleteService(svc)
	t.HoldsUntil(what, alone, "the Service and what it had to be gone", func(ctx context.Context) error {
		left, err := t.BalancersOf(ctx, svc)
		if err == nil && len(left) > 0 {
			err = errors.New("it still has a balancer")
		}
		return errors.Join(err, t.NoService(ctx, svc))
	})
	t.Must(alone(t.Context()), "balancer %s of another cluster, after the Service has gone", stranger.ID)
}

// guessBalancerName derives the name of svc's future balancer from the name of another Service's balancer.
// Both Services have the same name and namespace, so it replaces the other's UID by svc's.
func guessBalancerName(svc *corev1.Service, name string, of *corev1.Service) string {
	was, is := formsOfUID(of), formsOfUID(svc)
	for n := len(of.UID); n >= conformance.MinUIDPrefix; n-- {
		for i, form := range was {
			if n <= len(form) && strings.Contains(name, form[:n]) {
				return strings.ReplaceAll(name, form[:n], is[i][:n])
			}
		}
	}
	return name
}

// formsOfUID are the forms in which a UID, or its beginning, is part of a balancer's name. Upstream's
// DefaultLoadBalancerName leaves the dashes out.
func formsOfUID(svc *corev1.Service) []string {
	return []string{string(svc.UID), strings.ReplaceAll(string(svc.UID), "-", "")}
}

// checkLeftToStranger returns an error if the other cluster's balancer has changed, or a Service here has its
// address.
func checkLeftToStranger(
	ctx context.Context, t *conformance.T, svc *corev1.Service, stranger conformance.Balancer,
) error {
	now, there, err := t.Cloud.GetBalancer(ctx, stranger.ID)
	switch {
	case err != nil:
		return err
	case !there:
		return fmt.Errorf("balancer %s of another cluster is gone", stranger.ID)
	case !assert.ObjectsAreEqual(stranger, now):
		return fmt.Errorf(
			"balancer %s of another cluster was changed: %s", stranger.ID, balancerDifference(stranger, now),
		)
	}
	services, err := t.Kube.CoreV1().Services(svc.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, s := range services.Items {
		for _, in := range s.Status.LoadBalancer.Ingress {
			if stranger.Address != "" && (in.IP == stranger.Address || in.Hostname == stranger.Address) {
				return fmt.Errorf(
					"service %s has %s, the address of another cluster's balancer", s.Name, stranger.Address,
				)
			}
		}
	}
	return nil
}

// balancerDifference says in which fields two states of a balancer differ.
func balancerDifference(was, is conformance.Balancer) string {
	var all []string
	for _, part := range []struct {
		what    string
		was, is any
	}{
		{"name", was.Name, is.Name}, {"Service", was.Service, is.Service}, {"address", was.Address, is.Address},
		{"active", was.Active, is.Active},
		{"listeners", was.Listeners, is.Listeners}, {"targets", was.Targets, is.Targets},
		{"source ranges", was.SourceRanges, is.SourceRanges},
		{"affinity", was.Affinity, is.Affinity},
		{"seconds of affinity", was.AffinitySeconds, is.AffinitySeconds},
		{"health check", was.HealthChecked, is.HealthChecked},
		{"health check's port", was.HealthCheckPort, is.HealthCheckPort},
		{"tags", was.Tags, is.Tags},
	} {
		if !assert.ObjectsAreEqual(part.was, part.is) {
			all = append(all, fmt.Sprintf("%s %v, now %v", part.what, part.was, part.is))
		}
	}
	return strings.Join(all, "; ")
}

// countWarnings counts how often matching Warnings about the Service have occurred.
func countWarnings(
	ctx context.Context, t *conformance.T, svc *corev1.Service, about *regexp.Regexp,
) (n int32, err error) {
	events, err := listEvents(ctx, t, svc.Namespace, fields.Set{
		"involvedObject.uid": string(svc.UID), "type": corev1.EventTypeWarning,
	})
	for _, e := range events {
		if about.MatchString(e.Reason + " " + e.Message) {
			n += max(1, e.Count)
		}
	}
	return n, err
}

// checkNewWarning returns an error while the Service has no more Warnings than it has now: upstream's controller
// has some for every Service that waits for its balancer.
func checkNewWarning(t *conformance.T, svc *corev1.Service) func(context.Context) error {
	before, err := countWarnings(t.Context(), t, svc, aboutAnything)
	t.Must(err, "counting the Warnings on Service %s", svc.Name)
	return func(ctx context.Context) error {
		n, err := countWarnings(ctx, t, svc, aboutAnything)
		if err == nil && n <= before {
			err = errors.New("there is no new one")
		}
		return err
	}
}

func staleBalancers(t *conformance.T) {
	fault := injectOnBalancers(t, conformance.FaultStale)
	stays, goes := t.NewService(), t.NewService()
	t.Await("the beginnings of a balancer", checkBalancerBegun(t, stays))
	t.Await("the beginnings of a balancer", checkBalancerBegun(t, goes))
	made, left := balancerID(t, stays), balancerID(t, goes)
	// By force, or the end of the Service waits for a CCM that has given it up.
	t.Cleanup(func(ctx context.Context) error { return t.Cloud.DeleteBalancer(ctx, left) })
	looked := checkFaultHits(t, fault, 2*2) // At each once more, and once more again.
	changePort(t, stays)
	t.DeleteService(goes)
	changed := checkOneBalancer(t, stays, listensFor(t, stays))
	bothDone := func(ctx context.Context) error { return errors.Join(changed(ctx), t.NoService(ctx, goes)) }
	t.Await("the CCM to have looked again, or to have done without", eitherHolds(looked, bothDone))
	liftFault(t, fault)
	promptReconcile(t, goes)
	requireStaysOnlyBalancer(t, stays, made)
	t.AwaitGone(goes)
}

// promptReconcile annotates a Service, so that the CCM reconciles it at once: after failures under a
// fault, its back-off may be long. The Service may be deleted meanwhile.
func promptReconcile(t *conformance.T, svc *corev1.Service) {
	err := t.UpdateService(t.Context(), svc, func(s *corev1.Service) {
		if s.Annotations == nil {
			s.Annotations = map[string]string{}
		}
		s.Annotations["conformance.ccmlab.io/prompted"] = t.Name("now")
	})
	if err != nil && t.NoService(t.Context(), svc) != nil {
		t.Must(err, "touching Service %s", svc.Name)
	}
}

func missingPageOfBalancers(t *conformance.T) {
	services := []*corev1.Service{t.NewService(), t.NewService(), t.NewService()}
	before := map[string]string{}
	for _, svc := range services {
		before[svc.Name] = t.AwaitBalancer(svc).ID
	}
	fault := injectOnBalancers(t, conformance.FaultPartialList)
	stopCCM(t)() // It may remember the whole list.
	unharmed := func(ctx context.Context) error { return checkBalancersKept(ctx, t, before, services) }
	for _, svc := range services {
		warned := checkNewWarning(t, svc)
		changePort(t, svc)
		t.HoldsUntil("every Service is to keep its balancer, and to get no other", unharmed,
			"the CCM to have followed a change, or to have failed to",
			eitherHolds(warned, checkOneBalancer(t, svc, listensFor(t, svc))))
	}
	// A list shows what was made first, or what was made last.
	goes, stay := services[1], []*corev1.Service{services[0], services[2]}
	t.Cleanup(func(ctx context.Context) error { return t.Cloud.DeleteBalancer(ctx, before[goes.Name]) })
	asked := checkFaultHits(t, fault, 2)
	warned := checkNewWarning(t, goes)
	t.DeleteService(goes)
	kept := func(ctx context.Context) error { return checkBalancersKept(ctx, t, before, stay) }
	gone := func(ctx context.Context) error { return t.NoService(ctx, goes) }
	t.HoldsUntil("the others are to keep their balancers", kept,
		"the CCM to have looked for what it is to delete", eitherHolds(asked, warned, gone))
	liftFault(t, fault)
	promptReconcile(t, goes)
	t.AwaitGone(goes)
	for _, svc := range stay {
		requireStaysOnlyBalancer(t, svc, before[svc.Name])
	}
}

// checkBalancersKept returns an error unless each of the Services has the balancer of this ID, and no other.
func checkBalancersKept(
	ctx context.Context, t *conformance.T, ids map[string]string, services []*corev1.Service,
) error {
	for _, svc := range services {
		found, err := t.BalancersOf(ctx, svc)
		if err != nil {
			return err
		}
		if len(found) != 1 || !slices.ContainsFunc(found, func(b conformance.Balancer) bool {
			return b.ID == ids[svc.Name]
		}) {
			now := []string{}
			for _, b := range found {
				now = append(now, b.ID)
			}
			return fmt.Errorf("service %s had balancer %s, and has %v", svc.Name, ids[svc.Name], now)
		}
	}
	return nil
}
