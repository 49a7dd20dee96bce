package explain

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// wellService is a Service with nothing wrong: two nodes, a ready pod on each.
func wellService() ServiceFacts {
	f := ServiceFacts{
		LabFacts: around(), Namespace: "default", Name: "web",
		Services: []string{"default/web", "default/kubernetes", "other/api"},
		Service: &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{
				Name: "web", Namespace: "default", UID: "s-uid", CreationTimestamp: ago(time.Minute),
				Finalizers: []string{loadBalancerFinalizer},
			},
			Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeLoadBalancer, Selector: map[string]string{"app": "web"},
				Ports: []corev1.ServicePort{{Port: 8080, NodePort: 30080, Protocol: corev1.ProtocolTCP}},
			},
			Status: corev1.ServiceStatus{
				LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "127.30.64.1"}}},
			},
		},
		Balancer: &api.LoadBalancer{
			Metadata: api.Metadata{ID: "lb-1", Name: "web-1", UpdatedAt: now}, Address: "127.30.64.1", State: api.LoadBalancerActive,
			Listeners: []api.Listener{{Port: 8080, Protocol: "tcp", TargetPort: 30080}},
			Targets:   []api.Target{{InstanceID: "i-1"}, {InstanceID: "i-2"}},
		},
		Health: &api.LoadBalancerHealth{Targets: []api.TargetHealth{
			{InstanceID: "i-1", Health: api.TargetUnknown}, {InstanceID: "i-2", Health: api.TargetUnknown},
		}},
		Quota: &api.Quota{Limit: 10, Used: 1},
	}
	slice := discoveryv1.EndpointSlice{Ports: []discoveryv1.EndpointPort{{Port: new(int32(80))}}}
	for _, n := range []string{"1", "2"} {
		f.Instances = append(f.Instances, api.Instance{ID: "i-" + n, Name: "node-" + n})
		f.Nodes = append(f.Nodes, corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "node-" + n}, Spec: corev1.NodeSpec{ProviderID: "fakecloud://i-" + n},
			Status: corev1.NodeStatus{
				Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			},
		})
		f.Pods = append(f.Pods, corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "web-" + n}, Spec: corev1.PodSpec{NodeName: "node-" + n},
			Status: corev1.PodStatus{
				Phase:      corev1.PodRunning,
				Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			},
		})
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Conditions: discoveryv1.EndpointConditions{Ready: new(true)}, NodeName: new("node-" + n),
			TargetRef: &corev1.ObjectReference{Name: "web-" + n},
		})
	}
	f.Slices = []discoveryv1.EndpointSlice{slice}
	return f
}

func networkBalancer(f *ServiceFacts) {
	f.Balancer.Kind, f.Balancer.Listeners[0].TargetPort = api.KindNetwork, 8080
}

// theAPIServers is default/kubernetes.
func theAPIServers(f *ServiceFacts) {
	f.Name, f.Service.Name, f.Service.Spec.Type, f.Service.Spec.Selector = "kubernetes", "kubernetes", corev1.ServiceTypeClusterIP, nil
	f.Balancer, f.Health, f.Pods = nil, nil, nil
}

// attach gives the Service an attached address in place of its balancer.
func (f *ServiceFacts) attach(instance string, state api.InstanceState) {
	f.Balancer, f.Health = nil, nil
	f.Address = &api.ReservedAddress{
		Metadata: api.Metadata{ID: "a-1", Name: "lab-default-web"}, IP: "127.30.64.1",
		Holder: &api.AddressHolder{Kind: api.HolderInstance, ID: instance},
	}
	for i := range f.Instances {
		f.Instances[i].State = state
	}
}

// noAddress is a Service before the CCM has seen to it.
func noAddress(f *ServiceFacts) {
	f.Service.Status, f.Balancer, f.Health = corev1.ServiceStatus{}, nil, nil
}

func (f *ServiceFacts) balancerIn(state api.LoadBalancerState, reason string) {
	f.Balancer.State = state
	if reason != "" {
		f.Balancer.StateReason = reason
	}
}

func (f *ServiceFacts) balancerCannotListen(reason string) {
	f.balancerIn(api.LoadBalancerError, reason)
	f.Balancer.StateReasonCode = api.ReasonCannotListen
}

