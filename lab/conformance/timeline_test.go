package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/ccmlab/ccmlab/lab/conformance/driver/protocol"
	"github.com/ccmlab/ccmlab/lab/conformance/record"
)

// journaled is a cloud of records that keeps a journal. Whoever reads it gets
// some calls twice.
type journaled struct {
	hitCloud
	mu        sync.Mutex
	calls     []Call
	balancers []Balancer
}

func (c *journaled) CallsSince(_ context.Context, since time.Time) ([]Call, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(c.calls), func(one Call) bool { return one.Answered.Before(since) }), nil
}

func (c *journaled) called(operation, resource, answer string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, Call{
		ID: fmt.Sprint(len(c.calls)), Began: time.Now(), Answered: time.Now(), Operation: operation, Resource: resource,
		Answer: answer, Failed: answer != "200",
	})
}

func (c *journaled) Hello(context.Context, protocol.Hello) (protocol.Driver, error) {
	return protocol.Driver{Name: "journaled", Features: namesOf([]Feature{RoleCallJournal})}, nil
}

func (c *journaled) ListCalls(ctx context.Context, since time.Time) (protocol.CallList, error) {
	calls, err := c.CallsSince(ctx, since)
	return protocol.CallList{Calls: calls}, err
}

func (c *journaled) ListBalancers(context.Context) (protocol.BalancerList, error) {
	return protocol.BalancerList{Balancers: c.balancers}, nil
}

func (c *journaled) CreateInstance(_ context.Context, spec InstanceSpec) (Instance, error) {
	time.Sleep(time.Second)
	return Instance{ID: "i-" + spec.Name[:1], Name: spec.Name, ProviderID: "x://i-w"}, nil
}

func (c *journaled) TerminateInstance(context.Context, string) error { return errors.New("no") }

// said has words in files.
type said struct {
	CCM
	files []string
}

func (s said) LogFiles() []string { return s.files }

// entryLines are a timeline's entries as lines.
func entryLines(line *record.Timeline) (lines []string) {
	for _, e := range line.Entries {
		text := fmt.Sprintf("%.1f %s", e.At.Sub(line.Began).Seconds(), e.Source)
		if e.Failed {
			text += "!"
		}
		if e.Beside {
			text += "?"
		}
		text = strings.TrimSuffix(text+" "+e.Subject, " ") + ": " + e.Text
		if e.Times > 1 {
			text += fmt.Sprintf(" ×%d", e.Times)
		}
		lines = append(lines, text)
	}
	return lines
}

// bench is a recorder, and what it looks at, in a bubble of synctest.
type bench struct {
	*testing.T
	kube  *fake.Clientset
	cloud *journaled
	log   string
	run   *run
}

func runBench(t *testing.T, do func(b *bench)) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	synctest.Test(t, func(t *testing.T) {
		b := &bench{T: t, kube: fake.NewClientset(), cloud: &journaled{hitCloud: hitCloud{hits: 1}}, log: filepath.Join(t.TempDir(), "ccm.log")}
		require.NoError(t, os.WriteFile(b.log, []byte("of an earlier run\n"), 0o600))
		b.run = newRun(Options{Implementation: Implementation{Cloud: clientOf(b.cloud)}})
		b.run.suite.Kube = b.kube
		b.run.recorder = record.Start(b.kube, b.cloud, said{files: []string{b.log}}, "abcd")
		synctest.Wait()
		time.Sleep(time.Second / 10) // What happens at a full second is not read at the same time.
		do(b)
	})
}

func (b *bench) test(id string, alone bool) *T {
	test := core(id, nil)
	test.Alone = alone
	trace := b.run.recorder.Begin(id, alone, time.Now())
	return b.run.suite.newT(b.Context(), test, trace)
}

