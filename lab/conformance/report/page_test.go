package report

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/record"
)

// hostile is what a log must not be able to put into a page.
const hostile = `</td></table></svg></script><script>alert(1)</script><img src=x onerror=alert(1)> {{.}} "'` + "`"

func samplePage(t *testing.T, r *conformance.Report) string {
	data, err := HTML(r)
	require.NoError(t, err)
	return string(data)
}

func sampleTimeline(n int) *record.Timeline {
	began := time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)
	line := &record.Timeline{Began: began, Took: 10 * time.Second, Head: n}
	for i := range n {
		line.Entries = append(line.Entries, record.Entry{
			At:     began.Add(time.Duration(i) * line.Took / time.Duration(n)),
			Source: record.Sources[i%len(record.Sources)], Subject: "subject", Text: fmt.Sprintf("entry %d", i),
			Failed: i%5 == 0,
		})
	}
	return line
}

func TestPage(t *testing.T) {
	r := sampleReport()
	r.Claims, r.Unsupported = []conformance.Capability{conformance.CapabilityUDP}, conformance.Unsupported{
		string(conformance.FeatureRoutes): "there are <none>",
	}
	r.Tests[0].Source = "KEP-2699, https://example.com/a?b=c&d=e, and javascript:alert(1)"
	line := sampleTimeline(12)
	line.Entries[1].Took, line.Entries[1].Times, line.Entries[1].Last = 1250*time.Millisecond, 7, line.Began.Add(9*time.Second)
	line.Entries[2].Beside = true
	line.LeftOut, line.Head = 44, 6
	r.Timelines = map[string]*record.Timeline{"node-bad": line}
	r.Recordings = []string{"../recordings/lab-1.html"}
	page := samplePage(t, r)
	for _, want := range []string{
		`<a href="../recordings/lab-1.html">`,
		`<title>fakecloud has not passed (core tests skipped: 1)</title>`,
		`<p class="bad">Failed: <a href="#node-bad">node-bad</a>, <a href="#lb-claimed">lb-claimed</a></p>`,
		`embedded v1.36.3`, `2026-11-21 03:00:00 UTC`,
		`<tr><th scope="row">Node</th><td class="failure">1/2</td><td class="">–</td><td>0</td><td>0</td><td>1</td></tr>`,
		`<tr><th scope="row">LoadBalancer</th><td class="">–</td><td class="failure">0/3</td><td>1</td><td>1</td><td>0</td></tr>`,
		`<code>udp-services</code>`, `<code>routes</code>: there are &lt;none&gt;`,
		`<details id="node-bad" class="test failed" data-profile="Node" open>`,
		`<details id="lb-not-claimed" class="test tolerated" data-profile="LoadBalancer">`,
		`<details id="lb-blocked" class="test blocked" data-profile="LoadBalancer">`,
		`; by <a href="#lb-claimed">lb-claimed</a></span>`,
		`<a href="https://example.com/a?b=c&amp;d=e" rel="noreferrer">https://example.com/a?b=c&amp;d=e</a>, and javascript:alert(1)`,
		`waited for &lt;a&gt; &amp; &#34;b&#34;`, `it needs machines`, `ccm: last words`,
		`<tr class="s x"><td>0.00<td>suite<td>subject<td>entry 0</tr>`,
		`<tr class="c"><td>0.83<td>call<td>subject<td>entry 1 <i>took 1.25 s, 7 times, the last at 9.00</i></tr>`,
		`<tr class="n b"><td>1.67<td>node<td>subject<td>entry 2</tr>`,
		`<td>left out here: 44</tr>` + "\n" + `<tr class="s"><td>5.00`, `Entries left out: 44.`,
		`<path class="bars" d="M83 24H208"/>`,
	} {
		assert.Contains(t, page, want)
	}
	assert.Equal(t, 1, strings.Count(page, "<svg"), "no strip without a timeline")
	assert.NotContains(t, page, "ZgotmplZ", "html/template has refused something")
}