// endpointsNotReady has no endpoint ready, and no pod.
func endpointsNotReady(f *ServiceFacts) {
	for i := range f.Slices[0].Endpoints {
		f.Slices[0].Endpoints[i].Conditions.Ready = new(false)
	}
	for i := range f.Pods {
		f.Pods[i].Status.Conditions[0].Status = corev1.ConditionFalse
	}
}

// unscheduled has pods without a node, with what the scheduler says.
func unscheduled(f *ServiceFacts, said string) {
	f.Slices[0].Endpoints = nil
	for i := range f.Pods {
		f.Pods[i].Spec.NodeName, f.Pods[i].Status = "", corev1.PodStatus{Phase: corev1.PodPending}
		if said != "" {
			f.Pods[i].Status.Conditions = []corev1.PodCondition{
				{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: said},
			}
		}
	}
}

func (f *ServiceFacts) health(states ...api.TargetHealthState) {
	f.Balancer.HealthCheck = &api.HealthCheck{Protocol: "http"}
	for i, s := range states {
		f.Health.Targets[i].Health, f.Health.Targets[i].Reason = s, "connection refused"
	}
}

// traffic sets what the balancer's listener on 8080 has counted.
func (f *ServiceFacts) traffic(of api.ListenerStats) {
	of.Port, of.Protocol = 8080, "tcp"
	f.Stats = &api.LoadBalancerStats{Listeners: []api.ListenerStats{of}}
}

// containerPorts has each pod declare these ports, and none else.
func (f *ServiceFacts) containerPorts(ports ...int32) {
	for i := range f.Pods {
		c := corev1.Container{Name: "web"}
		for _, port := range ports {
			c.Ports = append(c.Ports, corev1.ContainerPort{ContainerPort: port, Protocol: corev1.ProtocolTCP})
		}
		f.Pods[i].Spec.Containers = []corev1.Container{c}
	}
}

// What the lab says of the CCM's annotation is what the CCM documents.
func TestAnnotationOfTheHealthCheckIsTheCCMs(t *testing.T) {
	documented, err := os.ReadFile("../../ccm/ANNOTATIONS.md")
	require.NoError(t, err)
	assert.Contains(t, string(documented), "\n    "+contract.AnnotationHealthCheck+`: "tcp"`+"\n")
}