func (b *bench) says(format string, args ...any) {
	f, err := os.OpenFile(b.log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	require.NoError(b, err)
	_, err = fmt.Fprintf(f, format, args...)
	require.NoError(b, errors.Join(err, f.Close()))
}

// One test, with everything that can happen, in the order in which it did.
func TestTimeline(t *testing.T) {
	runBench(t, func(b *bench) {
		ctx := b.Context()
		one := b.test("one", true)
		name := one.Name("worker")
		i := one.NewInstance(name)
		assert.Equal(t, "i-w", i.ID)
		node, err := b.kube.CoreV1().Nodes().Create(ctx, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"a": "1"}},
			Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "wait", Effect: corev1.TaintEffectNoSchedule}}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		synctest.Wait()
		time.Sleep(time.Second)
		for range 3 {
			b.cloud.called("listInstances", "", "200")
		}
		b.cloud.called("getInstance", "i-w", "404 not-found")
		b.says("E%s 123 node.go:7] oh \x1b[31m%s\x00\n  and more", time.Now().Format("0102 15:04:05.000000"), name)
		node = node.DeepCopy()
		node.Spec.Taints, node.Spec.ProviderID, node.Labels = nil, "x://i-w", map[string]string{"a": "2"}
		node.Status.Conditions = []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "Quiet"},
		}
		node, err = b.kube.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{})
		require.NoError(t, err)
		synctest.Wait()
		node = node.DeepCopy()
		node.Status.Conditions[0].LastHeartbeatTime = metav1.Now()
		_, err = b.kube.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{})
		require.NoError(t, err)
		synctest.Wait()
		fault, err := one.Cloud.
			InjectFault(ctx, Fault{Kind: FaultThrottled, On: []Thing{Instances, Balancers}})
		require.NoError(t, err)
		time.Sleep(time.Second)
		require.NoError(t, fault.Lift(ctx))
		require.NoError(t, fault.Lift(ctx), "a second time does nothing")
		require.NoError(t, b.kube.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{}))
		synctest.Wait()
		require.Error(t, one.Cloud.TerminateInstance(ctx, i.ID))
		one.Errorf("it does not")
		one.trace.End(true)
		time.Sleep(time.Minute) // Long settled.
		line := b.run.recorder.Close()["one"]
		assert.Equal(t, 3*time.Second, line.Took)
		assert.Equal(t, []string{
			"0.0 step: creating instance " + name + ": i-w",
			"1.0 node " + name + ": registered; + taint wait:NoSchedule",
			"2.0 node! " + name +
				": − taint wait:NoSchedule; provider ID: none → x://i-w; + label a=2; − label a=1; Ready: False (Quiet)",
			"2.0 step: injecting fault 429 on instances, balancers",
			"2.0 log!: E node.go:7] oh " + name,
			"2.0 call: listInstances → 200 ×3",
			"2.0 call! i-w (" + name + "): getInstance → 404 not-found",
			"3.0 step: lifting fault 429 on instances, balancers",
			"3.0 node " + name + ": deleted",
			"3.0 step!: terminating instance i-w: the driver, DELETE /v1/instances/i-w: no",
			"3.0 step!: failed: it does not",
		}, entryLines(line))
		assert.Equal(t, time.Second, line.Entries[0].Took)
	})
}

