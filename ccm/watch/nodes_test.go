package watch

import (
	"encoding/json"
	"errors"
	"strings"
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

// Which Nodes are deleted and which are prompted: those that were tried, failed, and would succeed. Of which others it
// is not even asked, and who is told why nobody initializes a Node.
func TestNodeWatch(t *testing.T) {
	ours, foreign, tainted := node("fakecloud://i-1"), node("aws:///i-1"), node("")
	leaving, foreignTainted, bare, waiting := ours.DeepCopy(), tainted.DeepCopy(), tainted.DeepCopy(), tainted.DeepCopy()
	leaving.DeletionTimestamp, leaving.Finalizers = new(metav1.Now()), []string{"x"}
	foreignTainted.Spec.ProviderID, bare.Spec.Taints = foreign.Spec.ProviderID, nil
	waiting.Spec.ProviderID = ours.Spec.ProviderID
	unavailable := errors.New("503")
	for name, tc := range map[string]struct {
		node      *corev1.Node
		mayDelete func() (string, error)        // nil if it is not asked
		find      func() (*api.Instance, error) // nil if it is not looked for
		untried   bool
		answer    error // of the API server
		done      bool
		event     string
		err       error
	}{
		"ended": {
			node: ours, mayDelete: mayDelete("ended", nil), done: true, event: "NodeRemoved: Node is removed: ended",
		},
		"there":               {node: ours, mayDelete: mayDelete("", nil)},
		"nothing can be told": {node: ours, mayDelete: mayDelete("", unavailable), err: unavailable},
		"deleted meanwhile":   {node: ours, mayDelete: mayDelete("ended", nil), answer: errNodeGone},
		"replaced meanwhile":  {node: ours, mayDelete: mayDelete("ended", nil), answer: errNodeReplaced},
		"not to be deleted":   {node: ours, mayDelete: mayDelete("ended", nil), answer: unavailable, err: unavailable},
		"of another cloud":    {node: foreign, event: "Node is ignored: "},
		"being deleted":       {node: leaving},
		"its instance came":   {node: tainted, find: found(nil), done: true, err: errCheckAgain},
		"by provider ID": {
			node: waiting, mayDelete: mayDelete("", nil), find: found(nil), done: true, err: errCheckAgain,
		},
		"still no instance":             {node: tainted, find: found(cloudprovider.InstanceNotFound), err: errCheckAgain},
		"waiting, deleted meanwhile":    {node: tainted, find: found(nil), answer: errNodeGone, err: errCheckAgain},
		"waiting, replaced meanwhile":   {node: tainted, find: found(nil), answer: errNodeReplaced, err: errCheckAgain},
		"waiting, not to be prompted":   {node: tainted, find: found(nil), answer: unavailable, err: unavailable},
		"not tried yet":                 {node: tainted, untried: true, err: errCheckAgain},
		"waiting, of another cloud":     {node: foreignTainted},
		"neither provider ID nor taint": {node: bare, event: "Warning ProviderIDMissing: Node is ignored: "},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, tc.node)
			w.instances.mayDelete, w.instances.find = tc.mayDelete, tc.find
			if !tc.untried {
				w.setOutcome(tc.node, contract.ReasonInstanceNotFound)
			}
			w.refuse("*", "nodes", tc.answer)
			var err error
			done := countIncrements(t, nodesRemoved, func() { err = w.remover.sync(t.Context(), "node-1") })
			done += countIncrements(t, nodesPrompted, func() {
				err = errors.Join(err, w.prompter.sync(t.Context(), "node-1"))
			})
			assert.ErrorIs(t, err, tc.err)
			assert.Equal(t, tc.done, done == 1)
			events, writes := w.takeEvents(), w.takeWrites()
			assert.Equal(t, tc.event != "", len(events) == 1)
			assert.Contains(t, strings.Join(events, ""), tc.event)
			require.Equal(t, tc.done || tc.answer != nil, len(writes) == 1)
			if !tc.done {
				return
			}
			var changed metav1.ObjectMeta
			switch write := writes[0].(type) {
			case k8stesting.DeleteActionImpl:
				changed.UID = *write.DeleteOptions.Preconditions.UID
			case k8stesting.PatchAction:
				require.NoError(t, json.Unmarshal(write.GetPatch(), &struct{ Metadata *metav1.ObjectMeta }{&changed}))
				assert.Contains(t, changed.Annotations, contract.AnnotationPrompted)
			}
			assert.EqualValues(t, "u1", changed.UID, "no other Node of that name")
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
	for name, change := range map[string]cache.Change{
		"reported":   {Kind: cache.Deleted, Instance: &api.Instance{ID: "i-1"}},
		"relisted":   {Kind: cache.Relisted},
		"unreported": {},
	} {
		runInBubble(t, name, func(t *testing.T) {
			ours, other := node("fakecloud://i-1"), node("")
			ours.Name, other.Name, other.UID = "other-name", "late", "u2"
			w, asked, why := newWorld(t, ours, other), 0, ""
			w.instances.mayDelete = func() (string, error) { asked++; return why, nil }
			w.run()
			asked = 0
			update := func() {
				_, err := w.api.CoreV1().Nodes().Update(t.Context(), other, metav1.UpdateOptions{})
				require.NoError(t, err)
				synctest.Wait()
				assert.Equal(t, 1, asked)
			}
			other.Spec = ours.Spec
			update()
			other.Labels = map[string]string{"changes": "often"} // That does not concern the cloud.
			update()
			why = "ended"
			w.reportChange(change)
			if synctest.Wait(); name == "unreported" {
				advanceTime(resyncPeriod)
			}
			nodes, err := w.api.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
			require.NoError(t, err)
			assert.Empty(t, nodes.Items)
		})
	}
}
