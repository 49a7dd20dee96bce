package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const report = `
{"config": {"protocol_version": "v1.0.0"}}
{"osv": {"id": "GO-1", "summary": "a hole"}}
{"osv": {"id": "GO-2", "summary": "another hole"}}
{"finding": {"osv": "GO-1", "fixed_version": "v1.1.0", "trace": [{"module": "example.com/a", "version": "v1.0.0"}]}}
{"finding": {"osv": "GO-1", "fixed_version": "v1.1.0", "trace": [{"module": "example.com/a", "version": "v1.0.0", "package": "example.com/a/b"}]}}
{"finding": {"osv": "GO-1", "fixed_version": "v1.1.0", "trace": [{"module": "example.com/a", "version": "v1.0.0", "package": "example.com/a/c"}]}}
{"finding": {"osv": "GO-2", "trace": [{"module": "example.com/c", "version": "v2.0.0", "package": "example.com/c"}]}}
{"finding": {"osv": "GO-2", "trace": [{"module": "example.com/unused", "version": "v2.0.0"}]}}
{"finding": {"osv": "GO-1", "fixed_version": "v1.26.9", "trace": [{"module": "stdlib", "version": "v1.26.8", "package": "net/http"}]}}
`

func TestCompareWithAccepted(t *testing.T) {
	findings, err := parseReport(strings.NewReader(report))
	require.NoError(t, err)
	require.Len(t, findings, 3, "once each, and none of a module that is required and not imported")

	compare := func(acceptedText string) (string, error) {
		accepted, err := parseAccepted(acceptedText)
		require.NoError(t, err)
		r := newResult(accepted)
		var out bytes.Buffer
		r.recordFindings(&out, "lab/kube", findings)
		err = r.compareWithAccepted(&out)
		return out.String(), err
	}
	out, err := compare("")
	require.ErrorContains(t, err, "2 vulnerabilities to fix")
	assert.Contains(t, out, "lab/kube example.com/a GO-1 v1.0.0, fixed in v1.1.0: a hole\n")
	assert.Contains(t, out, "lab/kube example.com/c GO-2 v2.0.0, no fix: another hole\n")

	const all = "lab/kube example.com/a GO-1 not called\nlab/kube example.com/c GO-2 no fix\n"
	out, err = compare(all)
	require.NoError(t, err, "the standard library's is the machine's")
	assert.Contains(t, out, "fixed in v1.26.9")

	out, err = compare(all + "lab/kube example.com/d GO-8,GO-9 no fix")
	require.ErrorContains(t, err, "2 to remove")
	assert.Contains(t, out, "lab/kube example.com/d GO-9 is not found, but accepted\n")

	_, err = compare("ccm example.com/a GO-1 what is accepted in one module is not in another")
	require.ErrorContains(t, err, "2 vulnerabilities to fix")
}

func TestAcceptedNeedsReason(t *testing.T) {
	_, err := parseAccepted("lab/kube example.com/a GO-1")
	require.ErrorContains(t, err, "a reason")
	_, err = parseAccepted(acceptedText)
	require.NoError(t, err)
}
