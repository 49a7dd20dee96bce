package console

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/console"
	"github.com/ccmlab/ccmlab/fakecloud/console/scene"
	"github.com/ccmlab/ccmlab/lab/console/browsertest"
	"github.com/ccmlab/ccmlab/lab/timeline"
)

// loadAxe returns the script that checks pages for what keeps people out: https://github.com/dequelabs/axe-core.
func loadAxe(t *testing.T) string {
	t.Helper()
	script, err := os.ReadFile("../../bin/axe/node_modules/axe-core/axe.min.js")
	if errors.Is(err, fs.ErrNotExist) && os.Getenv("CI") == "" {
		t.Skip("needs axe-core: `make axe` fetches it")
	}
	require.NoError(t, err)
	return string(script)
}

// busyRecording has one of everything that a page shows.
func busyRecording() console.Recording {
	start := time.Now().Add(-10 * time.Second)
	rec := console.Recording{Title: "Lab busy", Until: time.Now(), Story: []timeline.Entry{
		{Time: start, Change: timeline.Change{Source: timeline.SourceLab, Subject: "node/node-1", What: "registered"}},
		{Time: start, Change: timeline.Change{
			Source: timeline.SourceCall, Subject: "instance/node-1", What: "getInstance", Caller: "ccm", Failed: true,
			Detail: "GET /v1/instances/i-1 → 503", Call: &timeline.Call{Method: "GET", Path: "/v1/instances/i-1", Status: 503},
		}},
	}}
	for _, t := range []*scene.Object{
		machine("running", scene.LevelOK), waitingNode(),
		{ID: "component/ccm", Kind: "component", Name: "ccm", State: "does not run", Level: scene.LevelOff, Reason: "Nobody started it."},
		{ID: "service/web", Kind: "service", Name: "web", State: "pending", Level: scene.LevelBusy, Links: []scene.Link{{To: "balancer/b"}}},
		{
			ID: "balancer/b", Kind: scene.KindBalancer, Name: "b", State: "active", Level: scene.LevelBad, Reason: "all are unhealthy",
			Links: []scene.Link{{To: "cloud:i-1", Level: scene.LevelBad, State: "unhealthy", BytesPerSecond: 1000}},
		},
		{ID: "pod/p", Kind: "pod", Name: "p", State: "Pending", Level: scene.LevelBusy, Reason: "0/1 nodes are available"},
		{ID: "pod/q", Kind: "pod", Name: "q", State: "Ready", Level: scene.LevelOK, Links: []scene.Link{{To: "node/node-1"}}},
		{ID: "fault/f", Kind: scene.KindFault, Name: "status=503", State: "in force", Level: scene.LevelBusy},
		{
			ID: "source/API server", Kind: scene.KindSource, Name: "API server", State: "does not answer", Level: scene.LevelUnknown,
			Reason: "connection refused", Facts: []scene.Fact{{Name: "asked again", Value: "every 2s"}},
			Unknown: &scene.Unknown{Since: start, Kinds: []scene.Kind{"pod", "service"}},
		},
		{ID: "route/r", Kind: scene.KindRoute, Name: "10.0.0.0/24", State: "active", Level: scene.LevelOK, Links: []scene.Link{{To: "cloud:i-1"}}},
	} {
		rec.Scene = append(rec.Scene, scene.Change{Time: start, Object: t})
	}
	return rec
}

// Nobody is kept out: contrast, names and roles of all that is on the page, by light and dark, with all of it
// opened.
func TestPageIsAccessible(t *testing.T) {
	axe := loadAxe(t)
	for _, scheme := range []string{"light", "dark"} {
		blink := map[string]string{"dark": "preferredColorScheme=0", "light": "preferredColorScheme=1"}[scheme]
		ctx := browsertest.Open(t, chromedp.Flag("blink-settings", blink), chromedp.Flag("force-prefers-reduced-motion", true))
		runInBrowser(t, ctx,
			chromedp.Navigate("file://"+writePageFile(t, busyRecording())),
			waitFor("matchMedia('(prefers-color-scheme: "+scheme+")').matches"),
			chromedp.Click(".machine .instance button"),
			waitFor(text("#details h2")+".includes('node-1')"),
			chromedp.Evaluate[chromedp.Void](`for (const d of document.querySelectorAll("details")) d.open = true`),
			waitFor("document.querySelectorAll('#table tbody tr').length > 5 && document.querySelector('#cost tbody tr') !== null"),
			chromedp.Evaluate[chromedp.Void](axe+"\n;0"),
			chromedp.Evaluate[chromedp.Void](`void axe.run().then((r) => { window.found = JSON.stringify(r.violations.map((v) =>
				v.id + ": " + v.help + " " + v.nodes.map((n) => n.html + " " + n.failureSummary).join(" | "))) })`),
			waitFor("window.found !== undefined"),
		)
		found, err := chromedp.Run(ctx, chromedp.Evaluate[string]("window.found"))
		require.NoError(t, err)
		var violations []string
		require.NoError(t, json.Unmarshal([]byte(found), &violations))
		assert.Empty(t, violations, scheme)
		moves, err := chromedp.Run(ctx, chromedp.Evaluate[string](
			`getComputedStyle(document.querySelector("#lines path.flows")).animationName`,
		))
		require.NoError(t, err)
		assert.Equal(t, "none", moves, "motion is reduced")
	}
}
