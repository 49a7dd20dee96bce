package demoserver

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// container is an answerer whose requests use no network, so that it can run in a bubble of
// testing/synctest.
type container struct {
	*Answerer
	t   *testing.T
	log []string
	// exitCodes are those that Exit was called with.
	exitCodes chan uint8
}

func newContainer(t *testing.T, probes map[string]Probe) *container {
	c := &container{t: t, exitCodes: make(chan uint8, 1)}
	c.Answerer = &Answerer{
		Identity: func() Identity { return Identity{Pod: "web-1", Container: "web"} },
		Files:    func() map[string]string { return nil },
		Probes:   probes,
		Log:      func(line string) { c.log = append(c.log, line) },
		Exit:     func(code uint8, _ string) { c.exitCodes <- code },
	}
	return c
}

func (c *container) request(method, url string, header ...string) *httptest.ResponseRecorder {
	local := context.WithValue(
		c.t.Context(), http.LocalAddrContextKey, net.Addr(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8080}),
	)
	r := httptest.NewRequestWithContext(local, method, url, nil)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	c.ServeHTTP(w, r)
	return w
}

// mustPost sends a command, requires that it is carried out, and returns its answer.
func (c *container) mustPost(url string) string {
	c.t.Helper()
	w := c.request(http.MethodPost, url)
	if w.Code != http.StatusOK {
		c.t.Fatalf("POST %s: %d\n%s", url, w.Code, w.Body)
	}
	return w.Body.String()
}

func (c *container) probe(path string) int {
	return c.request(http.MethodGet, path, "User-Agent", "kube-probe/1.36").Code
}

func separateProbes() map[string]Probe {
	return map[string]Probe{
		Startup: {Port: 8080, URI: "/startupz"}, Liveness: {Port: 8080, URI: "/livez"},
		Readiness: {Port: 8080, URI: "/readyz?full=1"},
	}
}

func TestFailAndRecoverProbes(t *testing.T) {
	c := newContainer(t, separateProbes())
	answer := c.mustPost("/fail?probe=readiness")
	assertContains(
		t, answer, "The readiness probe (GET /readyz?full=1 on port 8080) fails from now on, until POST /recover.",
	)
	assertContains(t, answer, "Now: the readiness probe fails, until POST /recover\n")
	assertEqual(t, http.StatusServiceUnavailable, c.probe("/readyz?full=1"))
	assertEqual(t, http.StatusOK, c.probe("/livez"))
	assertEqual(t, http.StatusOK, c.probe("/readyz"), "not where the probe asks")
	assertEqual(t, http.StatusOK, c.request(http.MethodGet, "/readyz?full=1").Code, "not the kubelet")

	var asJSON commandReply
	requireNoError(
		t, json.Unmarshal(c.request(http.MethodPost, "/fail?probe=readiness&for=1h&format=json").Body.Bytes(), &asJSON),
	)
	assertContains(t, asJSON.Message, "The readiness probe")
	assertLen(t, 1, asJSON.ActiveFaults)
	assertMatches(t, `^the readiness probe fails, until \d\d:\d\d:\d\d UTC or POST /recover$`, asJSON.ActiveFaults[0])

	c.mustPost("/fail?probe=all")
	assertEqual(t, http.StatusServiceUnavailable, c.probe("/livez"))
	assertEqual(t, http.StatusServiceUnavailable, c.probe("/startupz"))
	c.mustPost("/recover?probe=liveness")
	assertEqual(t, http.StatusOK, c.probe("/livez"))
	assertEqual(t, http.StatusServiceUnavailable, c.probe("/startupz"))
	assertEqual(t, false, strings.Contains(c.mustPost("/recover"), "Now:"))
	assertEqual(t, http.StatusOK, c.probe("/startupz"))
	assertEqual(t, http.StatusOK, c.probe("/readyz?full=1"))
}

func TestProbesOfOneURIFailTogether(t *testing.T) {
	same := Probe{Port: 8080, URI: "/healthz"}
	c := newContainer(t, map[string]Probe{Liveness: same, Readiness: same, Startup: {Port: 8080, URI: "/startupz"}})
	answer := c.mustPost("/fail?probe=readiness")
	assertContains(t, answer, "The liveness probe (GET /healthz on port 8080) fails")
	assertContains(t, answer, "so they fail together")
	assertEqual(
		t, []string{"the liveness probe fails, until POST /recover", "the readiness probe fails, until POST /recover"},
		c.currentFaults().describeActive(),
	)
	c.mustPost("/recover?probe=liveness")
	assertLen(t, 0, c.currentFaults().describeActive())
}

func TestFaultsEndByThemselves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newContainer(t, separateProbes())
		c.mustPost("/fail?probe=liveness&for=30s")
		c.mustPost("/slow?delay=2s&for=10s")
		began := time.Now()
		assertEqual(t, http.StatusServiceUnavailable, c.probe("/livez"))
		assertEqual(t, 2*time.Second, time.Since(began), "probes wait, too")
		c.mustPost("/help?format=text")
		assertEqual(t, 2*time.Second, time.Since(began), "commands do not wait")
		assertEqual(t, http.StatusOK, c.request(http.MethodGet, "/?delay=1s").Code)
		assertEqual(t, 5*time.Second, time.Since(began), "both delays")

		time.Sleep(5 * time.Second)
		c.mustPost("/fail?probe=readiness&for=0s")
		assertEqual(t, http.StatusOK, c.probe("/readyz?full=1"), "for no time at all")
		began = time.Now()
		assertEqual(t, http.StatusServiceUnavailable, c.probe("/livez"))
		assertEqual(t, 0, time.Since(began))
		time.Sleep(20 * time.Second)
		assertEqual(t, http.StatusOK, c.probe("/livez"))
		assertLen(t, 0, c.currentFaults().describeActive())

		c.mustPost("/slow?delay=5m")
		c.mustPost("/slow?delay=0")
		began = time.Now()
		c.request(http.MethodGet, "/")
		assertEqual(t, 0, time.Since(began))
	})
}

func TestExitComesAfterItsAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newContainer(t, nil)
		began := time.Now()
		assertContains(t, c.mustPost("/exit?code=3&after=2s"), "Container web exits with code 3 in 2s.")
		assertEqual(t, uint8(3), <-c.exitCodes)
		assertEqual(t, 2*time.Second, time.Since(began))
		assertContains(t, c.mustPost("/exit"), "Container web exits with code 0 now.")
		assertEqual(t, uint8(0), <-c.exitCodes)
	})
}

// A refusal says what is right, and changes no fault.
func TestWrongCommandsAreRefusedWithHelp(t *testing.T) {
	c := newContainer(t, map[string]Probe{
		Liveness:  {UnfitReason: "cannot be told to fail, because it is a tcpSocket probe."},
		Readiness: {Port: 8080, URI: "/readyz"},
	})
	c.mustPost("/fail?probe=readiness")
	c.mustPost("/slow?delay=1ns")
	before := c.currentFaults()
	for _, test := range []struct {
		method, url, says string
		code              int
	}{
		{"GET", "/fail?probe=readiness", "/fail is a command: it needs POST, and this was GET.", 405},
		{"PUT", "/exit", "it needs POST", 405},
		{"POST", "/fail", `probe="": readiness, liveness, startup or all is needed.`, 400},
		{"POST", "/fail?probe=Readiness", `probe="Readiness"`, 400},
		{"POST", "/fail?prob=readiness", `/fail has no parameter "prob".`, 400},
		{"POST", "/fail?probe=readiness&probe=liveness", "probe is there 2 times.", 400},
		{"POST", "/fail?probe=readiness&for=1", `for="1": a duration from 0s to 24h0m0s is needed`, 400},
		{"POST", "/fail?probe=readiness&for=-1s", `for="-1s"`, 400},
		{"POST", "/fail?probe=readiness&for=25h", `for="25h"`, 400},
		{"POST", "/fail?probe=%zz", "The query cannot be read", 400},
		{"POST", "/fail?probe=startup", "The container has no startup probe: add a startupProbe with httpGet", 409},
		{
			"POST", "/fail?probe=liveness",
			"The liveness probe cannot be told to fail, because it is a tcpSocket probe.", 409,
		},
		{"POST", "/recover?probe=liveness", "The liveness probe cannot be told", 409},
		{"POST", "/recover?probe=", `probe=""`, 400},
		{"POST", "/slow", "delay is missing", 400},
		{"POST", "/slow?delay=", `delay=""`, 400},
		{"POST", "/slow?delay=6m", `delay="6m"`, 400},
		{"POST", "/exit?code=256", `code="256": a number from 0 to 255 is needed.`, 400},
		{"POST", "/exit?code=-1", `code="-1"`, 400},
		{"POST", "/exit?after=1h", `after="1h"`, 400},
		{"GET", "/?delay=1y", `delay="1y"`, 400},
	} {
		w := c.request(test.method, test.url)
		assertEqual(t, test.code, w.Code, test.url)
		assertContains(t, w.Body.String(), test.says, test.url)
		assertContains(t, w.Body.String(), Help, test.url)
		assertEqual(t, test.code == 405, w.Header().Get("Allow") == "POST", test.url)

		w = c.request(test.method, test.url, "Accept", "application/json")
		assertEqual(t, test.code, w.Code, test.url)
		var reply commandReply
		requireNoError(t, json.Unmarshal(w.Body.Bytes(), &reply), test.url)
		assertContains(t, reply.Message, test.says, test.url)
		assertEqual(t, Help, strings.Join(reply.Help, "\n"), test.url)
		assertLen(t, 2, reply.ActiveFaults, test.url)
		assertEqual(t, before, c.currentFaults(), test.url)
	}
	assertEqual(t, 0, len(c.exitCodes))
}

func TestFailWithoutHTTPProbes(t *testing.T) {
	c := newContainer(t, map[string]Probe{Liveness: {UnfitReason: "is a tcpSocket probe."}})
	w := c.request(http.MethodPost, "/fail?probe=all")
	assertEqual(t, http.StatusConflict, w.Code)
	for _, says := range []string{
		"no startup probe", "The liveness probe is a tcpSocket probe.", "no readiness probe",
	} {
		assertContains(t, w.Body.String(), says)
	}
}

func TestHelpListsCommandsAndFaults(t *testing.T) {
	c := newContainer(t, separateProbes())
	c.mustPost("/fail?probe=startup&for=1h")
	text := c.request(http.MethodGet, "/help").Body.String()
	assertEqual(t, true, strings.HasPrefix(text, Help+"\nNow: the startup probe fails, until "), text)
	for _, path := range []string{"/fail", "/recover", "/slow", "/exit"} {
		obey, parameters := c.findCommand(path)
		assertEqual(t, false, obey == nil, path)
		for _, p := range parameters {
			assertMatches(t, `(?m)^  POST `+path+`[?[].*`+p+`=`, Help)
		}
	}
}

func TestSuccessfulProbesAreNotLogged(t *testing.T) {
	c := newContainer(t, separateProbes())
	c.probe("/livez")
	assertLen(t, 0, c.log)
	c.mustPost("/fail?probe=liveness")
	c.probe("/livez")
	assertEqual(t, `GET /livez: the liveness probe fails, as it was told to`, c.log[len(c.log)-1])
}
