package cli_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
	"github.com/ccmlab/ccmlab/fakecloud/internal/testcerts"
)

const seedManifest = `
quotas: {instances: 50}
networks:
- {name: backend, cidr: 127.91.0.0/24}
addresses:
- {name: front, tags: {a: b}}
instances:
- name: node-1
  zone: nebula-1b
  network: backend
  secondaryAddresses: [127.91.0.9, "fd00:91::1"]
  tags: {role: worker}
- name: node-2
  state: stopped
- name: node-3
  state: running
loadBalancers:
- name: web
  listeners:
  - {protocol: udp, port: 18090, targetPort: 30080}
  - {protocol: tcp, port: 18090, targetPort: 30080}
  targets: [node-1, there]
  reservedAddress: front
  sourceRanges: [10.0.0.0/8, 127.0.0.0/8]
  healthCheck: {protocol: tcp, port: 10256}
firewalls:
- {name: web, instances: [node-1, there], rules: [{protocol: tcp, firstPort: 30080, lastPort: 30080}]}
routes:
- {name: node-1, destination: 10.244.1.0/24, instance: node-1}
`

type applyRig struct {
	*process
	t   *testing.T
	dir string
}

func newApplyRig(t *testing.T) *applyRig {
	dir := t.TempDir()
	return &applyRig{startServe(t, dir, "--default-tag", "cluster=lab", "--target-range", "127.91.0.0/24"), t, dir}
}

// apply applies a manifest and returns what it did, as "name action field,field".
func (r *applyRig) apply(manifest string, args ...string) []string {
	r.t.Helper()
	out, errs, code := r.runApply(manifest, append(args, "-o", "json")...)
	require.Zero(r.t, code, errs)
	var list struct {
		DryRun bool
		Items  []struct {
			Kind, Name, ID, Action string
			Changes                []string
		}
	}
	require.NoError(r.t, json.Unmarshal([]byte(out), &list))
	var told []string
	for _, i := range list.Items {
		assert.Equal(r.t, i.ID == "", list.DryRun && i.Action == "created", i)
		told = append(told, strings.TrimSpace(fmt.Sprintf("%s %s %s", i.Name, i.Action, strings.Join(i.Changes, ","))))
	}
	return told
}

func (r *applyRig) runApply(manifest string, args ...string) (out, errs string, code int) {
	r.t.Helper()
	file := filepath.Join(r.dir, "cloud.yaml")
	require.NoError(r.t, os.WriteFile(file, []byte(manifest), 0o600))
	return r.run(r.t, append([]string{"apply", "-f", file}, args...)...)
}

func (r *applyRig) instance(name string) api.Instance {
	r.t.Helper()
	all := must.Do(r.client.ListInstances(r.t.Context(), client.InstanceFilter{Name: name}))(r.t)
	require.Len(r.t, all, 1)
	return all[0]
}

// awaitBalancerChecked waits until the only balancer's targets have failed their checks and its
// reason says so. After that nothing changes by itself.
func (r *applyRig) awaitBalancerChecked() {
	r.t.Helper()
	require.EventuallyWithT(r.t, func(c *assert.CollectT) {
		lbs, err := r.client.ListLoadBalancers(r.t.Context(), client.LoadBalancerFilter{})
		if !assert.NoError(c, err) || !assert.Len(c, lbs, 1) {
			return
		}
		health, err := r.client.LoadBalancerHealth(r.t.Context(), lbs[0].ID)
		if !assert.NoError(c, err) {
			return
		}
		for _, h := range health.Targets {
			assert.Equal(c, api.TargetUnhealthy, h.Health)
		}
		lb, err := r.client.GetLoadBalancer(r.t.Context(), lbs[0].ID) // Its reason is set after its health.
		if assert.NoError(c, err) {
			assert.Contains(c, lb.StateReason, "no target is healthy")
		}
	}, testTimeout, 5*time.Millisecond)
}

