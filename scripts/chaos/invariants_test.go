package chaos

// What must hold: at rest, after whatever was done,
//   - each component runs, and each instance that lives has its Node, which is as the instance is, and no other
//     Node is there;
//   - each Service of type LoadBalancer has exactly one balancer, with its ports and exactly the instances of
//     the Nodes that may be targets, and answers; no other Service's is left;
//   - what is nobody's of the cluster is as it was;
//   - no change that was acknowledged is lost, through whichever dialect it was made;
//   - the event log says the same again, and the console's picture is of what is there;
// and all along (watchers_test.go)
//   - no Node is deleted whose instance was not asked to end;
//   - each event comes once, in its order.

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	cloudproviderapi "k8s.io/cloud-provider/api"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/kubediff"
)

// facts are what the cluster and the cloud say at one moment.
type facts struct {
	instances map[string]api.Instance // that have not ended, by ID
	nodes     []corev1.Node
	services  []corev1.Service
	balancers []api.LoadBalancer
	answering map[string]int // pods of the demo that are Ready, by Node that is so, too
}

func (w *world) readFacts(ctx context.Context) (f facts, err error) {
	instances, err := w.cloud.ListInstances(ctx, client.InstanceFilter{Tags: []string{w.lab.Tag()}})
	if err != nil {
		return f, err
	}
	f.instances = map[string]api.Instance{}
	for _, i := range instances {
		if i.State != api.InstanceTerminated && i.Tags[contract.TagMachine] != contract.NoMachine {
			f.instances[i.ID] = i
		}
	}
	if f.balancers, err = w.cloud.ListLoadBalancers(ctx, client.LoadBalancerFilter{}); err != nil {
		return f, err
	}
	nodes, err := w.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return f, err
	}
	services, err := w.kube.CoreV1().Services("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return f, err
	}
	pods, err := w.kube.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
	if err != nil {
		return f, err
	}
	f.nodes, f.services, f.answering = nodes.Items, services.Items, countAnswering(pods.Items, nodes.Items)
	return f, nil
}

// countAnswering counts, by Node, the pods that are Ready there. kube-controller-manager takes that word back when a
// Node ceases to be Ready, of those pods that it has seen to be Ready by then. What it learns of later, as when the API
// server is away, stays Ready until it is evicted, after five minutes
// (https://github.com/kubernetes/kubernetes/blob/v1.36.3/pkg/controller/util/node/controller_utils.go, MarkPodsNotReady).
func countAnswering(pods []corev1.Pod, nodes []corev1.Node) map[string]int {
	ready, answering := map[string]bool{}, map[string]int{}
	for i := range nodes {
		ready[nodes[i].Name] = kubediff.IsNodeReady(&nodes[i])
	}
	for i := range pods {
		if p := &pods[i]; kubediff.IsPodReady(p) && p.DeletionTimestamp == nil && ready[p.Spec.NodeName] {
			answering[p.Spec.NodeName]++
		}
	}
	return answering
}

// checkAll is nil when all is well. What cannot become well any more is a cluster.PermanentError.
func (w *world) checkAll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 6*callBound)
	defer cancel()
	if missing := w.missing(); len(missing) > 0 {
		return fmt.Errorf("there run no %v", missing)
	}
	f, err := w.readFacts(ctx)
	if err != nil {
		return err
	}
	if err := errors.Join(f.checkNodes(), f.checkServices(ctx), w.checkForeign(ctx)); err != nil {
		return err
	}
	for _, writer := range w.writers {
		if err := writer.check(ctx); err != nil {
			return err
		}
	}
	return errors.Join(w.checkEventLog(ctx), w.checkPicture(ctx, f))
}

// checkNodes compares Nodes with instances.
func (f facts) checkNodes() error {
	var errs []error
	nodeOf := map[string]*corev1.Node{}
	for i := range f.nodes {
		n := &f.nodes[i]
		id, ok := contract.InstanceIDFromProviderID(n.Spec.ProviderID)
		if _, there := f.instances[id]; !ok || !there {
			errs = append(errs, fmt.Errorf("node %s has provider ID %q, of which there is no instance", n.Name, n.Spec.ProviderID))
		}
		nodeOf[id] = n
	}
	for id, i := range f.instances {
		n := nodeOf[id]
		if n == nil && i.State == api.InstanceError {
			continue // It may have failed before it ever ran.
		}
		if n == nil {
			errs = append(errs, fmt.Errorf("instance %s (%s) is %s and has no Node", i.Name, id, i.State))
			continue
		}
		ready, shut := kubediff.IsNodeReady(n), kubediff.HasTaint(n, cloudproviderapi.TaintNodeShutdown)
		running := i.State == api.InstanceRunning
		asleep := i.State == api.InstanceStopped
		switch {
		case !running && !asleep && i.State != api.InstanceError:
			errs = append(errs, fmt.Errorf("instance %s is %s", i.Name, i.State))
		case kubediff.IsUninitialized(n) || ready != running || running && shut || asleep && !shut:
			errs = append(errs, fmt.Errorf(
				"instance %s is %s; its Node is initialised: %t, Ready: %t, shut down: %t", i.Name, i.State,
				!kubediff.IsUninitialized(n), ready, shut,
			))
		}
	}
	return errors.Join(errs...)
}

