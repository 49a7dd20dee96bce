// Package compare says in what two labs differ that is a matter of cloud providers, and why.
// Labs collects the facts of both; which of them differ, and why, is decided from these alone.
package compare

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/kubediff"
	"github.com/ccmlab/ccmlab/lab/status"
	"github.com/ccmlab/ccmlab/lab/ui"
	"github.com/ccmlab/ccmlab/manifests"
)

// Facts are what is known of one of the two labs. Their JSON is a contract: fields may
// be added, but are never renamed.
type Facts struct {
	Name string `json:"name"`
	// Cluster is the kind of cluster: embedded, kind or external.
	Cluster string `json:"cluster"`
	// CloudProvider is external or none.
	CloudProvider string `json:"cloudProvider"`
	// KubeletProviderIDs tells that kubelets register Nodes with provider IDs.
	KubeletProviderIDs bool `json:"kubeletProviderIDs,omitempty"`
	// Flags are the values of --cloud-provider of the components that run, ""
	// for one without. A component that is missing cannot be looked at from
	// here: its command line is in a container.
	Flags map[string]string `json:"flags"`
	// CCM tells whether a CCM runs; CCMCalls counts what it ever asked of the
	// cloud.
	CCM      bool  `json:"ccm"`
	CCMCalls int64 `json:"ccmCalls"`

	Nodes    []NodeFacts    `json:"nodes"`
	Pods     []PodFacts     `json:"pods"`
	Services []ServiceFacts `json:"services"`
}

// NodeFacts are the fields of a Node that show whether it was initialised.
type NodeFacts struct {
	Name         string   `json:"name"`
	Ready        bool     `json:"ready"`
	Taints       []string `json:"taints"` // key:effect
	ProviderID   string   `json:"providerID"`
	Zone         string   `json:"zone"`
	Region       string   `json:"region"`
	InstanceType string   `json:"instanceType"`
	InternalIP   string   `json:"internalIP"`
}

// PodFacts describe a pod of the demo.
type PodFacts struct {
	Name  string `json:"name"`
	Phase string `json:"phase"`
	Node  string `json:"node"`
	// Unschedulable is the scheduler's reason not to bind the pod; "" once it is
	// bound.
	Unschedulable string `json:"unschedulable,omitempty"`
}

// ServiceFacts describe a Service of type LoadBalancer.
type ServiceFacts struct {
	// Name is NAMESPACE/NAME.
	Name string `json:"name"`
	Type string `json:"type"`
	// Address is its balancer's, ADDRESS:PORT; "" while it has none.
	Address string `json:"address"`
	// Balancer tells whether the cloud has a balancer for it.
	Balancer bool `json:"balancer"`
	// Kind is that balancer's.
	Kind api.LoadBalancerKind `json:"kind,omitempty"`
}

// Comparison is two labs side by side.
type Comparison struct {
	Labs [2]*Facts `json:"labs"`
	Rows []Row     `json:"rows"`
}

// compareBound is how long a lab has to answer.
const compareBound = 10 * time.Second

// Labs collects the facts of two labs at once and compares them. It returns an error if
// one does not exist or does not answer.
func Labs(ctx context.Context, left, right string) (*Comparison, error) {
	var labs [2]*Facts
	ctx, cancel := context.WithTimeoutCause(ctx, compareBound, fmt.Errorf("gave up after %s", compareBound))
	defer cancel()
	// One that cannot be looked at says nothing of the other.
	var errs [2]error
	var group sync.WaitGroup
	for i, name := range []string{left, right} {
		group.Go(func() { labs[i], errs[i] = factsOfLab(ctx, name) })
	}
	group.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	return &Comparison{Labs: labs, Rows: compareFacts(labs[0], labs[1])}, nil
}

func factsOfLab(ctx context.Context, name string) (*Facts, error) {
	l, err := lab.Open(name)
	if err != nil {
		return nil, err
	}
	var facts *Facts
	components, err := l.Components(ctx)
	if err == nil {
		if err := l.CheckNotStopped(components); err != nil {
			return nil, err
		}
		facts, err = collectFacts(ctx, l, components)
	}
	if err == nil {
		return facts, nil
	}
	return nil, fmt.Errorf(
		"lab %q cannot be looked at: %w; `lab status --name %s` says what runs of it, `lab up --name %s` completes it",
		name, err, name, name,
	)
}

