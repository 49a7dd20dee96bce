package console

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloudtest"
	"github.com/ccmlab/ccmlab/fakecloud/console"
	"github.com/ccmlab/ccmlab/fakecloud/console/scene"
	"github.com/ccmlab/ccmlab/lab/console/browsertest"
	"github.com/ccmlab/ccmlab/lab/console/labscene"
	"github.com/ccmlab/ccmlab/lab/timeline"
)

// browserBound is how long steps may take together.
const browserBound = time.Minute

type step = chromedp.Action[chromedp.Void]

func runInBrowser(t testing.TB, ctx context.Context, steps ...step) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, browserBound)
	defer cancel()
	require.NoError(t, chromedp.Do(ctx, steps...))
}

// waitFor waits until a JavaScript expression is true.
func waitFor(expression string) step {
	return chromedp.Poll[chromedp.Void](expression, chromedp.WithPollingTimeout(bound), chromedp.WithPollingInterval(50*time.Millisecond))
}

// text is what the first element of a selector says, "" without one.
func text(selector string) string {
	return "(document.querySelector(" + quote(selector) + ")?.textContent ?? '')"
}

func quote(s string) string { return "`" + s + "`" }

// waitingNode and readyNode are a Node before and after the CCM has seen it.
func waitingNode() *scene.Object {
	return &scene.Object{
		ID: "node/node-1", Kind: labscene.KindNode, Name: "node-1", State: "waits for the CCM", Level: scene.LevelBusy,
		Reason: "Its taint keeps pods off.", Links: []scene.Link{{To: "instance/node-1"}},
		Facts: []scene.Fact{{Name: "taint", Value: "node.cloudprovider.kubernetes.io/uninitialized:NoSchedule"}},
	}
}

func readyNode() *scene.Object {
	return &scene.Object{
		ID: "node/node-1", Kind: labscene.KindNode, Name: "node-1", State: "Ready", Level: scene.LevelOK,
		Links: []scene.Link{{To: "provider:fakecloud://i-1"}},
	}
}

func machine(state string, level scene.Level) *scene.Object {
	return &scene.Object{
		ID: "instance/node-1", Kind: scene.KindInstance, Name: "node-1", Zone: "nebula-1a", State: state, Level: level,
		CloudID: "i-1", Keys: []string{"provider:fakecloud://i-1", "cloud:i-1"},
	}
}

// A taint that lifts is seen on the open page, the slider goes back to where it was, and a page whose
// server started again says how it is opened anew.
func TestPageFollowsAndGoesBack(t *testing.T) {
	l := newLab(t)
	log, err := labscene.OpenLog(SceneFile(l))
	require.NoError(t, err)
	start := time.Now().Add(-time.Minute)
	show := func(at time.Time, thing *scene.Object) {
		require.NoError(t, log.Add(scene.Change{Time: at, Object: thing}))
	}
	show(start, machine("running", scene.LevelOK))
	show(start.Add(10*time.Second), waitingNode())
	require.NoError(t, l.Timeline().AddAt(start.Add(10*time.Second), timeline.Change{
		Source: timeline.SourceCluster, Subject: "node/node-1", What: "registered",
	}))
	ctx := browsertest.Open(t)
	var url string
	t.Run("first server", func(t *testing.T) {
		url = serve(t, l)
		runInBrowser(t, ctx,
			chromedp.Navigate(url),
			waitFor(text(".zone .machine .node")+".includes('waits for the CCM')"),
			waitFor(text(".zone .taint")+".includes('uninitialized')"),
			waitFor(text("#attention")+".includes('taint keeps pods off')"),
			waitFor(text("#entries")+".includes('registered')"),
			waitFor(text("#guide .current")+".includes('Now.') && document.querySelector('#guide em') !== null"),
			waitFor("getComputedStyle(document.querySelector('#guide p')).color === 'rgb(1, 2, 3)'"), // Diagrams have styles.
		)
		show(time.Now(), readyNode())
		runInBrowser(t, ctx,
			waitFor(text(".zone .machine .node")+".includes('Ready')"),
			waitFor("!document.querySelector('.zone .taint')"),
			waitFor(text("#attention")+".includes('all is well')"),
			// The keyboard alone: the slider to its begin, and a little on.
			chromedp.Focus("#slider"), chromedp.KeyEvent(kb.Home),
			waitFor("!document.querySelector('.zone .node') && document.body.classList.contains('past')"),
			chromedp.Click("#entries .time"), // The moment of "registered".
			waitFor(text(".zone .taint")+".includes('uninitialized')"),
			chromedp.Click("#play"),
			chromedp.SetValue("#speed", "16"),
			waitFor("!document.querySelector('.zone .taint') && !document.body.classList.contains('past')"),
		)
	})
	runInBrowser(t, ctx, waitFor(text("#connection")+".includes('nobody answers')"))
	show(time.Now(), machine("stopped", scene.LevelOff))
	listener, err := net.Listen("tcp", strings.Split(url, "/")[2])
	require.NoError(t, err)
	serveAt(t, l, listener)
	runInBrowser(t, ctx, waitFor(text("#connection")+".includes('type: lab console --name')"))
	runInBrowser(t, ctx,
		chromedp.Navigate(serve(t, l)),
		waitFor(text(".zone .machine .instance")+".includes('stopped')"),
	)
}