// checkServices compares balancers with Services.
func (f facts) checkServices(ctx context.Context) error {
	var errs []error
	of := map[string][]api.LoadBalancer{}
	for _, lb := range f.balancers {
		if uid := lb.Tags[contract.TagServiceUID]; uid != "" {
			of[uid] = append(of[uid], lb)
		}
	}
	for i := range f.services {
		s := &f.services[i]
		if s.Spec.Type != corev1.ServiceTypeLoadBalancer {
			continue
		}
		if err := f.checkService(ctx, s, of[string(s.UID)]); err != nil {
			errs = append(errs, fmt.Errorf("service %s: %w", s.Name, err))
		}
		delete(of, string(s.UID))
	}
	for _, left := range of {
		errs = append(errs, fmt.Errorf("balancer %s is of no Service: %v", left[0].Name, left[0].Tags))
	}
	return errors.Join(errs...)
}

func (f facts) checkService(ctx context.Context, s *corev1.Service, balancers []api.LoadBalancer) error {
	if s.DeletionTimestamp != nil {
		return errors.New("it is being deleted")
	}
	if len(balancers) != 1 {
		return fmt.Errorf("it has %d balancers", len(balancers))
	}
	lb, address := balancers[0], kubediff.IngressAddress(s)
	if lb.State != api.LoadBalancerActive || lb.Address != address {
		return fmt.Errorf("its balancer is %s at %q, and its status has %q", lb.State, lb.Address, address)
	}
	targets := sets.New[string]()
	for _, t := range lb.Targets {
		targets.Insert(t.InstanceID)
	}
	if want := f.targets(); !want.Equal(targets) {
		return fmt.Errorf("its balancer's targets are %v, and should be %v", lb.Targets, sets.List(want))
	}
	if len(lb.Listeners) != 1 || lb.Listeners[0].Port != int(s.Spec.Ports[0].Port) ||
		lb.Listeners[0].TargetPort != int(s.Spec.Ports[0].NodePort) {
		return fmt.Errorf("its balancer listens as %v", lb.Listeners)
	}
	if !f.isAnswered(s) {
		return nil
	}
	return askService(ctx, net.JoinHostPort(address, strconv.Itoa(lb.Listeners[0].Port)))
}

// targets are the instances of the Nodes that may be targets, as upstream's service controller chooses
// them (stableNodeSetPredicates).
func (f facts) targets() sets.Set[string] {
	targets := sets.New[string]()
	for _, n := range f.nodes {
		_, excluded := n.Labels[corev1.LabelNodeExcludeBalancers]
		id, ok := contract.InstanceIDFromProviderID(n.Spec.ProviderID)
		if ok && !excluded && n.DeletionTimestamp == nil {
			targets.Insert(id)
		}
	}
	return targets
}

// isAnswered tells whether a pod can be reached through a target that runs. With policy Local it must be there.
func (f facts) isAnswered(s *corev1.Service) bool {
	targets := f.targets()
	for i := range f.nodes {
		n := &f.nodes[i]
		id, _ := contract.InstanceIDFromProviderID(n.Spec.ProviderID)
		reached := f.answering[n.Name] > 0 || s.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal
		if targets.Has(id) && f.instances[id].State == api.InstanceRunning && reached && len(f.answering) > 0 {
			return true
		}
	}
	return false
}

// askService is nil if somebody answers there.
func askService(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/", nil)
	if err != nil {
		return err
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("it does not answer: %w", err)
	}
	return resp.Body.Close()
}

// createForeign makes what is not the cluster's: a balancer and an address.
func createForeign(ctx context.Context, cloud *client.Client) error {
	name, tags := "foreign", api.Tags{contract.TagCluster: "another"}
	_, err1 := cloud.CreateLoadBalancer(ctx, api.LoadBalancerCreate{
		Name: name, Tags: tags, Listeners: []api.Listener{{Protocol: api.ProtocolTCP, Port: 9000, TargetPort: 9000}},
	})
	_, err2 := cloud.ReserveAddress(ctx, api.ReservedAddressCreate{Name: &name, Tags: &tags})
	return errors.Join(err1, err2)
}

// listForeign returns what is not the cluster's, in words.
func listForeign(ctx context.Context, cloud *client.Client) (all []string, err error) {
	balancers, err1 := cloud.ListLoadBalancers(ctx, client.LoadBalancerFilter{Name: "foreign"})
	addresses, err2 := cloud.ListAddresses(ctx, client.AddressFilter{Name: "foreign"})
	for _, lb := range balancers {
		all = append(all, fmt.Sprint(lb.ID, lb.Address, lb.Tags, len(lb.Targets)))
	}
	for _, a := range addresses {
		all = append(all, fmt.Sprint(a.ID, a.IP, a.Tags))
	}
	return all, errors.Join(err1, err2)
}

// checkForeign returns an error if what is not the cluster's is another than it was.
func (w *world) checkForeign(ctx context.Context) error {
	now, err := listForeign(ctx, w.cloud)
	if err == nil && !slices.Equal(w.foreign, now) {
		err = cluster.Permanent(fmt.Errorf("what is nobody's of the cluster was %q and is %q", w.foreign, now))
	}
	return err
}
