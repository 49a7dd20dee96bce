package console

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/console"
	"github.com/ccmlab/ccmlab/fakecloud/console/scene"
	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/agent"
	"github.com/ccmlab/ccmlab/lab/cluster/local"
	"github.com/ccmlab/ccmlab/lab/console/browsertest"
	"github.com/ccmlab/ccmlab/lab/console/labscene"
	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/lab/testbed"
)

// brokenServer is a lab's page whose stream can be refused, and made silent.
type brokenServer struct {
	*httptest.Server
	refuses, isSilent atomic.Bool
}

// serveBroken serves a lab's page, and returns the link that opens it.
func serveBroken(t *testing.T, l *lab.Lab) (s *brokenServer, link string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	a := address{Address: listener.Addr().String(), Key: "k", ReadOnlyKey: "r"}
	page := newHandler(l, a, recorded{t, l}, testGuide, slog.New(slog.DiscardHandler))
	s = &brokenServer{}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/stream" && s.refuses.Load() {
			http.Error(w, "come again", http.StatusServiceUnavailable)
			return
		}
		page.ServeHTTP(silentWriter{w, &s.isSilent}, r)
	}))
	require.NoError(t, s.Listener.Close())
	s.Listener = listener
	s.Start()
	t.Cleanup(func() { s.isSilent.Store(false); s.CloseClientConnections(); s.Close() })
	_, body := ask(t, http.MethodPost, a.url()+"links", a.Key)
	return s, a.url() + "#link=" + strings.Split(body, `"`)[3]
}

// silentWriter swallows what a silent server writes.
type silentWriter struct {
	http.ResponseWriter
	isSilent *atomic.Bool
}

func (w silentWriter) Write(b []byte) (int, error) {
	if w.isSilent.Load() {
		return len(b), nil
	}
	return w.ResponseWriter.Write(b)
}

func (w silentWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// newQuietLab is a lab with a machine and its Node, both well.
func newQuietLab(t *testing.T) *lab.Lab {
	t.Helper()
	l := newLab(t)
	log, err := labscene.OpenLog(SceneFile(l))
	require.NoError(t, err)
	require.NoError(t, log.Add(scene.Change{Time: time.Now(), Object: machine("running", scene.LevelOK)}))
	require.NoError(t, log.Add(scene.Change{Time: time.Now(), Object: readyNode()}))
	return l
}

// isLive and isLastKnown tell of all that the page says of a lab that is well.
func isLive() step {
	return waitFor(fmt.Sprintf(
		`%s.includes('all is well') && %s.endsWith('running') && %s.includes('Ready') && !document.title.startsWith('?') &&
		!document.body.textContent.includes('ast known') && !document.body.classList.contains('lost')`,
		text("#attention"), text(".instance .state"), text(".node .state"),
	))
}

func isLastKnown() step {
	return waitFor(fmt.Sprintf(
		`!%[1]s.includes('well') && %[1]s.includes('unknown now: 1 instance, 1 node') &&
		/^unknown, last known running at \d\d:\d\d:\d\d$/.test(%[2]s) && %[3]s.startsWith('unknown, last known Ready at') &&
		document.querySelector('.machine .instance button').title.includes('unknown, last known running') &&
		!document.querySelector('#picture .ok, #picture .flows') && document.title.startsWith('? Lab') &&
		%[4]s.endsWith(', last known') && document.body.classList.contains('lost')`,
		text("#attention"), text(".instance .state"), text(".node .state"), text("#clock"),
	))
}

// says waits until the page's banner says when the picture was last known, and why that is so.
func says(why string) step {
	return waitFor(fmt.Sprintf(
		"/^\\? Last known at \\d\\d:\\d\\d:\\d\\d: /.test(%[1]s) && %[1]s.includes(%[2]s)", text("#connection"), quote(why),
	))
}

func triesAgain() step {
	return waitFor("/^Trying again at \\d\\d:\\d\\d:\\d\\d/.test(" + text("#retry") + ")")
}

// A page whose stream breaks, is refused or is silent shows what it last knew as that, and is live again by itself.
func TestPageLosesItsStream(t *testing.T) {
	s, link := serveBroken(t, newQuietLab(t))
	browser := browsertest.Open(t)
	runInBrowser(t, browser, chromedp.Navigate(link), isLive())

	t.Run("refused", func(t *testing.T) {
		s.refuses.Store(true)
		defer s.refuses.Store(false)
		s.CloseClientConnections()
		runInBrowser(t, browser, says("refuses its stream: 503 come again"), isLastKnown(), triesAgain())
		takePicture(t, browser, "stream-refused")
	})
	runInBrowser(t, browser, isLive())
	t.Run("cut", func(t *testing.T) {
		runInBrowser(t, browser, chromedp.Evaluate[chromedp.Void](`window.said = []; void new MutationObserver(() =>
			window.said.push(['#connection', '#attention'].map((s) => document.querySelector(s).textContent).join(' ')),
		).observe(document.body, {subtree: true, childList: true})`))
		s.CloseClientConnections() // The page waits half a second before it connects again.
		runInBrowser(t, browser, waitFor(`window.said.some((s) => /^\? Last known at .*has broken off its stream/.test(s) &&
			s.endsWith('unknown now: 1 instance, 1 node'))`))
	})
	runInBrowser(t, browser, isLive())
	t.Run("silent", func(t *testing.T) {
		s.isSilent.Store(true)
		defer s.isSilent.Store(false)
		runInBrowser(t, browser, says("is silent: nothing has come for 5 s"), isLastKnown(), triesAgain())
	})
	runInBrowser(t, browser, isLive())
}

// A page whose agent has ended says so, and how the page of the next one is opened.
func TestPageLosesItsAgent(t *testing.T) {
	l, browser := newQuietLab(t), browsertest.Open(t)
	t.Run("first agent", func(t *testing.T) {
		runInBrowser(t, browser, chromedp.Navigate(serve(t, l)), isLive())
	})
	runInBrowser(t, browser,
		says("The lab's agent, which serves this page, is gone: nobody answers"), isLastKnown(), triesAgain(),
		waitFor(text("#retry")+".includes('was started again, this opens its page: lab console --name')"),
	)
	takePicture(t, browser, "agent-gone")
	runInBrowser(t, browser, chromedp.Navigate(serve(t, l)))
	awaitAfterLoad(t, browser, text("#attention")+".includes('all is well') && !document.title.startsWith('?')")
}

// followBed has a picture of a bed recorded as the lab's, as its agent does.
func followBed(t *testing.T, l *lab.Lab, bed *testbed.Bed) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	picture, err := agent.NewPicture(SceneFile(l), log)
	require.NoError(t, err)
	kube, err := bed.Cluster().Observer()
	require.NoError(t, err)
	picture.ObserveWatches(kube)
	recorder, err := agent.NewRecorder(l.Timeline(), contract.TagService, log)
	require.NoError(t, err)
	recorder.Picture = picture
	machines := agent.New(bed.Cloud(), bed.Cluster(), nil, "machines=none", log)
	machines.OnCloudStream = picture.CloudStream
	ctx, cancel := context.WithCancel(t.Context())
	var following sync.WaitGroup
	t.Cleanup(func() { cancel(); following.Wait() })
	following.Go(func() { assert.NoError(t, recorder.Watch(ctx, kube)) })
	following.Go(func() { assert.NoError(t, picture.FollowCloud(ctx, bed.Cloud())) })
	following.Go(func() { assert.NoError(t, picture.FollowCluster(ctx, kube)) })
	following.Go(func() { assert.NoError(t, machines.Run(ctx, picture.Event)) })
}

