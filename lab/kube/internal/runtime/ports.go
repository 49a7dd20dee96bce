package runtime

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// annotationPorts is where the kubelet writes the container's ports as JSON
// (containerPortsLabel in pkg/kubelet/kuberuntime/labels.go). CRI's own
// PodSandboxConfig.PortMappings is about host ports.
const annotationPorts = "io.kubernetes.container.ports"

const (
	protocolTCP = "TCP"
	protocolUDP = "UDP"
)

// port has the JSON names of a core/v1 ContainerPort.
type port struct {
	Name          string `json:"name,omitempty"`
	ContainerPort uint16 `json:"containerPort"`
	Protocol      string `json:"protocol,omitempty"`
	HostPort      uint16 `json:"hostPort,omitempty"`
	HostIP        string `json:"hostIP,omitempty"`
}

func (p port) protocol() string {
	if p.Protocol == "" {
		return protocolTCP
	}
	return p.Protocol
}

func declaredPorts(config *runtimeapi.ContainerConfig, sandboxConfig *runtimeapi.PodSandboxConfig) ([]port, error) {
	text := config.GetAnnotations()[annotationPorts]
	if text == "" {
		return nil, nil
	}
	var ports []port
	if err := json.Unmarshal([]byte(text), &ports); err != nil {
		return nil, fmt.Errorf("ports of container %s of pod %s: %w",
			config.GetMetadata().GetName(), sandboxConfig.GetMetadata().GetName(), err)
	}
	return ports, nil
}

// endpoint is one place where a container listens.
type endpoint struct {
	protocol string
	address  netip.AddrPort
}

// endpoints returns where a container must listen: its ports on the pod's
// address, and host ports on the node's. A host network pod's host ports are its
// ports, so they are not listed twice. It needs r.mu.
func (r *Runtime) endpoints(c *container) []endpoint {
	own := r.realised(c.sandbox)
	var list []endpoint
	add := func(protocol string, address netip.Addr, number uint16) {
		at := endpoint{protocol, netip.AddrPortFrom(address, number)}
		if number != 0 && address.IsValid() && !slices.Contains(list, at) {
			list = append(list, at)
		}
	}
	for _, p := range c.ports {
		add(p.protocol(), own, p.ContainerPort)
		add(p.protocol(), r.options.NodeAddress, p.HostPort)
	}
	return list
}
