package runtime

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/ccmlab/ccmlab/lab/demoserver"
)

// testOctet keeps the addresses of concurrent test runs apart, and away from labs, whose
// addresses are below 127.100.0.0.
var testOctet = byte(100 + os.Getpid()%100)

// testAddress replaces 78 in an address by this run's octet.
func testAddress(address string) string {
	return strings.ReplaceAll(address, ".78.", fmt.Sprintf(".%d.", testOctet))
}

var (
	_ internalapi.RuntimeService      = (*Runtime)(nil)
	_ internalapi.ImageManagerService = (*Runtime)(nil)
)

const (
	patience  = 10 * time.Second
	exited    = runtimeapi.ContainerState_CONTAINER_EXITED
	running   = runtimeapi.ContainerState_CONTAINER_RUNNING
	podPrefix = "10.78.%d.0/28"
)

// testNode is a runtime whose network is ready. Each test has a podCIDR of its own, so that tests
// can run in parallel.
type testNode struct {
	*Runtime
	t    *testing.T
	logs string
	// pods has those that startContainer has given ports, by their UIDs.
	pods map[string]*v1.Pod
}

func newTestNode(t *testing.T, subnet int, adjust ...func(*Options)) *testNode {
	t.Helper()
	t.Parallel()
	pods := map[string]*v1.Pod{}
	options := Options{
		Pod:         func(uid string) *v1.Pod { return pods[uid] },
		NodeName:    "node-1",
		NodeAddress: netip.AddrFrom4([4]byte{127, testOctet, byte(subnet), 200}),
		Zone:        func() string { return "nebula-1a" },
		Log:         slog.New(slog.DiscardHandler),
	}
	for _, change := range adjust {
		change(&options)
	}
	n := &testNode{Runtime: New(options), t: t, logs: t.TempDir(), pods: pods}
	n.mustSucceed(n.UpdateRuntimeConfig(t.Context(), networkConfig(testAddress(fmt.Sprintf(podPrefix, subnet)))))
	t.Cleanup(func() { _ = n.Close(context.Background()) })
	return n
}

func networkConfig(podCIDR string) *runtimeapi.RuntimeConfig {
	return &runtimeapi.RuntimeConfig{NetworkConfig: &runtimeapi.NetworkConfig{PodCidr: podCIDR}}
}

func (n *testNode) mustSucceed(err error) {
	n.t.Helper()
	require.NoError(n.t, err)
}

func podConfig(name, logs string) *runtimeapi.PodSandboxConfig {
	return &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "default", Uid: "uid-" + name},
		LogDirectory: logs,
	}
}

func (n *testNode) runSandbox(name string) (id, address string) {
	n.t.Helper()
	id, err := n.RunPodSandbox(n.t.Context(), podConfig(name, n.logs), "")
	n.mustSucceed(err)
	return id, n.sandboxAddress(id)
}

func (n *testNode) sandboxAddress(sandbox string) string {
	n.t.Helper()
	answer, err := n.PodSandboxStatus(n.t.Context(), sandbox, false)
	n.mustSucceed(err)
	return answer.GetStatus().GetNetwork().GetIp()
}

func podWithPorts(ports ...v1.ContainerPort) *v1.Pod {
	return &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "main", Ports: ports}}}}
}

// startContainer runs a container that declares the ports, as the kubelet would.
func (n *testNode) startContainer(sandbox, pod string, ports ...v1.ContainerPort) string {
	n.t.Helper()
	if len(ports) > 0 {
		n.pods["uid-"+pod] = podWithPorts(ports...)
	}
	id, err := n.CreateContainer(n.t.Context(), sandbox, &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "main"},
		Image:    &runtimeapi.ImageSpec{Image: "simulated://app:1", UserSpecifiedImage: "app:1"},
		LogPath:  filepath.Join(pod, "main", "0.log"),
	}, podConfig(pod, n.logs))
	n.mustSucceed(err)
	n.mustSucceed(n.StartContainer(n.t.Context(), id))
	return id
}

// startWeb runs the container of a pod "web", which serves HTTP at base.
func (n *testNode) startWeb() (sandbox, id, base string) {
	n.t.Helper()
	sandbox, address := n.runSandbox("web")
	id = n.startContainer(sandbox, "web", v1.ContainerPort{ContainerPort: 18080})
	return sandbox, id, "http://" + loopbackOf(address) + ":18080"
}

func (n *testNode) containerStatus(container string) *runtimeapi.ContainerStatus {
	n.t.Helper()
	answer, err := n.ContainerStatus(n.t.Context(), container, false)
	n.mustSucceed(err)
	return answer.GetStatus()
}

