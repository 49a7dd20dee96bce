package ccm

// Services of type LoadBalancer. A balancer is found by its owner's UID in its
// tags, never by name, so that neither a rename nor a stranger's balancer of
// the same name can confuse it. Each call computes a plan (plan.go) from what
// the Service wants and what the cloud has, and applies it; with nothing to
// change it only reads.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	cloudprovider "k8s.io/cloud-provider"
	cloudproviderapi "k8s.io/cloud-provider/api"
	"k8s.io/klog/v2"

	"github.com/ccmlab/ccmlab/ccm/calls"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// provisioningRetry is when a balancer that is still being built is looked at
// again, at first: see patient. A plain error would wait 5 s, then up to 300 s.
const provisioningRetry = 300 * time.Millisecond

// maxProvisioningRetry bounds what patient makes of it.
const maxProvisioningRetry = 5 * time.Second

// errorRetry is when a balancer in error is looked at again: the cloud keeps
// trying, and succeeds when, say, the port becomes free.
const errorRetry = 5 * time.Second

// memoryTrustPeriod is for how long it is believed that a balancer is still being
// built: what tells of its end may be broken.
const memoryTrustPeriod = 5 * time.Second

type loadBalancersAPI interface {
	ListLoadBalancers(ctx context.Context, f client.LoadBalancerFilter) ([]api.LoadBalancer, error)
	GetLoadBalancer(ctx context.Context, id string) (*api.LoadBalancer, error)
	CreateLoadBalancer(ctx context.Context, lb api.LoadBalancerCreate) (*api.LoadBalancer, error)
	UpdateLoadBalancer(ctx context.Context, id string, u api.LoadBalancerUpdate) (*api.LoadBalancer, error)
	DeleteLoadBalancer(ctx context.Context, id string) (*api.LoadBalancer, error)
	ListAddresses(ctx context.Context, f client.AddressFilter) ([]api.ReservedAddress, error)
}

// balancerMemory is what is remembered of the cluster's balancers: see package
// inventory.
type balancerMemory interface {
	LoadBalancersOf(serviceUID string) []api.LoadBalancer
	NoteLoadBalancer(lb api.LoadBalancer)
}

type loadBalancers struct {
	api       loadBalancersAPI
	project   *projectGuard
	inventory balancerMemory
	explain   *explainer
	// clusterUID is the UID of namespace kube-system, "" if it is not known. It
	// is set before any controller works.
	clusterUID string
	// locks has one lock per Service, by UID: upstream's controller and the
	// cloud watch reconcile the same balancers.
	locks keyedLocks
	// asked is when the cloud was asked for a Service's balancer that was not
	// done, by UID.
	asked sync.Map // string: time.Time
	// waiting is since when a Service has been told to come back, and nothing
	// else, by UID.
	waiting sync.Map // string: time.Time
	// ensured is what a Service's balancer was when EnsureLoadBalancer last said that
	// all is well, by UID.
	ensured sync.Map // string: ensuredBalancer
	// addresses are the IDs of reserved addresses, by the names that Services
	// call them, so that a name is looked up once.
	addresses sync.Map // string: string
}

// ensuredBalancer is a wish that was fulfilled, and the ID of what fulfilled it.
type ensuredBalancer struct {
	wish balancerSpec
	id   string
}

var _ cloudprovider.LoadBalancer = (*loadBalancers)(nil)

// What an Event says of an operation that failed.
const (
	summaryNotAsAsked = "The load balancer is not as the Service asks"
	summaryNotDeleted = "The load balancer is not deleted"
)

// GetLoadBalancer tells whether the Service has a balancer, or several, that is
// not already on its way out. Upstream's controller asks before it deletes, and
// deletes none that is not there by this.
func (l *loadBalancers) GetLoadBalancer(ctx context.Context, cluster string, svc *corev1.Service) (*corev1.LoadBalancerStatus, bool, error) {
	ctx = calls.For(ctx, calls.ServiceLB)
	lb := l.rememberedBalancer(cluster, svc)
	if lb == nil {
		found, err := l.findBalancers(ctx, cluster, svc)
		if err != nil {
			return nil, false, l.reportOutcome(svc, summaryNotDeleted, nil, err)
		}
		found = withoutDeleting(found)
		if len(found) == 0 {
			l.ensured.Delete(string(svc.UID))
			l.forgetWaiting(svc) // This may be the end of the Service.
			return nil, false, nil
		}
		lb = &found[0]
	}
	return balancerStatus(svc, lb), true, nil
}