// openTab opens another tab of a browser.
func openTab(t *testing.T, browser context.Context) context.Context {
	t.Helper()
	tab, cancel := chromedp.NewContext(browser)
	t.Cleanup(cancel)
	_, err := chromedp.Run(tab, chromedp.Title()) // A bound on the first call would be the tab's.
	require.NoError(t, err)
	return tab
}

// openPart opens a part of the details, once it is there.
func openPart(name string) step {
	part := "document.querySelector(" + quote("#details [data-part="+name+"]") + ")"
	return waitFor("(() => { const part = " + part + "; if (part && !part.open) part.open = true; return part !== null })()")
}

// selectMachine selects the machine, and waits until the page knows what can be done with it, or that nothing can.
func selectMachine(hasButton bool) []step {
	steps := []step{chromedp.Click(".machine .instance button"), waitFor(text("#details") + ".includes('nebula-1a')")}
	if hasButton {
		return append(steps, openPart("do"), waitFor("document.querySelector('#details [data-verb=stop]') !== null"))
	}
	return append(steps, waitFor(text("#guide .current")+".includes('Now.')"), waitFor("!document.querySelector('[data-verb]')"))
}

// The page, and one that is read-only, stay what they are side by side in one browser, when they are loaded again,
// too. A tab becomes what its newest link says. Links that were renewed end both.
func TestPageKindsSideBySide(t *testing.T) {
	l := newLab(t)
	log, err := labscene.OpenLog(SceneFile(l))
	require.NoError(t, err)
	require.NoError(t, log.Add(scene.Change{Time: time.Now(), Object: machine("running", scene.LevelOK)}))
	full := serve(t, l)
	readOnly, err := Link(t.Context(), l, true, false)
	require.NoError(t, err)
	first := browsertest.Open(t)
	second := openTab(t, first)
	runInBrowser(t, first, chromedp.Navigate(full), waitFor(
		"performance.getEntriesByType('resource').some((e) => e.name.endsWith('acts.json?subject='))", // Of the whole.
	))
	runInBrowser(t, first, selectMachine(true)...)
	runInBrowser(t, second, append([]step{chromedp.Navigate(readOnly)}, selectMachine(false)...)...)
	for _, tab := range []context.Context{first, second} {
		runInBrowser(t, tab, chromedp.Reload())
		runInBrowser(t, tab, append(selectMachine(tab == first), waitFor("!document.cookie && !location.href.includes('link=')"))...)
	}
	follow := func(link string) step {
		return chromedp.Evaluate[chromedp.Void]("void (location.href = " + quote(link) + ")")
	}
	runInBrowser(t, first, follow(readOnly))
	awaitAfterLoad(t, first, "!document.querySelector('[data-verb]') && document.querySelector('.machine') !== null")
	runInBrowser(t, first, selectMachine(false)...)
	runInBrowser(t, first, holdUpStream())
	_, err = Link(t.Context(), l, false, true)
	require.NoError(t, err)
	for _, tab := range []context.Context{first, second} {
		runInBrowser(t, tab, waitFor(text("#connection")+".includes('session has expired or was revoked')"))
	}
	runInBrowser(t, first, follow(full))
	awaitAfterLoad(t, first, text("#connection")+".includes('This link has expired or was revoked')")
}