// sourceOutage is what a page says of a source that does not answer.
type sourceOutage struct {
	component, name string
	signal          syscall.Signal
	resume          func(*testing.T)
	reason, counted string
	// unknown and known are what the page shows of things, by their kinds.
	unknown, known map[string]string
}

// assertSeen brings the outage about, and ends it.
func (o sourceOutage) assertSeen(t *testing.T, browser context.Context, bed *testbed.Bed) {
	t.Helper()
	running, err := bed.Cluster().Host.Running()
	require.NoError(t, err)
	require.NotNil(t, running[o.component], o.component)
	require.NoError(t, running[o.component].Signal(o.signal))
	resume := sync.OnceFunc(func() { o.resume(t) })
	defer resume()
	title := waitFor("document.title.startsWith('? Lab')")
	runInBrowser(t, browser, says("the "+o.name+" does not answer ("+o.reason+")"), title,
		waitFor(text("#retry")+".includes('The "+o.name+" is asked again every 2s')"),
		waitFor(fmt.Sprintf(
			"!%[1]s.includes('well') && %[1]s.includes('source %[2]s: does not answer') && %[1]s.includes(%[3]s)",
			text("#attention"), o.name, quote(": "+o.counted+"."),
		)),
	)
	for kind, state := range o.unknown {
		runInBrowser(t, browser, waitFor(fmt.Sprintf(
			"/^unknown, last known %s at \\d\\d:\\d\\d:\\d\\d$/.test(%s)", state, text("."+kind+".unknown .state"),
		)))
	}
	runInBrowser(t, browser, showsStates(o.known)...)
	takePicture(t, browser, strings.ReplaceAll(o.name, " ", "-")+"-away")
	resume()
	runInBrowser(t, browser, showsStates(o.known)...)
	runInBrowser(t, browser, showsStates(o.unknown)...)
	runInBrowser(t, browser, waitFor(text("#attention")+".includes('all is well') && document.title.startsWith('Lab')"))
}

// showsStates waits until things are as they are said to be, by their kinds.
func showsStates(states map[string]string) (steps []step) {
	for kind, state := range states {
		steps = append(steps, waitFor(text("."+kind+".ok .state")+" === "+quote(state)))
	}
	return steps
}

