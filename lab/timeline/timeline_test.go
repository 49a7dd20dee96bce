package timeline_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/lab/timeline"
)

func node(ready corev1.ConditionStatus, taints ...string) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{corev1.LabelTopologyZone: "z"}},
	}
	n.Spec.ProviderID = "fakecloud://i-1"
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
	for _, key := range taints {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key})
	}
	return n
}

func whats(changes []timeline.Change) []string {
	var out []string
	for _, c := range changes {
		out = append(out, c.What)
	}
	return out
}

func TestNodeChanges(t *testing.T) {
	const uninitialized, shutdown = "node.cloudprovider.kubernetes.io/uninitialized", "node.cloudprovider.kubernetes.io/shutdown"
	for name, tc := range map[string]struct {
		before, after *corev1.Node
		want          []string
	}{
		"registers tainted":        {nil, node("False", uninitialized), []string{"registered", "tainted"}},
		"becomes ready":            {node("False", uninitialized), node("True", uninitialized), []string{"ready"}},
		"is initialised":           {node("True", uninitialized), node("True"), []string{"initialized"}},
		"heartbeat":                {node("True"), node("True"), nil},
		"stops answering":          {node("True"), node("Unknown"), []string{"not-ready"}},
		"shutdown taint":           {node("Unknown"), node("Unknown", shutdown), []string{"shutdown-taint"}},
		"comes back":               {node("Unknown", shutdown), node("True"), []string{"shutdown-taint-lifted", "ready"}},
		"is removed":               {node("Unknown"), nil, []string{"removed"}},
		"another taint is no news": {node("True"), node("True", "other"), nil},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, tc.want, whats(timeline.Node(tc.before, tc.after))) })
	}
}

func TestServiceChanges(t *testing.T) {
	pending := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer},
	}
	served := pending.DeepCopy()
	served.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
	internal := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP},
	}
	assert.Equal(t, []string{"created"}, whats(timeline.Service(nil, pending)))
	assert.Equal(t, []string{"address"}, whats(timeline.Service(pending, served)))
	assert.Empty(t, timeline.Service(served, served))
	assert.Equal(t, []string{"deleted"}, whats(timeline.Service(served, nil)))
	assert.Equal(t, []string{"created", "address"}, whats(timeline.Service(nil, served)))
	assert.Equal(t, []string{"address-lost"}, whats(timeline.Service(served, pending)))
	assert.Equal(t, "192.0.2.1", timeline.Service(served, pending)[0].Detail)
	asks := timeline.Service(internal, pending)
	assert.Equal(t, []string{"changed"}, whats(asks))
	assert.Equal(t, "type LoadBalancer, address pending", asks[0].Detail)
	asksNoMore := timeline.Service(served, internal)
	assert.Equal(t, []string{"changed"}, whats(asksNoMore))
	assert.Equal(t, "type ClusterIP, no balancer any more", asksNoMore[0].Detail)
	moved, going := served.DeepCopy(), served.DeepCopy()
	moved.Spec.Ports = []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 81, NodePort: 30001}}
	served.Spec.Ports = []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80, NodePort: 30001}}
	going.Spec.Ports, going.DeletionTimestamp, going.Finalizers = served.Spec.Ports, new(metav1.Now()), []string{"a/b"}
	assert.Equal(t, []string{"changed"}, whats(timeline.Service(served, moved)))
	assert.Equal(t, "ports TCP 81→30001, before TCP 80→30001", timeline.Service(served, moved)[0].Detail)
	assert.Equal(t, []string{"deleting"}, whats(timeline.Service(served, going)))
	assert.Equal(t, "waits for a/b", timeline.Service(served, going)[0].Detail)
	assert.Empty(t, timeline.Service(going, going))
	assert.Empty(t, timeline.Service(internal, internal))
	assert.Empty(t, timeline.Service(nil, internal))
	assert.Empty(t, timeline.Service(internal, nil))
}