// holdUpStream has the page connect its stream again only after something else was refused.
func holdUpStream() step {
	return chromedp.Evaluate[chromedp.Void](`void (() => {
		const fetch = window.fetch, setTimeout = window.setTimeout;
		let refused = false;
		window.fetch = async (...args) => {
			const answer = await fetch(...args);
			refused ||= answer.status === 401;
			return answer;
		};
		window.setTimeout = (f, ms) => setTimeout(function wait() {
			refused || ms !== 500 ? f() : setTimeout(wait, 50);
		}, ms);
	})()`)
}

// awaitAfterLoad waits until an expression is true of the page that is about to be loaded in a tab.
func awaitAfterLoad(t *testing.T, tab context.Context, expression string) {
	t.Helper()
	require.Eventually(t, func() bool {
		isTrue, err := chromedp.Run(tab, chromedp.Evaluate[bool](expression))
		return err == nil && isTrue
	}, bound, 50*time.Millisecond)
}

// stranger is another server, which notes what it is sent.
type stranger struct {
	*httptest.Server
	mu       sync.Mutex
	requests []*http.Request
}

// newStranger begins a server that answers all with a status and a page, on a listener unless that is nil.
func newStranger(t *testing.T, listener net.Listener, status int, page string) *stranger {
	t.Helper()
	s := &stranger{}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.requests = append(s.requests, r)
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, page)
	}))
	if listener != nil {
		require.NoError(t, s.Listener.Close())
		s.Listener = listener
	}
	s.Start()
	t.Cleanup(s.Close)
	return s
}

// has tells whether a request was sent for a path.
func (s *stranger) has(path string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.requests, func(r *http.Request) bool { return r.URL.Path == path })
}

// assertSentNoSecret fails if a request has something that a page keeps for its own server.
func (s *stranger) assertSentNoSecret(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.requests {
		assert.Empty(t, r.Header.Get("Cookie")+r.Header.Get("Authorization")+r.URL.RawQuery, r.URL)
		assert.NotContains(t, r.Referer(), "link=")
	}
}

// Another port of the page's address is sent nothing that opens the page, whoever leads the browser there.
func TestOtherPortsAreSentNoSecret(t *testing.T) {
	l := newLab(t)
	other := newStranger(t, nil, http.StatusOK, `<title>other</title>`)
	foreign := newStranger(t, nil, http.StatusOK, `<title>foreign</title><a href="`+other.URL+`/linked">free food</a>`)
	browser := browsertest.Open(t)
	link := serve(t, l)
	runInBrowser(t, browser, chromedp.Navigate(link), waitFor(text("#guide .current")+".includes('Now.')"))
	tab := openTab(t, browser)
	for _, where := range []context.Context{tab, browser} {
		runInBrowser(t, where, chromedp.Navigate(other.URL+"/typed"))
		runInBrowser(t, where, chromedp.Navigate(strings.Replace(foreign.URL, "127.0.0.1", "localhost", 1)))
		runInBrowser(t, where, chromedp.Evaluate[chromedp.Void]("document.querySelector('a').click()"))
		awaitAfterLoad(t, where, "document.title === 'other' && location.pathname === '/linked'")
	}
	require.Eventually(t, func() bool { return other.has("/linked") && other.has("/favicon.ico") }, bound, 10*time.Millisecond)
	other.assertSentNoSecret(t)
}

// A server that takes the agent's port while the page is open is sent the secret of a session that has ended.
func TestPortIsTakenByAnother(t *testing.T) {
	l := newLab(t)
	browser := browsertest.Open(t)
	var link string
	t.Run("first agent", func(t *testing.T) {
		link = serve(t, l)
		runInBrowser(t, browser, chromedp.Navigate(link), waitFor(text("#guide .current")+".includes('Now.')"))
	})
	var secrets []string
	t.Run("impostor", func(t *testing.T) {
		listener, err := net.Listen("tcp", strings.Split(link, "/")[2])
		require.NoError(t, err)
		impostor := newStranger(t, listener, http.StatusServiceUnavailable, "wait")
		require.Eventually(t, func() bool { return impostor.has("/stream") }, bound, 10*time.Millisecond)
		runInBrowser(t, openTab(t, browser), chromedp.Navigate(link))
		impostor.mu.Lock()
		defer impostor.mu.Unlock()
		for _, r := range impostor.requests {
			assert.Empty(t, r.Header.Get("Cookie"))
			if secret := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "); secret != "" {
				secrets = append(secrets, secret)
			}
		}
		require.NotEmpty(t, secrets)
		secrets = append(secrets, strings.SplitAfter(link, "#link=")[1]) // Its script could read the fragment.
	})
	listener, err := net.Listen("tcp", strings.Split(link, "/")[2])
	require.NoError(t, err)
	assertOpenNothing(t, serveAt(t, l, listener), secrets)
	page, _, _ := strings.Cut(serve(t, l), "#")
	assertOpenNothing(t, page, secrets)
	runInBrowser(t, browser, waitFor(text("#connection")+".includes('type: lab console --name')"))
}