// GetLoadBalancerName is unique per Service object and tells a person which.
func (l *loadBalancers) GetLoadBalancerName(_ context.Context, _ string, svc *corev1.Service) string {
	return balancerName(svc)
}

// EnsureLoadBalancer brings the Service's balancer into being, or up to date.
// While the cloud is still building it the error is an api.RetryError.
func (l *loadBalancers) EnsureLoadBalancer(ctx context.Context, cluster string, svc *corev1.Service, nodes []*corev1.Node) (*corev1.LoadBalancerStatus, error) {
	if svc.Spec.LoadBalancerClass != nil {
		return nil, cloudprovider.ImplementedElsewhere
	}
	ctx = calls.For(ctx, calls.ServiceLB)
	defer l.locks.lock(string(svc.UID))()
	lb, err := l.reconcile(ctx, cluster, svc, nodes, true)
	if err == nil {
		err = checkActive(lb)
	}
	if err := l.reportOutcome(svc, summaryNotAsAsked, lb, err); err != nil {
		return nil, err
	}
	if want, err := l.desiredSpec(cluster, svc, nodes); err == nil && len(planSteps(lb, want)) == 0 {
		l.ensured.Store(string(svc.UID), ensuredBalancer{want, lb.ID})
	}
	return balancerStatus(svc, lb), nil
}

// lastEnsured is what the Service's balancer was when EnsureLoadBalancer last said
// that all is well; nil if it has not, or the balancer was deleted since.
func (l *loadBalancers) lastEnsured(uid string) (wish *balancerSpec, id string) {
	was, ok := l.ensured.Load(uid)
	if !ok {
		return nil, ""
	}
	e := was.(ensuredBalancer)
	return &e.wish, e.id
}

// checkActive is an error that says when to look again.
func checkActive(lb *api.LoadBalancer) error {
	switch lb.State {
	case api.LoadBalancerActive:
		return nil
	case api.LoadBalancerError:
		return &delayedRetryError{failedStateError(lb), errorRetry}
	default:
		return pendingError(fmt.Sprintf("load balancer %s (%s) is %s", lb.Name, lb.ID, lb.State))
	}
}

// UpdateLoadBalancer follows a change of the node set, and nothing else. It never
// creates: the address of a new balancer could not be told from here.
func (l *loadBalancers) UpdateLoadBalancer(ctx context.Context, cluster string, svc *corev1.Service, nodes []*corev1.Node) error {
	if svc.Spec.LoadBalancerClass != nil {
		return cloudprovider.ImplementedElsewhere
	}
	ctx = calls.For(ctx, calls.ServiceLB)
	defer l.locks.lock(string(svc.UID))()
	lb, err := l.reconcile(ctx, cluster, svc, nodes, false)
	return l.reportOutcome(svc, summaryNotAsAsked, lb, err)
}

// EnsureLoadBalancerDeleted asks for the end of the Service's balancer, and of
// each that says that it is. A cloud never takes a deletion back, so one that is
// deleting counts as deleted.
func (l *loadBalancers) EnsureLoadBalancerDeleted(ctx context.Context, cluster string, svc *corev1.Service) error {
	ctx = calls.For(ctx, calls.ServiceLB)
	defer l.locks.lock(string(svc.UID))()
	l.ensured.Delete(string(svc.UID))
	return l.reportOutcome(svc, summaryNotDeleted, nil, l.deleteBalancers(ctx, cluster, svc))
}

// deleteBalancers tries again at once where the cloud says that it knows better than what
// was remembered: upstream gives every error of a deletion seconds of delay.
func (l *loadBalancers) deleteBalancers(ctx context.Context, cluster string, svc *corev1.Service) error {
	if lb := l.rememberedBalancer(cluster, svc); lb != nil {
		if gone, err := l.deleteBalancer(ctx, svc, lb); !gone && !client.HasCode(err, api.PreconditionFailed) {
			return err
		}
	}
	for attempt := 0; ; attempt++ {
		found, err := l.findBalancers(ctx, cluster, svc)
		if err != nil {
			return err
		}
		var errs []error
		for _, lb := range withoutDeleting(found) {
			_, err := l.deleteBalancer(ctx, svc, &lb)
			errs = append(errs, err)
		}
		if err = errors.Join(errs...); attempt > 0 || !client.HasCode(err, api.PreconditionFailed) {
			return err
		}
	}
}

