package cli_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

func TestCommands(t *testing.T) {
	dir := t.TempDir()
	p := startServe(t, dir, "--default-tag", "cluster=lab", "--zones", "z1,z2", "--target-range", "172.18.0.0/24")
	info := must.Do(os.Stat(p.token))(t)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	info = must.Do(os.Stat(filepath.Dir(p.token)))(t)
	assert.Equal(t, os.FileMode(0o700), info.Mode().Perm())

	ok, fails := p.commandRunners(t)
	assert.Equal(
		t, "NAME   REGION     STATE\nz1     nebula-1   available\nz2     nebula-1   available\n", ok("zones", "list"),
	)
	out := ok("instances", "create", "node-1", "--zone", "z2", "--type", "large", "--tag", "a=b", "--wait")
	assert.Regexp(t, `(?m)^node-1\s+i-\S+\s+z2\s+large\s+running\s+127\.90\.0\.1\s+\ds$`, out)
	ok("instances", "create", "--name", "true")
	assert.Regexp(t, `(?m)^name: "true"$`, ok("instances", "get", "true", "-o", "yaml"))
	var list api.InstanceList
	require.NoError(
		t, json.Unmarshal([]byte(ok("instances", "list", "-o", "json", "--tag", "a=b", "--tag", "cluster=lab")), &list),
	)
	require.Len(t, list.Items, 1)
	assert.Contains(t, ok("instances", "stop", "node-1", list.Items[0].ID, "--wait"), "stopped")
	assert.Contains(t, ok("instances", "start", "node-1", "--wait"), "running")
	assert.Contains(t, ok("__complete", "instances", "stop", "no"), "node-1\n")

	ok("instances", "create", "there", "--address", "172.18.0.3")
	fails(1, "--target-range 169.254.169.254/32", "instances", "create", "here", "--address", "169.254.169.254")

	out = ok("routes", "create", "one", "--destination", "10.244.1.0/24", "--instance", "node-1", "--tag", "a=b")
	assert.Regexp(t, `(?m)^one\s+r-\S+\s+10\.244\.1\.0/24\s+i-\S+\s+active\s+\ds\s+-$`, out)
	assert.Contains(t, ok("routes", "list", "--tag", "a=b"), "10.244.1.0/24")
	assert.Contains(t, ok("__complete", "routes", "get", ""), "one\n")
	ok("instances", "stop", "node-1", "--wait")
	assert.Contains(t, ok("routes", "get", "one"), "instance is stopped")
	assert.Contains(t, ok("events"), "active -> blackhole: instance is stopping")
	ok("instances", "start", "node-1", "--wait")
	fails(2, "needs --destination", "routes", "create", "two")
	fails(1, "no route is named", "routes", "delete", "none")
	ok("routes", "delete", "one")
	assert.NotContains(t, ok("routes", "list"), "one")

	out = ok("load-balancers", "create", "-o", "wide", "full", "--listener", "18085:30080", "--proxy-protocol", "v2", "--target", "there",
		"--source-range", "10.0.0.0/8,127.0.0.0/8", "--client-affinity", "10m", "--health-check", "http:10256/healthz",
		"--health-check-interval", "1s")
	assert.Regexp(t, `18085:30080/tcp\+v2\s+1\s+http:10256/healthz\s+10\.0\.0\.0/8\+1\s+affinity=600s\s`, out)
	assert.Contains(t, ok("load-balancers", "get", "full", "-o", "yaml"), "intervalSeconds: 1\n")
	assert.Regexp(t, `(?m)^there\s+(unknown|unhealthy)\s`, ok("load-balancers", "health", "full"))
	ok("load-balancers", "delete", "full")
	testAddressCommands(t, ok, fails)
	fails(
		2, "want tcp:PORT, http:PORT[/PATH] or https:PORT[/PATH]", "load-balancers", "create", "x", "--listener", "1:2", "--health-check",
		"icmp:1",
	)
	fails(
		2, "give --health-check too", "load-balancers", "create", "x", "--listener", "1:2", "--healthy-threshold", "3",
	)
	fails(2, "whole seconds", "load-balancers", "create", "x", "--listener", "1:2", "--client-affinity", "1500ms")
	fails(2, "want PORT:TARGETPORT", "load-balancers", "create", "x", "--listener", "1:2/sctp")

	testTargetsAndRules(t, ok, fails)
	manifest := filepath.Join(dir, "checked.yaml")
	require.NoError(t, os.WriteFile(manifest, []byte("loadBalancers:\n- name: checked\n  listeners:\n"+
		"  - {protocol: tcp, port: 18088, targetPort: 1, healthCheck: {protocol: http, port: 2}}\n"), 0o600))
	assert.Contains(t, ok("apply", "-f", manifest), "created")
	assert.Contains(t, ok("apply", "-f", manifest), "unchanged")
	out = ok("load-balancers", "get", "checked", "-o", "yaml")
	assert.Regexp(t, `(?s)listeners:\n- healthCheck:\n.*\n    path: /\n.*port: 18088`, out)
	ok("load-balancers", "delete", "checked")

	assert.Regexp(t, `(?m)^bare\s+provisioning\s+\S+\s+-\s+0\s`, ok("load-balancers", "create", "bare"))
	assert.Contains(t, ok("load-balancers", "update", "bare", "--listener", "18087:1", "--wait"), " 18087:1/tcp ")
	assert.Regexp(
		t, `(?m)^bare\s+active\s+\S+\s+-\s+0\s`, ok("load-balancers", "update", "bare", "--no-listeners", "--wait"),
	)
	fails(2, "one of the two", "load-balancers", "update", "bare", "--no-listeners", "--listener", "18087:1")
	out = ok("load-balancers", "update", "bare", "--deletion-protection", "--type", "small", "-o", "wide")
	assert.Regexp(t, `(?m)^bare\s.*\ssmall,protected\s`, out)
	assert.Regexp(t, `(?m)^small\s+5\s+25\s+10000$`, ok("load-balancer-types", "list"))
	fails(1, "--deletion-protection=false", "load-balancers", "delete", "bare")
	ok("load-balancers", "update", "bare", "--deletion-protection=false")
	ok("load-balancers", "delete", "bare")

	out = ok("load-balancers", "create", "-o", "wide", "web", "--listener", "18081:30080", "--target", "node-1")
	assert.Contains(t, out, "provisioning")
	assert.Contains(t, ok("load-balancers", "list"), "18081:30080/tcp")
	assert.Regexp(t, `(?s)^LISTENER .*\n18081/tcp .*\n\nTARGET .*\nnode-1 `, ok("load-balancers", "stats", "web"))
	assert.Contains(t, ok("load-balancers", "stats", "web", "-o", "json"), `"bytesOut": 0`)
	fails(2, "give --watch too", "load-balancers", "stats", "web", "--interval", "5s")
	fails(2, "want 100ms at least", "load-balancers", "stats", "web", "--watch", "--interval", "0s")
	ok("instances", "stop", "node-1", "--wait")
	assert.Regexp(
		t, `(?m)^node-1\s+-\s+- -> unhealthy\s+instance is stopped$`,
		ok("load-balancers", "health", "web", "--history"),
	)
	assert.Contains(t, ok("instances", "terminate", "node-1", "--wait"), "terminated")
	assert.Contains(t, ok("load-balancers", "get", "web", "-o", "json"), `"targets": []`)
	assert.Contains(t, ok("load-balancers", "delete", "web"), "deleting")
	assert.NotContains(t, ok("instances", "list"), "node-1")
	assert.Contains(t, ok("instances", "get", "node-1"), "terminated")
	var first api.Event
	require.NoError(t, json.NewDecoder(strings.NewReader(ok("events", "-o", "json"))).Decode(&first))
	assert.Regexp(t, fmt.Sprintf(`^%d .*created .* - -> pending\n`, first.Seq), ok("events"))
	out = ok("events", "--after", fmt.Sprint(first.Seq))
	assert.Contains(t, out, "pending -> running")
	assert.NotContains(t, out, fmt.Sprint(first.Seq))
	assert.Contains(t, ok("--version"), "fakecloud version")

	fails(1, "no instance is named", "instances", "stop", "nobody")
	fails(1, "\nfakecloud: no instance is named \"nothing\"", "instances", "stop", "nobody", "nothing")
	ok("load-balancers", "create", "kept", "--listener", "18082:30080")
	for _, args := range [][]string{
		{"instances", "get", ""}, {"instances", "terminate", ""}, {"load-balancers", "delete", "kept", ""},
		{"load-balancers", "stats", ""},
		{"load-balancers", "create", "more", "--listener", "18083:30080", "--target", ""},
	} {
		fails(2, "an empty name or ID", args...)
	}
	assert.NotContains(t, ok("load-balancers", "list"), "deleting")
	assert.Contains(t, ok("__complete", "load-balancers", "get", ""), "kept\n")
	fails(2, "`fakecloud instances` has no command \"fly\"", "instances", "fly")
	fails(2, "`fakecloud` has no command \"instance\"; did you mean instance-types or instances?", "instance")
	fails(2, "did you mean --state or --tag?", "instances", "list", "--stat", "running")
	fails(2, "wants NAME|ID..., and was given nothing", "instances", "stop")
	fails(2, "want one of table, wide, json, yaml", "zones", "list", "-o", "xml")
	fails(2, "only loopback addresses", "serve", "--listen", "0.0.0.0:8470")
	fails(2, "--tls-cert", "serve", "--listen", "0.0.0.0:8470")
	fails(2, "needs both", "serve", "--tls-cert", "x")
	fails(1, "no such file", "serve", "--tls-cert", filepath.Join(dir, "none"), "--tls-key", filepath.Join(dir, "none"))
	fails(2, "--tls-self-signed", "serve", "--listen", "0.0.0.0:8470")
	fails(2, "one or the other", "serve", "--tls-self-signed", "--tls-cert", "x")
	fails(2, "is for --tls-self-signed", "serve", "--tls-san", "x")
	fails(
		2, "want an IP address or a DNS name", "serve", "--tls-self-signed", "--tls-san", "a b", "--data",
		filepath.Join(dir, "other", "cloud.db"),
	)
	fails(2, "--target-range", "serve", "--target-range", "here")
	fails(2, "want an IPv4 CIDR", "serve", "--target-range", "fd00::/64", "--data", ":memory:", "--listen", "127.0.0.1:0")
	fails(2, "choose real or virtual", "serve", "--clock", "wall")
	fails(2, "CA file", "zones", "list", "--ca-file", filepath.Join(dir, "none"))
	spare := []string{
		"serve", "--listen", "127.0.0.1:0", "--data", ":memory:", "--token", "a=" + filepath.Join(dir, "spare"),
	}
	fails(2, "--default-tag: tag key", append(spare, "--default-tag", "=x")...)
	fails(2, "no role \"owner\"", append(spare, "--token", "b:owner=x")...)
	fails(2, "want NAME=FILE or NAME:ROLE=FILE", append(spare, "--token", ":admin=x")...)
	fails(2, "cannot be negative", append(spare, "--retention", "-1s")...)
	fails(2, "give one second or more", append(spare, "--access-token-lifetime", "0")...)
	fails(1, "the same secret", append(spare, "--token", "b="+filepath.Join(dir, "spare"))...)
	fails(
		1, "in use by another fakecloud", "serve", "--listen", "127.0.0.1:0", "--data", filepath.Join(dir, "cloud.db"),
	)
	fails(1, "FAKECLOUD_TOKEN_FILE", "zones", "list", "--token-file", filepath.Join(dir, "none"))

	wrong := filepath.Join(dir, "wrong")
	require.NoError(t, os.WriteFile(wrong, []byte("not-the-right-token"), 0o600))
	fails(1, "unauthenticated", "zones", "list", "--token-file", wrong)
	p.kill()
	fails(1, "is `fakecloud serve` running?", "zones", "list")
}

