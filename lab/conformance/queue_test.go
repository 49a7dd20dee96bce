package conformance

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
)

// sharing runs the options on so many labs, which differ as change says.
func sharing(
	ctx context.Context,
	t *testing.T,
	tests []Test,
	labs int,
	change func(lab int, o *Options),
) (*Report, []error) {
	t.Helper()
	q := NewQueue(tests)
	reports, errs := make([]*Report, labs), make([]error, labs)
	var running sync.WaitGroup
	for i := range labs {
		o := Options{Queue: q}
		if change != nil {
			change(i, &o)
		}
		running.Go(func() {
			if i > 0 {
				time.Sleep(time.Millisecond) // So that it is known which is the first.
			}
			reports[i], errs[i] = newRun(o).outcome(ctx)
		})
	}
	running.Wait()
	whole, err := q.Merge(reports)
	require.NoError(t, err)
	return whole, errs
}

func ids(r *Report) (all []string) {
	for _, t := range r.Tests {
		all = append(all, t.ID)
	}
	return all
}

// Whatever the tests and however many labs: each test runs once, one that runs
// alone does on its lab, and the report is in the order of the list.
func TestSharedByLabs(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // Repeatable.
				ccms := make([]*fakeCCM, 1+random.IntN(4))
				var mu sync.Mutex
				var want []string
				ran, busy := map[string]int{}, map[CCM]int{}
				var tests []Test
				for i := range random.IntN(40) {
					takes, isAlone := time.Duration(1+random.IntN(100))*time.Second, random.IntN(2) == 0
					test := core(fmt.Sprintf("test-%d", i), func(ct *T) {
						on := ct.CCM.(*supervisedCCM).CCM
						mu.Lock()
						ran[ct.test.ID]++
						before := busy[on]
						busy[on]++
						mu.Unlock()
						if isAlone {
							assert.Zero(t, before, "another test runs")
						}
						time.Sleep(takes)
						mu.Lock()
						defer mu.Unlock()
						if isAlone {
							assert.Equal(t, 1, busy[on], "another test runs")
						}
						busy[on]--
					})
					test.Alone, test.Priority = isAlone, Priority(random.IntN(3)-1)
					tests, want = append(tests, test), append(want, test.ID)
				}
				began := time.Now()
				whole, errs := sharing(t.Context(), t, tests, len(ccms), func(lab int, o *Options) {
					ccms[lab] = newFakeCCM()
					o.Implementation.CCM, o.Parallel = ccms[lab], 3
				})
				assert.NoError(t, errors.Join(errs...))
				assert.Equal(t, want, ids(whole))
				assert.Empty(t, whole.Unfinished)
				assert.Equal(t, len(tests) > 0, whole.Passed())
				assert.InDelta(t, time.Since(began).Seconds(), whole.Seconds, 0.02, "on the clock, not added up")
				for id, times := range ran {
					assert.Equal(t, 1, times, id)
				}
			})
		})
	}
}

func TestTurns(t *testing.T) {
	turn := func(at Priority, test Test) Test { test.Priority = at; return test }
	q := NewQueue([]Test{
		core("a", passes), alone(turn(Late, core("wary", passes))), alone(core("b", passes)),
		turn(Early, core("long", passes)), alone(turn(Early, core("long-alone", passes))),
	})
	var got []string
	for _, order := range [][]schedulingClass{q.joinRun(), q.joinRun()} {
		assert.Equal(t, classAloneLate, order[3])
		for _, k := range order {
			got = append(got, fmt.Sprint(k))
		}
	}
	assert.Equal(
		t, []string{"0", "1", "2", "3", "0", "2", "1", "3"}, got, "only the first run begins with those that run together",
	)
	got = nil
	for _, k := range []schedulingClass{classParallel, classAlone, classAloneLate} {
		for test, some, _ := q.takeNext(k); some; test, some, _ = q.takeNext(k) {
			got = append(got, test.ID)
		}
	}
	assert.Equal(t, []string{"long", "a", "long-alone", "b", "wary"}, got)
}

// Tests that are to be first wait for what they build on, and for nothing else; one that keeps the whole
// machine busy is not put before others.
func TestSomeRunFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var began []string
		seen := func(ct *T) {
			mu.Lock()
			began = append(began, ct.test.ID)
			mu.Unlock()
			time.Sleep(time.Second)
		}
		builds := func(test Test, on string) Test { test.BuildsOn = []string{on}; return test }
		wary := alone(core("wary", seen))
		wary.Priority = Late
		q := NewQueue([]Test{
			core("base", seen), core("a", seen), builds(core("b", seen), "base"), core("c", seen), alone(core("d", seen)),
			builds(alone(core("e", seen)), "base"), alone(core("f", seen)), wary,
		})
		q.RunFirst([]string{"c", "e", "f", "wary"})
		_, err := newRun(Options{Queue: q, Parallel: 1}).outcome(t.Context())
		require.NoError(t, err)
		assert.Equal(t, []string{"f", "c", "base", "e", "a", "b", "d", "wary"}, began)
	})
}