func collectFacts(ctx context.Context, l *lab.Lab, components []cluster.Component) (*Facts, error) {
	f := &Facts{
		Name: l.State.Name, Cluster: l.Kind(), CloudProvider: l.CloudProvider(), Flags: map[string]string{},
		Nodes: []NodeFacts{}, Pods: []PodFacts{}, Services: []ServiceFacts{},
		KubeletProviderIDs: l.State.KubeletProviderIDs != "",
	}
	kube, err := l.Cluster.Observer()
	if err != nil {
		return nil, err
	}
	if flagged, ok := l.Cluster.(cluster.Flagged); ok {
		if f.Flags, err = flagged.ProviderFlags(); err != nil {
			return nil, err
		}
	}
	f.CCM = slices.ContainsFunc(components, func(c cluster.Component) bool {
		return c.Name == "ccm" && c.State == cluster.StateRunning
	})
	cloud, err := l.Cloud()
	if err != nil {
		return nil, err
	}
	if err := f.addCalls(ctx, cloud); err != nil {
		return nil, err
	}
	snapshot := status.TakeSnapshot(ctx, kube, l.Cloud, l.Tag())
	if snapshot.NodesErr != nil {
		return nil, fmt.Errorf("nodes: %w", snapshot.NodesErr)
	}
	if err := f.addPods(ctx, kube); err != nil {
		return nil, err
	}
	if snapshot.ServicesErr != nil {
		return nil, fmt.Errorf("services: %w", snapshot.ServicesErr)
	}
	if snapshot.BalancersErr != nil {
		return nil, fmt.Errorf("load balancers: %w", snapshot.BalancersErr)
	}
	f.addSnapshot(snapshot)
	return f, nil
}

func (f *Facts) addCalls(ctx context.Context, cloud *client.Client) error {
	sums, err := cloud.SumAudit(ctx, client.AuditFilter{Token: cluster.CallerCCM}, api.AuditByToken)
	for _, s := range sums {
		f.CCMCalls += s.Calls
	}
	if err != nil {
		return fmt.Errorf("calls of the cloud: %w", err)
	}
	return nil
}

func (f *Facts) addPods(ctx context.Context, kube kubernetes.Interface) error {
	pods, err := kube.CoreV1().Pods(manifests.DemoNamespace).
		List(ctx, metav1.ListOptions{LabelSelector: manifests.DemoSelector})
	if err != nil {
		return fmt.Errorf("the demo's pods: %w", err)
	}
	for _, p := range pods.Items {
		pod := PodFacts{Name: p.Name, Phase: string(p.Status.Phase), Node: p.Spec.NodeName}
		if c := kubediff.PodCondition(&p, corev1.PodScheduled); c.Status == corev1.ConditionFalse {
			pod.Unschedulable = ui.FirstSentence(c.Message)
		}
		f.Pods = append(f.Pods, pod)
	}
	return nil
}

// addSnapshot adds the Nodes, and the Services of type LoadBalancer by name.
func (f *Facts) addSnapshot(s status.Snapshot) {
	for _, n := range s.Nodes {
		f.Nodes = append(f.Nodes, NodeFacts{
			Name: n.Name, Ready: n.Ready, Taints: n.Taints, ProviderID: n.ProviderID,
			Zone: n.Zone, Region: n.Region, InstanceType: n.InstanceType, InternalIP: n.InternalIP,
		})
	}
	for _, svc := range s.Services {
		service := ServiceFacts{
			Name: svc.Namespace + "/" + svc.Name, Type: string(corev1.ServiceTypeLoadBalancer),
			Address: svc.Address, Balancer: svc.BalancerID != "", Kind: svc.Kind,
		}
		if service.Address != "" && svc.Port != 0 {
			service.Address += fmt.Sprintf(":%d", svc.Port)
		}
		f.Services = append(f.Services, service)
	}
	slices.SortFunc(f.Services, func(a, b ServiceFacts) int { return strings.Compare(a.Name, b.Name) })
}
