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

// longestRetry bounds what patient makes of it.
const longestRetry = 5 * time.Second

// errorRetry is when a balancer in error is looked at again: the cloud keeps
// trying, and succeeds when, say, the port becomes free.
const errorRetry = 5 * time.Second

// memoryTrust is for how long it is believed that a balancer is still being
// built: what tells of its end may be broken.
const memoryTrust = 5 * time.Second

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
	wish balancer
	id   string
}

var _ cloudprovider.LoadBalancer = (*loadBalancers)(nil)

// What an Event says of an operation that failed.
const (
	notAsAsked = "The load balancer is not as the Service asks"
	notDeleted = "The load balancer is not deleted"
)

// GetLoadBalancer tells whether the Service has a balancer, or several, that is
// not already on its way out. Upstream's controller asks before it deletes, and
// deletes none that is not there by this.
func (l *loadBalancers) GetLoadBalancer(ctx context.Context, cluster string, svc *corev1.Service) (*corev1.LoadBalancerStatus, bool, error) {
	ctx = calls.For(ctx, calls.ServiceLB)
	lb := l.remembered(cluster, svc)
	if lb == nil {
		found, err := l.findAll(ctx, cluster, svc)
		if err != nil {
			return nil, false, l.tell(svc, notDeleted, nil, err)
		}
		found = staying(found)
		if len(found) == 0 {
			l.ensured.Delete(string(svc.UID))
			l.forgetWaiting(svc) // This may be the end of the Service.
			return nil, false, nil
		}
		lb = &found[0]
	}
	return status(svc, lb), true, nil
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
		err = unlessActive(lb)
	}
	if err := l.tell(svc, notAsAsked, lb, err); err != nil {
		return nil, err
	}
	if want, err := l.desired(cluster, svc, nodes); err == nil && len(plan(lb, want)) == 0 {
		l.ensured.Store(string(svc.UID), ensuredBalancer{want, lb.ID})
	}
	return status(svc, lb), nil
}

// lastEnsured is what the Service's balancer was when EnsureLoadBalancer last said
// that all is well; nil if it has not, or the balancer was deleted since.
func (l *loadBalancers) lastEnsured(uid string) (wish *balancer, id string) {
	was, ok := l.ensured.Load(uid)
	if !ok {
		return nil, ""
	}
	e := was.(ensuredBalancer)
	return &e.wish, e.id
}

