package runtime

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/ccmlab/ccmlab/cmd/hello/demoserver"
)

// octet keeps two runs at once, and a lab beside them, apart: labs live below
// 127.100.0.0.
var octet = byte(100 + os.Getpid()%100)

// at puts an address, written with 78, where this run is.
func at(address string) string {
	return strings.ReplaceAll(address, ".78.", fmt.Sprintf(".%d.", octet))
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

// node is a runtime with its network ready. Each test has a podCIDR of its own,
// so that tests may run side by side.
type node struct {
	*Runtime
	t    *testing.T
	logs string
}

func newNode(t *testing.T, subnet int, adjust ...func(*Options)) *node {
	t.Helper()
	t.Parallel()
	options := Options{
		NodeName:    "node-1",
		NodeAddress: netip.AddrFrom4([4]byte{127, octet, byte(subnet), 200}),
		Zone:        func() string { return "nebula-1a" },
	}
	for _, change := range adjust {
		change(&options)
	}
	n := &node{Runtime: New(options), t: t, logs: t.TempDir()}
	n.must(n.UpdateRuntimeConfig(t.Context(), networkConfig(at(fmt.Sprintf(podPrefix, subnet)))))
	t.Cleanup(func() { _ = n.Close(context.Background()) })
	return n
}

func networkConfig(podCIDR string) *runtimeapi.RuntimeConfig {
	return &runtimeapi.RuntimeConfig{NetworkConfig: &runtimeapi.NetworkConfig{PodCidr: podCIDR}}
}

func (n *node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

func podConfig(name, logs string) *runtimeapi.PodSandboxConfig {
	return &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "default", Uid: "uid-" + name},
		LogDirectory: logs,
	}
}

func (n *node) sandbox(name string) (id, address string) {
	n.t.Helper()
	id, err := n.RunPodSandbox(n.t.Context(), podConfig(name, n.logs), "")
	n.must(err)
	return id, n.address(id)
}

func (n *node) address(sandbox string) string {
	n.t.Helper()
	answer, err := n.PodSandboxStatus(n.t.Context(), sandbox, false)
	n.must(err)
	return answer.GetStatus().GetNetwork().GetIp()
}

// start runs a container that declares the ports, as the kubelet would.
func (n *node) start(sandbox, pod string, ports ...port) string {
	n.t.Helper()
	declared, err := json.Marshal(ports)
	n.must(err)
	id, err := n.CreateContainer(n.t.Context(), sandbox, &runtimeapi.ContainerConfig{
		Metadata:    &runtimeapi.ContainerMetadata{Name: "main"},
		Image:       &runtimeapi.ImageSpec{Image: "simulated://app:1", UserSpecifiedImage: "app:1"},
		LogPath:     filepath.Join(pod, "main", "0.log"),
		Annotations: map[string]string{annotationPorts: string(declared)},
	}, podConfig(pod, n.logs))
	n.must(err)
	n.must(n.StartContainer(n.t.Context(), id))
	return id
}

func (n *node) state(container string) *runtimeapi.ContainerStatus {
	n.t.Helper()
	answer, err := n.ContainerStatus(n.t.Context(), container, false)
	n.must(err)
	return answer.GetStatus()
}

func (n *node) awaitExit(container string) *runtimeapi.ContainerStatus {
	n.t.Helper()
	n.mu.Lock()
	done := n.containers[container].exited
	n.mu.Unlock()
	select {
	case <-done:
	case <-time.After(patience):
		n.t.Fatal("the container did not exit")
	}
	return n.state(container)
}

// realised is written out here rather than computed by the code under test.
func realised(address string) string { return "127" + strings.TrimPrefix(address, "10") }

func get(t *testing.T, url string, header ...string) (int, string) {
	t.Helper()
	return request(t, http.MethodGet, url, header...)
}

