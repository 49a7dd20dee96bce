package watch

import (
	"encoding/json"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	k8stesting "k8s.io/client-go/testing"
	cloudprovider "k8s.io/cloud-provider"

	"github.com/ccmlab/ccmlab/ccm/cache"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/ccm/core"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// A Node that the API server does not have any more, and one whose name another has by now.
var (
	errNodeGone     = apierrors.NewNotFound(schema.GroupResource{}, "node-1")
	errNodeReplaced = apierrors.NewConflict(schema.GroupResource{}, "node-1", errors.New("uid"))
)

func mayDelete(why string, err error) func() (string, error) {
	return func() (string, error) { return why, err }
}

func found(err error) func() (*api.Instance, error) {
	return func() (*api.Instance, error) { return &api.Instance{ID: "i-1", Name: "node-1"}, err }
}

// Which Nodes the watch removes, and of which it does not even ask.
func TestNodeWatchDeletesNodes(t *testing.T) {
	ours, leaving := node("fakecloud://i-1"), node("fakecloud://i-1")
	leaving.DeletionTimestamp, leaving.Finalizers = &metav1.Time{Time: time.Unix(1, 0)}, []string{"x"}
	for name, tc := range map[string]struct {
		node    *corev1.Node
		asked   func() (string, error) // nil if it is not
		answer  error                  // of the API server
		event   string
		wantErr string
	}{
		"its instance has ended": {
			node: ours, asked: mayDelete("the cloud has no instance i-1", nil),
			event: "NodeRemoved: Node is removed: the cloud has no instance i-1",
		},
		"there":                  {node: ours, asked: mayDelete("", nil)},
		"nothing can be told":    {node: ours, asked: mayDelete("", errors.New("503")), wantErr: "503"},
		"gone meanwhile":         {node: ours, asked: mayDelete("ended", nil), answer: errNodeGone},
		"replaced meanwhile":     {node: ours, asked: mayDelete("ended", nil), answer: errNodeReplaced},
		"the API server refuses": {node: ours, asked: mayDelete("ended", nil), answer: errors.New("no"), wantErr: "no"},
		"of another cloud":       {node: node("aws:///i-1")},
		"without a provider ID":  {node: node("")},
		"being deleted already":  {node: leaving},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, tc.node)
			w.instances.mayDelete = tc.asked
			w.setOutcome(tc.node, contract.ReasonInstanceNotFound)
			w.refuse("delete", "nodes", tc.answer)
			removed := countIncrements(t, nodesRemoved, func() {
				err := w.remover.sync(t.Context(), "node-1")
				assert.Equal(t, tc.wantErr == "", err == nil)
				if tc.wantErr != "" {
					assert.ErrorContains(t, err, tc.wantErr)
				}
			})
			writes := w.takeWrites()
			if tc.event == "" {
				assert.Equal(t, tc.answer != nil, len(writes) == 1)
				assert.Empty(t, w.takeEvents())
				assert.Zero(t, removed)
				return
			}
			assert.Equal(t, []string{tc.event}, w.takeEvents())
			assert.Equal(t, 1, removed)
			require.Len(t, writes, 1)
			deletion, ok := writes[0].(k8stesting.DeleteActionImpl)
			require.True(t, ok, "%+v", writes[0])
			require.NotNil(t, deletion.DeleteOptions.Preconditions)
			assert.EqualValues(t, "u1", *deletion.DeleteOptions.Preconditions.UID, "no other Node of that name")
		})
	}
}

