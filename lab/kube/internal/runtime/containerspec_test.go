package runtime

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/ccmlab/ccmlab/lab/demoserver"
)

func TestDemoProbes(t *testing.T) {
	ports := []v1.ContainerPort{{Name: "http", ContainerPort: 8080}, {ContainerPort: 9090}}
	httpGet := func(path string, port intstr.IntOrString) v1.ProbeHandler {
		return v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Path: path, Port: port}}
	}
	number, named := intstr.FromInt32, intstr.FromString
	for name, test := range map[string]struct {
		handler v1.ProbeHandler
		want    demoserver.Probe
		unfit   string
	}{
		"number":     {httpGet("/healthz", number(9090)), demoserver.Probe{Port: 9090, URI: "/healthz"}, ""},
		"name":       {httpGet("/healthz", named("http")), demoserver.Probe{Port: 8080, URI: "/healthz"}, ""},
		"query":      {httpGet("/healthz?a=1", number(8080)), demoserver.Probe{Port: 8080, URI: "/healthz?a=1"}, ""},
		"no slash":   {httpGet("healthz", number(8080)), demoserver.Probe{Port: 8080, URI: "/healthz"}, ""},
		"empty":      {httpGet("", number(8080)), demoserver.Probe{Port: 8080, URI: "/"}, ""},
		"bad escape": {httpGet("/a%zz", number(8080)), demoserver.Probe{Port: 8080, URI: "/a%25zz"}, ""},
		"not listed": {httpGet("/", number(1)), demoserver.Probe{Port: 1, URI: "/"}, ""},
		"grpc": {
			v1.ProbeHandler{GRPC: &v1.GRPCAction{Port: 8080}},
			demoserver.Probe{Port: 8080, URI: demoserver.HealthCheckURI}, "",
		},
		"another container's": {
			handler: httpGet("/", number(7070)), unfit: "it asks on port 7070, which is not this container's",
		},
		"unknown name": {handler: httpGet("/", named("grpc")), unfit: "it asks on port grpc"},
		"https": {
			handler: v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Port: number(8080), Scheme: v1.URISchemeHTTPS}},
			unfit:   "it asks by HTTPS",
		},
		"tcp": {
			handler: v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Port: number(8080)}},
			unfit:   "it is a tcpSocket probe",
		},
		"exec": {
			handler: v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"true"}}}, unfit: "it is an exec probe",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := containerSpecOf(&v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{
				{Name: "main", Ports: ports, LivenessProbe: &v1.Probe{ProbeHandler: test.handler}},
				{Name: "beside", Ports: []v1.ContainerPort{{ContainerPort: 7070}}},
			}}}, "main").probes
			require.Len(t, got, 1)
			if test.unfit == "" {
				assert.Equal(t, test.want, got[demoserver.Liveness])
				return
			}
			assert.Contains(t, got[demoserver.Liveness].UnfitReason, "because "+test.unfit)
			assert.Contains(t, got[demoserver.Liveness].UnfitReason, "Probe with httpGet")
		})
	}
}

// The probes are those of a kubelet: HTTP, TCP, and gRPC by upstream's own client. A port that is taken is
// no failure of the container.
func TestUnlistedPortsAnswerProbes(t *testing.T) {
	pod := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{
		Name:           "main",
		LivenessProbe:  &v1.Probe{ProbeHandler: v1.ProbeHandler{GRPC: &v1.GRPCAction{Port: 18090}}},
		ReadinessProbe: &v1.Probe{ProbeHandler: v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Port: intstr.FromInt(18091)}}},
	}}}}
	n := newTestNode(t, 14, func(o *Options) { o.Pod = func(string) *v1.Pod { return pod } })
	sandbox, address := n.runSandbox("web")
	id := n.startContainer(sandbox, "web")
	at := loopbackOf(address)
	code, _ := mustGet(t, "http://"+at+":18091/")
	assert.Equal(t, http.StatusOK, code)
	healthy := func() healthpb.HealthCheckResponse_ServingStatus {
		t.Helper()
		connection, err := grpc.NewClient(at+":18090", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithUserAgent("kube-probe/1.36"))
		n.mustSucceed(err)
		defer connection.Close()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		answer, err := healthpb.NewHealthClient(connection).Check(ctx, &healthpb.HealthCheckRequest{Service: "liveness"})
		n.mustSucceed(err)
		return answer.GetStatus()
	}
	assert.Equal(t, healthpb.HealthCheckResponse_SERVING, healthy())
	code, answer := httpRequest(t, http.MethodPost, "http://"+at+":18091/fail?probe=liveness")
	assert.Equal(t, http.StatusOK, code)
	assert.Contains(t, answer, "The liveness probe (grpc on port 18090) fails")
	assert.Equal(t, healthpb.HealthCheckResponse_NOT_SERVING, healthy())
	rival := n.startContainer(sandbox, "web")
	assert.Equal(t, running, n.containerStatus(rival).GetState(), "its unlisted ports are taken")
	n.mustSucceed(n.StopContainer(t.Context(), id, int64(patience/time.Second)))
	n.expectExited(id, 0)
}

