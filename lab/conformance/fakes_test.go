package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/ccmlab/ccmlab/lab/conformance/driver/protocol"
)

// featuresOnly is a driver of which the runner asks nothing but its features.
type featuresOnly struct {
	protocol.Unanswered
	name     string
	features []Feature
}

func (c featuresOnly) Hello(context.Context, protocol.Hello) (protocol.Driver, error) {
	return protocol.Driver{Name: cmp.Or(c.name, "fake"), Features: namesOf(c.features)}, nil
}

// numberedCloud is that of a lab among several.
func numberedCloud(lab int) *Client { return clientOf(featuresOnly{name: fmt.Sprint("lab-", lab)}) }

// isOnLab tells whether a test runs with this lab's cloud.
func isOnLab(t *T, lab int) bool { return t.Cloud.Described().Name == fmt.Sprint("lab-", lab) }

// clientOf calls a driver that is in this process.
func clientOf(d protocol.Operations) *Client {
	c, err := InProcess(context.Background(), d, protocol.Hello{})
	if err != nil {
		panic(err)
	}
	return c
}

// fakeCCM crashes when told to, and always if it is broken.
type fakeCCM struct {
	crashed       chan struct{}
	broken        bool
	refuse        error // what Start returns after the first time
	starts, stops atomic.Int32
}

func newFakeCCM() *fakeCCM { return &fakeCCM{crashed: make(chan struct{}, 100)} }

func (c *fakeCCM) Start(ctx context.Context) error {
	if c.starts.Add(1) > 1 && c.refuse != nil {
		return c.refuse
	}
	if c.broken {
		c.crash()
	}
	return ctx.Err()
}

// awaitStart waits until it has been started so many times.
func (c *fakeCCM) awaitStart(t *T, times int32) {
	t.Await("another start", func(context.Context) error {
		if c.starts.Load() < times {
			return errors.New("not yet")
		}
		return nil
	})
}

func (c *fakeCCM) Stop(ctx context.Context) error {
	c.stops.Add(1)
	return ctx.Err()
}

func (c *fakeCCM) crash()                   { c.crashed <- struct{}{} }
func (c *fakeCCM) Crashed() <-chan struct{} { return c.crashed }
func (c *fakeCCM) Log(int) []string         { return []string{"\x1b[31mlast\x1b[0m words\x00"} }

// apiServer answers what the runner itself asks.
func apiServer(t *testing.T) *rest.Config {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/version" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"major":"1","minor":"36","gitVersion":"v1.36.3"}`))
	}))
	t.Cleanup(server.Close)
	return &rest.Config{Host: server.URL}
}

// newRun is a run without a cluster, for tests that ask none; it works in a
// bubble of synctest.
func newRun(o Options) *run {
	if o.Implementation.CCM == nil {
		o.Implementation.CCM = newFakeCCM()
	}
	if o.Implementation.Cloud == nil {
		o.Implementation.Cloud = clientOf(featuresOnly{})
	}
	ccm := &supervisedCCM{CCM: o.Implementation.CCM}
	if o.Queue == nil {
		o.Queue = NewQueue(Select(o.Tests, o.Profiles, o.Focus))
	}
	if o.RunBlocked {
		o.Queue.RunBlocked()
	}
	return &run{
		ccm:     ccm,
		Options: o, report: &Report{began: time.Now()},
		suite: &Suite{
			Cloud: o.Implementation.Cloud, CCM: ccm, runID: "abcd", serial: new(atomic.Int64),
			crashes: new(atomic.Int64), faults: new(faultMark), boundsFactor: o.BoundsFactor, removals: new(removals),
		},
	}
}

func (r *run) outcome(ctx context.Context) (*Report, error) {
	err := r.runQueue(ctx)
	if err != nil {
		r.report.Unfinished = err.Error()
	}
	return r.report, errors.Join(err, r.finishReport())
}

// runTests returns the report of newRun's run, which comes to its end.
func runTests(t *testing.T, o Options) *Report {
	t.Helper()
	report, err := newRun(o).outcome(t.Context())
	require.NoError(t, err)
	return report
}

// core is a core test of the Node profile.
func core(id string, run func(*T)) Test {
	return Test{ID: id, Requires: "It does " + id + ".", Source: "this test", Profile: Node, Level: Core, Run: run}
}

func extended(id string, c Capability, run func(*T)) Test {
	t := core(id, run)
	t.Level, t.Capability = Extended, c
	return t
}

func alone(t Test) Test { t.Alone = true; return t }

func passes(*T) {}

func fails(t *T) { t.Errorf("it %s", "does not") }

// sleepAlone are tests that run alone, and take ten seconds unless they are interrupted.
func sleepAlone(count int) (tests []Test) {
	for i := range count {
		tests = append(tests, alone(core(fmt.Sprintf("test-%d", i), func(t *T) {
			select {
			case <-time.After(10 * time.Second):
			case <-t.Context().Done():
			}
		})))
	}
	return tests
}

// never waits for what never comes.
func never(t *T) {
	t.Await("what never comes", func(context.Context) error { return errors.New("not yet") })
}

func results(r *Report) map[string]Result {
	m := map[string]Result{}
	for _, t := range r.Tests {
		m[t.ID] = t.Result
	}
	return m
}

func reasons(r *Report, id string) []string {
	for _, t := range r.Tests {
		if t.ID == id {
			return t.Reasons
		}
	}
	return nil
}
