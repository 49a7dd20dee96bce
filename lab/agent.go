package lab

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/lab/agent"
	"github.com/ccmlab/ccmlab/lab/cluster/local"
)

// RunAgent is the lab's background process: machines for instances, what the
// cluster needs tending, and the timeline. Told that it holds the lab's claim, it
// has inherited that as descriptor 3, and has it for as long as it lives.
func RunAgent(ctx context.Context, dir string, holds bool, log *slog.Logger) error {
	if holds {
		lock := os.NewFile(3, "claim")
		l, err := net.FileListener(lock)
		if err := errors.Join(err, lock.Close()); err != nil {
			return fmt.Errorf("the lab's claim, descriptor 3: %w", err)
		}
		defer func() { _ = l.Close() }()
	}
	l, err := OpenDir(dir)
	if err != nil {
		return err
	}
	cloud, err := l.Cloud()
	if err != nil {
		return err
	}
	kube, err := l.Cluster.Observer()
	if err != nil {
		return err
	}
	recorder, err := agent.NewRecorder(l.Timeline(), contract.TagService, log)
	if err != nil {
		return err
	}
	providerID := func(ctx context.Context, name string) (string, error) {
		node, err := kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		if err != nil {
			return "", err
		}
		return node.Spec.ProviderID, nil
	}
	machines := agent.New(cloud, l.Cluster, providerID, l.Tag(), log)
	machines.Tell = recorder.Tell
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return recorder.Components(ctx, l.Host.Running, l.wants, l.expected()...) })
	group.Go(func() error { return recorder.Watch(ctx, kube) })
	group.Go(func() error { return machines.Run(ctx, recorder.Event) })
	group.Go(func() error { return l.Cluster.Tend(ctx, log) })
	return group.Wait()
}

// expected are the components that may start at any time: somebody may want the
// CCM only later.
func (l *Lab) expected() []string {
	// In kind it is a Deployment; without a cloud provider there is none.
	if l.State.Cluster == Kind || l.Cluster.Traits().NoCloudProvider {
		return nil
	}
	return []string{local.ComponentCCM}
}

// wants tells whether a component that does not run is to run.
func (l *Lab) wants(name string) bool {
	return name != local.ComponentCCM || l.CCMWanted()
}
