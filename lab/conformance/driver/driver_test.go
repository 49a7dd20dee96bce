package driver

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/driver/protocol"
	"github.com/ccmlab/ccmlab/lab/conformance/faultproxy"
	"github.com/ccmlab/ccmlab/lab/process"
)

func TestAddresses(t *testing.T) {
	a, err := ParseAddress("unix:///run/nebula.sock", "")
	require.NoError(t, err)
	assert.Equal(t, Address{network: "unix", target: "/run/nebula.sock"}, a)
	for _, text := range []string{"http://127.0.0.1:9000", "http://localhost:9000/", "http://[::1]:9000"} {
		_, err := ParseAddress(text, "secret")
		assert.NoError(t, err, text)
	}
	for text, why := range map[string]string{
		"unix://run/nebula.sock": "want unix:///path", "https://127.0.0.1:9": "want unix:///path",
		"http://127.0.0.1": "want unix:///path", "http://10.0.0.1:9000": "not this machine's own",
		"http://nebula:9000": "not this machine's own",
	} {
		_, err := ParseAddress(text, "secret")
		assert.ErrorContains(t, err, why, text)
	}
	_, err = ParseAddress("http://127.0.0.1:9000", "")
	assert.ErrorContains(t, err, protocol.EnvToken)
	assert.True(t, IsAddress("unix:///run/nebula.sock"))
	assert.False(t, IsAddress("./nebula-driver"))
}

// sayingHello is a driver that answers with this text, and with others by their path.
func sayingHello(t *testing.T, hello string, others map[string]string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/hello" {
			_, err := io.WriteString(w, hello)
			assert.NoError(t, err)
			return
		}
		if answer, ok := others[r.URL.Path]; ok {
			_, err := io.WriteString(w, answer)
			assert.NoError(t, err)
			return
		}
		http.Error(w, "no such page", http.StatusTeapot)
	})
}

const plainHello = `{"protocol": "v1", "name": "nebula", "features": ["zones"]}`

func connect(t *testing.T, h http.Handler) (*Cloud, error) {
	return Connect(t.Context(), serve(t, h), protocol.Hello{ClusterName: "kitchen"}, nil)
}

func TestUnknownVersionIsTold(t *testing.T) {
	_, err := connect(t, sayingHello(t, `{"protocol": "v9", "name": "nebula", "features": []}`, nil))
	assert.EqualError(t, err, `the driver nebula speaks version "v9" of the protocol, and this suite "v1": `+
		`one of them must be of another release`)
}

// A driver of a later release names what this suite does not know: that is left aside.
func TestDriverOfALaterRelease(t *testing.T) {
	c, err := connect(t, sayingHello(t, `{"protocol": "v1", "name": "nebula", "claims": ["levitation"],
		"features": ["wormholes", "udp", "fault-supernova"], "orbit": {"radius": 7}, "proxy": {"upstream": "http://127.0.0.1:1",
		"rules": [{"path": "/v1/servers", "thing": "instances"}], "answers": {"503": {}, "nova": {}}}}`, nil))
	require.NoError(t, err)
	assert.Equal(t, []conformance.Feature{conformance.FeatureUDP}, c.Features())
	assert.Equal(t, []string{"wormholes", "fault-supernova", "fault-nova"}, c.UnknownFeatures())
	proxy, err := faultproxy.Open("127.0.0.1", *c.Described().Proxy)
	require.NoError(t, err)
	assert.NoError(t, proxy.Close())
}

// A driver serves suites of two releases: each is told of what it knows.
func TestSuiteOfAnotherRelease(t *testing.T) {
	h := NewHandler(protocol.Driver{}, func(context.Context, protocol.Hello) (conformance.Cloud, error) {
		return &fullCloud{}, nil
	})
	for hello, want := range map[string]string{
		`{"protocols": ["v1"], "features": ["udp", "fault-slow", "fault-supernova", "call-journal", "wormholes"]}`: `
			"features":["udp","fault-slow","call-journal"]`,
		`{"protocols": ["v1"]}`: `"listeners","node-ports","targets","udp"`,
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/hello", strings.NewReader(hello)))
		assert.Contains(t, w.Body.String(), strings.TrimSpace(want))
	}
	var asked protocol.Hello
	_, err := connect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.NoError(t, json.NewDecoder(r.Body).Decode(&asked))
		sayingHello(t, plainHello, nil).ServeHTTP(w, r)
	}))
	require.NoError(t, err)
	for _, name := range []string{"udp", "fault-503", "instance-batches", "call-journal", "load-balancers"} {
		assert.Contains(t, asked.Features, name)
	}
}

