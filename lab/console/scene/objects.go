package scene

// Things of the cluster's and the cloud's objects.

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	cloudproviderapi "k8s.io/cloud-provider/api"
	"k8s.io/utils/ptr"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/lab/kubediff"
	"github.com/ccmlab/ccmlab/lab/timeline"
	"github.com/ccmlab/ccmlab/lab/ui"
)

// Keys by which things of the cluster find those of the cloud.
func providerKey(id string) string { return "provider:" + id }
func tagKey(value string) string   { return "tag:" + value }
func addressKey(ip string) string  { return "address:" + ip }
func cloudKey(id string) string    { return "cloud:" + id }

// OfNode is a Node, linked to its instance by the provider ID, or by its name while it has none.
func OfNode(n *corev1.Node) Thing {
	t := Thing{
		ID: "node/" + n.Name, Kind: KindNode, Name: n.Name, Zone: n.Labels[corev1.LabelTopologyZone],
		State: "Ready", Level: LevelOK,
	}
	switch {
	case kubediff.IsUninitialized(n):
		t.State, t.Level = "waits for the CCM", LevelBusy
		t.Reason = "Its taint keeps pods off until the CCM has said which instance it is, and where."
	case kubediff.HasTaint(n, cloudproviderapi.TaintNodeShutdown):
		t.State, t.Level, t.Reason = "shut down", LevelOff, "The CCM has seen that its instance is stopped."
	case !kubediff.IsNodeReady(n):
		t.State, t.Level, t.Reason = "not ready", LevelBad, "Its kubelet has not been heard of."
	}
	for _, taint := range n.Spec.Taints {
		t.addFact("taint", taint.Key+":"+string(taint.Effect))
	}
	t.addFact("provider ID", n.Spec.ProviderID)
	for _, a := range n.Status.Addresses {
		if a.Type != corev1.NodeHostName {
			t.addFact(string(a.Type), a.Address)
		}
	}
	t.addFact("type", n.Labels[corev1.LabelInstanceTypeStable])
	t.addFact("pods' range", n.Spec.PodCIDR)
	if n.Spec.ProviderID != "" {
		t.Links = []Link{{To: providerKey(n.Spec.ProviderID)}}
	} else {
		t.Links = []Link{{To: "instance/" + n.Name}}
	}
	return t
}

// OfPod is a Pod, linked to its Node.
func OfPod(p *corev1.Pod) Thing {
	t := Thing{ID: timeline.PodSubject(p), Kind: KindPod, Name: p.Name, State: string(p.Status.Phase), Level: LevelBusy}
	switch {
	case p.DeletionTimestamp != nil:
		t.State = "Terminating"
	case p.Status.Phase == corev1.PodFailed:
		t.Level, t.Reason = LevelBad, p.Status.Message
	case p.Status.Phase == corev1.PodSucceeded:
		t.Level = LevelOff
	case kubediff.IsPodReady(p):
		t.State, t.Level = "Ready", LevelOK
	case p.Spec.NodeName == "":
		t.State, t.Reason = "Pending", ui.FirstSentence(kubediff.PodCondition(p, corev1.PodScheduled).Message)
	}
	t.addFact("namespace", p.Namespace)
	t.addFact("IP", p.Status.PodIP)
	if p.Spec.NodeName != "" {
		t.Links = []Link{{To: "node/" + p.Spec.NodeName}}
	}
	return t
}

// OfService is a Service of type LoadBalancer, linked to its balancer. ok is false for other types.
func OfService(s *corev1.Service) (t Thing, ok bool) {
	t = Thing{ID: timeline.ServiceSubject(s), Kind: KindService, Name: s.Name, State: "has an address", Level: LevelOK}
	address := kubediff.IngressAddress(s)
	switch {
	case s.DeletionTimestamp != nil:
		t.State, t.Level, t.Reason = "deleting", LevelBusy, "It waits for its load balancer to go."
	case address == "":
		t.State, t.Level, t.Reason = "pending", LevelBusy, "It waits for the CCM to give it an address."
	}
	t.addFact("namespace", s.Namespace)
	t.addFact("address", address)
	for _, p := range s.Spec.Ports {
		t.addFact("port", fmt.Sprintf("%s %d, node port %d", p.Protocol, p.Port, p.NodePort))
	}
	t.Links = []Link{{To: tagKey(string(s.UID))}, {To: tagKey(s.Namespace + "/" + s.Name)}}
	if address != "" {
		t.Links = append(t.Links, Link{To: addressKey(address)})
	}
	return t, s.Spec.Type == corev1.ServiceTypeLoadBalancer
}

// OfLease is the lease of a controller's leader.
func OfLease(l *coordinationv1.Lease) Thing {
	t := Thing{ID: "lease/" + l.Name, Kind: KindLease, Name: l.Name, State: "nobody leads", Level: LevelBusy}
	if holder := ptr.Deref(l.Spec.HolderIdentity, ""); holder != "" {
		t.State, t.Level = holder+" leads", LevelOK
	}
	t.addFact("changes of leader", fmt.Sprint(ptr.Deref(l.Spec.LeaseTransitions, 0)))
	return t
}

// OfComponent is one of the lab's processes. running is false for one that has ended, or was never started.
func OfComponent(name, detail string, running bool) Thing {
	t := Thing{ID: "component/" + name, Kind: KindComponent, Name: name, State: "runs", Level: LevelOK}
	if !running {
		t.State, t.Level = "does not run", LevelOff
		if name == "ccm" {
			t.Reason = "Without the cloud controller manager, Nodes keep their taint and Services get no address."
		}
	}
	t.addFact("process", detail)
	return t
}

