package runtime

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// annotationPorts is the annotation in which the kubelet writes a container's ports as JSON
// (containerPortsLabel in pkg/kubelet/kuberuntime/labels.go). CRI's own
// PodSandboxConfig.PortMappings are host ports.
const annotationPorts = "io.kubernetes.container.ports"

const (
	protocolTCP = "TCP"
	protocolUDP = "UDP"
)

// containerPort has the JSON names of a core/v1 ContainerPort.
type containerPort struct {
	Name          string `json:"name,omitempty"`
	ContainerPort uint16 `json:"containerPort"`
	Protocol      string `json:"protocol,omitempty"`
	HostPort      uint16 `json:"hostPort,omitempty"`
	HostIP        string `json:"hostIP,omitempty"`
}

func (p containerPort) protocolOrTCP() string {
	if p.Protocol == "" {
		return protocolTCP
	}
	return p.Protocol
}

// declaredPorts returns the ports of the kubelet's annotation.
func declaredPorts(
	config *runtimeapi.ContainerConfig,
	sandboxConfig *runtimeapi.PodSandboxConfig,
) ([]containerPort, error) {
	text := config.GetAnnotations()[annotationPorts]
	if text == "" {
		return nil, nil
	}
	var ports []containerPort
	if err := json.Unmarshal([]byte(text), &ports); err != nil {
		return nil, fmt.Errorf("ports of container %s of pod %s: %w",
			config.GetMetadata().GetName(), sandboxConfig.GetMetadata().GetName(), err)
	}
	return ports, nil
}

// listenEndpoint is a protocol and address on which a container listens.
type listenEndpoint struct {
	protocol string
	address  netip.AddrPort
}

// listenEndpoints returns where a container must listen: its ports on the pod's address, and host
// ports on the node's. A host network pod's host ports are its ports, and are listed once. It
// needs r.mu.
func (r *Runtime) listenEndpoints(c *container) []listenEndpoint {
	podAddress := r.loopbackAddress(c.sandbox)
	var list []listenEndpoint
	add := func(protocol string, address netip.Addr, number uint16) {
		at := listenEndpoint{protocol, netip.AddrPortFrom(address, number)}
		if number != 0 && address.IsValid() && !slices.Contains(list, at) {
			list = append(list, at)
		}
	}
	for _, p := range c.ports {
		add(p.protocolOrTCP(), podAddress, p.ContainerPort)
		add(p.protocolOrTCP(), r.options.NodeAddress, p.HostPort)
	}
	return list
}
