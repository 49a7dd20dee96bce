package conformance

// Tests that build on others: what is held back, tried once more and blocked.

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/conformance/driver/protocol"
)

func buildsOn(test Test, foundations ...string) Test { test.BuildsOn = foundations; return test }

// blockedBy names, for each blocked test, what blocks it.
func blockedBy(r *Report) map[string]string {
	m := map[string]string{}
	for _, t := range r.Tests {
		if t.Result == Blocked {
			m[t.ID] = t.BlockedBy
		}
	}
	return m
}

// A CCM that never gives a Service its balancer is told once, and not by each test that waits for one.
func TestBlocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var tests []Test
		for i := range 20 { // Before it in the list: what others build on is begun first.
			test := buildsOn(core(fmt.Sprintf("changed-%d", i), never), "created")
			test.Alone = i%2 == 0
			tests = append(tests, test)
		}
		tests = append(tests, buildsOn(core("after-a-change", never), "changed-1"),
			core("created", never), core("another", passes))
		report := runTests(t, Options{Tests: tests})
		assert.Empty(t, report.Unfinished)
		assert.False(t, report.Passed())
		blocked := blockedBy(report)
		assert.Len(t, blocked, 21)
		for id, by := range blocked {
			assert.Equal(t, "created", by, "%s: by what has failed, however far away", id)
			assert.Equal(t, []string{"it builds on created, which has failed"}, reasons(report, id))
		}
		assert.Equal(t, Passed, results(report)["another"])
		assert.Equal(t, DefaultBound+DefaultBound/secondLookShare, time.Since(began))
		core := report.Profiles[0].Core
		assert.Equal(t, Statistics{Passed: 1, Failed: 1, Blocked: 21}, core.Statistics)
		assert.Equal(t, []string{"created"}, core.FailedTests)
		assert.Len(t, core.BlockedTests, 21)
	})
}

// What fails once, on a machine that stood still for one, blocks nothing; and it has failed.
func TestFailedOnceBlocksNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks := 0
		flaky := core("created", func(t *T) {
			if looks++; looks == 1 {
				never(t)
			}
		})
		report := runTests(t, Options{Tests: []Test{flaky, buildsOn(core("changed", passes), "created")}})
		assert.Equal(t, map[string]Result{"created": Failed, "changed": Passed}, results(report))
		assert.False(t, report.Passed())
		assert.Equal(t, 2, looks)
		assert.Equal(t, []string{"waited for what never comes; gave up after 2m0s; last: not yet"},
			reasons(report, "created"))
		assert.Equal(t, "tried once more, for 30s at most, and passed: what builds on it is run; that it failed stands",
			report.Tests[0].Notes[0])
		assert.InDelta(t, 120, report.Tests[0].Seconds, 0.01, "of the look that counts")
	})
}

// What nothing waits for is not tried again, nor is anything with RunBlocked.
func TestNoSecondLook(t *testing.T) {
	looks := 0
	fails := core("created", func(t *T) { looks++; t.Errorf("no") })
	runTests(t, Options{Tests: []Test{fails}})
	assert.Equal(t, 1, looks)

	report := runTests(t, Options{
		RunBlocked: true, Tests: []Test{fails, buildsOn(core("changed", passes), "created")},
	})
	assert.Equal(t, map[string]Result{"created": Failed, "changed": Passed}, results(report))
	assert.Equal(t, 2, looks)
}

// What is skipped, or was not selected, blocks nothing.
func TestSkippedBlocksNothing(t *testing.T) {
	skipped := core("created", fails)
	skipped.Needs = []Feature{FeatureZones}
	report := runTests(t, Options{Tests: []Test{
		buildsOn(core("changed", passes), "created", "not-selected"), skipped,
	}})
	assert.Equal(t, map[string]Result{"created": Skipped, "changed": Passed}, results(report))

	skipped = buildsOn(skipped, "made")
	report = runTests(t, Options{Tests: []Test{
		buildsOn(core("changed", passes), "created"), skipped, core("made", fails),
	}})
	assert.Equal(t, map[string]string{"changed": "made"}, blockedBy(report), "what is in between was skipped")
}

// A CCM that is given up fails what is left, for that reason.
func TestGivenUpBlocksNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ccm := newFakeCCM()
		ccm.broken = true
		report := runTests(t, Options{Implementation: Implementation{CCM: ccm}, Tests: []Test{
			core("created", never), buildsOn(core("changed", never), "created"),
		}})
		assert.Equal(t, map[string]Result{"created": Failed, "changed": Failed}, results(report))
	})
}

func TestBlockedIsNotRequired(t *testing.T) {
	report := runTests(t, Options{Tests: []Test{
		core("fine", passes), extended("udp", CapabilityUDP, fails),
		buildsOn(extended("udp-and-tcp", CapabilityUDP, passes), "udp"),
	}})
	assert.True(t, report.Passed())
	assert.Equal(t, map[string]string{"udp-and-tcp": "udp"}, blockedBy(report))
	assert.Equal(t, Partial, report.Profiles[0].Extended.Result)
}