// It needs nothing else, and nothing else can get into it.
func TestPageIsSafe(t *testing.T) {
	r := sampleReport()
	line := sampleTimeline(20)
	for i := range line.Entries {
		line.Entries[i].Text, line.Entries[i].Subject = hostile, hostile
	}
	r.Timelines = map[string]*record.Timeline{"node-bad": line}
	r.Implementation = conformance.Identity{Name: hostile, Version: hostile}
	r.Cluster, r.Suite, r.Focus, r.Unfinished = r.Implementation, r.Implementation, hostile, hostile
	r.Crashes, r.Claims, r.Unsupported = []string{hostile}, []conformance.Capability{hostile}, conformance.Unsupported{hostile: hostile}
	for i := range r.Tests {
		test := &r.Tests[i]
		test.Requires, test.Source, test.Reasons, test.Notes = hostile, hostile+" https://a/"+
			hostile, []string{hostile}, []string{hostile}
		test.Capability, test.BlockedBy = hostile, hostile
	}
	page := samplePage(t, r)
	assert.Equal(t, 1, strings.Count(page, "<script"))
	assert.Equal(t, 1, strings.Count(page, "</script"))
	assert.NotContains(t, page, "<img")
	assert.Regexp(
		t,
		`content="default-src &#39;none&#39;; style-src &#39;sha256-[^ ]+=&#39;; script-src &#39;sha256-[^ ]+=&#39;"`,
		page,
	)
	for _, tag := range regexp.MustCompile(`<[a-z][^>]*>`).FindAllString(page, -1) {
		assert.NotRegexp(t, `^<(img|link|iframe|object|base|form)`, tag)
		assert.NotRegexp(t, `\s(src|srcset|action|style|on[a-z]+)=`, regexp.MustCompile(`"[^"]*"`).
			ReplaceAllString(tag, ""))
	}
	for _, link := range regexp.MustCompile(`href="([^"]*)"`).FindAllStringSubmatch(page, -1) {
		assert.Regexp(t, `^(#|https://a/)`, link[1])
	}
	// The page's own policy is about what is really in it.
	assert.Contains(t, page, "<script>"+pageJS+"</script>")
	assert.Contains(t, page, "<style>"+pageCSS+"</style>")
}

// However much happened, a browser can open it.
func TestPageIsBounded(t *testing.T) {
	r := &conformance.Report{Timelines: map[string]*record.Timeline{}}
	text := strings.Repeat("wörter ", record.MaxTextLength/7)
	for i := range 200 {
		result, n := conformance.Passed, record.KeptOfPassed
		if i%3 == 0 {
			result, n = conformance.Failed, record.KeptOfFailed
		}
		id := fmt.Sprintf("t-%d", i)
		r.Tests = append(
			r.Tests, conformance.TestReport{ID: id, Profile: conformance.Node, Result: result, Required: true},
		)
		r.Timelines[id] = sampleTimeline(n)
		for i := range r.Timelines[id].Entries {
			r.Timelines[id].Entries[i].Text = text
		}
	}
	page := samplePage(t, r)
	rows := strings.Count(page, "<td>subject<td>")
	assert.LessOrEqual(t, rows, maxRows)
	assert.Greater(t, rows, maxRows*9/10)
	assert.Less(t, len(page), 16<<20)
	assert.Contains(t, page, fmt.Sprintf("Entries left out: %d.", record.KeptOfFailed-maxRows*2/3/67))
	assert.Len(t, r.Timelines["t-0"].Entries, record.KeptOfFailed, "the report itself is as it was")
}

func TestShare(t *testing.T) {
	assert.Equal(t, 3, fairShare([]int{1, 2, 3}, 100))
	assert.Equal(t, 4, fairShare([]int{1, 2, 30, 40}, 11))
	assert.Equal(t, 2, fairShare([]int{9, 9, 9}, 8))
	assert.Equal(t, 1, fairShare(nil, 8))
}
