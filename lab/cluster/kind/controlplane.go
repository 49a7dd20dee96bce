package kind

// The control plane, made by kind. What differs from kind's own clusters: the
// kubelet and kube-controller-manager leave nodes to a cloud controller
// manager, no provider ID is preset (it could never be changed), and, with the
// cloud's routes as pod network, containerd writes the CNI configuration by
// itself, so that no daemon is needed.

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"sigs.k8s.io/kind/pkg/apis/config/v1alpha4"
	kindcluster "sigs.k8s.io/kind/pkg/cluster"
	kindlog "sigs.k8s.io/kind/pkg/log"

	"github.com/ccmlab/ccmlab/fakecloud/dns"
	"github.com/ccmlab/ccmlab/lab/apply"
	"github.com/ccmlab/ccmlab/lab/atomicfile"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/cluster/kubeaccess"
	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/manifests"
)

// cniTemplate is rendered by containerd as soon as the kubelet knows the
// node's pod range. Packets to other nodes' pods take the node's own routes.
const cniTemplate = `{
  "cniVersion": "1.0.0",
  "name": "ccmlab",
  "plugins": [
    {
      "type": "ptp",
      "ipMasq": false,
      "ipam": {
        "type": "host-local",
        "dataDir": "/run/cni-ipam-state",
        "ranges": [[{"subnet": "{{.PodCIDR}}"}]],
        "routes": [{"dst": "0.0.0.0/0"}]
      }
    },
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
`

const cniTemplatePath = "/etc/ccmlab/cni.template"

// capSysResource is the number of CAP_SYS_RESOURCE (capability.h).
const capSysResource = 24

// StartControlPlane returns when the API server answers and has the lab's
// manifests.
func (c *Cluster) StartControlPlane(ctx context.Context, note func(string)) error {
	if err := c.ensureControlPlane(ctx, note); err != nil {
		return err
	}
	note("applying the lab's manifests")
	if err := cluster.Poll(ctx, "the API server to accept the lab's manifests", func(ctx context.Context) error {
		return apply.Manifests(ctx, c.Kubeconfig(), manifests.Lab, manifests.CCM)
	}); err != nil {
		return err
	}
	return kubeaccess.ServiceAccount(ctx, c.Kubeconfig(), observerAccount, c.observerKubeconfig())
}

