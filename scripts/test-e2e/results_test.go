package main

import (
	"bytes"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// output is what ginkgo prints with -v, abridged.
const output = `Running Suite: Kubernetes e2e suite
------------------------------
• [1.250 seconds]
[sig-network] LoadBalancers [Feature:LoadBalancer] should work [sig-network, Feature:LoadBalancer]
k8s.io/kubernetes@v1.36.3/test/e2e/network/loadbalancer.go:132
------------------------------
• [SLOW TEST] [1065.000 seconds]
[sig-network] LoadBalancers should be slow
------------------------------
SSSS
------------------------------
• [FAILED] [3.100 seconds]
[sig-network] LoadBalancers [It] should fail [sig-network, Slow]

  Timeline >>
  [FAILED] in [It] - loadbalancer.go:12 @ 11/26/26
  << Timeline

  [FAILED] no answer
  In [It] at: loadbalancer.go:12
------------------------------
S [SKIPPED] [0.500 seconds]
[sig-network] LoadBalancers should be skipped

  [SKIPPED] too few nodes
------------------------------

Summarizing 1 Failure:
  [FAIL] [sig-network] LoadBalancers
`

// Each test's result is printed once, wherever ginkgo's output is cut.
func TestResultPrinter(t *testing.T) {
	var printed bytes.Buffer
	p := newResultPrinter(&printed)
	for data := []byte(output); len(data) > 0; {
		part := data[:min(7, len(data))]
		n, err := p.Write(part)
		require.NoError(t, err)
		data = data[n:]
	}
	p.Summarize()
	text := regexp.MustCompile(`(?m)^ *0s `).ReplaceAllString(printed.String(), "")
	assert.Equal(t, strings.Join([]string{
		" passed    1.250s  [sig-network] LoadBalancers [Feature:LoadBalancer] should work",
		" passed  1065.000s  [sig-network] LoadBalancers should be slow",
		" failed    3.100s  [sig-network] LoadBalancers should fail",
		"                         no answer",
		" skipped   0.500s  [sig-network] LoadBalancers should be skipped",
		"                         too few nodes",
		"Summarizing 1 Failure:", "  [FAIL] [sig-network] LoadBalancers",
		"2 passed, 1 failed, 1 skipped, in 0s", "",
	}, "\n"), text)
}
