package watch

import (
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	k8stesting "k8s.io/client-go/testing"

	"github.com/ccmlab/ccmlab/ccm/cache"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// Which Nodes the watch removes, and of which it does not even ask.
func TestNodeWatchDeletesNodes(t *testing.T) {
	leaving := node("fakecloud://i-1")
	leaving.DeletionTimestamp, leaving.Finalizers = &metav1.Time{Time: time.Unix(1, 0)}, []string{"x"}
	for name, tc := range map[string]struct {
		node      *corev1.Node
		instances []api.Instance
		err       error
		event     string
		wantErr   string
	}{
		"terminated": {
			node: node("fakecloud://i-1"), instances: []api.Instance{instance(api.InstanceTerminated)},
			event: "Normal NodeRemoved Node is removed: instance i-1 (node-1) is terminated",
		},
		"gone": {
			node: node("fakecloud://i-1"), event: "Normal NodeRemoved Node is removed: the cloud has no instance i-1",
		},
		"nothing can be told": {
			node: node("fakecloud://i-1"), err: errors.New("refused"), wantErr: "refused",
		},
		"running": {
			node: node("fakecloud://i-1"), instances: []api.Instance{instance(api.InstanceRunning)},
		},
		"terminating": {
			node: node("fakecloud://i-1"), instances: []api.Instance{instance(api.InstanceTerminating)},
		},
		"of another cloud":       {node: node("aws:///i-1")},
		"without a provider ID":  {node: node("")},
		"on its way out already": {node: leaving},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWatchWorld(t, tc.node)
			w.prompting = false
			w.cloud.instances, w.cloud.err = tc.instances, tc.err
			removed := countIncrements(t, nodesRemoved, func() {
				err := w.syncNode(t.Context(), "node-1")
				assertError(t, err, tc.wantErr)
			})
			writes := w.takeWrites()
			if tc.event == "" {
				assert.Empty(t, writes)
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

// replacedNodeAnswers are the API server's where a Node is gone, or another has its name.
var replacedNodeAnswers = map[string]error{
	"gone":    apierrors.NewNotFound(schema.GroupResource{}, "node-1"),
	"another": apierrors.NewConflict(schema.GroupResource{}, "node-1", errors.New("uid")),
}

// Another Node of that name, or none by now, is no failure and no removal.
func TestNodeWatchDeletionOfReplacedNode(t *testing.T) {
	for name, answer := range replacedNodeAnswers {
		t.Run(name, func(t *testing.T) {
			w := newWatchWorld(t, node("fakecloud://i-1"))
			w.instances = goneInstances{}
			w.api.PrependReactor("delete", "nodes", func(k8stesting.Action) (bool, runtime.Object, error) {
				return true, nil, answer
			})
			require.NoError(t, w.syncNode(t.Context(), "node-1"))
			assert.Empty(t, w.takeEvents())
		})
	}
}

// Which Nodes are prompted: those that were tried, failed, and would succeed.
func TestNodeWatchPrompts(t *testing.T) {
	late := instance(api.InstanceRunning)
	second := late
	second.ID = "i-2"
	byID := node("fakecloud://i-1")
	byID.Spec.Taints = node("").Spec.Taints
	for name, tc := range map[string]struct {
		node      *corev1.Node
		untried   bool
		instances []api.Instance
		err       error
		want      bool
	}{
		"its instance came": {node: node(""), instances: []api.Instance{late}, want: true},
		"by provider ID":    {node: byID, instances: []api.Instance{late}, want: true},
		"beside one that has ended": {
			node: node(""), instances: []api.Instance{late, instance(api.InstanceTerminated)}, want: true,
		},
		"still no instance":          {node: node("")},
		"two of that name":           {node: node(""), instances: []api.Instance{late, second}},
		"only one that has ended":    {node: node(""), instances: []api.Instance{instance(api.InstanceTerminated)}},
		"the cloud does not answer":  {node: node(""), instances: []api.Instance{late}, err: errors.New("refused")},
		"upstream has not tried yet": {node: node(""), untried: true, instances: []api.Instance{late}},
		"it is initialised by now":   {node: node("fakecloud://i-1"), instances: []api.Instance{late}},
		"its provider ID is of another": {node: func() *corev1.Node {
			n := byID.DeepCopy()
			n.Spec.ProviderID = "aws:///x"
			return n
		}(), instances: []api.Instance{late}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWatchWorld(t, tc.node)
			w.removing = false
			w.cloud.instances, w.cloud.err = tc.instances, tc.err
			if !tc.untried {
				w.setOutcome(tc.node, contract.ReasonInstanceNotFound)
			}
			prompts := countIncrements(t, nodesPrompted, func() {
				require.NoError(t, w.syncNode(t.Context(), "node-1"))
			})
			writes := w.takeWrites()
			assert.Empty(t, w.takeEvents())
			if !tc.want {
				assert.Empty(t, writes)
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

// A Node that is gone, or another's of that name by now, was not prompted.
func TestNodeWatchPromptOfReplacedNode(t *testing.T) {
	for name, answer := range replacedNodeAnswers {
		t.Run(name, func(t *testing.T) {
			waiting := node("")
			w := newWatchWorld(t, waiting)
			w.cloud.instances = []api.Instance{instance(api.InstanceRunning)}
			w.setOutcome(waiting, contract.ReasonInstanceNotFound)
			w.api.PrependReactor("patch", "nodes", func(k8stesting.Action) (bool, runtime.Object, error) {
				return true, nil, answer
			})
			prompts := countIncrements(t, nodesPrompted, func() {
				require.NoError(t, w.syncNode(t.Context(), "node-1"))
			})
			assert.Len(t, w.takeWrites(), 1)
			assert.Zero(t, prompts)
		})
	}
}

// A Node that fails whatever its instance looks like, say for its kubelet's
// --node-ip, is prompted ever more rarely; a change of its instance, and a cloud
// that is well again, begin anew.
func TestNodeWatchPromptBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck := node("")
		w := newWatchWorld(t, stuck)
		w.cloud.instances = []api.Instance{instance(api.InstanceRunning)}
		w.setOutcome(stuck, contract.ReasonInstanceNotFound)
		// every is how long until the next prompt, by looks each second.
		every := func() time.Duration {
			began := time.Now()
			for time.Since(began) < time.Hour {
				require.NoError(t, w.syncNode(t.Context(), "node-1"))
				if len(w.takeWrites()) > 0 {
					break
				}
				advanceTime(time.Second)
			}
			return time.Since(began)
		}
		for _, want := range []time.Duration{0, 5, 10, 20, 40, 60, 60} {
			assert.Equal(t, want*time.Second, every())
		}
		w.cloud.instances[0].Version++
		assert.Equal(t, 5*time.Second, every(), "changed, but not more than once in a few seconds")
		assert.Equal(t, 5*time.Second, every())
		assert.Equal(t, 10*time.Second, every())
		w.resetPromptPauses()
		assert.Equal(t, 5*time.Second, every())
	})
}

// The cloud did not answer, and does again, without any change of the instance:
// the periodic look prompts.
func TestNodeWatchPromptsAfterCloudRecovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waiting := node("")
		w := newWatchWorld(t, waiting)
		w.cloud.instances, w.cloud.err = []api.Instance{instance(api.InstanceRunning)}, errors.New("503")
		w.run()
		w.setOutcome(waiting, contract.ReasonCloudUnavailable)
		advanceTime(10 * time.Minute)
		assert.Empty(t, w.takeWrites(), "no verdict, no prompt")
		w.cloud.mu.Lock()
		w.cloud.err = nil
		w.cloud.mu.Unlock()
		advanceTime(waitingNodesPeriod + time.Second)
		assert.Len(t, w.takeWrites(), 1)
	})
}

// A Node for which there is no instance costs a list now and then, and not with
// every look: its coming is told.
func TestNodeWatchRarelyListsForMissingInstance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waiting := node("")
		w := newWatchWorld(t, waiting)
		w.run()
		w.setOutcome(waiting, contract.ReasonInstanceNotFound)
		w.cloud.mu.Lock()
		w.cloud.namedCalls = 0
		w.cloud.mu.Unlock()
		advanceTime(10 * time.Minute)
		w.cloud.mu.Lock()
		looks := w.cloud.namedCalls
		w.cloud.instances = []api.Instance{instance(api.InstanceRunning)}
		w.cloud.mu.Unlock()
		assert.InDelta(t, 20+10, looks, 2, "every half minute, and with all Nodes every minute")
		late := instance(api.InstanceRunning)
		w.reportChange(cache.Change{Instance: &late})
		synctest.Wait()
		assert.Len(t, w.takeWrites(), 1, "at once")
	})
}