// What comes from a cloud or an API server that does not answer is unknown, and nothing else is. All is live again as
// soon as it answers.
func TestPageLosesItsSources(t *testing.T) {
	l, bed, browser := newLab(t), testbed.ForTest(t, testbed.Options{}), browsertest.Open(t)
	instances, err := bed.CreateInstances(t.Context(), "node-1")
	require.NoError(t, err)
	_, err = bed.Cloud().CreateLoadBalancer(t.Context(), api.LoadBalancerCreate{
		Name: "web", Listeners: []api.Listener{{Port: 8080, Protocol: api.ProtocolTCP, TargetPort: 30080}},
		Targets: []api.Target{{InstanceID: instances[0].ID}}, HealthCheck: &api.HealthCheck{Protocol: api.HealthCheckNone},
	})
	require.NoError(t, err)
	require.NoError(t, bed.RegisterNodes(t.Context(), func(_ int, n *corev1.Node) { n.Spec.Taints = nil }, "node-1"))
	require.NoError(t, bed.SetReady(t.Context(), corev1.ConditionTrue, "node-1"))
	followBed(t, l, bed)
	ofCloud := map[string]string{"instance": "running", "balancer": "active"}
	ofCluster := map[string]string{"node": "Ready"}
	runInBrowser(t, browser, chromedp.Navigate(serve(t, l)))
	runInBrowser(t, browser, showsStates(ofCloud)...)
	runInBrowser(t, browser, showsStates(ofCluster)...)
	start := func(t *testing.T, name string, isReady func(context.Context) error, spec process.Spec) {
		t.Helper()
		require.NoError(t, bed.Cluster().Serve(t.Context(), name, isReady, spec))
	}
	killed := sourceOutage{
		component: local.ComponentCloud, name: "cloud", signal: syscall.SIGKILL, reason: "connection refused",
		counted: "1 instance, 1 balancer", unknown: ofCloud, known: ofCluster,
		resume: func(t *testing.T) {
			start(t, "fakecloud", bed.Cluster().Cloud().Ready, bed.Cluster().Fakecloud(contract.TagCluster+"="+bed.Name))
		},
	}
	t.Run("cloud killed", func(t *testing.T) { killed.assertSeen(t, browser, bed) })
	stopped := killed
	stopped.signal, stopped.reason = syscall.SIGSTOP, "no answer in time"
	stopped.resume = func(t *testing.T) {
		running, err := bed.Cluster().Host.Running()
		require.NoError(t, err)
		require.NoError(t, running[local.ComponentCloud].Signal(syscall.SIGCONT))
	}
	t.Run("cloud stopped", func(t *testing.T) { stopped.assertSeen(t, browser, bed) })
	apiServer := sourceOutage{
		component: "kube-apiserver", name: "API server", signal: syscall.SIGKILL, reason: "connection refused",
		counted: "1 node", unknown: ofCluster, known: ofCloud,
		resume: func(t *testing.T) { require.NoError(t, bed.Cluster().StartAPIServer(t.Context())) },
	}
	t.Run("API server killed", func(t *testing.T) { apiServer.assertSeen(t, browser, bed) })
}

// An explanation is asked for anew when something changes that it names, and not when another thing does.
func TestExplanationIsAskedAnew(t *testing.T) {
	l, browser := newQuietLab(t), browsertest.Open(t)
	log, err := labscene.OpenLog(SceneFile(l))
	require.NoError(t, err)
	show := func(name, state string) {
		t.Helper()
		require.NoError(t, log.Add(scene.Change{Time: time.Now(), Object: &scene.Object{
			ID: "balancer/" + name, Kind: scene.KindBalancer, Name: name, State: state, Level: scene.LevelOK,
		}}))
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	a := address{Address: listener.Addr().String(), Key: "k", ReadOnlyKey: "r"}
	var asked atomic.Int32
	page := &console.Page{
		Title: "Lab", Server: "the lab's agent", Guard: a.newGuard("x"), Log: slog.New(slog.DiscardHandler),
		Stream: func(ctx context.Context, _ console.Session, send func(console.Batch) error) error {
			return streamLab(ctx, l, send)
		},
		Explain: func(context.Context, string) (any, error) {
			asked.Add(1)
			web := recorded{t, l}.scene()["balancer/web"]
			return map[string]string{"verdict": "the balancer web is " + web.State}, nil
		},
	}
	s := &httptest.Server{Listener: listener, Config: &http.Server{Handler: page.Handler(), ReadHeaderTimeout: bound}}
	s.Start()
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	show("web", "provisioning")
	_, body := ask(t, http.MethodPost, a.url()+"links", a.Key)
	runInBrowser(t, browser, chromedp.Navigate(a.url()+"#link="+strings.Split(body, `"`)[3]), isLive(),
		chromedp.Click(".machine .node button"), waitFor(text("#details")+".includes('the balancer web is provisioning')"),
	)
	show("other", "active")
	runInBrowser(t, browser, waitFor(text("#balancers")+".includes('active')"))
	require.EqualValues(t, 1, asked.Load())
	// It is asked for again until it is of after the change: the server gives the same one for two seconds.
	show("web", "active")
	runInBrowser(t, browser, waitFor(text("#details")+".includes('the balancer web is active')"))
	calls := asked.Load()
	show("other", "updating")
	runInBrowser(t, browser, waitFor(text("#balancers")+".includes('updating')"))
	require.Equal(t, calls, asked.Load())
}