func (c *Cluster) ensureControlPlane(ctx context.Context, note func(string)) error {
	found, err := c.engine.inspectContainers(ctx, c.controlPlaneContainer())
	if err != nil {
		return err
	}
	switch _, err := os.Stat(c.createdMark()); {
	case errors.Is(err, fs.ErrNotExist): // Not there, or half-way: kind cannot go on from there.
		if err := c.deleteNodes(); err != nil {
			return err
		}
		if err := c.createControlPlane(ctx, note); err != nil {
			return err
		}
	case err != nil:
		return err
	case len(found) == 0:
		return c.diagnoseExit()
	case !found[0].State.Running:
		note("starting its container")
		if _, err := c.engine.run(ctx, "start", c.controlPlaneContainer()); err != nil {
			return err
		}
	}
	client, err := c.Operator()
	if err != nil {
		return err
	}
	note("waiting for kube-apiserver")
	return cluster.Poll(ctx, "kube-apiserver to be ready", func(ctx context.Context) error {
		return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

// diagnoseExit is what to say when the cluster's one control plane is no more.
func (c *Cluster) diagnoseExit() error {
	return fmt.Errorf(
		"the control plane's container %s is gone, and the cluster with it; `lab down --name %s`, then `lab up` makes another",
		c.controlPlaneContainer(), c.lab.Name,
	)
}

// createdMark is there once kind has made the control plane.
func (c *Cluster) createdMark() string { return c.lab.Path("control-plane.created") }

// createControlPlane runs kind. kind cannot be interrupted: when ctx ends, the
// containers that it works on are deleted, so that it fails.
func (c *Cluster) createControlPlane(ctx context.Context, note func(string)) error {
	cfg, err := c.clusterConfig(ctx)
	if err != nil {
		return err
	}
	log := &logger{note: note}
	provider, err := c.kindProvider(kindcluster.ProviderWithLogger(log))
	if err != nil {
		return err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = provider.Create(c.name(), kindcluster.CreateWithV1Alpha4Config(cfg), kindcluster.CreateWithRetain(true),
			kindcluster.CreateWithKubeconfigPath(c.Kubeconfig()), kindcluster.CreateWithDisplayUsage(false),
			kindcluster.CreateWithDisplaySalutation(false))
	}()
	select {
	case <-done:
	case <-ctx.Done():
		return errors.Join(context.Cause(ctx), c.takeAway(done))
	}
	if err != nil {
		return c.explainCreateError(ctx, err, log)
	}
	subnet, err := c.parseSubnet()
	if err != nil {
		return err
	}
	script := strings.NewReader(reserveScript + nameScript)
	if _, err := c.engine.execIn(
		ctx, c.controlPlaneContainer(), script, "sh", "-s", dns.Domain, cloudAddress(subnet).String(),
	); err != nil {
		return err
	}
	if err := c.loadImages(ctx, c.controlPlaneContainer()); err != nil {
		return err
	}
	return atomicfile.Write(c.createdMark(), nil)
}

// reserveScript makes the control plane's Node what it is in a cluster with
// workers. kind, which knows of none, has opened it to every pod and balancer.
const reserveScript = `set -eu
export KUBECONFIG=/etc/kubernetes/admin.conf
kubectl taint node "$(hostname)" node-role.kubernetes.io/control-plane=:NoSchedule --overwrite
kubectl label node "$(hostname)" node.kubernetes.io/exclude-from-external-load-balancers= --overwrite
`

// nameScript has CoreDNS ask the cloud ($2) for the names of its balancers' addresses, which are of the domain $1.
const nameScript = `corefile=$(mktemp)
kubectl --namespace kube-system get configmap coredns --output 'jsonpath={.data.Corefile}' > "$corefile"
grep --quiet "^$1:53 " "$corefile" ||
    printf '%s:53 {\n    errors\n    cache 30\n    forward . %s\n}\n' "$1" "$2" >> "$corefile"
kubectl --namespace kube-system create configmap coredns --from-file "Corefile=$corefile" --dry-run=client \
    --output yaml | kubectl apply --filename - 2>/dev/null
rm "$corefile"
`

const (
	takeAwayEvery = 200 * time.Millisecond
	takeAwayBound = 2 * time.Minute
)

// takeAway deletes what kind works on until kind has given up, and once more.
func (c *Cluster) takeAway(done <-chan struct{}) error {
	tick, bound := time.NewTicker(takeAwayEvery), time.After(takeAwayBound)
	defer tick.Stop()
	for finished := false; ; {
		err := c.deleteNodes()
		if finished {
			return err
		}
		select {
		case <-done:
			finished = true
		case <-tick.C:
		case <-bound:
			return errors.Join(errors.New("kind does not give up; `lab down` removes what it has made"), err)
		}
	}
}

// kindProvider is kind, told which engine and network to use: it takes these from
// the environment only.
func (c *Cluster) kindProvider(options ...kindcluster.ProviderOption) (*kindcluster.Provider, error) {
	env := map[string]string{
		"KIND_EXPERIMENTAL_DOCKER_NETWORK": c.name(),
		"KIND_EXPERIMENTAL_PODMAN_NETWORK": c.name(),
	}
	if c.engine.host != "" {
		env[hostVariables[c.engine.name]] = c.engine.host
	}
	errs := []error{os.Unsetenv(contextVariable)}
	for name, value := range env {
		errs = append(errs, os.Setenv(name, value))
	}
	option := kindcluster.ProviderWithDocker()
	if c.engine.name == "podman" {
		option = kindcluster.ProviderWithPodman()
	}
	return kindcluster.NewProvider(append(options, option)...), errors.Join(errs...)
}

// explainCreateError adds to kind's error the last log lines, and what this machine may
// lack.
func (c *Cluster) explainCreateError(ctx context.Context, err error, log *logger) error {
	err = fmt.Errorf("kind: %w\n%s", err, process.LastLines(strings.Join(log.said, "\n"), 15))
	said, _ := c.engine.command(context.WithoutCancel(ctx), "logs", "--tail", "15", c.controlPlaneContainer()).
		CombinedOutput()
	err = fmt.Errorf("%w\nlast lines of its container:\n%s", err, said)
	switch text := err.Error(); {
	case strings.Contains(text, "too many open files") || strings.Contains(text, "inotify"):
		err = fmt.Errorf(
			"%w\nThe kernel's inotify limits are used up: sudo sysctl fs.inotify.max_user_instances=1024 fs.inotify.max_user_watches=524288",
			err,
		)
	case strings.Contains(text, "unable to apply caps"):
		err = fmt.Errorf(
			"%w\nThis machine's capability set is cut (CAP_SYS_RESOURCE), and the engine's runtime asks for all of it: scripts/docker-engine starts an engine that does not",
			err,
		)
	}
	return err
}

// clusterConfig is the cluster as kind is told of it, on this machine.
func (c *Cluster) clusterConfig(ctx context.Context) (*v1alpha4.Cluster, error) {
	v1, err := c.cgroupV1(ctx)
	if err != nil {
		return nil, err
	}
	cut, err := capabilityCut()
	if err != nil {
		return nil, err
	}
	return c.configFor(v1, cut)
}

func (c *Cluster) configFor(cgroupV1, capabilityCut bool) (*v1alpha4.Cluster, error) {
	kubelet := "kind: KubeletConfiguration\nnodeStatusUpdateFrequency: 2s\nnodeLeaseDurationSeconds: 8\n"
	if cgroupV1 {
		// From 1.35 on a kubelet refuses cgroup v1 unless told otherwise.
		kubelet += "failCgroupV1: false\n"
	}
	node := v1alpha4.Node{Role: v1alpha4.ControlPlaneRole, Image: c.lab.Kind.Image}
	var containerd []string
	if c.usesCloudRoutes() {
		file := c.lab.Path("cni.template")
		if err := atomicfile.Write(file, []byte(cniTemplate)); err != nil {
			return nil, err
		}
		node.ExtraMounts = []v1alpha4.Mount{{HostPath: file, ContainerPath: cniTemplatePath, Readonly: true}}
		containerd = append(
			containerd, `[plugins."io.containerd.cri.v1.runtime".cni]`+"\n  conf_template = \""+cniTemplatePath+"\"\n",
		)
	}
	if capabilityCut {
		containerd = append(
			containerd, `[plugins."io.containerd.cri.v1.runtime"]`+"\n  restrict_oom_score_adj = true\n",
		)
	}
	return &v1alpha4.Cluster{
		Name: c.name(), Nodes: []v1alpha4.Node{node},
		Networking: v1alpha4.Networking{
			IPFamily: v1alpha4.IPv4Family, PodSubnet: podSubnet, DisableDefaultCNI: c.usesCloudRoutes(),
		},
		KubeadmConfigPatches:    []string{kubelet},
		ContainerdConfigPatches: containerd,
		KubeadmConfigPatchesJSON6902: []v1alpha4.PatchJSON6902{
			{Group: "kubeadm.k8s.io", Version: "v1beta4", Kind: "ClusterConfiguration", Patch: controllerManagerPatch},
			{Group: "kubeadm.k8s.io", Version: "v1beta4", Kind: "InitConfiguration", Patch: kubeletPatch},
		},
	}, nil
}

// controllerManagerPatch sets short grace times, so that a stopped machine shows within
// seconds.
const controllerManagerPatch = `
- op: add
  path: /controllerManager/extraArgs/-
  value: {name: cloud-provider, value: external}
- op: add
  path: /controllerManager/extraArgs/-
  value: {name: node-monitor-period, value: 1s}
- op: add
  path: /controllerManager/extraArgs/-
  value: {name: node-monitor-grace-period, value: 12s}
`

// kubeletPatch removes the provider ID that kind sets. The index of that argument
// depends on kind's template; the patch's test operation fails if it changes.
const kubeletPatch = `
- op: add
  path: /nodeRegistration/kubeletExtraArgs/-
  value: {name: cloud-provider, value: external}
- op: test
  path: /nodeRegistration/kubeletExtraArgs/1/name
  value: provider-id
- op: remove
  path: /nodeRegistration/kubeletExtraArgs/1
`

func (c *Cluster) cgroupV1(ctx context.Context) (bool, error) {
	format := "{{.CgroupVersion}}"
	if c.engine.name == "podman" {
		format = "{{.Host.CgroupsVersion}}"
	}
	version, err := c.engine.run(ctx, "info", "--format", format)
	return strings.TrimPrefix(version, "v") == "1", err
}

// capabilityCut tells whether this machine's bounding set lacks
// CAP_SYS_RESOURCE, as some virtual machines' does. Then containerd must not
// ask for less of the OOM killer than it has itself.
func capabilityCut() (bool, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, "CapBnd:"); ok {
			set, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
			return set&(1<<capSysResource) == 0, err
		}
	}
	return false, nil
}

// logger shows kind's progress as that of the current step, and records kind's messages
// in case it fails.
type logger struct {
	note func(string)
	mu   sync.Mutex
	said []string
}

func (l *logger) add(message string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.said = append(l.said, strings.TrimSpace(message))
}

func (l *logger) Warn(message string)               { l.add(message) }
func (l *logger) Warnf(format string, args ...any)  { l.add(fmt.Sprintf(format, args...)) }
func (l *logger) Error(message string)              { l.add(message) }
func (l *logger) Errorf(format string, args ...any) { l.add(fmt.Sprintf(format, args...)) }
func (l *logger) V(level kindlog.Level) kindlog.InfoLogger {
	return infoLogger{logger: l, level: level}
}

// infoLogger shows messages of level 0, which are kind's steps.
type infoLogger struct {
	*logger
	level kindlog.Level
}

func (l infoLogger) Enabled() bool { return true }
func (l infoLogger) Info(message string) {
	l.add(message)
	if text := strings.Trim(message, " •✓✗.\n"); l.level == 0 && text != "" {
		l.note("kind: " + text)
	}
}
func (l infoLogger) Infof(format string, args ...any) { l.Info(fmt.Sprintf(format, args...)) }
