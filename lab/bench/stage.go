package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/bench/harness"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/identity"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/conformance/program"
	"github.com/ccmlab/ccmlab/lab/testbed"
)

// ccmToken is the name of the CCM's token in the cloud.
const ccmToken = "ccm"

// stage is a bed with tainted Nodes and their instances. Each figure has a stage of
// its own, so that it does not depend on what another left behind.
type stage struct {
	*bench
	name      string // of the figure
	bed       *testbed.Bed
	watcher   kubernetes.Interface
	nodes     []string
	instances []api.Instance
	ccm       *testbed.CCM
	profiles  sync.WaitGroup
}

// setUp makes a stage with Nodes and instances, and then makes the cloud slow for the CCM. edit
// may change a Node before it is made.
func (b *bench) setUp(ctx context.Context, name string, edit func(int, *corev1.Node)) (*stage, error) {
	harness.LogProgress("%s: setting up %s nodes …", name, formatInt(b.size.Nodes))
	bed, err := testbed.New(ctx, b.bedOptions())
	if err != nil {
		return nil, err
	}
	s := &stage{bench: b, name: name, bed: bed}
	if err := s.populateBed(ctx, edit); err != nil {
		return nil, errors.Join(err, bed.Close())
	}
	return s, nil
}

func (s *stage) populateBed(ctx context.Context, edit func(int, *corev1.Node)) (err error) {
	config := s.bed.AdminConfig()
	// Half the work of JSON, which matters since this process shares the cores.
	config.ContentType = "application/vnd.kubernetes.protobuf"
	if s.watcher, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	for i := range s.size.Nodes {
		s.nodes = append(s.nodes, fmt.Sprintf("node-%04d", i))
	}
	if s.instances, err = s.bed.CreateInstances(ctx, s.nodes...); err != nil {
		return err
	}
	if err := s.registerNodes(ctx, edit); err != nil {
		return err
	}
	_, err = s.bed.Cloud().CreateFault(ctx, api.FaultCreate{
		Match:  api.FaultMatch{Token: ccmToken},
		Effect: api.FaultEffect{DelayMilliseconds: int(latency.Milliseconds())},
	})
	return err
}

// registerNodes registers the Nodes, with provider IDs if the CCM's preset needs them.
func (s *stage) registerNodes(ctx context.Context, edit func(int, *corev1.Node)) (err error) {
	ids := make([]string, len(s.nodes))
	for i, instance := range s.instances {
		ids[i], err = cluster.KubeletProviderID(
			s.preset.KubeletProviderIDs, cluster.MachineOf(instance), instance.Identities,
		)
		if err != nil {
			return err
		}
	}
	return s.bed.RegisterNodes(ctx, func(i int, n *corev1.Node) {
		n.Spec.ProviderID = ids[i]
		if edit != nil {
			edit(i, n)
		}
	}, s.nodes...)
}

// close closes the bed. If the figure failed, it prints the bed's logs.
func (s *stage) close(err *error) {
	s.profiles.Wait()
	if *err != nil && !errors.Is(*err, context.Canceled) {
		fmt.Fprint(os.Stderr, s.bed.Logs(15))
	}
	*err = errors.Join(*err, s.bed.Close())
}

// startCCM starts the CCM with its own defaults, and with these flags and this environment.
func (s *stage) startCCM(ctx context.Context, env []string, flags ...string) (err error) {
	options := testbed.CCMOptions{Path: s.bench.ccm, Defaults: true, Env: env, Flags: flags}
	if s.dialect != "" {
		if err := s.addPreset(ctx, &options); err != nil {
			return err
		}
	}
	s.ccm, err = s.bed.StartCCM(ctx, options)
	if err == nil && s.profile != "" {
		s.profiles.Go(func() { s.takeProfile(ctx) })
	}
	return err
}

// presetFlags are those of a dialect's preset without which its CCM does not run. The others have it look more
// often than by default.
var presetFlags = []string{"--cloud-provider=", "--allow-untagged-cloud", "--webhook-secure-port="}

// addPreset has the CCM of a dialect's cloud run by its preset, with the admin's rights.
func (s *stage) addPreset(ctx context.Context, o *testbed.CCMOptions) error {
	values, err := s.presetValues(ctx)
	if err != nil {
		return err
	}
	env, err := values.Fill(s.preset.Environment())
	if err != nil {
		return err
	}
	config, err := values.Fill([]string{s.preset.Config})
	if err != nil {
		return err
	}
	o.ConfigYAML = config[0]
	o.Kubeconfig, o.Env = s.bed.Kubeconfig(), append(env, o.Env...)
	for _, arg := range s.preset.Args {
		if slices.ContainsFunc(presetFlags, func(flag string) bool { return strings.HasPrefix(arg, flag) }) {
			o.Flags = append(o.Flags, arg)
		}
	}
	return nil
}

// presetValues are those that the presets of dialects name, with a key pair of the CCM's token.
func (s *stage) presetValues(ctx context.Context) (v program.Values, err error) {
	_, host, _ := strings.Cut(s.bed.DialectURL(s.dialect), "://")
	v = program.Values{
		DialectURL: s.bed.DialectURL(s.dialect), DialectHost: host, CAFile: s.bed.CloudCA, TokenFile: s.bed.CCMToken,
		Project: s.bed.Project, NeedsRoutes: "false", KeyFile: s.bed.CCMToken + "-key.pem",
	}
	networks, err := s.bed.Cloud().ListNetworks(ctx, client.NetworkFilter{Name: "default"})
	if err != nil {
		return v, err
	}
	for _, n := range networks {
		v.NetworkCode = identity.Code(n.Serial)
	}
	project, err := s.bed.Cloud().Project(ctx)
	if err != nil {
		return v, err
	}
	v.KeyFingerprint, err = cluster.EnsureTokenKey(ctx, s.bed.Cloud(), project.ID, ccmToken, v.KeyFile)
	return v, err
}

