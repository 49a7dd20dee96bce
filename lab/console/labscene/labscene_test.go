package labscene

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/console/scene"
)

var began = time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)

func TestNodes(t *testing.T) {
	ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue}
	for name, c := range map[string]struct {
		taint string
		ready bool
		state string
		level scene.Level
	}{
		"as it registers":     {taint: "node.cloudprovider.kubernetes.io/uninitialized", state: "waits for the CCM", level: scene.LevelBusy},
		"initialised":         {ready: true, state: "Ready", level: scene.LevelOK},
		"not heard of":        {state: "not ready", level: scene.LevelBad},
		"of a stopped one":    {taint: "node.cloudprovider.kubernetes.io/shutdown", state: "shut down", level: scene.LevelOff},
		"of another's taints": {taint: "example.com/mine", ready: true, state: "Ready", level: scene.LevelOK},
	} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}
		if c.taint != "" {
			n.Spec.Taints = []corev1.Taint{{Key: c.taint, Effect: corev1.TaintEffectNoSchedule}}
		}
		if c.ready {
			n.Status.Conditions = []corev1.NodeCondition{ready}
		}
		thing := OfNode(n)
		assert.Equal(t, c.state, thing.State, name)
		assert.Equal(t, c.level, thing.Level, name)
		assert.Equal(t, "instance/node-1", thing.Links[0].To, name)
	}
}

// A Service finds its balancer by any CCM's tags, and a Node its instance by any cloud's provider ID.
func TestLinks(t *testing.T) {
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop", UID: "uid-1"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer},
	}
	of, ok := OfService(service)
	require.True(t, ok)
	for _, tags := range []api.Tags{{"any": "uid-1"}, {"name": "web.shop.lab"}, {"service": "shop/web"}} {
		assert.True(t, leadsTo(of, scene.OfBalancer(api.LoadBalancer{Metadata: api.Metadata{Name: "lb", Tags: tags}})), "%v", tags)
	}
	assert.False(t, leadsTo(of, scene.OfBalancer(api.LoadBalancer{Metadata: api.Metadata{Name: "lb", Tags: api.Tags{"name": "web.other.lab"}}})))
	_, ok = OfService(&corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP}})
	assert.False(t, ok)

	instance := scene.OfInstance(api.Instance{Name: "a", ID: "i-1", Identities: map[string]string{"hcloud": "hcloud://42"}})
	for _, id := range []string{"fakecloud://i-1", "hcloud://42"} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "other"}, Spec: corev1.NodeSpec{ProviderID: id}}
		assert.True(t, leadsTo(OfNode(node), instance), id)
	}
}

func leadsTo(from, to scene.Object) bool {
	for _, l := range from.Links {
		for _, key := range append(to.Keys, to.ID) {
			if l.To == key {
				return true
			}
		}
	}
	return false
}

// A log that is opened again goes on where it was, and has nothing twice.
func TestLogGoesOn(t *testing.T) {
	file := filepath.Join(t.TempDir(), "scene.jsonl")
	log, err := OpenLog(file)
	require.NoError(t, err)
	change := scene.Change{Time: began, Object: &scene.Object{ID: "instance/a", Facts: []scene.Fact{{Name: "ID", Value: "i-1"}}}, CloudSeq: 7}
	require.NoError(t, log.Add(change))
	require.NoError(t, os.WriteFile(file, append(readFile(t, file), `{"cut sho`...), 0o600))
	for range 2 {
		log, err = OpenLog(file)
		require.NoError(t, err)
		assert.EqualValues(t, 7, log.Seq())
		require.NoError(t, log.Add(change))
		require.NoError(t, log.Add(scene.Change{Gone: "instance/never-there"}))
	}
	changes, err := Read(file)
	require.NoError(t, err)
	assert.Len(t, changes, 1)
}

func readFile(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	return data
}

// A log that is too large keeps its newer half, and its last scene.
func TestLogIsBounded(t *testing.T) {
	file := filepath.Join(t.TempDir(), "scene.jsonl")
	log, err := OpenLog(file)
	require.NoError(t, err)
	log.bound = 50_000
	long := strings.Repeat("x", 1000)
	for i := range 200 {
		thing := &scene.Object{ID: fmt.Sprint("pod/", i%10), State: fmt.Sprint(i), Reason: long}
		require.NoError(t, log.Add(scene.Change{Time: began.Add(time.Duration(i) * time.Second), Object: thing}))
	}
	info, err := os.Stat(file)
	require.NoError(t, err)
	assert.Less(t, info.Size(), int64(52_000))
	again, err := OpenLog(file)
	require.NoError(t, err)
	assert.Equal(t, log.Objects(), again.Objects())
	changes, err := Read(file)
	require.NoError(t, err)
	assert.Greater(t, len(changes), 20)
	after := slices.IndexFunc(changes, func(c scene.Change) bool { return !c.Time.Equal(changes[0].Time) })
	assert.Len(t, scene.Fold(changes[:after]), 10, "its first moment is a whole scene")
}
