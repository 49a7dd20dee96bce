package cli_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// cidr6 is of addresses that no machine has, so that a balancer with one cannot listen.
const cidr6 = "2001:db8:30::/64"

func TestIPFamilyCommands(t *testing.T) {
	p := startServe(t, t.TempDir(), "--load-balancer-cidr6", cidr6)
	ok, fails := p.commandRunners(t)
	out, errs, code := p.run(
		t, "load-balancers", "create", "web", "--listener", "18086:30080", "--ip-family", "ipv4,ipv6", "--wait",
	)
	require.Equal(t, 1, code, "it cannot be built")
	assert.Regexp(t, `(?m)^web\s+error\s+127\.[0-9.]+,2001:db8:30::1\s`, out)
	assert.Regexp(t, `--load-balancer-cidr6|this machine has no IPv6`, out+errs)
	out = ok("load-balancers", "get", "web", "-o", "yaml")
	assert.Regexp(t, `(?m)^ipFamilies:\n\s*- ipv4\n\s*- ipv6$`, out)
	assert.Contains(t, out, "ipv6Address: 2001:db8:30::1\n")

	for says, args := range map[string][]string{
		"must be ipv4 or ipv6": {"--ip-family", "ipv5"},
		"has an IPv4 address":  {"--ip-family", "ipv6"},
	} {
		fails(1, says, append([]string{"load-balancers", "create", "x", "--listener", "1:2"}, args...)...)
	}
	fails(2, "unknown flag", "load-balancers", "update", "web", "--ip-family", "ipv4")
	for says, cidr := range map[string]string{
		"--load-balancer-cidr6": "fd00::", "link-local": "fe80::/64", "IPv6 unicast": "127.0.0.0/8",
	} {
		fails(
			2, says, "serve", "--listen", "127.0.0.1:0", "--data", ":memory:", "--token", "a="+t.TempDir()+"/token",
			"--load-balancer-cidr6", cidr,
		)
	}
}

func TestApplyIPFamilies(t *testing.T) {
	const manifest = "loadBalancers:\n- name: web\n  listeners: [{protocol: tcp, port: 18087, targetPort: 30080}]\n  sourceRanges: [\"fd00::/8\"]\n  ipFamilies: "
	dir := t.TempDir()
	r := &applyRig{startServe(t, dir, "--load-balancer-cidr6", cidr6), t, dir}
	assert.Equal(t, []string{"web created"}, r.apply(manifest+"[ipv6, ipv4]"))
	assert.Equal(t, []string{"web unchanged"}, r.apply(manifest+"[ipv4, ipv6]"))
	_, errs, code := r.runApply(manifest + "[ipv4]")
	assert.Equal(t, 1, code)
	assert.Contains(t, errs, "ipFamilies is [ipv4 ipv6] in the cloud")
	assert.Contains(t, errs, "cannot be changed")
}
