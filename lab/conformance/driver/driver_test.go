package driver

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
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

func connect(t *testing.T, h http.Handler) (*conformance.Client, error) {
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

// A driver serves suites of two releases: each says what it knows.
func TestSuiteSaysWhatItKnows(t *testing.T) {
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
	d := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hello" {
			sayingHello(t, `{"protocol": "v1", "name": "nebula", "features": [], "callTimeoutSeconds": 7}`, nil).
				ServeHTTP(w, r)
			return
		}
		<-r.Context().Done() // The driver learns that nobody waits any more.
		given <- struct{}{}
	})).connection(nil)
	assert.Equal(t, protocol.DefaultTimeout, d.Timeout)
	c, err := connectBy(t.Context(), d, protocol.Hello{})
	require.NoError(t, err)
	assert.Equal(t, 7*time.Second, d.Timeout)
	d.Timeout = time.Millisecond
	_, err = c.ListBalancers(t.Context())
	assert.ErrorContains(t, err, "it has not answered within 1ms")
	<-given

	ctx, cancel := context.WithCancelCause(t.Context())
	d.Timeout = time.Hour
	cancel(io.EOF)
	_, err = c.ListBalancers(ctx)
	assert.ErrorIs(t, err, io.EOF)
}

func TestTokenOverTCP(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			http.Error(w, "who are you?", http.StatusUnauthorized)
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

// A proxy gives a driver without faults and counters both; what the driver has itself stays its own.
func TestRolesByTheProxy(t *testing.T) {
	list := "/servers"
	proxy, err := faultproxy.Open("127.0.0.1", protocol.Proxy{
		Upstream: "http://127.0.0.1:1",
		Rules:    []protocol.ProxyRule{{Method: "GET", Path: "/v1/servers", Thing: conformance.Instances, List: &list}},
	})
	require.NoError(t, err)
	defer func() { assert.NoError(t, proxy.Close()) }()

	bare, err := connect(t, protocol.NewHandler(countingDriver{features: []string{"udp"}}))
	require.NoError(t, err)
	assert.NotContains(t, bare.Features(), conformance.FeatureCalls)
	bare.UseProxy(proxy)
	features := bare.Features()
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

	full, err := connect(t, protocol.NewHandler(countingDriver{features: []string{"calls", "fault-reset"}}))
	require.NoError(t, err)
	full.UseProxy(proxy)
	calls, err := full.CountCalls(t.Context())
	require.NoError(t, err)
	assert.Equal(t, conformance.Calls{
		Count: conformance.Count{Reads: 3, Writes: 1},
		Of:    map[conformance.Thing]conformance.Count{conformance.Routes: {Writes: 1}},
	}, calls)
	assert.Contains(t, full.FaultKinds(), conformance.FaultUnavailable)
	_, err = full.InjectFault(t.Context(), conformance.Fault{Kind: conformance.FaultReset})
	assert.ErrorContains(t, err, "the driver's own fault")
}

// countingDriver counts calls, and has faults of its own.
type countingDriver struct {
	protocol.Unanswered
	features []string
}

func (d countingDriver) Hello(context.Context, protocol.Hello) (protocol.Driver, error) {
	return protocol.Driver{Name: "nebula", Features: d.features}, nil
}

func (countingDriver) CountCalls(context.Context) (protocol.CallCounts, error) {
	return protocol.CallCounts{Reads: 3, Writes: 1, Things: map[string]protocol.CallCount{"routes": {Writes: 1}}}, nil
}

func (countingDriver) InjectFault(context.Context, conformance.Fault) (protocol.Injection, error) {
	return protocol.Injection{}, errors.New("the driver's own fault")
}

// serve has a handler answer on a Unix socket, as a driver does.
func serve(t *testing.T, h http.Handler) Address {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	server := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(l)
	}()
	t.Cleanup(func() {
		assert.NoError(t, server.Close())
		<-served
	})
	return Address{network: "unix", target: socket}
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
