package lab

import (
	"context"
	"log/slog"
	"net"
	"os"

	"golang.org/x/sync/errgroup"

	"github.com/ccmlab/ccmlab/lab/agent"
)

// RunAgent is the lab's background process: machines for instances, and the
// timeline. It holds the slot's lock, which it inherits as descriptor 3, for
// as long as it lives.
func RunAgent(ctx context.Context, dir string, log *slog.Logger) error {
	if lock := os.NewFile(3, "slot"); lock != nil {
		if l, err := net.FileListener(lock); err == nil {
			defer func() { _ = l.Close() }()
		}
		_ = lock.Close()
	}
	l, err := OpenDir(dir)
	if err != nil {
		return err
	}
	cloud, err := l.Cloud("lab")
	if err != nil {
		return err
	}
	kube, err := l.Cluster.Observer()
	if err != nil {
		return err
	}
	recorder, err := agent.NewRecorder(l.Timeline(), tagService, log)
	if err != nil {
		return err
	}
	machines := agent.New(cloud, l.Cluster, l.Tag(), log)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return recorder.Watch(ctx, kube) })
	group.Go(func() error { return machines.Run(ctx, recorder.Event) })
	return group.Wait()
}
