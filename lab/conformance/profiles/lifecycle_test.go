package profiles

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/ccmlab/ccmlab/lab/conformance"
)

func TestEveryFaultHasWords(t *testing.T) {
	for _, kind := range conformance.FaultKinds {
		assert.NotEmpty(t, doubts[kind], "what lifecycle-doubt-%s requires would be half a sentence", kind)
	}
	assert.Len(t, doubts, len(conformance.FaultKinds))
}

func TestRoundsAreCountedSinceACallOrInAll(t *testing.T) {
	kube := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "ready"}})
	suite := &conformance.T{Suite: &conformance.Suite{Kube: kube}}
	r := newNodeSweeps(worker{StandIn: &conformance.StandIn{Name: "ready"}, t: suite})
	round := func() { // As a CCM does.
		node, err := kube.CoreV1().Nodes().Get(t.Context(), "ready", metav1.GetOptions{})
		require.NoError(t, err)
		require.NotEmpty(t, node.Spec.Taints, "it was given the taint again")
		node.Spec.Taints = nil
		_, err = kube.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{})
		require.NoError(t, err)
	}
	met := errors.New("no call met the fault")
	twice := r.checkSweeps(2)
	since := r.checkSweepsSinceHit(func(context.Context) error { return met }, chance{rounds: 2})
	inAll := r.checkSweepsSinceHit(func(context.Context) error { return met }, chance{rounds: 3, silent: true})
	for i, want := range []struct{ twice, since, inAll bool }{
		{}, {}, {twice: true}, {twice: true, inAll: true}, {twice: true, inAll: true}, {true, true, true},
	} {
		if i > 0 {
			round()
		}
		if i == 3 {
			met = nil // Two rounds from here.
		}
		assert.Equal(t, want.inAll, inAll(t.Context()) == nil, "%d: three in all", i)
		assert.Equal(t, want.since, since(t.Context()) == nil, "%d: two since a call", i)
		assert.Equal(t, want.twice, twice(t.Context()) == nil, "%d: two", i)
	}
}