func TestFaultCommands(t *testing.T) {
	dir := t.TempDir()
	ccm := filepath.Join(dir, "ccm")
	p := startServe(t, dir, "--token", "ccm="+ccm)
	ok, fails := p.commandRunners(t)
	assert.Equal(t, "ID   MATCH   EFFECT   HITS   AGE\n", ok("faults", "list"))
	out := ok(
		"faults", "create", "-o", "wide", "--token", "ccm", "--operation", "listZones,getProject", "--times", "2",
		"--delay", "1ms", "--status", "429", "--retry-after", "5s",
	)
	assert.Regexp(
		t,
		`(?m)^f-\S+\s+token=ccm operation=listZones\|getProject\s+delay=1ms status=429 retry-after=5s\s+always\s+0/2\s+0\s+\ds$`,
		out,
	)
	fails(1, "rate-limited", "zones", "list", "--token-file", ccm)
	assert.Contains(t, ok("zones", "list"), "nebula-1a")
	var list api.FaultList
	require.NoError(t, json.Unmarshal([]byte(ok("faults", "list", "-o", "json")), &list))
	require.Len(t, list.Items, 1)
	assert.Equal(t, 1, list.Items[0].Hits)
	assert.Contains(t, ok("faults", "get", list.Items[0].ID, "-o", "yaml"), "hits: 1\n")
	assert.Contains(t, ok("__complete", "faults", "get", ""), list.Items[0].ID+"\n")
	assert.Contains(t, ok("__complete", "faults", "create", "--operation", ""), "listLoadBalancers\n")

	assert.Regexp(t, `every call\s+empty-list\s+always\s+0\s+0\s`, ok("faults", "create", "-o", "wide", "--empty-list"))
	assert.Equal(t, "NAME   REGION   STATE\n", ok("zones", "list"))
	assert.Regexp(t, `resource=i-1\b.*status=404 project=p-1\s`, ok(
		"faults", "create", "-o", "wide", "--resource", "i-1", "--status", "404", "--answer-project", "p-1",
		"--project", "default",
	))
	out = ok("faults", "create", "--body", "", "--content-type", "text/html", "--operation", "listRoutes", "-o", "json")
	assert.Contains(t, out, `"body": ""`)
	ok("faults", "create", "--hang", "--token", "nobody")
	ok("faults", "create", "--drop", "--token", "nobody")
	ok("faults", "delete", list.Items[0].ID)
	fails(1, "not-found", "faults", "delete", list.Items[0].ID)
	ok("faults", "delete", "--all")
	assert.Equal(t, "ID   MATCH   EFFECT   HITS   AGE\n", ok("faults", "list"))

	out = ok("audit", "sum", "--by", "token", "--by", "operation")
	assert.Regexp(t, `(?m)^ccm\s+-\s+listZones\s+1\s+1\s+1\s+1\s+\S+ms\s+0\s+\d{3}$`, out)
	assert.Regexp(t, `(?m)^operator\s+-\s+listZones\s+2\s+0\s+1\s+0\s+\S+ms\s+0\s+\d{3}$`, out)
	assert.NotContains(t, ok("audit", "sum", "--token", "ccm"), "operator")
	assert.Contains(t, ok("audit", "sum", "--token", "nobody", "-o", "json"), `"items": []`)
	assert.Regexp(
		t, `^TIME.*\n\S+\s+ccm\s+fakecloud-cli/.*\s+listZones\s+-\s+429 rate-limited f-\S+\s+\S+ms\s+0\s+\d{3}\n$`,
		ok("audit", "list", "-o", "wide", "--token", "ccm"),
	)
	assert.Equal(t, 2, strings.Count(ok("audit", "list", "--limit", "1"), "\n"))
	assert.Contains(t, ok("audit", "list", "--status", "5xx", "-o", "json"), `"items": []`)
	assert.Contains(t, ok("__complete", "audit", "sum", "--operation", ""), "createInstance\n")
	fails(2, "--status", "audit", "list", "--status", "200")
	fails(2, "--by", "audit", "sum", "--by", "project")

	fails(2, "needs an effect", "faults", "create", "--token", "ccm")
	fails(2, "--status and --hang", "faults", "create", "--status", "500", "--hang")
	fails(2, "whole milliseconds", "faults", "create", "--delay", "1us")
	fails(2, "whole seconds", "faults", "create", "--status", "429", "--retry-after", "100ms")
	fails(2, "1 or more", "faults", "create", "--drop", "--times", "0")
	fails(1, "effect.dialectCode", "faults", "create", "--dialect-code", "conflict") // No dialect is spoken here.
	fails(2, "one effect only", "faults", "create", "--dialect-code", "conflict", "--drop")
	fails(1, "match.operations.0", "faults", "create", "--drop", "--operation", "fly")
	fails(1, "effect.project", "faults", "create", "--drop", "--answer-project", "p-1")
	fails(2, "or --all", "faults", "delete")
	fails(2, "or --all", "faults", "delete", "--all", "f-1")
	fails(2, "an empty name or ID", "faults", "get", "")
}

