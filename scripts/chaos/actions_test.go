package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/process"
)

// kind is a kind of action: a command, in which each %s is one of the choices at the same place. What is a choice more
// than once is drawn more often.
type kind struct {
	weight  int // how often it is drawn, compared with the others
	command string
	choices [][]string
}

var (
	nodes      = []string{"node-1", "node-2", "node-3", "node-4"}
	services   = []string{"chaos-1", "chaos-2", "chaos-3", "chaos-4", "chaos-5"}
	components = []string{
		"fakecloud", "fakecloud", "fakecloud", "ccm", "ccm", "ccm", "kube-apiserver", "etcd", "kube-controller-manager",
		"kube-scheduler", "lab-agent", "node/node-1", "node/node-2",
	}
	zones     = []string{"nebula-1a", "nebula-1b", "nebula-1c"}
	durations = []string{"1s", "2s", "3s", "4s", "6s", "8s", "10s"}
)

const (
	createFault      = "fakecloud faults create --for %s "
	createInstance   = "fakecloud instances create %s"
	startInstance    = "fakecloud instances start %s"
	createService    = "kubectl expose deployment web --type=LoadBalancer --port=8080 --name=%s"
	patchService     = "kubectl patch service %s --patch="
	patchHealthCheck = patchService + `{"metadata":{"annotations":{"` + contract.AnnotationHealthCheck + `":%s}},` +
		`"spec":{"externalTrafficPolicy":"%s"}}`
)

// kinds are all kinds of actions. A command that is not of lab's users is one of builtins.
var kinds = []kind{
	{6, "kill %s", [][]string{components}},
	{4, "freeze %s for %s", [][]string{components, durations}},
	{1, "fill-disk for %s", [][]string{durations}},
	{5, createFault + "%s %s", [][]string{durations, {"", "--token=ccm"}, {
		"--status=500", "--status=503", "--status=429", "--drop", "--drop --carry-out", "--delay=700ms", "--hang --every=3",
	}}},
	{2, createFault + "%s", [][]string{durations, {"--fail=chaos", "--stuck"}}}, // of instances and balancers
	{1, createFault + "--zone-outage=%s", [][]string{durations, zones}},

	{2, createInstance, [][]string{nodes}},
	{3, startInstance, [][]string{nodes}},
	{2, "fakecloud instances stop %s", [][]string{nodes}},
	{1, "fakecloud instances reboot %s", [][]string{nodes}},
	{1, "crash %s", [][]string{nodes}},
	{4, "terminate %s", [][]string{nodes}},

	{5, createService, [][]string{services}},
	{3, "kubectl delete service %s --wait=false", [][]string{services}},
	{3, `kubectl patch service %s --type=json --patch=[{"op":"replace","path":"/spec/ports/0/port","value":%s}]`,
		[][]string{services, {"8080", "8081", "8090", "8443", "9090"}}},
	{2, patchService + `{"spec":{"type":"%s"}}`, [][]string{services, {"ClusterIP", "LoadBalancer"}}},
	{1, patchHealthCheck, [][]string{services, {"null"}, {"Local", "Cluster"}}},
	{1, patchHealthCheck, [][]string{services, {`"tcp"`}, {"Cluster"}}}, // It does not go with policy Local.

	{4, "kubectl label --overwrite node %s %s", [][]string{nodes, {
		"chaos.ccmlab.io/label=true", "chaos.ccmlab.io/label-",
		corev1.LabelNodeExcludeBalancers + "=true", corev1.LabelNodeExcludeBalancers + "-",
	}}},
	{1, "kubectl scale deployment web --replicas=%s", [][]string{{"1", "2", "3", "4"}}},
}

// builtins are commands that neither kubectl nor fakecloud has.
var builtins = map[string]func(ctx context.Context, w *world, object string, during time.Duration) error{
	"kill": func(_ context.Context, w *world, component string, _ time.Duration) error {
		p, err := w.findComponent(component)
		if err != nil {
			return err
		}
		return p.Signal(syscall.SIGKILL)
	},
	"freeze": func(ctx context.Context, w *world, component string, during time.Duration) error {
		p, err := w.findComponent(component)
		if err != nil {
			return err
		}
		err = p.Signal(syscall.SIGSTOP)
		waitFor(ctx, during)
		_ = p.Signal(syscall.SIGCONT) // It may have been killed.
		return err
	},
	"fill-disk": func(ctx context.Context, w *world, _ string, during time.Duration) error {
		return w.disk.fill(ctx, during)
	},
	"crash": func(ctx context.Context, w *world, name string, _ time.Duration) error {
		id, err := w.findInstance(ctx, name)
		if err == nil {
			_, err = w.cloud.CreateFault(ctx, api.FaultCreate{
				Times: 1, Match: api.FaultMatch{Resource: id}, Effect: api.FaultEffect{Crash: true},
			})
		}
		return err
	},
	"terminate": func(ctx context.Context, w *world, name string, _ time.Duration) error {
		id, err := w.findInstance(ctx, name)
		if err == nil {
			w.ended.Store(id, true) // Also if the answer is lost.
			_, err = w.cloud.TerminateInstance(ctx, id)
		}
		return err
	},
}

// carryOut carries out an action, and returns when it is over. An error is one that may be, while all is broken.
func (w *world) carryOut(ctx context.Context, a action) error {
	words := strings.Fields(a.Do)
	object, lasting, _ := strings.Cut(strings.Join(words[1:], " "), "for ")
	during, _ := time.ParseDuration(lasting) // 0 for what is done once
	if during == 0 {                         // What lasts ends with ctx.
		ctx = context.WithoutCancel(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, during+callBound)
	defer cancel()
	if do, ok := builtins[words[0]]; ok {
		return do(ctx, w, strings.TrimSpace(object), during)
	}
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Env = append(lab.Environ(os.Environ(), w.lab.Env()), "KUBECACHEDIR="+w.lab.State.Path("kubectl"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return err
}

func (w *world) findComponent(name string) (*process.Process, error) {
	running, err := w.lab.Host.Running()
	if err == nil && running[name] == nil {
		err = fmt.Errorf("%s does not run", name)
	}
	return running[name], err
}

// findInstance returns the ID of the instance of this name that has not ended.
func (w *world) findInstance(ctx context.Context, name string) (id string, err error) {
	all, err := w.cloud.ListInstances(ctx, client.InstanceFilter{Name: name})
	for _, i := range all {
		if i.State != api.InstanceTerminated && i.State != api.InstanceTerminating {
			return i.ID, nil
		}
	}
	return "", errors.Join(err, fmt.Errorf("there is no %s", name))
}

// waitFor returns after d, or when ctx ends.
func waitFor(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// ns is the namespace of the demo and of the Services.
const ns = metav1.NamespaceDefault
