package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/conformance/program"
	"github.com/ccmlab/ccmlab/lab/kubediff"
	"github.com/ccmlab/ccmlab/lab/testbed"
)

// ccmToken is the name of the CCM's token in the cloud.
const ccmToken = "ccm"

// bed is a cluster of tainted Nodes with their instances, and later a CCM.
type bed struct {
	*bench
	*testbed.Bed
	ccm *testbed.CCM
}

func (b *bench) bedOptions() testbed.Options {
	// This program makes a thousand instances at once; the cloud's limit of calls a second is not measured.
	return testbed.Options{Name: "bench", Bin: b.bin, CloudFlags: []string{"--rate-limit=0"}}
}

// openBed brings a bed up, and then makes its cloud slow for the CCM.
func (b *bench) openBed(ctx context.Context) (*bed, error) {
	logProgress("setting up %d Nodes …", b.nodes)
	made, err := testbed.New(ctx, b.bedOptions())
	if err != nil {
		return nil, err
	}
	d := &bed{bench: b, Bed: made}
	if err := d.createNodes(ctx); err != nil {
		return nil, errors.Join(err, made.Close())
	}
	return d, nil
}

// createNodes makes instances and Nodes, with provider IDs if the CCM's preset needs them.
func (d *bed) createNodes(ctx context.Context) error {
	names := make([]string, d.nodes)
	for i := range names {
		names[i] = fmt.Sprintf("node-%04d", i)
	}
	instances, err := d.CreateInstances(ctx, names...)
	if err != nil {
		return err
	}
	ids := make([]string, len(names))
	for i, instance := range instances {
		ids[i], err = cluster.KubeletProviderID(
			d.preset.KubeletProviderIDs, cluster.MachineOf(instance), instance.Identities,
		)
		if err != nil {
			return err
		}
	}
	err = d.RegisterNodes(ctx, func(i int, n *corev1.Node) { n.Spec.ProviderID = ids[i] }, names...)
	if err != nil {
		return err
	}
	_, err = d.Cloud().CreateFault(ctx, api.FaultCreate{
		Match:  api.FaultMatch{Token: ccmToken},
		Effect: api.FaultEffect{DelayMilliseconds: int(latency.Milliseconds())},
	})
	return err
}

// closeBed closes the bed. If the measurement failed, it prints the bed's logs.
func (d *bed) closeBed(err *error) {
	if *err != nil && !errors.Is(*err, context.Canceled) {
		fmt.Fprint(os.Stderr, d.Logs(15))
	}
	*err = errors.Join(*err, d.Close())
}

// measureInit starts the CCM with this environment and these flags, and measures from its start until the last
// Node's taint is lifted.
func (d *bed) measureInit(ctx context.Context, env, flags []string) (v value, err error) {
	ctx, cancel := context.WithTimeout(ctx, d.bound)
	defer cancel()
	config := d.AdminConfig()
	// Half the work of JSON, which matters since this process shares the cores.
	config.ContentType = "application/vnd.kubernetes.protobuf"
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return v, err
	}
	logProgress("measuring until %d Nodes are initialised …", d.nodes)
	initialised := sets.New[string]()
	nodes := cache.NewListWatchFromClient(kube.CoreV1().RESTClient(), "nodes", "", fields.Everything())
	watched := make(chan error, 1)
	go func() {
		_, err := watchtools.UntilWithSync(ctx, nodes, &corev1.Node{}, nil, func(e watch.Event) (bool, error) {
			if n, ok := e.Object.(*corev1.Node); ok && !kubediff.IsUninitialized(n) {
				initialised.Insert(n.Name)
			}
			return initialised.Len() == d.nodes, nil
		})
		watched <- err
	}()
	if err := d.startCCM(ctx, env, flags); err != nil {
		cancel()
		<-watched //nolint:errcheck // It ends with ctx.
		return v, err
	}
	err = <-watched
	took := time.Since(d.ccm.Started())
	if errors.Is(context.Cause(ctx), context.DeadlineExceeded) && wait.Interrupted(err) {
		took, err = d.bound, nil
	}
	if err != nil {
		return v, err
	}
	v, err = d.readUsage(context.WithoutCancel(ctx))
	v.Seconds, v.Left = took.Seconds(), d.nodes-initialised.Len()
	logProgress("init: %s", v)
	return v, err
}