// A lab that breaks in the middle of tests, or whose CCM cannot be started, takes
// none with it.
func TestLabBreaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var broken atomic.Bool
		var told []string
		var tests []Test
		for i := range 12 {
			test := core(fmt.Sprintf("test-%d", i), func(ct *T) {
				time.Sleep(time.Second)
				if isOnLab(ct, 1) {
					broken.Store(true)
					ct.Errorf("the API server does not answer")
				}
			})
			test.Alone = i%2 == 0
			tests = append(tests, test)
		}
		whole, errs := sharing(t.Context(), t, tests, 3, func(lab int, o *Options) {
			o.Implementation.Cloud = numberedCloud(lab)
			o.Healthy = func(context.Context) error {
				if lab == 1 && broken.Load() {
					return errors.New("no route to host")
				}
				return nil
			}
			if lab == 2 {
				ccm := newFakeCCM()
				ccm.starts.Store(1)
				ccm.refuse = errors.New("no such file")
				o.Implementation.CCM = ccm
			}
			o.Observer = func(r TestReport) { told = append(told, r.ID) } // The race detector sees who calls.
		})
		require.NoError(t, errs[0])
		require.EqualError(t, errs[1], "the run was ended early: cluster or cloud do not work: no route to host")
		require.EqualError(t, errs[2], "starting the CCM: no such file")
		assert.True(t, broken.Load())
		assert.Len(t, whole.Tests, 12)
		assert.True(t, whole.Passed(), "%v %s", results(whole), whole.Unfinished)
		assert.Greater(t, len(told), 24, "what was begun on the broken lab began again")
	})
}

// When all labs break, what is missing is named, and there is no verdict.
func TestAllLabsBreak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		whole, errs := sharing(t.Context(), t, []Test{
			core("passes", passes), alone(core("fails", fails)),
		}, 2, func(_ int, o *Options) {
			o.Healthy = func(context.Context) error { return errors.New("gone") }
		})
		for _, err := range errs {
			assert.Error(t, err)
		}
		assert.Equal(t, map[string]Result{"passes": Passed}, results(whole))
		assert.Equal(t, "the run was ended early: cluster or cloud do not work: gone\nnot run: fails", whole.Unfinished)
		assert.False(t, whole.Passed())
	})
}

// What breaks a lab ends its CCM, too, and that is no crash.
func TestCCMOfABrokenLab(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		whole, _ := sharing(t.Context(), t, sleepAlone(6), 2, func(lab int, o *Options) {
			if lab == 1 {
				ccm := newFakeCCM()
				ccm.broken = true
				o.Implementation.CCM, o.Healthy = ccm, func(context.Context) error { return errors.New("gone") }
			}
		})
		assert.Empty(t, whole.Crashes)
		assert.True(t, whole.Passed(), "%v %s", results(whole), whole.Unfinished)
	})
}

// Who is given up waits for labs that are still coming up.
func TestExpectedRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue([]Test{core("a", passes)})
		q.Expect(3)
		q.joinRun()
		stood := make(chan struct{})
		go func() { q.standBack(t.Context()); close(stood) }()
		synctest.Wait()
		q.Missing()
		q.joinRun()
		synctest.Wait()
		select {
		case <-stood:
			t.Error("another run was there, that might do better")
		default:
		}
		q.leaveRun()
		<-stood
		q.Missing()
		assert.Zero(t, q.active, "nobody else was expected")
	})
}

// A CCM that is given up on one lab fails nothing that another lab's could pass;
// given up on all, it fails everything.
func TestGivenUpOnALab(t *testing.T) {
	for name, labs := range map[string]int{"one of two": 1, "both": 2} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tests := append(sleepAlone(20), core("first", passes))
				whole, errs := sharing(t.Context(), t, tests, 2, func(lab int, o *Options) {
					ccm := newFakeCCM()
					ccm.broken = lab >= 2-labs
					o.Implementation.CCM = ccm
				})
				require.NoError(t, errors.Join(errs...))
				assert.Empty(t, whole.Unfinished)
				failed := 0
				for _, r := range whole.Tests {
					if r.Result == Failed {
						failed++
						assert.Contains(t, r.Reasons[0], "the CCM is not started any more")
					}
				}
				// The first test passes about when its lab's CCM ends for the first and the
				// second time; the counting begins anew then.
				assert.GreaterOrEqual(t, len(whole.Crashes), labs*maxCrashes)
				assert.LessOrEqual(t, len(whole.Crashes), labs*maxCrashes+2)
				assert.False(t, whole.Passed())
				if labs == 1 {
					assert.LessOrEqual(t, failed, 1, "the one that ran")
				} else {
					assert.Greater(t, failed, 10)
				}
			})
		})
	}
}

func TestSharedAndInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, interrupt := context.WithCancelCause(t.Context())
		time.AfterFunc(15*time.Second, func() { interrupt(errors.New("Ctrl-C")) })
		whole, errs := sharing(ctx, t, sleepAlone(6), 2, nil)
		for _, err := range errs {
			assert.EqualError(t, err, "the run was ended early: Ctrl-C")
		}
		assert.Len(t, whole.Tests, 2)
		assert.Contains(t, whole.Unfinished, "the run was ended early: Ctrl-C\nnot run: test-2, ")
	})
}

