package dataplane

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

func TestHealthVerdictThresholds(t *testing.T) {
	how := cloud.HealthCheck{HealthyThreshold: 2, UnhealthyThreshold: 3}
	// Checks: + passed, - failed, r refused; P, F and R the same, requested because a
	// client's connection failed; ! could not be made for lack of files. want is the health after each, ? unknown.
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
		"!!+":           "??+",
		"+!!!!":         "+++++",
		"-!+!+":         "----+",
		"+RP+P+":        "+----+",
	} {
		var v verdict
		got := ""
		for _, c := range checks {
			errs := map[rune]error{
				'-': errors.New("sick"), 'F': errors.New("sick"), 'r': syscall.ECONNREFUSED, 'R': syscall.ECONNREFUSED,
				'!': &net.OpError{Op: "dial", Err: os.NewSyscallError("socket", syscall.EMFILE)},
			}
			requested := c == 'P' || c == 'F' || c == 'R'
			got += map[api.TargetHealthState]string{
				api.TargetHealthy: "+", api.TargetUnhealthy: "-", api.TargetUnknown: "?",
			}[v.addCheck(errs[c], requested, how)]
		}
		assert.Equal(t, want, got, checks)
	}
}
