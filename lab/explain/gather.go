package explain

// Asking for the facts. Everything is asked at once and within a bound; what does
// not answer is missing, and said to be.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab/cluster"
)

// askBound is how long the cluster and the cloud, each, may take; what is asked
// after that, about what they named, has moreBound.
const (
	askBound  = 3 * time.Second
	moreBound = time.Second
)

// maxCalls is how many of the CCM's newest calls are looked at.
const maxCalls = 200

// CloudReader is what is asked of the cloud. An admin's token shows fault rules.
type CloudReader interface {
	Project(ctx context.Context) (*api.Project, error)
	ListInstances(ctx context.Context, f client.InstanceFilter) ([]api.Instance, error)
	ListLoadBalancers(ctx context.Context, f client.LoadBalancerFilter) ([]api.LoadBalancer, error)
	LoadBalancerHealth(ctx context.Context, id string) (*api.LoadBalancerHealth, error)
	Quotas(ctx context.Context) (*api.Quotas, error)
	ListFaults(ctx context.Context) ([]api.Fault, error)
	ListAudit(ctx context.Context, f client.AuditFilter, limit int) ([]api.AuditEntry, error)
}

// Source is whom to ask. Nothing is changed.
type Source struct {
	LabName    string
	NoProvider bool
	Components []cluster.Component
	Processes  map[string]Process
	Kube       kubernetes.Interface
	Cloud      CloudReader
	// Missing is what is known beforehand to be missing.
	Missing []string
	// Removed is when Nodes were last seen to be deleted, by name.
	Removed map[string]time.Time
}

// asking collects what is asked at once.
type asking struct {
	sync.WaitGroup
	mu     sync.Mutex
	around *Around
}

// missed notes what could not be found out, besides.
func (q *asking) missed(where, what string, err error) {
	if err != nil {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.around.Missing = append(q.around.Missing, fmt.Sprintf("%s: %s: %v", where, what, noAnswer(err)))
	}
}

// noAnswer says in words that nobody answered.
func noAnswer(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return errors.New("no answer in time")
	}
	return err
}

func said(err error) string {
	if err == nil {
		return ""
	}
	return noAnswer(err).Error()
}

func (a *Around) clusterSaid(err error) {
	a.ClusterError, a.ClusterForbids = said(err), apierrors.IsForbidden(err)
}

func (s Source) begin(a *Around) *asking {
	*a = Around{LabName: s.LabName, NoProvider: s.NoProvider, Now: time.Now(), Components: s.Components, Processes: s.Processes, Missing: slices.Clone(s.Missing)}
	return &asking{around: a}
}

// askCloud asks for what Nodes and Services have in common, beside more: what
// cannot be done without.
func (s Source) askCloud(ctx context.Context, q *asking, more func() error) {
	q.Go(func() { q.around.CloudError = said(more()) })
	q.Go(func() {
		faults, err := s.Cloud.ListFaults(ctx)
		q.around.Faults = faults
		q.missed(Cloud, "fault rules", err)
	})
	q.Go(func() {
		calls, err := s.Cloud.ListAudit(ctx, client.AuditFilter{Token: cluster.CallerCCM}, maxCalls)
		q.around.Calls = calls
		q.missed(Cloud, "the CCM's calls", err)
	})
	q.Go(func() {
		project, err := s.Cloud.Project(ctx)
		if err == nil {
			q.around.Project = project.ID
		}
		q.missed(Cloud, "the project", err)
	})
}

// tidy has one line stand for all that somebody does not say who says nothing.
func (a *Around) tidy() {
	for where, why := range map[string]string{Cluster: a.ClusterError, Cloud: a.CloudError} {
		if why != "" {
			a.Missing = slices.DeleteFunc(a.Missing, func(m string) bool { return strings.HasPrefix(m, where+": ") })
			a.Missing = append(a.Missing, where+": all that it would say")
		}
	}
	slices.Sort(a.Missing)
}

// Node explains the Node of this name.
func (s Source) Node(ctx context.Context, name string) Explanation {
	f := NodeFacts{Name: name, Removed: s.Removed[name]}
	q := s.begin(&f.Around)
	bounded, cancel := context.WithTimeout(ctx, askBound)
	defer cancel()
	var instances []api.Instance
	s.askCloud(bounded, q, func() (err error) {
		instances, err = s.Cloud.ListInstances(bounded, client.InstanceFilter{})
		return err
	})
	q.Go(func() { q.around.clusterSaid(s.nodeInCluster(bounded, q, &f)) })
	q.Wait()
	f.place(instances)
	f.tidy()
	return Node(f)
}

// place finds the Node's instances among all.
func (f *NodeFacts) place(instances []api.Instance) {
	f.Instances = instances
	for i, in := range instances {
		if in.Name == f.Name {
			f.Named = append(f.Named, in)
		}
		if f.Node != nil && f.Node.Spec.ProviderID == contract.ProviderID(in.ID) {
			f.Instance = &instances[i]
		}
	}
}

func (s Source) nodeInCluster(ctx context.Context, q *asking, f *NodeFacts) error {
	nodes, err := s.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i, n := range nodes.Items {
		f.Nodes = append(f.Nodes, n.Name)
		if n.Name == f.Name {
			f.Node = &nodes.Items[i]
		}
	}
	if f.Node == nil {
		return nil
	}
	lease, err := s.Kube.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, f.Name, metav1.GetOptions{})
	if err == nil {
		f.Lease = lease
	}
	q.missed(Cluster, "the kubelet's lease", err)
	// The kubelet takes the Node's name for its UID.
	f.Events, err = s.events(ctx, "", "Node", f.Name, f.Node.CreationTimestamp, f.Node.UID, types.UID(f.Name))
	q.missed(Cluster, "events", err)
	return nil
}