func request(t *testing.T, method, url string, header ...string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

func TestNetworkIsNotReadyBeforeThePodCIDRIsKnown(t *testing.T) {
	t.Parallel()
	r := New(Options{})
	networkReady := func() (bool, string) {
		answer, err := r.Status(t.Context(), false)
		if err != nil {
			t.Fatal(err)
		}
		for _, condition := range answer.GetStatus().GetConditions() {
			if condition.GetType() == runtimeapi.NetworkReady {
				return condition.GetStatus(), condition.GetMessage()
			}
		}
		t.Fatal("no network condition")
		return false, ""
	}
	if ready, message := networkReady(); ready || !strings.Contains(message, "podCIDR") {
		t.Errorf("ready %v, message %q", ready, message)
	}
	if _, err := r.RunPodSandbox(t.Context(), podConfig("early", ""), ""); status.Code(err) != codes.Unavailable {
		t.Errorf("sandbox without network: %v", err)
	}
	if err := r.UpdateRuntimeConfig(t.Context(), networkConfig("192.168.0.0/24")); err == nil {
		t.Error("a podCIDR that cannot be realised was accepted")
	}
	if err := r.UpdateRuntimeConfig(t.Context(), networkConfig(at("fd00::/64,10.78.250.0/25"))); err != nil {
		t.Fatal(err)
	}
	if ready, message := networkReady(); !ready {
		t.Errorf("still not ready: %s", message)
	}
}

func TestAddressesAreUniqueAndReusedOnlyAfterTheOthers(t *testing.T) {
	n := newNode(t, 1)
	const usable = 16 - 3
	first, firstAddress := n.sandbox("pod-0")
	seen := map[string]bool{firstAddress: true}
	n.must(n.StopPodSandbox(t.Context(), first))
	if left := n.address(first); left != "" {
		t.Errorf("a stopped sandbox still shows %s", left)
	}
	for i := 1; i <= usable; i++ {
		_, address := n.sandbox(fmt.Sprintf("pod-%d", i))
		if seen[address] && i < usable {
			t.Errorf("sandbox %d got %s, which was just freed or is in use", i, address)
		}
		seen[address] = true
	}
	if _, err := n.RunPodSandbox(t.Context(), podConfig("one-more", ""), ""); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one sandbox too many: %v", err)
	}
	for _, reserved := range []string{at("10.78.1.0"), at("10.78.1.1"), at("10.78.1.15")} {
		if seen[reserved] {
			t.Errorf("%s was given to a pod", reserved)
		}
	}
}

