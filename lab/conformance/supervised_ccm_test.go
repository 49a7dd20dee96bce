package conformance

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// fakeReplicas are CCMs that note what is done to them.
type fakeReplicas struct {
	*fakeCCM
	done   []string
	others map[int]*fakeReplicas
}

func newFakeReplicas() *fakeReplicas {
	return &fakeReplicas{fakeCCM: newFakeCCM(), others: map[int]*fakeReplicas{}}
}

func (c *fakeReplicas) note(what string) error { c.done = append(c.done, what); return nil }

func (c *fakeReplicas) Replica(number int) (Replica, error) {
	if number == 0 {
		return c, nil
	}
	if c.others[number] == nil {
		c.others[number] = newFakeReplicas()
	}
	return c.others[number], nil
}

func (c *fakeReplicas) Start(context.Context) error { return c.note("start") }
func (c *fakeReplicas) Stop(context.Context) error  { return c.note("stop") }
func (c *fakeReplicas) Kill(context.Context) error  { return c.note("kill") }
func (c *fakeReplicas) Freeze() error               { return c.note("freeze") }
func (c *fakeReplicas) Thaw() error                 { return c.note("thaw") }
func (c *fakeReplicas) Running() bool               { return len(c.done) > 0 && c.done[len(c.done)-1] == "start" }

// Whatever a test does to its CCMs, one runs afterwards, and no other does.
func TestReplicasOfATest(t *testing.T) {
	for name, tc := range map[string]struct {
		run           func(*T)
		first, second []string
		reasons       []string
	}{
		"nothing": {run: func(t *T) { t.Replica(0) }, first: []string{"start", "start", "stop"}},
		"killed": {
			run:   func(t *T) { t.Must(t.Replica(0).Kill(t.Context()), "killing") },
			first: []string{"start", "kill", "start", "stop"},
		},
		"frozen": { // It may be about to end.
			run:   func(t *T) { t.Must(t.Replica(0).Freeze(), "freezing") },
			first: []string{"start", "freeze", "stop", "start", "stop"},
		},
		"frozen, thawed and started": {
			run: func(t *T) {
				r := t.Replica(0)
				t.Must(r.Freeze(), "freezing")
				t.Must(r.Thaw(), "thawing")
				t.Must(r.Start(t.Context()), "starting")
				assert.True(t, r.Running())
			},
			first: []string{"start", "freeze", "thaw", "start", "stop", "start", "stop"},
		},
		"two": {
			run: func(t *T) {
				t.Replica(0)
				t.Must(t.Replica(1).Start(t.Context()), "starting")
			},
			first: []string{"start", "start", "stop"}, second: []string{"start", "stop"},
		},
		"the second crashes": {
			run: func(t *T) {
				r := t.Replica(1)
				t.Must(r.Start(t.Context()), "starting")
				r.(tracingReplica).Replica.(*fakeReplicas).crash()
			},
			first: []string{"start", "stop"}, second: []string{"start", "stop"},
			reasons: []string{"replica 1 of the CCM ended by itself"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			ccm := newFakeReplicas()
			test := core("a", tc.run)
			test.Needs = []Feature{FeatureReplicas}
			report := runTests(t, Options{Tests: []Test{test}, Implementation: Implementation{CCM: ccm}})
			assert.Equal(t, tc.first, ccm.done)
			if tc.second != nil {
				assert.Equal(t, tc.second, ccm.others[1].done)
			}
			assert.Equal(t, tc.reasons, reasons(report, "a"))
			assert.Empty(t, report.Crashes)
		})
	}
}

// renamedCCM notes what its cluster is called when it is started.
type renamedCCM struct {
	*fakeReplicas
	name string
	can  bool
}

func (c *renamedCCM) CanRenameCluster() bool    { return c.can }
func (c *renamedCCM) RenameCluster(name string) { c.name = name }
func (c *renamedCCM) Start(ctx context.Context) error {
	if err := c.fakeReplicas.Start(ctx); err != nil || c.name == "" {
		return err
	}
	return c.note("as " + c.name)
}

// A cluster that a test renames has its own name again after it.
func TestRenamedCluster(t *testing.T) {
	test := core("a", func(t *T) {
		t.Must(t.CCM.Stop(t.Context()), "stopping")
		t.RenameCluster("other")
		t.Must(t.CCM.Start(t.Context()), "starting")
	})
	test.Needs = []Feature{FeatureRenameCluster}
	ccm := &renamedCCM{fakeReplicas: newFakeReplicas()}
	run := func() *Report {
		return runTests(t, Options{Tests: []Test{test}, Implementation: Implementation{CCM: ccm}})
	}
	assert.Equal(t, Skipped, results(run())["a"], "it is not told its name")
	ccm.can, ccm.done = true, nil
	assert.Equal(t, Passed, results(run())["a"])
	assert.Equal(t, []string{"start", "stop", "start", "as other", "stop", "start", "stop"}, ccm.done)
}

// Where only one can run, it is said which feature is missing.
func TestNoReplicas(t *testing.T) {
	test := core("a", passes)
	test.Needs = []Feature{FeatureReplicas}
	report := runTests(t, Options{Tests: []Test{test}})
	assert.Equal(t, Skipped, results(report)["a"])

	test = core("a", func(t *T) { assert.False(t, t.Replica(0).Running()); t.Replica(1) })
	report = runTests(t, Options{Tests: []Test{test}})
	assert.Equal(t, []string{"replica 1 of the CCM: of this CCM only one can run"}, reasons(report, "a"))
}

// A CCM's Lease is given back when it has ended, and nobody else's is touched.
func TestLeaseIsGivenBack(t *testing.T) {
	host, err := os.Hostname()
	require.NoError(t, err)
	ctx, kube := t.Context(), fake.NewClientset()
	hold := func(namespace, name, holder string) {
		leases := kube.CoordinationV1().Leases(namespace)
		lease := &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder},
		}
		if _, err := leases.Get(ctx, name, metav1.GetOptions{}); err == nil {
			_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
			require.NoError(t, err)
			return
		}
		_, err := leases.Create(ctx, lease, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	holder := func(namespace, name string) string {
		lease, err := kube.CoordinationV1().Leases(namespace).Get(ctx, name, metav1.GetOptions{})
		require.NoError(t, err)
		return *lease.Spec.HolderIdentity
	}

	l := &leaseReleaser{kube: kube}
	hold("kube-system", "scheduler", host+"_before")
	hold("kube-system", "ccm", host+"_killed-last-week")
	l.releaseStale(ctx)
	assert.Equal(t, host+"_killed-last-week", holder("kube-system", "ccm"), "nothing has run yet")

	hold("kube-system", "ccm", host+"_first")
	hold(corev1.NamespaceNodeLease, "node", host+"_node")
	hold("kube-system", "other", "elsewhere_new")
	l.releaseStale(ctx)
	assert.Empty(t, holder("kube-system", "ccm"))
	assert.Equal(t, host+"_before", holder("kube-system", "scheduler"))
	assert.Equal(t, host+"_node", holder(corev1.NamespaceNodeLease, "node"))
	assert.Equal(t, "elsewhere_new", holder("kube-system", "other"))

	hold("kube-system", "ccm", "a-test")
	l.releaseStale(ctx)
	assert.Equal(t, "a-test", holder("kube-system", "ccm"))

	(*leaseReleaser)(nil).releaseStale(ctx) // Without a cluster there is none.
}
