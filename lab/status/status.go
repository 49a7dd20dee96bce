// Package status says what there is of a lab at one moment, from the cloud, the cluster and
// /proc: of one lab (Of), or of all of a user's in brief (List). Snapshot, the Nodes and
// the Services in it, is what compare and explain begin with, too; the package imports no
// other view.
package status

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/cluster/local"
	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/lab/state"
)

// Status is a lab at one moment. Its JSON is a contract: fields are added, never
// renamed.
type Status struct {
	Name string `json:"name"`
	// Cluster is the kind of cluster: embedded, kind or external.
	Cluster string `json:"cluster"`
	// CloudProvider is external or none.
	CloudProvider string `json:"cloudProvider"`
	// State is "running", "incomplete" (something that should run does not)
	// or "stopped" (nothing runs, the folder is there).
	State      string              `json:"state"`
	CloudURL   string              `json:"cloudURL"`
	Kubeconfig string              `json:"kubeconfig"`
	Components []cluster.Component `json:"components"`
	Nodes      []Node              `json:"nodes"`
	Services   []Service           `json:"services"`
	// Problems are what could not be found out, and why.
	Problems []string `json:"problems,omitempty"`
}

// statusBound is how long everything together may take to answer.
const statusBound = 5 * time.Second

// Of looks at everything of a lab; what does not answer becomes a problem in the status.
func Of(ctx context.Context, l *lab.Lab) (*Status, error) {
	st := &Status{
		Name: l.State.Name, Cluster: l.Kind(), CloudProvider: l.CloudProvider(), CloudURL: l.Cluster.Cloud().URL,
		Kubeconfig: l.Cluster.Kubeconfig(),
		Nodes:      []Node{}, Services: []Service{},
	}
	ctx, cancel := context.WithTimeout(ctx, statusBound)
	defer cancel()
	var err error
	if st.Components, err = l.Components(ctx); err != nil {
		return nil, err
	}
	if st.State = lab.StateOf(st.Components); st.State == cluster.StateStopped {
		return st, nil
	}
	kube, err := l.Cluster.Observer()
	if err == nil {
		err = st.addCluster(ctx, l, kube)
	}
	if err != nil {
		st.Problems = append(st.Problems, strings.Split(err.Error(), "\n")...)
	}
	if isRunning(st.Components, local.ComponentCCM) {
		if why := l.CCMRefusal(ctx); why != "" { // Whatever else is wrong may come of it.
			st.Problems = slices.Insert(st.Problems, 0, "the cloud refuses the CCM: "+why)
		}
	}
	if st.Problems = append(l.PausedProcesses(), st.Problems...); len(st.Problems) > 0 {
		st.State = lab.StateIncomplete
	}
	if dir := l.State.Path(); process.IsDiskFull(dir) {
		st.Problems = append(
			st.Problems, "the disk of "+dir+" is full: free some space, then `lab up` completes the lab",
		)
	}
	return st, nil
}

func isRunning(components []cluster.Component, name string) bool {
	return slices.ContainsFunc(components, func(c cluster.Component) bool {
		return c.Name == name && c.State == cluster.StateRunning
	})
}

// addCluster adds the Nodes and the Services. Its error names each thing that could not be
// found out, one a line.
func (st *Status) addCluster(ctx context.Context, l *lab.Lab, kube kubernetes.Interface) error {
	s := TakeSnapshot(ctx, kube, l.Cloud, l.Tag())
	st.Nodes, st.Services = s.Nodes, s.Services
	if s.NodesErr != nil {
		return fmt.Errorf("nodes: %w", sayNoAnswerInTime(ctx, s.NodesErr))
	}
	errs := []error{st.addMachinesWithoutNode(ctx, l)}
	for _, list := range []struct {
		what string
		err  error
	}{{"services", s.ServicesErr}, {"load balancers", s.BalancersErr}, {"endpoints", s.EndpointsErr}} {
		if list.err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", list.what, sayNoAnswerInTime(ctx, list.err)))
		}
	}
	return errors.Join(errs...)
}

// registrationGrace is how long a kubelet may take to create its Node.
const registrationGrace = 15 * time.Second