// A test begins when what it builds on has been seen, on whatever lab; none is lost, and none is run twice.
func TestFoundationsAcrossLabs(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // Repeatable.
				var mu sync.Mutex
				passed, ran := map[string]bool{}, map[string]int{}
				failing := map[string]bool{}
				var tests []Test
				for i := range 1 + random.IntN(30) {
					takes := time.Duration(1+random.IntN(20)) * time.Second
					var on []string
					for range random.IntN(3) {
						if i > 0 {
							on = append(on, tests[random.IntN(i)].ID)
						}
					}
					id := fmt.Sprintf("test-%d", i)
					failing[id] = random.IntN(8) == 0
					test := buildsOn(core(id, func(ct *T) {
						mu.Lock()
						ran[id]++
						for _, foundation := range on {
							assert.True(t, passed[foundation], "%s began before %s had passed", id, foundation)
						}
						mu.Unlock()
						time.Sleep(takes)
						mu.Lock()
						defer mu.Unlock()
						if failing[id] {
							ct.Errorf("no")
							return
						}
						passed[id] = true
					}), on...)
					test.Alone, test.Priority = random.IntN(2) == 0, Priority(random.IntN(3)-1)
					tests = append(tests, test)
				}
				listed := slices.Clone(tests)
				random.Shuffle(len(tests), func(i, j int) { tests[i], tests[j] = tests[j], tests[i] })
				whole, errs := sharing(t.Context(), t, tests, 1+random.IntN(4), func(_ int, o *Options) {
					o.Implementation.CCM, o.Parallel = newFakeCCM(), 3
				})
				require.NoError(t, errors.Join(errs...))
				assert.Empty(t, whole.Unfinished)
				for _, test := range listed { // What it builds on comes before it.
					want := Passed
					if failing[test.ID] {
						want = Failed
					}
					for _, foundation := range test.BuildsOn {
						if results(whole)[foundation] != Passed {
							want = Blocked
						}
					}
					assert.Equal(t, want, results(whole)[test.ID], test.ID)
					most := map[Result]int{Passed: 1, Failed: 2, Blocked: 0}[want]
					assert.LessOrEqual(t, ran[test.ID], most, test.ID)
				}
			})
		})
	}
}

// A lab that is up before the first behaviours have been seen starts its CCM meanwhile, and then runs
// what the first lab does not.
func TestLabWaitsForFoundation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		first := core("first", func(*T) { time.Sleep(2 * time.Second) })
		tests := []Test{first, buildsOn(core("together", passes), "first")}
		ccms := []*fakeCCM{newFakeCCM(), newFakeCCM()}
		var onSecond atomic.Int32
		for i := range 4 {
			tests = append(tests, buildsOn(alone(core(fmt.Sprintf("alone-%d", i), func(ct *T) {
				if ct.CCM.(*supervisedCCM).CCM == CCM(ccms[1]) {
					onSecond.Add(1)
				}
				time.Sleep(10 * time.Second)
			})), "first"))
		}
		go func() {
			time.Sleep(time.Second)
			assert.EqualValues(t, 1, ccms[1].starts.Load(), "while the foundation is looked at")
		}()
		whole, errs := sharing(t.Context(), t, tests, 2, func(lab int, o *Options) { o.Implementation.CCM = ccms[lab] })
		require.NoError(t, errors.Join(errs...))
		assert.True(t, whole.Passed())
		assert.EqualValues(t, 2, onSecond.Load())
		assert.Equal(t, 22*time.Second, time.Since(began))
	})
}

// A long test holds up none of its class that was held back when it began.
func TestHeldBackBesideALongTest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		report := runTests(t, Options{Tests: []Test{
			core("long", func(*T) { time.Sleep(time.Minute) }),
			core("first", func(*T) { time.Sleep(2 * time.Second) }),
			buildsOn(core("second", func(*T) { time.Sleep(50 * time.Second) }), "first"),
			alone(core("last", passes)),
		}})
		assert.True(t, report.Passed())
		assert.Equal(t, time.Minute, time.Since(began))
	})
}

// A lab that breaks in the middle of what others build on decides nothing.
func TestLabBreaksInAFoundation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		whole, errs := sharing(t.Context(), t, []Test{
			core("first", func(ct *T) {
				time.Sleep(time.Second)
				if isOnLab(ct, 0) {
					ct.Errorf("the API server does not answer")
				}
			}),
			buildsOn(alone(core("second", passes)), "first"),
		}, 2, func(lab int, o *Options) {
			o.Implementation.Cloud = numberedCloud(lab)
			o.Healthy = func(context.Context) error {
				if lab == 0 {
					return errors.New("no route to host")
				}
				return nil
			}
		})
		require.Error(t, errs[0])
		require.NoError(t, errs[1])
		assert.True(t, whole.Passed(), "%v %s", results(whole), whole.Unfinished)
	})
}

