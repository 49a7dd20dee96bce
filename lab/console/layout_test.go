package console

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
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

var pictures = flag.String("pictures", "", "write a `FOLDER` of pictures of the page, one for each state that a test brings about")

// takePicture writes what the browser shows, if somebody wants to look at it.
func takePicture(t *testing.T, browser context.Context, name string) {
	t.Helper()
	if *pictures == "" {
		return
	}
	picture, err := chromedp.Run(browser, chromedp.CaptureScreenshot())
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(*pictures, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(*pictures, name+".png"), picture, 0o644))
}

// openPage opens a recording in a window of this size.
func openPage(t *testing.T, rec console.Recording, width, height int64, flags ...chromedp.ExecAllocatorOption) context.Context {
	t.Helper()
	browser := browsertest.Open(t, flags...)
	err := chromedp.Do(browser, chromedp.EmulateViewport(width, height))
	require.NoError(t, err)
	runInBrowser(t, browser, chromedp.Navigate("file://"+writePageFile(t, rec)), waitFor("performance.getEntriesByName('drawn').length > 0"))
	return browser
}

// largeRecording has so many Services, each with its balancer, and instances, each with its Node. Each balancer has
// three targets, of which one is ill.
func largeRecording(services, instances int) console.Recording {
	rec := console.Recording{Title: "Lab large", Until: time.Now()}
	at := rec.Until.Add(-time.Minute)
	show := func(o scene.Object) { rec.Scene = append(rec.Scene, scene.Change{Time: at, Object: &o}) }
	for i := range instances {
		name, key := fmt.Sprintf("node-%d", i+1), fmt.Sprintf("cloud:i-%d", i+1)
		show(scene.Object{
			ID: "instance/" + name, Kind: scene.KindInstance, Name: name, Zone: "nebula-1" + string(rune('a'+i%3)),
			State: "running", Level: scene.LevelOK, Keys: []string{key},
		})
		show(scene.Object{
			ID: "node/" + name, Kind: labscene.KindNode, Name: name, State: "Ready", Level: scene.LevelOK,
			Links: []scene.Link{{To: key}},
		})
	}
	for i := range services {
		name, tag := fmt.Sprintf("shop-%d", i+1), fmt.Sprintf("tag:%d", i+1)
		show(scene.Object{
			ID: fmt.Sprintf("service/team-%d/%s", i%4, name), Kind: labscene.KindService, Name: name, State: "has an address",
			Level: scene.LevelOK, Links: []scene.Link{{To: tag}},
			Facts: []scene.Fact{{Name: "namespace", Value: fmt.Sprintf("team-%d", i%4)}, {Name: "address", Value: "127.30.64.1"}},
		})
		balancer := scene.Object{
			ID: "balancer/" + name + "-4d2f", Kind: scene.KindBalancer, Name: name + "-4d2f", State: "active",
			Level: scene.LevelOK, Keys: []string{tag}, Facts: []scene.Fact{{Name: "listener", Value: "tcp 8080, to port 32642"}},
		}
		for n := range min(3, instances) {
			link := scene.Link{To: fmt.Sprintf("cloud:i-%d", n+1), State: "healthy", Level: scene.LevelOK}
			if n == 2 {
				link.State, link.Level = "unhealthy", scene.LevelBad
			}
			balancer.Links = append(balancer.Links, link)
		}
		show(balancer)
	}
	rec.Story = []timeline.Entry{
		{Time: at.Add(10 * time.Second), Seconds: 10, Change: timeline.Change{Subject: "node/node-1", What: "registered"}},
		{Time: at.Add(20 * time.Second), Seconds: 20, Change: timeline.Change{Subject: "node/node-2", What: "not-ready", Failed: true}},
		{Time: at.Add(25 * time.Second), Seconds: 25, Change: timeline.Change{
			Source: timeline.SourceCall, Subject: "instance/node-2", What: "getInstance", Caller: "ccm", Failed: true,
			Detail: "GET → 503", Call: &timeline.Call{Method: "GET", Path: "/v1/instances/i-2", Status: 503},
		}},
		{Time: at.Add(26 * time.Second), Seconds: 26, Change: timeline.Change{
			Source: timeline.SourceCall, Subject: "instance/node-1", What: "rebootInstance", Caller: "ccm",
			Call: &timeline.Call{Method: "POST", Path: "/v1/instances/i-1/reboot", Status: 202},
		}},
	}
	return rec
}

// isInView tells whether all of an element is inside of the window.
func isInView(selector string) string {
	return fmt.Sprintf(`(() => { const r = document.querySelector(%s).getBoundingClientRect();
		return r.width > 0 && r.left >= 0 && r.top >= 0 && r.right <= innerWidth && r.bottom <= innerHeight })()`, quote(selector))
}

const isAsWideAsTheWindow = "document.documentElement.scrollWidth <= innerWidth"

