// Package lab brings up a cloud, a cluster and a cloud controller manager
// together, shows what happens, and takes them down again.
package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/cluster/embedded"
	"github.com/ccmlab/ccmlab/lab/cluster/external"
	"github.com/ccmlab/ccmlab/lab/cluster/kind"
	"github.com/ccmlab/ccmlab/lab/cluster/local"
	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/lab/state"
	"github.com/ccmlab/ccmlab/lab/timeline"
)

const componentAgent = "lab-agent"

// downGrace is how long the agent has to end by itself.
const downGrace = 1500 * time.Millisecond

// Kinds of clusters.
const (
	Embedded = "embedded"
	Kind     = "kind"
	External = "external"
)

// Kinds are all of them, the default first.
var Kinds = []string{Embedded, Kind, External}

// Lab is one lab, up or half-way.
type Lab struct {
	State   *state.Lab
	Cluster cluster.Cluster
	// Outcome is what Up did, of a lab that Up returned.
	Outcome Outcome
	bin     local.Binaries
	// Host starts and finds the lab's processes on this machine.
	Host process.Host
}

// Open finds a lab that was brought up before.
func Open(name string) (*Lab, error) {
	st, err := state.Open(name)
	if err != nil {
		return nil, err
	}
	return attach(st)
}

// OpenDir is Open by the lab's folder.
func OpenDir(dir string) (*Lab, error) {
	st, err := state.OpenDir(dir)
	if err != nil {
		return nil, err
	}
	return attach(st)
}

// OpenLocked is Open for a command that changes the lab: no other does until
// State.Unlock.
func OpenLocked(name string) (*Lab, error) {
	st, err := state.OpenLocked(name)
	if err != nil {
		return nil, err
	}
	l, err := attach(st)
	if err != nil {
		st.Unlock()
	}
	return l, err
}

func attach(st *state.Lab) (*Lab, error) {
	bin, err := local.FindBinaries(st.Bin, st.KubeBin)
	if err != nil {
		return nil, err
	}
	if os.Getenv("LAB_KUBE_BIN") != "" {
		st.KubeBin = bin.Kube
	}
	l := &Lab{State: st, bin: bin, Host: process.Host{Lab: st.Path()}}
	switch cmp.Or(st.Cluster, Embedded) {
	case Embedded:
		l.Cluster = embedded.New(st, bin)
	case Kind:
		l.Cluster, err = kind.New(st, bin)
	case External:
		l.Cluster, err = external.New(st, bin)
	default:
		err = fmt.Errorf("lab %q has a cluster of kind %q, which this version does not know", st.Name, st.Cluster)
	}
	return l, err
}

// Tag marks this cluster's instances in the cloud.
func (l *Lab) Tag() string { return contract.TagCluster + "=" + l.State.Name }

// Timeline is the lab's record of what happened.
func (l *Lab) Timeline() timeline.Log {
	return timeline.Log{File: l.State.Path("timeline.jsonl"), Start: l.State.StartedAt}
}

// Cloud is a client in the name of the lab.
func (l *Lab) Cloud() (*client.Client, error) { return l.Cluster.Cloud().Client(cluster.CallerLab) }

// BinDirs are the folders to put into PATH.
func (l *Lab) BinDirs() []string { return []string{l.bin.Dir, l.bin.Kube} }

// Options of Up.
type Options struct {
	Name string
	// Cluster is the kind of cluster; "" is the one that the lab has, or
	// Embedded.
	Cluster string
	// CloudProvider is one of cluster.Providers; "" is the one that the lab has,
	// or external. None is for Embedded alone.
	CloudProvider string
	// Nodes is the number of instances to begin with; 0 is as many as the lab
	// was brought up with before, or as its kind of cluster begins with;
	// NoNodes is none.
	Nodes int
	// Profile is the cloud's; "" is the one that the lab has, or
	// DefaultProfile.
	Profile    string
	WithoutCCM bool
	// WithoutDemo leaves the demo out.
	WithoutDemo bool
	// Fleeting takes a new lab down again that does not come up.
	Fleeting bool
	// NodeImage and PodNetwork are for kind, Kubeconfig is for external; "" is
	// what the lab has, or the default.
	NodeImage, PodNetwork, Kubeconfig string
	// StepTimeout is how long each step may take; 0 is what suits the step.
	StepTimeout time.Duration
	// Bundle is a file to run from instead of what was built here; bin is where
	// it has been unpacked.
	Bundle, bin string
}

// NoNodes makes a lab of a control plane alone.
const NoNodes = -1

// DefaultProfile is a new lab's.
const DefaultProfile = "fast"

// create records a new lab and claims what it needs for itself. The hold must
// be passed on to the agent or closed; it may be nil.
func create(ctx context.Context, st *state.Lab, o Options) (*Lab, cluster.Hold, error) {
	if err := vacant(st); err != nil {
		return nil, nil, errors.Join(err, st.Remove())
	}
	l, hold, err := claim(ctx, st, o)
	if err != nil {
		if hold != nil {
			err = errors.Join(err, hold.Close())
		}
		if l != nil { // What the claim itself left.
			_, downErr := l.Cluster.Down(context.WithoutCancel(ctx))
			err = errors.Join(err, downErr)
		}
		return nil, nil, errors.Join(err, st.Remove())
	}
	return l, hold, nil
}

