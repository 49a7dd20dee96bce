package agent

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/console/scene"
	"github.com/ccmlab/ccmlab/lab/console/labscene"
	"github.com/ccmlab/ccmlab/lab/timeline"
)

// states are the things of a scene's file, by ID.
func states(t require.TestingT, file string) map[string]string {
	changes, err := labscene.Read(file)
	require.NoError(t, err)
	all := map[string]string{}
	for id, thing := range scene.Fold(changes) {
		all[id] = thing.State
	}
	return all
}

// The scene follows the cluster. What goes while no agent runs is gone when the next one has looked.
func TestPictureFollowsTheCluster(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "scene.jsonl")
	kube := fake.NewClientset()
	nodes := kube.CoreV1().Nodes()
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n"},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "node.cloudprovider.kubernetes.io/uninitialized"}}},
	}
	run := func(change func(), want map[string]string) {
		t.Helper()
		stop := record(t, timeline.Log{File: filepath.Join(dir, "timeline.jsonl"), Start: time.Now()},
			func(ctx context.Context, r *Recorder) error {
				var err error
				r.Picture, err = NewPicture(file, slog.New(slog.DiscardHandler))
				require.NoError(t, err)
				return r.Watch(ctx, kube)
			})
		change()
		assert.EventuallyWithT(t, func(c *assert.CollectT) { assert.Equal(c, want, states(c, file)) }, bound, 10*time.Millisecond)
		stop()
	}
	run(func() {
		_, err := nodes.Create(t.Context(), node, metav1.CreateOptions{})
		require.NoError(t, err)
	}, map[string]string{"node/n": "waits for the CCM"})
	run(func() {
		node.Spec.Taints = nil
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		_, err := nodes.Update(t.Context(), node, metav1.UpdateOptions{})
		require.NoError(t, err)
	}, map[string]string{"node/n": "Ready"})
	endpoints := kube.DiscoveryV1().EndpointSlices("default")
	run(func() {
		ref := &corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "p"}
		_, err := endpoints.Create(t.Context(), &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Name: "web-x", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
			Endpoints:  []discoveryv1.Endpoint{{TargetRef: ref}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}, map[string]string{"node/n": "Ready", "endpoints/default/web-x": "1 of 1 ready"})
	require.NoError(t, endpoints.Delete(t.Context(), "web-x", metav1.DeleteOptions{}))
	require.NoError(t, nodes.Delete(t.Context(), "n", metav1.DeleteOptions{}))
	run(func() {}, map[string]string{})
}

// An instance that another has replaced under its name does not take that one away when it goes.
func TestPictureFollowsTheCloud(t *testing.T) {
	file := filepath.Join(t.TempDir(), "scene.jsonl")
	p, err := NewPicture(file, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	seq := int64(0)
	tell := func(id string, state api.InstanceState, kind api.EventType) {
		seq++
		i := newInstance(id, "node-1", 1, state)
		p.Event(api.Event{Seq: seq, Time: time.Now(), Type: kind, ID: id, Name: i.Name, Instance: &i})
	}
	tell("i-1", api.InstanceTerminated, api.EventUpdated)
	tell("i-2", api.InstanceRunning, api.EventCreated)
	tell("i-1", api.InstanceTerminated, api.EventDeleted)
	assert.Equal(t, map[string]string{"instance/node-1": "running"}, states(t, file))
	tell("i-2", api.InstanceTerminated, api.EventDeleted)
	assert.Empty(t, states(t, file))
}

// A component that was never started is seen not to run; one that runs is not said to be absent.
func TestPictureOfComponents(t *testing.T) {
	file := filepath.Join(t.TempDir(), "scene.jsonl")
	p, err := NewPicture(file, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	p.AddAbsent("ccm")
	assert.Equal(t, map[string]string{"component/ccm": "does not run"}, states(t, file))
	p.Component(componentChange("ccm", componentStarted, "process 1"))
	p.AddAbsent("ccm")
	assert.Equal(t, map[string]string{"component/ccm": "runs"}, states(t, file))
	p.Component(componentChange("ccm", componentEnded, "process 1"))
	assert.Equal(t, map[string]string{"component/ccm": "does not run"}, states(t, file))
}