func keyValues(env map[string]string) []*runtimeapi.KeyValue {
	var list []*runtimeapi.KeyValue
	for key, value := range env {
		list = append(list, &runtimeapi.KeyValue{Key: key, Value: []byte(value)})
	}
	return list
}

func TestVariablesFromSecretsAreHidden(t *testing.T) {
	secretKey := &v1.EnvVarSource{SecretKeyRef: &v1.SecretKeySelector{Key: "k"}}
	optional := true
	for name, test := range map[string]struct {
		container v1.Container
		// resolved are the variables that the kubelet passes on, beside those of Services.
		resolved, want map[string]string
	}{
		"plain, downward and ConfigMap": {
			container: v1.Container{Env: []v1.EnvVar{
				{Name: "COLOUR", Value: "blue"},
				{Name: "NODE", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{}}},
				{Name: "GREETING", ValueFrom: &v1.EnvVarSource{ConfigMapKeyRef: &v1.ConfigMapKeySelector{}}},
				{Name: "WEB_PORT", Value: "1"},
				{Name: "GONE", ValueFrom: &v1.EnvVarSource{ConfigMapKeyRef: &v1.ConfigMapKeySelector{}}},
			}},
			resolved: map[string]string{
				"COLOUR": "blue", "NODE": "node-1", "GREETING": "hi", "WEB_PORT": "1", "OF_THE_IMAGE": "x",
			},
			want: map[string]string{"COLOUR": "blue", "NODE": "node-1", "GREETING": "hi", "WEB_PORT": "1"},
		},
		"a Secret, and references to it": {
			container: v1.Container{Env: []v1.EnvVar{
				{Name: "PASSWORD", ValueFrom: secretKey}, {Name: "USER", Value: "u"},
				{Name: "URL", Value: "db://$(USER):$(PASSWORD)@db"}, {Name: "AGAIN", Value: "$(URL)"},
				{Name: "WHO", Value: "$(USER)"},
			}},
			resolved: map[string]string{
				"PASSWORD": "p", "USER": "u", "URL": "db://u:p@db", "AGAIN": "db://u:p@db", "WHO": "u",
			},
			want: map[string]string{
				"PASSWORD": hiddenSecret, "USER": "u", "URL": hiddenSecret, "AGAIN": hiddenSecret, "WHO": "u",
			},
		},
		"one name twice": {
			container: v1.Container{Env: []v1.EnvVar{{Name: "A", Value: "1"}, {Name: "A", ValueFrom: secretKey}}},
			resolved:  map[string]string{"A": "s"}, want: map[string]string{"A": hiddenSecret},
		},
		"a file": {
			container: v1.Container{
				Env: []v1.EnvVar{{Name: "A", ValueFrom: &v1.EnvVarSource{FileKeyRef: &v1.FileKeySelector{}}}},
			},
			resolved: map[string]string{"A": "s"}, want: map[string]string{"A": hiddenFile},
		},
		"all of a ConfigMap": {
			container: v1.Container{EnvFrom: []v1.EnvFromSource{{ConfigMapRef: &v1.ConfigMapEnvSource{}}}},
			resolved:  map[string]string{"A": "1", "DB_PORT": "5432"},
			want:      map[string]string{"A": "1", "DB_PORT": "5432"},
		},
		"all of a Secret beside it": {
			container: v1.Container{
				EnvFrom: []v1.EnvFromSource{
					{ConfigMapRef: &v1.ConfigMapEnvSource{}}, {Prefix: "S_", SecretRef: &v1.SecretEnvSource{}},
				},
				Env: []v1.EnvVar{
					{Name: "REFERS", Value: "$(S_A)"}, {Name: "S_B", Value: "mine"}, {Name: "LATER", Value: "$(S_B)"},
					{
						Name:      "S_C",
						ValueFrom: &v1.EnvVarSource{ConfigMapKeyRef: &v1.ConfigMapKeySelector{Optional: &optional}},
					},
				},
			},
			resolved: map[string]string{
				"A": "1", "S_A": "s", "REFERS": "s", "S_B": "mine", "LATER": "mine", "S_C": "s",
			},
			want: map[string]string{
				"A": "1", "S_A": hiddenSecret, "REFERS": hiddenSecret, "S_B": "mine", "LATER": "mine",
				"S_C": hiddenSecret,
			},
		},
		"a reference to what is redefined only later": {
			container: v1.Container{
				EnvFrom: []v1.EnvFromSource{{SecretRef: &v1.SecretEnvSource{}}},
				Env:     []v1.EnvVar{{Name: "EARLY", Value: "$(X)"}, {Name: "X", Value: "plain"}},
			},
			resolved: map[string]string{"EARLY": "s", "X": "plain"},
			want:     map[string]string{"EARLY": hiddenSecret, "X": "plain"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for key, value := range map[string]string{
				"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_PORT": "tcp://10.0.0.1:443",
				"KUBERNETES_PORT_443_TCP_ADDR": "10.0.0.1",
				"WEB_SERVICE_HOST":             "10.0.0.2", "WEB_SERVICE_PORT_HTTP": "80",
			} {
				test.resolved[key] = value
			}
			got := containerSpec{container: test.container}.shownVariables(keyValues(test.resolved))
			assert.Equal(t, test.want, got)
		})
	}
	assert.Empty(t, containerSpec{}.shownVariables(keyValues(map[string]string{"A": "1"})), "a pod that is not known")
}

