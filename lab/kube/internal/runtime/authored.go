package runtime

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/ccmlab/ccmlab/cmd/hello/demoserver"
)

// authored is the zero value for a container of a pod that is not known: none of
// its variables and files are told.
type authored struct {
	// init is an init container that has to end. A sidecar (one that restarts
	// always) does not.
	init   bool
	probes map[string]demoserver.Probe

	container v1.Container
}

func authoredOf(pod *v1.Pod, name string) authored {
	if pod == nil {
		return authored{}
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; c.Name == name {
			ends := c.RestartPolicy == nil || *c.RestartPolicy != v1.ContainerRestartPolicyAlways
			return authored{init: ends, probes: probesOf(c), container: *c}
		}
	}
	for i := range pod.Spec.Containers {
		if c := &pod.Spec.Containers[i]; c.Name == name {
			return authored{probes: probesOf(c), container: *c}
		}
	}
	return authored{} // An ephemeral container has no probes.
}

func probesOf(c *v1.Container) map[string]demoserver.Probe {
	found := map[string]demoserver.Probe{}
	for kind, p := range map[string]*v1.Probe{demoserver.Startup: c.StartupProbe, demoserver.Liveness: c.LivenessProbe, demoserver.Readiness: c.ReadinessProbe} {
		if p != nil {
			found[kind] = probeOf(c, p)
		}
	}
	return found
}

const useHTTPGet = "cannot be told to fail, because %s. Probe with httpGet, or POST /exit to end the container."

// probeOf reads a probe as the kubelet does (NewRequestForHTTPGetAction in
// pkg/probe/http).
func probeOf(c *v1.Container, p *v1.Probe) demoserver.Probe {
	unfit := func(format string, arguments ...any) demoserver.Probe {
		return demoserver.Probe{UnfitReason: fmt.Sprintf(useHTTPGet, fmt.Sprintf(format, arguments...))}
	}
	switch {
	case p.TCPSocket != nil:
		return unfit("it is a tcpSocket probe: it succeeds for as long as the port is open")
	case p.GRPC != nil:
		return unfit("it is a grpc probe, and this container speaks HTTP/1 only")
	case p.HTTPGet == nil:
		return unfit("it is an exec probe: it asks a command and not this server")
	case p.HTTPGet.Scheme == v1.URISchemeHTTPS:
		return unfit("it asks by HTTPS, and this container speaks HTTP only: it fails anyway")
	}
	port := p.HTTPGet.Port.IntValue()
	for _, declared := range c.Ports {
		if p.HTTPGet.Port.Type == intstr.String && declared.Name == p.HTTPGet.Port.StrVal || int(declared.ContainerPort) == port {
			return demoserver.Probe{Port: uint16(declared.ContainerPort), URI: requestURI(p.HTTPGet.Path)}
		}
	}
	return unfit("it asks on port %s, which this container does not declare", p.HTTPGet.Port.String())
}

func requestURI(path string) string {
	u, err := url.Parse(path)
	if err != nil {
		u = &url.URL{Path: path}
	}
	if !strings.HasPrefix(u.Path, "/") {
		u.Path = "/" + u.Path
	}
	return u.RequestURI()
}

// openVolumes are those of a container's mounts whose files anybody may see:
// volumes of type configMap and downwardAPI, known by the folders in which the
// kubelet keeps them (pods/UID/volumes/PLUGIN/NAME). Secrets and tokens are not
// among them, nor is anything that a container might have written itself.
func (r *Runtime) openVolumes(c *container) []demoserver.VolumeMount {
	var found []demoserver.VolumeMount
	for _, m := range c.config.GetMounts() {
		parts := strings.Split(r.inPod(c.sandbox, m.GetHostPath()), "/")
		if len(parts) > 4 && parts[2] == "volumes" && (parts[3] == "kubernetes.io~configmap" || parts[3] == "kubernetes.io~downward-api") {
			found = append(found, demoserver.VolumeMount{Path: m.GetContainerPath(), Host: m.GetHostPath()})
		}
	}
	return found
}

const (
	fromSecret = "(from a Secret)"
	fromFile   = "(from a file)"
)

// reference is how a variable's value names another one. An escaped one, $$(X),
// is taken for one too: rather one value too many is kept back.
var reference = regexp.MustCompile(`\$\(([^)]*)\)`)

// env are the variables that the author declared, with the values that the
// kubelet found for them (makeEnvironmentVariables in pkg/kubelet). Whoever
// reaches the port reads them, so nothing is told that comes from a Secret,
// directly or by reference.
func (a authored) env(envs []*runtimeapi.KeyValue) map[string]string {
	values := map[string]string{}
	for _, e := range envs {
		values[e.GetKey()] = string(e.GetValue())
	}
	hidden := a.hidden()
	told := map[string]string{}
	for name, value := range values {
		why, declared := hidden[name]
		if !declared {
			if len(a.container.EnvFrom) == 0 || ofService(name, values) {
				continue
			}
			why = a.fromEnvFrom(name)
		}
		if why == "" {
			why = demoserver.Shorten(value)
		}
		told[name] = why
	}
	return told
}

// hidden says of each variable in the container's env what to tell instead of its
// value, or "" when the value may be told.
func (a authored) hidden() map[string]string {
	hidden := map[string]string{}
	for _, e := range a.container.Env {
		why := ""
		switch from := e.ValueFrom; {
		case from == nil:
		case from.SecretKeyRef != nil:
			why = fromSecret
		case from.FileKeyRef != nil:
			why = fromFile
		case from.ConfigMapKeyRef != nil:
			why = a.fromEnvFrom(e.Name) // Which stays where this one is optional and not there.
		}
		for _, match := range reference.FindAllStringSubmatch(e.Value, -1) {
			other, declared := hidden[match[1]]
			if !declared {
				other = a.fromEnvFrom(match[1])
			}
			if other != "" {
				why = other
			}
		}
		// One of several by the same name is enough to hide all.
		if hidden[e.Name] == "" {
			hidden[e.Name] = why
		}
	}
	return hidden
}

// fromEnvFrom says what to tell of a variable that envFrom brought: which of its
// sources did, only the prefixes tell.
func (a authored) fromEnvFrom(name string) string {
	for _, from := range a.container.EnvFrom {
		if from.SecretRef != nil && strings.HasPrefix(name, from.Prefix) {
			return fromSecret
		}
	}
	return ""
}

// ofService tells the variables that every container gets of the Services around
// it: KUBERNETES_* and the service links. A Service is known by its
// NAME_SERVICE_HOST; what else there is of it, pkg/kubelet/envvars says.
func ofService(name string, env map[string]string) bool {
	for other := range env {
		service, found := strings.CutSuffix(other, "_SERVICE_HOST")
		if found && (strings.HasPrefix(name, service+"_SERVICE_") || name == service+"_PORT" || strings.HasPrefix(name, service+"_PORT_")) {
			return true
		}
	}
	return false
}