func (n *testNode) waitForExit(container string) *runtimeapi.ContainerStatus {
	n.t.Helper()
	n.mu.Lock()
	done := n.containers[container].exited
	n.mu.Unlock()
	select {
	case <-done:
	case <-time.After(patience):
		n.t.Fatal("the container did not exit")
	}
	return n.containerStatus(container)
}

// expectExited requires that a container has ended with this code.
func (n *testNode) expectExited(container string, code int32) {
	n.t.Helper()
	got := n.containerStatus(container)
	assert.Equal(n.t, exited, got.GetState())
	assert.Equal(n.t, code, got.GetExitCode())
}

// loopbackOf does not use podnet.ToLoopback, which is under test.
func loopbackOf(address string) string { return "127" + strings.TrimPrefix(address, "10") }

func mustGet(t *testing.T, url string, header ...string) (int, string) {
	t.Helper()
	return httpRequest(t, http.MethodGet, url, header...)
}

func httpRequest(t *testing.T, method, url string, header ...string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, url, nil)
	require.NoError(t, err)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(r)
	require.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(body)
}

func TestNetworkIsNotReadyBeforePodCIDR(t *testing.T) {
	t.Parallel()
	r := New(Options{Log: slog.New(slog.DiscardHandler)})
	networkReady := func() (bool, string) {
		answer, err := r.Status(t.Context(), false)
		require.NoError(t, err)
		for _, condition := range answer.GetStatus().GetConditions() {
			if condition.GetType() == runtimeapi.NetworkReady {
				return condition.GetStatus(), condition.GetMessage()
			}
		}
		t.Fatal("no network condition")
		return false, ""
	}
	ready, message := networkReady()
	assert.False(t, ready)
	assert.Contains(t, message, "podCIDR")
	_, err := r.RunPodSandbox(t.Context(), podConfig("early", ""), "")
	assert.Equal(t, codes.Unavailable, status.Code(err), "a sandbox without network")
	require.Error(t, r.UpdateRuntimeConfig(t.Context(), networkConfig("192.168.0.0/24")), "it cannot be realised")
	require.NoError(t, r.UpdateRuntimeConfig(t.Context(), networkConfig(testAddress("fd00::/64,10.78.250.0/25"))))
	ready, message = networkReady()
	assert.True(t, ready, message)
}

func TestPodAddressesAreReusedLast(t *testing.T) {
	n := newTestNode(t, 1)
	const usable = 16 - 3
	first, firstAddress := n.runSandbox("pod-0")
	assigned := map[string]bool{firstAddress: true}
	n.mustSucceed(n.StopPodSandbox(t.Context(), first))
	assert.Empty(t, n.sandboxAddress(first), "of a stopped sandbox")
	for i := 1; i <= usable; i++ {
		_, address := n.runSandbox(fmt.Sprintf("pod-%d", i))
		if i < usable {
			assert.NotContains(t, assigned, address, "sandbox %d: it was just freed or is in use", i)
		}
		assigned[address] = true
	}
	_, err := n.RunPodSandbox(t.Context(), podConfig("one-more", ""), "")
	assert.Equal(t, codes.ResourceExhausted, status.Code(err), "one sandbox too many")
	for _, reserved := range []string{testAddress("10.78.1.0"), testAddress("10.78.1.1"), testAddress("10.78.1.15")} {
		assert.NotContains(t, assigned, reserved)
	}
}

func TestContainerAnswersWithIdentity(t *testing.T) {
	n := newTestNode(t, 2)
	sandbox, address := n.runSandbox("web-abc")
	n.startContainer(
		sandbox, "web-abc", v1.ContainerPort{ContainerPort: 18080},
		v1.ContainerPort{ContainerPort: 5353, Protocol: "UDP"},
	)
	base := "http://" + loopbackOf(address) + ":18080"

	_, text := mustGet(t, base+"/any/path")
	assert.Equal(t, "Hello from pod web-abc ("+address+") on node-1 in zone nebula-1a\n", text)
	for _, request := range [][]string{{"/x?format=json"}, {"/x", "Accept", "application/json"}} {
		_, body := mustGet(t, base+request[0], request[1:]...)
		var got demoserver.Identity
		n.mustSucceed(json.Unmarshal([]byte(body), &got))
		got.Request.RemoteAddr, got.Request.Host = "", ""
		assert.Equal(t, demoserver.Identity{
			Pod: "web-abc", Namespace: "default", Node: "node-1", Zone: "nebula-1a", PodIP: address,
			Container: "main", Image: "app:1", Request: demoserver.RequestInfo{Method: "GET", Path: "/x"},
		}, got)
	}
}