// deleteBalancer deletes one balancer, or tells that it is gone already.
func (l *loadBalancers) deleteBalancer(ctx context.Context, svc *corev1.Service, lb *api.LoadBalancer) (gone bool, err error) {
	klog.InfoS("Deleting load balancer", "service", klog.KObj(svc), "id", lb.ID)
	deleted, err := l.api.DeleteLoadBalancer(client.IfMatch(ctx, lb.Version), lb.ID)
	if err == nil {
		l.rememberBalancer(*deleted)
		return false, nil
	}
	if gone, err = l.project.definiteNotFound(ctx, err); gone {
		return true, nil
	}
	return false, fmt.Errorf("deleting load balancer %s: %w", lb.ID, err)
}

// reportOutcome is where every outcome is explained, once per cause: what is not as it
// should be, and why. lb is the balancer as it is, if it is known; without an
// error, nil is one that is gone.
func (l *loadBalancers) reportOutcome(svc *corev1.Service, what string, lb *api.LoadBalancer, err error) error {
	if isPending(err) {
		return l.slowDownRetry(svc, err)
	}
	if err != nil {
		l.waiting.Delete(string(svc.UID))
		l.explain.explain(svc, topicLoadBalancer, what, err)
		return honorRetryAfter(err)
	}
	l.forgetWaiting(svc)
	if lb == nil || lb.State == api.LoadBalancerActive {
		l.explain.resolved(svc, topicLoadBalancer)
		l.reportServing(svc, lb)
	}
	return nil
}

// forgetWaiting is for a Service that waits for nothing any more.
func (l *loadBalancers) forgetWaiting(svc *corev1.Service) {
	l.asked.Delete(string(svc.UID))
	l.waiting.Delete(string(svc.UID))
}

// reportServing explains why a balancer that is active refuses clients, if it does.
func (l *loadBalancers) reportServing(svc *corev1.Service, lb *api.LoadBalancer) {
	if lb == nil || lb.StateReason == nil || *lb.StateReason == "" {
		l.explain.resolved(svc, topicServing)
		return
	}
	l.explain.explain(svc, topicServing, fmt.Sprintf("Load balancer %s (%s) is active and refuses clients", lb.Name, lb.ID),
		newReasonError(contract.ReasonLoadBalancerDegraded, "%s", *lb.StateReason))
}

// desiredSpec is what the Service wants of the cloud, with what is known of the
// address that it chooses.
func (l *loadBalancers) desiredSpec(cluster string, svc *corev1.Service, nodes []*corev1.Node) (balancerSpec, error) {
	want, err := newBalancerSpec(clusterID{cluster, l.clusterUID}, svc, nodes)
	if id, known := l.addresses.Load(want.address.nameOrID); known {
		want.address.id = id.(string)
	}
	return want, err
}

func (l *loadBalancers) reconcile(ctx context.Context, cluster string, svc *corev1.Service, nodes []*corev1.Node, mayCreate bool) (*api.LoadBalancer, error) {
	want, err := l.desiredSpec(cluster, svc, nodes)
	if err != nil {
		return nil, err
	}
	// Upstream passes on node changes with Services as they were when it began to
	// go through all of them: whatever else one says may be out of date.
	want.targetsAlone = !mayCreate
	if lb := l.rememberedBalancer(cluster, svc); lb != nil && len(planSteps(lb, want)) == 0 && l.isFresh(svc, lb) {
		return lb, nil
	}
	have, err := l.findBalancer(ctx, cluster, svc)
	if err != nil {
		return nil, err
	}
	switch {
	case have == nil && !mayCreate:
		return nil, pendingError(fmt.Sprintf("service %s/%s has no load balancer to update", svc.Namespace, svc.Name))
	case have != nil && have.State == api.LoadBalancerDeleting:
		return nil, pendingError(fmt.Sprintf("load balancer %s (%s) is still being deleted", have.Name, have.ID))
	}
	if !mayCreate {
		return l.applyAsFarAsPossible(ctx, cluster, svc, have, want)
	}
	if err := l.resolveAddress(ctx, have, &want); err != nil {
		return nil, err
	}
	return l.applyAsFarAsPossible(ctx, cluster, svc, have, want)
}