// OfInstance is one of the cloud's.
func OfInstance(i api.Instance) Thing {
	t := Thing{
		ID: "instance/" + i.Name, Kind: KindInstance, Name: i.Name, Zone: i.Zone, State: string(i.State), Level: LevelBusy,
		CloudID: i.ID, Reason: ptr.Deref(i.StateReason, ""), Keys: []string{cloudKey(i.ID), providerKey("fakecloud://" + i.ID)},
	}
	switch i.State {
	case api.InstanceRunning:
		t.Level = LevelOK
	case api.InstanceStopped, api.InstanceTerminated:
		t.Level = LevelOff
	case api.InstanceError:
		t.Level = LevelBad
	}
	for _, identity := range slices.Sorted(maps.Values(i.Identities)) {
		t.Keys = append(t.Keys, providerKey(identity))
	}
	t.addFact("ID", i.ID)
	t.addFact("type", string(i.Type))
	for _, a := range i.Addresses {
		t.addFact(string(a.Type)+" address", a.IP)
	}
	return t
}

// OfBalancer is a load balancer, linked to its targets.
func OfBalancer(lb api.LoadBalancer) Thing {
	t := Thing{
		ID: "balancer/" + lb.Name, Kind: KindBalancer, Name: lb.Name, State: string(lb.State), Level: LevelBusy,
		CloudID: lb.ID, Reason: ptr.Deref(lb.StateReason, ""), Keys: []string{cloudKey(lb.ID)},
	}
	switch lb.State {
	case api.LoadBalancerActive:
		t.Level = LevelOK
		if t.Reason != "" { // All its targets are unhealthy, say.
			t.Level = LevelBad
		}
	case api.LoadBalancerError:
		t.Level = LevelBad
	}
	for _, value := range slices.Sorted(maps.Values(lb.Tags)) {
		t.Keys = append(t.Keys, tagKey(value))
	}
	// Brightbox's CCM gives a balancer its Service's name, SERVICE.NAMESPACE.CLUSTER, and nothing else.
	if service, rest, ok := strings.Cut(lb.Tags["name"], "."); ok {
		namespace, _, _ := strings.Cut(rest, ".")
		t.Keys = append(t.Keys, tagKey(namespace+"/"+service))
	}
	t.addFact("ID", lb.ID)
	t.addFact("kind", string(lb.Kind))
	for _, a := range slices.Concat([]string{lb.Address}, lb.AttachedAddresses) {
		t.addFact("address", a)
		t.Keys = append(t.Keys, addressKey(a))
	}
	for _, l := range lb.Listeners {
		t.addFact("listener", fmt.Sprintf("%s %d, to port %d", l.Protocol, l.Port, l.TargetPort))
	}
	for _, target := range lb.Targets {
		t.Links = append(t.Links, Link{To: cloudKey(target.InstanceID)})
	}
	return t
}

// OfRoute is a route to the pods of an instance's Node.
func OfRoute(r api.Route) Thing {
	t := Thing{
		ID: "route/" + r.Name, Kind: KindRoute, Name: r.Destination, State: string(r.State), Level: LevelOK,
		CloudID: r.ID, Reason: ptr.Deref(r.StateReason, ""), Links: []Link{{To: cloudKey(r.InstanceID)}},
	}
	if r.State == api.RouteBlackhole {
		t.Level = LevelBad
	}
	t.addFact("name", r.Name)
	return t
}

// SetTargets puts health and traffic of a balancer's targets on its links. before is the count of
// bytes, by instance, that an earlier call returned, seconds ago.
func (t *Thing) SetTargets(
	health []api.TargetHealth,
	stats []api.TargetStats,
	before map[string]int64,
	seconds float64,
) (bytes map[string]int64) {
	bytes = map[string]int64{}
	t.Links = slices.Clone(t.Links)
	for i := range t.Links {
		l := &t.Links[i]
		l.Level, l.State, l.Connections, l.BytesPerSecond = "", "", 0, 0
		for _, h := range health {
			if cloudKey(h.InstanceID) == l.To {
				l.State = cmp.Or(ptr.Deref(h.Reason, ""), string(h.Health))
				l.Level = map[api.TargetHealthState]Level{
					api.TargetHealthy: LevelOK, api.TargetUnhealthy: LevelBad,
				}[h.Health]
			}
		}
		for _, s := range stats {
			if cloudKey(s.InstanceID) != l.To {
				continue
			}
			sum := s.BytesIn + s.BytesOut
			bytes[s.InstanceID] = sum
			l.Connections = s.ActiveConnections
			if was, known := before[s.InstanceID]; known && sum > was && seconds > 0 {
				l.BytesPerSecond = int64(float64(sum-was) / seconds)
			}
		}
	}
	return bytes
}

// KeepTargets takes over what SetTargets has put on the links of an earlier state of the thing.
func (t *Thing) KeepTargets(earlier Thing) {
	for i, l := range t.Links {
		if at := slices.IndexFunc(earlier.Links, func(e Link) bool { return e.To == l.To }); at >= 0 {
			t.Links[i] = earlier.Links[at]
		}
	}
}

func (t *Thing) addFact(name, value string) {
	if value != "" {
		t.Facts = append(t.Facts, Fact{name, value})
	}
}
