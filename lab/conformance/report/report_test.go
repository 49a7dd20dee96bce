package report

import (
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/internal/plaintext"
)

func sampleReport() *conformance.Report {
	test := func(
		p conformance.Profile,
		id string,
		level conformance.Level,
		required bool,
		result conformance.Result,
		reasons ...string,
	) conformance.TestReport {
		t := conformance.TestReport{
			ID: id, Profile: p, Level: level, Required: required, Requires: "It does.", Source: "a KEP", Result: result,
			Seconds: 1.5, Reasons: reasons,
		}
		if level == conformance.Extended {
			t.Capability = conformance.CapabilityUDP
		}
		return t
	}
	r := &conformance.Report{
		APIVersion: "conformance.ccmlab.io/v1alpha1", Kind: "ConformanceReport",
		Date: time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC), Seconds: 12.25,
		Implementation: conformance.Identity{Name: "fakecloud", Version: "v1"}, Cluster: conformance.Identity{
			Name: "embedded", Version: "v1.36.3",
		}, Suite: conformance.Identity{Name: "ccmlab/conformance"},
		Tests: []conformance.TestReport{
			test(conformance.Node, "node-fine", conformance.Core, true, conformance.Passed),
			test(
				conformance.Node, "node-bad", conformance.Core, true, conformance.Failed,
				"waited for <a> & \"b\"\nsecond line", "another reason",
			),
			test(conformance.Node, "node-skipped", conformance.Core, true, conformance.Skipped, "it needs machines"),
			test(conformance.LoadBalancer, "lb-claimed", conformance.Extended, true, conformance.Failed, "no"),
			test(conformance.LoadBalancer, "lb-not-claimed", conformance.Extended, false, conformance.Failed, "no UDP"),
			test(
				conformance.LoadBalancer, "lb-blocked", conformance.Extended, true, conformance.Blocked,
				"it builds on lb-claimed, which has failed",
			),
		},
	}
	r.Tests[5].BlockedBy = "lb-claimed"
	r.Tests[1].Notes = []string{"first note", "ccm: last words"}
	r.Summarize()
	return r
}

// writeFiles returns what WriteFiles wrote, by name.
func writeFiles(t *testing.T, r *conformance.Report) map[string]string {
	dir := filepath.Join(t.TempDir(), "made", "for-it")
	files, err := WriteFiles(r, dir)
	require.NoError(t, err)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, len(files), "nothing half-written is left")
	written := map[string]string{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		written[filepath.Base(file)] = string(data)
	}
	return written
}

func TestYAML(t *testing.T) {
	r := sampleReport()
	text := writeFiles(t, r)["report.yaml"]
	var back conformance.Report
	require.NoError(t, yaml.UnmarshalStrict([]byte(text), &back))
	assert.Equal(t, *r, back)
	// The keys are a contract; those of summaries are Gateway API's.
	assert.Contains(t, text, `apiVersion: conformance.ccmlab.io/v1alpha1
cluster:
  name: embedded
  version: v1.36.3
date: "2026-11-21T03:00:00Z"
implementation:
  name: fakecloud
  version: v1
kind: ConformanceReport
profiles:
- core:
    failedTests:
    - node-bad
    result: failure
    skippedReasons:
      node-skipped: it needs machines
    skippedTests:
    - node-skipped
    statistics:
      failed: 1
      passed: 1
      skipped: 1
  name: Node
- extended:
    blockedTests:
    - lb-blocked
    failedTests:
    - lb-claimed
    notRequiredFailedTests:
    - lb-not-claimed
    result: failure
    statistics:
      blocked: 1
      failed: 2
      passed: 0
      skipped: 0
  name: LoadBalancer
`)
}

func TestJUnit(t *testing.T) {
	const want = `<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="conformance" tests="6" failures="2" skipped="3" time="12.25">
  <testsuite name="Node" tests="3" failures="1" skipped="1" time="4.5" timestamp="2026-11-21T03:00:00Z">
    <properties>
      <property name="implementation" value="fakecloud v1"></property>
      <property name="cluster" value="embedded v1.36.3"></property>
      <property name="suite" value="ccmlab/conformance"></property>
    </properties>
    <testcase classname="Node" name="node-fine" time="1.5"></testcase>
    <testcase classname="Node" name="node-bad" time="1.5">
      <failure message="waited for &lt;a&gt; &amp; &#34;b&#34;">waited for &lt;a&gt; &amp; &#34;b&#34;&#xA;second line&#xA;another reason</failure>
      <system-out>first note&#xA;ccm: last words</system-out>
    </testcase>
    <testcase classname="Node" name="node-skipped" time="1.5">
      <skipped message="it needs machines">it needs machines</skipped>
    </testcase>
  </testsuite>
  <testsuite name="LoadBalancer" tests="3" failures="1" skipped="2" time="4.5" timestamp="2026-11-21T03:00:00Z">
    <properties>
      <property name="implementation" value="fakecloud v1"></property>
      <property name="cluster" value="embedded v1.36.3"></property>
      <property name="suite" value="ccmlab/conformance"></property>
    </properties>
    <testcase classname="LoadBalancer" name="lb-claimed" time="1.5">
      <failure message="no">no</failure>
    </testcase>
    <testcase classname="LoadBalancer" name="lb-not-claimed" time="1.5">
      <skipped message="not required: no UDP">no UDP</skipped>
    </testcase>
    <testcase classname="LoadBalancer" name="lb-blocked" time="1.5">
      <skipped message="blocked by lb-claimed">it builds on lb-claimed, which has failed</skipped>
    </testcase>
  </testsuite>
</testsuites>
`
	assert.Equal(t, want, writeFiles(t, sampleReport())["junit.xml"])
}

