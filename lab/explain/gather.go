package explain

// Facts are queried all at once and within a timeout. A query that fails is listed
// in LabFacts.Missing.

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
	"github.com/ccmlab/ccmlab/lab/kubediff"
	"github.com/ccmlab/ccmlab/lab/status"
)

// queryTimeout bounds the queries of the cluster and the cloud, which run in parallel.
// A query that needs their results has followUpTimeout.
const (
	queryTimeout    = 3 * time.Second
	followUpTimeout = time.Second
)

// maxCalls is how many of the CCM's latest calls are read from the audit.
const maxCalls = 200

// CloudReader is the part of the cloud's API that explain reads. Fault rules need an
// admin's token.
type CloudReader interface {
	Project(ctx context.Context) (*api.Project, error)
	ListInstances(ctx context.Context, f client.InstanceFilter) ([]api.Instance, error)
	ListLoadBalancers(ctx context.Context, f client.LoadBalancerFilter) ([]api.LoadBalancer, error)
	ListAddresses(ctx context.Context, f client.AddressFilter) ([]api.ReservedAddress, error)
	LoadBalancerHealth(ctx context.Context, id string) (*api.LoadBalancerHealth, error)
	LoadBalancerStats(ctx context.Context, id string) (*api.LoadBalancerStats, error)
	Quotas(ctx context.Context) (*api.Quotas, error)
	ListFaults(ctx context.Context) ([]api.Fault, error)
	ListAudit(ctx context.Context, f client.AuditFilter, limit int) ([]api.AuditEntry, error)
}

// Source queries facts, beside those that it has of the lab itself. It changes nothing.
type Source struct {
	LabFacts
	Kube  kubernetes.Interface
	Cloud CloudReader
	// Removed is when Nodes were last deleted, by name.
	Removed map[string]time.Time
}

// factQueries are the queries that run in parallel for one explanation.
type factQueries struct {
	sync.WaitGroup
	mu       sync.Mutex
	labFacts *LabFacts
}

// addMissing records a failed query; a nil err records nothing.
func (q *factQueries) addMissing(where, what string, err error) {
	if err != nil {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.labFacts.Missing = append(q.labFacts.Missing, fmt.Sprintf("%s: %s: %v", where, what, describeTimeout(err)))
	}
}

// describeTimeout replaces context.DeadlineExceeded by words for people.
func describeTimeout(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return errors.New("no answer in time")
	}
	return err
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return describeTimeout(err).Error()
}

func (a *LabFacts) setClusterError(err error) {
	a.ClusterError, a.ClusterForbids = errorText(err), apierrors.IsForbidden(err)
}

func (s Source) beginQueries(a *LabFacts) *factQueries {
	*a = s.LabFacts
	a.Now, a.Missing = time.Now(), slices.Clone(s.Missing)
	return &factQueries{labFacts: a}
}

// queryCloud starts the queries that Nodes and Services have in common, and
// required, whose failure counts as the cloud's.
func (s Source) queryCloud(ctx context.Context, q *factQueries, more func() error) {
	q.Go(func() { q.labFacts.CloudError = errorText(more()) })
	q.Go(func() {
		faults, err := s.Cloud.ListFaults(ctx)
		q.labFacts.Faults = faults
		q.addMissing(Cloud, "fault rules", err)
	})
	q.Go(func() {
		calls, err := s.Cloud.ListAudit(ctx, client.AuditFilter{Token: cluster.CallerCCM}, maxCalls)
		q.labFacts.Calls = calls
		q.addMissing(Cloud, "the CCM's calls", err)
	})
	q.Go(func() {
		project, err := s.Cloud.Project(ctx)
		if err == nil {
			q.labFacts.Project = project.ID
		}
		q.addMissing(Cloud, "the project", err)
	})
}

// summarizeMissing replaces the lines about a source that does not answer at all by
// one line.
func (a *LabFacts) summarizeMissing() {
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
	q := s.beginQueries(&f.LabFacts)
	bounded, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	var instances []api.Instance
	s.queryCloud(bounded, q, func() (err error) {
		instances, err = s.Cloud.ListInstances(bounded, client.InstanceFilter{})
		return err
	})
	q.Go(func() { q.labFacts.setClusterError(s.queryNode(bounded, q, &f)) })
	q.Wait()
	f.setInstances(instances)
	f.summarizeMissing()
	return Node(f)
}

// setInstances keeps all instances, and finds the Node's among them.
func (f *NodeFacts) setInstances(instances []api.Instance) {
	f.Instances = instances
	for i, in := range instances {
		if strings.EqualFold(in.Name, f.Name) {
			f.Named = append(f.Named, in)
		}
		if f.Node != nil && cluster.IsProviderIDOf(f.Node.Spec.ProviderID, in) {
			f.Instance = &instances[i]
		}
	}
}

func (s Source) queryNode(ctx context.Context, q *factQueries, f *NodeFacts) error {
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
	q.addMissing(Cluster, "the kubelet's lease", err)
	// The kubelet takes the Node's name for its UID.
	f.Events, err = s.listEventsOf(ctx, "", "Node", f.Name, f.Node.CreationTimestamp, f.Node.UID, types.UID(f.Name))
	q.addMissing(Cluster, "events", err)
	return nil
}

