package lab

// `lab status`: what there is, from the cloud, the cluster and /proc. Its JSON
// is a contract: fields are added, never renamed.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/lab/timeline"
)

// Status is a lab at one moment.
type Status struct {
	Name string `json:"name"`
	// Cluster is the kind of cluster: embedded, kind or external.
	Cluster string `json:"cluster"`
	// CloudProvider is external or none.
	CloudProvider string `json:"cloudProvider"`
	// State is "running", "incomplete" (something that should run does not)
	// or "stopped" (nothing runs, the folder is there).
	State      string              `json:"state"`
	CloudURL   string              `json:"cloudURL"`
	Kubeconfig string              `json:"kubeconfig"`
	Components []cluster.Component `json:"components"`
	Nodes      []Node              `json:"nodes"`
	Services   []Service           `json:"services"`
	// Problems are what could not be found out, and why.
	Problems []string `json:"problems,omitempty"`
}

// Node is a Node object.
type Node struct {
	Name       string   `json:"name"`
	InstanceID string   `json:"instanceId"`
	Ready      bool     `json:"ready"`
	Tainted    bool     `json:"tainted"`
	Taints     []string `json:"taints"`
	ProviderID string   `json:"providerID"`
	Zone       string   `json:"zone"`
	Addresses  []string `json:"addresses"`
}

// Service is a Service of type LoadBalancer.
type Service struct {
	Namespace  string `json:"namespace"`
	Name       string `json:"name"`
	Address    string `json:"address"`
	Port       int32  `json:"port"`
	BalancerID string `json:"balancerId"`
	// State is the balancer's. Without one it is "pending", or "gone" if the
	// Service still has its address; "unknown" if the cloud did not tell.
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"`
	// ReadyEndpoints counts those of its EndpointSlices; nil if they could not be
	// listed.
	ReadyEndpoints *int `json:"readyEndpoints,omitempty"`
}

// IsDemo tells whether a Service is the demo's.
func IsDemo(namespace, name string) bool { return namespace == demoNamespace && name == demoName }

// statusBound keeps status quick when something does not answer.
const statusBound = 5 * time.Second

// Status looks at everything; what does not answer becomes a problem in it.
func (l *Lab) Status(ctx context.Context) (*Status, error) {
	st := &Status{
		Name: l.State.Name, Cluster: cmp.Or(l.State.Cluster, Embedded), CloudProvider: l.provider(), CloudURL: l.Cluster.Cloud().URL, Kubeconfig: l.Cluster.Kubeconfig(),
		Nodes: []Node{}, Services: []Service{},
	}
	ctx, cancel := context.WithTimeout(ctx, statusBound)
	defer cancel()
	var err error
	if st.Components, err = l.components(ctx); err != nil {
		return nil, err
	}
	if st.State = stateOf(st.Components); st.State == cluster.StateStopped {
		return st, nil
	}
	kube, err := l.Cluster.Observer()
	if err == nil {
		err = l.statusOfCluster(ctx, kube, st)
	}
	if err != nil {
		st.Problems = append(st.Problems, strings.Split(err.Error(), "\n")...)
	}
	if st.Problems = append(l.paused(), st.Problems...); len(st.Problems) > 0 {
		st.State = StateIncomplete
	}
	if dir := l.State.Path(); process.Full(dir) {
		st.Problems = append(st.Problems, "the disk of "+dir+" is full: free some space, then `lab up` completes the lab")
	}
	return st, nil
}

// components are the cluster's, the agent, and a CCM that somebody runs beside the
// lab's.
func (l *Lab) components(ctx context.Context) ([]cluster.Component, error) {
	running, err := l.Host.Running()
	if err != nil {
		return nil, err
	}
	agent := cluster.Component{Name: componentAgent, State: cluster.StateStopped, Wanted: true}
	if p := running[componentAgent]; p != nil {
		agent.PID, agent.State = p.PID, cluster.StateRunning
	}
	all, err := l.Cluster.Components(ctx)
	if p := running[componentByHand]; p != nil {
		all = append(all, cluster.Component{Name: componentByHand, PID: p.PID, State: cluster.StateRunning})
	}
	return append([]cluster.Component{agent}, all...), err
}

// statusOfCluster asks for Services only where Nodes were to be had: what does not
// answer would be waited for again.
func (l *Lab) statusOfCluster(ctx context.Context, kube kubernetes.Interface, st *Status) error {
	if err := l.statusOfNodes(ctx, kube, st); err != nil {
		return err
	}
	return errors.Join(l.withoutNode(ctx, st), l.statusOfServices(ctx, kube, st))
}

// registration is what a machine may take to make its Node.
const registration = 15 * time.Second

