package runtime

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// annotationPorts is the annotation in which the kubelet writes a container's ports as JSON
// (containerPortsLabel in pkg/kubelet/kuberuntime/labels.go). CRI's own
// PodSandboxConfig.PortMappings are host ports.
const annotationPorts = "io.kubernetes.container.ports"

// declaredPorts returns the ports of the kubelet's annotation.
func declaredPorts(
	config *runtimeapi.ContainerConfig,
	sandboxConfig *runtimeapi.PodSandboxConfig,
) ([]v1.ContainerPort, error) {
	text := config.GetAnnotations()[annotationPorts]
	if text == "" {
		return nil, nil
	}
	var ports []v1.ContainerPort
	if err := json.Unmarshal([]byte(text), &ports); err != nil {
		return nil, fmt.Errorf("ports of container %s of pod %s: %w",
			config.GetMetadata().GetName(), sandboxConfig.GetMetadata().GetName(), err)
	}
	return ports, nil
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
	for _, p := range c.ports {
		protocol := cmp.Or(p.Protocol, v1.ProtocolTCP)
		add(protocol, podAddress, p.ContainerPort, false)
		add(protocol, r.options.NodeAddress, p.HostPort, false)
	}
	for _, number := range c.spec.unlistedPorts {
		add(v1.ProtocolTCP, podAddress, number, true)
	}
	return list
}
