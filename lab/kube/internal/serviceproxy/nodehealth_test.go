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
	"time"

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
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(response.Body)
	for header, want := range map[string]string{
		"Content-Type": "application/json", "X-Content-Type-Options": "nosniff",
	} {
		if got := response.Header.Get(header); got != want {
			t.Errorf("%s: %q, want %q", header, got, want)
		}
	}
	answer := map[string]any{}
	if err := json.Unmarshal(body, &answer); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
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
		{"cordoned", &v1.Node{Spec: v1.NodeSpec{
			Unschedulable: true, Taints: []v1.Taint{{Key: v1.TaintNodeUnschedulable, Effect: v1.TaintEffectNoSchedule}},
		}}, http.StatusOK},
		{"about to be removed by the autoscaler", &v1.Node{Spec: v1.NodeSpec{
			Taints: []v1.Taint{{Key: healthcheck.ToBeDeletedTaint, Effect: v1.TaintEffectNoSchedule}},
		}}, http.StatusServiceUnavailable},
		{"kept after all", &v1.Node{}, http.StatusOK},
		{
			"being deleted",
			&v1.Node{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &now}}, http.StatusServiceUnavailable,
		},
	} {
		node.Store(c.node)
		status, answer := askHealth(t, p, "/healthz")
		if eligible := c.healthz == http.StatusOK; status != c.healthz || answer["nodeEligible"] != eligible {
			t.Errorf("%s: /healthz is %d %v, want %d", c.name, status, answer, c.healthz)
		}
		status, answer = askHealth(t, p, "/livez")
		if _, said := answer["nodeEligible"]; status != http.StatusOK || said {
			t.Errorf("%s: /livez is %d %v, want 200 without a word of the node", c.name, status, answer)
		}
	}
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
	if status != http.StatusOK || families["IPv4"] == nil {
		t.Errorf("after a sync: %d %v", status, answer)
	}
	if answer["lastUpdated"] != answer["currentTime"] {
		t.Errorf("of a healthy proxy lastUpdated is the present time: %v", answer)
	}

	p.requestSync()
	for _, path := range []string{"/healthz", "/livez"} {
		if status, answer := askHealth(t, p, path); status != http.StatusServiceUnavailable || answer["healthy"] != false {
			t.Errorf("%s with a sync that is overdue: %d %v", path, status, answer)
		}
	}
	p.syncPorts()
	if status, answer := askHealth(t, p, "/healthz"); status != http.StatusOK {
		t.Errorf("after the sync: %d %v", status, answer)
	}
}

func TestHealthPortThatIsTakenIsRetried(t *testing.T) {
	p, node := newHealthProxy(t, 15)
	node.Store(&v1.Node{})
	taken, err := net.Listen("tcp4", p.options.Address.String()+":10256")
	if err != nil {
		t.Fatal(err)
	}
	p.syncPorts()
	if !p.shouldRetry() {
		t.Error("a failed bind is not going to be tried again")
	}
	taken.Close()
	p.syncPorts()
	if status, _ := askHealth(t, p, "/healthz"); status != http.StatusOK || p.shouldRetry() {
		t.Errorf("/healthz is %d once the port is free", status)
	}
}

func TestCloseFreesHealthPort(t *testing.T) {
	p, _ := newHealthProxy(t, 16)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); p.Sync(ctx) }()
	at := p.options.Address.String() + ":10256"
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if conn, err := net.Dial("tcp4", at); err == nil {
			conn.Close()
			break
		} else if time.Now().After(deadline) {
			t.Fatal("Sync does not serve the node's health from the first:", err)
		}
	}
	stop()
	<-ended
	p.Close()
	again, err := net.Listen("tcp4", at)
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
}
