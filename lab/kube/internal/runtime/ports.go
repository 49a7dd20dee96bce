package runtime

import (
	"cmp"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/ccmlab/ccmlab/lab/kube/internal/podnet"
)

// ServedPod returns a copy of a pod with the ports on which its containers are served, those that the
// kubelet asks in probes and hooks included. It takes 127.0.0.1 in a host network pod for the
// simulated machine's address, which the kubelet asks if a handler names no host.
func ServedPod(pod *v1.Pod) *v1.Pod {
	pod = pod.DeepCopy()
	for _, containers := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			c := &containers[i]
			for j := range c.Ports {
				p := &c.Ports[j]
				p.ContainerPort, p.HostPort = podnet.ServedPort(p.ContainerPort), podnet.ServedPort(p.HostPort)
			}
			for _, t := range handlerTargets(c) {
				if pod.Spec.HostNetwork && slices.Contains([]string{"127.0.0.1", "localhost"}, *t.host) {
					*t.host = ""
				}
				if *t.host == "" {
					*t.port = podnet.ServedPort(*t.port)
				}
			}
		}
	}
	return pod
}

// handlerTarget is what the kubelet asks in a probe or hook: the pod, or a host of the handler's own. A
// port with a name has number 0.
type handlerTarget struct {
	host *string
	port *int32
}

// handlerTargets returns the targets of a container's probes and hooks.
func handlerTargets(c *v1.Container) (targets []handlerTarget) {
	addHTTP := func(get *v1.HTTPGetAction) {
		if get != nil {
			targets = append(targets, handlerTarget{&get.Host, &get.Port.IntVal})
		}
	}
	for _, p := range probesOf(c) {
		addHTTP(p.HTTPGet)
		if tcp := p.TCPSocket; tcp != nil {
			targets = append(targets, handlerTarget{&tcp.Host, &tcp.Port.IntVal})
		}
		if p.GRPC != nil {
			targets = append(targets, handlerTarget{new(string), &p.GRPC.Port})
		}
	}
	if hooks := c.Lifecycle; hooks != nil {
		for _, hook := range []*v1.LifecycleHandler{hooks.PostStart, hooks.PreStop} {
			if hook != nil {
				addHTTP(hook.HTTPGet)
			}
		}
	}
	return targets
}

// unlistedPorts returns the ports that the kubelet asks in probes and hooks of a container and that no
// container of the pod declares. A real container may serve them, too: ports in a spec only inform.
func unlistedPorts(pod *v1.Pod, c *v1.Container) (ports []int32) {
	declared := map[int32]bool{0: true}
	for _, other := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, p := range other.Ports {
			declared[p.ContainerPort] = true
		}
	}
	for _, t := range handlerTargets(c) {
		if *t.host == "" && !declared[*t.port] {
			declared[*t.port] = true
			ports = append(ports, *t.port)
		}
	}
	slices.Sort(ports)
	return ports
}

// listenEndpoint is a protocol and address on which a container listens.
type listenEndpoint struct {
	protocol v1.Protocol
	address  netip.AddrPort
	// unlisted tells that the container does not declare the port, but the kubelet asks it.
	unlisted bool
}

// listenEndpoints returns where a container must listen: its ports on the pod's address, declared or not,
// and host ports on the node's. A host network pod's host ports are its ports, and are listed once. It
// needs r.mu.
func (r *Runtime) listenEndpoints(c *container) []listenEndpoint {
	podAddress := r.loopbackAddress(c.sandbox)
	var list []listenEndpoint
	add := func(protocol v1.Protocol, address netip.Addr, number int32, unlisted bool) {
		at := listenEndpoint{protocol, netip.AddrPortFrom(address, uint16(number)), unlisted}
		if number != 0 && address.IsValid() && !slices.Contains(list, at) {
			list = append(list, at)
		}
	}
	for _, p := range c.spec.container.Ports {
		protocol := cmp.Or(p.Protocol, v1.ProtocolTCP)
		add(protocol, podAddress, p.ContainerPort, false)
		add(protocol, r.options.NodeAddress, p.HostPort, false)
	}
	for _, number := range c.spec.unlistedPorts {
		add(v1.ProtocolTCP, podAddress, number, true)
	}
	return list
}
