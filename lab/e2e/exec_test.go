package e2e

// What a simulated node answers beyond the ports that its pods list: kubectl exec, port-forward
// and cp, and a refusal of attach; probes and lifecycle hooks; and who may ask its kubelet.

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/ccmlab/ccmlab/lab/status"
)

func TestSimulatedContainers(t *testing.T) {
	f := newFixture(t)
	f.lab("up")
	out, err := f.kubectlWith(execManifest, "apply", "-f", "-")
	require.NoError(t, err, out)
	out, err = f.kubectlWith(
		"", "wait", "--for=condition=Ready", "pod/box", "pod/unlisted", "pod/hooked", "--timeout=60s",
	)
	require.NoError(t, err, out)

	t.Run("exec runs three commands, and others are refused", f.answersKubectl)
	t.Run("exec probes and hooks succeed, and one Event says that nothing was run", f.nothingRun)
	t.Run("probed ports that are not listed answer", f.unlistedPorts)
	t.Run("port-forward reaches the pod", f.portForward)
	t.Run("hooks ask containers", f.hooks)
	t.Run("a command ends a container, which is started again", f.exitEndsContainer)
	t.Run("the kubelet's port answers the API server alone", f.kubeletIsGuarded)
	t.Run("a node listens nowhere but on loopback", f.nodesListenOnLoopback)
	t.Run("containers fail, recover and end", f.containersEnd)
	t.Run("a node says what it is, and what happens to it", f.nodesTell)
}

const execManifest = `
apiVersion: v1
kind: ConfigMap
metadata: {name: app}
data: {greeting: "good day"}
---
apiVersion: v1
kind: Pod
metadata: {name: box}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: any/name:at-all
    ports: [{containerPort: 18080}]
    env: [{name: GREETING, valueFrom: {configMapKeyRef: {name: app, key: greeting}}}]
    volumeMounts:
    - {name: app, mountPath: /etc/key, subPath: greeting}
    - {name: data, mountPath: /part, subPath: deep/part}
    readinessProbe: {exec: {command: [cat, /tmp/healthy]}, periodSeconds: 1}
    livenessProbe: {exec: {command: [sh, -c, "exit 1"]}, periodSeconds: 1, failureThreshold: 1}
  volumes: [{name: app, configMap: {name: app}}, {name: data, emptyDir: {}}]
---
apiVersion: v1
kind: Pod
metadata: {name: unlisted}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: unlisted
    startupProbe: {tcpSocket: {port: 18090}, periodSeconds: 1}
    livenessProbe: {grpc: {port: 18091, service: liveness}, periodSeconds: 1}
    readinessProbe: {httpGet: {port: 18092, path: /healthz}, periodSeconds: 1}
---
apiVersion: v1
kind: Pod
metadata: {name: hooked}
spec:
  terminationGracePeriodSeconds: 120
  containers:
  - name: main
    image: hooked
    ports: [{containerPort: 18080}]
    lifecycle:
      postStart: {httpGet: {port: 18080, path: /welcome}}
      preStop: {exec: {command: [sleep, infinity]}}
  - name: asks
    image: hooked
    lifecycle: {preStop: {httpGet: {port: 18080, path: /goodbye}}}
`

