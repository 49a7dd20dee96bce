// Package labscene has what a lab adds to the picture of its cloud: the objects of the cluster, and the
// file in which the picture is recorded. Begin with OfNode and Log.
package labscene

import (
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cloudproviderapi "k8s.io/cloud-provider/api"
	"k8s.io/utils/ptr"

	"github.com/ccmlab/ccmlab/fakecloud/console/scene"
	"github.com/ccmlab/ccmlab/lab/kubediff"
	"github.com/ccmlab/ccmlab/lab/timeline"
	"github.com/ccmlab/ccmlab/lab/ui"
)

// Kinds of a lab's objects, beside the cloud's.
const (
	KindNode      scene.Kind = "node"
	KindPod       scene.Kind = "pod"
	KindService   scene.Kind = "service"
	KindLease     scene.Kind = "lease"
	KindComponent scene.Kind = "component"
	// KindEndpoints are lines in the picture: from a Service to its pods.
	KindEndpoints scene.Kind = "endpoints"
)

// OfNode is a Node, linked to its instance by the provider ID, or by its name while it has none.
func OfNode(n *corev1.Node) scene.Object {
	t := scene.Object{
		ID: "node/" + n.Name, Kind: KindNode, Name: n.Name, Zone: n.Labels[corev1.LabelTopologyZone],
		State: "Ready", Level: scene.LevelOK,
	}
	switch {
	case kubediff.IsUninitialized(n):
		t.State, t.Level = "waits for the CCM", scene.LevelBusy
		t.Reason = "Its taint keeps pods off until the CCM has said which instance it is, and where."
	case kubediff.HasTaint(n, cloudproviderapi.TaintNodeShutdown):
		t.State, t.Level, t.Reason = "shut down", scene.LevelOff, "The CCM has seen that its instance is stopped."
	case !kubediff.IsNodeReady(n):
		t.State, t.Level, t.Reason = "not ready", scene.LevelBad, "Its kubelet has not been heard of."
	}
	for _, taint := range n.Spec.Taints {
		t.AddFact("taint", taint.Key+":"+string(taint.Effect))
	}
	t.AddFact("provider ID", n.Spec.ProviderID)
	for _, a := range n.Status.Addresses {
		if a.Type != corev1.NodeHostName {
			t.AddFact(string(a.Type), a.Address)
		}
	}
	t.AddFact("type", n.Labels[corev1.LabelInstanceTypeStable])
	t.AddFact("pods' range", n.Spec.PodCIDR)
	if n.Spec.ProviderID != "" {
		t.Links = []scene.Link{{To: scene.ProviderKey(n.Spec.ProviderID)}}
	} else {
		t.Links = []scene.Link{{To: "instance/" + n.Name}}
	}
	return t
}

// OfPod is a Pod, linked to its Node.
func OfPod(p *corev1.Pod) scene.Object {
	t := scene.Object{
		ID: timeline.PodSubject(p), Kind: KindPod, Name: p.Name, State: string(p.Status.Phase), Level: scene.LevelBusy,
	}
	switch {
	case p.DeletionTimestamp != nil:
		t.State = "Terminating"
	case p.Status.Phase == corev1.PodFailed:
		t.Level, t.Reason = scene.LevelBad, p.Status.Message
	case p.Status.Phase == corev1.PodSucceeded:
		t.Level = scene.LevelOff
	case kubediff.IsPodReady(p):
		t.State, t.Level = "Ready", scene.LevelOK
	case p.Spec.NodeName == "":
		t.State, t.Reason = "Pending", ui.FirstSentence(kubediff.PodCondition(p, corev1.PodScheduled).Message)
	}
	t.AddFact("namespace", p.Namespace)
	t.AddFact("IP", p.Status.PodIP)
	if p.Spec.NodeName != "" {
		t.Links = []scene.Link{{To: "node/" + p.Spec.NodeName}}
	}
	return t
}