// testAddressCommands runs commands by the functions of commandRunners.
func testAddressCommands(t *testing.T, ok func(...string) string, fails func(int, string, ...string)) {
	t.Helper()
	out := ok("addresses", "reserve", "shop", "--tag", "a=b")
	assert.Regexp(t, `(?m)^shop\s+a-\S+\s+127\.\S+\s+available\s+-\s+\ds$`, out)
	ip := strings.Fields(strings.Split(out, "\n")[1])[2]
	assert.Regexp(t, `shop\s+a-\S+\s+\S+\s+in-use\s+i-`, ok("addresses", "attach", "shop", "there"))
	assert.Contains(t, ok("instances", "get", "there", "-o", "yaml"), "ip: "+ip+"\n  type: external")
	assert.Contains(t, ok("addresses", "detach", ip), "available")
	assert.Contains(t, ok("addresses", "update", "shop", "--name", "store", "--tag", "c=d"), "store")
	assert.Contains(t, ok("addresses", "list", "--tag", "c=d", "--state", "available"), ip)
	assert.Contains(t, ok("__complete", "addresses", "attach", ""), "store\n")
	assert.Contains(t, ok("__complete", "addresses", "attach", "store", ""), "there\n")
	fails(2, "nothing to update", "addresses", "update", "store")
	fails(2, "choose among available, in-use", "addresses", "list", "--state", "lost")
	fails(2, "an empty name or ID", "addresses", "get", "")
	fails(1, "no address of that name or IP", "addresses", "get", "shop")

	out = ok("load-balancers", "create", "-o", "wide", "all", "--listener", "18086:30080", "--listener", "18086:30080/udp", "--address", "store", "--algorithm", "least-connections",
		"--idle-timeout", "1m", "--drain", "30s", "--connection-limit", "100", "--health-check", "http:10256",
		"--expected-codes", "200-204")
	assert.Regexp(t, `\s`+regexp.QuoteMeta(ip)+
		`\s+18086:30080/tcp\+max100,18086:30080/udp\+max100\s.*\sleast-connections,idle=60s,drain=30s\s`, out)
	assert.Contains(t, ok("__complete", "load-balancers", "create", "x", "--address", ""), "store\n")
	assert.Contains(t, ok("__complete", "load-balancers", "update", "all", "--algorithm", ""), "source-hash\n")
	out = ok("load-balancers", "update", "-o", "wide", "all", "--target", "there", "--proxy-protocol", "v1", "--algorithm", "round-robin", "--idle-timeout", "0s",
		"--health-check-interval", "7s", "--source-range", "127.0.0.0/8")
	assert.Regexp(
		t, `18086:30080/tcp\+v1\+max100,18086:30080/udp\+max100\s+1\s+http:10256/\s+127\.0\.0\.0/8\s+drain=30s\s`, out,
	)
	assert.Regexp(
		t, `expectedCodes: 200-204\n\s+healthyThreshold: 2\n\s+intervalSeconds: 7\n`,
		ok("load-balancers", "get", "all", "-o", "yaml"),
	)
	out = ok(
		"load-balancers", "update", "-o", "wide", "all", "--name", "every", "--listener", "18087:30080", "--no-targets",
		"--source-range", "", "--health-check", "none", "--drain", "0s",
	)
	assert.Regexp(t, `(?m)^every\s.*18087:30080/tcp\s+0\s+-\s+any\s+-\s`, out)
	fails(2, "nothing to update", "load-balancers", "update", "every")
	fails(2, "give one of the two", "load-balancers", "update", "every", "--no-targets", "--target", "there")
	fails(2, "give --health-check too", "load-balancers", "update", "every", "--expected-codes", "200")
	fails(2, "whole seconds", "load-balancers", "update", "every", "--drain", "1500ms")
	fails(1, "which is public", "load-balancers", "update", "every", "--scheme", "internal")
	ok("load-balancers", "delete", "every")
	require.Eventually(t, func() bool { return strings.Contains(ok("addresses", "list"), "available") },
		testTimeout, time.Millisecond, "the balancer keeps its address")
	ok("addresses", "release", "store")
	assert.NotContains(t, ok("addresses", "list"), "store")
}

