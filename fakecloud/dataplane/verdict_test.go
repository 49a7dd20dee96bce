package dataplane

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

func TestVerdictNeedsSeveralInARow(t *testing.T) {
	how := cloud.HealthCheck{HealthyThreshold: 2, UnhealthyThreshold: 3}
	for checks, want := range map[string]string{ // + is passed, - is failed; healthy or not after each
		"+":             "+",
		"-":             "-",
		"+--+---":       "+++++" + "+-",
		"-+-++-+--+---": "----++++++++-",
	} {
		var v verdict
		got := ""
		for _, c := range checks {
			got += map[cloud.Health]string{cloud.Healthy: "+", cloud.Unhealthy: "-"}[v.after(c == '+', how)]
		}
		assert.Equal(t, want, got, checks)
	}
}
