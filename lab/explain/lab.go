package explain

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/timeline"
)

// explainBound keeps it quick when something does not answer; processesBound is
// for the part of it that says what runs, which a container engine may be asked.
const (
	explainBound   = 5 * time.Second
	processesBound = time.Second
)

// OfLab says why the Node or the Service (kind is KindNode or KindService) is not
// ready, or that it is. A namespace is for Services.
func OfLab(ctx context.Context, l *lab.Lab, kind, namespace, name string) (Explanation, error) {
	ctx, cancel := context.WithTimeout(ctx, explainBound)
	defer cancel()
	source, err := newSource(ctx, l)
	if err != nil {
		return Explanation{}, err
	}
	if kind == KindNode {
		source.Removed = nodeRemovals(l)
		return source.Node(ctx, name), nil
	}
	return source.Service(ctx, namespace, name), nil
}

// Names are the names of a kind that there are.
func Names(ctx context.Context, l *lab.Lab, kind string) ([]string, error) {
	source, err := newSource(ctx, l)
	if err != nil {
		return nil, err
	}
	return source.Names(ctx, kind)
}

func newSource(ctx context.Context, l *lab.Lab) (Source, error) {
	source := Source{LabName: l.State.Name, NoProvider: l.Cluster.Traits().NoCloudProvider}
	var err error
	bounded, cancel := context.WithTimeout(ctx, processesBound)
	defer cancel()
	if source.Components, err = l.Components(bounded); err != nil {
		source.Missing = append(source.Missing, fmt.Sprintf("%s: which components run: %v", Lab, err))
	} else if err := l.CheckNotStopped(source.Components); err != nil {
		return source, err
	}
	source.Processes = runningProcesses(l)
	if source.Kube, err = l.Cluster.Observer(); err != nil {
		return source, err
	}
	// The person's own token: fault rules are for admins to see.
	source.Cloud, err = l.Cluster.Cloud().Client(cluster.CallerOperator)
	return source, err
}

// runningProcesses are this machine's processes, by their components' names: what
// is not known of them is no reason not to
func runningProcesses(l *lab.Lab) map[string]Process {
	running, err := l.Host.Running()
	if err != nil {
		return nil
	}
	all := map[string]Process{}
	for name, p := range running {
		short, _, _ := strings.Cut(name, "@")
		all[short] = Process{PID: p.PID, Began: p.Started(), Paused: p.Paused()}
	}
	return all
}

// nodeRemovals is when the timeline last saw each Node deleted.
func nodeRemovals(l *lab.Lab) map[string]time.Time {
	entries, err := l.Timeline().Read()
	if err != nil {
		return nil
	}
	all := map[string]time.Time{}
	for _, e := range entries {
		if name, node := strings.CutPrefix(e.Subject, "node/"); node && e.Source == timeline.SourceCluster &&
			e.What == "removed" {
			all[name] = e.Time
		}
	}
	return all
}