// takeProfile writes a CPU profile of the CCM. A CCM that has none is no failure.
func (s *stage) takeProfile(ctx context.Context) {
	profile, err := s.ccm.Get(ctx, "/debug/pprof/profile?seconds=10")
	if err == nil {
		err = os.WriteFile(
			filepath.Join(s.profile, strings.ReplaceAll(s.name, " ", "-")+".pprof"), []byte(profile), 0o644,
		)
	}
	if err != nil {
		harness.LogProgress("%s: no profile: %v", s.name, err)
	}
}

// setUpInitialised makes a stage whose CCM has lifted all taints and come to rest.
func (b *bench) setUpInitialised(ctx context.Context, name string) (*stage, error) {
	s, err := b.setUp(ctx, name, nil)
	if err != nil {
		return nil, err
	}
	w, err := s.watchNodes(s.nodes, isInitialised)(ctx)
	if err == nil {
		err = s.startCCM(ctx, nil, b.flags...)
	}
	if err == nil {
		_, err = w.awaitAll(ctx, b.size.PeerBound)
	}
	if err == nil && w.countPending() > 0 {
		err = fmt.Errorf(
			"%d of %d nodes were not initialised within %s", w.countPending(), len(s.nodes), b.size.PeerBound,
		)
	}
	if err == nil {
		harness.LogProgress("%s: resting for %s …", name, b.size.Settle)
		err = harness.Sleep(ctx, b.size.Settle)
	}
	if err != nil {
		s.close(&err)
		return nil, err
	}
	return s, nil
}

// usage is what has been used up to a moment.
type usage struct {
	at    time.Time
	calls map[string]int64 // by operation
	cpu   map[string]time.Duration
	busy  time.Duration // of the whole machine
}

// readUsage reads the CCM's calls from the cloud's audit, and CPU times from /proc.
func (s *stage) readUsage(ctx context.Context) (usage, error) {
	u := usage{at: time.Now(), cpu: map[string]time.Duration{}, busy: harness.BusyTime()}
	pids, err := s.bed.Processes()
	if err != nil {
		return u, err
	}
	for name, pid := range pids {
		u.cpu[name] = harness.CPUOf(pid)
	}
	u.cpu[loadTool] = harness.OwnCPU()
	u.calls, err = s.readCalls(ctx)
	return u, err
}

// readCalls reads how often the CCM called each operation. It waits until the numbers stand
// still, because the audit has a call only after its answer, a moment after its effect is visible.
func (s *stage) readCalls(ctx context.Context) (map[string]int64, error) {
	var before map[string]int64
	for range 20 {
		sums, err := s.bed.Cloud().SumAudit(ctx, client.AuditFilter{Token: ccmToken}, api.AuditByOperation)
		if err != nil {
			return nil, err
		}
		now := map[string]int64{}
		for _, sum := range sums {
			now[sum.Operation] = sum.Calls
		}
		if before != nil && maps.Equal(now, before) {
			break
		}
		before = now
		if err := harness.Sleep(ctx, 100*time.Millisecond); err != nil {
			return nil, err
		}
	}
	return before, nil
}

// loadTool is the name of this program among the processes.
const loadTool = "this benchmark"

// streamOperation opens the event stream. It is counted apart, since its calls do not grow with
// the number of nodes.
const streamOperation = "streamEvents"

// usageDelta is what was used between two moments.
type usageDelta struct {
	Calls   int64              `json:"calls"`
	Streams int64              `json:"eventStreams"` // opened, and not among Calls
	By      map[string]int64   `json:"callsByOperation,omitempty"`
	CPU     map[string]float64 `json:"cpuSeconds"` // by process
	Seconds float64            `json:"seconds"`
}

func (u usage) since(before usage) usageDelta {
	t := usageDelta{By: map[string]int64{}, CPU: map[string]float64{}, Seconds: u.at.Sub(before.at).Seconds()}
	for op, n := range u.calls {
		switch n -= before.calls[op]; {
		case n == 0:
		case op == streamOperation:
			t.Streams = n
		default:
			t.By[op], t.Calls = n, t.Calls+n
		}
	}
	others := u.busy - before.busy
	for name, cpu := range u.cpu {
		spent := cpu - before.cpu[name]
		t.CPU[name], others = spent.Seconds(), others-spent
	}
	t.CPU["others"] = max(0, others.Seconds())
	return t
}

// String shows it in one line.
func (t usageDelta) String() string {
	var calls, cpu []string
	for _, op := range slices.Sorted(maps.Keys(t.By)) {
		calls = append(calls, fmt.Sprintf("%s %d", op, t.By[op]))
	}
	for _, name := range slices.Sorted(maps.Keys(t.CPU)) {
		cpu = append(cpu, fmt.Sprintf("%s %.1f", name, t.CPU[name]))
	}
	return fmt.Sprintf("calls: %s; event streams opened: %d; CPU seconds of %.1f: %s",
		cmp.Or(strings.Join(calls, ", "), "none"), t.Streams, t.Seconds, strings.Join(cpu, ", "))
}