// The page of a cloud alone opens by its link, keeps no secret where other servers are sent it, and ends when its links
// are renewed.
func TestPageOfACloudAlone(t *testing.T) {
	cloud := cloudtest.Start(t)
	_, err := cloud.CreateInstance(t.Context(), api.InstanceCreate{Name: "a"})
	require.NoError(t, err)
	token, err := os.ReadFile(cloud.TokenFile)
	require.NoError(t, err)
	newLink := func(renew bool) string {
		link, err := console.RequestLink(
			t.Context(), http.DefaultClient, cloud.URL+console.Path+"/", strings.TrimSpace(string(token)), renew,
		)
		require.NoError(t, err)
		return link
	}
	browser := browsertest.Open(t)
	isShown := waitFor(text(".machine .instance") + ".includes('running')")
	runInBrowser(t, browser, chromedp.Navigate(newLink(false)), isShown)
	runInBrowser(t, browser, chromedp.Reload(), isShown)
	runInBrowser(t, browser, waitFor("!document.cookie && !location.href.includes('link=')"))
	other := newStranger(t, nil, http.StatusOK, `<title>other</title>`)
	runInBrowser(t, openTab(t, browser), chromedp.Navigate(other.URL))
	require.Eventually(t, func() bool { return other.has("/favicon.ico") }, bound, 10*time.Millisecond)
	other.assertSentNoSecret(t)
	link := newLink(true)
	runInBrowser(t, browser, waitFor(text("#connection")+".includes('type: fakecloud console')"))
	runInBrowser(t, browser, chromedp.Navigate(link))
	awaitAfterLoad(t, browser, text("#connection")+" === '' && "+text(".machine .instance")+".includes('running')")
}

// A page for whose stream or explanation there is no room says so, and has both as soon as there is.
func TestPageWaitsForRoom(t *testing.T) {
	l := newLab(t)
	log, err := labscene.OpenLog(SceneFile(l))
	require.NoError(t, err)
	require.NoError(t, log.Add(scene.Change{Time: time.Now(), Object: readyNode()}))
	require.NoError(t, log.Add(scene.Change{Time: time.Now(), Object: machine("running", scene.LevelOK)}))
	browser := browsertest.Open(t)
	link := serve(t, l)
	page, secret := exchange(t, link)
	busy, calmDown := context.WithCancel(t.Context())
	defer calmDown()
	others := func(path string) (status int) {
		req, err := http.NewRequestWithContext(busy, http.MethodGet, page+path, nil)
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer "+secret)
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		t.Cleanup(func() { _ = resp.Body.Close() })
		return resp.StatusCode
	}
	open := 0
	for others("stream") == http.StatusOK {
		open++
	}
	isFull := fmt.Sprintf("%s.includes('%d of these pages are open')", text("#connection"), open)
	runInBrowser(t, browser, chromedp.Navigate(link), waitFor(isFull))
	calmDown()
	// Soon after it is connected, the page says that this lab is stopped.
	runInBrowser(t, browser, waitFor("!"+isFull+" && document.querySelector('.machine .node') !== null"))
	isRefused := text("#details") + ".includes('more is being explained')"
	require.Eventually(t, func() bool {
		for i := 0; ; i++ {
			status, _ := ask(t, http.MethodGet, fmt.Sprint(page, "explain.json?subject=node/", i), secret)
			if status == http.StatusTooManyRequests {
				break
			}
		}
		runInBrowser(t, browser, chromedp.Click(".machine .node button"))
		refused, err := chromedp.Run(browser, chromedp.Evaluate[bool](isRefused))
		return err == nil && refused
	}, bound, time.Millisecond)
	runInBrowser(t, browser, waitFor("!"+isRefused))
}