func TestApply(t *testing.T) {
	r := newApplyRig(t)
	ctx := t.Context()
	there := must.Do(r.client.CreateInstance(ctx, api.InstanceCreate{Name: "there"}))(t)
	want := []string{
		"quotas updated instances", "backend created", "front created", "node-1 created", "node-2 created",
		"node-3 created", "web created", "web created", "node-1 created",
	}
	assert.Equal(t, want, r.apply(seedManifest, "--dry-run"))
	assert.Len(t, must.Do(r.client.ListInstances(ctx, client.InstanceFilter{}))(t), 1, "a dry run")

	// The first answer of each kind is lost, so the call is repeated.
	for _, op := range []string{"createInstance", "createLoadBalancer", "createFirewall", "createRoute"} {
		must.Do(r.client.CreateFault(ctx, api.FaultCreate{
			Times: 1, Match: api.FaultMatch{Operations: []string{op}}, Effect: api.FaultEffect{Drop: true},
		}))(t)
	}
	assert.Equal(t, want, r.apply(seedManifest, "--wait"))
	assert.Equal(t, api.InstanceStopped, r.instance("node-2").State)
	assert.Equal(t, api.InstanceRunning, r.instance("node-3").State)
	one := r.instance("node-1")
	assert.Equal(t, api.InstanceRunning, one.State)
	assert.Equal(t, "nebula-1b", one.Zone)
	assert.Equal(t, api.Tags{"cluster": "lab", "role": "worker"}, one.Tags)
	network := must.Do(r.client.GetNetwork(ctx, one.NetworkID))(t)
	assert.Equal(t, "backend", network.Name)
	addresses := must.Do(r.client.ListAddresses(ctx, client.AddressFilter{Name: "front"}))(t)
	require.Len(t, addresses, 1)
	lbs := must.Do(r.client.ListLoadBalancers(ctx, client.LoadBalancerFilter{}))(t)
	require.Len(t, lbs, 1)
	assert.Equal(t, api.LoadBalancerActive, lbs[0].State)
	assert.Equal(t, addresses[0].IP, lbs[0].Address)
	assert.Equal(t, []api.Target{{InstanceID: one.ID}, {InstanceID: there.ID}}, lbs[0].Targets)
	firewalls := must.Do(r.client.ListFirewalls(ctx, client.FirewallFilter{}))(t)
	require.Len(t, firewalls, 1)
	assert.ElementsMatch(t, api.FirewallInstances{one.ID, there.ID}, firewalls[0].InstanceIDs)

	r.awaitBalancerChecked()
	before := countEvents(t, r.client)
	for _, args := range [][]string{nil, {"--wait"}, {"--dry-run"}} {
		assert.Equal(t, []string{
			"quotas unchanged", "backend unchanged", "front unchanged", "node-1 unchanged", "node-2 unchanged",
			"node-3 unchanged", "web unchanged", "web unchanged", "node-1 unchanged",
		}, r.apply(seedManifest, args...))
	}
	assert.Equal(t, before, countEvents(t, r.client), "a second apply changes nothing")

	other := strings.NewReplacer(
		"state: running", "state: stopped", "state: stopped", "state: running",
		"targets: [node-1, there]", "targets: [node-3, node-1]\n  tags: {team: a}", "instances: [node-1, there]",
		"instances: [node-1]", "10256", "10257",
		"role: worker", "role: server", "a: b", "a: c", "instances: 50", "instances: 60", "127.91.0.0/24",
		"127.91.0.0/24, tags: {x: y}",
		"instance: node-1}", "instance: node-1, tags: {r: s}}", "routes:",
		"routes:\n- {name: there, destination: 10.244.2.0/24, instance: there}",
	).Replace(seedManifest)
	assert.Equal(t, []string{
		"quotas updated instances", "backend updated tags", "front updated tags", "node-1 updated tags",
		"node-2 updated state", "node-3 updated state",
		"web updated healthCheck,tags,targets", "web updated instances", "there created", "node-1 updated tags",
	}, r.apply(other, "--wait"))
	assert.Equal(t, api.Tags{"cluster": "lab", "role": "server"}, r.instance("node-1").Tags)
	assert.Equal(t, api.InstanceRunning, r.instance("node-2").State)
	assert.Equal(t, api.InstanceStopped, r.instance("node-3").State)
	quotas := must.Do(r.client.Quotas(ctx))(t)
	assert.EqualValues(t, 60, quotas.Instances.Limit)
	lb := must.Do(r.client.GetLoadBalancer(ctx, lbs[0].ID))(t)
	assert.Equal(t, api.LoadBalancerActive, lb.State)
	assert.Equal(t, api.Tags{"cluster": "lab", "team": "a"}, lb.Tags)
	assert.Equal(t, 10257, lb.HealthCheck.Port)
	assert.Equal(t, lbs[0].Listeners, lb.Listeners)
	assert.NotContains(t, strings.Join(r.apply(other), "\n"), "updated")
}

func countEvents(t *testing.T, c *client.Client) (n int) {
	t.Helper()
	require.NoError(t, c.Watch(t.Context(), client.FromOldest, false, func(api.Event) error { n++; return nil }))
	return n
}

