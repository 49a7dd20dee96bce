package conformance

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

func TestRun(t *testing.T) {
	ccm := newFakeCCM()
	var seen []string
	report, err := Run(t.Context(), Options{
		Cluster: apiServer(t), ClusterName: "embedded",
		Implementation: Implementation{
			Name: "ours", Version: "v1", Cloud: clientOf(featuresOnly{features: []Feature{FeatureUDP}}), CCM: ccm,
			Claims: []Capability{CapabilityUDP},
		},
		Tests: []Test{
			alone(core("last", passes)),
			core("passes", func(t *T) { t.Logf("by the way"); assert.Equal(t, 1, 1) }),
			extended("claimed", CapabilityUDP, fails),
			extended("not-claimed", CapabilityQuiet, fails),
		},
		Parallel: 1, Observer: func(r TestReport) { seen = append(seen, fmt.Sprintf("%s %s", r.ID, r.Result)) },
	})
	require.NoError(t, err)
	assert.Equal(t, Identity{"ours", "v1"}, report.Implementation)
	assert.Equal(t, Identity{"embedded", "v1.36.3"}, report.Cluster)
	assert.Equal(t, []string{
		"passes ", "passes passed", "claimed ", "claimed failed", "not-claimed ", "not-claimed failed", "last ",
		"last passed",
	}, seen, "those that run alone are last")
	var ids []string
	for _, test := range report.Tests {
		ids = append(ids, test.ID)
	}
	assert.Equal(t, []string{"last", "passes", "claimed", "not-claimed"}, ids, "the report is in the tests' order")
	assert.Equal(t, []string{"by the way"}, report.Tests[1].Notes)
	assert.Equal(t, []string{"it does not"}, report.Tests[2].Reasons)
	assert.Equal(t, []string{"ccm: last words"}, report.Tests[2].Notes, "the CCM's log goes with a failure")
	assert.True(t, report.Tests[2].Required)
	assert.False(t, report.Tests[3].Required)
	assert.False(t, report.Passed())
	assert.Equal(t, []ProfileReport{{
		Name: Node,
		Core: &Summary{Result: Success, Statistics: Statistics{Passed: 2}},
		Extended: &Summary{
			Result: Failure, Statistics: Statistics{Failed: 2}, FailedTests: []string{"claimed"},
			NotRequired: []string{"not-claimed"},
		},
	}}, report.Profiles)
	assert.EqualValues(t, 1, ccm.starts.Load())
	assert.EqualValues(t, 1, ccm.stops.Load())
}

func TestRunWithoutACluster(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	_, err := Run(t.Context(), Options{Cluster: &rest.Config{Host: server.URL}, Tests: []Test{core("a", passes)}})
	require.ErrorContains(t, err, "asking the cluster for its version")
}

func TestTablesAreChecked(t *testing.T) {
	for want, tests := range map[string][]Test{
		"two tests have the ID a":                            {core("a", passes), core("a", passes)},
		`test "A b": an ID is lower-case words with hyphens`: {core("A b", passes)},
		"test a: Requires, Source and Run are needed":        {core("a", nil)},
		`test a: there is no profile "Pods"`: {
			{ID: "a", Requires: "x", Source: "x", Run: passes, Profile: "Pods", Level: Core},
		},
		"test a: it is core, or extended with a capability": {extended("a", "", passes)},
		"test a builds on itself":                           {buildsOn(core("a", passes), "b"), buildsOn(core("b", passes), "a")},
		"test a builds on b, which is not required wherever it is": {
			buildsOn(core("a", passes), "b"), extended("b", CapabilityUDP, passes),
		},
	} {
		_, err := Run(t.Context(), Options{Tests: tests})
		assert.EqualError(t, err, want)
	}
}

// So many run at once and no more, and those that run alone do.
func TestParallel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var now, most int
		sleeps := func(*T) {
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			now--
			mu.Unlock()
		}
		isAlone := func(t *T) {
			mu.Lock()
			before := now
			mu.Unlock()
			assert.Zero(t, before, "another test runs")
			sleeps(t)
		}
		var tests []Test
		for i := range 6 {
			tests = append(
				tests, core(fmt.Sprintf("together-%d", i), sleeps), alone(core(fmt.Sprintf("alone-%d", i), isAlone)),
			)
		}
		began := time.Now()
		report := runTests(t, Options{Tests: tests, Parallel: 3})
		assert.True(t, report.Passed(), "%v", report.Tests)
		assert.Len(t, report.Tests, 12)
		assert.Equal(t, 3, most)
		assert.Equal(t, 8*time.Second, time.Since(began), "two rounds of three, then six")
	})
}