func TestFollowEndsWithCtrlC(t *testing.T) {
	p := startServe(t, t.TempDir(), "--profile", "instant")
	lines, end := p.startWatch(t, "events", "--follow")
	must.Do(p.client.CreateInstance(t.Context(), api.InstanceCreate{}))(t)
	require.True(t, lines.Scan(), lines.Err())
	assert.Contains(t, lines.Text(), "-> pending")
	end()
}

// testTargetsAndRules tests the short forms of targets and of firewalls' rules.
func testTargetsAndRules(
	t *testing.T, ok func(args ...string) string, fails func(code int, says string, args ...string),
) {
	t.Helper()
	create := []string{"load-balancers", "create", "mixed", "--listener", "18089:1", "--target"}
	ok(append(create, "172.18.0.9", "--target", "there")...)
	assert.Regexp(t, `(?s)targets:\n- ip: 172.18.0.9\n- instanceId: i-\S+\n`, ok("load-balancers", "get", "mixed", "-o", "yaml"))
	assert.Regexp(t, `(?m)^172\.18\.0\.9 +(unknown|unhealthy) `, ok("load-balancers", "health", "mixed"))
	ok("load-balancers", "delete", "mixed")
	fails(1, "targets.0.ip", append(create, "8.8.8.8")...)
	fails(1, "targets.0.ip", append(create, "fd00::1")...)
	fails(1, `no instance is named "172.18.0"`, append(create, "172.18.0")...)

	create = []string{"firewalls", "create", "web", "--instance", "there", "--allow"}
	for _, rule := range []string{"tcp", "tcp:", "tcp:a@10.0.0.0/8", "tcp:1-@10.0.0.0/8"} {
		fails(2, "with a source tcp:30080@10.0.0.0/8", append(create, rule)...)
	}
	fails(1, "rules.0.sources.0", append(create, "tcp:1@10.0.0.0")...)
	fails(1, "rules.0.sources.0", append(create, "tcp:1@")...)
	out := ok(append(create, "tcp:30080@10.0.0.0/8", "--allow", "udp:1-3@10.0.0.0/8@127.0.0.0/8")...)
	assert.Contains(t, out, " tcp:30080@10.0.0.0/8,udp:1-3@10.0.0.0/8@127.0.0.0/8 ")
	ok("firewalls", "delete", "web")
}