// Two volumes may be mounted at the same path in the end, so that the path does not say which is
// which.
func TestOnlyPublicVolumesAreShown(t *testing.T) {
	r := New(Options{StateDirectory: "/state"})
	c := &container{sandbox: &sandbox{config: podConfig("p", "")}, config: &runtimeapi.ContainerConfig{}}
	c.sandbox.config.Metadata.Uid = "uid"
	mount := func(host string) {
		c.config.Mounts = append(c.config.Mounts, &runtimeapi.Mount{ContainerPath: "/etc/x", HostPath: host})
	}
	want := []demoserver.VolumeMount{}
	for _, open := range []string{
		"kubernetes.io~configmap/x", "kubernetes.io~configmap/x/key", "kubernetes.io~downward-api/x",
	} {
		mount("/state/pods/uid/volumes/" + open)
		want = append(want, demoserver.VolumeMount{Path: "/etc/x", Host: "/state/pods/uid/volumes/" + open})
	}
	for _, shut := range []string{
		"/state/pods/uid/volumes/kubernetes.io~secret/x", "/state/pods/uid/volumes/kubernetes.io~projected/x",
		"/state/pods/uid/volumes/kubernetes.io~configmap",
		"/state/pods/uid/volumes/kubernetes.io~configmap/../kubernetes.io~secret/x",
		"/state/pods/uid/volumes/kubernetes.io~empty-dir/volumes/kubernetes.io~configmap/x",
		"/state/pods/other/volumes/kubernetes.io~configmap/x", "/etc/volumes/kubernetes.io~configmap/x",
		"/state/pods/uid/etc-hosts",
	} {
		mount(shut)
	}
	assert.Equal(t, want, r.publicVolumes(c))
}

