package lab

// `lab status`: what there is, from the cloud, the cluster and /proc. Its JSON
// is a contract: fields are added, never renamed.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

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
	// State is the balancer's, or "pending" when there is none.
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"`
}

// statusBound keeps status quick when something does not answer.
const statusBound = 5 * time.Second

// Status looks at everything; what does not answer becomes a problem in it.
func (l *Lab) Status(ctx context.Context) (*Status, error) {
	st := &Status{
		Name: l.State.Name, Cluster: cmp.Or(l.State.Cluster, Embedded), CloudProvider: l.provider(), State: cluster.StateRunning, CloudURL: l.Cluster.Cloud().URL, Kubeconfig: l.Cluster.Kubeconfig(),
		Nodes: []Node{}, Services: []Service{},
	}
	ctx, cancel := context.WithTimeout(ctx, statusBound)
	defer cancel()
	var err error
	if st.Components, err = l.components(ctx); err != nil {
		return nil, err
	}
	anything := false
	for _, c := range st.Components {
		anything = anything || c.State == cluster.StateRunning
		if c.Wanted && c.State != cluster.StateRunning {
			st.State = "incomplete"
		}
	}
	if !anything {
		st.State = cluster.StateStopped
		return st, nil
	}
	kube, err := l.Cluster.Observer()
	if err == nil {
		err = errors.Join(l.statusOfNodes(ctx, kube, st), l.statusOfServices(ctx, kube, st))
	}
	if err != nil {
		st.Problems = strings.Split(err.Error(), "\n")
		st.State = "incomplete"
	}
	if dir := l.State.Path(); process.Full(dir) {
		st.Problems = append(st.Problems, "the disk of "+dir+" is full: free some space, then `lab up` completes the lab")
	}
	return st, nil
}

// components are the cluster's, and the agent.
func (l *Lab) components(ctx context.Context) ([]cluster.Component, error) {
	running, err := l.host.Running()
	if err != nil {
		return nil, err
	}
	agent := cluster.Component{Name: componentAgent, State: cluster.StateStopped, Wanted: true}
	if p := running[componentAgent]; p != nil {
		agent.PID, agent.State = p.PID, cluster.StateRunning
	}
	all, err := l.Cluster.Components(ctx)
	return append([]cluster.Component{agent}, all...), err
}

func (l *Lab) statusOfNodes(ctx context.Context, kube kubernetes.Interface, st *Status) error {
	nodes, err := kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("nodes: %w", err)
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
		return fmt.Errorf("services: %w", err)
	}
	cloud, err := l.Cloud()
	if err != nil {
		return fmt.Errorf("load balancers: %w", err)
	}
	balancers, balancersErr := cloud.ListLoadBalancers(ctx, client.LoadBalancerFilter{Tags: []string{l.Tag()}})
	byUID := map[string]api.LoadBalancer{}
	for _, lb := range balancers {
		byUID[lb.Tags[tagServiceUID]] = lb
	}
	for _, s := range services.Items {
		if s.Spec.Type != corev1.ServiceTypeLoadBalancer {
			continue
		}
		svc := Service{Namespace: s.Namespace, Name: s.Name, Address: timeline.IngressIP(&s), State: "pending"}
		if len(s.Spec.Ports) > 0 {
			svc.Port = s.Spec.Ports[0].Port
		}
		if lb, ok := byUID[string(s.UID)]; ok {
			svc.BalancerID, svc.State = lb.ID, string(lb.State)
			if lb.StateReason != nil {
				svc.Reason = *lb.StateReason
			}
		}
		st.Services = append(st.Services, svc)
	}
	if balancersErr != nil {
		return fmt.Errorf("load balancers: %w", balancersErr)
	}
	return nil
}
