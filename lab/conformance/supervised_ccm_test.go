package conformance

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
			report, err := newRun(Options{Tests: []Test{test}, Implementation: Implementation{CCM: ccm}}).
				outcome(t.Context())
			require.NoError(t, err)
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
		report, err := newRun(Options{Tests: []Test{test}, Implementation: Implementation{CCM: ccm}}).outcome(t.Context())
		require.NoError(t, err)
		return report
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
	report, err := newRun(Options{Tests: []Test{test}}).outcome(t.Context())
	require.NoError(t, err)
	assert.Equal(t, Skipped, results(report)["a"])

	test = core("a", func(t *T) { assert.False(t, t.Replica(0).Running()); t.Replica(1) })
	report, err = newRun(Options{Tests: []Test{test}}).outcome(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []string{"replica 1 of the CCM: of this CCM only one can run"}, reasons(report, "a"))
}