// OfService is a Service of type LoadBalancer, linked to its balancer. ok is false for other types.
func OfService(s *corev1.Service) (t scene.Object, ok bool) {
	t = scene.Object{
		ID: timeline.ServiceSubject(s), Kind: KindService, Name: s.Name, State: "has an address", Level: scene.LevelOK,
	}
	address := kubediff.IngressAddress(s)
	switch {
	case s.DeletionTimestamp != nil:
		t.State, t.Level, t.Reason = "deleting", scene.LevelBusy, "It waits for its load balancer to go."
	case address == "":
		t.State, t.Level, t.Reason = "pending", scene.LevelBusy, "It waits for the CCM to give it an address."
	}
	t.AddFact("namespace", s.Namespace)
	t.AddFact("address", address)
	for _, p := range s.Spec.Ports {
		t.AddFact("port", fmt.Sprintf("%s %d, node port %d", p.Protocol, p.Port, p.NodePort))
	}
	t.Links = []scene.Link{{To: scene.TagKey(string(s.UID))}, {To: scene.TagKey(s.Namespace + "/" + s.Name)}}
	if address != "" {
		t.Links = append(t.Links, scene.Link{To: scene.AddressKey(address)})
	}
	return t, s.Spec.Type == corev1.ServiceTypeLoadBalancer
}

// OfEndpointSlice is a part of a Service's endpoints, linked to the Service and to the pods.
func OfEndpointSlice(s *discoveryv1.EndpointSlice) scene.Object {
	t := scene.Object{
		ID: "endpoints/" + s.Namespace + "/" + s.Name, Kind: KindEndpoints, Name: s.Name, Level: scene.LevelOK,
	}
	of := metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
	t.Links = []scene.Link{{To: timeline.ServiceSubject(&corev1.Service{ObjectMeta: of})}}
	ready := 0
	for _, e := range s.Endpoints {
		if e.TargetRef == nil || e.TargetRef.Kind != "Pod" {
			continue
		}
		l := scene.Link{Level: scene.LevelOff, State: "not ready"}
		if ptr.Deref(e.Conditions.Ready, true) {
			ready++
			l.Level, l.State = scene.LevelOK, "ready"
		}
		pod := metav1.ObjectMeta{Namespace: e.TargetRef.Namespace, Name: e.TargetRef.Name}
		l.To = timeline.PodSubject(&corev1.Pod{ObjectMeta: pod})
		t.Links = append(t.Links, l)
	}
	t.State = fmt.Sprintf("%d of %d ready", ready, len(t.Links)-1)
	return t
}

// OfLease is the lease of a controller's leader.
func OfLease(l *coordinationv1.Lease) scene.Object {
	t := scene.Object{ID: "lease/" + l.Name, Kind: KindLease, Name: l.Name, State: "nobody leads", Level: scene.LevelBusy}
	if holder := ptr.Deref(l.Spec.HolderIdentity, ""); holder != "" {
		t.State, t.Level = "held by "+holder+", which leads", scene.LevelOK
	}
	t.AddFact("changes of leader", fmt.Sprint(ptr.Deref(l.Spec.LeaseTransitions, 0)))
	return t
}

// RefusedCCM is the CCM's token while the cloud refuses it. It is in the picture only meanwhile.
func RefusedCCM(why string) scene.Object {
	return scene.Object{
		ID: "token/ccm", Kind: KindComponent, Name: "the CCM's token", State: "refused by the cloud", Level: scene.LevelBad,
		Reason: "The cloud refuses the CCM: " + why + ". Nothing that changes from now on is followed.",
	}
}

// OfComponent is one of the lab's processes. running is false for one that has ended, or was never started.
func OfComponent(name, detail string, running bool) scene.Object {
	t := scene.Object{ID: "component/" + name, Kind: KindComponent, Name: name, State: "runs", Level: scene.LevelOK}
	if !running {
		t.State, t.Level = "does not run", scene.LevelOff
		if name == "ccm" {
			t.Reason = "Without the cloud controller manager (CCM), Nodes keep their taint, so that no pods run on them, " +
				"and Services get no address."
		}
	}
	t.AddFact("process", detail)
	return t
}
