package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/kubernetes"

	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/cluster"
	_ "github.com/ccmlab/ccmlab/lab/cluster/kinds" // So that the lab's kind is known.
	"github.com/ccmlab/ccmlab/lab/process"
)

const (
	// restBound is how long what was broken may take to be well again.
	restBound = 2 * time.Minute
	// callBound is how long an action may take, upBound a lab that comes up or is completed.
	callBound = 5 * time.Second
	upBound   = 2 * time.Minute
	// supervisePeriod is how often ended components are looked for.
	supervisePeriod = 500 * time.Millisecond
)

// world is the lab that is broken, and whoever looks at it.
type world struct {
	options
	name    string
	journal *journal
	lab     *lab.Lab
	cloud   *client.Client
	kube    *kubernetes.Clientset
	disk    *smallDisk // nil where there is none
	writers []*writer
	watch   *watchers
	foreign map[string]string // what is nobody's of the cluster, as it was: by ID

	round    int
	stop     context.CancelFunc
	beside   *errgroup.Group
	mu       sync.Mutex
	frozen   map[int]*process.Process
	ended    map[string]bool // IDs of instances that were asked to end
	breaches chan error
}

func newWorld(ctx context.Context, o options, j *journal) (_ *world, err error) {
	w := &world{
		options: o, name: "chaos-" + rand.String(5), journal: j, frozen: map[int]*process.Process{},
		ended: map[string]bool{}, breaches: make(chan error, 1),
	}
	fmt.Printf("lab %s; if this is killed, `%s down --name %s` ends what it leaves\n", w.name, o.lab, w.name)
	if err := w.runLab(ctx, "up", "--nodes", strconv.Itoa(len(nodes))); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()
	if w.lab, err = lab.Open(w.name); err != nil {
		return nil, err
	}
	if w.cloud, err = w.lab.Cluster.Cloud().Client(cluster.CallerOperator); err != nil {
		return nil, err
	}
	if w.kube, err = w.lab.Cluster.Operator(); err != nil {
		return nil, err
	}
	if err := w.moveToSmallDisk(ctx); err != nil {
		return nil, err
	}
	if w.writers, err = newWriters(ctx, w.lab, w.cloud); err != nil {
		return nil, err
	}
	if w.foreign, err = createForeign(ctx, w.cloud); err != nil {
		return nil, err
	}
	beside, stop := context.WithCancel(ctx)
	w.stop = stop
	w.beside, beside = errgroup.WithContext(beside)
	if w.watch, err = w.startWatchers(beside); err != nil {
		return nil, err
	}
	w.beside.Go(func() error { return w.supervise(beside) })
	for _, writer := range w.writers {
		w.beside.Go(func() error { return writer.write(beside, w.journal) })
	}
	return w, nil
}

// close ends the lab and all that was made for it.
func (w *world) close() error {
	var err error
	if w.stop != nil {
		w.stop()
		err = w.beside.Wait()
	}
	bound, cancel := context.WithTimeout(context.Background(), upBound)
	defer cancel()
	w.thawComponent(nil)
	err = errors.Join(err, w.runLab(bound, "down"))
	if w.disk != nil {
		err = errors.Join(err, w.disk.remove())
	}
	return err
}

// runLab runs a command of lab about this one, as a person would.
func (w *world) runLab(ctx context.Context, command string, args ...string) error {
	_, err := w.askLab(ctx, command, args...)
	return err
}

// askLab is runLab that returns what is printed.
func (w *world) askLab(ctx context.Context, command string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, upBound)
	defer cancel()
	cmd := exec.CommandContext(ctx, w.options.lab, append([]string{command, "--name", w.name}, args...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = callBound
	out, err := cmd.CombinedOutput()
	if err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		err = fmt.Errorf("lab %s: %w: %s", command, err, strings.Join(lines[max(0, len(lines)-3):], " / "))
	}
	return string(out), err
}

// explain has the journal keep what the lab says of itself, before it goes.
func (w *world) explain(ctx context.Context) {
	commands := [][]string{{"status"}, {"explain", "service/web"}, {"watch", "--follow=false"}}
	for _, component := range supervised {
		commands = append(commands, []string{"logs", component, "--tail=200"})
	}
	for _, node := range nodes {
		commands = append(commands, []string{"logs", "node/" + node, "--tail=200"})
	}
	for _, command := range commands {
		said, err := w.askLab(ctx, command[0], command[1:]...)
		w.journal.add(line{What: "lab " + strings.Join(command, " "), Round: w.round, Text: said}, err)
	}
	pods, err1 := w.kube.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
	endpoints, err2 := w.kube.DiscoveryV1().EndpointSlices("default").List(ctx, metav1.ListOptions{})
	seen, err3 := json.Marshal([]any{pods, endpoints})
	w.journal.add(line{What: "pods and EndpointSlices", Round: w.round, Text: string(seen)}, errors.Join(err1, err2, err3))
}

// supervise completes the lab when a component has ended, as systemd and kubelets do on real machines.
func (w *world) supervise(ctx context.Context) error {
	tick := time.NewTicker(supervisePeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if len(w.missing()) == 0 || w.isAnyFrozen() { // What is frozen cannot be completed.
			continue
		}
		err := w.runLab(ctx, "up")
		w.journal.add(line{What: "supervisor: lab up", Round: w.round}, err)
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

func (w *world) isAnyFrozen() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.frozen) > 0
}

// runRound carries out actions, rests, and returns how long all took to be well again.
func (w *world) runRound(ctx context.Context, round int, actions []Action) (took time.Duration, err error) {
	w.round = round
	began := time.Now()
	acts, stop := context.WithCancel(ctx)
	defer stop()
	var running errgroup.Group
	for _, a := range actions {
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case err := <-w.breaches:
			return 0, &violation{round, err}
		case <-time.After(a.At - time.Since(began)):
		}
		running.Go(func() error {
			err := w.carryOut(acts, a)
			w.journal.add(line{What: "action", Round: round, Action: &a}, err)
			return nil
		})
	}
	stop() // What lasts ends with the round.
	_ = running.Wait()
	return w.rest(ctx, round)
}

// rest mends what only a hand mends, and waits until all is well.
func (w *world) rest(ctx context.Context, round int) (took time.Duration, err error) {
	began := time.Now()
	w.thawComponent(nil)
	for {
		err := w.cloud.DeleteFaults(ctx)
		if err == nil {
			err = w.checkAll(ctx)
		}
		took = time.Since(began)
		w.journal.add(line{What: "look", Round: round}, err)
		var v *violation
		switch {
		case err == nil:
			return took, nil
		case errors.As(err, &v):
			return took, &violation{round, v.error}
		case took > restBound:
			return took, &violation{round, fmt.Errorf("not well %s after the last action: %w", restBound, err)}
		}
		select {
		case <-ctx.Done():
			return took, ctx.Err()
		case err := <-w.breaches:
			return took, &violation{round, err}
		case <-time.After(time.Second):
		}
	}
}

// report tells of a violation that was seen while it happened.
func (w *world) report(format string, args ...any) {
	err := fmt.Errorf(format, args...)
	w.journal.add(line{What: "violation", Round: w.round}, err)
	select {
	case w.breaches <- err:
	default: // One is enough.
	}
}
