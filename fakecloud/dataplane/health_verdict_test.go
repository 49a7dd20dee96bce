package dataplane

import (
	"errors"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

func TestHealthVerdictThresholds(t *testing.T) {
	how := cloud.HealthCheck{HealthyThreshold: 2, UnhealthyThreshold: 3}
	// + is passed, - is failed, r is refused; upper case (P, F, R) when a client met
	// with a failure before. Healthy or not after each.
	for checks, want := range map[string]string{
		"+":             "+",
		"-":             "-",
		"r":             "-",
		"+--+---":       "+++++" + "+-",
		"+rr+rrr":       "+++++" + "+-",
		"-+-++-+--+---": "----++++++++-",
		"+R":            "+-",
		"+-R":           "++-",
		"+FFFFFFF":      "++++++++",
		"+F-P-F-":       "++++++-",
		"-PPPPP":        "------",
		"-P+P+":         "----+",
		"F":             "-",
		"+RP+P+":        "+----+",
	} {
		var v verdict
		got := ""
		for _, c := range checks {
			errs := map[rune]error{'-': errors.New("sick"), 'F': errors.New("sick"), 'r': syscall.ECONNREFUSED, 'R': syscall.ECONNREFUSED}
			doubted := c == 'P' || c == 'F' || c == 'R'
			got += map[cloud.Health]string{cloud.Healthy: "+", cloud.Unhealthy: "-"}[v.addCheck(errs[c], doubted, how)]
		}
		assert.Equal(t, want, got, checks)
	}
}
