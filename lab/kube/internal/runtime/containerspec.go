package runtime

import (
	"fmt"
	"maps"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/ccmlab/ccmlab/lab/demoserver"
)

// containerSpec is what the runtime needs of a container's spec. The zero value is for a container
// of an unknown pod: none of its variables are shown.
type containerSpec struct {
	// endsAtOnce marks a container that others wait for: an init container unless it is a sidecar, and
	// one of a Job that has neither ports nor probes.
	endsAtOnce bool
	probes     map[string]demoserver.Probe
	// unlistedPorts are those that the kubelet asks and no container of the pod declares.
	unlistedPorts []int32

	container v1.Container
}

// containerSpecOf returns the spec of a container by its name; the zero value if it is not there, as an
// ephemeral container is not.
func containerSpecOf(pod *v1.Pod, name string) containerSpec {
	if pod == nil {
		return containerSpec{}
	}
	all := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	i := slices.IndexFunc(all, func(c v1.Container) bool { return c.Name == name })
	if i < 0 {
		return containerSpec{}
	}
	c := all[i]
	spec := containerSpec{container: c, unlistedPorts: unlistedPorts(pod, &c), probes: map[string]demoserver.Probe{}}
	for kind, p := range probesOf(&c) {
		spec.probes[kind] = spec.demoProbe(p)
	}
	if i < len(pod.Spec.InitContainers) {
		spec.endsAtOnce = c.RestartPolicy == nil || *c.RestartPolicy != v1.ContainerRestartPolicyAlways
	} else if owner := metav1.GetControllerOf(pod); owner != nil && owner.Kind == "Job" {
		spec.endsAtOnce = len(c.Ports)+len(spec.probes) == 0
	}
	return spec
}

// probesOf returns the probes that a container declares, by their kind.
func probesOf(c *v1.Container) map[string]*v1.Probe {
	probes := map[string]*v1.Probe{
		demoserver.Startup: c.StartupProbe, demoserver.Liveness: c.LivenessProbe,
		demoserver.Readiness: c.ReadinessProbe,
	}
	maps.DeleteFunc(probes, func(_ string, p *v1.Probe) bool { return p == nil })
	return probes
}

const unfitProbeText = "cannot be told to fail, because %s. Probe with httpGet, or POST /exit to end the container."

// demoProbe returns what a kubelet's request for the probe looks like (NewRequestForHTTPGetAction
// in pkg/probe/http), or why commands cannot make the probe fail.
func (c containerSpec) demoProbe(p *v1.Probe) demoserver.Probe {
	unfit := func(format string, arguments ...any) demoserver.Probe {
		return demoserver.Probe{UnfitReason: fmt.Sprintf(unfitProbeText, fmt.Sprintf(format, arguments...))}
	}
	var port intstr.IntOrString
	uri := demoserver.HealthCheckURI
	switch {
	case p.TCPSocket != nil:
		return unfit("it is a tcpSocket probe: it succeeds for as long as the port is open")
	case p.GRPC != nil:
		port = intstr.FromInt32(p.GRPC.Port)
	case p.HTTPGet == nil:
		return unfit("it is an exec probe: this container runs no command, so that it always succeeds")
	case p.HTTPGet.Scheme == v1.URISchemeHTTPS:
		return unfit("it asks by HTTPS, and this container speaks HTTP only: it fails anyway")
	default:
		port, uri = p.HTTPGet.Port, requestURI(p.HTTPGet.Path)
	}
	if number, served := c.servedPort(port); served {
		return demoserver.Probe{Port: uint16(number), URI: uri}
	}
	return unfit("it asks on port %s, which is not this container's", port.String())
}

// servedPort returns the number of a probe's port if the container serves it.
func (c containerSpec) servedPort(port intstr.IntOrString) (int32, bool) {
	for _, declared := range c.container.Ports {
		if port.Type == intstr.String && declared.Name == port.StrVal ||
			int(declared.ContainerPort) == port.IntValue() {
			return declared.ContainerPort, true
		}
	}
	number := int32(port.IntValue())
	return number, slices.Contains(c.unlistedPorts, number)
}

// requestURI returns the URI that the kubelet requests for a probe's path.
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

