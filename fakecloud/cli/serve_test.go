package cli

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestCheckBalancerMode(t *testing.T) {
	unreachableCloud(t)
	for says, args := range map[string][]string{
		`--load-balancer-mode "bridge": choose loopback, interface, none`: {
			"--load-balancer-mode", "bridge",
		},
		"name the interface with --load-balancer-interface": {
			"--load-balancer-mode", "interface",
		},
		"--load-balancer-mode none and --load-balancer-interface eth0: leave out one": {
			"--load-balancer-mode", "none", "--load-balancer-interface", "eth0",
		},
		"--load-balancer-mode loopback and --load-balancer-interface eth0: leave out one": {
			"--load-balancer-mode", "loopback", "--load-balancer-interface", "eth0",
		},
	} {
		code, _, errs := runCommand(t, append([]string{"serve", "--data", ":memory:"}, args...)...)
		assert.Equal(t, exitUsage, code, args)
		assert.Contains(t, errs, says)
	}
	for _, fits := range []serveOptions{
		{}, {loadBalancerInterface: "eth0"}, {loadBalancerMode: "interface", loadBalancerInterface: "eth0"},
		{loadBalancerMode: "loopback"}, {loadBalancerMode: "none"},
	} {
		assert.NoError(t, fits.checkBalancerMode(), fits)
	}
}
