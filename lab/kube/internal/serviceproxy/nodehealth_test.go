package serviceproxy

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/proxy/healthcheck"
)

// newHealthProxy is a proxy of a node that the test can change.
func newHealthProxy(t *testing.T, subnet int) (*Proxy, *atomic.Pointer[v1.Node]) {
	t.Helper()
	t.Parallel()
	var node atomic.Pointer[v1.Node]
	options := testOptions(subnet)
	options.Node = node.Load
	p := New(options)
	t.Cleanup(p.Close)
	return p, &node
}

// askHealth returns the status and the answer of kube-proxy's health port, on which upstream's default is
// --healthz-bind-address=0.0.0.0:10256.
func askHealth(t *testing.T, p *Proxy, path string) (int, map[string]any) {
	t.Helper()
	client := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get(fmt.Sprintf("http://%s:10256%s", p.options.Address, path))
	require.NoError(t, err)
	defer response.Body.Close()
	body, _ := io.ReadAll(response.Body)
	assert.Equal(t, "application/json", response.Header.Get("Content-Type"))
	assert.Equal(t, "nosniff", response.Header.Get("X-Content-Type-Options"))
	answer := map[string]any{}
	require.NoError(t, json.Unmarshal(body, &answer), "%s", body)
	return response.StatusCode, answer
}

func TestHealthzFollowsNode(t *testing.T) {
	p, node := newHealthProxy(t, 13)
	p.syncPorts() // Before Services are known, as kube-proxy does.
	now := metav1.Now()
	for _, c := range []struct {
		name    string
		node    *v1.Node
		healthz int
	}{
		{"not registered yet", nil, http.StatusServiceUnavailable},
		{"registered", &v1.Node{}, http.StatusOK},
		{"cordoned", tainted(v1.TaintNodeUnschedulable), http.StatusOK},
		{"about to be removed by the autoscaler", tainted(healthcheck.ToBeDeletedTaint), http.StatusServiceUnavailable},
		{"kept after all", &v1.Node{}, http.StatusOK},
		{"being deleted", &v1.Node{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &now}}, http.StatusServiceUnavailable},
	} {
		node.Store(c.node)
		status, answer := askHealth(t, p, "/healthz")
		assert.Equal(t, c.healthz, status, c.name)
		assert.Equal(t, c.healthz == http.StatusOK, answer["nodeEligible"], c.name)
		status, answer = askHealth(t, p, "/livez")
		assert.Equal(t, http.StatusOK, status, c.name)
		assert.NotContains(t, answer, "nodeEligible", c.name)
	}
}

func tainted(key string) *v1.Node {
	return &v1.Node{Spec: v1.NodeSpec{
		Unschedulable: key == v1.TaintNodeUnschedulable,
		Taints:        []v1.Taint{{Key: key, Effect: v1.TaintEffectNoSchedule}},
	}}
}

func TestHealthzFollowsSync(t *testing.T) {
	p, node := newHealthProxy(t, 14)
	// Every sync that is asked for is overdue at once.
	p.health.ProxyHealthServer = healthcheck.NewProxyHealthServer("", 0, nodeGetter(node.Load))
	node.Store(&v1.Node{})
	p.OnServiceSynced()
	p.OnEndpointSlicesSynced()
	p.syncPorts()
	status, answer := askHealth(t, p, "/healthz")
	families, _ := answer["status"].(map[string]any)
	assert.Equal(t, http.StatusOK, status)
	assert.NotNil(t, families["IPv4"])
	assert.Equal(t, answer["currentTime"], answer["lastUpdated"], "of a healthy proxy")

	p.requestSync()
	for _, path := range []string{"/healthz", "/livez"} {
		status, answer := askHealth(t, p, path)
		assert.Equal(t, http.StatusServiceUnavailable, status, "%s with a sync that is overdue", path)
		assert.Equal(t, false, answer["healthy"], path)
	}
	p.syncPorts()
	status, _ = askHealth(t, p, "/healthz")
	assert.Equal(t, http.StatusOK, status, "after the sync")
}

func TestHealthPortThatIsTakenIsRetried(t *testing.T) {
	p, node := newHealthProxy(t, 15)
	node.Store(&v1.Node{})
	taken, err := net.Listen("tcp4", p.options.Address.String()+":10256")
	require.NoError(t, err)
	p.syncPorts()
	assert.True(t, p.shouldRetry(), "the bind failed")
	taken.Close()
	p.syncPorts()
	status, _ := askHealth(t, p, "/healthz")
	assert.Equal(t, http.StatusOK, status, "once the port is free")
	assert.False(t, p.shouldRetry())
}

func TestCloseFreesHealthPort(t *testing.T) {
	p, _ := newHealthProxy(t, 16)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); p.Sync(ctx) }()
	at := p.options.Address.String() + ":10256"
	waitUntil(t, "the node's health, which Sync serves from the first", func() bool {
		conn, err := net.Dial("tcp4", at)
		if err != nil {
			return false
		}
		return conn.Close() == nil
	})
	stop()
	<-ended
	p.Close()
	expectFree(t, at)
}
