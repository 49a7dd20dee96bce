package kind

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/ccmlab/ccmlab/lab/cluster/local"
	"github.com/ccmlab/ccmlab/lab/state"
)

// Down deletes the lab's containers, network and volume, and ends a CCM that runs as a
// process beside them.
func (c *Cluster) Down(ctx context.Context) (ended int, err error) {
	processes, err := local.NewSite(c.lab, c.bin).Down(ctx)
	if err := errors.Join(err, c.engine.checkAnswers(ctx)); err != nil {
		return processes, err
	}
	containers, err := deleteMarked(ctx, c.engine, c.lab.Path())
	return processes + containers, err
}

// deleteNodes makes kind delete its cluster with all workers.
func (c *Cluster) deleteNodes() error {
	provider, err := c.kindProvider()
	if err != nil {
		return err
	}
	return provider.Delete(c.name(), c.Kubeconfig())
}

// deleteRemains deletes everything that carries the label of a lab of which only the
// folder is known. If no engine is available, that is an error only if the folder shows
// that the lab had containers.
func deleteRemains(ctx context.Context, lab *state.Lab) (ended int, err error) {
	e, err := detectEngine(ctx)
	if err == nil {
		return deleteMarked(ctx, e, lab.Path())
	}
	if _, none := os.Stat(lab.Path("pki", cloudCertificate+".crt")); none == nil {
		return 0, fmt.Errorf("lab %q had containers: %w", lab.Name, err)
	}
	return 0, nil
}

func deleteMarked(ctx context.Context, e engine, dir string) (ended int, err error) {
	mark := labelLab + "=" + dir
	containers, err := e.listLabelled(ctx, mark)
	if err != nil {
		return 0, err
	}
	var errs []error
	remove := func(names []string, command ...string) {
		if len(names) > 0 {
			_, err := e.run(ctx, append(command, names...)...)
			errs = append(errs, err)
		}
	}
	remove(containers, "rm", "--force", "--volumes")
	networks, err := e.listResources(ctx, "network", mark)
	errs = append(errs, err)
	// The control plane's container, which kind has made, has no mark, but is on it.
	for _, network := range networks {
		nodes, err := e.listLabelled(ctx, kindCluster+"="+network)
		errs = append(errs, err)
		remove(nodes, "rm", "--force", "--volumes")
		ended += len(nodes)
	}
	remove(networks, "network", "rm")
	volumes, err := e.listResources(ctx, "volume", mark)
	errs = append(errs, err)
	remove(volumes, "volume", "rm", "--force")
	return ended + len(containers), errors.Join(errs...)
}