// withoutNode makes a problem of each running instance that has no Node, though
// its machine has been up for long enough.
func (l *Lab) withoutNode(ctx context.Context, st *Status) error {
	if !l.embedded() {
		return nil
	}
	machines, err := l.Cluster.Machines(ctx)
	if err != nil {
		return fmt.Errorf("machines: %w", err)
	}
	up := map[string]string{} // names, by instance
	for m, r := range machines {
		has := slices.ContainsFunc(st.Nodes, func(n Node) bool { return n.Name == m.Name })
		if p, ok := r.(*process.Process); ok && !has && time.Since(p.Started()) > registration {
			up[m.ID] = m.Name
		}
	}
	if len(up) == 0 {
		return nil
	}
	cloud, err := l.Cloud()
	if err != nil {
		return fmt.Errorf("instances: %w", err)
	}
	running, err := cloud.ListInstances(ctx, client.InstanceFilter{Tags: []string{l.Tag()}, States: []api.InstanceState{api.InstanceRunning}})
	if err != nil {
		return fmt.Errorf("instances: %w", inTime(ctx, err))
	}
	for _, i := range running {
		if name := up[i.ID]; name != "" {
			st.Problems = append(st.Problems, fmt.Sprintf("instance %s runs and has no Node; `lab explain node/%[1]s --name %[2]s` says why", name, l.State.Name))
		}
	}
	return nil
}

// inTime says in plain words that an answer did not come within statusBound:
// client-go's limiter has words of its own for it, and gives up before the bound.
func inTime(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil && !errors.Is(err, context.DeadlineExceeded) && !strings.Contains(err.Error(), "would exceed context deadline") {
		return err
	}
	return errors.New("no answer in time")
}

func (l *Lab) statusOfNodes(ctx context.Context, kube kubernetes.Interface, st *Status) error {
	nodes, err := kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("nodes: %w", inTime(ctx, err))
	}
	for _, n := range nodes.Items {
		_, id, _ := strings.Cut(n.Spec.ProviderID, "://")
		node := Node{
			Name: n.Name, InstanceID: id, Ready: timeline.Ready(&n), Tainted: timeline.Uninitialized(&n),
			Taints: []string{}, ProviderID: n.Spec.ProviderID, Zone: n.Labels[corev1.LabelTopologyZone], Addresses: []string{},
		}
		for _, t := range n.Spec.Taints {
			node.Taints = append(node.Taints, t.Key+":"+string(t.Effect))
		}
		for _, a := range n.Status.Addresses {
			if a.Type != corev1.NodeHostName {
				node.Addresses = append(node.Addresses, a.Address)
			}
		}
		st.Nodes = append(st.Nodes, node)
	}
	return nil
}

func (l *Lab) statusOfServices(ctx context.Context, kube kubernetes.Interface, st *Status) error {
	services, err := kube.CoreV1().Services("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("services: %w", inTime(ctx, err))
	}
	cloud, err := l.Cloud()
	if err != nil {
		st.Services = servicesOf(services.Items, nil, false)
		return fmt.Errorf("load balancers: %w", err)
	}
	balancers, balancersErr := cloud.ListLoadBalancers(ctx, client.LoadBalancerFilter{Tags: []string{l.Tag()}})
	st.Services = servicesOf(services.Items, balancers, balancersErr == nil)
	if balancersErr != nil {
		balancersErr = fmt.Errorf("load balancers: %w", inTime(ctx, balancersErr))
	}
	endpoints, err := kube.DiscoveryV1().EndpointSlices("").List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName})
	if err != nil {
		return errors.Join(balancersErr, fmt.Errorf("endpoints: %w", inTime(ctx, err)))
	}
	countReady(st.Services, endpoints.Items)
	return balancersErr
}

func countReady(services []Service, endpoints []discoveryv1.EndpointSlice) {
	for i := range services {
		ready := 0
		for _, s := range endpoints {
			if s.Namespace != services[i].Namespace || s.Labels[discoveryv1.LabelServiceName] != services[i].Name {
				continue
			}
			for _, e := range s.Endpoints {
				if e.Conditions.Ready == nil || *e.Conditions.Ready { // Not told is ready, by its documentation.
					ready++
				}
			}
		}
		services[i].ReadyEndpoints = &ready
	}
}

// servicesOf are those of type LoadBalancer; listed tells whether the balancers
// are known.
func servicesOf(services []corev1.Service, balancers []api.LoadBalancer, listed bool) []Service {
	byUID := map[string]api.LoadBalancer{}
	for _, lb := range balancers {
		byUID[lb.Tags[contract.TagServiceUID]] = lb
	}
	all := []Service{}
	for _, s := range services {
		if s.Spec.Type != corev1.ServiceTypeLoadBalancer {
			continue
		}
		svc := Service{Namespace: s.Namespace, Name: s.Name, Address: timeline.IngressIP(&s)}
		if len(s.Spec.Ports) > 0 {
			svc.Port = s.Spec.Ports[0].Port
		}
		lb, ok := byUID[string(s.UID)]
		switch {
		case ok:
			svc.BalancerID, svc.State = lb.ID, string(lb.State)
			if lb.StateReason != nil {
				svc.Reason = *lb.StateReason
			}
		case !listed:
			svc.State = "unknown"
		case svc.Address != "":
			svc.State = "gone"
		default:
			svc.State = "pending"
		}
		all = append(all, svc)
	}
	return all
}
