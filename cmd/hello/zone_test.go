package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const withoutZone = "Hello from pod web-1 (10.1.0.5) on node-1 in zone (no zone label yet)\n"

// fakeAPIServer has the Node node-1, for one token.
type fakeAPIServer struct {
	*httptest.Server
	// credentials is what the kubelet mounts.
	credentials string
	// zone and token are the Node's label and who may read it.
	zone, token atomic.Value
	requests    atomic.Int64
}

func newFakeAPIServer(t *testing.T) *fakeAPIServer {
	t.Helper()
	s := &fakeAPIServer{credentials: t.TempDir()}
	s.zone.Store("")
	s.Server = httptest.NewTLSServer(s)
	t.Cleanup(s.Close)
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	require.NoError(t, os.WriteFile(filepath.Join(s.credentials, "ca.crt"), certificate, 0o600))
	s.token.Store("first")
	s.mountToken(t, "first")
	return s
}

func (f *fakeAPIServer) mountToken(t *testing.T, token string) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(f.credentials, "token"), []byte(token+"\n"), 0o600))
}

func (f *fakeAPIServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.requests.Add(1)
	w.Header().Set("Content-Type", "application/json")
	switch {
	case r.Header.Get("Authorization") != "Bearer "+f.token.Load().(string):
		w.WriteHeader(http.StatusForbidden)
		_, _ = fmt.Fprint(w, `{"kind":"Status","message":"nodes \"node-1\" is forbidden"}`)
	case r.Method != http.MethodGet, r.URL.Path != "/api/v1/nodes/node-1",
		!strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata"):
		w.WriteHeader(http.StatusNotFound)
		_, _ = fmt.Fprint(w, `{"kind":"Status","message":"not found"}`)
	default:
		labels := `"kubernetes.io/hostname":"node-1"`
		if zone := f.zone.Load().(string); zone != "" {
			labels += fmt.Sprintf(`,"topology.kubernetes.io/zone":%q`, zone)
		}
		_, _ = fmt.Fprintf(w, `{"kind":"PartialObjectMetadata","metadata":{"name":"node-1","labels":{%s}}}`, labels)
	}
}

// podWithoutZone sets the options of a pod on node-1 that has no zone label.
func (f *fakeAPIServer) podWithoutZone(o *options) {
	o.identity.Zone, o.nodeURL, o.credentials = "", f.URL+"/api/v1/nodes/node-1", f.credentials
	o.zoneTimeout = time.Minute // No test waits for its end.
}

// podWithoutZoneOrWait sets those of one that starts before the API server lets it read.
func (f *fakeAPIServer) podWithoutZoneOrWait(o *options) {
	f.podWithoutZone(o)
	o.zoneTimeout = time.Millisecond
}

// waitForZone returns when the server answers with its zone.
func (r runningServer) waitForZone(t *testing.T) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		body, _ := r.get(t, "/")
		assert.Equal(c, sentence, body)
	}, 30*time.Second, 10*time.Millisecond)
}

// A pod was bound before the admission had seen the Node's labels, which are
// there by now.
func TestFirstAnswerHasNodeZone(t *testing.T) {
	s := newFakeAPIServer(t)
	s.zone.Store("zone-a")
	r := startServer(t, s.podWithoutZone)
	body, _ := r.get(t, "/")
	assert.Equal(t, sentence, body)
	body, _ = r.get(t, "/?format=json")
	assert.Contains(t, body, `"zone":"zone-a"`)
	assert.EqualValues(t, 1, s.requests.Load(), "and is not asked again")
}

func TestNodeGetsItsZoneLate(t *testing.T) {
	s := newFakeAPIServer(t)
	r := startServer(t, s.podWithoutZone)
	body, _ := r.get(t, "/")
	assert.Equal(t, withoutZone, body, "a Node without a zone is not waited for")
	s.zone.Store("zone-a")
	r.waitForZone(t)
}

// The rights and the token may come after the pod.
func TestRefusalsOfTheAPIServerAreRetried(t *testing.T) {
	s := newFakeAPIServer(t)
	s.zone.Store("zone-a")
	s.token.Store("second")
	r := startServer(t, s.podWithoutZoneOrWait)
	require.Eventually(t, func() bool { return s.requests.Load() > 1 }, 30*time.Second, time.Millisecond)
	s.mountToken(t, "second")
	r.waitForZone(t)
}

func TestAnswersWithoutAnAPIServer(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*options)
		answer string
	}{
		"not there":           {func(o *options) { o.nodeURL = "https://127.0.0.1:1/api/v1/nodes/node-1" }, withoutZone},
		"no token is mounted": {func(o *options) { o.credentials = "/nowhere" }, withoutZone},
		"not in a pod":        {func(o *options) { o.nodeURL = "" }, withoutZone},
		"the pod has a zone":  {func(o *options) { o.identity.Zone = "zone-a" }, sentence},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFakeAPIServer(t)
			r := startServer(t, func(o *options) {
				s.podWithoutZoneOrWait(o)
				test.change(o)
			})
			body, _ := r.get(t, "/")
			assert.Equal(t, test.answer, body)
			assert.Zero(t, s.requests.Load())
		})
	}
}

// A server that the mounted CA does not vouch for gets no token.
func TestTokenIsForTheAPIServerOnly(t *testing.T) {
	s := newFakeAPIServer(t)
	s.zone.Store("zone-a")
	z := newZoneFinder(options{nodeURL: s.URL + "/api/v1/nodes/node-1", credentials: s.credentials})
	zone, err := z.getNodeZone(t.Context())
	require.NoError(t, err)
	assert.Equal(t, "zone-a", zone)

	for says, certificate := range map[string][]byte{
		"unknown authority": newCA(t), "there is no certificate in ": []byte("none"),
	} {
		require.NoError(t, os.WriteFile(filepath.Join(s.credentials, "ca.crt"), certificate, 0o600))
		_, err = z.getNodeZone(t.Context())
		require.ErrorContains(t, err, says)
	}
	assert.EqualValues(t, 1, s.requests.Load())
}

func newCA(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, NotAfter: time.Now().Add(time.Hour),
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate})
}

func TestOptionsNameNodeURL(t *testing.T) {
	for want, environment := range map[string][]string{
		"": {"NODE_NAME=node-1"},
		"https://10.96.0.1:443/api/v1/nodes/n-1": {
			"NODE_NAME=n-1", "KUBERNETES_SERVICE_HOST=10.96.0.1", "KUBERNETES_SERVICE_PORT=443",
		},
		"https://[fd00::1]:443/api/v1/nodes/n-1": {
			"NODE_NAME=n-1", "KUBERNETES_SERVICE_HOST=fd00::1", "KUBERNETES_SERVICE_PORT=443",
		},
	} {
		o, err := parseOptions(environment)
		require.NoError(t, err)
		assert.Equal(t, want, o.nodeURL)
		assert.Equal(t, serviceAccountDir, o.credentials)
		assert.Equal(t, defaultZoneTimeout, o.zoneTimeout)
	}
	o, err := parseOptions([]string{"KUBERNETES_SERVICE_HOST=10.96.0.1", "KUBERNETES_SERVICE_PORT=443"})
	require.NoError(t, err)
	assert.Empty(t, o.nodeURL, "which Node, it is not told")
}