// measureRest measures what is used while nothing happens.
func (d *bed) measureRest(ctx context.Context) (v value, err error) {
	if err := pause(ctx, d.settle); err != nil {
		return v, err
	}
	before, err := d.readUsage(ctx)
	if err != nil {
		return v, err
	}
	logProgress("watching the CCM at rest for %s …", d.steady)
	if err := pause(ctx, d.steady); err != nil {
		return v, err
	}
	v, err = d.readUsage(ctx)
	v.Seconds, v.CPU, v.Taken.Calls = d.steady.Seconds(), v.CPU-before.CPU, v.Taken.Calls-before.Taken.Calls
	for op, n := range before.Taken.By {
		if v.Taken.By[op] -= n; v.Taken.By[op] == 0 {
			delete(v.Taken.By, op)
		}
	}
	return v, err
}

// pause is part of the measurement: nothing is awaited.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// readUsage reads the CCM's calls since its start from the cloud's audit, and its processor time and memory from
// /proc.
func (d *bed) readUsage(ctx context.Context) (v value, err error) {
	if v.Taken.By, err = d.readCalls(ctx); err != nil {
		return v, err
	}
	// How many event streams are opened does not grow with the number of Nodes.
	delete(v.Taken.By, "streamEvents")
	for _, n := range v.Taken.By {
		v.Taken.Calls += n
	}
	p, err := procfs.NewProc(d.ccm.PID)
	if err != nil {
		return v, err
	}
	stat, err := p.Stat()
	if err != nil {
		return v, err
	}
	status, err := p.NewStatus()
	v.CPU, v.Memory, v.Peak = stat.CPUTime(), int64(status.VmRSS), int64(status.VmHWM)
	return v, err
}

// readCalls reads how often the CCM called each operation. It waits until the numbers stand still, because the
// audit has a call only after its answer, a moment after its effect is visible.
func (d *bed) readCalls(ctx context.Context) (map[string]int64, error) {
	var before map[string]int64
	for range 20 {
		sums, err := d.Cloud().SumAudit(ctx, client.AuditFilter{Token: ccmToken}, api.AuditByOperation)
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
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return nil, err
		}
	}
	return before, nil
}

// startCCM starts the CCM with its own defaults, and with these flags and this environment.
func (d *bed) startCCM(ctx context.Context, env, flags []string) (err error) {
	options := testbed.CCMOptions{Path: d.bench.ccm, Defaults: true, Env: env, Flags: flags}
	if d.dialect != "" {
		if err := d.addPreset(ctx, &options); err != nil {
			return err
		}
	}
	d.ccm, err = d.StartCCM(ctx, options)
	return err
}

// presetFlags are those of a dialect's preset without which its CCM does not run. The others have it look more
// often than by default.
var presetFlags = []string{"--cloud-provider=", "--allow-untagged-cloud", "--webhook-secure-port="}

// addPreset has the CCM of a dialect's cloud run by its preset, with the admin's rights.
func (d *bed) addPreset(ctx context.Context, o *testbed.CCMOptions) error {
	cluster := d.Cluster()
	l := &lab.Lab{State: cluster.Lab, Cluster: cluster, Host: cluster.Host}
	ccm := &program.CCM{
		Env: d.preset.Environment(), ConfigTemplate: d.preset.Config, Values: l.CCMValues(d.dialect),
	}
	if err := l.FillCloudValues(ctx, ccm); err != nil {
		return err
	}
	env, err1 := ccm.Values.Fill(ccm.Env)
	config, err2 := ccm.Values.Fill([]string{ccm.ConfigTemplate})
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	o.ConfigYAML, o.Kubeconfig, o.Env = config[0], ccm.Values.Kubeconfig, append(env, o.Env...)
	for _, arg := range d.preset.Args {
		if slices.ContainsFunc(presetFlags, func(flag string) bool { return strings.HasPrefix(arg, flag) }) {
			o.Flags = append(o.Flags, arg)
		}
	}
	return nil
}

// logProgress prints a line about the progress to stderr.
func logProgress(format string, a ...any) {
	fmt.Fprintf(os.Stderr, "%s "+format+"\n", append([]any{time.Now().Format(time.TimeOnly)}, a...)...)
}
