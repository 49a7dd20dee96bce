package lab

// `lab explain`: why a Node or a Service is not ready. See package explain.

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/explain"
	"github.com/ccmlab/ccmlab/lab/timeline"
)

// explainBound keeps it quick when something does not answer; processesBound is
// for the part of it that says what runs, which a container engine may be asked.
const (
	explainBound   = 5 * time.Second
	processesBound = time.Second
)

// Explain says why the Node or the Service (kind is one of explain's) is not
// ready, or that it is. A namespace is for Services.
func (l *Lab) Explain(ctx context.Context, kind, namespace, name string) (explain.Explanation, error) {
	ctx, cancel := context.WithTimeout(ctx, explainBound)
	defer cancel()
	source, err := l.explainSource(ctx)
	if err != nil {
		return explain.Explanation{}, err
	}
	if kind == explain.KindNode {
		source.Removed = l.removed()
		return source.Node(ctx, name), nil
	}
	return source.Service(ctx, namespace, name), nil
}

// Explainable are the names of a kind that there are.
func (l *Lab) Explainable(ctx context.Context, kind string) ([]string, error) {
	source, err := l.explainSource(ctx)
	if err != nil {
		return nil, err
	}
	return source.Names(ctx, kind)
}

func (l *Lab) explainSource(ctx context.Context) (explain.Source, error) {
	source := explain.Source{LabName: l.State.Name, NoProvider: l.Cluster.Traits().NoCloudProvider}
	var err error
	bounded, cancel := context.WithTimeout(ctx, processesBound)
	defer cancel()
	if source.Components, err = l.components(bounded); err != nil {
		source.Missing = append(source.Missing, fmt.Sprintf("%s: which components run: %v", explain.Lab, err))
	} else if err := l.notStopped(source.Components); err != nil {
		return source, err
	}
	source.Processes = l.explainProcesses()
	if source.Kube, err = l.Cluster.Observer(); err != nil {
		return source, err
	}
	// The person's own token: fault rules are for admins to see.
	source.Cloud, err = l.Cluster.Cloud().Client(cluster.CallerOperator)
	return source, err
}

// notStopped is an error for a lab of which nothing runs: there is nobody to ask.
func (l *Lab) notStopped(components []cluster.Component) error {
	if stateOf(components) != cluster.StateStopped {
		return nil
	}
	return fmt.Errorf("lab %q is stopped; `lab up --name %s` starts it", l.State.Name, l.State.Name)
}

// explainProcesses are this machine's processes, by their components' names: what
// is not known of them is no reason not to explain.
func (l *Lab) explainProcesses() map[string]explain.Process {
	running, err := l.Host.Running()
	if err != nil {
		return nil
	}
	all := map[string]explain.Process{}
	for name, p := range running {
		short, _, _ := strings.Cut(name, "@")
		all[short] = explain.Process{PID: p.PID, Began: p.Started(), Paused: p.Paused()}
	}
	return all
}

// removed is when the timeline last saw each Node deleted.
func (l *Lab) removed() map[string]time.Time {
	entries, err := l.Timeline().Read()
	if err != nil {
		return nil
	}
	all := map[string]time.Time{}
	for _, e := range entries {
		if name, node := strings.CutPrefix(e.Subject, "node/"); node && e.Source == timeline.SourceCluster && e.What == "removed" {
			all[name] = e.Time
		}
	}
	return all
}
