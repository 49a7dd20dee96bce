package ccm

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/ccmlab/ccmlab/ccm/config"
)

// newTestCloud is a provider of a cloud whose handler that is.
func newTestCloud(t *testing.T, handler http.HandlerFunc) *cloud {
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("secret"), 0o600))
	cfg := config.Default()
	cfg.URL, cfg.TokenFile, cfg.Project, cfg.Cache = server.URL, token, "lab", false
	c, err := newCloud(cfg, clusterName)
	require.NoError(t, err)
	return c
}

// A cloud that swallows what it is sent keeps no controller from starting.
func TestInitializeDoesNotWaitForTheCloud(t *testing.T) {
	started, ended, stop := make(chan struct{}), make(chan struct{}), make(chan struct{})
	c := newTestCloud(t, func(w http.ResponseWriter, _ *http.Request) {
		<-started // If Initialize waits for this, both wait forever, which ends the test.
		w.WriteHeader(http.StatusServiceUnavailable)
		close(ended)
	})
	defer close(stop)
	system := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system", UID: clusterUID}}
	c.Initialize(clients{kube: fake.NewClientset(system)}, stop)
	assert.Equal(t, clusterUID, c.cluster.UID(), "before any controller works")
	close(started)
	<-ended
}

// countedClients counts who asks for a client.
type countedClients struct {
	clients
	mu    sync.Mutex
	asked map[string]int
}

func (c *countedClients) ClientOrDie(name string) kubernetes.Interface {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked[name]++
	return c.kube
}

// With leader migration upstream initializes the cloud for each of two leases, at once.
func TestTwoLeasesShareOneCloud(t *testing.T) {
	c, stop := newTestCloud(t, http.NotFound), make(chan struct{})
	defer close(stop)
	builder := &countedClients{clients: clients{kube: fake.NewClientset()}, asked: map[string]int{}}
	shared := informers.NewSharedInformerFactory(builder.kube, 0)
	var leases sync.WaitGroup
	for range 2 {
		leases.Go(func() {
			c.Initialize(builder, stop)
			c.SetInformers(shared)
			assert.True(t, c.provider.Routes.IgnoresNode(&corev1.Node{})) // What its controllers do next.
		})
	}
	leases.Wait()
	assert.Equal(t, map[string]int{"fakecloud-events": 1, "fakecloud-cluster": 1, "fakecloud-guard": 1}, builder.asked)
}