// listEventsOf lists the Events of one object, without those of an earlier object of
// the same name.
func (s Source) listEventsOf(
	ctx context.Context,
	namespace, kind, name string,
	since metav1.Time,
	uids ...types.UID,
) ([]corev1.Event, error) {
	list, err := s.Kube.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.Set{"involvedObject.kind": kind, "involvedObject.name": name}.String(),
	})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.Items, func(e corev1.Event) bool {
		return eventTime(&e).
			Before(since.Time) || e.InvolvedObject.UID != "" && !slices.Contains(uids, e.InvolvedObject.UID)
	}), nil
}

// Service explains the Service of this name.
func (s Source) Service(ctx context.Context, namespace, name string) Explanation {
	f := ServiceFacts{Namespace: namespace, Name: name}
	q := s.beginQueries(&f.LabFacts)
	bounded, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	var balancers []api.LoadBalancer
	s.queryCloud(bounded, q, func() (err error) {
		balancers, err = s.Cloud.ListLoadBalancers(bounded, client.LoadBalancerFilter{})
		return err
	})
	q.Go(func() {
		instances, err := s.Cloud.ListInstances(bounded, client.InstanceFilter{})
		f.Instances = instances
		q.addMissing(Cloud, "instances", err)
	})
	q.Go(func() {
		quotas, err := s.Cloud.Quotas(bounded)
		if err == nil {
			f.Quota = &quotas.LoadBalancers
		}
		q.addMissing(Cloud, "quotas", err)
	})
	q.Go(func() { q.labFacts.setClusterError(s.queryService(bounded, q, &f)) })
	q.Wait()
	s.queryBalancer(ctx, q, &f, balancers)
	f.summarizeMissing()
	return Service(f)
}

// queryBalancer finds the Service's balancer among all, and queries its health and its
// counters.
func (s Source) queryBalancer(ctx context.Context, q *factQueries, f *ServiceFacts, all []api.LoadBalancer) {
	if f.Service == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, followUpTimeout)
	defer cancel()
	if f.Balancer = status.BalancerOf(f.Service, all); f.Balancer == nil {
		s.queryAddress(ctx, q, f)
		return
	}
	health, err := s.Cloud.LoadBalancerHealth(ctx, f.Balancer.ID)
	if err == nil {
		f.Health = health
	}
	q.addMissing(Cloud, "the health of "+f.Balancer.ID, err)
	stats, err := s.Cloud.LoadBalancerStats(ctx, f.Balancer.ID)
	if err == nil {
		f.Stats = stats
	}
	q.addMissing(Cloud, "the traffic of "+f.Balancer.ID, err)
}

// queryAddress finds the reserved address that the Service's status names, unless a balancer holds it.
func (s Source) queryAddress(ctx context.Context, q *factQueries, f *ServiceFacts) {
	reserved, err := s.Cloud.ListAddresses(ctx, client.AddressFilter{})
	for _, a := range reserved {
		if a.IP == kubediff.IngressAddress(f.Service) && (a.Holder == nil || a.Holder.Kind == api.HolderInstance) {
			f.Address = &a
		}
	}
	q.addMissing(Cloud, "reserved addresses", err)
}

func (s Source) queryService(ctx context.Context, q *factQueries, f *ServiceFacts) error {
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
	f.Events, err = s.listEventsOf(ctx, f.Namespace, "Service", f.Name, f.Service.CreationTimestamp, f.Service.UID)
	q.addMissing(Cluster, "events", err)
	return s.queryBackends(ctx, q, f)
}

// queryBackends lists the Service's EndpointSlices, its pods, and the Nodes. Without
// them no explanation is possible.
func (s Source) queryBackends(ctx context.Context, q *factQueries, f *ServiceFacts) error {
	endpoints, err := s.Kube.DiscoveryV1().EndpointSlices(f.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: labels.Set{discoveryv1.LabelServiceName: f.Name}.String(),
	})
	if err != nil {
		return fmt.Errorf("its EndpointSlices: %w", err)
	}
	f.Slices = endpoints.Items
	if len(f.Service.Spec.Selector) > 0 {
		pods, err := s.Kube.CoreV1().Pods(f.Namespace).
			List(ctx, metav1.ListOptions{LabelSelector: labels.Set(f.Service.Spec.Selector).String()})
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
	q.addMissing(Cluster, "the pods' events", err)
	return nil
}

// Names lists what can be explained of a kind: Nodes and instances of the cluster,
// or Services as NAMESPACE/NAME. It is an error only if nothing answers.
func (s Source) Names(ctx context.Context, kind string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	var names []string
	if kind == KindService {
		services, err := s.Kube.CoreV1().Services("").List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, fmt.Errorf("the API server does not say which Services there are: %w", describeTimeout(err))
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
	instances, cloudErr := s.Cloud.ListInstances(
		ctx, client.InstanceFilter{Tags: []string{contract.TagCluster + "=" + s.LabName}},
	)
	for _, i := range instances {
		if i.State != api.InstanceTerminated {
			names = append(names, i.Name)
		}
	}
	if err != nil && cloudErr != nil {
		return nil, fmt.Errorf(
			"neither the API server nor the cloud says which nodes there are: %w",
			errors.Join(describeTimeout(err), describeTimeout(cloudErr)),
		)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