// events about one object, and none about an earlier one of its name.
func (s Source) events(ctx context.Context, namespace, kind, name string, since metav1.Time, uids ...types.UID) ([]corev1.Event, error) {
	list, err := s.Kube.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.Set{"involvedObject.kind": kind, "involvedObject.name": name}.String(),
	})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.Items, func(e corev1.Event) bool {
		return eventTime(&e).Before(since.Time) || e.InvolvedObject.UID != "" && !slices.Contains(uids, e.InvolvedObject.UID)
	}), nil
}

// Service explains the Service of this name.
func (s Source) Service(ctx context.Context, namespace, name string) Explanation {
	f := ServiceFacts{Namespace: namespace, Name: name}
	q := s.begin(&f.Around)
	bounded, cancel := context.WithTimeout(ctx, askBound)
	defer cancel()
	var balancers []api.LoadBalancer
	s.askCloud(bounded, q, func() (err error) {
		balancers, err = s.Cloud.ListLoadBalancers(bounded, client.LoadBalancerFilter{Tags: []string{contract.TagServiceUID}})
		return err
	})
	q.Go(func() {
		instances, err := s.Cloud.ListInstances(bounded, client.InstanceFilter{})
		f.Instances = instances
		q.missed(Cloud, "instances", err)
	})
	q.Go(func() {
		quotas, err := s.Cloud.Quotas(bounded)
		if err == nil {
			f.Quota = &quotas.LoadBalancers
		}
		q.missed(Cloud, "quotas", err)
	})
	q.Go(func() { q.around.clusterSaid(s.serviceInCluster(bounded, q, &f)) })
	q.Wait()
	s.balancerOf(ctx, q, &f, balancers)
	f.tidy()
	return Service(f)
}

// balancerOf finds the Service's among all, and asks for its health.
func (s Source) balancerOf(ctx context.Context, q *asking, f *ServiceFacts, all []api.LoadBalancer) {
	if f.Service == nil {
		return
	}
	i := slices.IndexFunc(all, func(lb api.LoadBalancer) bool { return lb.Tags[contract.TagServiceUID] == string(f.Service.UID) })
	if i < 0 {
		return
	}
	f.Balancer = &all[i]
	ctx, cancel := context.WithTimeout(ctx, moreBound)
	defer cancel()
	health, err := s.Cloud.LoadBalancerHealth(ctx, f.Balancer.ID)
	if err == nil {
		f.Health = health
	}
	q.missed(Cloud, "the health of "+f.Balancer.ID, err)
}

func (s Source) serviceInCluster(ctx context.Context, q *asking, f *ServiceFacts) error {
	services, err := s.Kube.CoreV1().Services("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i, svc := range services.Items {
		f.Services = append(f.Services, svc.Namespace+"/"+svc.Name)
		if svc.Namespace == f.Namespace && svc.Name == f.Name {
			f.Service = &services.Items[i]
		}
	}
	if f.Service == nil {
		return nil
	}
	f.Events, err = s.events(ctx, f.Namespace, "Service", f.Name, f.Service.CreationTimestamp, f.Service.UID)
	q.missed(Cluster, "events", err)
	return s.behind(ctx, q, f)
}

// behind asks for what the Service leads to. Without that nothing can be said of
// it.
func (s Source) behind(ctx context.Context, q *asking, f *ServiceFacts) error {
	endpoints, err := s.Kube.DiscoveryV1().EndpointSlices(f.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: labels.Set{discoveryv1.LabelServiceName: f.Name}.String(),
	})
	if err != nil {
		return fmt.Errorf("its EndpointSlices: %w", err)
	}
	f.Slices = endpoints.Items
	if len(f.Service.Spec.Selector) > 0 {
		pods, err := s.Kube.CoreV1().Pods(f.Namespace).List(ctx, metav1.ListOptions{LabelSelector: labels.Set(f.Service.Spec.Selector).String()})
		if err != nil {
			return fmt.Errorf("its pods: %w", err)
		}
		f.Pods = pods.Items
	}
	nodes, err := s.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("nodes: %w", err)
	}
	f.Nodes = nodes.Items
	events, err := s.Kube.CoreV1().Events(f.Namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.Set{"involvedObject.kind": "Pod", "type": corev1.EventTypeWarning}.String(),
	})
	if err == nil {
		f.PodEvents = events.Items
	}
	q.missed(Cluster, "the pods' events", err)
	return nil
}

// Names are those that can be explained, of a kind: Nodes and instances of the
// cluster, or Services as NAMESPACE/NAME. It is an error only if nobody answers.
func (s Source) Names(ctx context.Context, kind string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, askBound)
	defer cancel()
	var names []string
	if kind == KindService {
		services, err := s.Kube.CoreV1().Services("").List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, fmt.Errorf("the API server does not say which Services there are: %w", noAnswer(err))
		}
		for _, svc := range services.Items {
			names = append(names, svc.Namespace+"/"+svc.Name)
		}
		return names, nil
	}
	nodes, err := s.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err == nil {
		for _, n := range nodes.Items {
			names = append(names, n.Name)
		}
	}
	instances, cloudErr := s.Cloud.ListInstances(ctx, client.InstanceFilter{Tags: []string{contract.TagCluster + "=" + s.LabName}})
	for _, i := range instances {
		if i.State != api.InstanceTerminated {
			names = append(names, i.Name)
		}
	}
	if err != nil && cloudErr != nil {
		return nil, fmt.Errorf("neither the API server nor the cloud says which nodes there are: %w", errors.Join(noAnswer(err), noAnswer(cloudErr)))
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
