package console

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/console"
	"github.com/ccmlab/ccmlab/fakecloud/console/scene"
	"github.com/ccmlab/ccmlab/lab/console/browsertest"
	"github.com/ccmlab/ccmlab/lab/console/labscene"
	"github.com/ccmlab/ccmlab/lab/timeline"
)

func manyMachines(n int) (objects []*scene.Object) {
	for i := range n {
		m := machine("running", scene.LevelOK)
		m.Name = fmt.Sprint("node-", i)
		m.ID, m.CloudID, m.Zone = "instance/"+m.Name, fmt.Sprint("i-", i), fmt.Sprint("nebula-1", string(rune('a'+i%3)))
		m.Keys = []string{"cloud:" + m.CloudID}
		node := readyNode()
		node.ID, node.Name, node.Links = "node/"+m.Name, m.Name, []scene.Link{{To: m.ID}}
		objects = append(objects, m, node)
	}
	return objects
}

// How long a page with a thousand instances takes from the begin of its loading until it is drawn.
func BenchmarkThousandInstances(b *testing.B) {
	rec := console.Recording{Title: "large", Until: time.Now()}
	for _, t := range manyMachines(1000) {
		rec.Scene = append(rec.Scene, scene.Change{Time: rec.Until.Add(-time.Minute), Object: t})
	}
	file, ctx := writePageFile(b, rec), browsertest.Open(b)
	var sum float64
	for b.Loop() {
		runInBrowser(b, ctx, chromedp.Navigate("file://"+file), waitFor("document.querySelectorAll('.machine').length === 1000"))
		drawn, err := chromedp.Run(ctx, chromedp.Evaluate[float64]("performance.getEntriesByName('drawn')[0].startTime"))
		require.NoError(b, err)
		sum += drawn
	}
	b.ReportMetric(sum/float64(b.N), "ms-until-drawn")
}

// How many frames a second a page has with twenty nodes, while fifty objects a second happen.
func BenchmarkFiftyEventsASecond(b *testing.B) {
	l := newLab(b)
	log, err := labscene.OpenLog(SceneFile(l))
	require.NoError(b, err)
	objects := manyMachines(20)
	for _, t := range objects {
		require.NoError(b, log.Add(scene.Change{Time: time.Now(), Object: t}))
	}
	ctx := browsertest.Open(b)
	runInBrowser(b, ctx,
		chromedp.Navigate(serve(b, l)), waitFor("document.querySelectorAll('.machine').length === 20"),
		chromedp.Evaluate[chromedp.Void](`window.frames_ = []; (function f(at) { window.frames_.push(at); requestAnimationFrame(f) })(performance.now()); 0`),
	)
	happened := 0
	pace := time.NewTicker(time.Second / 50)
	defer pace.Stop()
	for b.Loop() {
		for range 50 {
			t := *objects[2*(happened%20)+1]
			t.State = fmt.Sprint("state ", happened)
			require.NoError(b, log.Add(scene.Change{Time: time.Now(), Object: &t}))
			require.NoError(b, l.Timeline().Add(timeline.Change{Source: timeline.SourceCluster, Subject: t.ID, What: t.State}))
			happened++
			<-pace.C
		}
	}
	frames, err := chromedp.Run(ctx, chromedp.Evaluate[float64](`1000 * window.frames_.length / (performance.now() - window.frames_[0])`))
	require.NoError(b, err)
	b.ReportMetric(frames, "frames/s")
	heap, err := chromedp.Run(ctx, chromedp.Evaluate[float64]("performance.memory.usedJSHeapSize / 1e6"))
	require.NoError(b, err)
	b.ReportMetric(heap, "MB-of-page")
	info, err := os.Stat(SceneFile(l))
	require.NoError(b, err)
	b.ReportMetric(float64(info.Size())/1e6, "MB-recorded")
}