// Of forty Services the lines of the chosen one alone are drawn, and what they do not lead to is dimmed. A filter leaves
// out the others, and the details stay in view.
func TestFortyServices(t *testing.T) {
	browser := openPage(t, largeRecording(40, 3), 1280, 800)
	lines := func(n int) step {
		return waitFor(fmt.Sprintf("document.querySelectorAll('#lines path:not(.end)').length === %d", n))
	}
	opacity := func(id string) string {
		return "getComputedStyle(document.querySelector('[data-id=\"" + id + "\"]')).opacity"
	}
	runInBrowser(t, browser, lines(0))
	takePicture(t, browser, "forty-services")
	runInBrowser(t, browser,
		chromedp.Click(`[data-id="service/team-3/shop-4"] button`), lines(4),
		waitFor(opacity("service/team-0/shop-1")+" < 0.5 && "+opacity("balancer/shop-4-4d2f")+" === '1'"),
		waitFor(text("#balancers .related .bad")+".includes('1 of 3 targets ill')"),
		chromedp.Evaluate[chromedp.Void]("document.querySelector('#picture').scrollTop = 1e6; scrollTo(0, 1e6)"),
		waitFor(text("#details h2")+".includes('service shop-4') && "+isInView("#details h2")),
	)
	takePicture(t, browser, "forty-services-chosen")
	shown := func(services int) step {
		return waitFor(fmt.Sprintf("document.querySelectorAll('#services .thing').length === %d", services))
	}
	for words, count := range map[string]int{"team-2": 10, "SHOP-40": 1, "team-2 shop-3 address": 4, "bad": 0} {
		runInBrowser(t, browser, chromedp.SetValue("#filter", words),
			chromedp.Evaluate[chromedp.Void]("void document.querySelector('#filter').dispatchEvent(new Event('input'))"), shown(count))
	}
}

// Sixty instances have names, and are large enough to be hit; their Nodes, too.
func TestSixtyInstances(t *testing.T) {
	browser := openPage(t, largeRecording(1, 60), 1280, 800)
	runInBrowser(t, browser, waitFor(`(() => {
		const all = [...document.querySelectorAll("#zones .thing > button")];
		const isLarge = (e) => { const r = e.getBoundingClientRect(); return r.width >= 24 && r.height >= 24 };
		const names = [...document.querySelectorAll("#zones .instance .name")];
		return all.length === 120 && all.every(isLarge) && names.length === 60 && names.every((e) => e.offsetWidth > 0) })()`),
		waitFor("document.querySelectorAll('#lines path:not(.end)').length === 4"), // To instances without a line none leads anywhere else.
	)
	takePicture(t, browser, "sixty-instances")
}

// On a phone, and at twice the size, nothing is wider than the window, and the time stays in reach.
func TestPageFitsAPhone(t *testing.T) {
	for name, size := range map[string][2]int64{"phone": {390, 844}, "twice-the-size": {640, 400}} {
		browser := openPage(t, largeRecording(3, 4), size[0], size[1])
		for _, id := range []string{"speed", "live", "play", "slider"} {
			runInBrowser(t, browser, waitFor(isAsWideAsTheWindow+" && "+isInView("#"+id)))
		}
		takePicture(t, browser, name)
	}
}

// The page says in words that it shows the past. Keys go from one happening to the next; calls are none.
func TestKeysGoThroughThePast(t *testing.T) {
	browser := openPage(t, largeRecording(1, 2), 1280, 800)
	at := func(what string) step {
		return waitFor(isInView("#past") + " && " + text("#clock") + ".startsWith('" + what + "') && /^This is the past: .* before the end\\.$/.test(" + text("#past") + ")")
	}
	runInBrowser(t, browser,
		waitFor("document.querySelector('#marks .bad').getAttribute('d').match(/M/g).length === 1 && document.querySelector('#past').hidden"),
		chromedp.KeyEvent("p"), at("20.0 s"), chromedp.KeyEvent("p"), at("10.0 s"),
	)
	takePicture(t, browser, "past")
	runInBrowser(t, browser, chromedp.KeyEvent("n"), at("20.0 s"), chromedp.Click("#next"),
		waitFor("document.querySelector('#past').hidden && "+text("#clock")+".endsWith('the end')"))
}

// The details have the calls about the thing and their errors.
func TestCallsAboutTheChosen(t *testing.T) {
	browser := openPage(t, largeRecording(1, 2), 1280, 800)
	runInBrowser(t, browser,
		chromedp.Click(`[data-id="instance/node-2"] button`), openPart("calls"),
		waitFor(text("#details [data-part=calls] summary")+" === 'Calls about it: 1, 1 failed' && "+text("#details .calls .bad")+".includes('503')"),
	)
	takePicture(t, browser, "calls-about-it")
}

// The page in the dark.
func TestPageInTheDark(t *testing.T) {
	browser := openPage(t, busyRecording(), 1280, 800, chromedp.Flag("blink-settings", "preferredColorScheme=0"))
	runInBrowser(t, browser, chromedp.Click(".machine .instance button"), waitFor(
		"getComputedStyle(document.body).backgroundColor === 'rgb(20, 24, 30)' && "+text("#details h2")+".includes('node-1')"))
	takePicture(t, browser, "dark")
}