// Whoever writes a driver reads where its answer is wrong.
func TestAnswerThatDoesNotFitTheProtocol(t *testing.T) {
	_, err := connect(t, sayingHello(t, `{"protocol": "v1", "features": []}`, nil))
	assert.ErrorContains(
		t, err, `its answer to POST /hello does not fit the protocol: at /name: property "name" is missing`)

	c, err := connect(t, sayingHello(t, plainHello, map[string]string{
		"/v1/instances": `{"id": "i-1", "name": "w", "providerID": "nebula://i-1", "internalIPs": "10.0.0.1"}`,
		"/v1/balancers": `{"balancers": [{"id": "lb-1", "active": true}, {"id": "lb-2"}]}`,
	}))
	require.NoError(t, err)
	_, err = c.CreateInstance(t.Context(), conformance.InstanceSpec{})
	assert.ErrorContains(t, err, "its answer to POST /v1/instances does not fit the protocol: at /internalIPs")
	_, err = c.ListBalancers(t.Context())
	assert.ErrorContains(t, err, "at /balancers/1/active")
	err = c.StopInstance(t.Context(), "i-1")
	assert.ErrorContains(t, err, "the driver, POST /v1/instances/i-1/stop: 418 I'm a teapot: \"no such page\"",
		"an error without a problem is told as it is")
}

func TestCallsAreBounded(t *testing.T) {
	given := make(chan struct{})
	c, err := connect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hello" {
			sayingHello(t, `{"protocol": "v1", "name": "nebula", "features": [], "callTimeoutSeconds": 7}`, nil).
				ServeHTTP(w, r)
			return
		}
		<-r.Context().Done() // The driver learns that nobody waits any more.
		given <- struct{}{}
	}))
	require.NoError(t, err)
	assert.Equal(t, 7*time.Second, c.driver.timeout)
	c.driver.timeout = time.Millisecond
	_, err = c.ListBalancers(t.Context())
	assert.ErrorContains(t, err, "it has not answered within 1ms")
	<-given

	ctx, cancel := context.WithCancelCause(t.Context())
	c.driver.timeout = time.Hour
	cancel(io.EOF)
	_, err = c.ListBalancers(ctx)
	assert.ErrorIs(t, err, io.EOF)
}

func TestTokenOverTCP(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			writeProblem(w, http.StatusUnauthorized, io.ErrUnexpectedEOF)
			return
		}
		sayingHello(t, plainHello, nil).ServeHTTP(w, r)
	}))
	defer server.Close()
	for token, works := range map[string]bool{"secret": true, "wrong": false} {
		a, err := ParseAddress(server.URL, token)
		require.NoError(t, err)
		_, err = Connect(t.Context(), a, protocol.Hello{}, nil)
		assert.Equal(t, works, err == nil, "%v", err)
	}
}

func TestMistakesOfRequestsAreProblems(t *testing.T) {
	h := NewHandler(protocol.Driver{}, func(context.Context, protocol.Hello) (conformance.Cloud, error) {
		return bareCloud{}, nil
	})
	for _, c := range []struct {
		method, path, body string
		status             int
		detail             string
	}{
		{http.MethodGet, "/v1/balancers", "", http.StatusInternalServerError, "the first request is /hello"},
		{http.MethodPost, "/hello", "{", http.StatusBadRequest, "the request's body"},
		{http.MethodPost, "/hello", `{"protocols": ["v9"]}`, http.StatusBadRequest, `this driver speaks version \"v1\"`},
		{http.MethodPost, "/hello", `{"protocols": ["v1"]}`, http.StatusOK, `"features":["udp"]`},
		{http.MethodGet, "/v1/routes", "", http.StatusNotImplemented, "RouteTable"},
		{http.MethodGet, "/v1/injections/9", "", http.StatusNotFound, "there is none"},
		{http.MethodPost, "/v1/injections/9/renew", "", http.StatusNotFound, "there is none"},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(c.method, c.path, strings.NewReader(c.body)))
		assert.Equal(t, c.status, w.Code, c.path)
		assert.Contains(t, w.Body.String(), c.detail, c.path)
	}
}

