package runtime

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	utilexec "k8s.io/utils/exec"
)

// testContainer is a running container with two variables, and the Events about it.
type testContainer struct {
	*testNode
	sandbox, id string
	events      []string
}

func newTestContainer(t *testing.T, subnet int) *testContainer {
	t.Helper()
	c := &testContainer{}
	c.testNode = newTestNode(t, subnet, func(o *Options) {
		o.Event = func(pod, reason, message string) {
			c.events = append(c.events, pod+" "+reason+" "+message)
		}
	})
	c.pods["uid"] = podWithPorts(v1.ContainerPort{ContainerPort: 18080})
	var err error
	c.sandbox, err = c.RunPodSandbox(t.Context(), &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "web", Namespace: "default", Uid: "uid"}, Hostname: "web",
	}, "")
	c.mustSucceed(err)
	c.start()
	return c
}

// start starts the container, for the first time or once more.
func (c *testContainer) start() {
	c.t.Helper()
	var err error
	c.id, err = c.CreateContainer(c.t.Context(), c.sandbox, &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "main"},
		Image:    &runtimeapi.ImageSpec{Image: "app:1"},
		Envs: []*runtimeapi.KeyValue{
			{Key: "odd.name", Value: []byte("1=2")}, {Key: "GREETING", Value: []byte("good day")},
		},
		LogPath: filepath.Join("web", "0.log"),
	}, podConfig("web", c.logs))
	c.mustSucceed(err)
	c.mustSucceed(c.StartContainer(c.t.Context(), c.id))
}

// expectProbe runs a command as an exec probe or hook does, and requires its exit code and output.
func (c *testContainer) expectProbe(code int, want string, argv ...string) {
	c.t.Helper()
	stdout, stderr, err := c.ExecSync(c.t.Context(), c.id, argv, patience)
	var exit utilexec.CodeExitError
	if err != nil && !errors.As(err, &exit) {
		c.t.Fatalf("%q: %v", argv, err)
	}
	assert.Equal(c.t, want, string(stdout)+string(stderr), "%q", argv)
	assert.Equal(c.t, code, exit.Code, "%q", argv)
}

func TestExecProbesAndHooks(t *testing.T) {
	c := newTestContainer(t, 13)
	c.expectProbe(0, "GREETING=good day\nHOSTNAME=web\nodd.name=1=2\n", "/usr/bin/env")
	c.expectProbe(0, "web\n", "hostname")
	assert.Empty(t, c.events, "commands that were run are reported")
	for _, argv := range [][]string{{"cat", "/tmp/healthy"}, {"sh", "-c", "exit 1"}, {"env", "-i"}, {"sleep", "1h"}, {}} {
		c.expectProbe(0, "", argv...)
	}
	require.Len(t, c.events, 1, "one Event about the first")
	assert.Regexp(t, `^uid ExecNotRun .*"cat /tmp/healthy"`, c.events[0])

	c.expectProbe(2, "exit: \"300\": a number from 0 to 255 is needed\n", "exit", "300")
	c.expectProbe(0, "container main exits with code 3\n", "exit", "3")
	got := c.waitForExit(c.id)
	assert.EqualValues(t, 3, got.GetExitCode())
	assert.Equal(t, "asked to exit by a command", got.GetMessage())
	_, _, err := c.ExecSync(t.Context(), c.id, []string{"true"}, 0)
	assert.Equal(t, codes.FailedPrecondition, status.Code(err), "exec in a container that has ended")
	c.start()
	c.expectProbe(0, "", "true")
	assert.Len(t, c.events, 2, "one for each start")
}