// isFresh tells whether a remembered balancer's state may be believed. Only one
// that is active has nothing more to wait for.
func (l *loadBalancers) isFresh(svc *corev1.Service, lb *api.LoadBalancer) bool {
	at, asked := l.asked.Load(string(svc.UID))
	return lb.State == api.LoadBalancerActive || asked && time.Since(at.(time.Time)) < memoryTrustPeriod
}

// applyAsFarAsPossible leaves out what the Service can do without.
func (l *loadBalancers) applyAsFarAsPossible(ctx context.Context, cluster string, svc *corev1.Service, have *api.LoadBalancer, want balancerSpec) (*api.LoadBalancer, error) {
	lb, err := l.applyPlan(ctx, svc, have, want)
	if have == nil && !want.mustIPv6 && len(want.families) > 1 && isIPFamilyRefusal(err) {
		why := err
		want.families = api.IPFamilies{api.IPv4}
		if lb, err = l.applyPlan(ctx, svc, have, want); err == nil {
			l.explain.note(svc, contract.ReasonIPv4Only, "The cloud gives no IPv6 address, so the Service, which prefers dual stack, has IPv4 alone: %v", why)
		}
	}
	// However many the cloud names at a time, each round leaves fewer.
	for gone := refusedTargets(err, want.targets); len(gone) > 0; gone = refusedTargets(err, want.targets) {
		// Their Nodes go too, but later; the other targets must not wait.
		klog.InfoS("Leaving out targets whose instance has ended", "service", klog.KObj(svc), "instances", gone)
		want.targets = slices.DeleteFunc(want.targets, func(t api.Target) bool { return slices.Contains(gone, t.InstanceID) })
		lb, err = l.applyPlan(ctx, svc, have, want)
	}
	return lb, l.explainRefusal(ctx, cluster, svc, want, err)
}

func (l *loadBalancers) applyPlan(ctx context.Context, svc *corev1.Service, have *api.LoadBalancer, want balancerSpec) (*api.LoadBalancer, error) {
	for _, step := range planSteps(have, want) {
		klog.InfoS("Load balancer", "service", klog.KObj(svc), "step", step.String())
		var err error
		if have, err = step.apply(ctx, l.api); err != nil {
			return nil, fmt.Errorf("%s: %w", step, err)
		}
		l.rememberBalancer(*have)
		if _, replaces := step.(replaceStep); replaces {
			l.explain.note(svc, contract.ReasonLoadBalancerReplaced, "Some of what the Service asks for is final in the cloud: %s", step)
		}
	}
	return have, nil
}

// explainRefusal is what an error of apply means.
func (l *loadBalancers) explainRefusal(ctx context.Context, cluster string, svc *corev1.Service, want balancerSpec, err error) error {
	switch {
	case client.HasCode(err, api.NameTaken):
		return l.explainNameTaken(ctx, cluster, svc, want.name)
	case client.HasCode(err, api.PreconditionFailed), client.HasCode(err, api.WrongState):
		return pendingError(fmt.Sprintf("it has changed meanwhile; looking again: %v", err))
	case client.HasCode(err, api.UnknownAddress), client.HasCode(err, api.AddressInUse):
		return &reasonError{contract.ReasonAddressNotAvailable, err}
	case client.HasCode(err, api.InvalidRequest): // Limits are the cloud's: of ports, say.
		return &reasonError{contract.ReasonInvalidService, err}
	case client.IsNotFound(err):
		if gone, doubt := l.project.definiteNotFound(ctx, err); !gone {
			return doubt
		}
		return pendingError(fmt.Sprintf("it is gone meanwhile; looking again: %v", err))
	}
	return err
}

