package agent

import (
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/lab/timeline"
)

func readTimeline(t *testing.T, log timeline.Log) []string {
	t.Helper()
	entries, err := log.Read()
	require.NoError(t, err)
	lines := []string{}
	for _, e := range entries {
		lines = append(lines, string(e.Source)+" "+e.Subject+" "+e.What)
	}
	return lines
}

// record has a new recorder do something until stop is called.
func record(t *testing.T, log timeline.Log, do func(context.Context, *Recorder) error) (stop func()) {
	t.Helper()
	r, err := NewRecorder(log, "tag", slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- do(ctx, r) }()
	return func() {
		cancel()
		require.NoError(t, <-done)
	}
}

// The CCM's lock-out is told of once, after a restart of the agent too, and so is its end.
func TestCCMRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := timeline.Log{File: filepath.Join(t.TempDir(), "timeline.jsonl"), Start: time.Now()}
		picture, err := NewPicture(filepath.Join(t.TempDir(), "scene.jsonl"), slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		var why atomic.Value
		run := func(refusal string, isPictured bool, want ...string) {
			t.Helper()
			why.Store(refusal)
			stop := record(t, log, func(ctx context.Context, r *Recorder) error {
				r.Picture = picture
				return r.CCMRefusals(ctx, func(context.Context) string { return why.Load().(string) })
			})
			time.Sleep(3 * refusalPollInterval)
			stop()
			assert.Equal(t, want, readTimeline(t, log))
			thing, there := picture.Get("token/ccm")
			assert.Equal(t, isPictured, there)
			assert.True(t, !isPictured || strings.Contains(thing.Reason, refusal), thing.Reason)
		}
		run("", false, []string{}...)
		run("no such token", true, "lab token/ccm refused")
		run("no such token", true, "lab token/ccm refused")
		run("", false, "lab token/ccm refused", "lab token/ccm accepted")
		run("", false, "lab token/ccm refused", "lab token/ccm accepted")
	})
}

// An agent that starts again records what has happened since, and nothing twice.
func TestWatchAfterRestart(t *testing.T) {
	log := timeline.Log{File: filepath.Join(t.TempDir(), "timeline.jsonl"), Start: time.Now()}
	event := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: "e", Namespace: "default", UID: "u"}, Type: corev1.EventTypeWarning,
		Reason: "SyncLoadBalancerFailed", Count: 1,
		InvolvedObject: corev1.ObjectReference{Kind: "Service", Name: "web", Namespace: "default"},
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default"}, Spec: corev1.PodSpec{NodeName: "node-1"},
	}
	client := fake.NewClientset(event, pod)
	run := func(change func(), want ...string) {
		t.Helper()
		stop := record(t, log, func(ctx context.Context, r *Recorder) error { return r.Watch(ctx, client) })
		change()
		assert.EventuallyWithT(
			t, func(c *assert.CollectT) { assert.ElementsMatch(c, want, readTimeline(t, log)) }, bound,
			10*time.Millisecond,
		)
		stop()
	}
	run(func() {}, "event service/web SyncLoadBalancerFailed", "cluster pod/p scheduled")
	event.Count = 2
	_, err := client.CoreV1().Events("default").Update(t.Context(), event, metav1.UpdateOptions{})
	require.NoError(t, err)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	run(func() {
		_, err := client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{})
		require.NoError(t, err)
	}, "event service/web SyncLoadBalancerFailed", "cluster pod/p scheduled",
		"event service/web SyncLoadBalancerFailed", "cluster node/n registered")
}

