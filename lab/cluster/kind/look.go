package kind

// Components and logs: containers, the CCM's pods, and what they write.

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/cluster/local"
)

// Components lists the cloud's container, the machines' containers, and the CCM. A
// machine whose instance is stopped is not wanted, so it counts as no fault.
func (c *Cluster) Components(ctx context.Context) ([]cluster.Component, error) {
	cloud, err := c.engine.inspectContainers(ctx, c.cloudContainer())
	if err != nil {
		return nil, err
	}
	all := []cluster.Component{toComponent("fakecloud", len(cloud) > 0 && cloud[0].State.Running, true)}
	nodes, err := c.listNodes(ctx)
	if err != nil {
		return nil, err
	}
	controlPlane := false
	for _, n := range nodes {
		name := n.Machine.Name
		controlPlane = controlPlane || n.container.Name == c.controlPlaneContainer()
		all = append(all, toComponent("node/"+name, n.State.Running, false))
	}
	if !controlPlane {
		all = append(all, toComponent("node/"+c.controlPlaneContainer(), false, true))
	}
	used, err := c.localSite().ProgramInUse()
	if err != nil {
		return nil, err
	}
	if used == nil {
		return append(all, c.deploymentComponent(ctx)), nil
	}
	ccm, err := c.localSite().Components(local.ComponentCCM)
	return append(all, ccm...), err
}

func toComponent(name string, running, wanted bool) cluster.Component {
	state := cluster.StateStopped
	if running {
		state = cluster.StateRunning
	}
	return cluster.Component{Name: name, State: state, Wanted: wanted}
}

// deploymentComponent is the lab's own CCM. It counts as stopped when the API server does not
// answer.
func (c *Cluster) deploymentComponent(ctx context.Context) cluster.Component {
	client, err := c.Observer()
	if err != nil {
		return toComponent(local.ComponentCCM, false, false)
	}
	d, err := client.AppsV1().Deployments(metav1.NamespaceSystem).Get(ctx, ccmName, metav1.GetOptions{})
	wanted := err != nil && !apierrors.IsNotFound(err) || err == nil && d.Spec.Replicas != nil && *d.Spec.Replicas > 0
	return toComponent(local.ComponentCCM, err == nil && d.Status.ReadyReplicas > 0, wanted)
}

// Logs lists the log files in the lab's folder, the logs of the engine's containers and
// the CCM's pods, and the machines' journals.
func (c *Cluster) Logs(ctx context.Context) ([]cluster.Log, error) {
	logs, err1 := local.FileLogs(c.lab.Path("logs"))
	used, err2 := c.localSite().ProgramInUse()
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	add := func(name string, command func(ctx context.Context, last string, follow bool) *exec.Cmd) {
		logs = append(logs, cluster.Log{
			Name: name, Where: strings.Join(command(ctx, "all", false).Args, " "),
			Copy: func(ctx context.Context, w io.Writer, last int, follow bool) error {
				lines := "all"
				if last > 0 {
					lines = strconv.Itoa(last)
				}
				return copyOutput(ctx, w, command(ctx, lines, follow))
			},
		})
	}
	add("fakecloud", func(ctx context.Context, last string, follow bool) *exec.Cmd {
		return c.engine.command(ctx, followArgs([]string{"logs", "--tail", last}, follow, c.cloudContainer())...)
	})
	if used == nil {
		// The file of a program that was the CCM earlier would have the same name.
		logs = slices.DeleteFunc(logs, func(l cluster.Log) bool { return l.Name == local.ComponentCCM })
		add(local.ComponentCCM, c.deploymentLogs)
	}
	nodes, err := c.listNodes(ctx)
	for _, n := range nodes {
		add("node/"+n.Machine.Name, func(ctx context.Context, last string, follow bool) *exec.Cmd {
			journal := strings.Join(
				followArgs([]string{"journalctl --no-pager --unit=kubelet --unit=containerd --lines=" + last}, follow),
				" ",
			)
			if !follow {
				return c.engine.command(ctx, "exec", n.container.Name, "sh", "-c", journal)
			}
			// An engine leaves running what it was asked to run when the one who
			// asked is gone; the end of standard input tells of that.
			return c.engine.command(
				ctx, "exec", "--interactive", n.container.Name, "sh", "-c", journal+" & cat >/dev/null; kill $!",
			)
		})
	}
	return logs, err
}

// deploymentLogs is the command that prints the logs of the Deployment's pods.
func (c *Cluster) deploymentLogs(ctx context.Context, last string, follow bool) *exec.Cmd {
	if last == "all" {
		last = "-1"
	}
	return exec.CommandContext(ctx, c.bin.Program("kubectl"), followArgs([]string{
		"--kubeconfig=" + c.Kubeconfig(), "--namespace=kube-system",
		"logs", "--selector=app=" + ccmName, "--prefix", "--tail=" + last,
	}, follow)...)
}

// copyOutput runs a command with a silent standard input and returns when the command
// ends. It is no error that ctx ended it.
func copyOutput(ctx context.Context, w io.Writer, cmd *exec.Cmd) error {
	stdin, silent, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _, _ = stdin.Close(), silent.Close() }()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, w, w
	if err := cmd.Run(); ctx.Err() == nil {
		return err
	}
	return nil
}

func followArgs(args []string, follow bool, rest ...string) []string {
	if follow {
		args = append(args, "--follow")
	}
	return append(args, rest...)
}