func TestZoneIsReadPerRequest(t *testing.T) {
	zones := make(chan string, 2)
	zones <- ""
	zones <- "nebula-1b"
	n := newTestNode(t, 3, func(o *Options) { o.Zone = func() string { return <-zones } })
	_, _, base := n.startWeb()
	for _, want := range []string{"(no zone label yet)", "nebula-1b"} {
		_, body := mustGet(t, base)
		assert.Contains(t, body, "zone "+want)
	}
}

func TestContainerLogFormat(t *testing.T) {
	n := newTestNode(t, 4)
	_, id, base := n.startWeb()
	path := n.containerStatus(id).GetLogPath()
	mustGet(t, base+"/before")
	n.mustSucceed(os.Rename(path, path+".rotated"))
	n.mustSucceed(n.ReopenContainerLog(t.Context(), id))
	mustGet(t, base+"/after")

	format := regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z (stdout|stderr) F .+$`)
	for file, want := range map[string]string{
		path + ".rotated": "GET /before from 127.", path: "GET /after from 127.",
	} {
		content, err := os.ReadFile(file)
		n.mustSucceed(err)
		assert.Contains(t, string(content), want, file)
		for _, line := range strings.Split(strings.TrimSuffix(string(content), "\n"), "\n") {
			assert.Regexp(t, format, line, "CRI's format")
		}
	}
}

func TestBindFailureEndsContainer(t *testing.T) {
	n := newTestNode(t, 5)
	sandbox, address := n.runSandbox("web")
	taken, err := net.Listen("tcp4", loopbackOf(address)+":0")
	n.mustSucceed(err)
	defer taken.Close()
	number := taken.Addr().(*net.TCPAddr).AddrPort().Port()
	ports := []v1.ContainerPort{{ContainerPort: 18080}, {ContainerPort: int32(number)}}

	got := n.waitForExit(n.startContainer(sandbox, "web", ports...))
	assert.EqualValues(t, 1, got.GetExitCode())
	assert.Equal(t, reasonError, got.GetReason())
	assert.Contains(t, got.GetMessage(), "address already in use")
	// The ports that it had opened are free again for the restart.
	n.mustSucceed(taken.Close())
	assert.Equal(t, running, n.containerStatus(n.startContainer(sandbox, "web", ports...)).GetState())
}

func TestStopLetsRequestsFinish(t *testing.T) {
	n := newTestNode(t, 6)
	_, id, base := n.startWeb()
	answered := startSlowRequest(t, n, id, base+"/?delay=300ms")

	n.mustSucceed(n.StopContainer(t.Context(), id, int64(patience/time.Second)))
	assert.NoError(t, <-answered, "the request in progress")
	n.expectExited(id, 0)
	assert.Equal(t, reasonCompleted, n.containerStatus(id).GetReason())
	_, err := net.Dial("tcp4", strings.TrimPrefix(base, "http://"))
	assert.Error(t, err, "the port is still open")
}

func TestStopKillsAfterTheGracePeriod(t *testing.T) {
	n := newTestNode(t, 7)
	_, id, base := n.startWeb()
	answered := startSlowRequest(t, n, id, base+"/?delay=4m")

	n.mustSucceed(n.StopContainer(t.Context(), id, 1))
	assert.EqualValues(t, exitCodeKilled, n.containerStatus(id).GetExitCode())
	assert.Error(t, <-answered, "a request outlived the container that was killed")
}

// startSlowRequest sends a request, and returns once the container has logged it.
func startSlowRequest(t *testing.T, n *testNode, container, url string) <-chan error {
	t.Helper()
	answered := make(chan error, 1)
	go func() {
		response, err := http.Get(url)
		if err == nil {
			_, err = io.ReadAll(response.Body)
			response.Body.Close()
		}
		answered <- err
	}()
	path := n.containerStatus(container).GetLogPath()
	require.Eventually(t, func() bool {
		content, _ := os.ReadFile(path)
		return strings.Contains(string(content), "GET /?delay=")
	}, patience, 5*time.Millisecond, "the request did not arrive")
	return answered
}

func TestExitRequestEndsContainer(t *testing.T) {
	n := newTestNode(t, 8)
	sandbox, id, base := n.startWeb()
	code, _ := httpRequest(t, http.MethodPost, base+"/exit?code=300")
	assert.Equal(t, http.StatusBadRequest, code)
	httpRequest(t, http.MethodPost, base+"/exit?code=3")
	got := n.waitForExit(id)
	assert.EqualValues(t, 3, got.GetExitCode())
	assert.GreaterOrEqual(t, got.GetFinishedAt(), got.GetStartedAt())
	n.startContainer(sandbox, "web", v1.ContainerPort{ContainerPort: 18080})
	code, _ = mustGet(t, base)
	assert.Equal(t, http.StatusOK, code, "the restarted container")
}

func TestInitContainersAndJobsEndAtOnce(t *testing.T) {
	always := v1.ContainerRestartPolicyAlways
	ofJob := metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{Kind: "Job", Controller: new(true)}}}
	served := podWithPorts(v1.ContainerPort{ContainerPort: 18080})
	served.ObjectMeta = ofJob
	n := newTestNode(t, 9, func(o *Options) {
		o.Pod = func(uid string) *v1.Pod {
			main := []v1.Container{{Name: "main"}}
			return map[string]*v1.Pod{
				"uid-init": {Spec: v1.PodSpec{InitContainers: main}},
				"uid-sidecar": {
					Spec: v1.PodSpec{InitContainers: []v1.Container{{Name: "main", RestartPolicy: &always}}},
				},
				"uid-plain":  {Spec: v1.PodSpec{Containers: main}},
				"uid-job":    {ObjectMeta: ofJob, Spec: v1.PodSpec{Containers: main}},
				"uid-served": served,
			}[uid]
		}
	})
	for _, pod := range []string{"init", "job"} {
		sandbox, _ := n.runSandbox(pod)
		assert.Zero(t, n.waitForExit(n.startContainer(sandbox, pod)).GetExitCode(), pod)
	}
	for _, pod := range []string{"sidecar", "plain", "served", "unknown"} {
		sandbox, _ := n.runSandbox(pod)
		id := n.startContainer(sandbox, pod)
		assert.Equal(t, running, n.containerStatus(id).GetState(), pod)
		n.mustSucceed(n.StopContainer(t.Context(), id, int64(patience/time.Second)))
		n.expectExited(id, 0)
	}
}

func TestRemovedSandboxFreesItsPort(t *testing.T) {
	n := newTestNode(t, 10)
	sandbox, address := n.runSandbox("web")
	id := n.startContainer(sandbox, "web", v1.ContainerPort{ContainerPort: 18080, HostPort: 18081})
	host := n.options.NodeAddress.String() + ":18081"
	_, body := mustGet(t, "http://"+host)
	assert.Contains(t, body, "pod web")
	n.mustSucceed(n.RemovePodSandbox(t.Context(), sandbox))
	_, err := n.ContainerStatus(t.Context(), id, false)
	assert.Equal(t, codes.NotFound, status.Code(err))
	for _, at := range []string{loopbackOf(address) + ":18080", host} {
		listener, err := net.Listen("tcp4", at)
		n.mustSucceed(err)
		listener.Close()
	}
	n.mustSucceed(n.StopPodSandbox(t.Context(), sandbox))
	n.mustSucceed(n.RemovePodSandbox(t.Context(), sandbox))
}

func TestCloseKillsContainers(t *testing.T) {
	n := newTestNode(t, 11)
	_, id, base := n.startWeb()
	n.mustSucceed(n.Close(t.Context()))
	assert.EqualValues(t, exitCodeKilled, n.containerStatus(id).GetExitCode())
	listener, err := net.Listen("tcp4", strings.TrimPrefix(base, "http://"))
	n.mustSucceed(err)
	listener.Close()
	_, err = n.RunPodSandbox(t.Context(), podConfig("late", ""), "")
	assert.Equal(t, codes.Unavailable, status.Code(err), "a sandbox after the end")
}

func TestImagesExistOncePulled(t *testing.T) {
	n := newTestNode(t, 12)
	spec := &runtimeapi.ImageSpec{Image: "app:1"}
	before, err := n.ImageStatus(t.Context(), spec, false)
	n.mustSucceed(err)
	assert.Nil(t, before.GetImage(), "nobody pulled it")
	id, err := n.PullImage(t.Context(), spec, nil, nil)
	n.mustSucceed(err)
	for _, name := range []string{"app:1", id} {
		after, err := n.ImageStatus(t.Context(), &runtimeapi.ImageSpec{Image: name}, false)
		n.mustSucceed(err)
		assert.Equal(t, id, after.GetImage().GetId(), name)
	}
	n.mustSucceed(n.RemoveImage(t.Context(), &runtimeapi.ImageSpec{Image: id}))
	left, _ := n.ListImages(t.Context(), nil)
	assert.Empty(t, left)
}