// explainNameTaken finds out who has the name of a balancer that could not be created.
// If it is ours, a list was wrong that did not show it, and the next look will.
func (l *loadBalancers) explainNameTaken(ctx context.Context, cluster string, svc *corev1.Service, name string) error {
	found, err := l.api.ListLoadBalancers(ctx, client.LoadBalancerFilter{Name: name})
	if err != nil {
		return fmt.Errorf("looking for who has the name %s: %w", name, err)
	}
	if len(found) == 0 {
		return pendingError("load balancer " + name + " had its name taken by one that is gone; looking again")
	}
	other := found[0]
	if l.isOwnedBy(cluster, svc, &other) {
		l.rememberBalancer(other)
		return cloudproviderapi.NewRetryError(fmt.Sprintf("load balancer %s (%s) is there after all; looking again", name, other.ID), errorRetry)
	}
	whose := "it carries no tags of a Service"
	if of, ok := other.Tags[contract.TagService]; ok {
		whose = fmt.Sprintf("its tags name Service %s of cluster %q", of, other.Tags[contract.TagCluster])
	}
	return newReasonError(contract.ReasonLoadBalancerNameTaken, "load balancer %s has the name %s and is not this Service's (%s): rename or delete it", other.ID, name, whose)
}

// isIPFamilyRefusal tells whether the cloud said that it has not these families.
func isIPFamilyRefusal(err error) bool {
	var refused *client.Error
	return errors.As(err, &refused) && refused.Problem.Code == api.InvalidRequest && refused.Problem.Fields != nil &&
		slices.ContainsFunc(*refused.Problem.Fields, func(f api.ProblemField) bool { return f.Field == "ipFamilies" })
}

// resolveAddress looks up the reserved address that the Service chooses, unless
// the balancer has it. It is seen to be free before a balancer is given up for it.
func (l *loadBalancers) resolveAddress(ctx context.Context, have *api.LoadBalancer, want *balancerSpec) error {
	if want.address == (addressChoice{}) || have != nil && want.address.isHeldBy(have) {
		return nil
	}
	reserved, err := l.api.ListAddresses(ctx, client.AddressFilter{})
	if err != nil {
		return fmt.Errorf("looking for the reserved address %s: %w", want.address, err)
	}
	i := slices.IndexFunc(reserved, func(a api.ReservedAddress) bool {
		return a.IP == want.address.ip || a.Name == want.address.nameOrID
	})
	if i < 0 {
		i = slices.IndexFunc(reserved, func(a api.ReservedAddress) bool { return a.ID == want.address.nameOrID })
	}
	if i < 0 {
		if err := l.project.check(ctx); err != nil {
			return err
		}
		return newReasonError(contract.ReasonAddressNotAvailable, "the project has no reserved address %s: reserve it, or choose another", want.address)
	}
	found := reserved[i]
	want.address.id = found.ID
	if want.address.nameOrID != "" {
		l.addresses.Store(want.address.nameOrID, found.ID)
	}
	if found.Holder != nil && (have == nil || found.Holder.ID != have.ID) {
		return newReasonError(contract.ReasonAddressNotAvailable, "address %s (%s) is in use by %s %s: choose another, or free it", found.Name, found.IP, found.Holder.Kind, found.Holder.ID)
	}
	return nil
}

// refusedTargets are those that the cloud refused by name.
func refusedTargets(err error, targets api.Targets) []string {
	var refused *client.Error
	if !errors.As(err, &refused) || refused.Problem.Code != api.UnknownInstance || refused.Problem.Fields == nil {
		return nil
	}
	var gone []string
	for _, f := range *refused.Problem.Fields {
		var n int
		if _, err := fmt.Sscanf(f.Field, "targets.%d.instanceId", &n); err == nil && n >= 0 && n < len(targets) {
			gone = append(gone, targets[n].InstanceID)
		}
	}
	return gone
}

// balancerStatus names the balancer's addresses, of the families that the Service asks
// for. The balancer is a proxy, so traffic from inside the cluster must go
// through it too (KEP-1860).
func balancerStatus(svc *corev1.Service, lb *api.LoadBalancer) *corev1.LoadBalancerStatus {
	addresses := map[corev1.IPFamily]string{corev1.IPv4Protocol: lb.Address}
	if lb.IPv6Address != nil {
		addresses[corev1.IPv6Protocol] = *lb.IPv6Address
	}
	families := svc.Spec.IPFamilies
	if len(families) == 0 {
		families = []corev1.IPFamily{corev1.IPv4Protocol}
	}
	mode := corev1.LoadBalancerIPModeProxy
	out := &corev1.LoadBalancerStatus{}
	for _, family := range families {
		if ip := addresses[family]; ip != "" {
			out.Ingress = append(out.Ingress, corev1.LoadBalancerIngress{IP: ip, IPMode: &mode})
		}
	}
	return out
}
