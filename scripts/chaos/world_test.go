package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/kubernetes"

	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/cluster"
	_ "github.com/ccmlab/ccmlab/lab/cluster/kinds" // So that the lab's kind is known.
)

const (
	// restBound is how long what was broken may take to be well again.
	restBound = 2 * time.Minute
	// callBound is how long an action may take, upBound a lab that comes up or is completed.
	callBound = 10 * time.Second
	upBound   = 2 * time.Minute
	// supervisePeriod is how often ended components are looked for.
	supervisePeriod = 500 * time.Millisecond
)

// world is the lab that is broken, and whoever looks at it.
type world struct {
	name    string
	journal *journal
	lab     *lab.Lab
	cloud   *client.Client
	kube    *kubernetes.Clientset
	disk    smallDisk
	writers []*writer
	events  *follower
	foreign []string // what is nobody's of the cluster, as it was
	ended   sync.Map // IDs of instances that were asked to end

	// ctx ends with the world, by what fail is called with: a violation that is seen while it happens.
	ctx    context.Context
	fail   context.CancelCauseFunc
	beside sync.WaitGroup
}

func newWorld(ctx context.Context, j *journal) (*world, error) {
	w := &world{name: "chaos-" + rand.String(5), journal: j}
	w.ctx, w.fail = context.WithCancelCause(ctx)
	fmt.Printf("lab %s; if this is killed, `lab down --name %s` ends what it leaves\n", w.name, w.name)
	if err := w.start(ctx); err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

func (w *world) start(ctx context.Context) (err error) {
	if _, err := w.runLab(ctx, "up", "--nodes", strconv.Itoa(len(nodes))); err != nil {
		return err
	}
	if w.lab, err = lab.Open(w.name); err != nil {
		return err
	}
	if w.cloud, err = w.lab.Cluster.Cloud().Client(cluster.CallerOperator); err != nil {
		return err
	}
	if w.kube, err = w.lab.Cluster.Operator(); err != nil {
		return err
	}
	if err := w.moveToSmallDisk(ctx); err != nil {
		return err
	}
	if w.writers, err = newWriters(ctx, w.lab, w.cloud); err != nil {
		return err
	}
	if err := createForeign(ctx, w.cloud); err != nil {
		return err
	}
	if w.foreign, err = listForeign(ctx, w.cloud); err != nil {
		return err
	}
	if err := w.startWatchers(); err != nil {
		return err
	}
	w.beside.Go(w.supervise)
	for _, writer := range w.writers {
		w.beside.Go(func() { writer.write(w.ctx, w.journal) })
	}
	return nil
}

// close ends the lab and all that was made for it.
func (w *world) close() error {
	w.fail(nil)
	w.beside.Wait()
	w.thawAll()
	_, err := w.runLab(context.Background(), "down")
	return errors.Join(err, w.disk.remove())
}

// runLab runs a command of lab about this one, as a person would, and returns what is printed.
func (w *world) runLab(ctx context.Context, command string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, upBound)
	defer cancel()
	cmd := exec.CommandContext(ctx, "lab", append([]string{command, "--name", w.name}, args...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = callBound
	out, err := cmd.CombinedOutput()
	if err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		err = fmt.Errorf("lab %s: %w: %s", command, err, strings.Join(lines[max(0, len(lines)-3):], " / "))
	}
	return string(out), err
}

// explain has the journal keep what the lab says of itself, before it goes. Its logs are copied beside the journal.
func (w *world) explain(ctx context.Context) {
	for _, command := range [][]string{{"status"}, {"explain", "service/web"}, {"watch", "--follow=false"}} {
		said, err := w.runLab(ctx, command[0], command[1:]...)
		w.journal.add(err, "lab "+strings.Join(command, " "), "text", said)
	}
	pods, err1 := w.kube.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
	endpoints, err2 := w.kube.DiscoveryV1().EndpointSlices(ns).List(ctx, metav1.ListOptions{})
	err3 := os.CopyFS(filepath.Join(w.journal.dir, w.name), os.DirFS(w.lab.State.Path("logs")))
	w.journal.add(errors.Join(err1, err2, err3), "pods and EndpointSlices", "pods", pods, "endpoints", endpoints)
}

// supervise completes the lab when a component has ended, as systemd and kubelets do on real machines.
func (w *world) supervise() {
	for w.ctx.Err() == nil {
		waitFor(w.ctx, supervisePeriod)
		if len(w.missing()) == 0 || len(w.lab.PausedProcesses()) > 0 { // What is frozen cannot be completed.
			continue
		}
		_, err := w.runLab(w.ctx, "up")
		w.journal.add(err, "supervisor: lab up")
	}
}

// supervised are the components that nobody but the supervisor starts again.
var supervised = []string{"fakecloud", "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "lab-agent"}

// missing are the components that do not run.
func (w *world) missing() []string {
	running, err := w.lab.Host.Running()
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(supervised), func(c string) bool { return running[c] != nil })
}

// thawAll lets all frozen processes go on.
func (w *world) thawAll() {
	if w.lab == nil {
		return
	}
	running, _ := w.lab.Host.Running()
	for _, p := range running {
		if p.Paused() {
			_ = p.Signal(syscall.SIGCONT)
		}
	}
}

// runRound carries out a history, rests, and returns how long all took to be well again. An error is a violation,
// unless the world was ended.
func (w *world) runRound(round uint64, h history) (well time.Duration, err error) {
	w.journal.add(nil, "round", "number", round)
	began := time.Now()
	acts, stop := context.WithCancel(w.ctx)
	defer stop()
	var running sync.WaitGroup
	for _, a := range slices.Concat(beginning(), h) {
		waitFor(w.ctx, a.At-time.Since(began))
		if w.ctx.Err() != nil {
			break
		}
		running.Go(func() { w.journal.add(w.carryOut(acts, a), "action: "+shortCommand(a.Do), "action", a) })
	}
	stop() // What lasts ends with the round.
	running.Wait()
	ended := time.Now()
	err = w.rest()
	return time.Since(ended), err
}

// shortCommand is what the journal counts an action as: its first three words.
func shortCommand(command string) string {
	words := strings.Fields(command)
	return strings.Join(words[:min(3, len(words))], " ")
}

// rest mends what only a hand mends, and waits until all is well.
func (w *world) rest() error {
	ctx, cancel := context.WithTimeoutCause(w.ctx, restBound, fmt.Errorf("it took more than %s", restBound))
	defer cancel()
	w.thawAll()
	err := cluster.PollEvery(ctx, time.Second, "all to be well", func(ctx context.Context) error {
		err := w.cloud.DeleteFaults(ctx)
		if err == nil {
			err = w.checkAll(ctx)
		}
		w.journal.add(err, "look")
		return err
	})
	if seen := context.Cause(w.ctx); seen != nil {
		return seen
	}
	return err
}

// report tells of a violation that is seen while it happens.
func (w *world) report(format string, args ...any) {
	err := fmt.Errorf(format, args...)
	w.journal.add(err, "violation")
	w.fail(err)
}