func TestCloudEvents(t *testing.T) {
	lb := &api.LoadBalancer{Address: "192.0.2.1"}
	for want, states := range map[string][2]string{
		"requested": {"", "provisioning"}, "provisioned": {"provisioning", "active"},
		"updating": {"active", "updating"},
		"updated":  {"updating", "active"}, "error": {"provisioning", "error"}, "deleting": {"active", "deleting"},
	} {
		ev := api.Event{LoadBalancer: lb, From: states[0], To: states[1], Type: api.EventUpdated}
		assert.Equal(t, []string{want}, whats(timeline.Cloud(ev, "tag")))
	}
	gone := api.Event{ID: "lb-1", LoadBalancer: lb, Type: api.EventDeleted}
	assert.Equal(t, []string{"gone"}, whats(timeline.Cloud(gone, "tag")))
	assert.Equal(t, "lb-1 at 192.0.2.1", timeline.Cloud(gone, "tag")[0].Detail, "a stranger's balancer")
	lb.Tags = map[string]string{"tag": "default/web"}
	assert.Equal(t, "lb-1 at 192.0.2.1 for service default/web", timeline.Cloud(gone, "tag")[0].Detail)
	lb.Kind = api.KindNetwork
	assert.Equal(t, "lb-1 at 192.0.2.1 (network) for service default/web", timeline.Cloud(gone, "tag")[0].Detail)
}

func TestRouteEvents(t *testing.T) {
	const active, blackhole = "active", "blackhole"
	reason := "instance is stopped"
	tell := func(typ api.EventType, from, to string) []timeline.Change {
		ev := api.Event{Name: "node-1", Type: typ, Route: &api.Route{Destination: "10.244.1.0/24", InstanceID: "i-1"}}
		if from != "" {
			ev.From = from
		}
		if to != "" {
			ev.To = to
		}
		if to == blackhole {
			ev.Route.StateReason = reason
		}
		return timeline.Cloud(ev, "tag")
	}
	line := func(what, detail string) []timeline.Change {
		return []timeline.Change{{
			Source: timeline.SourceCloud, Subject: "route/node-1", What: what, Detail: "10.244.1.0/24 via i-1" + detail,
			Failed: what == blackhole,
		}}
	}
	assert.Equal(t, line("created", ""), tell(api.EventCreated, "", active))
	assert.Equal(t, line("created", ": instance is stopped"), tell(api.EventCreated, "", blackhole))
	assert.Equal(t, line("blackhole", ": instance is stopped"), tell(api.EventUpdated, active, blackhole))
	assert.Equal(t, line("active", ""), tell(api.EventUpdated, blackhole, active))
	assert.Equal(t, line("deleted", ""), tell(api.EventDeleted, active, ""))
	assert.Empty(t, tell(api.EventUpdated, blackhole, blackhole), "another reason is no news")
}

func TestReader(t *testing.T) {
	log := timeline.Log{File: filepath.Join(t.TempDir(), "t.jsonl"), Start: time.Now()}
	entries, err := log.Read()
	require.NoError(t, err, "no file is an empty timeline")
	assert.Empty(t, entries)
	_, err = log.Open()
	require.ErrorIs(t, err, fs.ErrNotExist)

	require.NoError(t, log.Create())
	r, err := log.Open()
	require.NoError(t, err)
	defer func() { assert.NoError(t, r.Close()) }()
	next := func() (subjects []string) {
		t.Helper()
		entries, err := r.Next()
		require.NoError(t, err)
		for _, e := range entries {
			subjects = append(subjects, e.Subject)
		}
		return subjects
	}
	assert.Empty(t, next())
	require.NoError(t, log.Add(timeline.Change{Subject: "node/a", What: "registered"}))
	f, err := os.OpenFile(log.File, os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteString("{\"cut short by a cra\n{\"subject\":\"node/b\"")
	require.NoError(t, err)
	assert.Equal(t, []string{"node/a"}, next(), "what is cut short is skipped, what is begun is waited for")
	_, err = f.WriteString(",\"what\":\"ready\"}\n")
	require.NoError(t, errors.Join(err, f.Close()))
	assert.Equal(t, []string{"node/b"}, next())

	// `lab watch` ends by itself when the lab goes down, with what was the last.
	require.NoError(t, log.Add(timeline.Change{Subject: "node/c"}))
	require.NoError(t, os.Remove(log.File))
	entries, err = r.Next()
	require.ErrorIs(t, err, timeline.ErrGone)
	require.Len(t, entries, 1)
	assert.Equal(t, "node/c", entries[0].Subject)
}

func TestReadIsInOrderOfTime(t *testing.T) {
	log := timeline.Log{File: filepath.Join(t.TempDir(), "t.jsonl"), Start: time.Now()}
	require.NoError(t, log.AddAt(log.Start.Add(2*time.Second), timeline.Change{Subject: "later"}))
	require.NoError(t, log.AddAt(log.Start.Add(time.Second), timeline.Change{Subject: "earlier"}))
	entries, err := log.Read()
	require.NoError(t, err)
	require.Len(t, entries, 2)
	assert.Equal(t, "earlier", entries[0].Subject)
	assert.InDelta(t, 1, entries[0].Seconds, 0.001)
}