// addMachinesWithoutNode makes a problem of each running instance that has no Node, though
// its machine has been up for long enough.
func (st *Status) addMachinesWithoutNode(ctx context.Context, l *lab.Lab) error {
	if !l.Cluster.Traits().HollowNodes {
		return nil
	}
	machines, err := l.Cluster.Machines(ctx)
	if err != nil {
		return fmt.Errorf("machines: %w", err)
	}
	up := map[string]string{} // names, by instance
	for m, r := range machines {
		has := slices.ContainsFunc(st.Nodes, func(n Node) bool { return n.Name == m.Name })
		if p, ok := r.(*process.Process); ok && !has && time.Since(p.Started()) > registrationGrace {
			up[m.ID] = m.Name
		}
	}
	if len(up) == 0 {
		return nil
	}
	cloud, err := l.Cloud()
	if err != nil {
		return fmt.Errorf("instances: %w", err)
	}
	running, err := cloud.ListInstances(
		ctx, client.InstanceFilter{Tags: []string{l.Tag()}, States: []api.InstanceState{api.InstanceRunning}},
	)
	if err != nil {
		return fmt.Errorf("instances: %w", sayNoAnswerInTime(ctx, err))
	}
	for _, i := range running {
		if name := up[i.ID]; name != "" {
			st.Problems = append(st.Problems, fmt.Sprintf(
				"instance %s runs and has no Node; `lab explain node/%[1]s --name %[2]s` says why", name, l.State.Name,
			))
		}
	}
	return nil
}

// sayNoAnswerInTime replaces an error that means that no answer came within statusBound. client-go's
// rate limiter gives up before the bound, with words of its own.
func sayNoAnswerInTime(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil && !errors.Is(err, context.DeadlineExceeded) &&
		!strings.Contains(err.Error(), "would exceed context deadline") {
		return err
	}
	return errors.New("no answer in time")
}

// Listed is a lab of this user's. Its JSON is a contract: fields are added,
// never renamed.
type Listed struct {
	Name string `json:"name"`
	// Cluster is the kind of cluster.
	Cluster string `json:"cluster,omitempty"`
	// State is running, incomplete, stopped, unknown or leftover.
	State string `json:"state"`
	// Slot X has 127.X.0.0/16; 0 for a lab in containers. Network is what the lab
	// has for itself.
	Slot    int    `json:"slot,omitempty"`
	Network string `json:"network,omitempty"`
	// Processes are those on this machine.
	Processes int        `json:"processes"`
	StartedAt *time.Time `json:"startedAt,omitempty"`
	Folder    string     `json:"folder"`
	Problem   string     `json:"problem,omitempty"`
}

// List looks at all labs of this user, by name. It reads records and /proc and calls no
// API, so that a lab that hangs keeps nobody waiting.
func List(ctx context.Context) ([]Listed, error) {
	found, err := lab.Find()
	if err != nil {
		return nil, err
	}
	processes, err := process.All()
	if err != nil {
		return nil, err
	}
	running := map[string]int{}
	for _, p := range processes {
		running[p.Lab]++
	}
	ctx, cancel := context.WithTimeout(ctx, statusBound)
	defer cancel()
	all := []Listed{}
	for _, f := range found {
		entry := Listed{Name: f.Name, Folder: f.Dir, Processes: running[f.Dir], State: lab.StateLeftover}
		if !f.Leftover {
			if err := entry.inspect(ctx); err != nil {
				entry.State, entry.Problem = lab.StateUnknown, err.Error()
			}
		}
		all = append(all, entry)
	}
	return all, nil
}

func (e *Listed) inspect(ctx context.Context) error {
	st, err := state.OpenDir(e.Folder)
	if err != nil {
		return err
	}
	e.Cluster, e.StartedAt = cluster.KindName(st.Cluster), &st.StartedAt
	e.Slot, e.Network = st.Slot, cluster.RecordedNetwork(st)
	l, err := lab.Attach(st)
	if err != nil {
		return err
	}
	components, err := l.Components(ctx)
	e.State = lab.StateOf(components)
	if e.State == cluster.StateRunning && len(l.PausedProcesses()) > 0 {
		e.State = lab.StateIncomplete
	}
	return err
}