// CI is red exactly if the command's exit code is not 0, whatever the reason.
func TestJUnitFailsAsTheReportDoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := &conformance.Report{}
		for range rapid.IntRange(0, 4).Draw(t, "tests") {
			r.Tests = append(r.Tests, conformance.TestReport{
				ID: "a", Profile: rapid.SampledFrom(conformance.Profiles).Draw(t, "profile"),
				Required: rapid.Bool().Draw(t, "required"),
				Result: rapid.SampledFrom(
					[]conformance.Result{
						conformance.Passed, conformance.Failed, conformance.Skipped, conformance.Blocked,
					},
				).Draw(t, "result"),
			})
		}
		for range rapid.IntRange(0, 1).Draw(t, "crashes") {
			r.Crashes = append(r.Crashes, "panic: oh")
		}
		r.Unfinished = rapid.SampledFrom([]string{"", "Ctrl-C"}).Draw(t, "unfinished")
		data, err := JUnit(r)
		require.NoError(t, err)
		var back junitSuites
		require.NoError(t, xml.Unmarshal(data, &back))
		failures, tests := 0, 0
		for _, s := range back.Suites {
			for _, c := range s.Cases {
				tests++
				if c.Failure != nil {
					failures++
				}
			}
		}
		assert.Equal(t, r.Passed(), failures == 0)
		assert.Equal(t, failures, back.Failures)
		assert.Equal(t, tests, back.Tests)
	})
}

// Whatever bytes a log has, both files can be read, and say the same.
func TestStrangeBytes(t *testing.T) {
	lines := plaintext.Lines([]string{
		"\x1b[1;31mE1121\x1b[0m \"quoted\"\t<x>\x00\x07\x7f\u0085\ufeff\ufffe]]>\r", "\xff\xfe half a \xe2\x82 rune",
		"naïve ☃ 🎈",
	})
	assert.Equal(t, []string{"E1121 \"quoted\"\t<x>]]>", "\ufffd half a \ufffd rune", "naïve ☃ 🎈"}, lines)
	rapid.Check(t, func(rt *rapid.T) {
		bytes := rapid.SliceOf(rapid.Byte()).Draw(rt, "bytes")
		line := plaintext.Lines([]string{string(bytes) + rapid.String().Draw(rt, "text")})
		r := sampleReport()
		r.Tests[1].Reasons, r.Tests[1].Notes, r.Crashes = line, line, line
		data, err := yaml.Marshal(r)
		require.NoError(rt, err)
		var back conformance.Report
		require.NoError(rt, yaml.UnmarshalStrict(data, &back))
		assert.Equal(rt, line, back.Tests[1].Reasons)
		assert.Equal(rt, line, back.Tests[1].Notes)
		data, err = JUnit(r)
		require.NoError(rt, err)
		var suites junitSuites
		require.NoError(rt, xml.Unmarshal(data, &suites))
		assert.Equal(rt, line[0], suites.Suites[0].Cases[1].Failure.Text)
		assert.Equal(rt, line[0], suites.Suites[0].Cases[1].Out)
	})
	// Even what nobody has made legible is XML.
	r := sampleReport()
	r.Implementation.Name = "\x00\xff\x1b"
	data, err := JUnit(r)
	require.NoError(t, err)
	d := xml.NewDecoder(strings.NewReader(string(data)))
	for err == nil {
		_, err = d.Token()
	}
	require.ErrorIs(t, err, io.EOF)
}

func TestWriteFilesReplaces(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"report.yaml", "junit.xml"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(strings.Repeat("old", 10000)), 0o600))
	}
	_, err := WriteFiles(sampleReport(), dir)
	require.NoError(t, err)
	data, err := os.ReadFile(filepath.Join(dir, "report.yaml"))
	require.NoError(t, err)
	assert.NotContains(t, string(data), "old")

	_, err = WriteFiles(sampleReport(), filepath.Join(dir, "report.yaml"))
	require.Error(t, err, "a file is no folder")
}