// Whoever waits is told of a wait that lasts, once, and the verdict is another matter.
func TestOverdue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []string
		waits := func(until time.Duration) func(*T) {
			return func(t *T) {
				began := time.Now()
				t.Await("the balancer", func(context.Context) error {
					if time.Since(began) < until {
						return errors.New("there is none")
					}
					return nil
				})
			}
		}
		report := runTests(t, Options{
			Tests:   []Test{core("slow", waits(overdueAfter+30*time.Second)), core("quick", waits(overdueAfter/2))},
			Overdue: func(w Wait) { told = append(told, fmt.Sprintf("%s: %s; %v", w.Test.ID, w.For, w.Last)) },
		})
		assert.Equal(t, []string{"slow: the balancer; there is none"}, told)
		assert.True(t, report.Passed(), "it is no verdict")
	})
}

func TestWaysToFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var beyond atomic.Bool
		slow := core("slow", never)
		slow.Bound = time.Minute
		report := runTests(t, Options{Tests: []Test{
			core("panics", func(*T) { panic("oh") }),
			core("fatal", func(t *T) { t.Errorf("first"); t.Fatalf("second"); beyond.Store(true) }),
			core("must", func(t *T) {
				t.Must(nil, "fine")
				t.Must(errors.New("no"), "doing %s", "this")
				beyond.Store(true)
			}),
			core("require", func(t *T) { require.Equal(t, 1, 2); beyond.Store(true) }),
			core("breaks", func(t *T) {
				n := 0
				t.HoldsUntil("it holds", func(context.Context) error {
					if n++; n > 3 {
						return errors.New("it broke")
					}
					return nil
				}, "the end of time", func(context.Context) error { return errors.New("no end") })
			}),
			slow,
			core("slow-by-default", never),
			core("fine", passes),
		}})
		assert.False(t, beyond.Load(), "a test that has ended goes no further")
		for _, test := range report.Tests {
			assert.Equal(t, test.ID == "fine", test.Result == Passed, test.ID)
		}
		assert.Contains(t, reasons(report, "panics")[0], "the test panicked: oh\n")
		assert.Equal(t, []string{"first", "second"}, reasons(report, "fatal"))
		assert.Equal(t, []string{"doing this: no"}, reasons(report, "must"))
		assert.Contains(t, reasons(report, "require")[0], "Not equal")
		assert.Equal(t, []string{"it holds: it broke"}, reasons(report, "breaks"))
		assert.Equal(
			t, []string{"waited for what never comes; gave up after 1m0s; last: not yet"}, reasons(report, "slow"),
		)
		assert.Contains(t, reasons(report, "slow-by-default")[0], "gave up after 2m0s")
	})
}

// Whatever becomes of a test: what it did is undone, last things first, with
// time of its own; and what cannot be undone fails it.
func TestCleanup(t *testing.T) {
	for name, end := range map[string]func(*T){
		"passes": passes, "fails": func(t *T) { t.FailNow() }, "panics": func(*T) { panic("oh") },
		"takes too long": never,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var undone []string
				report := runTests(t, Options{Tests: []Test{core("a", func(ct *T) {
					undo := func(what string, err error) {
						ct.Cleanup(func(ctx context.Context) error {
							undone = append(undone, what)
							assert.NoError(t, ctx.Err())
							deadline, ok := ctx.Deadline()
							assert.True(t, ok)
							assert.Equal(t, defaultCleanupBound, time.Until(deadline))
							return err
						})
					}
					undo("first", nil)
					undo("second", errors.New("it is stuck"))
					ct.Cleanup(func(context.Context) error { undo("registered late", nil); return nil })
					end(ct)
				})}})
				assert.Equal(t, []string{"registered late", "second", "first"}, undone)
				assert.Equal(t, Failed, report.Tests[0].Result)
				assert.Contains(t, report.Tests[0].Reasons, "cleaning up: it is stuck")
			})
		})
	}
}

// A run that is interrupted ends its tests, lets them clean up, stops the CCM,
// and reports what it knows.
func TestInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ccm := newFakeCCM()
		cleaned := false
		ctx, interrupt := context.WithCancelCause(t.Context())
		report, err := newRun(Options{
			Implementation: Implementation{CCM: ccm}, Parallel: 1,
			Tests: []Test{
				core("before", passes),
				core("during", func(t *T) {
					t.Cleanup(func(ctx context.Context) error { cleaned = true; return ctx.Err() })
					interrupt(errors.New("Ctrl-C"))
					never(t)
				}),
				core("after", passes), alone(core("long-after", passes)),
			},
		}).outcome(ctx)
		require.EqualError(t, err, "the run was ended early: Ctrl-C")
		assert.Equal(t, map[string]Result{"before": Passed}, results(report))
		assert.True(t, cleaned)
		assert.EqualValues(t, 1, ccm.stops.Load())
	})
}