// writePageFile writes a recording into a file.
func writePageFile(t testing.TB, rec console.Recording) string {
	t.Helper()
	var page bytes.Buffer
	require.NoError(t, rec.Write(&page))
	file := filepath.Join(t.TempDir(), "lab.html")
	require.NoError(t, os.WriteFile(file, page.Bytes(), 0o600))
	return file
}

// Two tabs of one browser follow the same lab. What is done in one is seen in the other.
func TestTwoTabs(t *testing.T) {
	l, noted := newLab(t), noteCommands(t)
	log, err := labscene.OpenLog(SceneFile(l))
	require.NoError(t, err)
	require.NoError(t, log.Add(scene.Change{Time: time.Now(), Object: machine("running", scene.LevelOK)}))
	url := serve(t, l)
	first := browsertest.Open(t)
	second := openTab(t, first)
	for _, tab := range []context.Context{first, second} {
		runInBrowser(t, tab, chromedp.Navigate(url), waitFor(text(".machine .instance")+".includes('running')"))
	}
	runInBrowser(t, first,
		chromedp.Click(".machine .instance button"),
		openPart("do"),
		waitFor(text("#details")+".includes('fakecloud instances stop node-1')"),
		chromedp.Click("#details [data-verb=terminate]"), // It asks first.
		waitFor(text("#details [data-verb=terminate]")+" === 'really terminate?'"),
		chromedp.Click("#details [data-verb=stop]"),
		waitFor(text("#details")+".includes('done: fakecloud instances stop node-1')"),
	)
	require.Eventually(t, func() bool { return noted() == "instances stop node-1\n" }, bound, 10*time.Millisecond)
	require.NoError(t, log.Add(scene.Change{Time: time.Now(), Object: machine("stopped", scene.LevelOff)}))
	for _, tab := range []context.Context{second, first} {
		runInBrowser(t, tab, waitFor(text(".machine .instance")+".includes('stopped')"))
	}
}

// A recording opens from a file, without a server. Names that are markup are text on it.
func TestRecordingOpensOffline(t *testing.T) {
	const hostile = `<img src=x onerror="document.title='hit'">`
	start := time.Now().Add(-time.Minute)
	pod := &scene.Object{ID: "pod/p", Kind: labscene.KindPod, Name: hostile, State: "Pending", Level: scene.LevelBusy, Reason: hostile}
	file := writePageFile(t, console.Recording{
		Title: hostile, Until: time.Now(),
		Scene: []scene.Change{
			{Time: start, Object: machine("running", scene.LevelOK)}, {Time: start, Object: waitingNode()},
			{Time: start.Add(time.Second), Object: pod}, {Time: start.Add(2 * time.Second), Object: readyNode()},
		},
		Story: []timeline.Entry{{Time: start, Change: timeline.Change{Subject: hostile, What: hostile, Detail: hostile}}},
	})
	ctx := browsertest.Open(t)
	runInBrowser(t, ctx,
		chromedp.Navigate("file://"+file),
		waitFor(text(".zone .machine .node")+".includes('Ready')"),
		waitFor(text("#pending .thing")+".includes('<img')"),
		waitFor(text("#entries")+".includes('<img')"),
		chromedp.Click("#pending .thing button"),
		waitFor(text("#details")+".includes('<img')"),
		waitFor("document.querySelectorAll('img').length === 0"),
	)
	title, err := chromedp.Run(ctx, chromedp.Title())
	require.NoError(t, err)
	require.Equal(t, hostile, title)
}

// A thousand instances are a map, of which each can be opened.
func TestPageShowsAThousandInstances(t *testing.T) {
	rec := console.Recording{Title: "large", Until: time.Now()}
	for i := range 1000 {
		m := machine("running", scene.LevelOK)
		m.ID += "-" + time.Duration(i).String()
		m.Name = m.ID
		rec.Scene = append(rec.Scene, scene.Change{Time: rec.Until.Add(-time.Minute), Object: m})
	}
	runInBrowser(t, browsertest.Open(t),
		chromedp.Navigate("file://"+writePageFile(t, rec)),
		waitFor(text(".map .zone h3")+".includes('1000 instances')"),
		chromedp.Click(".map .machine:nth-child(500) button"),
		waitFor(text("#details h2")+".includes('instance')"),
	)
}
