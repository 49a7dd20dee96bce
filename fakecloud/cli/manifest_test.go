package cli

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const validManifest = `
instances:
- name: node-1
  zone: nebula-1a
  state: stopped
  tags: {a: b}
- {name: node-2}
loadBalancers:
- name: web
  listeners: [{protocol: tcp, port: 8080, targetPort: 30080}]
  targets: [node-1, node-2]
  healthCheck: {protocol: tcp, port: 10256}
---
routes:
- {name: node-1, destination: 10.244.1.0/24, instance: node-1}
`

func TestParseManifest(t *testing.T) {
	all, err := parseManifest("m", strings.NewReader(validManifest))
	require.NoError(t, err)
	require.Len(t, all, 4)
	assert.Equal(t, "stopped", all[0].state)
	assert.Equal(
		t, map[string]any{"name": "node-1", "zone": "nebula-1a", "tags": map[string]any{"a": "b"}}, all[0].given,
	)
	assert.Nil(t, all[1].refs)
	require.Empty(t, all[2].setIDs(map[string]string{"instances/node-1": "i-1", "instances/node-2": "i-2"}))
	assert.Equal(t, []any{map[string]any{"instanceId": "i-1"}, map[string]any{"instanceId": "i-2"}}, all[2].given["targets"])
	missing := all[3].setIDs(nil)
	require.Len(t, missing, 1)
	assert.Equal(t, `instance "node-1"`, missing[0].String())
	assert.Equal(t, "m:15: routes[0] (node-1)", all[3].position)
}

// All errors are reported at once, by line and field.
func TestManifestErrors(t *testing.T) {
	_, err := parseManifest("m", strings.NewReader(`instances:
- name: node-1
  zones: nebula-1a
  type: huge
  state: gone
- zone: a
- name: node-1
- {name: node-2, name: node-3}
- word
servers: []
loadBalancers:
- name: We/b
  listeners:
  - {protocol: tcp, port: 70000, targetPort: 1}
  targets: [node-1, node-1, 3]
routes:
- {name: r, destination: 10.0.0.0/8, instanceId: i-1}
firewalls:
- {name: f, instanceIds: [i-1], rules: [{protocol: icmp, firstPort: 1, lastPort: 1}]}
---
loadBalancers:
- name: web
  listeners:
  - protocol: https
    port: 1
    targetPort: 1
    certificates: [shop, 3]
    certificateIds: [cert-1]
    targets:
    - {weight: 3}
    - {instanceId: i-1}
    - {ip: 127.90.0.1, share: 3}
    - 127.90.0.1
    - {instance: a, ip: 127.90.0.2}
  targets: 127.90.0.1
`))
	var told []string
	for line := range strings.Lines(err.Error()) {
		told = append(told, strings.TrimSpace(line))
	}
	assert.Equal(t, []string{
		`m:3: instances[0] (node-1): zones is not known`,
		`m:4: instances[0] (node-1): type value is not one of the allowed values ["small","medium","large"]`,
		`m:5: instances[0] (node-1): state must be running or stopped`,
		`m:6: instances[1].name is required: it is how a resource is found again`,
		`m:7: instances: "node-1" is already the name of the one in line 2`,
		`m:8: instances[3]: line 8: mapping key "name" already defined at line 8`,
		`m:9: instances[4] must be a mapping`,
		`m:10: servers is not known: choose among quotas, networks, addresses, certificates, instances, loadBalancers, firewalls, routes`,
		`m:12: loadBalancers[0] (We/b): name string doesn't match the regular expression "^[!$&-+.0-;@-\[\]-~]([ !$&-+.0-;@-\[\]-~-]*[!$&-+.0-;@-\[\]-~-])?$"`,
		`m:14: loadBalancers[0] (We/b): listeners.0.port number must be at most 65535`,
		`m:15: loadBalancers[0] (We/b): targets.1 is named twice`,
		`m:15: loadBalancers[0] (We/b): targets.2 must be a mapping with either instance (a name) or ip`,
		`m:17: routes[0] (r): instance property "instance" is missing`,
		`m:17: routes[0] (r): instanceId is not known: give the name as instance`,
		`m:19: firewalls[0] (f): instanceIds is not known: give the names as instances`,
		`m:19: firewalls[0] (f): rules.0.protocol value is not one of the allowed values ["tcp","udp"]`,
		`m:27: loadBalancers[0] (web): listeners.0.certificates.1 must be a name`,
		`m:28: loadBalancers[0] (web): listeners.0.certificateIds is not known: give the names as certificates`,
		`m:30: loadBalancers[0] (web): listeners.0.targets.0 must be a mapping with either instance (a name) or ip`,
		`m:31: loadBalancers[0] (web): listeners.0.targets.1 must be a mapping with either instance (a name) or ip`,
		`m:31: loadBalancers[0] (web): listeners.0.targets.1.instanceId is not known: give the name as instance`,
		`m:32: loadBalancers[0] (web): listeners.0.targets.2.share is not known`,
		`m:33: loadBalancers[0] (web): listeners.0.targets.3 is named twice`,
		`m:34: loadBalancers[0] (web): listeners.0.targets.4 must be a mapping with either instance (a name) or ip`,
		`m:35: loadBalancers[0] (web): targets must be a list of names`,
	}, told)
	for manifest, want := range map[string]string{
		"":                                  "is empty: give",
		"instances:":                        "is empty: give",
		"quotas: {instances: -1, disks: 2}": "m:1: quotas: disks is not known",
		"quotas: []":                        "quotas must be a mapping",
		"routes: [{name: r, destination: 10.0.0.0/8, instance: 3}]": "instance must be a name",
		"[]":                                   "must be a mapping",
		"instances: {}":                        "must be a list",
		"a: [":                                 "line 1",
		"instances: [{name: a, tags: {1: 2}}]": "keys that are not strings",
		"instances: []\ninstances: []":         "in line 1 already",
	} {
		_, err := parseManifest("m", strings.NewReader(manifest))
		require.ErrorContains(t, err, want, manifest)
	}
}