func TestBoundsFactor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		short := core("short", never)
		short.Bound = 10 * time.Second
		var cleanup time.Duration
		cleaned := core("cleaned", func(ct *T) {
			ct.Cleanup(func(ctx context.Context) error {
				deadline, _ := ctx.Deadline()
				cleanup = time.Until(deadline)
				return nil
			})
		})
		report := runTests(t, Options{BoundsFactor: 2.5, Tests: []Test{short, core("usual", never), cleaned}})
		assert.Contains(t, reasons(report, "short")[0], "gave up after 25s")
		assert.Contains(t, reasons(report, "usual")[0], "gave up after 5m0s")
		assert.Equal(t, 75*time.Second, cleanup)

		report = runTests(t, Options{BoundsFactor: 5, Bound: time.Minute, Tests: []Test{core("usual", never)}})
		assert.Contains(t, reasons(report, "usual")[0], "gave up after 1m0s", "however long: it is the longest")
	})
}

// A CCM that deletes no balancer is waited for once, and then for less by each of the many tests that
// have made one. One that has deleted any is waited for.
func TestPatience(t *testing.T) {
	r := &removals{}
	assert.Equal(t, 15*time.Second, r.patience(15*time.Second))
	r.add(false)
	assert.Equal(t, 3*time.Second, r.patience(15*time.Second))
	r.add(true)
	r.add(false)
	assert.Equal(t, 15*time.Second, r.patience(15*time.Second))
}

// hitCloud has faults that so many calls meet, or of which its driver says that they were not made.
type hitCloud struct {
	featuresOnly
	hits int
	err  error
}

func (c hitCloud) InjectFault(context.Context, Fault) (protocol.Injection, error) {
	return protocol.Injection{ID: "1"}, nil
}

func (c hitCloud) GetInjection(context.Context, string) (protocol.Hits, error) {
	return protocol.Hits{Hits: c.hits}, c.err
}

func (c hitCloud) LiftInjection(context.Context, string) error { return nil }

// A fault that has met nothing proves nothing: who passes nevertheless has not passed, and who fails has failed.
func TestFaultThatWasNotMade(t *testing.T) {
	under := func(kind FaultKind, run func(*T)) func(*T) {
		return func(t *T) {
			i, err := t.Cloud.InjectFault(t.Context(), Fault{Kind: kind, On: []Thing{Instances}})
			t.Must(err, "injecting a fault")
			t.Cleanup(i.Lift)
			run(t)
		}
	}
	tests := []Test{
		core("met", under(FaultUnavailable, passes)), core("avoidable", under(FaultEmptyList, passes)),
		core("broken", under(FaultUnavailable, fails)), buildsOn(core("on-it", passes), "met"),
		core("no-route", func(t *T) { t.NotMade("the route is %s", "gone") }),
		core("allowed", func(t *T) {
			i, err := t.Cloud.InjectFault(t.Context(), Fault{Kind: FaultSlow})
			t.Must(err, "injecting a fault")
			t.AllowUnmet(i)
			t.Must(i.Lift(t.Context()), "lifting it")
		}),
	}
	for name, tc := range map[string]struct {
		cloud hitCloud
		want  Result
		why   string
	}{
		"met":      {hitCloud{hits: 1}, Passed, ""},
		"not met":  {hitCloud{}, Blocked, "nothing that the CCM did has met it"},
		"not made": {hitCloud{err: errors.New("it has no /state")}, Blocked, "the driver, GET /v1/injections/1: it has no /state"},
	} {
		t.Run(name, func(t *testing.T) {
			report := runTests(t, Options{Implementation: Implementation{Cloud: clientOf(tc.cloud)}, Tests: tests})
			assert.Equal(t, map[string]Result{
				"met": tc.want, "avoidable": Passed, "broken": Failed, "on-it": Passed, "allowed": Passed,
				"no-route": Blocked,
			}, results(report))
			assert.Equal(t, []string{"the fault was not made, so that nothing is proved: the route is gone"},
				reasons(report, "no-route"))
			if tc.want == Blocked {
				why := "the fault was not made, so that nothing is proved: fault 503 on instances: " + tc.why
				assert.Equal(t, []string{why}, reasons(report, "met"))
				assert.Equal(t, []string{"it does not"}, reasons(report, "broken"))
				assert.Equal(t, []string{"met", "no-route"}, report.Profiles[0].Core.BlockedTests)
			}
			alone := runTests(t, Options{Implementation: Implementation{Cloud: clientOf(tc.cloud)}, Tests: tests[:2]})
			assert.Equal(t, tc.want == Passed, alone.Passed())
		})
	}
}
