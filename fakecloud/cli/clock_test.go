package cli_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

func TestServeVirtualClock(t *testing.T) {
	dir := t.TempDir()
	p := startServe(t, dir, "--clock", "virtual", "--profile", "realistic", "--seed", "5")
	ok, fails := p.commandRunners(t)
	assert.Contains(t, ok("clock", "get"), "virtual")
	in := must.Do(p.client.CreateInstance(t.Context(), api.InstanceCreate{}))(t)
	ok("clock", "advance", "1s")
	assert.Contains(t, ok("instances", "get", in.ID), "pending")
	assert.Contains(t, ok("clock", "advance", "5m"), " 1\n")
	assert.Contains(t, ok("instances", "get", in.ID), "running")
	assert.Regexp(t, ` 5m1s\n$`, ok("instances", "get", in.ID), "by the cloud's time")
	fails(2, "fakecloud clock advance", "instances", "create", "never", "--wait")
	assert.NotContains(t, ok("instances", "list"), "never")
	ok("clock", "advance", "-o", "json", "24h")
	assert.Regexp(t, ` 0s\n$`, ok("snapshots", "save", "now"), "by the cloud's time")
	ok("clock", "advance", "10m")
	assert.Regexp(t, `^NAME +SIZE +AGE\nnow +\S+ MB +10m\n$`, ok("snapshots", "list"))
	ok("tokens", "create", "later", "--expires-in", "1h")
	clock := must.Do(p.client.Clock(t.Context()))(t)
	assert.Contains(t, ok("tokens", "get", "later"), clock.Now.Add(time.Hour).UTC().Format("2006-01-02T15:04:05Z"))
	for _, bad := range []string{"soon", "-- -5m"} {
		fails(2, "want a duration", append([]string{"clock", "advance"}, strings.Fields(bad)...)...)
	}
	ahead := clock.Now.Add(24 * time.Hour)
	ok("clock", "advance", ahead.Format(time.RFC3339))
	p.kill()

	fails(
		1, "ahead of the real clock",
		"serve", "--listen", "127.0.0.1:0", "--data", filepath.Join(dir, "cloud.db"), "--token", "operator="+p.token,
	)
	p = startServe(t, dir, "--clock", "virtual", "--profile", "realistic", "--seed", "5")
	clock = must.Do(p.client.Clock(t.Context()))(t)
	assert.Equal(t, ahead.Truncate(time.Second), clock.Now, "it goes on from where it stood")
	other := must.Do(p.client.CreateInstance(t.Context(), api.InstanceCreate{}))(t)
	assert.NotEqual(t, in.ID, other.ID)
	require.NoError(t, p.cmd.Process.Signal(os.Interrupt))
	require.NoError(t, <-p.exited)
}

func TestOperationCommands(t *testing.T) {
	p := startServe(t, t.TempDir(), "--profile", "fast")
	ok, fails := p.commandRunners(t)
	ok("instances", "create", "node-1")
	assert.Contains(t, ok("instances", "start", "node-1", "--wait"), "running", "what is under way is waited for")
	out := ok("operations", "list", "--type", "createInstance", "--state", "done", "-o", "wide")
	assert.Regexp(t, `op-\S+\s+createInstance\s+i-\S+\s+done\s+operator`, out)
	id := strings.Fields(strings.Split(out, "\n")[1])[0]
	assert.Contains(t, ok("operations", "get", id, "-o", "yaml"), "state: done")
	assert.Contains(t, ok("operations", "wait", id, id), "done")
	assert.Contains(t, ok("__complete", "operations", "get", ""), id)
	assert.Contains(
		t, ok("load-balancers", "create", "web", "--listener", "18084:30080/udp", "--target", "node-1", "--wait"),
		"active",
	)
	assert.Contains(t, ok("load-balancers", "delete", "web", "--wait"), "deleted")
	assert.NotContains(t, ok("load-balancers", "list"), "web")

	held := must.Do(net.Listen("tcp4", "0.0.0.0:0"))(t)
	defer func() { _ = held.Close() }()
	port := held.Addr().(*net.TCPAddr).Port
	lb := must.Do(p.client.CreateLoadBalancer(
		t.Context(),
		api.LoadBalancerCreate{Name: "held", Listeners: []api.Listener{{Protocol: "tcp", Port: port, TargetPort: 1}}},
	))(t)
	list := must.Do(p.client.ListOperations(t.Context(), client.OperationFilter{Resource: lb.ID}))(t)
	fails(1, "failed: ", "operations", "wait", list[0].ID)

	for says, args := range map[string][]string{
		"no operation":                       {"operations", "wait", "op-none"},
		"is not a state":                     {"operations", "list", "--state", "ended"},
		"an empty name or ID":                {"operations", "get", ""},
		"not done after 1ns":                 {"instances", "create", "node-2", "--wait", "--timeout", "1ns"},
		"wants ID..., and was given nothing": {"operations", "wait"},
	} {
		_, errs, code := p.run(t, args...)
		assert.NotZero(t, code)
		assert.Contains(t, errs, says)
	}
}
