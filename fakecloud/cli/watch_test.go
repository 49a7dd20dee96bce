package cli_test

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

// startWatch starts a command that runs until it is interrupted by end.
func (p *process) startWatch(t *testing.T, args ...string) (lines *bufio.Scanner, end func()) {
	t.Helper()
	binary := must.Do(buildBinary())(t)
	cmd := exec.Command(binary, append(args, "--url", p.url, "--token-file", p.token)...)
	cmd.Stderr = os.Stderr
	stdout := must.Do(cmd.StdoutPipe())(t)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return bufio.NewScanner(stdout), func() {
		t.Helper()
		require.NoError(t, cmd.Process.Signal(os.Interrupt))
		require.NoError(t, cmd.Wait())
	}
}

func TestWatch(t *testing.T) {
	p := startServe(t, t.TempDir(), "--clock", "virtual")
	advance := func() {
		t.Helper()
		must.Do(p.client.AdvanceClock(t.Context(), 3600e9))(t)
	}
	first := must.Do(p.client.CreateInstance(t.Context(), api.InstanceCreate{Name: "first"}))(t)
	_, err := p.client.CreateRoute(
		t.Context(),
		api.RouteCreate{Name: "there", Destination: "10.3.0.0/16", InstanceID: first.ID, Tags: &api.Tags{"a": "b"}},
	)
	require.NoError(t, err)
	advance()
	next := func(lines *bufio.Scanner, want string) {
		t.Helper()
		require.True(t, lines.Scan(), lines.Err())
		assert.Regexp(t, want, lines.Text())
	}
	instances, endInstances := p.startWatch(t, "instances", "list", "--watch")
	next(instances, `^CHANGE +NAME +ID`)
	next(instances, `^listed +first +i-.* running`)
	operations, endOperations := p.startWatch(t, "operations", "list", "--watch")
	next(operations, `^CHANGE +ID +TYPE`)
	next(operations, `^listed +op-\S+ +createInstance .* done`)
	routes, endRoutes := p.startWatch(t, "routes", "list", "-w", "--tag", "a=b", "-o", "json")
	next(routes, `^\{"type":"listed","item":.*"name":"there"`)

	second := must.Do(p.client.CreateInstance(t.Context(), api.InstanceCreate{Name: "second"}))(t)
	for _, tags := range []api.Tags{{"a": "c"}, {"a": "b"}} {
		must.Do(p.client.CreateRoute(t.Context(), api.RouteCreate{
			Name: "to-" + tags["a"], Destination: "10." + map[string]string{"b": "1", "c": "2"}[tags["a"]] + ".0.0/16",
			InstanceID: second.ID, Tags: &tags,
		}))(t)
	}
	next(instances, `^created +second +i-.* pending`)
	next(operations, `^created +op-\S+ +createInstance .* running`)
	advance()
	next(instances, `^updated +second +i-.* running`)
	next(operations, `^updated +op-\S+ +createInstance .* done`)
	for _, want := range []api.RouteState{api.RouteBlackhole, api.RouteActive} {
		require.True(t, routes.Scan(), routes.Err())
		var line struct {
			Item api.Route
		}
		require.NoError(t, json.Unmarshal(routes.Bytes(), &line))
		assert.Equal(t, "to-b", line.Item.Name)
		assert.Equal(t, want, line.Item.State)
	}
	endInstances()
	endOperations()
	endRoutes()

	balancers, endBalancers := p.startWatch(t, "load-balancers", "list", "--watch", "-o", "yaml")
	lb := must.Do(p.client.CreateLoadBalancer(
		t.Context(),
		api.LoadBalancerCreate{Name: "web", Listeners: []api.Listener{{Protocol: "udp", Port: 18086, TargetPort: 1}}},
	))(t)
	next(balancers, `^---$`)
	next(balancers, `^item:$`)
	next(balancers, `^  address: `+lb.Address)
	endBalancers()

	networks, endNetworks := p.startWatch(t, "networks", "list", "--watch")
	next(networks, `^CHANGE +NAME`)
	next(networks, `^listed +default `)
	addresses, endAddresses := p.startWatch(t, "addresses", "list", "--watch", "-o", "json", "--tag", "a=b")
	must.Do(p.client.CreateNetwork(t.Context(), api.NetworkCreate{Name: "backend", Cidr: "127.31.0.0/24"}))(t)
	next(networks, `^created +backend `)
	must.Do(p.client.ReserveAddress(
		t.Context(), api.ReservedAddressCreate{Name: new("shop"), Tags: &api.Tags{"a": "b"}},
	))(t)
	next(addresses, `"name":"shop"`)
	endNetworks()
	endAddresses()
}

func TestEventCommands(t *testing.T) {
	p := startServe(t, t.TempDir(), "--profile", "instant")
	in := must.Do(p.client.CreateInstance(t.Context(), api.InstanceCreate{Tags: api.Tags{"a": "b"}}))(t)
	must.Do(p.client.CreateRoute(
		t.Context(), api.RouteCreate{Name: "r", Destination: "10.0.0.0/8", InstanceID: in.ID},
	))(t)
	ok, fails := p.commandRunners(t)
	for _, tc := range []struct {
		args      string
		has, lack string
	}{
		{"--resource route", " route ", "  instance  "},
		{"--resource instance", " instance ", " route "},
		{"--id " + in.ID, " instance ", " route "},
		{"--tag a=b", " instance ", " route "},
		{"--project " + in.Project, " route ", "nothing"},
	} {
		out := ok(append([]string{"events"}, strings.Fields(tc.args)...)...)
		assert.Contains(t, out, tc.has, tc.args)
		assert.NotContains(t, out, tc.lack, tc.args)
	}
	fails(1, "resource.0", "events", "--resource", "cloud")
}

// The audit lists calls made before a restart.
func TestAuditSurvivesRestart(t *testing.T) {
	dir := t.TempDir()
	p := startServe(t, dir)
	for range 3 {
		must.Do(p.client.ListZones(t.Context()))(t)
	}
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, <-p.exited)
	p = startServe(t, dir)
	must.Do(p.client.ListZones(t.Context()))(t)
	sums := must.Do(p.client.SumAudit(t.Context(), client.AuditFilter{Operation: "listZones"}, api.AuditByOperation))(t)
	require.Len(t, sums, 1)
	assert.EqualValues(t, 4, sums[0].Calls)
	entries := must.Do(p.client.ListAudit(t.Context(), client.AuditFilter{Operation: "listZones"}, 0))(t)
	assert.Len(t, entries, 4)
}
