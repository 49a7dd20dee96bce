package kind

// Machines: each running instance is a node container. kind creates the control
// plane's; a worker's joins the cluster as described in join.go.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/ccmlab/ccmlab/lab/cluster"
)

// Labels of a worker's container: which machine it is.
const (
	labelInstance = "io.ccmlab.instance"
	labelName     = "io.ccmlab.name"
	labelAddress  = "io.ccmlab.address"
	labelRole     = "io.x-k8s.kind.role" // kind's own
)

// joinedMark is on a machine's disk once it has joined.
const joinedMark = "/kind/joined"

// stopGrace is how long a machine may take to shut down, in seconds, before it is
// killed.
const stopGrace = "5"

// Present returns the control plane, which kind has created.
func (c *Cluster) Present(ctx context.Context) ([]cluster.Machine, error) {
	found, err := c.engine.inspectContainers(ctx, c.controlPlaneContainer())
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return []cluster.Machine{{Name: c.controlPlaneContainer(), Address: found[0].addressIn(c.name())}}, nil
}

// Adopt records which instance the control plane is.
func (c *Cluster) Adopt(m cluster.Machine) error {
	if c.lab.Kind.ControlPlane == m.ID {
		return nil
	}
	c.lab.Kind.ControlPlane = m.ID
	return c.lab.Save()
}

// node is a machine's container.
type node struct {
	cluster.Machine
	container
}

// listNodes returns the containers of all machines, running or not.
func (c *Cluster) listNodes(ctx context.Context) ([]node, error) {
	workers, err := c.engine.listLabelled(ctx, c.labelOfLab())
	if err != nil {
		return nil, err
	}
	workers = slices.DeleteFunc(workers, func(name string) bool { return name == c.cloudContainer() })
	found, err := c.engine.inspectContainers(ctx, append(workers, c.controlPlaneContainer())...)
	var nodes []node
	for _, f := range found {
		labels := f.Config.Labels
		m := cluster.Machine{ID: labels[labelInstance], Name: labels[labelName], Address: labels[labelAddress]}
		if f.Name == c.controlPlaneContainer() {
			m = cluster.Machine{ID: c.lab.Kind.ControlPlane, Name: f.Name, Address: f.addressIn(c.name())}
		}
		nodes = append(nodes, node{m, f})
	}
	return nodes, err
}

// running waits for a container's end by asking the engine.
type running struct {
	engine engine
	name   string
}

// Wait returns when the container has ended or is gone.
func (r *running) Wait(ctx context.Context) error {
	// It fails while the engine itself is down.
	return wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		_, err := r.engine.run(ctx, "wait", r.name)
		return err == nil || isNotFound(err), nil
	})
}

// Machines returns the machines that run and have joined.
func (c *Cluster) Machines(ctx context.Context) (map[cluster.Machine]cluster.Running, error) {
	nodes, err := c.listNodes(ctx)
	if err != nil {
		return nil, err
	}
	found := map[cluster.Machine]cluster.Running{}
	for _, n := range nodes {
		if !n.State.Running || n.ID == "" {
			continue
		}
		joined := n.container.Name == c.controlPlaneContainer()
		if !joined {
			if joined, err = c.hasJoined(ctx, n.container.Name); err != nil {
				return nil, err
			}
		}
		if joined {
			found[n.Machine] = &running{c.engine, n.container.Name}
		}
	}
	return found, nil
}

// hasJoined reports whether the machine has joined. The command prints yes or no, so
// that a failure of the engine is not taken for "no": a machine that has not joined is
// created anew.
func (c *Cluster) hasJoined(ctx context.Context, name string) (bool, error) {
	answer, err := c.engine.execIn(ctx, name, nil, "sh", "-c", "test -e "+joinedMark+" && echo yes || echo no")
	return answer == "yes", err
}

// containerOf names a machine's container.
func (c *Cluster) containerOf(m cluster.Machine) string {
	if m.ID == c.lab.Kind.ControlPlane {
		return c.controlPlaneContainer()
	}
	return c.workerContainer(m.Name)
}

// Booted reports whether the machine has a container.
func (c *Cluster) Booted(ctx context.Context, m cluster.Machine) (bool, error) {
	found, err := c.engine.inspectContainers(ctx, c.containerOf(m))
	if err != nil || len(found) == 0 {
		return false, err
	}
	return m.ID == c.lab.Kind.ControlPlane || found[0].Config.Labels[labelInstance] == m.ID, nil
}

// Boot starts a machine's container; a new one joins the cluster first. A container
// whose creation was interrupted is created anew. The size is ignored: a kubelet
// measures the computer and not its own cgroup, so it would not report a limit on the
// container. Every node has the capacity of the computer.
func (c *Cluster) Boot(
	ctx context.Context,
	m cluster.Machine,
	_ cluster.Size,
	providerID string,
) (cluster.Running, error) {
	name := c.containerOf(m)
	found, err := c.engine.inspectContainers(ctx, name)
	if err != nil {
		return nil, err
	}
	if len(found) > 0 {
		joined, err := c.restartContainer(ctx, found[0], m)
		if err != nil || joined {
			return &running{c.engine, name}, err
		}
		if err := c.removeContainer(ctx, name); err != nil {
			return nil, err
		}
	}
	if err := c.createContainer(ctx, name, m); err != nil {
		return nil, err
	}
	return &running{c.engine, name}, c.joinNode(ctx, name, m, providerID)
}

// restartContainer starts a container that is there, and tells whether it is the
// machine's, whole. One of its name that is somebody else's is left alone.
func (c *Cluster) restartContainer(ctx context.Context, have container, m cluster.Machine) (joined bool, err error) {
	controlPlane := have.Name == c.controlPlaneContainer()
	if !controlPlane && have.Config.Labels[labelLab] != c.lab.Path() {
		return false, fmt.Errorf("there is a container %s that is not this lab's", have.Name)
	}
	if !controlPlane && have.Config.Labels[labelInstance] != m.ID {
		return false, nil // An earlier machine's, of the same name.
	}
	if !have.State.Running {
		if _, err := c.engine.run(ctx, "start", have.Name); err != nil {
			return false, err
		}
	}
	now, err := c.engine.inspectContainers(ctx, have.Name)
	if err != nil || len(now) == 0 {
		return false, errors.Join(fmt.Errorf("container %s is gone again", have.Name), err)
	}
	if got := now[0].addressIn(c.name()); got != m.Address {
		return false, fmt.Errorf(
			"%s gave container %s the address %q instead of %s; its certificates and routes are for that one",
			c.engine.name, have.Name, got, m.Address,
		)
	}
	if controlPlane {
		return true, nil
	}
	return c.hasJoined(ctx, have.Name)
}

// Halt stops a machine's container.
func (c *Cluster) Halt(ctx context.Context, _ cluster.Machine, r cluster.Running) error {
	_, err := c.engine.run(ctx, "stop", "--time", stopGrace, r.(*running).name)
	if isNotFound(err) {
		return nil
	}
	return err
}

// Sweep deletes the containers of machines whose instances no longer exist.
func (c *Cluster) Sweep(ctx context.Context, keep map[string]bool) error {
	nodes, err := c.listNodes(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, n := range nodes {
		if n.ID != "" && !keep[n.ID] && !n.State.Running {
			errs = append(errs, c.removeContainer(ctx, n.container.Name))
		}
	}
	return errors.Join(errs...)
}

func (c *Cluster) removeContainer(ctx context.Context, name string) error {
	_, err := c.engine.run(ctx, "rm", "--force", "--volumes", name)
	if isNotFound(err) {
		return nil
	}
	return err
}