// kubectlWith runs the lab's own kubectl, as the operator.
func (f *fixture) kubectlWith(stdin string, args ...string) (string, error) {
	cmd := f.command("kube/kubectl", append([]string{"--kubeconfig", f.dir("kubeconfig", "operator.yaml")}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (f *fixture) pod(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	pod, err := f.kube("operator").CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	return pod
}

// realised is where a pod's port is served.
func realised(pod *corev1.Pod, port int) string {
	return fmt.Sprintf("http://127%s:%d", strings.TrimPrefix(pod.Status.PodIP, "10"), port)
}

// answersKubectl has kubectl run what a simulated container can do, and what it refuses with what to do instead.
func (f *fixture) answersKubectl(t *testing.T) {
	for _, c := range []struct {
		argv []string
		code int
		want string
	}{
		{[]string{"exec", "-i", "box", "--", "hostname"}, 0, "box\n"},
		{[]string{"exec", "-i", "box", "--", "env"}, 0, "GREETING=good day\n"},
		{[]string{"exec", "-i", "box", "--", "sh"}, 127, "sh: not run: this container is simulated"},
		{[]string{"exec", "-i", "box", "--", "cat", "/etc/key"}, 127, "answers with the files of its ConfigMaps"},
		{[]string{"exec", "-i", "box", "--", "exit", "300"}, 2, "a number from 0 to 255 is needed"},
		{[]string{"exec", "-it", "box", "--", "sh"}, 127, "kubectl exec runs env, hostname"},
		{[]string{"attach", "box"}, 1, "kubectl logs -f --tail=0 does the same"},
		{[]string{"cp", "box:/etc/key", filepath.Join(t.TempDir(), "greeting")}, 127, "sh and kubectl cp do not work"},
	} {
		out, err := f.in(t).kubectlWith("", c.argv...)
		assert.Contains(t, out, c.want, "%q", c.argv)
		var exit *exec.ExitError
		if c.code != 0 && assert.ErrorAs(t, err, &exit, "%q", c.argv) {
			assert.Equal(t, c.code, exit.ExitCode(), "%q: %s", c.argv, out)
		} else if c.code == 0 {
			assert.NoError(t, err, "%q", c.argv)
		}
	}
}

func (f *fixture) nothingRun(t *testing.T) {
	f = f.in(t)
	f.awaitEvent("Pod", "box", "ExecNotRun", "Exec probes and exec hooks of container main succeed, but run nothing")
	events, err := f.kube("operator").CoreV1().Events("default").List(t.Context(), metav1.ListOptions{
		FieldSelector: "reason=ExecNotRun,involvedObject.name=box",
	})
	require.NoError(t, err)
	require.Len(t, events.Items, 1)
	assert.Equal(t, int32(1), events.Items[0].Count)
	assert.Zero(t, f.pod(t, "box").Status.ContainerStatuses[0].RestartCount)
}

func (f *fixture) unlistedPorts(t *testing.T) {
	pod := f.in(t).pod(t, "unlisted")
	answer, err := fetch(realised(pod, 18092))
	require.NoError(t, err)
	assert.Contains(t, answer, "Hello from pod unlisted")
	assert.Zero(t, pod.Status.ContainerStatuses[0].RestartCount)
}

func (f *fixture) awaitEvent(kind, name, reason, message string) {
	f.t.Helper()
	f.await(fmt.Sprintf("event %s of %s %s", reason, kind, name), func(ctx context.Context) error {
		events, err := f.kube("operator").CoreV1().Events("default").List(ctx, metav1.ListOptions{
			FieldSelector: "involvedObject.kind=" + kind + ",involvedObject.name=" + name})
		if err != nil {
			return err
		}
		var seen []string
		for _, e := range events.Items {
			if e.Reason == reason && strings.Contains(e.Message, message) {
				return nil
			}
			seen = append(seen, e.Reason+" "+e.Message)
		}
		return fmt.Errorf("there are %q", seen)
	})
}

// output is a command's, while it runs.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) contains(text string) func(context.Context) error {
	return func(context.Context) error {
		o.mu.Lock()
		defer o.mu.Unlock()
		if !strings.Contains(o.text.String(), text) {
			return fmt.Errorf("the output is %q", o.text.String())
		}
		return nil
	}
}

// beside runs kubectl until the test ends, or it does.
func (f *fixture) kubectlBeside(args ...string) *output {
	f.t.Helper()
	cmd := f.command("kube/kubectl", append([]string{"--kubeconfig", f.dir("kubeconfig", "operator.yaml")}, args...)...)
	out := &output{}
	cmd.Stdout, cmd.Stderr = out, out
	require.NoError(f.t, cmd.Start())
	f.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return out
}

func (f *fixture) portForward(t *testing.T) {
	f = f.in(t)
	out := f.kubectlBeside("port-forward", "--address=127.0.0.1", "pod/box", ":18080", ":18099")
	forwarded := regexp.MustCompile(`127\.0\.0\.1:(\d+) -> (\d+)`)
	var local map[string]string
	f.await("both ports to be forwarded", func(context.Context) error {
		out.mu.Lock()
		defer out.mu.Unlock()
		local = map[string]string{}
		for _, match := range forwarded.FindAllStringSubmatch(out.text.String(), -1) {
			local[match[2]] = match[1]
		}
		if len(local) != 2 {
			return fmt.Errorf("the output is %q", out.text.String())
		}
		return nil
	})
	for range 3 {
		answer, err := fetch("http://127.0.0.1:" + local["18080"])
		require.NoError(t, err)
		assert.Contains(t, answer, "Hello from pod box")
	}
	_, err := fetch("http://127.0.0.1:" + local["18099"])
	assert.Error(t, err)
	f.await("kubectl to say that nobody listens", out.contains("nothing answers port 18099 of the pod"))
}

func (f *fixture) hooks(t *testing.T) {
	f = f.in(t)
	log := f.kubectlBeside("logs", "-f", "hooked", "-c", "main")
	f.await("postStart to ask the container", log.contains("GET /welcome from"))
	out, err := f.kubectlWith("", "delete", "pod", "hooked", "--wait=false")
	require.NoError(t, err, out)
	f.await("pod hooked to be gone, whatever its preStop says", func(ctx context.Context) error {
		_, err := f.kube("operator").CoreV1().Pods("default").Get(ctx, "hooked", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(errors.New("it is still there"), err)
	})
	f.awaitEvent("Pod", "hooked", "ExecNotRun", `"sleep infinity" was the first`)
}

func (f *fixture) exitEndsContainer(t *testing.T) {
	f = f.in(t)
	out, err := f.kubectlWith("", "exec", "box", "--", "exit", "3")
	require.NoError(t, err, out)
	assert.Equal(t, "container main exits with code 3\n", out)
	f.await("the container to run again", func(ctx context.Context) error {
		pod, err := f.kube("operator").CoreV1().Pods("default").Get(ctx, "box", metav1.GetOptions{})
		if err != nil {
			return err
		}
		status := pod.Status.ContainerStatuses[0]
		if status.State.Running == nil || status.RestartCount != 1 ||
			status.LastTerminationState.Terminated.ExitCode != 3 {
			return fmt.Errorf("it is %+v", status)
		}
		return nil
	})
}

// kubeletIsGuarded asks node-1's kubelet as everyone who has a certificate of the
// lab's, and as nobody.
func (f *fixture) kubeletIsGuarded(t *testing.T) {
	f = f.in(t)
	node, err := f.kube("operator").CoreV1().Nodes().Get(t.Context(), "node-1", metav1.GetOptions{})
	require.NoError(t, err)
	require.NotEmpty(t, node.Status.Addresses)
	i := slices.IndexFunc(node.Status.Addresses, func(a corev1.NodeAddress) bool {
		return a.Type == corev1.NodeInternalIP
	})
	require.GreaterOrEqual(t, i, 0)
	address := net.JoinHostPort(
		node.Status.Addresses[i].Address, strconv.Itoa(int(node.Status.DaemonEndpoints.KubeletEndpoint.Port)),
	)

	paths := []string{
		"/pods", "/exec/default/box/main?command=env&output=1", "/run/default/box/main", "/metrics", "/logs/",
		"/containerLogs/default/box/main", "/configz", "/debug/pprof/",
	}
	for user, want := range map[string]int{
		"": http.StatusUnauthorized, "ccm": http.StatusForbidden, "node-node-2": http.StatusForbidden,
		"observer": http.StatusForbidden,
	} {
		for _, path := range paths {
			assert.Equal(t, want, f.askKubelet(address, user, path), "%q asks for %s", user, path)
		}
	}
	assert.Equal(t, http.StatusOK, f.askKubelet(address, "kube-apiserver-kubelet-client", "/pods"))
	assert.Equal(t, http.StatusOK, f.askKubelet(address, "kube-apiserver-kubelet-client", "/metrics"))

	// All of the above verified the serving certificate for the address. Old TLS
	// is refused whatever the certificate.
	_, err = tls.Dial(
		"tcp", address,
		&tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11},
	)
	assert.ErrorContains(t, err, "protocol version")
}

// askKubelet returns the status of a GET with a user's certificate, or with none.
func (f *fixture) askKubelet(address, user, path string) int {
	f.t.Helper()
	credentials := user
	if user == "" {
		credentials = "operator"
	}
	config, err := clientcmd.BuildConfigFromFlags("", f.dir("kubeconfig", credentials+".yaml"))
	require.NoError(f.t, err)
	if user == "" {
		config = rest.AnonymousClientConfig(config)
	}
	client, err := rest.HTTPClientFor(config)
	require.NoError(f.t, err)
	client.Timeout = bound
	resp, err := client.Get("https://" + address + path)
	require.NoError(f.t, err, "%q asks for %s", user, path)
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.Copy(io.Discard, resp.Body)
	client.CloseIdleConnections()
	return resp.StatusCode
}

func (f *fixture) nodesListenOnLoopback(t *testing.T) {
	owned := map[string]string{}
	for _, c := range f.in(t).status().Components {
		if !strings.HasPrefix(c.Name, "node/") {
			continue
		}
		descriptors, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", c.PID))
		require.NoError(t, err)
		for _, fd := range descriptors {
			target, _ := os.Readlink(fd)
			if inode, ok := strings.CutPrefix(target, "socket:["); ok {
				owned[strings.TrimSuffix(inode, "]")] = c.Name
			}
		}
	}
	const listening, unconnected = "0A", "07"
	found := 0
	for _, file := range []string{"tcp", "tcp6", "udp", "udp6"} {
		table, err := os.ReadFile("/proc/net/" + file)
		if errors.Is(err, os.ErrNotExist) { // no IPv6
			continue
		}
		require.NoError(t, err)
		for lines := bufio.NewScanner(bytes.NewReader(table)); lines.Scan(); {
			fields := strings.Fields(lines.Text())
			if len(fields) < 10 || owned[fields[9]] == "" || fields[3] != listening && fields[3] != unconnected {
				continue
			}
			found++
			address := kernelAddress(t, fields[1])
			assert.True(t, address.IsLoopback(), "%s listens on %s %s", owned[fields[9]], file, address)
		}
	}
	assert.GreaterOrEqual(t, found, 3, "the kubelets at least")
}

// kernelAddress reads the address of /proc/net/tcp: each 32 bits in the byte order
// of the machine, which is little-endian where this runs.
func kernelAddress(t *testing.T, text string) netip.Addr {
	t.Helper()
	text, _, _ = strings.Cut(text, ":")
	octets, err := hex.DecodeString(text)
	require.NoError(t, err)
	for word := range slices.Chunk(octets, 4) {
		slices.Reverse(word)
	}
	address, ok := netip.AddrFromSlice(octets)
	require.True(t, ok, text)
	return address.Unmap()
}

func (f *fixture) nodesTell(t *testing.T) {
	f = f.in(t)
	out, err := f.kubectlWith("", "get", "node", "node-1", "-o", "wide")
	require.NoError(t, err, out)
	assert.Regexp(t, `v1\.\d+\.\d+ .* CCM Lab simulated node +simulated \S+ +simulated://`, out)
	for _, reason := range []string{"Starting", "NodeReady", "NodeHasSufficientMemory"} {
		f.awaitEvent("Node", "node-1", reason, "")
	}
	f.cloud("instances", "stop", "node-3")
	f.eventually("node-3 to be NotReady", func(st status.Status) bool { return !nodeNamed(st, "node-3").Ready })
	f.cloud("instances", "start", "node-3")
	f.awaitEvent("Node", "node-3", "Rebooted", "has been rebooted")
}