func TestComponents(t *testing.T) {
	t.Parallel()
	log := timeline.Log{File: filepath.Join(t.TempDir(), "timeline.jsonl"), Start: time.Now()}
	host := process.Host{Lab: t.TempDir()}
	start := func(component string) *process.Process {
		t.Helper()
		p, err := host.Start(process.Spec{
			Component: component, Path: "/bin/sleep", Args: []string{"1000"}, LogFile: filepath.Join(host.Lab, "log"),
		})
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, process.Stop(context.Background(), 0, p)) })
		return p
	}
	run := func(change func(), want ...string) {
		t.Helper()
		stop := record(t, log, func(ctx context.Context, r *Recorder) error {
			return r.Components(ctx, host.Running, always, "late")
		})
		change()
		// Of two components, the kernel does not tell which was first to the millisecond.
		assert.EventuallyWithT(t, func(c *assert.CollectT) {
			got := readTimeline(t, log)
			assert.ElementsMatch(c, want, got)
			isEtcd := func(line string) bool { return strings.Contains(line, "/etcd ") }
			assert.Equal(c, filtered(want, isEtcd), filtered(got, isEtcd))
		}, bound, 10*time.Millisecond)
		stop()
	}
	first := start("etcd")
	start("node/node-1@i-1")
	var want []string
	run(func() {}, "lab component/etcd started")
	want = append(want, "lab component/etcd started")
	entries, err := log.Read()
	require.NoError(t, err)
	assert.WithinDuration(t, first.Started(), entries[0].Time, time.Second, "when it started, not when it was seen")

	run(func() { start("late") }, append(want, "lab component/late started")...)
	want = append(want, "lab component/late started")
	run(func() { require.NoError(t, process.Stop(t.Context(), 0, first)) }, append(want, "lab component/etcd ended")...)
	want = append(want, "lab component/etcd ended")
	run(func() { start("etcd") }, append(want, "lab component/etcd started")...)
}

func filtered(lines []string, keep func(string) bool) []string {
	return slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return !keep(line) })
}

func always(string) bool { return true }

// Components that ended and started while no agent ran are recorded by the next one, in the right
// order and each with its process.
func TestComponentsWhileNoAgentRan(t *testing.T) {
	t.Parallel()
	log := timeline.Log{File: filepath.Join(t.TempDir(), "timeline.jsonl"), Start: time.Now().Add(-time.Hour)}
	for _, name := range []string{"gone", "again"} {
		require.NoError(t, log.AddAt(log.Start, componentChange(name, componentStarted, "process 1")))
	}
	host := process.Host{Lab: t.TempDir()}
	p, err := host.Start(process.Spec{
		Component: "again", Path: "/bin/sleep", Args: []string{"1000"}, LogFile: filepath.Join(host.Lab, "log"),
	})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, process.Stop(context.Background(), 0, p)) })
	stop := record(t, log, func(ctx context.Context, r *Recorder) error {
		return r.Components(ctx, host.Running, always)
	})
	entriesOf := func(name string) (all []string) {
		entries, err := log.Read()
		require.NoError(t, err)
		for _, e := range entries {
			if e.Subject == componentPrefix+name {
				all = append(all, e.What+" "+e.Detail)
			}
		}
		return all
	}
	assert.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.Equal(c, []string{"started process 1", "ended process 1"}, entriesOf("gone"))
		assert.Equal(c, []string{"started process 1", "ended process 1", "started " + processID(p)}, entriesOf("again"))
	}, bound, 10*time.Millisecond)
	stop()
}

// All processes are scanned once, and again only when one ends or one is wanted that does not
// run.
func TestComponentsThatAreNotWanted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := timeline.Log{File: filepath.Join(t.TempDir(), "timeline.jsonl"), Start: time.Now()}
		var looked int
		var wanted atomic.Bool
		running := func() (map[string]*process.Process, error) { looked++; return nil, nil }
		stop := record(t, log, func(ctx context.Context, r *Recorder) error {
			return r.Components(ctx, running, func(string) bool { return wanted.Load() }, "ccm")
		})
		time.Sleep(time.Hour)
		synctest.Wait()
		assert.Equal(t, 1, looked)
		wanted.Store(true)
		time.Sleep(2 * componentPollInterval)
		synctest.Wait()
		assert.Equal(t, 3, looked)
		stop()
	})
}
