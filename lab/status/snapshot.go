package status

import (
	"context"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab/kubediff"
)

// Node is a Node object. Its JSON is part of Status's.
type Node struct {
	Name       string   `json:"name"`
	InstanceID string   `json:"instanceId"`
	Ready      bool     `json:"ready"`
	Tainted    bool     `json:"tainted"`
	Taints     []string `json:"taints"` // key:effect
	ProviderID string   `json:"providerID"`
	Zone       string   `json:"zone"`
	Addresses  []string `json:"addresses"`

	Region       string `json:"-"`
	InstanceType string `json:"-"`
	// InternalIP is the first of that type.
	InternalIP string `json:"-"`
}

// Service is a Service of type LoadBalancer. Its JSON is part of Status's.
type Service struct {
	Namespace  string `json:"namespace"`
	Name       string `json:"name"`
	Address    string `json:"address"`
	Port       int32  `json:"port"`
	BalancerID string `json:"balancerId"`
	// State is the balancer's. Without one it is "pending"; where the Service has an address "attached" if that is
	// attached to an instance, as some CCMs do, else "gone"; "unknown" if the cloud did not tell.
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"`
	// ReadyEndpoints counts those of its EndpointSlices; nil if they could not be
	// listed.
	ReadyEndpoints *int `json:"readyEndpoints,omitempty"`

	// Kind is the balancer's, "" without one.
	Kind api.LoadBalancerKind `json:"-"`
}

// Snapshot is what the API server and the cloud say at one moment of the Nodes, and of
// the Services of type LoadBalancer. What could not be listed has an error.
type Snapshot struct {
	Nodes    []Node
	Services []Service

	NodesErr, ServicesErr, BalancersErr, EndpointsErr error
}

// TakeSnapshot lists everything. It asks for Services only where Nodes were to be had:
// what does not answer would be waited for again. openCloud returns the lab's cloud, in
// which its balancers have the tag.
func TakeSnapshot(
	ctx context.Context,
	kube kubernetes.Interface,
	openCloud func() (*client.Client, error),
	tag string,
) Snapshot {
	s := Snapshot{Nodes: []Node{}, Services: []Service{}}
	nodes, err := kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		s.NodesErr = err
		return s
	}
	for i := range nodes.Items {
		s.Nodes = append(s.Nodes, nodeOf(&nodes.Items[i]))
	}
	services, err := kube.CoreV1().Services("").List(ctx, metav1.ListOptions{})
	if err != nil {
		s.ServicesErr = err
		return s
	}
	var balancers []api.LoadBalancer
	var reserved []api.ReservedAddress
	cloud, err := openCloud()
	if err == nil {
		balancers, err = cloud.ListLoadBalancers(ctx, client.LoadBalancerFilter{Tags: []string{tag}})
	}
	if err == nil && slices.ContainsFunc(services.Items, func(svc corev1.Service) bool {
		return kubediff.IngressAddress(&svc) != "" && BalancerOf(&svc, balancers) == nil
	}) {
		reserved, err = cloud.ListAddresses(ctx, client.AddressFilter{})
	}
	s.BalancersErr = err
	s.Services = servicesOf(services.Items, balancers, reserved, err == nil)
	if cloud == nil {
		return s
	}
	endpoints, err := kube.DiscoveryV1().EndpointSlices("").
		List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName})
	if err != nil {
		s.EndpointsErr = err
		return s
	}
	countReadyEndpoints(s.Services, endpoints.Items)
	return s
}

func nodeOf(n *corev1.Node) Node {
	_, id, hasScheme := strings.Cut(n.Spec.ProviderID, "://")
	if !hasScheme { // Oracle's are an instance's ID alone.
		id = n.Spec.ProviderID
	}
	node := Node{
		Name: n.Name, InstanceID: id, Ready: kubediff.IsNodeReady(n), Tainted: kubediff.IsUninitialized(n),
		Taints: []string{}, ProviderID: n.Spec.ProviderID, Zone: n.Labels[corev1.LabelTopologyZone],
		Addresses: []string{},
		Region:    n.Labels[corev1.LabelTopologyRegion], InstanceType: n.Labels[corev1.LabelInstanceTypeStable],
	}
	for _, t := range n.Spec.Taints {
		node.Taints = append(node.Taints, t.Key+":"+string(t.Effect))
	}
	for _, a := range n.Status.Addresses {
		if a.Type != corev1.NodeHostName {
			node.Addresses = append(node.Addresses, a.Address)
		}
		if a.Type == corev1.NodeInternalIP && node.InternalIP == "" {
			node.InternalIP = a.Address
		}
	}
	return node
}

// countReadyEndpoints fills in ReadyEndpoints.
func countReadyEndpoints(services []Service, endpoints []discoveryv1.EndpointSlice) {
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
// and reserved addresses are known.
func servicesOf(
	services []corev1.Service,
	balancers []api.LoadBalancer,
	reserved []api.ReservedAddress,
	listed bool,
) []Service {
	all := []Service{}
	for _, s := range services {
		if s.Spec.Type != corev1.ServiceTypeLoadBalancer {
			continue
		}
		svc := Service{Namespace: s.Namespace, Name: s.Name, Address: kubediff.IngressAddress(&s)}
		if len(s.Spec.Ports) > 0 {
			svc.Port = s.Spec.Ports[0].Port
		}
		lb := BalancerOf(&s, balancers)
		switch {
		case lb != nil:
			svc.BalancerID, svc.State, svc.Kind, svc.Reason = lb.ID, string(lb.State), lb.Kind, lb.StateReason
		case !listed:
			svc.State = "unknown"
		case slices.ContainsFunc(reserved, func(a api.ReservedAddress) bool {
			return a.IP == svc.Address && a.Holder != nil && a.Holder.Kind == api.HolderInstance
		}):
			svc.State = "attached"
		case svc.Address != "":
			svc.State = "gone"
		default:
			svc.State = "pending"
		}
		all = append(all, svc)
	}
	return all
}

// BalancerOf is the balancer that the CCM made for a Service, which carries the Service's
// UID in its tags; nil if it is not among all. The tag is called otherwise by each CCM, and a
// UID is nobody else's. Brightbox's CCM gives a balancer its Service's name alone, and Oracle's names a network load
// balancer NAMESPACE/SERVICE/UID.
func BalancerOf(s *corev1.Service, all []api.LoadBalancer) *api.LoadBalancer {
	for i := range all {
		if slices.Contains(slices.Collect(maps.Values(all[i].Tags)), string(s.UID)) ||
			strings.HasPrefix(all[i].Tags["name"], s.Name+"."+s.Namespace+".") ||
			strings.HasSuffix(all[i].Tags["name"], "/"+string(s.UID)) {
			return &all[i]
		}
	}
	return nil
}