func TestServices(t *testing.T) {
	explainEach(t, "testdata/services.golden", wellService, Service, map[string]func(*ServiceFacts){
		"all well": func(*ServiceFacts) {},
		"all well, not checked, as it asks": func(f *ServiceFacts) {
			f.Service.Annotations = map[string]string{contract.AnnotationHealthCheck: "none"}
		},
		"all well, told by the PROXY protocol": func(f *ServiceFacts) {
			f.Balancer.Listeners[0].ProxyProtocol = api.ProxyProtocolV1
		},
		"all well, by a network balancer": networkBalancer,
		"all well, by a network balancer, local": func(f *ServiceFacts) {
			networkBalancer(f)
			f.Service.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		},
		"a network balancer, of a cloud that has none": func(f *ServiceFacts) {
			noAddress(f)
			f.Events = []corev1.Event{event("fakecloud-ccm", "InvalidService", noNetworkBalancers+": loopback")}
		},
		"all well, by an attached address": func(f *ServiceFacts) {
			f.attach("i-1", api.InstanceRunning)
		},
		"an address that is attached to a stopped instance": func(f *ServiceFacts) {
			f.attach("i-1", api.InstanceStopped)
		},
		"an address that is attached to another node than the status says": func(f *ServiceFacts) {
			f.attach("i-1", api.InstanceRunning)
			f.Instances[0].Addresses = []api.Address{{Type: api.AddressInternal, IP: "127.30.16.1"}}
			f.Service.Status.LoadBalancer.Ingress = append(
				f.Service.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: "127.30.16.2"},
			)
		},
		"an address that is attached to nothing": func(f *ServiceFacts) {
			f.attach("", "")
			f.Address.Holder = nil
		},
		"all well, checked, for some clients": func(f *ServiceFacts) {
			f.health(api.TargetHealthy, api.TargetHealthy)
			f.Balancer.SourceRanges = []string{"127.0.0.0/8"}
		},
		"all well, checked, and the cloud does not tell of it": func(f *ServiceFacts) { f.health(); f.Health = nil },
		"no such Service":   func(f *ServiceFacts) { f.Service, f.Name = nil, "wep" },
		"another namespace": func(f *ServiceFacts) { f.Service, f.Name, f.Namespace = nil, "api", "web" },
		"the API server is down": func(f *ServiceFacts) {
			f.Service, f.ClusterError = nil, "refused"
			f.stop(componentEtcd, componentAPIServer)
		},
		"of another type by now": func(f *ServiceFacts) {
			f.Service.Spec.Type = corev1.ServiceTypeClusterIP
			f.ccmOff()
		},
		"ExternalName": func(f *ServiceFacts) {
			f.Service.Spec.Type = corev1.ServiceTypeExternalName
			f.Balancer, f.Slices, f.Service.Spec.Selector = nil, nil, nil
		},
		"default/kubernetes":                 func(f *ServiceFacts) { theAPIServers(f); f.Slices = nil },
		"default/kubernetes, with endpoints": theAPIServers,
		"another controller's class": func(f *ServiceFacts) {
			noAddress(f)
			f.Service.Spec.LoadBalancerClass = new("example.com/mine")
		},
		"none comes": func(f *ServiceFacts) {
			noAddress(f)
			f.OtherCCM, f.NoBalancers = "/bin/cloudlycke-ccm", true
		},
		"provisioning": func(f *ServiceFacts) {
			f.Service.Status = corev1.ServiceStatus{}
			f.balancerIn(api.LoadBalancerProvisioning, "")
		},
		"provisioning for ever": func(f *ServiceFacts) {
			f.Service.Status = corev1.ServiceStatus{}
			f.balancerIn(api.LoadBalancerProvisioning, "")
			f.Faults = []api.Fault{
				{
					ID: "f-1", Effect: api.FaultEffect{Stuck: true},
					Match: api.FaultMatch{Kinds: []api.ResourceKind{api.ResourceInstance}},
				},
				{
					ID: "f-2", Effect: api.FaultEffect{Stuck: true},
					Match: api.FaultMatch{Kinds: []api.ResourceKind{api.ResourceLoadBalancer}},
				},
				{ID: "f-3", Effect: api.FaultEffect{Crash: true}},
			}
		},
		"active, and not told": func(f *ServiceFacts) { f.Service.Status = corev1.ServiceStatus{} },
		"active, and nobody tells": func(f *ServiceFacts) {
			f.Service.Status = corev1.ServiceStatus{}
			f.stop(componentCCM)
		},
		"a port below 1024": func(f *ServiceFacts) {
			f.Service.Status = corev1.ServiceStatus{}
			f.balancerCannotListen(
				"cannot listen on 127.30.64.1:80: permission denied, low ports are privileged; lower the limit with `sysctl -w net.ipv4.ip_unprivileged_port_start=80`, or so",
			)
		},
		"built in error, by a fault": func(f *ServiceFacts) {
			f.Service.Status = corev1.ServiceStatus{}
			f.balancerIn(api.LoadBalancerError, "no disk left")
			f.Faults = []api.Fault{{ID: "f-1", Effect: api.FaultEffect{Fail: "no disk left"}}}
		},
		"error, after it had an address": func(f *ServiceFacts) {
			f.balancerCannotListen("cannot listen on 127.30.64.1:8080: another server holds it")
		},
		"quota": func(f *ServiceFacts) {
			noAddress(f)
			f.Quota.Used = 10
			f.Events = []corev1.Event{event("fakecloud-ccm", "QuotaExceeded", "10 of 10")}
			f.Calls = []api.AuditEntry{call("createLoadBalancer", 403, "quota-exceeded", time.Second)}
		},
		"refused by the cloud, and not since": func(f *ServiceFacts) {
			noAddress(f)
			f.Events = []corev1.Event{before(8*time.Minute, "CloudAccessDenied")}
		},
		"refused by the cloud, and served after that": func(f *ServiceFacts) {
			f.Balancer, f.Health = nil, nil
			f.Events = []corev1.Event{
				before(time.Minute, "CloudUnavailable"), event("service-controller", "UpdatedLoadBalancer", ""),
			}
		},
		"refused by the cloud": func(f *ServiceFacts) {
			noAddress(f)
			f.Calls = []api.AuditEntry{call("createLoadBalancer", 503, "unavailable", time.Second)}
		},
		"a name taken": func(f *ServiceFacts) {
			noAddress(f)
			f.Events = []corev1.Event{event("fakecloud-ccm", "LoadBalancerNameTaken", "lb-9 has it")}
		},
		"a reason of a later CCM": func(f *ServiceFacts) {
			noAddress(f)
			f.Events = []corev1.Event{event("fakecloud-ccm", "Eclipse", "dark")}
		},
		"no address, and a cloud that does not answer": func(f *ServiceFacts) {
			noAddress(f)
			f.CloudError, f.Faults = "503", []api.Fault{fault(503, api.FaultMatch{})}
		},
		"an address, and a cloud that does not answer": func(f *ServiceFacts) {
			f.Balancer, f.Health, f.CloudError = nil, nil, "no answer in time"
		},
		"the cloud is down": func(f *ServiceFacts) {
			f.Balancer, f.Health, f.CloudError = nil, nil, "refused"
			f.stop(componentCloud)
		},
		"its balancer is on its way out": func(f *ServiceFacts) { f.balancerIn(api.LoadBalancerDeleting, "") },
		"updating":                       func(f *ServiceFacts) { f.balancerIn(api.LoadBalancerUpdating, "") },
		"a port that the balancer lacks": func(f *ServiceFacts) {
			f.Service.Spec.Ports = append(
				f.Service.Spec.Ports, corev1.ServicePort{Port: 9090, NodePort: 30090, Protocol: corev1.ProtocolUDP},
			)
			f.ccmOff()
		},
		"a port that the balancer will not get": func(f *ServiceFacts) {
			f.Service.Spec.Ports = append(
				f.Service.Spec.Ports, corev1.ServicePort{Port: 9090, NodePort: 30090, Protocol: corev1.ProtocolTCP},
			)
			f.Events = []corev1.Event{event("fakecloud-ccm", "InvalidService", "annotation x")}
		},
		"without a cloud provider": func(f *ServiceFacts) {
			f.Service.Status, f.Balancer, f.NoProvider = corev1.ServiceStatus{}, nil, true
		},
		"a change that could not be made": func(f *ServiceFacts) {
			ensured := event("service-controller", "EnsuredLoadBalancer", "")
			ensured.LastTimestamp = ago(time.Minute)
			f.Events = []corev1.Event{event("fakecloud-ccm", "InvalidService", "annotation x"), ensured}
		},
		"a change that was made in the end": func(f *ServiceFacts) {
			f.Events = []corev1.Event{
				event("fakecloud-ccm", "QuotaExceeded", ""), event("service-controller", "EnsuredLoadBalancer", ""),
			}
		},
		"pods Pending, as nodes are tainted": func(f *ServiceFacts) {
			unscheduled(f, "0/2 nodes are available: untolerated taint")
			f.Nodes[0].Spec.Taints = []corev1.Taint{{Key: "node.cloudprovider.kubernetes.io/uninitialized"}}
		},
		"pods Pending for another reason": func(f *ServiceFacts) { unscheduled(f, "Insufficient cpu") },
		"pods Pending, and no node": func(f *ServiceFacts) {
			unscheduled(f, "no nodes available")
			f.Nodes = nil
		},
		"no scheduler": func(f *ServiceFacts) {
			unscheduled(f, "")
			f.stop(componentScheduler)
		},
		"the scheduler takes a moment": func(f *ServiceFacts) { unscheduled(f, "") },
		"crashing pods": func(f *ServiceFacts) {
			endpointsNotReady(f)
			f.Pods[0].Status.ContainerStatuses = []corev1.ContainerStatus{{
				Name: "web", RestartCount: 4, State: corev1.ContainerState{
					Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 40s"},
				},
				LastTerminationState: corev1.ContainerState{
					Terminated: &corev1.ContainerStateTerminated{ExitCode: 3},
				},
			}}
			backOff := event("kubelet", "BackOff", "Back-off restarting")
			backOff.InvolvedObject.Name = "web-1"
			f.PodEvents = []corev1.Event{backOff}
		},
		"a probe that fails": func(f *ServiceFacts) {
			endpointsNotReady(f)
			f.Pods[0].Status.ContainerStatuses = []corev1.ContainerStatus{
				{Name: "web", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
			}
		},
		"pods on a node that is not ready": func(f *ServiceFacts) {
			endpointsNotReady(f)
			f.Pods = f.Pods[:1]
			f.Nodes[0].Status.Conditions[0].Status = corev1.ConditionUnknown
		},
		"pods on the way out": func(f *ServiceFacts) {
			for i := range f.Pods {
				f.Pods[i].DeletionTimestamp = new(ago(time.Second))
				f.Slices[0].Endpoints[i].Conditions = discoveryv1.EndpointConditions{
					Ready: new(false), Terminating: new(true),
				}
			}
		},
		"a selector that matches nothing": func(f *ServiceFacts) { f.Pods, f.Slices = nil, nil },
		"no selector": func(f *ServiceFacts) {
			f.Pods, f.Slices, f.Service.Spec.Selector = nil, nil, nil
		},
		"a target port of no container":     func(f *ServiceFacts) { f.Slices[0].Ports = nil },
		"EndpointSlices that nobody writes": func(f *ServiceFacts) { f.Slices = nil; f.stop(componentKCM) },
		"EndpointSlices of the past": func(f *ServiceFacts) {
			f.Pods = f.Pods[1:]
			f.stop(componentKCM)
		},
		"endpoints on nodes that were lost": func(f *ServiceFacts) {
			for i := range f.Nodes {
				f.Nodes[i].Status.Conditions[0].Status = corev1.ConditionUnknown
			}
		},
		"a target whose node hangs, which nobody checks": func(f *ServiceFacts) {
			f.Nodes[0].Status.Conditions[0].Status = corev1.ConditionUnknown
		},
		"all targets are ill": func(f *ServiceFacts) {
			f.health(api.TargetUnhealthy, api.TargetUnhealthy)
			f.balancerIn(api.LoadBalancerActive, "no target is healthy")
		},
		"refuses clients": func(f *ServiceFacts) {
			f.balancerIn(api.LoadBalancerActive, "the cloud is a control plane only")
		},
		"no targets, as no node has a provider ID": func(f *ServiceFacts) {
			f.Balancer.Targets, f.Health.Targets, f.Nodes[0].Spec.ProviderID = nil, nil, ""
			f.Nodes[1].Labels = map[string]string{corev1.LabelNodeExcludeBalancers: ""}
		},
		"all connections fail, at a port that no pod declares": func(f *ServiceFacts) {
			f.health(api.TargetHealthy, api.TargetHealthy)
			f.traffic(api.ListenerStats{Connections: 12, FailedConnections: 2, BrokenConnections: 10})
			f.containerPorts(8080, 9090)
		},
		"its only connection broke, and pods declare nothing": func(f *ServiceFacts) {
			f.traffic(api.ListenerStats{Connections: 1, BrokenConnections: 1, BytesIn: 80})
			f.containerPorts()
		},
		"all connections fail, at a port that pods declare": func(f *ServiceFacts) {
			f.traffic(api.ListenerStats{Connections: 3, FailedConnections: 3})
			f.containerPorts(80)
			f.Slices = append(f.Slices, f.Slices[0]) // Of the other IP family.
		},
		"all connections fail, and some pods declare the port": func(f *ServiceFacts) {
			f.traffic(api.ListenerStats{Connections: 3, FailedConnections: 3})
			f.containerPorts(80)
			f.Pods[1].Spec.Containers[0].Ports[0].Protocol = corev1.ProtocolUDP
		},
		"all connections fail, and endpoints are somebody's own": func(f *ServiceFacts) {
			f.traffic(api.ListenerStats{Connections: 3, FailedConnections: 3})
			f.Service.Spec.Selector, f.Pods = nil, nil
		},
		"all connections fail on one port of two": func(f *ServiceFacts) {
			f.Service.Spec.Ports[0].Name = "http"
			f.Service.Spec.Ports = append(
				f.Service.Spec.Ports, corev1.ServicePort{Name: "admin", Port: 8081, Protocol: corev1.ProtocolTCP},
			)
			f.Balancer.Listeners = append(f.Balancer.Listeners, api.Listener{Port: 8081, Protocol: "tcp"})
			f.Slices[0].Ports = []discoveryv1.EndpointPort{
				{Name: new("http"), Port: new(int32(80))}, {Name: new("admin"), Port: new(int32(81))},
			}
			f.traffic(api.ListenerStats{Connections: 3, BytesOut: 5})
			f.Stats.Listeners = append(
				f.Stats.Listeners, api.ListenerStats{Port: 8081, Protocol: "tcp", Connections: 2, BrokenConnections: 2},
			)
			f.containerPorts(80)
		},
		"all connections fail, though a target is ill as well": func(f *ServiceFacts) {
			f.health(api.TargetHealthy, api.TargetUnhealthy)
			f.traffic(api.ListenerStats{Connections: 3, FailedConnections: 3})
		},
		"all connections fail, for a reason that is known": func(f *ServiceFacts) {
			f.traffic(api.ListenerStats{Connections: 3, FailedConnections: 3})
			f.Pods, f.Slices = nil, nil
		},
		"the first connections failed, and later ones did not": func(f *ServiceFacts) {
			f.traffic(api.ListenerStats{Connections: 12, BrokenConnections: 11, BytesOut: 216})
		},
		"a connection that ended well without an answer": func(f *ServiceFacts) {
			f.traffic(api.ListenerStats{Connections: 3, BrokenConnections: 2})
		},
		"connections broke in the end, after answers": func(f *ServiceFacts) {
			f.traffic(api.ListenerStats{Connections: 2, BrokenConnections: 2, BytesOut: 1})
		},
		"no connection yet": func(f *ServiceFacts) {
			f.traffic(api.ListenerStats{})
		},
		"a first connection, still open": func(f *ServiceFacts) {
			f.traffic(api.ListenerStats{Connections: 1, ActiveConnections: 1})
		},
		"failed connections, and one still open": func(f *ServiceFacts) {
			f.traffic(api.ListenerStats{Connections: 3, ActiveConnections: 1, BrokenConnections: 2})
		},
		"datagrams that nobody answers": func(f *ServiceFacts) {
			f.Service.Spec.Ports[0].Protocol, f.Balancer.Listeners[0].Protocol = corev1.ProtocolUDP, "udp"
			f.traffic(api.ListenerStats{Connections: 2, BrokenConnections: 2})
			f.Stats.Listeners[0].Protocol = "udp"
		},
		"Local: a node without a pod is no fault": func(f *ServiceFacts) {
			f.Service.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
			f.Slices[0].Endpoints, f.Pods = f.Slices[0].Endpoints[:1], f.Pods[:1]
			f.health(api.TargetHealthy, api.TargetUnhealthy)
		},
		"Local: no target has a pod": func(f *ServiceFacts) {
			f.Service.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
			f.Slices[0].Endpoints[0].NodeName, f.Slices[0].Endpoints[1].NodeName = new("node-3"), new("node-3")
			f.health(api.TargetUnhealthy, api.TargetUnhealthy)
		},
		"source ranges that leave this machine out": func(f *ServiceFacts) {
			f.Balancer.SourceRanges = []string{"10.0.0.0/8", "nonsense"}
		},
		"source ranges of a balancer that others reach": func(f *ServiceFacts) {
			f.Balancer.SourceRanges, f.Balancer.Address = []string{"10.0.0.0/8"}, "172.18.64.1"
		},
		"deleting, and no CCM": func(f *ServiceFacts) {
			f.Service.DeletionTimestamp = new(ago(time.Minute))
			f.ccmOff()
		},
		"deleting, with its balancer": func(f *ServiceFacts) {
			f.Service.DeletionTimestamp = new(ago(time.Minute))
			f.balancerIn(api.LoadBalancerDeleting, "")
		},
		"deleting, and the CCM cannot": func(f *ServiceFacts) {
			f.Service.DeletionTimestamp = new(ago(time.Minute))
			f.Events = []corev1.Event{event("fakecloud-ccm", "LoadBalancerAmbiguous", "two")}
		},
		"deleting, by somebody else's finalizer": func(f *ServiceFacts) {
			f.Service.DeletionTimestamp, f.Service.Finalizers = new(ago(time.Minute)), []string{"example.com/mine"}
		},
	})
}

// Whatever is missing, an answer comes, and it is whole.
func TestServicesOfWhichLittleIsKnown(t *testing.T) {
	for name, f := range map[string]ServiceFacts{
		"nothing": {Namespace: "default", Name: "s"},
		"bare": {
			Namespace: "default", Name: "s",
			Service: &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer}},
		},
		"no type": {Namespace: "default", Name: "s", Service: &corev1.Service{}},
		"deleting": {
			Namespace: "default", Name: "s",
			Service: &corev1.Service{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{}}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := Service(f)
			assert.Equal(t, NotReady, x.State)
			assert.NotNil(t, x.Because)
			assert.NotEmpty(t, x.Next)
		})
	}
}

func TestHowOftenRestarted(t *testing.T) {
	assert.Equal(
		t, []string{"", ", restarted once", ", restarted 2 times"},
		[]string{formatRestarts(0), formatRestarts(1), formatRestarts(2)},
	)
}