// Commands over the network make probes fail until the container is restarted. Answers have the
// variables and files of the pod's spec.
func TestFaultsLastUntilRestart(t *testing.T) {
	state := t.TempDir()
	volume := filepath.Join(state, "pods", "uid-web", "volumes", "kubernetes.io~configmap", "config")
	require.NoError(t, os.MkdirAll(volume, 0o755))
	pod := &v1.Pod{Spec: v1.PodSpec{
		Containers: []v1.Container{{
			Name: "main", Env: []v1.EnvVar{{Name: "COLOUR", Value: "blue"}},
			Ports: []v1.ContainerPort{{ContainerPort: 18080}, {ContainerPort: 18080, Protocol: v1.ProtocolSCTP}},
			ReadinessProbe: &v1.Probe{ProbeHandler: v1.ProbeHandler{
				HTTPGet: &v1.HTTPGetAction{Path: "/readyz", Port: intstr.FromInt32(18080)},
			}},
		}},
	}}
	n := newTestNode(t, 27, func(o *Options) {
		o.Pod = func(string) *v1.Pod { return pod }
		o.StateDirectory = state
	})
	sandbox, address := n.runSandbox("web")
	run := func() string {
		id, err := n.CreateContainer(t.Context(), sandbox, &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "main"}, Image: &runtimeapi.ImageSpec{Image: "app:1"},
			Envs:   keyValues(map[string]string{"COLOUR": "blue"}),
			Mounts: []*runtimeapi.Mount{{ContainerPath: "/config", HostPath: volume}},
		}, podConfig("web", n.logs))
		n.mustSucceed(err)
		n.mustSucceed(n.StartContainer(t.Context(), id))
		return id
	}
	base := "http://" + loopbackOf(address) + ":18080"
	probed := func() int {
		t.Helper()
		code, _ := mustGet(t, base+"/readyz", "User-Agent", "kube-probe/1.36")
		return code
	}

	id := run()
	assert.Equal(t, http.StatusOK, probed())
	code, answer := httpRequest(t, http.MethodPost, base+"/fail?probe=readiness")
	require.Equal(t, http.StatusOK, code, answer)
	assert.Equal(t, http.StatusServiceUnavailable, probed())
	for _, greeting := range []string{"Good morning", "Good night"} {
		n.mustSucceed(os.WriteFile(filepath.Join(volume, "greeting"), []byte(greeting), 0o600))
		_, body := mustGet(t, base+"/?format=json")
		var got demoserver.Identity
		n.mustSucceed(json.Unmarshal([]byte(body), &got))
		assert.Equal(t, map[string]string{"COLOUR": "blue"}, got.Env)
		assert.Equal(t, map[string]string{"/config/greeting": greeting}, got.Files)
	}
	httpRequest(t, http.MethodPost, base+"/exit?code=2&after=1ms")
	assert.EqualValues(t, 2, n.waitForExit(id).GetExitCode())
	run()
	assert.Equal(t, http.StatusOK, probed(), "after the restart")
}

func TestContainerAnswersUDP(t *testing.T) {
	n := newTestNode(t, 28)
	sandbox, address := n.runSandbox("dns")
	id := n.startContainer(sandbox, "dns", v1.ContainerPort{ContainerPort: 5353, Protocol: "UDP", HostPort: 15353})
	for _, at := range []string{loopbackOf(address) + ":5353", n.options.NodeAddress.String() + ":15353"} {
		connection, err := net.Dial("udp4", at)
		n.mustSucceed(err)
		n.mustSucceed(connection.SetDeadline(time.Now().Add(patience)))
		_, err = connection.Write([]byte("ping"))
		n.mustSucceed(err)
		buffer := make([]byte, 1<<10)
		size, err := connection.Read(buffer)
		n.mustSucceed(err)
		n.mustSucceed(connection.Close())
		assert.Equal(t, "Hello from pod dns ("+address+") on node-1 in zone nebula-1a\nping", string(buffer[:size]))
	}
	// Another container cannot bind the same ports, and says so.
	rival := n.startContainer(sandbox, "dns", v1.ContainerPort{ContainerPort: 5353, Protocol: "UDP"})
	got := n.waitForExit(rival)
	assert.EqualValues(t, 1, got.GetExitCode())
	assert.Contains(t, got.GetMessage(), "cannot serve port 5353/UDP")
	n.mustSucceed(n.StopContainer(context.Background(), id, int64(patience/time.Second)))
	assert.EqualValues(t, 0, n.containerStatus(id).GetExitCode())
	udp, err := net.ListenPacket("udp4", loopbackOf(address)+":5353")
	n.mustSucceed(err)
	n.mustSucceed(udp.Close())
}