// Interrupted in its last test, it has not come to its end either.
func TestInterruptedInTheLastTest(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	_, err := newRun(Options{Tests: []Test{core("a", passes), alone(core("last", func(*T) { interrupt() }))}}).
		outcome(ctx)
	require.ErrorIs(t, err, context.Canceled)
}

func TestSkips(t *testing.T) {
	needs := func(test Test, f ...Feature) Test { test.Needs = f; return test }
	ccm := newFakeCCM()
	o := Options{
		Implementation: Implementation{
			CCM: ccm, Cloud: clientOf(featuresOnly{features: []Feature{FeatureUDP, FeatureTargets}}),
			Claims: []Capability{CapabilityUDP},
			Unsupported: Unsupported{
				string(CapabilityAffinity): "the cloud hashes", string(FeatureTargets): "they are secret",
			},
		},
		Tests: []Test{
			needs(core("has-it", passes), FeatureUDP),
			needs(core("lacks-it", passes), FeatureUDP, FaultFeature(FaultTimeout)),
			needs(core("declared", passes), FeatureTargets),
			extended("declared-too", CapabilityAffinity, passes),
			needs(extended("claimed-but", CapabilityUDP, passes), FeatureStrangers),
		},
	}
	report := runTests(t, o)
	assert.Equal(t, map[string]Result{
		"has-it": Passed, "lacks-it": Skipped, "declared": Skipped, "declared-too": Skipped, "claimed-but": Skipped,
	}, results(report))
	assert.Equal(
		t, []string{"it needs fault-timeout, which this cloud or cluster does not have"}, reasons(report, "lacks-it"),
	)
	assert.Equal(t, []string{"targets is not supported: they are secret"}, reasons(report, "declared"))
	assert.Equal(
		t, []string{"service-affinity is not supported: the cloud hashes"}, reasons(report, "declared-too"),
	)
	assert.Equal(t, Partial, report.Profiles[0].Core.Result)
	assert.True(t, report.Passed())

	// Every cloud has load balancers unless somebody says that it has none.
	balanced := needs(core("balanced", passes), FeatureLoadBalancers)
	routed := core("routed", passes)
	routed.Profile = Routing
	without := Options{Tests: []Test{core("node", passes), balanced, routed}}
	assert.Equal(t, map[string]Result{"node": Passed, "balanced": Passed, "routed": Passed},
		results(runTests(t, without)))
	without.Implementation.Unsupported = Unsupported{
		string(FeatureLoadBalancers): "it has none", string(Routing): "pods have an overlay",
	}
	report = runTests(t, without)
	assert.Equal(t, map[string]Result{"node": Passed, "balanced": Skipped, "routed": Skipped}, results(report))
	assert.Equal(t, []string{"load-balancers is not supported: it has none"}, reasons(report, "balanced"))
	assert.Equal(t, []string{"Route is not supported: pods have an overlay"}, reasons(report, "routed"))

	only := Options{
		RequiredOnly: true, Tests: []Test{core("core", passes), extended("unclaimed", CapabilityUDP, passes)},
	}
	report = runTests(t, only)
	assert.Equal(t, map[string]Result{"core": Passed, "unclaimed": Skipped}, results(report))

	o.Tests = o.Tests[1:]
	report = runTests(t, o)
	assert.False(t, report.Passed(), "nothing ran")
	assert.EqualValues(t, 1, ccm.starts.Load(), "for nothing no CCM is started")
}

func TestSelect(t *testing.T) {
	in := func(p Profile, test Test) Test { test.Profile = p; return test }
	tests := []Test{
		core("node-a", passes), core("node-b", passes), in(Lifecycle, core("stop-a", passes)),
		in(LoadBalancer, core("lb-a", passes)),
	}
	for name, tc := range map[string]struct {
		profiles []Profile
		focus    string
		want     []string
	}{
		"all":      {nil, "", []string{"node-a", "node-b", "stop-a", "lb-a"}},
		"profiles": {[]Profile{LoadBalancer, Lifecycle}, "", []string{"stop-a", "lb-a"}},
		"focus":    {nil, "-a$", []string{"node-a", "stop-a", "lb-a"}},
		"both":     {[]Profile{Node}, "-a$", []string{"node-a"}},
		"neither":  {[]Profile{Node}, "lb", nil},
	} {
		var got []string
		for _, test := range Select(tests, tc.profiles, regexp.MustCompile(tc.focus)) {
			got = append(got, test.ID)
		}
		assert.Equal(t, tc.want, got, name)
	}
	report := runTests(t, Options{Tests: tests, Profiles: []Profile{Node}, Focus: regexp.MustCompile("-b")})
	assert.Equal(t, map[string]Result{"node-b": Passed}, results(report), "others are not even skipped")
	p, err := ProfileNamed("loadBALANCER")
	require.NoError(t, err)
	assert.Equal(t, LoadBalancer, p)
	_, err = ProfileNamed("pods")
	require.EqualError(
		t, err, `there is no profile "pods": choose from Node, Lifecycle, LoadBalancer, Route, HA, Resilience, Budget`,
	)
}