// vacant is an error while processes of an earlier lab of this folder run, which
// would be taken for the new one's: they have other tokens and certificates.
func vacant(st *state.Lab) error {
	running, err := process.Host{Lab: st.Path()}.Running()
	if err != nil || len(running) == 0 {
		return err
	}
	return fmt.Errorf("%d processes of an earlier lab %q still run, whose folder was deleted; `lab down --name %s` ends them", len(running), st.Name, st.Name)
}

func claim(ctx context.Context, st *state.Lab, o Options) (*Lab, cluster.Hold, error) {
	st.Cluster, st.Profile, st.StartedAt = cmp.Or(o.Cluster, Embedded), cmp.Or(o.Profile, DefaultProfile), time.Now()
	var err error
	if st.CloudProvider, err = o.provider(); err != nil {
		return nil, nil, err
	}
	if st.Bin = o.bin; st.Bin != "" {
		st.KubeBin = filepath.Join(st.Bin, "kube")
	}
	bin, err := local.FindBinaries(st.Bin, st.KubeBin)
	if err != nil {
		return nil, nil, err
	}
	switch st.Cluster {
	case Kind:
		if st.Kind, err = kind.Choose(ctx, o.NodeImage, o.PodNetwork, bin.Dir); err != nil {
			return nil, nil, err
		}
	case External:
		if st.External, err = external.Choose(o.Kubeconfig); err != nil {
			return nil, nil, err
		}
	}
	l, err := attach(st)
	if err != nil {
		return nil, nil, err
	}
	st.Nodes = max(0, cmp.Or(o.Nodes, l.Cluster.Traits().Nodes))
	if err := l.Cluster.Check(ctx); err != nil {
		return nil, nil, err
	}
	hold, err := l.Cluster.Claim(ctx)
	if err != nil {
		return l, nil, err
	}
	return l, hold, errors.Join(st.Save(), l.Timeline().Create())
}

// resume takes hold of a lab that is there, whole or in pieces. The hold is
// nil if the agent still has it.
func resume(ctx context.Context, st *state.Lab, o Options) (*Lab, cluster.Hold, error) {
	if err := sameAs(st, o); err != nil {
		return nil, nil, err
	}
	l, err := attach(st)
	if err != nil {
		return nil, nil, err
	}
	if err := l.awake(); err != nil {
		return nil, nil, err
	}
	st.Nodes = max(0, cmp.Or(o.Nodes, st.Nodes))
	if err := errors.Join(l.Cluster.Check(ctx), st.Save()); err != nil {
		return nil, nil, err
	}
	running, err := l.Host.Running()
	if err != nil || running[componentAgent] != nil {
		return l, nil, err
	}
	hold, err := l.Cluster.Reclaim(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("lab %q cannot come back to its addresses%s: %w; `lab up --name %s` again when they are free, or `lab down --name %s` removes it and what it kept, and `lab up` makes it anew elsewhere",
			st.Name, tenant(st), err, st.Name, st.Name)
	}
	return l, hold, nil
}

// sameAs is an error when the lab that is there is another than is asked for.
func sameAs(st *state.Lab, o Options) error {
	kindState, externalState := state.Kind{}, state.External{}
	if st.Kind != nil {
		kindState = *st.Kind
	}
	if st.External != nil {
		externalState = *st.External
	}
	for _, p := range []struct{ what, have, want string }{
		{"cluster", cmp.Or(st.Cluster, Embedded), o.Cluster},
		{"cloud provider", cmp.Or(st.CloudProvider, cluster.ProviderExternal), o.CloudProvider},
		{"profile", st.Profile, o.Profile},
		{"node image", kindState.Image, o.NodeImage},
		{"pod network", kindState.PodNetwork, o.PodNetwork},
		{"programs of a bundle", st.Bin, o.bin},
		{"kubeconfig", externalState.Kubeconfig, external.Path(o.Kubeconfig)},
	} {
		if p.want != "" && p.want != p.have {
			return fmt.Errorf("lab %q has %s %s and cannot take %s; `lab down --name %s` first, or another --name", st.Name, p.what, cmp.Or(p.have, "none"), p.want, st.Name)
		}
	}
	return nil
}

// StartCCM has the CCM run from now on, and returns when it serves.
func (l *Lab) StartCCM(ctx context.Context) error {
	if err := l.wantsCCM(); err != nil {
		return err
	}
	running, err := l.Host.Running()
	if err != nil {
		return err
	}
	if running[componentAgent] == nil {
		return fmt.Errorf("lab %q is not whole; `lab up --name %s` completes it", l.State.Name, l.State.Name)
	}
	return l.Cluster.StartCCM(ctx)
}

// startAgent hands the hold to the agent, which has it from then on.
func (l *Lab) startAgent(hold cluster.Hold) error {
	running, err := l.Host.Running()
	if err != nil || running[componentAgent] != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	spec := process.Spec{
		Component: componentAgent, Path: self, Args: []string{"agent", "--dir", l.State.Path()},
		LogFile: l.State.Path("logs", componentAgent+".log"),
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