// publicVolumes returns the mounts whose files a container shows to everybody: volumes of type
// configMap and downwardAPI, recognised by the kubelet's folders for them
// (pods/UID/volumes/PLUGIN/NAME). It leaves out Secrets, tokens, and volumes that a container may
// have written to.
func (r *Runtime) publicVolumes(c *container) []demoserver.VolumeMount {
	var volumes []demoserver.VolumeMount
	for _, m := range c.config.GetMounts() {
		parts := strings.Split(r.podRelativePath(c.sandbox, m.GetHostPath()), "/")
		if len(parts) > 4 && parts[2] == "volumes" && (parts[3] == "kubernetes.io~configmap" ||
			parts[3] == "kubernetes.io~downward-api") {
			volumes = append(volumes, demoserver.VolumeMount{Path: m.GetContainerPath(), Host: m.GetHostPath()})
		}
	}
	return volumes
}

// podRelativePath returns a host path relative to the state directory if it is in the pod's own
// folder there, and "" otherwise: a hostPath volume can name any path of the machine, that of
// another pod's volumes too.
func (r *Runtime) podRelativePath(s *sandbox, hostPath string) string {
	uid := s.config.GetMetadata().GetUid()
	relative, err := filepath.Rel(filepath.Join(r.options.StateDirectory, "pods", uid), hostPath)
	if err != nil || uid == "" || !filepath.IsLocal(relative) {
		return ""
	}
	return filepath.Join("pods", uid, relative)
}

const (
	hiddenSecret = "(from a Secret)"
	hiddenFile   = "(from a file)"
)

// variableReference matches a reference to another variable in a variable's value. It also matches
// an escaped one, $$(X): it is safer to hide a value too many.
var variableReference = regexp.MustCompile(`\$\(([^)]*)\)`)

// shownVariables returns the variables that the spec declares, with the values that the kubelet
// resolved (makeEnvironmentVariables in pkg/kubelet). Whoever reaches the port reads them, so
// values that come from a Secret, directly or by reference, are hidden.
func (c containerSpec) shownVariables(envs []*runtimeapi.KeyValue) map[string]string {
	values := map[string]string{}
	for _, e := range envs {
		values[e.GetKey()] = string(e.GetValue())
	}
	hidden := c.hiddenVariables()
	shown := map[string]string{}
	for name, value := range values {
		hiddenReason, declared := hidden[name]
		if !declared {
			if len(c.container.EnvFrom) == 0 || isServiceVariable(name, values) {
				continue
			}
			hiddenReason = c.hiddenByEnvFrom(name)
		}
		if hiddenReason == "" {
			hiddenReason = demoserver.Shorten(value)
		}
		shown[name] = hiddenReason
	}
	return shown
}

// hiddenVariables returns, for each variable of the container's env, the text that is shown
// instead of its value; "" if the value may be shown.
func (c containerSpec) hiddenVariables() map[string]string {
	hidden := map[string]string{}
	for _, e := range c.container.Env {
		hiddenReason := ""
		switch from := e.ValueFrom; {
		case from == nil:
		case from.SecretKeyRef != nil:
			hiddenReason = hiddenSecret
		case from.FileKeyRef != nil:
			hiddenReason = hiddenFile
		case from.ConfigMapKeyRef != nil:
			hiddenReason = c.hiddenByEnvFrom(e.Name) // Its value stays if this optional key is missing.
		}
		for _, match := range variableReference.FindAllStringSubmatch(e.Value, -1) {
			other, declared := hidden[match[1]]
			if !declared {
				other = c.hiddenByEnvFrom(match[1])
			}
			if other != "" {
				hiddenReason = other
			}
		}
		// Of several variables with one name, a single hidden one hides all.
		if hidden[e.Name] == "" {
			hidden[e.Name] = hiddenReason
		}
	}
	return hidden
}

// hiddenByEnvFrom returns the text that is shown instead of a variable's value, if the variable may
// come from a Secret by envFrom. The prefix alone says which sources it may come from.
func (c containerSpec) hiddenByEnvFrom(name string) string {
	for _, from := range c.container.EnvFrom {
		if from.SecretRef != nil && strings.HasPrefix(name, from.Prefix) {
			return hiddenSecret
		}
	}
	return ""
}

// isServiceVariable reports whether a variable is one of those that every container gets for
// Services: KUBERNETES_* and the service links. A Service is recognised by its NAME_SERVICE_HOST;
// pkg/kubelet/envvars has the names of its other variables.
func isServiceVariable(name string, env map[string]string) bool {
	for other := range env {
		service, found := strings.CutSuffix(other, "_SERVICE_HOST")
		if found && (strings.HasPrefix(name, service+"_SERVICE_") || name == service+"_PORT" ||
			strings.HasPrefix(name, service+"_PORT_")) {
			return true
		}
	}
	return false
}