// A proxy gives a driver without faults and counters both; what the driver has itself stays its own.
func TestRolesByTheProxy(t *testing.T) {
	list := "/servers"
	proxy, err := faultproxy.Open("127.0.0.1", protocol.Proxy{
		Upstream: "http://127.0.0.1:1",
		Rules:    []protocol.ProxyRule{{Method: "GET", Path: "/v1/servers", Thing: conformance.Instances, List: &list}},
	})
	require.NoError(t, err)
	defer func() { assert.NoError(t, proxy.Close()) }()

	bare := connectTo(t, bareCloud{})
	assert.NotContains(t, conformance.FeaturesOf(bare), conformance.FeatureCalls)
	bare.UseProxy(proxy)
	features := conformance.FeaturesOf(bare)
	for _, f := range []conformance.Feature{"calls", "fault-503", "fault-empty-list", "fault-lost", "udp"} {
		assert.Contains(t, features, f)
	}
	for _, f := range []conformance.Feature{"fault-404", "fault-missing-field", "routes"} {
		assert.NotContains(t, features, f)
	}
	injected, err := bare.InjectFault(t.Context(), conformance.Fault{Kind: conformance.FaultUnavailable})
	require.NoError(t, err)
	resp, err := http.Get(proxy.URL() + "/v1/servers") //nolint:noctx // The server is this test's.
	require.NoError(t, err)
	_ = resp.Body.Close()
	assert.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
	require.NoError(t, injected.Lift(t.Context()))
	counted, err := bare.CountCalls(t.Context())
	require.NoError(t, err)
	assert.Equal(t, 1, counted.Reads)
	journal, err := bare.CallsSince(t.Context(), time.Time{})
	require.NoError(t, err)
	assert.Len(t, journal, 1)

	near := &fullCloud{}
	full := connectTo(t, near)
	full.UseProxy(proxy)
	calls, err := full.CountCalls(t.Context())
	require.NoError(t, err)
	assert.Equal(t, someCalls, calls)
	assert.Contains(t, full.FaultKinds(), conformance.FaultUnavailable)
	_, err = full.InjectFault(t.Context(), conformance.Fault{Kind: conformance.FaultReset})
	require.NoError(t, err)
	assert.Len(t, near.takeQuestions(), 2, "the driver's own fault is the driver's")
}

// startScript starts a driver that is a shell's script.
func startScript(t *testing.T, script string) *Running {
	folder := t.TempDir()
	path := filepath.Join(folder, "driver")
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o700)) //nolint:gosec // A program.
	r, err := Program{
		Path: path, Args: []string{"over", "there"}, Env: []string{"NEBULA=north"},
		Host: process.Host{Lab: folder}, LogFile: filepath.Join(folder, "driver.log"),
	}.Start()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, r.Stop(context.WithoutCancel(t.Context()))) })
	return r
}

// A program that ends says why, instead of half a minute of silence.
func TestProgramThatEnds(t *testing.T) {
	r := startScript(t, `echo "no credentials for $1 $2 in $NEBULA, ${CCMLAB_DRIVER_SOCKET##*/}" >&2; exit 3`)
	_, err := Connect(t.Context(), r.Address, protocol.Hello{}, r.Ended)
	assert.EqualError(t, err, "the driver's program has ended: exit status 3; it said last: "+
		"no credentials for over there in north, socket")
}

func TestProgramIsStopped(t *testing.T) {
	r := startScript(t, "exec sleep 1000")
	require.NoError(t, r.Ended())
	require.NoError(t, r.Stop(t.Context()))
	assert.Error(t, r.Ended())
	assert.NoDirExists(t, r.folder)
}