func TestContainerTellsWhoItIs(t *testing.T) {
	n := newNode(t, 2)
	sandbox, address := n.sandbox("web-abc")
	n.start(sandbox, "web-abc", port{ContainerPort: 18080}, port{ContainerPort: 5353, Protocol: "UDP"})
	base := "http://" + realised(address) + ":18080"

	_, text := get(t, base+"/any/path")
	if want := "Hello from pod web-abc (" + address + ") on node-1 in zone nebula-1a\n"; text != want {
		t.Errorf("got %q, want %q", text, want)
	}
	for _, asked := range [][]string{{"/x?format=json"}, {"/x", "Accept", "application/json"}} {
		_, body := get(t, base+asked[0], asked[1:]...)
		var got demoserver.Identity
		n.must(json.Unmarshal([]byte(body), &got))
		got.Request.RemoteAddr, got.Request.Host = "", ""
		want := demoserver.Identity{
			Pod: "web-abc", Namespace: "default", Node: "node-1", Zone: "nebula-1a", PodIP: address,
			Container: "main", Image: "app:1", Request: demoserver.RequestInfo{Method: "GET", Path: "/x"},
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
}

func TestZoneIsReadAtEachRequest(t *testing.T) {
	zones := make(chan string, 2)
	zones <- ""
	zones <- "nebula-1b"
	n := newNode(t, 3, func(o *Options) { o.Zone = func() string { return <-zones } })
	sandbox, address := n.sandbox("web")
	n.start(sandbox, "web", port{ContainerPort: 18080})
	for _, want := range []string{"(no zone label yet)", "nebula-1b"} {
		if _, body := get(t, "http://"+realised(address)+":18080/"); !strings.Contains(body, "zone "+want) {
			t.Errorf("got %q, want zone %s", body, want)
		}
	}
}

func TestLogHasTheFormatOfCRI(t *testing.T) {
	n := newNode(t, 4)
	sandbox, address := n.sandbox("web")
	id := n.start(sandbox, "web", port{ContainerPort: 18080})
	path := n.state(id).GetLogPath()
	get(t, "http://"+realised(address)+":18080/before")
	n.must(os.Rename(path, path+".rotated"))
	n.must(n.ReopenContainerLog(t.Context(), id))
	get(t, "http://"+realised(address)+":18080/after")

	format := regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z (stdout|stderr) F .+$`)
	for file, want := range map[string]string{path + ".rotated": "GET /before from 127.", path: "GET /after from 127."} {
		content, err := os.ReadFile(file)
		n.must(err)
		if !strings.Contains(string(content), want) {
			t.Errorf("%s lacks %q:\n%s", file, want, content)
		}
		for _, line := range strings.Split(strings.TrimSuffix(string(content), "\n"), "\n") {
			if !format.MatchString(line) {
				t.Errorf("not CRI's format: %q", line)
			}
		}
	}
}

func TestPortThatCannotBeBoundEndsTheContainer(t *testing.T) {
	n := newNode(t, 5)
	sandbox, address := n.sandbox("web")
	taken, err := net.Listen("tcp4", realised(address)+":0")
	n.must(err)
	defer taken.Close()
	number := taken.Addr().(*net.TCPAddr).AddrPort().Port()

	id := n.start(sandbox, "web", port{ContainerPort: 18080}, port{ContainerPort: number})
	got := n.awaitExit(id)
	if got.GetExitCode() != 1 || got.GetReason() != reasonError || !strings.Contains(got.GetMessage(), "address already in use") {
		t.Errorf("got %v", got)
	}
	// What it had opened before is free again, so the restart can have it.
	n.must(taken.Close())
	again := n.start(sandbox, "web", port{ContainerPort: 18080}, port{ContainerPort: number})
	if state := n.state(again).GetState(); state != running {
		t.Errorf("restarted container is %s", state)
	}
}

func TestStopLetsRequestsFinish(t *testing.T) {
	n := newNode(t, 6)
	sandbox, address := n.sandbox("web")
	id := n.start(sandbox, "web", port{ContainerPort: 18080})
	answered := slowRequest(t, n, id, "http://"+realised(address)+":18080/?delay=300ms")

	n.must(n.StopContainer(t.Context(), id, int64(patience/time.Second)))
	if got := <-answered; got != nil {
		t.Errorf("the request in progress failed: %v", got)
	}
	if got := n.state(id); got.GetState() != exited || got.GetExitCode() != 0 || got.GetReason() != reasonCompleted {
		t.Errorf("got %v", got)
	}
	if connection, err := net.Dial("tcp4", realised(address)+":18080"); err == nil {
		connection.Close()
		t.Error("the port is still open")
	}
}

func TestStopKillsAfterTheGracePeriod(t *testing.T) {
	n := newNode(t, 7)
	sandbox, address := n.sandbox("web")
	id := n.start(sandbox, "web", port{ContainerPort: 18080})
	answered := slowRequest(t, n, id, "http://"+realised(address)+":18080/?delay=4m")

	n.must(n.StopContainer(t.Context(), id, 1))
	if got := n.state(id); got.GetExitCode() != exitKilled {
		t.Errorf("got %v", got)
	}
	if got := <-answered; got == nil {
		t.Error("a request outlived the container that was killed")
	}
}

// slowRequest returns once the container has logged the request.
func slowRequest(t *testing.T, n *node, container, url string) <-chan error {
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
	path := n.state(container).GetLogPath()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); <-time.After(5 * time.Millisecond) {
		if content, _ := os.ReadFile(path); strings.Contains(string(content), "GET /?delay=") {
			return answered
		}
	}
	t.Fatal("the request did not arrive")
	return nil
}

func TestContainerExitsWhenAskedAndCanBeStartedAgain(t *testing.T) {
	n := newNode(t, 8)
	sandbox, address := n.sandbox("web")
	id := n.start(sandbox, "web", port{ContainerPort: 18080})
	base := "http://" + realised(address) + ":18080"
	if code, _ := request(t, http.MethodPost, base+"/exit?code=300"); code != http.StatusBadRequest {
		t.Errorf("code=300 was answered with %d", code)
	}
	request(t, http.MethodPost, base+"/exit?code=3")
	if got := n.awaitExit(id); got.GetExitCode() != 3 || got.GetFinishedAt() < got.GetStartedAt() {
		t.Errorf("got %v", got)
	}
	n.start(sandbox, "web", port{ContainerPort: 18080})
	if code, _ := get(t, base); code != http.StatusOK {
		t.Errorf("the restarted container answers %d", code)
	}
}

func TestInitContainersEndAndOthersRun(t *testing.T) {
	always := v1.ContainerRestartPolicyAlways
	n := newNode(t, 9, func(o *Options) {
		o.Pod = func(uid string) *v1.Pod {
			main := []v1.Container{{Name: "main"}}
			return map[string]*v1.Pod{
				"uid-init":    {Spec: v1.PodSpec{InitContainers: main}},
				"uid-sidecar": {Spec: v1.PodSpec{InitContainers: []v1.Container{{Name: "main", RestartPolicy: &always}}}},
				"uid-plain":   {Spec: v1.PodSpec{Containers: main}},
			}[uid]
		}
	})
	withInit, _ := n.sandbox("init")
	if got := n.awaitExit(n.start(withInit, "init")); got.GetExitCode() != 0 {
		t.Errorf("init container: %v", got)
	}
	for _, pod := range []string{"sidecar", "plain", "unknown"} {
		sandbox, _ := n.sandbox(pod)
		id := n.start(sandbox, pod)
		if got := n.state(id).GetState(); got != running {
			t.Errorf("the container of %s, without ports, is %s", pod, got)
		}
		// A process that does nothing has nothing to finish.
		n.must(n.StopContainer(t.Context(), id, int64(patience/time.Second)))
		if got := n.state(id); got.GetState() != exited || got.GetExitCode() != 0 {
			t.Errorf("after SIGTERM the container of %s is %v", pod, got)
		}
	}
}

func TestRemovedSandboxFreesItsPort(t *testing.T) {
	n := newNode(t, 10)
	sandbox, address := n.sandbox("web")
	id := n.start(sandbox, "web", port{ContainerPort: 18080, HostPort: 18081})
	host := n.options.NodeAddress.String() + ":18081"
	if _, body := get(t, "http://"+host); !strings.Contains(body, "pod web") {
		t.Errorf("host port: %q", body)
	}
	n.must(n.RemovePodSandbox(t.Context(), sandbox))
	if _, err := n.ContainerStatus(t.Context(), id, false); status.Code(err) != codes.NotFound {
		t.Errorf("the container is still there: %v", err)
	}
	for _, at := range []string{realised(address) + ":18080", host} {
		listener, err := net.Listen("tcp4", at)
		if err != nil {
			t.Errorf("%s is not free: %v", at, err)
			continue
		}
		listener.Close()
	}
	n.must(n.StopPodSandbox(t.Context(), sandbox))
	n.must(n.RemovePodSandbox(t.Context(), sandbox))
}

func TestCloseIsAPowerCut(t *testing.T) {
	n := newNode(t, 11)
	sandbox, address := n.sandbox("web")
	id := n.start(sandbox, "web", port{ContainerPort: 18080})
	n.must(n.Close(t.Context()))
	if got := n.state(id); got.GetExitCode() != exitKilled {
		t.Errorf("got %v", got)
	}
	listener, err := net.Listen("tcp4", realised(address)+":18080")
	n.must(err)
	listener.Close()
	if _, err := n.RunPodSandbox(t.Context(), podConfig("late", ""), ""); status.Code(err) != codes.Unavailable {
		t.Errorf("sandbox after the end: %v", err)
	}
}

func TestImagesAreThereOnceTheyWerePulled(t *testing.T) {
	n := newNode(t, 12)
	spec := &runtimeapi.ImageSpec{Image: "app:1"}
	before, err := n.ImageStatus(t.Context(), spec, false)
	n.must(err)
	if before.GetImage() != nil {
		t.Error("an image is there that nobody pulled")
	}
	id, err := n.PullImage(t.Context(), spec, nil, nil)
	n.must(err)
	for _, name := range []string{"app:1", id} {
		after, err := n.ImageStatus(t.Context(), &runtimeapi.ImageSpec{Image: name}, false)
		n.must(err)
		if after.GetImage().GetId() != id {
			t.Errorf("%s: got %v", name, after.GetImage())
		}
	}
	n.must(n.RemoveImage(t.Context(), &runtimeapi.ImageSpec{Image: id}))
	if left, _ := n.ListImages(t.Context(), nil); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}
