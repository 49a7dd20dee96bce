package lifecycle

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
	"k8s.io/client-go/kubernetes"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/agent"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/cluster/local"
	"github.com/ccmlab/ccmlab/lab/console"
	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/lab/state"
	"github.com/ccmlab/ccmlab/lab/timeline"
)

// RunAgent is the lab's background process. It boots and halts machines for instances, does
// what the cluster needs as long as it lives, writes the timeline and the scene, and serves the page,
// with the lesson that guide returns beside it. With holds, it has inherited the lab's claim as
// descriptor 3, and keeps it until it ends.
func RunAgent(ctx context.Context, dir string, holds bool, guide console.Guide, log *slog.Logger) error {
	if holds {
		lock := os.NewFile(3, "claim")
		l, err := net.FileListener(lock)
		if err := errors.Join(err, lock.Close()); err != nil {
			return fmt.Errorf("the lab's claim, descriptor 3: %w", err)
		}
		defer func() { _ = l.Close() }()
	}
	l, err := lab.OpenDir(dir)
	if err != nil {
		return err
	}
	cloud, err := l.Cloud()
	if err != nil {
		return err
	}
	operator, err := l.Cluster.Cloud().Client(cluster.CallerOperator)
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
	picture, err := agent.NewPicture(console.SceneFile(l), log)
	if err != nil {
		return err
	}
	recorder.Picture = picture
	picture.ObserveWatches(kube)
	inContainers := l.Cluster.Traits().InContainers
	if !inContainers { // There the lab's own CCM is no process of this machine.
		picture.AddAbsent(optionalComponents(l)...)
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
	machines.OnChange, machines.OnCloudStream = recorder.Record, picture.CloudStream
	recorder.OnComponent = func(c timeline.Change) {
		picture.Component(c)
		machines.TriggerReconcile() // Another CCM may make no routes.
	}
	machines.KubeletProviderIDs = func() (string, error) { // As `lab ccm use` has recorded last.
		st, err := state.OpenDir(dir)
		if err != nil {
			return "", err
		}
		return st.KubeletProviderIDs, nil
	}
	machines.PodRanges = func(ctx context.Context) (map[string]string, error) { return podRanges(ctx, l, kube) }
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return recorder.Components(
			ctx, l.Host.Running, func(name string) bool { return isWanted(l, name) }, optionalComponents(l)...,
		)
	})
	if inContainers {
		group.Go(func() error { return picture.FollowContainers(ctx, l.Cluster.Components) })
	}
	group.Go(func() error { return recorder.Watch(ctx, kube) })
	if !l.Cluster.Traits().NoCloudProvider {
		group.Go(func() error {
			return recorder.CCMRefusals(ctx, func(ctx context.Context) string {
				if !isWanted(l, local.ComponentCCM) {
					return ""
				}
				return l.CCMRefusal(ctx)
			})
		})
	}
	group.Go(func() error { return picture.FollowCloud(ctx, picturedCloud{cloud, operator}) })
	group.Go(func() error { return picture.FollowCluster(ctx, kube) })
	group.Go(func() error {
		if err := console.Serve(ctx, l, picture, guide, log); err != nil { // Machines go on without a page.
			log.Error("serving the page", "error", err)
		}
		return nil
	})
	group.Go(func() error {
		return machines.Run(ctx, func(ev api.Event) {
			picture.Event(ev)
			recorder.Event(ev)
		})
	})
	group.Go(func() error { return l.Cluster.Tend(ctx, log) })
	return group.Wait()
}

// picturedCloud reads what is in the picture as the lab, and faults, which are for admins, as the operator.
type picturedCloud struct {
	*client.Client
	operator *client.Client
}

func (c picturedCloud) ListFaults(ctx context.Context) ([]api.Fault, error) {
	return c.operator.ListFaults(ctx)
}

// podRanges are the pods' ranges by Node, if the lab's CCM makes no routes to them where these are needed.
func podRanges(ctx context.Context, l *lab.Lab, kube kubernetes.Interface) (map[string]string, error) {
	used, err := l.OtherCCM()
	if err != nil || used == nil || !used.WithoutRoutes || !l.Cluster.CCMCommand().NeedsRoutes {
		return nil, err
	}
	nodes, err := kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	ranges := map[string]string{}
	for _, node := range nodes.Items {
		ranges[node.Name] = node.Spec.PodCIDR
	}
	return ranges, nil
}

// optionalComponents are the processes that may start at any time: somebody may want the CCM
// only later, or, in containers, another program in place of its Deployment.
func optionalComponents(l *lab.Lab) []string {
	if l.Cluster.Traits().NoCloudProvider {
		return nil
	}
	return []string{local.ComponentCCM}
}

// isWanted tells whether a process that does not run is to run.
func isWanted(l *lab.Lab, name string) bool {
	return name != local.ComponentCCM || local.Site{Lab: l.State}.CCMWanted()
}

// startAgent starts the agent unless it runs, and passes the hold on to it.
func startAgent(l *lab.Lab, hold cluster.Hold) error {
	running, err := l.Host.Running()
	if err != nil || running[lab.ComponentAgent] != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	spec := process.Spec{
		Component: lab.ComponentAgent, Path: self, Args: []string{"agent", "--dir", l.State.Path()},
		LogFile: l.State.Path("logs", lab.ComponentAgent+".log"),
	}
	if hold != nil {
		file, err := hold.File()
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }()
		spec.Inherit = []*os.File{file}
		spec.Args = append(spec.Args, "--claim")
	}
	_, err = l.Host.Start(spec)
	return err
}
