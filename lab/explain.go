package lab

// `lab explain`: why a Node or a Service is not ready. See package explain.

import (
	"context"
	"fmt"
	"time"

	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/explain"
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
	source := explain.Source{LabName: l.State.Name}
	var err error
	bounded, cancel := context.WithTimeout(ctx, processesBound)
	defer cancel()
	if source.Components, err = l.components(bounded); err != nil {
		source.Missing = append(source.Missing, fmt.Sprintf("%s: which components run: %v", explain.Lab, err))
	}
	if source.Kube, err = l.Cluster.Observer(); err != nil {
		return source, err
	}
	// The person's own token: fault rules are for admins to see.
	source.Cloud, err = l.Cluster.Cloud().Client(cluster.CallerOperator)
	return source, err
}