func TestApplyChecksManifestBeforeChanging(t *testing.T) {
	r := newApplyRig(t)
	r.apply(strings.ReplaceAll(seedManifest, "node-1, there", "node-1"), "--wait")
	r.awaitBalancerChecked()
	before := countEvents(t, r.client)
	for _, c := range []struct {
		manifest, says string
		code           int
	}{
		{seedManifest + "servers: []\n", "servers is not known", 2},
		{
			"instances:\n- name: new\n- {name: node-1, zone: nebula-1a}\n",
			"cloud.yaml:3: instances[1] (node-1): zone is nebula-1b in the cloud", 1,
		},
		{
			"instances:\n- {name: node-1, secondaryAddresses: [127.91.0.9]}\n",
			"secondaryAddresses is [127.91.0.9 fd00:91::1] in the cloud", 1,
		},
		{
			"instances:\n- name: new\nroutes:\n- {name: node-1, destination: 10.245.0.0/16, instance: new}\n",
			"destination is 10.244.1.0/24 in the cloud", 1,
		},
		{
			"instances:\n- name: new\nloadBalancers:\n- {name: b, listeners: [{protocol: tcp, port: 1, targetPort: 1}], targets: [none]}\n",
			`instance "none" exists neither here nor in the cloud`, 1,
		},
		{
			"instances:\n- name: new\nloadBalancers:\n" +
				"- {name: b, listeners: [{protocol: https, port: 1, targetPort: 1, certificates: [none]}]}\n",
			`certificate "none" exists neither here nor in the cloud`, 1,
		},
	} {
		_, errs, code := r.runApply(c.manifest)
		assert.Equal(t, c.code, code, errs)
		assert.Contains(t, errs, c.says)
	}
	assert.Equal(t, before, countEvents(t, r.client))
	_, fails := r.commandRunners(t)
	fails(2, "give the manifest with -f FILE", "apply")
	fails(2, "no such file", "apply", "-f", filepath.Join(r.dir, "none"))
	fails(2, "standard input:1: is empty", "apply", "-f", "-")

	// If one fails, only those that refer to it fail too.
	out, errs, code := r.runApply(`
instances:
- name: far
  address: 127.90.0.1
- name: near
loadBalancers:
- {name: b, listeners: [{protocol: udp, port: 18091, targetPort: 1}], targets: [far]}
`)
	assert.Equal(t, 1, code)
	assert.Contains(t, errs, "address-in-use")
	assert.Contains(t, errs, `its instance "far" does not exist`)
	assert.Regexp(t, `(?m)^instance +far +failed`, out)
	assert.Regexp(t, `(?m)^instance +near +created`, out)
	assert.Regexp(t, `(?m)^load balancer +b +failed`, out)
}

// Certificates go by name or by ID, and targets by name or address, with what else targets have.
func TestApplyCertificatesAndTargets(t *testing.T) {
	r := newApplyRig(t)
	list := func() []api.LoadBalancer {
		return must.Do(r.client.ListLoadBalancers(t.Context(), client.LoadBalancerFilter{}))(t)
	}
	certificate, key := testcerts.For(t, "shop.example.com")
	manifest := must.Do(yaml.Marshal(map[string]any{
		"certificates": []any{map[string]any{"name": "shop", "certificate": certificate, "privateKey": key}},
	}))(t)
	web := string(manifest) + `
instances: [{name: node-1}, {name: node-2}]
loadBalancers:
- name: web
  listeners:
  - {protocol: https, port: 18443, targetPort: 30443, certificates: [shop], targets: [node-2, 127.91.0.10]}
  - {protocol: tcp, port: 18090, targetPort: 30080}
  - {protocol: tcp, port: 18091, targetPort: 30080, targets: []}
  targets:
  - node-1
  - 127.91.0.9
  - {instance: node-2, weight: 3, drain: true}
  - {ip: 127.91.0.10, weight: 1, backup: true}
`
	created := []string{"shop created", "node-1 created", "node-2 created", "web created"}
	assert.Equal(t, created, r.apply(web, "--wait"))
	unchanged := []string{"shop unchanged", "node-1 unchanged", "node-2 unchanged", "web unchanged"}
	assert.Equal(t, unchanged, r.apply(web))

	one, two := r.instance("node-1").ID, r.instance("node-2").ID
	certificates := must.Do(r.client.ListCertificates(t.Context(), client.CertificateFilter{}))(t)
	require.Len(t, certificates, 1)
	lb := list()[0]
	assert.Equal(t, []api.Target{
		{InstanceID: one}, {IP: "127.91.0.9"}, {InstanceID: two, Weight: 3, Drain: true}, {IP: "127.91.0.10", Backup: true},
	}, lb.Targets)
	assert.Equal(t, []string{certificates[0].ID}, lb.Listeners[0].CertificateIDs)
	assert.Equal(t, []api.Target{{InstanceID: two}, {IP: "127.91.0.10"}}, lb.Listeners[0].Targets)
	assert.Nil(t, lb.Listeners[1].Targets)
	assert.Equal(t, []api.Target{}, lb.Listeners[2].Targets)

	byID := strings.Replace(web, "certificates: [shop]", "certificateIds: ["+certificates[0].ID+"]", 1)
	assert.Equal(t, unchanged, r.apply(byID))
	for before, after := range map[string]string{
		"weight: 3": "weight: 1", "drain: true": "drain: false", "[node-2, 127.91.0.10]": "[node-2]",
		"targetPort: 30080}": "targetPort: 30080, targets: []}",
	} {
		changed := r.apply(strings.Replace(web, before, after, 1), "--dry-run")
		assert.Regexp(t, "web updated (targets|listeners)", changed[3], before)
	}
	assert.Equal(t, "web updated targets", r.apply(strings.Replace(web, "weight: 3", "weight: 1", 1))[3])
	assert.Zero(t, list()[0].Targets[2].Weight)
}