func FuzzManifest(f *testing.F) {
	f.Add(validManifest)
	f.Add("instances: [&a {name: x, tags: {b: *a}}]")
	f.Add("instances:\n- &a {name: x}\n- *a\nroutes: [{name: r, instance: [1]}]")
	f.Add("loadBalancers: [{name: a, listeners: [{certificates: [b], targets: [{instance: c}, {ip: d}]}]}]")
	f.Add("loadBalancers: [{name: 1, targets: x, healthCheck: [], listeners: {}}]")
	f.Fuzz(func(t *testing.T, manifest string) {
		all, err := parseManifest("m", strings.NewReader(manifest))
		if err != nil {
			require.NotEmpty(t, err.Error())
			return
		}
		require.NotEmpty(t, all)
		for _, w := range all {
			require.NotEmpty(t, w.name)
		}
	})
}

func TestIncludesAll(t *testing.T) {
	m := func(pairs ...any) map[string]any {
		out := map[string]any{}
		for i := 0; i+1 < len(pairs); i += 2 {
			out[pairs[i].(string)] = pairs[i+1]
		}
		return out
	}
	for _, same := range [][2]any{
		{"a", "a"}, {1.0, 1.0}, {nil, ""}, {nil, 0.0}, {nil, false}, {nil, []any{}}, {nil, m()},
		{m("a", "b", "c", "d"), m("a", "b")}, {[]any{1.0, 2.0}, []any{2.0, 1.0, 1.0}},
		{[]any{m("port", 1.0, "limit", 0.0)}, []any{m("port", 1.0)}},
	} {
		assert.True(t, includesAll(same[0], same[1]), same)
	}
	for _, other := range [][2]any{
		{"a", "b"}, {nil, "a"}, {nil, 1.0}, {"1", 1.0}, {m("a", "b"), m("a", "c")}, {nil, m("a", "b")},
		{[]any{1.0}, []any{}}, {nil, []any{1.0}}, {[]any{1.0, 2.0}, []any{1.0}},
		{[]any{m("port", 1.0)}, []any{m("port", 2.0)}}, {"a", []any{"a"}},
	} {
		assert.False(t, includesAll(other[0], other[1]), other)
	}
}