// A CCM that crashes is started again, and the run has not passed.
func TestCrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ccm := newFakeCCM()
		report := runTests(t, Options{
			Implementation: Implementation{CCM: ccm},
			Tests: []Test{core("a", func(t *T) {
				ccm.crash()
				ccm.awaitStart(t, 2)
			})},
		})
		assert.Equal(t, map[string]Result{"a": Passed}, results(report))
		assert.Equal(t, []string{"last words"}, report.Crashes)
		assert.False(t, report.Passed())
	})
}

// One that crashes at the very end is not overlooked.
func TestCrashAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ccm := newFakeCCM()
		ccm.refuse = errors.New("not needed any more")
		report := runTests(t,
			Options{Implementation: Implementation{CCM: ccm}, Tests: []Test{core("a", func(*T) { ccm.crash() })}},
		)
		assert.Len(t, report.Crashes, 1)
	})
}

// One that does nothing but crash is given up: the tests fail with that as the
// reason, and soon.
func TestGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ccm := newFakeCCM()
		ccm.broken = true
		tests := []Test{core("runs", never), core("waits", never), alone(core("comes-later", passes))}
		began := time.Now()
		report, err := newRun(Options{Implementation: Implementation{CCM: ccm}, Tests: tests, Parallel: 1}).
			outcome(t.Context())
		require.NoError(t, err, "a CCM that fails is no error")
		assert.Less(t, time.Since(began), DefaultBound)
		assert.Len(t, report.Crashes, maxCrashes)
		assert.EqualValues(t, maxCrashes, ccm.starts.Load())
		assert.Equal(t, map[string]Result{"runs": Failed, "waits": Failed, "comes-later": Failed}, results(report))
		for _, id := range []string{"runs", "waits", "comes-later"} {
			assert.Contains(
				t, reasons(report, id)[0], "the CCM is not started any more: it ended by itself 5 times", id,
			)
		}
		assert.EqualValues(t, 1, ccm.stops.Load())
	})
}

// One that ends while a test makes the cloud misbehave is started again, and that fails nothing;
// once a test has passed without a fault, it does.
func TestExitUnderFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ccm := newFakeCCM()
		crashes := func(times int) func(*T) {
			return func(t *T) {
				for range times {
					before := ccm.starts.Load()
					ccm.crash()
					ccm.awaitStart(t, before+1)
				}
			}
		}
		underFault := func(t *T) {
			_, err := t.Cloud.InjectFault(t.Context(), Fault{Kind: FaultSlow})
			t.Must(err, "injecting a fault")
			crashes(2 * maxCrashes)(t)
		}
		report := runTests(t, Options{
			Parallel:       1,
			Implementation: Implementation{CCM: ccm, Cloud: clientOf(hitCloud{})},
			Tests: []Test{
				core("fault", underFault), core("aftermath", crashes(1)), core("later", crashes(1)),
			},
		})
		assert.Equal(t, map[string]Result{"fault": Passed, "aftermath": Passed, "later": Passed}, results(report))
		assert.Equal(t, 2*maxCrashes+1, report.ExitsUnderFault)
		assert.Len(t, report.Crashes, 1, "that of the test after one that has passed")
		assert.False(t, report.Passed())
	})
}

// Crashes with passed tests between them are no reason to give it up.
func TestCrashesNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ccm := newFakeCCM()
		var tests []Test
		for i := range 2 * maxCrashes {
			tests = append(tests, core(fmt.Sprintf("test-%d", i), func(t *T) {
				ccm.crash()
				ccm.awaitStart(t, int32(i+2))
			}))
		}
		report := runTests(t, Options{Implementation: Implementation{CCM: ccm}, Tests: tests, Parallel: 1})
		assert.Len(t, report.Crashes, 2*maxCrashes)
		assert.False(t, slices.ContainsFunc(report.Tests, func(t TestReport) bool { return t.Result != Passed }))
	})
}

func TestRestartRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ccm := newFakeCCM()
		ccm.refuse = errors.New("no such file")
		report := runTests(t, Options{
			Implementation: Implementation{CCM: ccm}, Tests: []Test{core("a", func(t *T) { ccm.crash(); never(t) })},
		})
		assert.Contains(t, reasons(report, "a")[0], "starting it again failed: no such file")
	})
}

func TestNames(t *testing.T) {
	ct := &T{Suite: &Suite{runID: "abcd", serial: new(atomic.Int64)}}
	seen := map[string]bool{}
	for _, hint := range []string{"a", "a", "a-very-long-hint-that-is-cut", "twentythree-letters-and-"} {
		name := ct.Name(hint)
		assert.Regexp(t, `^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$`, name)
		assert.False(t, seen[name])
		seen[name] = true
	}
}

// A crash must not start a CCM that a test has stopped meanwhile.
func TestStoppedAfterACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ccm := newFakeCCM()
		r := newRun(Options{Implementation: Implementation{CCM: ccm}})
		require.NoError(t, r.suite.CCM.Start(t.Context()))
		stop := r.keepCCM(t.Context(), func(error) {})
		for range 2 { // The second restart waits a second.
			ccm.crash()
			synctest.Wait()
		}
		require.NoError(t, r.suite.CCM.Stop(t.Context()))
		time.Sleep(time.Minute)
		assert.EqualValues(t, 2, ccm.starts.Load(), "the first, and after the first crash")
		require.NoError(t, r.suite.CCM.Start(t.Context()))
		assert.EqualValues(t, 3, ccm.starts.Load())
		stop()
	})
}

// What heeds no bound is left behind, and the run goes on.
func TestStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		released := make(chan struct{})
		stuck := func() { <-released }
		report := runTests(t, Options{Bound: time.Second, Tests: []Test{
			core("test", func(*T) { stuck() }),
			core("cleanup", func(t *T) { t.Cleanup(func(context.Context) error { stuck(); return nil }) }),
			core("other", passes),
		}})
		assert.Equal(t, map[string]Result{"test": Failed, "cleanup": Failed, "other": Passed}, results(report))
		assert.Equal(
			t, []string{"the test does not end, though its time is over (gave up after 1s)"}, reasons(report, "test"),
		)
		close(released)
	})
}

// A cleanup may fail in every way that a test may, and hides nothing.
func TestCleanupFails(t *testing.T) {
	undone := false
	report := runTests(t, Options{Tests: []Test{
		core("ends", func(t *T) {
			t.Cleanup(func(context.Context) error { undone = true; return nil })
			t.Cleanup(func(context.Context) error { t.Fatalf("it cannot"); return nil })
		}),
		core("panics", func(t *T) { t.Cleanup(func(context.Context) error { panic("no") }) }),
	}})
	assert.Equal(t, map[string]Result{"ends": Failed, "panics": Failed}, results(report))
	assert.True(t, undone)
	assert.Contains(t, reasons(report, "panics")[0], "cleaning up panicked: no")
}

// That the API server could not be asked is no verdict on what was to hold, and
// ends nothing.
func TestUnseen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		report := runTests(t, Options{Tests: []Test{
			core("busy", func(t *T) {
				looks := 0
				t.HoldsUntil("it holds", func(context.Context) error {
					if looks++; looks == 1 {
						return apierrors.NewInternalError(errors.New("etcdserver: request timed out"))
					}
					return nil
				}, "the end", func(context.Context) error {
					if looks < 2 {
						t.Errorf("it ended with a look that saw nothing")
					}
					return nil
				})
			}),
			core("broken", func(t *T) {
				t.HoldsUntil("it holds", func(context.Context) error {
					return apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, "x")
				},
					"the end", func(context.Context) error { return errors.New("not yet") })
			}),
		}})
		assert.Equal(t, map[string]Result{"busy": Passed, "broken": Failed}, results(report))
		assert.Equal(t, []string{`it holds: nodes "x" not found`}, reasons(report, "broken"))
	})
}

// What happens while the end is being asked for is seen, too.
func TestTheLastLookIsAtWhatMustHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := false
		report := runTests(t, Options{Tests: []Test{core("a", func(t *T) {
			t.HoldsUntil("peace", func(context.Context) error {
				if broken {
					return errors.New("war")
				}
				return nil
			}, "dawn", func(context.Context) error { broken = true; return nil })
		})}})
		assert.Equal(t, []string{"peace: war"}, reasons(report, "a"))
	})
}