// unlessActive is an error that says when to look again.
func unlessActive(lb *api.LoadBalancer) error {
	switch lb.State {
	case api.LoadBalancerActive:
		return nil
	case api.LoadBalancerError:
		return &laterError{failed(lb), errorRetry}
	default:
		return pending(fmt.Sprintf("load balancer %s (%s) is %s", lb.Name, lb.ID, lb.State))
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
	return l.tell(svc, notAsAsked, lb, err)
}

// EnsureLoadBalancerDeleted asks for the end of the Service's balancer, and of
// each that says that it is. A cloud never takes a deletion back, so one that is
// deleting counts as deleted.
func (l *loadBalancers) EnsureLoadBalancerDeleted(ctx context.Context, cluster string, svc *corev1.Service) error {
	ctx = calls.For(ctx, calls.ServiceLB)
	defer l.locks.lock(string(svc.UID))()
	l.ensured.Delete(string(svc.UID))
	return l.tell(svc, notDeleted, nil, l.delete(ctx, cluster, svc))
}

// delete tries again at once where the cloud says that it knows better than what
// was remembered: upstream gives every error of a deletion seconds of delay.
func (l *loadBalancers) delete(ctx context.Context, cluster string, svc *corev1.Service) error {
	if lb := l.remembered(cluster, svc); lb != nil {
		if gone, err := l.remove(ctx, svc, lb); !gone && !client.HasCode(err, api.PreconditionFailed) {
			return err
		}
	}
	for attempt := 0; ; attempt++ {
		found, err := l.findAll(ctx, cluster, svc)
		if err != nil {
			return err
		}
		var errs []error
		for _, lb := range staying(found) {
			_, err := l.remove(ctx, svc, &lb)
			errs = append(errs, err)
		}
		if err = errors.Join(errs...); attempt > 0 || !client.HasCode(err, api.PreconditionFailed) {
			return err
		}
	}
}

// remove deletes one balancer, or tells that it is gone already.
func (l *loadBalancers) remove(ctx context.Context, svc *corev1.Service, lb *api.LoadBalancer) (gone bool, err error) {
	klog.InfoS("Deleting load balancer", "service", klog.KObj(svc), "id", lb.ID)
	deleted, err := l.api.DeleteLoadBalancer(client.IfMatch(ctx, lb.Version), lb.ID)
	if err == nil {
		l.note(*deleted)
		return false, nil
	}
	if gone, err = l.project.definiteNotFound(ctx, err); gone {
		return true, nil
	}
	return false, fmt.Errorf("deleting load balancer %s: %w", lb.ID, err)
}

// tell is where every outcome is explained, once per cause: what is not as it
// should be, and why. lb is the balancer as it is, if it is known; without an
// error, nil is one that is gone.
func (l *loadBalancers) tell(svc *corev1.Service, what string, lb *api.LoadBalancer, err error) error {
	if isPending(err) {
		return l.patient(svc, err)
	}
	if err != nil {
		l.waiting.Delete(string(svc.UID))
		l.explain.explain(svc, topicLoadBalancer, what, err)
		return retryWhenAsked(err)
	}
	l.forgetWaiting(svc)
	if lb == nil || lb.State == api.LoadBalancerActive {
		l.explain.resolved(svc, topicLoadBalancer)
		l.tellServing(svc, lb)
	}
	return nil
}

// forgetWaiting is for a Service that waits for nothing any more.
func (l *loadBalancers) forgetWaiting(svc *corev1.Service) {
	l.asked.Delete(string(svc.UID))
	l.waiting.Delete(string(svc.UID))
}

// tellServing explains why a balancer that is active refuses clients, if it does.
func (l *loadBalancers) tellServing(svc *corev1.Service, lb *api.LoadBalancer) {
	if lb == nil || lb.StateReason == nil || *lb.StateReason == "" {
		l.explain.resolved(svc, topicServing)
		return
	}
	l.explain.explain(svc, topicServing, fmt.Sprintf("Load balancer %s (%s) is active and refuses clients", lb.Name, lb.ID),
		known(contract.ReasonLoadBalancerDegraded, "%s", *lb.StateReason))
}

// desired is what the Service wants of the cloud, with what is known of the
// address that it chooses.
func (l *loadBalancers) desired(cluster string, svc *corev1.Service, nodes []*corev1.Node) (balancer, error) {
	want, err := desiredBalancer(clusterID{cluster, l.clusterUID}, svc, nodes)
	if id, known := l.addresses.Load(want.address.ref); known {
		want.address.id = id.(string)
	}
	return want, err
}

func (l *loadBalancers) reconcile(ctx context.Context, cluster string, svc *corev1.Service, nodes []*corev1.Node, mayCreate bool) (*api.LoadBalancer, error) {
	want, err := l.desired(cluster, svc, nodes)
	if err != nil {
		return nil, err
	}
	// Upstream passes on node changes with Services as they were when it began to
	// go through all of them: whatever else one says may be out of date.
	want.targetsAlone = !mayCreate
	if lb := l.remembered(cluster, svc); lb != nil && len(plan(lb, want)) == 0 && l.fresh(svc, lb) {
		return lb, nil
	}
	have, err := l.find(ctx, cluster, svc)
	if err != nil {
		return nil, err
	}
	switch {
	case have == nil && !mayCreate:
		return nil, pending(fmt.Sprintf("service %s/%s has no load balancer to update", svc.Namespace, svc.Name))
	case have != nil && have.State == api.LoadBalancerDeleting:
		return nil, pending(fmt.Sprintf("load balancer %s (%s) is still being deleted", have.Name, have.ID))
	}
	if !mayCreate {
		return l.applyAsFarAsPossible(ctx, cluster, svc, have, want)
	}
	if err := l.chooseAddress(ctx, have, &want); err != nil {
		return nil, err
	}
	return l.applyAsFarAsPossible(ctx, cluster, svc, have, want)
}

// fresh tells whether a remembered balancer's state may be believed. Only one
// that is active has nothing more to wait for.
func (l *loadBalancers) fresh(svc *corev1.Service, lb *api.LoadBalancer) bool {
	at, asked := l.asked.Load(string(svc.UID))
	return lb.State == api.LoadBalancerActive || asked && time.Since(at.(time.Time)) < memoryTrust
}

// applyAsFarAsPossible leaves out what the Service can do without.
func (l *loadBalancers) applyAsFarAsPossible(ctx context.Context, cluster string, svc *corev1.Service, have *api.LoadBalancer, want balancer) (*api.LoadBalancer, error) {
	lb, err := l.apply(ctx, svc, have, want)
	if have == nil && !want.mustIPv6 && len(want.families) > 1 && refusesFamilies(err) {
		why := err
		want.families = api.IPFamilies{api.IPv4}
		if lb, err = l.apply(ctx, svc, have, want); err == nil {
			l.explain.note(svc, contract.ReasonIPv4Only, "The cloud gives no IPv6 address, so the Service, which prefers dual stack, has IPv4 alone: %v", why)
		}
	}
	// However many the cloud names at a time, each round leaves fewer.
	for gone := endedTargets(err, want.targets); len(gone) > 0; gone = endedTargets(err, want.targets) {
		// Their Nodes go too, but later; the other targets must not wait.
		klog.InfoS("Leaving out targets whose instance has ended", "service", klog.KObj(svc), "instances", gone)
		want.targets = slices.DeleteFunc(want.targets, func(t api.Target) bool { return slices.Contains(gone, t.InstanceID) })
		lb, err = l.apply(ctx, svc, have, want)
	}
	return lb, l.refused(ctx, cluster, svc, want, err)
}

func (l *loadBalancers) apply(ctx context.Context, svc *corev1.Service, have *api.LoadBalancer, want balancer) (*api.LoadBalancer, error) {
	for _, step := range plan(have, want) {
		klog.InfoS("Load balancer", "service", klog.KObj(svc), "step", step.String())
		var err error
		if have, err = step.apply(ctx, l.api); err != nil {
			return nil, fmt.Errorf("%s: %w", step, err)
		}
		l.note(*have)
		if _, replaces := step.(replaceStep); replaces {
			l.explain.note(svc, contract.ReasonLoadBalancerReplaced, "Some of what the Service asks for is final in the cloud: %s", step)
		}
	}
	return have, nil
}

// refused is what an error of apply means.
func (l *loadBalancers) refused(ctx context.Context, cluster string, svc *corev1.Service, want balancer, err error) error {
	switch {
	case client.HasCode(err, api.NameTaken):
		return l.nameTaken(ctx, cluster, svc, want.name)
	case client.HasCode(err, api.PreconditionFailed), client.HasCode(err, api.WrongState):
		return pending(fmt.Sprintf("it has changed meanwhile; looking again: %v", err))
	case client.HasCode(err, api.UnknownAddress), client.HasCode(err, api.AddressInUse):
		return &knownError{contract.ReasonAddressNotAvailable, err}
	case client.HasCode(err, api.InvalidRequest): // Limits are the cloud's: of ports, say.
		return &knownError{contract.ReasonInvalidService, err}
	case client.IsNotFound(err):
		if gone, doubt := l.project.definiteNotFound(ctx, err); !gone {
			return doubt
		}
		return pending(fmt.Sprintf("it is gone meanwhile; looking again: %v", err))
	}
	return err
}

// nameTaken finds out who has the name of a balancer that could not be created.
// If it is ours, a list was wrong that did not show it, and the next look will.
func (l *loadBalancers) nameTaken(ctx context.Context, cluster string, svc *corev1.Service, name string) error {
	found, err := l.api.ListLoadBalancers(ctx, client.LoadBalancerFilter{Name: name})
	if err != nil {
		return fmt.Errorf("looking for who has the name %s: %w", name, err)
	}
	if len(found) == 0 {
		return pending("load balancer " + name + " had its name taken by one that is gone; looking again")
	}
	other := found[0]
	if l.owns(cluster, svc, &other) {
		l.note(other)
		return cloudproviderapi.NewRetryError(fmt.Sprintf("load balancer %s (%s) is there after all; looking again", name, other.ID), errorRetry)
	}
	whose := "it carries no tags of a Service"
	if of, ok := other.Tags[contract.TagService]; ok {
		whose = fmt.Sprintf("its tags name Service %s of cluster %q", of, other.Tags[contract.TagCluster])
	}
	return known(contract.ReasonLoadBalancerNameTaken, "load balancer %s has the name %s and is not this Service's (%s): rename or delete it", other.ID, name, whose)
}

// refusesFamilies tells whether the cloud said that it has not these families.
func refusesFamilies(err error) bool {
	var refused *client.Error
	return errors.As(err, &refused) && refused.Problem.Code == api.InvalidRequest && refused.Problem.Fields != nil &&
		slices.ContainsFunc(*refused.Problem.Fields, func(f api.ProblemField) bool { return f.Field == "ipFamilies" })
}

// chooseAddress looks up the reserved address that the Service chooses, unless
// the balancer has it. It is seen to be free before a balancer is given up for it.
func (l *loadBalancers) chooseAddress(ctx context.Context, have *api.LoadBalancer, want *balancer) error {
	if want.address == (addressChoice{}) || have != nil && want.address.is(have) {
		return nil
	}
	reserved, err := l.api.ListAddresses(ctx, client.AddressFilter{})
	if err != nil {
		return fmt.Errorf("looking for the reserved address %s: %w", want.address, err)
	}
	i := slices.IndexFunc(reserved, func(a api.ReservedAddress) bool {
		return a.IP == want.address.ip || a.Name == want.address.ref
	})
	if i < 0 {
		i = slices.IndexFunc(reserved, func(a api.ReservedAddress) bool { return a.ID == want.address.ref })
	}
	if i < 0 {
		if err := l.project.check(ctx); err != nil {
			return err
		}
		return known(contract.ReasonAddressNotAvailable, "the project has no reserved address %s: reserve it, or choose another", want.address)
	}
	found := reserved[i]
	want.address.id = found.ID
	if want.address.ref != "" {
		l.addresses.Store(want.address.ref, found.ID)
	}
	if found.Holder != nil && (have == nil || found.Holder.ID != have.ID) {
		return known(contract.ReasonAddressNotAvailable, "address %s (%s) is in use by %s %s: choose another, or free it", found.Name, found.IP, found.Holder.Kind, found.Holder.ID)
	}
	return nil
}

// endedTargets are those that the cloud refused by name.
func endedTargets(err error, targets api.Targets) []string {
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

// status names the balancer's addresses, of the families that the Service asks
// for. The balancer is a proxy, so traffic from inside the cluster must go
// through it too (KEP-1860).
func status(svc *corev1.Service, lb *api.LoadBalancer) *corev1.LoadBalancerStatus {
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