// Tests that run beside each other do not get each other's.
func TestTimelinesBeside(t *testing.T) {
	runBench(t, func(b *bench) {
		ctx := b.Context()
		one, two := b.test("one", false), b.test("two", false)
		service := func(t *T, uid string) {
			ns := t.Name(t.test.ID)
			svc := &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: ns},
				Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer},
			}
			t.trace.Learn(uid, "Service s")
			svc, err := b.kube.CoreV1().Services(ns).Create(ctx, svc, metav1.CreateOptions{})
			require.NoError(b, err)
			synctest.Wait()
			svc = svc.DeepCopy()
			svc.Finalizers = []string{"f"}
			svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "1.2.3.4"}}
			_, err = b.kube.CoreV1().Services(ns).Update(ctx, svc, metav1.UpdateOptions{})
			require.NoError(b, err)
			synctest.Wait()
		}
		service(one, "uid-one")
		service(two, "uid-two")
		_, err := b.kube.CoreV1().Events("one-abcd-1").Create(ctx, &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Name: "e"}, Type: "Warning", Reason: "Quota", Message: "no <more>",
			InvolvedObject: corev1.ObjectReference{Kind: "Service", Namespace: "one-abcd-1", Name: "s"},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		synctest.Wait()
		// The call comes before anybody knows whose balancer that is.
		b.cloud.called("createLoadBalancer", "lb-2", "200")
		b.cloud.called("listLoadBalancers", "", "200")
		b.says("plain words\nabout two-abcd-2/s\nabout one-abcd-1/s and two-abcd-2/s\nabout one-abcd-17/s\n")
		time.Sleep(2 * time.Second)
		b.cloud.balancers = []Balancer{{ID: "lb-2", Service: "uid-two"}, {ID: "lb-3", Service: "nobody's"}}
		_, err = one.Cloud.ListBalancers(ctx)
		require.NoError(t, err)
		one.trace.End(false)
		two.trace.End(false)
		lines := b.run.recorder.Close()
		assert.Equal(t, []string{
			"0.0 service one-abcd-1/s: created, of type LoadBalancer",
			"0.0 service one-abcd-1/s: + finalizer f; + ingress 1.2.3.4",
			"0.0 event! one-abcd-1/s: Quota: no <more>",
			"0.0 call?: listLoadBalancers → 200",
			"0.9 log?: plain words",
			"0.9 log: about one-abcd-1/s and two-abcd-2/s",
			"0.9 log?: about one-abcd-17/s",
		}, entryLines(lines["one"]))
		assert.Equal(t, []string{
			"0.0 service two-abcd-2/s: created, of type LoadBalancer",
			"0.0 service two-abcd-2/s: + finalizer f; + ingress 1.2.3.4",
			"0.0 call lb-2 (Service s): createLoadBalancer → 200",
			"0.0 call?: listLoadBalancers → 200",
			"0.9 log?: plain words",
			"0.9 log: about two-abcd-2/s",
			"0.9 log: about one-abcd-1/s and two-abcd-2/s",
			"0.9 log?: about one-abcd-17/s",
		}, entryLines(lines["two"]))
	})
}

// What tests do and wait for is told by T itself; the CCM's starts and stops by
// what keeps it.
func TestStepsOfATest(t *testing.T) {
	runBench(t, func(b *bench) {
		test := alone(core("one", func(t *T) {
			t.Must(t.CCM.Stop(t.Context()), "stopping")
			time.Sleep(time.Second)
			t.Must(t.CCM.Start(t.Context()), "starting")
			looks := 0
			t.HoldsUntil("peace", func(context.Context) error { return nil }, "dawn", func(context.Context) error {
				if looks++; looks < 11 {
					return errors.New("dark")
				}
				return nil
			})
			t.Cleanup(func(context.Context) error { time.Sleep(time.Second); t.Logf("undone"); return nil })
			never(t)
		}))
		test.Bound = 10 * time.Second
		r := newRun(Options{Tests: []Test{test}})
		r.recorder, r.ccm.beginStep = b.run.recorder, b.run.recorder.BeginStep
		var mu sync.Mutex
		var live []string
		r.recorder.OnStep = func(what string, failed bool) {
			mu.Lock()
			defer mu.Unlock()
			live = append(live, fmt.Sprint(what, " ", failed))
		}
		_, err := r.outcome(b.Context())
		require.NoError(t, err)
		assert.Equal(t, []string{
			"starting the CCM false", "stopping the CCM false", "starting the CCM false",
			"watching peace, until dawn false",
			"waiting for what never comes false",
			"failed: waited for what never comes; gave up after 10s; last: not yet true",
			"waiting for what never comes: context deadline exceeded true",
			"the test has ended; what it made is undone false", "undone false", "stopping the CCM false",
		}, live, "as it happens")
		assert.Equal(t, []string{
			"0.0 step: starting the CCM",
			"0.0 step: stopping the CCM",
			"1.0 step: starting the CCM",
			"1.0 step: watching peace, until dawn",
			"2.0 step!: waiting for what never comes: context deadline exceeded",
			"10.0 step!: failed: waited for what never comes; gave up after 10s; last: not yet",
			"10.0 step: the test has ended; what it made is undone",
			"11.0 step: undone",
			"11.0 step: stopping the CCM",
		}, entryLines(b.run.recorder.Close()["one"]))
	})
}
