package explain

import (
	"os"
	"strings"
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
			ID: "lb-1", Name: "web-1", Address: "127.30.64.1", State: api.LoadBalancerActive, UpdatedAt: now,
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
		ID: "a-1", Name: "lab-default-web", IP: "127.30.64.1",
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
		f.Balancer.StateReason = &reason
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
		f.Health.Targets[i].Health, f.Health.Targets[i].Reason = s, new("connection refused")
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

const edit = "kubectl --namespace default edit service web"

// notAnswered is the verdict on a Service whose connections have all failed.
const notAnswered = "has an address, and nothing behind it has answered on 8080/TCP so far: "

// comparePorts are the steps that lead from a Service's port to the pods', and compareOwnEndpoints those to
// endpoints that somebody else has written.
const (
	comparePorts = "kubectl --namespace default describe service web\n" +
		"kubectl --namespace default get pods --selector app=web " +
		"-o 'custom-columns=POD:.metadata.name,PORTS:.spec.containers[*].ports[*].containerPort'\n" +
		edit + "\nfakecloud load-balancers stats lb-1"
	compareOwnEndpoints = "kubectl --namespace default describe service web\n" + edit + "\nfakecloud load-balancers stats lb-1"
)

func TestServices(t *testing.T) {
	for name, c := range map[string]explainCase[ServiceFacts]{
		"all well": {
			func(*ServiceFacts) {},
			Ready, "is ready at 127.30.64.1, port 8080/TCP.", "", []Fact{
				{Cloud, "load balancer lb-1 (web-1) at 127.30.64.1 is active: 8080/tcp goes to node port 30080"},
				{Cloud, "it is a proxy: it makes connections of its own; pods see a node's address, by externalTrafficPolicy: Cluster"},
				{Cloud, "it has 2 targets, which nothing checks"},
				{Cluster, "its endpoints are 2 ready pods on 2 nodes: web-1, web-2"},
			},
		},
		"all well, not checked, as it asks": {
			func(f *ServiceFacts) {
				f.Service.Annotations = map[string]string{contract.AnnotationHealthCheck: "none"}
			},
			Ready, "is ready at 127.30.64.1, port 8080/TCP.", "", []Fact{
				{Cloud, "it has 2 targets, which nothing checks, as the annotation fakecloud.ccmlab.io/health-check says"},
			},
		},
		"all well, told by the PROXY protocol": {
			func(f *ServiceFacts) { f.Balancer.Listeners[0].ProxyProtocol = api.ProxyProtocolV1 },
			Ready, "is ready at 127.30.64.1, port 8080/TCP.", "", []Fact{
				{Cloud, "it is a proxy: it makes connections of its own, and tells pods the client's address by the PROXY protocol"},
			},
		},
		"all well, by a network balancer": {
			networkBalancer,
			Ready, "is ready at 127.30.64.1, port 8080/TCP.", "", []Fact{
				{Cloud, "load balancer lb-1 (web-1) at 127.30.64.1 is active: 8080/tcp is passed on as it is"},
				{Cloud, "it is a network balancer: packets reach nodes as clients sent them, and each node's kube-proxy takes " +
					"those for 127.30.64.1; pods see a node's address, by externalTrafficPolicy: Cluster"},
			},
		},
		"all well, by a network balancer, local": {
			func(f *ServiceFacts) {
				networkBalancer(f)
				f.Service.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
			},
			Ready, "is ready at 127.30.64.1, port 8080/TCP.", "", []Fact{
				{Cloud, "it is a network balancer: packets reach nodes as clients sent them, and each node's kube-proxy takes " +
					"those for 127.30.64.1; pods see the client's address"},
			},
		},
		"a network balancer, of a cloud that has none": {
			func(f *ServiceFacts) {
				noAddress(f)
				f.Events = []corev1.Event{event("fakecloud-ccm", "InvalidService", noNetworkBalancers+": loopback")}
			},
			NotReady, "has no address: it asks for a network load balancer, and this lab's cloud has none.",
			"kubectl --namespace default annotate service web " + contract.AnnotationKind + "=proxy --overwrite\nlab up --name NAME --cluster kind",
			[]Fact{{CCM, "event InvalidService"}},
		},
		"all well, by a host name": {
			func(f *ServiceFacts) {
				f.Service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{Hostname: "web.example.com"}}
			},
			Ready, "is ready at web.example.com, port 8080/TCP.", "", nil,
		},
		"a host name, and no balancer": {
			func(f *ServiceFacts) {
				f.Service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{Hostname: "web.example.com"}}
				f.Balancer, f.Health = nil, nil
			},
			NotReady, "does not answer: its load balancer is gone.", "lab logs ccm --tail 30",
			[]Fact{{Cluster, "its status names web.example.com"}},
		},
		"all well, by an attached address": {
			func(f *ServiceFacts) { f.attach("i-1", api.InstanceRunning) },
			Ready, "is ready at 127.30.64.1, port 8080/TCP.", "", []Fact{
				{Cloud, "address 127.30.64.1 (a-1, lab-default-web) is attached to instance i-1 (node-1), which takes all ports; there is no load balancer"},
			},
		},
		"an address that is attached to a stopped instance": {
			func(f *ServiceFacts) { f.attach("i-1", api.InstanceStopped) },
			NotReady, "does not answer: its address is attached to an instance that does not run.",
			"fakecloud instances start i-1", []Fact{{Cloud, "instance i-1 (node-1) is stopped"}},
		},
		"an address that is attached to another node than the status says": {
			func(f *ServiceFacts) {
				f.attach("i-1", api.InstanceRunning)
				f.Instances[0].Addresses = []api.Address{{Type: api.AddressInternal, IP: "127.30.16.1"}}
				f.Service.Status.LoadBalancer.Ingress = append(
					f.Service.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: "127.30.16.2"},
				)
			},
			NotReady, "does not answer: its address is attached to another node than its status names.",
			"lab logs ccm --tail 30", []Fact{{Cluster, "its status names 127.30.16.2"}},
		},
		"an address that is attached to nothing": {
			func(f *ServiceFacts) { f.attach("", ""); f.Address.Holder = nil },
			NotReady, "does not answer: its address is attached to no instance.", "lab logs ccm --tail 30",
			[]Fact{{Cloud, "address 127.30.64.1 (a-1, lab-default-web) is attached to nothing"}},
		},
		"all well, checked, for some clients": {
			func(f *ServiceFacts) {
				f.health(api.TargetHealthy, api.TargetHealthy)
				f.Balancer.SourceRanges = []string{"127.0.0.0/8"}
			},
			Ready, "is ready at 127.30.64.1, port 8080/TCP.", "",
			[]Fact{{Cloud, "it has 2 targets, and 2 healthy"}, {Cloud, "only clients from 127.0.0.0/8 may connect"}},
		},
		"all well, checked, and the cloud does not tell of it": {
			func(f *ServiceFacts) { f.health(); f.Health = nil },
			Ready, "is ready at 127.30.64.1, port 8080/TCP.", "",
			[]Fact{{Cloud, "it has 2 targets, which are checked"}},
		},
		"no such Service": {
			func(f *ServiceFacts) { f.Service, f.Name = nil, "wep" },
			NotReady, "does not exist.", "lab explain service/default/web\nlab explain service", nil,
		},
		"another namespace": {
			func(f *ServiceFacts) { f.Service, f.Name, f.Namespace = nil, "api", "web" },
			NotReady, "does not exist.", "lab explain service/other/api\nlab explain service", nil,
		},
		"the API server is down": {
			func(f *ServiceFacts) {
				f.Service, f.ClusterError = nil, "refused"
				f.stop(componentEtcd, componentAPIServer)
			},
			Unknown, "cannot be explained: the control plane does not run.", "lab up",
			[]Fact{{Lab, "etcd does not run"}, {Lab, "kube-apiserver does not run"}},
		},
		"of another type": {
			func(f *ServiceFacts) { f.Service.Spec.Type = corev1.ServiceTypeClusterIP; f.Balancer = nil },
			Ready, "is of type ClusterIP, so it has no load balancer.",
			`kubectl --namespace default patch service web --patch '{"spec":{"type":"LoadBalancer"}}'`,
			[]Fact{{Cluster, "spec.type is ClusterIP"}},
		},
		"of another type by now": {
			func(f *ServiceFacts) { f.Service.Spec.Type = corev1.ServiceTypeClusterIP; f.ccmOff() },
			Degraded, "asks for no load balancer any more, and still has one: no cloud controller manager runs.",
			"lab ccm start\n" + `kubectl --namespace default patch service web --patch '{"spec":{"type":"LoadBalancer"}}'`,
			[]Fact{{Cloud, "load balancer lb-1"}},
		},
		"ExternalName": {
			func(f *ServiceFacts) {
				f.Service.Spec.Type = corev1.ServiceTypeExternalName
				f.Balancer, f.Slices, f.Service.Spec.Selector = nil, nil, nil
			},
			Ready, "is of type ExternalName, so it has no load balancer.", "", nil,
		},
		"default/kubernetes": {
			func(f *ServiceFacts) { theAPIServers(f); f.Slices = nil },
			Ready, "is the API server's own; this lab keeps no endpoints for it, as loopback is not allowed there.", "",
			nil,
		},
		"default/kubernetes, with endpoints": {
			theAPIServers,
			Ready, "is the API server's own.", "", []Fact{{Cluster, "its EndpointSlices have 2 endpoints ready"}},
		},
		"another controller's class": {
			func(f *ServiceFacts) { noAddress(f); f.Service.Spec.LoadBalancerClass = new("example.com/mine") },
			NotReady, "has no address: it is another controller's, by its class.", "",
			[]Fact{{Cluster, `spec.loadBalancerClass is "example.com/mine"`}},
		},
		"no CCM": {
			func(f *ServiceFacts) { noAddress(f); f.ccmOff() },
			NotReady, "has no address: no cloud controller manager runs.", "lab ccm start",
			[]Fact{{Cluster, "its status names no address; it was created 1m0s ago"}},
		},
		"not begun": {
			noAddress,
			NotReady, "has no address yet: the CCM has not asked for its load balancer.", "lab logs ccm --tail 30", nil,
		},
		"none comes": {
			func(f *ServiceFacts) { noAddress(f); f.OtherCCM, f.NoBalancers = "/bin/cloudlycke-ccm", true },
			NotReady, "has no address: the lab's CCM makes no load balancers.", "",
			[]Fact{{Lab, "the CCM is /bin/cloudlycke-ccm"}},
		},
		"provisioning": {
			func(f *ServiceFacts) {
				f.Service.Status = corev1.ServiceStatus{}
				f.balancerIn(api.LoadBalancerProvisioning, "")
			},
			NotReady, "has no address yet: its load balancer is provisioning.", "", []Fact{
				{
					Cloud,
					"load balancer lb-1 (web-1) at 127.30.64.1 is provisioning, since 15:04:05 by the cloud's clock",
				},
			},
		},
		"provisioning for ever": {
			func(f *ServiceFacts) {
				f.Service.Status = corev1.ServiceStatus{}
				f.balancerIn(api.LoadBalancerProvisioning, "")
				f.Faults = []api.Fault{
					{
						ID: "f-1", Effect: api.FaultEffect{Stuck: true},
						Match: api.FaultMatch{Kinds: []api.FaultMatchKinds{api.FaultInstance}},
					},
					{
						ID: "f-2", Effect: api.FaultEffect{Stuck: true},
						Match: api.FaultMatch{Kinds: []api.FaultMatchKinds{api.FaultLoadBalancer}},
					},
					{ID: "f-3", Effect: api.FaultEffect{Crash: true}},
				}
			},
			NotReady, "has no address yet: its load balancer is provisioning.", "fakecloud faults delete f-2", nil,
		},
		"active, and not told": {
			func(f *ServiceFacts) { f.Service.Status = corev1.ServiceStatus{} },
			NotReady, "has no address yet, though its load balancer is active: the CCM is about to write it.",
			"lab logs ccm --tail 30", nil,
		},
		"active, and nobody tells": {
			func(f *ServiceFacts) { f.Service.Status = corev1.ServiceStatus{}; f.stop(componentCCM) },
			NotReady,
			"has no address, though its load balancer is active: the cloud controller manager does not run, though it should.",
			"lab logs ccm --tail 30", nil,
		},
		"a port below 1024": {
			func(f *ServiceFacts) {
				f.Service.Status = corev1.ServiceStatus{}
				f.balancerCannotListen(
					"cannot listen on 127.30.64.1:80: permission denied, low ports are privileged; lower the limit with `sysctl -w net.ipv4.ip_unprivileged_port_start=80`, or so",
				)
			},
			NotReady,
			"has no address: the cloud may not listen on a port that low: net.ipv4.ip_unprivileged_port_start forbids it.",
			edit + "\nsudo sysctl -w net.ipv4.ip_unprivileged_port_start=80",
			[]Fact{{Cloud, "load balancer lb-1 (web-1) at 127.30.64.1 is in error: cannot listen on 127.30.64.1:80"}},
		},
		"a port that somebody has": {
			func(f *ServiceFacts) {
				f.Service.Status = corev1.ServiceStatus{}
				f.balancerCannotListen("cannot listen on 127.30.64.1:8080: another server holds it")
			},
			NotReady, "has no address: the cloud cannot listen on its port.", "ss -lnp 'sport = :8080'\n" + edit, nil,
		},
		"built in error, by a fault": {
			func(f *ServiceFacts) {
				f.Service.Status = corev1.ServiceStatus{}
				f.balancerIn(api.LoadBalancerError, "no disk left")
				f.Faults = []api.Fault{{ID: "f-1", Effect: api.FaultEffect{Fail: "no disk left"}}}
			},
			NotReady, "has no address: the cloud could not build its load balancer.",
			"fakecloud faults delete f-1\nfakecloud load-balancers get lb-1",
			[]Fact{{Cloud, "fault f-1 has what is built end in error (no disk left)"}},
		},
		"error, after it had an address": {
			func(f *ServiceFacts) {
				f.balancerCannotListen("cannot listen on 127.30.64.1:8080: another server holds it")
			},
			NotReady, "does not answer: the cloud cannot listen on its port.", "ss -lnp 'sport = :8080'\n" + edit, nil,
		},
		"quota": {
			func(f *ServiceFacts) {
				noAddress(f)
				f.Quota.Used = 10
				f.Events = []corev1.Event{event("fakecloud-ccm", "QuotaExceeded", "10 of 10")}
				f.Calls = []api.AuditEntry{call("createLoadBalancer", 403, "quota-exceeded", time.Second)}
			},
			NotReady, "has no address: the project's quota of load balancers is used up.",
			"fakecloud quotas set --load-balancers 11\nfakecloud load-balancers list",
			[]Fact{{Cloud, "10 load balancers are in use, and 10 allowed"}, {CCM, "event QuotaExceeded"}},
		},
		"refused by the cloud, and not since": {
			func(f *ServiceFacts) {
				noAddress(f)
				f.Events = []corev1.Event{before(8*time.Minute, "CloudAccessDenied")}
			},
			NotReady, "has no address yet: the CCM has not asked for its load balancer.", "lab logs ccm --tail 30", nil,
		},
		"refused by the cloud, and served after that": {
			func(f *ServiceFacts) {
				f.Balancer, f.Health = nil, nil
				f.Events = []corev1.Event{
					before(time.Minute, "CloudUnavailable"), event("service-controller", "UpdatedLoadBalancer", ""),
				}
			},
			NotReady, "does not answer: its load balancer is gone.", "lab logs ccm --tail 30", nil,
		},
		"the cloud is paused": {
			func(f *ServiceFacts) {
				f.Balancer, f.Health, f.CloudError = nil, nil, "no answer in time"
				f.pause(componentCloud)
			},
			NotReady, "does not answer: its load balancer is the cloud's, which is stopped by a signal.",
			"kill -CONT 4711", nil,
		},
		"refused by the cloud": {
			func(f *ServiceFacts) {
				noAddress(f)
				f.Calls = []api.AuditEntry{call("createLoadBalancer", 503, "unavailable", time.Second)}
			},
			NotReady, "has no address: the cloud does not answer the CCM as it should.",
			"fakecloud audit list --token ccm --status 5xx",
			[]Fact{{Cloud, "the CCM's latest call of createLoadBalancer, 1s ago: 503 unavailable"}},
		},
		"an invalid annotation": {
			func(f *ServiceFacts) {
				noAddress(f)
				f.Events = []corev1.Event{
					event("service-controller", "SyncLoadBalancerFailed", "again"),
					event("fakecloud-ccm", "InvalidService", "annotation x"),
				}
			},
			NotReady, "has no address: it asks for what no load balancer can do.", edit,
			[]Fact{{CCM, "event InvalidService, 3s ago: annotation x"}},
		},
		"a name taken": {
			func(f *ServiceFacts) {
				noAddress(f)
				f.Events = []corev1.Event{event("fakecloud-ccm", "LoadBalancerNameTaken", "lb-9 has it")}
			},
			NotReady, "has no address: another load balancer has its name.", "fakecloud load-balancers list", nil,
		},
		"a reason of a later CCM": {
			func(f *ServiceFacts) {
				noAddress(f)
				f.Events = []corev1.Event{event("fakecloud-ccm", "Eclipse", "dark")}
			},
			NotReady, "has no address: the CCM says Eclipse.", "kubectl --namespace default describe service web",
			[]Fact{{CCM, "event Eclipse, 3s ago: dark"}},
		},
		"no address, and a cloud that does not answer": {
			func(f *ServiceFacts) {
				noAddress(f)
				f.CloudError, f.Faults = "503", []api.Fault{fault(503, api.FaultMatch{})}
			},
			Unknown, "has no address, and the cloud cannot be asked why.", "fakecloud faults delete f-1",
			[]Fact{{Cloud, "fault f-1: calls are answered 503"}},
		},
		"an address, and a cloud that does not answer": {
			func(f *ServiceFacts) { f.Balancer, f.Health, f.CloudError = nil, nil, "no answer in time" },
			Unknown,
			"has the address 127.30.64.1; of its load balancer nothing is known, as the cloud does not answer.",
			"lab logs fakecloud --tail 30", nil,
		},
		"the cloud is down": {
			func(f *ServiceFacts) {
				f.Balancer, f.Health, f.CloudError = nil, nil, "refused"
				f.stop(componentCloud)
			},
			NotReady, "does not answer: its load balancer is the cloud's, which does not run.", "lab up",
			[]Fact{{Lab, "fakecloud does not run"}},
		},
		"its balancer was deleted": {
			func(f *ServiceFacts) { f.Balancer, f.Health = nil, nil; f.ccmOff() },
			NotReady, "does not answer: its load balancer is gone, and no cloud controller manager runs.",
			"lab ccm start", []Fact{{Cloud, "no load balancer has its UID in its tags"}},
		},
		"its balancer was deleted, and will be repaired": {
			func(f *ServiceFacts) { f.Balancer, f.Health = nil, nil },
			NotReady, "does not answer: its load balancer is gone.", "lab logs ccm --tail 30", nil,
		},
		"its balancer is on its way out": {
			func(f *ServiceFacts) { f.balancerIn(api.LoadBalancerDeleting, "") },
			NotReady, "does not answer: its load balancer is being deleted.", "lab logs ccm --tail 30", nil,
		},
		"updating": {
			func(f *ServiceFacts) { f.balancerIn(api.LoadBalancerUpdating, "") },
			Degraded, "has its load balancer updating.", "", nil,
		},
		"a port that the balancer lacks": {
			func(f *ServiceFacts) {
				f.Service.Spec.Ports = append(
					f.Service.Spec.Ports, corev1.ServicePort{Port: 9090, NodePort: 30090, Protocol: corev1.ProtocolUDP},
				)
				f.ccmOff()
			},
			NotReady,
			"does not answer on 9090/UDP: its load balancer does not have that port as the Service has, and no cloud controller manager runs.",
			"lab ccm start", nil,
		},
		"a port that the balancer will not get": {
			func(f *ServiceFacts) {
				f.Service.Spec.Ports = append(
					f.Service.Spec.Ports, corev1.ServicePort{Port: 9090, NodePort: 30090, Protocol: corev1.ProtocolTCP},
				)
				f.Events = []corev1.Event{event("fakecloud-ccm", "InvalidService", "annotation x")}
			},
			NotReady,
			"does not answer on 9090/TCP: its load balancer does not have that port as the Service has: it asks for what no load balancer can do.",
			edit, nil,
		},
		"without a cloud provider": {
			func(f *ServiceFacts) { f.Service.Status, f.Balancer, f.NoProvider = corev1.ServiceStatus{}, nil, true },
			NotReady, "has no address: this cluster has no cloud controller manager.", "lab up --name with-ccm", nil,
		},
		"a change that could not be made": {
			func(f *ServiceFacts) {
				ensured := event("service-controller", "EnsuredLoadBalancer", "")
				ensured.LastTimestamp = ago(time.Minute)
				f.Events = []corev1.Event{event("fakecloud-ccm", "InvalidService", "annotation x"), ensured}
			},
			Degraded,
			"keeps the load balancer that it had, as the latest change could not be made: it asks for what no load balancer can do.",
			edit, nil,
		},
		"a change that was made in the end": {
			func(f *ServiceFacts) {
				f.Events = []corev1.Event{
					event("fakecloud-ccm", "QuotaExceeded", ""), event("service-controller", "EnsuredLoadBalancer", ""),
				}
			},
			Ready, "is ready at 127.30.64.1, port 8080/TCP.", "", nil,
		},
		"pods Pending, as nodes are tainted": {
			func(f *ServiceFacts) {
				unscheduled(f, "0/2 nodes are available: untolerated taint")
				f.Nodes[0].Spec.Taints = []corev1.Taint{{Key: "node.cloudprovider.kubernetes.io/uninitialized"}}
			},
			NotReady,
			"has an address, and nothing behind it answers: its pods are Pending, as 1 node is not initialised by the CCM.",
			"lab explain node/node-1", []Fact{
				{Cluster, "the selector matches 2 pods: 0 ready, 0 not ready, 2 without a node, 0 on the way out"},
				{Cluster, "pod web-1 has no node: 0/2 nodes are available: untolerated taint (Unschedulable)"},
				{Cluster, "tainted node.cloudprovider.kubernetes.io/uninitialized: node-1"},
			},
		},
		"pods Pending for another reason": {
			func(f *ServiceFacts) { unscheduled(f, "Insufficient cpu") },
			NotReady, "has an address, and nothing behind it answers: its pods are Pending, as no node suits them.",
			"kubectl --namespace default describe pod web-1\nlab explain node", nil,
		},
		"pods Pending, and no node": {
			func(f *ServiceFacts) { unscheduled(f, "no nodes available"); f.Nodes = nil },
			NotReady, "has an address, and nothing behind it answers: its pods wait for a node, and there is none.",
			"fakecloud instances create", nil,
		},
		"no scheduler": {
			func(f *ServiceFacts) { unscheduled(f, ""); f.stop(componentScheduler) },
			NotReady,
			"has an address, and nothing behind it answers: its pods wait for kube-scheduler, which does not run.",
			"lab up", []Fact{{Cluster, "pod web-1 has no node, and the scheduler has not said why"}},
		},
		"the scheduler takes a moment": {
			func(f *ServiceFacts) { unscheduled(f, "") },
			NotReady, "has an address, and nothing behind it answers: its pods are not scheduled yet.", "", nil,
		},
		"crashing pods": {
			func(f *ServiceFacts) {
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
			NotReady, "has an address, and nothing behind it answers: of its 2 pods none is ready: CrashLoopBackOff.",
			"kubectl --namespace default describe pod web-1\nkubectl --namespace default logs web-1", []Fact{
				{
					Cluster,
					"pod web-1 on node-1: container web waits: CrashLoopBackOff: back-off 40s, it ended with code 3, restarted 4 times",
				},
				{Cluster, "event BackOff, 3s ago: Back-off restarting"},
			},
		},
		"a probe that fails": {
			func(f *ServiceFacts) {
				endpointsNotReady(f)
				f.Pods[0].Status.ContainerStatuses = []corev1.ContainerStatus{
					{Name: "web", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
				}
			},
			NotReady, "has an address, and nothing behind it answers: of its 2 pods none is ready: a probe fails.",
			"kubectl --namespace default describe pod web-1\nkubectl --namespace default logs web-1",
			[]Fact{{Cluster, "its EndpointSlices have 0 endpoints ready, 2 not ready, 0 terminating"}},
		},
		"pods on a node that is not ready": {
			func(f *ServiceFacts) {
				endpointsNotReady(f)
				f.Pods = f.Pods[:1]
				f.Nodes[0].Status.Conditions[0].Status = corev1.ConditionUnknown
			},
			NotReady,
			"has an address, and nothing behind it answers: of its 1 pod none is ready: their node is not ready.",
			"lab explain node/node-1\nkubectl --namespace default describe pod web-1\nkubectl --namespace default logs web-1",
			[]Fact{{Cluster, "node node-1 is not Ready"}},
		},
		"pods on the way out": {
			func(f *ServiceFacts) {
				for i := range f.Pods {
					f.Pods[i].DeletionTimestamp = new(ago(time.Second))
					f.Slices[0].Endpoints[i].Conditions = discoveryv1.EndpointConditions{
						Ready: new(false), Terminating: new(true),
					}
				}
			},
			NotReady, "has an address, and nothing behind it answers: its pods are all on the way out.",
			"kubectl --namespace default get pods",
			[]Fact{{Cluster, "its EndpointSlices have 0 endpoints ready, 0 not ready, 2 terminating"}},
		},
		"a selector that matches nothing": {
			func(f *ServiceFacts) { f.Pods, f.Slices = nil, nil },
			NotReady, "has an address, and nothing behind it answers: its selector matches no pod.",
			"kubectl --namespace default get pods --show-labels\n" + edit,
			[]Fact{{Cluster, "no pod in namespace default has the labels app=web"}},
		},
		"no selector": {
			func(f *ServiceFacts) { f.Pods, f.Slices, f.Service.Spec.Selector = nil, nil, nil },
			NotReady,
			"has an address, and nothing behind it answers: it selects no pods, and nobody has given it endpoints.",
			edit, nil,
		},
		"a target port of no container": {
			func(f *ServiceFacts) { f.Slices[0].Ports = nil },
			NotReady,
			"has an address, and nothing behind it answers: its target port has a name that no container's port has.",
			"kubectl --namespace default describe service web", nil,
		},
		"EndpointSlices that nobody writes": {
			func(f *ServiceFacts) { f.Slices = nil; f.stop(componentKCM) },
			NotReady,
			"has an address, and nothing behind it answers: its pods are ready, and its EndpointSlices do not say so, as kube-controller-manager, which writes them, does not run.",
			"lab up", []Fact{{Lab, "kube-controller-manager does not run"}},
		},
		"EndpointSlices of the past": {
			func(f *ServiceFacts) { f.Pods = f.Pods[1:]; f.stop(componentKCM) },
			Degraded, "is served by EndpointSlices that nobody keeps up to date: kube-controller-manager does not run.",
			"lab up", []Fact{{Cluster, "its EndpointSlices have pod web-1 as ready, which it is not any more"}},
		},
		"endpoints on nodes that were lost": {
			func(f *ServiceFacts) {
				for i := range f.Nodes {
					f.Nodes[i].Status.Conditions[0].Status = corev1.ConditionUnknown
				}
			},
			NotReady, "has endpoints that are called ready, and whose nodes are not Ready.",
			"lab explain node/node-1\nlab explain node/node-2", []Fact{
				{Cluster, "its EndpointSlices have 2 endpoints ready, 0 not ready, 0 terminating"},
				{Cluster, "node node-1 is not Ready"}, {Cluster, "node node-2 is not Ready"},
			},
		},
		"a target that is ill": {
			func(f *ServiceFacts) { f.health(api.TargetHealthy, api.TargetUnhealthy) },
			Degraded, "answers, with 1 of 2 targets amiss.", "lab explain node/node-2",
			[]Fact{{Cloud, "target node-2 (i-2) is unhealthy: connection refused"}},
		},
		"a target whose node hangs, which nobody checks": {
			func(f *ServiceFacts) { f.Nodes[0].Status.Conditions[0].Status = corev1.ConditionUnknown },
			Degraded, "answers, with 1 of 2 targets amiss.", "lab explain node/node-1",
			[]Fact{{Cloud, "target node-1 (i-1) is not checked, and sent clients, though its node is not Ready"}},
		},
		"all targets are ill": {
			func(f *ServiceFacts) {
				f.health(api.TargetUnhealthy, api.TargetUnhealthy)
				f.balancerIn(api.LoadBalancerActive, "no target is healthy")
			},
			NotReady, "has an address, and no node behind it is healthy.",
			"lab explain node/node-1\nlab explain node/node-2", nil,
		},
		"refuses clients": {
			func(f *ServiceFacts) { f.balancerIn(api.LoadBalancerActive, "the cloud is a control plane only") },
			NotReady, "has an address, and its load balancer refuses clients.", "fakecloud load-balancers health lb-1",
			nil,
		},
		"no targets, as no node has a provider ID": {
			func(f *ServiceFacts) {
				f.Balancer.Targets, f.Health.Targets, f.Nodes[0].Spec.ProviderID = nil, nil, ""
				f.Nodes[1].Labels = map[string]string{corev1.LabelNodeExcludeBalancers: ""}
			},
			NotReady, "has an address, and its load balancer has no targets.",
			"lab explain node/node-1\nkubectl label node node-2 node.kubernetes.io/exclude-from-external-load-balancers-\nlab logs ccm --tail 30",
			[]Fact{{Cluster, "node node-1 has no provider ID"}, {Cluster, "node node-2 has the label"}},
		},
		"all connections fail, at a port that no pod declares": {
			func(f *ServiceFacts) {
				f.health(api.TargetHealthy, api.TargetHealthy)
				f.traffic(api.ListenerStats{Connections: 12, FailedConnections: 2, BrokenConnections: 10})
				f.containerPorts(8080, 9090)
			},
			NotReady, notAnswered + "12 connections failed, and none ended well.", comparePorts, []Fact{
				{Cloud, "load balancer lb-1 (web-1) at 127.30.64.1 is active: 8080/tcp goes to node port 30080"},
				{Cloud, "of 12 connections to 8080/TCP 10 broke and 2 found no target that takes them; its targets have sent 0 bytes"},
				{Cluster, "8080/TCP goes to port 80 of its pods, which none of 2 ready pods declares: they declare 8080, 9090; " +
					"a port need not be declared to be served"},
			},
		},
		"its only connection broke, and pods declare nothing": {
			func(f *ServiceFacts) {
				f.traffic(api.ListenerStats{Connections: 1, BrokenConnections: 1, BytesIn: 80})
				f.containerPorts()
			},
			NotReady, notAnswered + "1 connection failed, and none ended well.", comparePorts, []Fact{
				{Cloud, "of 1 connection to 8080/TCP 1 broke and 0 found no target that takes them; its targets have sent 0 bytes"},
				{Cluster, "8080/TCP goes to port 80 of its pods; none of 2 ready pods declares any port, so which they serve is not to be seen here"},
			},
		},
		"all connections fail, at a port that pods declare": {
			func(f *ServiceFacts) {
				f.traffic(api.ListenerStats{Connections: 3, FailedConnections: 3})
				f.containerPorts(80)
				f.Slices = append(f.Slices, f.Slices[0]) // Of the other IP family.
			},
			NotReady, notAnswered + "3 connections failed, and none ended well.", comparePorts, []Fact{
				{Cluster, "8080/TCP goes to port 80 of its pods, declared by 2 of 2 ready pods; that does not say that it is served"},
			},
		},
		"all connections fail, and some pods declare the port": {
			func(f *ServiceFacts) {
				f.traffic(api.ListenerStats{Connections: 3, FailedConnections: 3})
				f.containerPorts(80)
				f.Pods[1].Spec.Containers[0].Ports[0].Protocol = corev1.ProtocolUDP
			},
			NotReady, notAnswered + "3 connections failed, and none ended well.", comparePorts, []Fact{
				{Cluster, "8080/TCP goes to port 80 of its pods, declared by 1 of 2 ready pods; that does not say that it is served"},
			},
		},
		"all connections fail, and endpoints are somebody's own": {
			func(f *ServiceFacts) {
				f.traffic(api.ListenerStats{Connections: 3, FailedConnections: 3})
				f.Service.Spec.Selector, f.Pods = nil, nil
			},
			NotReady, notAnswered + "3 connections failed, and none ended well.",
			compareOwnEndpoints,
			[]Fact{{Cluster, "8080/TCP goes to port 80 of its endpoints"}},
		},
		"all connections fail on one port of two": {
			func(f *ServiceFacts) {
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
			NotReady,
			"has an address, and nothing behind it has answered on 8081/TCP so far: 2 connections failed, and none ended well.",
			comparePorts, []Fact{
				{Cluster, "8081/TCP goes to port 81 of its pods, which none of 2 ready pods declares: they declare 80; "},
			},
		},
		"all connections fail, though a target is ill as well": {
			func(f *ServiceFacts) {
				f.health(api.TargetHealthy, api.TargetUnhealthy)
				f.traffic(api.ListenerStats{Connections: 3, FailedConnections: 3})
			},
			NotReady, notAnswered + "3 connections failed, and none ended well.",
			comparePorts + "\nlab explain node/node-2",
			[]Fact{{Cloud, "target node-2 (i-2) is unhealthy: connection refused"}},
		},
		"all connections fail, for a reason that is known": {
			func(f *ServiceFacts) {
				f.traffic(api.ListenerStats{Connections: 3, FailedConnections: 3})
				f.Pods, f.Slices = nil, nil
			},
			NotReady, "has an address, and nothing behind it answers: its selector matches no pod.",
			"kubectl --namespace default get pods --show-labels\n" + edit, nil,
		},
		"the first connections failed, and later ones did not": {
			func(f *ServiceFacts) {
				f.traffic(api.ListenerStats{Connections: 12, BrokenConnections: 11, BytesOut: 216})
			},
			Ready, "is ready at 127.30.64.1, port 8080/TCP.", "", nil,
		},
		"a connection that ended well without an answer": {
			func(f *ServiceFacts) { f.traffic(api.ListenerStats{Connections: 3, BrokenConnections: 2}) },
			Ready, "is ready at 127.30.64.1, port 8080/TCP.", "", nil,
		},
		"connections broke in the end, after answers": {
			func(f *ServiceFacts) { f.traffic(api.ListenerStats{Connections: 2, BrokenConnections: 2, BytesOut: 1}) },
			Ready, "is ready at 127.30.64.1, port 8080/TCP.", "", nil,
		},
		"no connection yet": {
			func(f *ServiceFacts) { f.traffic(api.ListenerStats{}) },
			Ready, "is ready at 127.30.64.1, port 8080/TCP.", "", nil,
		},
		"a first connection, still open": {
			func(f *ServiceFacts) { f.traffic(api.ListenerStats{Connections: 1, ActiveConnections: 1}) },
			Ready, "is ready at 127.30.64.1, port 8080/TCP.", "", nil,
		},
		"failed connections, and one still open": {
			func(f *ServiceFacts) {
				f.traffic(api.ListenerStats{Connections: 3, ActiveConnections: 1, BrokenConnections: 2})
			},
			NotReady, notAnswered + "2 connections failed, and none ended well.", comparePorts, nil,
		},
		"more failed than were counted when they came": { // The counters are read one after the other.
			func(f *ServiceFacts) {
				f.traffic(api.ListenerStats{Connections: 2, ActiveConnections: 1, BrokenConnections: 2})
			},
			NotReady, notAnswered + "2 connections failed, and none ended well.", comparePorts, nil,
		},
		"datagrams that nobody answers": {
			func(f *ServiceFacts) {
				f.Service.Spec.Ports[0].Protocol, f.Balancer.Listeners[0].Protocol = corev1.ProtocolUDP, "udp"
				f.traffic(api.ListenerStats{Connections: 2, BrokenConnections: 2})
				f.Stats.Listeners[0].Protocol = "udp"
			},
			Ready, "is ready at 127.30.64.1, port 8080/UDP.", "", nil,
		},
		"Local: a node without a pod is no fault": {
			func(f *ServiceFacts) {
				f.Service.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
				f.Slices[0].Endpoints, f.Pods = f.Slices[0].Endpoints[:1], f.Pods[:1]
				f.health(api.TargetHealthy, api.TargetUnhealthy)
			},
			Ready, "is ready at 127.30.64.1, port 8080/TCP.", "", []Fact{
				{Cluster, "externalTrafficPolicy is Local"}, {Cloud, "it has 2 targets, and 1 healthy"},
				{Cluster, "its endpoint is 1 ready pod on 1 node: web-1"},
			},
		},
		"Local: no target has a pod": {
			func(f *ServiceFacts) {
				f.Service.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
				f.Slices[0].Endpoints[0].NodeName, f.Slices[0].Endpoints[1].NodeName = new("node-3"), new("node-3")
				f.health(api.TargetUnhealthy, api.TargetUnhealthy)
			},
			NotReady, "has an address, and no node has a pod of its own to answer with.",
			"kubectl --namespace default get pods -o wide", nil,
		},
		"source ranges that leave this machine out": {
			func(f *ServiceFacts) { f.Balancer.SourceRanges = []string{"10.0.0.0/8", "nonsense"} },
			NotReady, "refuses this machine: its source ranges leave it out.", edit,
			[]Fact{{Cloud, "only clients from 10.0.0.0/8, nonsense may connect"}},
		},
		"source ranges of a balancer that others reach": {
			func(f *ServiceFacts) {
				f.Balancer.SourceRanges, f.Balancer.Address = []string{"10.0.0.0/8"}, "172.18.64.1"
			},
			Ready, "is ready at 127.30.64.1, port 8080/TCP.", "",
			[]Fact{{Cloud, "only clients from 10.0.0.0/8 may connect"}},
		},
		"deleting, and no CCM": {
			func(f *ServiceFacts) { f.Service.DeletionTimestamp = new(ago(time.Minute)); f.ccmOff() },
			NotReady,
			"is being deleted, and its finalizer waits for the CCM to delete the load balancer: no cloud controller manager runs.",
			"lab ccm start", []Fact{
				{Cluster, "it was deleted 1m0s ago, and waits for: " + loadBalancerFinalizer},
				{Cloud, "load balancer lb-1 (web-1) at 127.30.64.1 is active"},
			},
		},
		"deleting, with its balancer": {
			func(f *ServiceFacts) {
				f.Service.DeletionTimestamp = new(ago(time.Minute))
				f.balancerIn(api.LoadBalancerDeleting, "")
			},
			NotReady, "is being deleted; its load balancer is on its way out.", "", nil,
		},
		"deleting, and the CCM cannot": {
			func(f *ServiceFacts) {
				f.Service.DeletionTimestamp = new(ago(time.Minute))
				f.Events = []corev1.Event{event("fakecloud-ccm", "LoadBalancerAmbiguous", "two")}
			},
			NotReady, "is being deleted, and the CCM cannot delete its load balancer: LoadBalancerAmbiguous.",
			"lab logs ccm --tail 30", []Fact{{CCM, "event LoadBalancerAmbiguous, 3s ago: two"}},
		},
		"deleting, by somebody else's finalizer": {
			func(f *ServiceFacts) {
				f.Service.DeletionTimestamp, f.Service.Finalizers = new(ago(time.Minute)), []string{"example.com/mine"}
			},
			NotReady, "is being deleted, and waits for somebody else than the CCM.",
			"kubectl --namespace default get service web -o yaml", nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := wellService()
			c.given(&f)
			c.check(t, "Service "+strings.TrimPrefix(f.Namespace+"/"+f.Name, "default/"), Service(f))
		})
	}
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