// Which Nodes are prompted: those that were tried, failed, and would succeed. A Node that nobody initializes is
// explained.
func TestNodeWatchPrompts(t *testing.T) {
	byID, ofAnother, bare := node(""), node(""), node("")
	byID.Spec.ProviderID, ofAnother.Spec.ProviderID, bare.Spec.Taints = "fakecloud://i-1", "aws:///x", nil
	for name, tc := range map[string]struct {
		node    *corev1.Node
		untried bool
		find    func() (*api.Instance, error) // nil if it is not looked for
		answer  error                         // of the API server
		want    bool
		event   string
	}{
		"its instance came":             {node: node(""), find: found(nil), want: true},
		"by provider ID":                {node: byID, find: found(nil), want: true},
		"still no instance":             {node: node(""), find: found(cloudprovider.InstanceNotFound)},
		"gone meanwhile":                {node: node(""), find: found(nil), answer: errNodeGone},
		"replaced meanwhile":            {node: node(""), find: found(nil), answer: errNodeReplaced},
		"upstream has not tried yet":    {node: node(""), untried: true},
		"it is initialised by now":      {node: node("fakecloud://i-1")},
		"its provider ID is of another": {node: ofAnother},
		"without a provider ID or the taint": {
			node: bare, event: "Warning ProviderIDMissing: Node is ignored: ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, tc.node)
			w.instances.find = tc.find
			if !tc.untried {
				w.setOutcome(tc.node, contract.ReasonInstanceNotFound)
			}
			w.refuse("patch", "nodes", tc.answer)
			prompts := countIncrements(t, nodesPrompted, func() {
				err := w.prompter.sync(t.Context(), "node-1")
				assert.Equal(t, core.IsUninitialized(tc.node) && core.CheckOwnNode(tc.node) == nil, errors.Is(err, errCheckAgain))
			})
			if events := w.takeEvents(); tc.event == "" {
				assert.Empty(t, events)
			} else if assert.Len(t, events, 1) {
				assert.Contains(t, events[0], tc.event)
			}
			writes := w.takeWrites()
			if !tc.want {
				assert.Equal(t, tc.answer != nil, len(writes) == 1)
				assert.Zero(t, prompts)
				return
			}
			assert.Equal(t, 1, prompts)
			require.Len(t, writes, 1)
			patch, ok := writes[0].(k8stesting.PatchAction)
			require.True(t, ok, "%+v", writes[0])
			assert.Equal(t, "node-1", patch.GetName())
			assert.Empty(t, patch.GetSubresource())
			var got struct{ Metadata metav1.ObjectMeta }
			require.NoError(t, json.Unmarshal(patch.GetPatch(), &got))
			assert.EqualValues(t, "u1", got.Metadata.UID, "no other Node of that name")
			assert.Contains(t, got.Metadata.Annotations, contract.AnnotationPrompted)
			assert.Len(t, got.Metadata.Annotations, 1)
		})
	}
}

// A Node that waits is looked at ever more rarely, whether it has no instance or fails whatever its instance looks
// like, say for its kubelet's --node-ip. It is looked at at once when its instance changes and when the cloud recovers.
func TestNodeWatchLooksAtWaitingNodes(t *testing.T) {
	for name, change := range map[string]cache.Change{
		"its instance comes": {Instance: &api.Instance{ID: "i-1", Name: "Node-1"}},
		"the cloud recovers": {Kind: cache.Recovered},
	} {
		runInBubble(t, name, func(t *testing.T) {
			waiting := node("")
			w, looks, err := newWorld(t, waiting), 0, error(because(contract.ReasonInstanceNotFound))
			w.instances.find = func() (*api.Instance, error) {
				looks++
				return &api.Instance{ID: "i-1"}, err
			}
			w.run()
			advanceTime(minPromptPause)
			assert.Zero(t, looks, "upstream has not tried yet")
			w.setOutcome(waiting, contract.ReasonInstanceNotFound)
			advanceTime(time.Minute)
			assert.InDelta(t, 3, looks, 1)
			advanceTime(time.Hour)
			assert.InDelta(t, 2*60, looks, 10, "one look after maxPromptPause, and one at all Nodes")
			require.Empty(t, w.takeWrites())
			err = nil
			w.reportChange(change)
			synctest.Wait()
			assert.Len(t, w.takeWrites(), 1)
			advanceTime(time.Hour)
			assert.InDelta(t, 2*60, len(w.takeWrites()), 10, "it stays uninitialized")
		})
	}
}

// An instance ends. Whether or not the cache reports that, the Node goes. A Node that has become one of this cloud is
// looked at when it does.
func TestNodeWatchFollowsInstances(t *testing.T) {
	for name, within := range map[string]time.Duration{"reported": 0, "unreported": resyncPeriod} {
		runInBubble(t, name, func(t *testing.T) {
			ours, other := node("fakecloud://i-1"), node("")
			ours.Name, other.Name, other.UID = "other-name", "late", "u2"
			w := newWorld(t, ours, other)
			var asked atomic.Int32
			why := ""
			w.instances.mayDelete = func() (string, error) { asked.Add(1); return why, nil }
			w.run()
			asked.Store(0)
			other.Spec = ours.Spec
			_, err := w.api.CoreV1().Nodes().Update(t.Context(), other, metav1.UpdateOptions{})
			require.NoError(t, err)
			synctest.Wait()
			assert.EqualValues(t, 1, asked.Load())
			other.Labels = map[string]string{"changes": "often"}
			_, err = w.api.CoreV1().Nodes().Update(t.Context(), other, metav1.UpdateOptions{})
			require.NoError(t, err)
			synctest.Wait()
			assert.EqualValues(t, 1, asked.Load(), "what the kubelet writes does not concern the cloud")
			why = "ended"
			if within == 0 {
				w.reportChange(cache.Change{Kind: cache.Deleted, Instance: &api.Instance{ID: "i-1"}})
			}
			advanceTime(within)
			nodes, err := w.api.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
			require.NoError(t, err)
			assert.Empty(t, nodes.Items)
		})
	}
}