func TestSkippedOnce(t *testing.T) {
	lacks := core("lacks", passes)
	lacks.Needs = []Feature{FeatureUDP}
	whole, errs := sharing(t.Context(), t, []Test{lacks, core("has", passes)}, 3, nil)
	require.NoError(t, errors.Join(errs...))
	assert.Equal(t, []string{"lacks", "has"}, ids(whole))
	assert.Equal(t, Skipped, whole.Tests[0].Result)
}

func TestMerge(t *testing.T) {
	noon := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	report := func(began time.Duration, seconds float64, tests ...string) *Report {
		r := &Report{
			Implementation: Identity{"ours", "v1"}, Cluster: Identity{"embedded", "v1.36.3"}, Seconds: seconds,
			began: noon.Add(began), Date: noon.Add(began),
		}
		for _, id := range tests {
			r.Tests = append(r.Tests, TestReport{ID: id, Profile: Node, Level: Core, Required: true, Result: Passed})
		}
		return r
	}
	with := func(r *Report, change func(*Report)) *Report { change(r); return r }
	q := NewQueue([]Test{core("a", passes), core("b", passes), core("c", passes)})
	for name, tc := range map[string]struct {
		reports    []*Report
		want       []string
		seconds    float64
		unfinished string
		crashes    []string
	}{
		"one": {
			reports: []*Report{report(0, 5, "a", "b", "c")}, want: []string{"a", "b", "c"}, seconds: 5,
		},
		"in any order": {
			reports: []*Report{report(3*time.Second, 5, "c", "a"), report(0, 4, "b")}, want: []string{"a", "b", "c"},
			seconds: 8,
		},
		"one within": {
			reports: []*Report{report(0, 10, "b"), report(time.Second, 2, "a", "c")}, want: []string{"a", "b", "c"},
			seconds: 10,
		},
		"one not there": {
			reports: []*Report{nil, report(0, 5, "a", "b", "c")}, want: []string{"a", "b", "c"}, seconds: 5,
		},
		"one not finished": {reports: []*Report{
			with(report(0, 1, "a"), func(r *Report) { r.Unfinished = "it broke" }), report(0, 5, "c", "b"),
		}, want: []string{"a", "b", "c"}, seconds: 5},
		"a test missing": {reports: []*Report{
			with(report(0, 1, "a"), func(r *Report) { r.Unfinished = "it broke" }), report(0, 5, "c"),
		}, want: []string{"a", "c"}, seconds: 5,
			unfinished: "it broke\nnot run: b"},
		"the same reason once": {reports: []*Report{
			with(report(0, 1, "a"), func(r *Report) { r.Unfinished = "Ctrl-C" }),
			with(report(0, 1), func(r *Report) { r.Unfinished = "Ctrl-C" }),
		},
			want: []string{"a"}, seconds: 1, unfinished: "Ctrl-C\nnot run: b, c"},
		"crashes of all": {reports: []*Report{
			with(report(0, 1, "a", "b"), func(r *Report) { r.Crashes = []string{"one"} }),
			with(report(0, 1, "c"), func(r *Report) { r.Crashes = []string{"two"} }),
		},
			want: []string{"a", "b", "c"}, seconds: 1, crashes: []string{"one", "two"}},
	} {
		t.Run(name, func(t *testing.T) {
			whole, err := q.Merge(tc.reports)
			require.NoError(t, err)
			assert.Equal(t, tc.want, ids(whole))
			assert.InDelta(t, tc.seconds, whole.Seconds, 0)
			assert.Equal(t, tc.unfinished, whole.Unfinished)
			assert.Equal(t, tc.crashes, whole.Crashes)
			assert.Equal(t, len(tc.want), whole.Profiles[0].Core.Statistics.Passed)
			assert.Equal(t, tc.unfinished == "" && tc.crashes == nil, whole.Passed())
			assert.Equal(t, noon, whole.Date, "the first's beginning")
		})
	}
	for want, reports := range map[string][]*Report{
		"there is no report": {nil, nil},
		"reports are of different things: {ours v1} on {embedded v1.36.3} by { }, and {ours v1} on {kind v1.36.3} by { }": {
			report(0, 1, "a"), with(report(0, 1, "b"), func(r *Report) { r.Cluster.Name = "kind" })},
		"there is a report of a that nobody asked for": {report(0, 1, "a"), report(0, 1, "a")},
		"there is a report of d that nobody asked for": {report(0, 1, "d")},
	} {
		_, err := q.Merge(reports)
		assert.EqualError(t, err, want)
	}
	// What is merged is left as it was.
	first := report(0, 1, "b", "a")
	_, err := q.Merge([]*Report{first, report(0, 1, "c")})
	require.NoError(t, err)
	assert.Equal(t, []string{"b", "a"}, ids(first))
	assert.False(t, slices.Contains(ids(first), "c"))
}
