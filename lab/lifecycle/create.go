package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/cluster"
	_ "github.com/ccmlab/ccmlab/lab/cluster/kinds" // For everybody who brings labs up.
	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/lab/state"
)

// createLab records a new lab and claims what it needs for itself. The caller passes the
// hold, which may be nil, on to the agent, or closes it.
func createLab(ctx context.Context, st *state.Lab, o Options) (*lab.Lab, cluster.Hold, error) {
	if err := checkNothingRuns(st); err != nil {
		return nil, nil, errors.Join(err, st.Remove())
	}
	l, hold, err := claimNew(ctx, st, o)
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

// checkNothingRuns is an error while processes of an earlier lab of this folder run. They
// would be taken for the new lab's, and have other tokens and certificates.
func checkNothingRuns(st *state.Lab) error {
	running, err := process.Host{Lab: st.Path()}.Running()
	if err != nil || len(running) == 0 {
		return err
	}
	return fmt.Errorf(
		"%d processes of an earlier lab %q still run, whose folder was deleted; `lab down --name %s` ends them",
		len(running), st.Name, st.Name,
	)
}

// claimNew records what the lab is to be, and claims what it needs.
func claimNew(ctx context.Context, st *state.Lab, o Options) (*lab.Lab, cluster.Hold, error) {
	st.Cluster, st.Profile, st.StartedAt = cluster.KindName(o.Cluster), cmp.Or(o.Profile, DefaultProfile), time.Now()
	var err error
	if st.CloudProvider, err = o.cloudProvider(); err != nil {
		return nil, nil, err
	}
	if st.Bin = o.bin; st.Bin != "" {
		st.KubeBin = filepath.Join(st.Bin, "kube")
	}
	bin, err := cluster.FindBinaries(st.Bin, st.KubeBin)
	if err != nil {
		return nil, nil, err
	}
	if kind := cluster.KindNamed(st.Cluster); kind != nil && kind.Choose != nil {
		if err := kind.Choose(ctx, st, o.settings(), bin); err != nil {
			return nil, nil, err
		}
	}
	st.KubeletProviderIDs, st.InstanceQuota = o.KubeletProviderIDs, o.InstanceQuota
	st.Dialect, st.CloudRegion, st.CloudZones = o.Dialect, o.CloudRegion, o.CloudZones
	if err := cluster.CheckProviderIDs(st.KubeletProviderIDs); err != nil {
		return nil, nil, err
	}
	l, err := lab.Attach(st)
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

// resumeLab takes hold of a lab that is there, whole or not. The hold is nil if the agent
// still has it.
func resumeLab(ctx context.Context, st *state.Lab, o Options) (*lab.Lab, cluster.Hold, error) {
	if err := checkUnchanged(st, o); err != nil {
		return nil, nil, err
	}
	l, err := lab.Attach(st)
	if err != nil {
		return nil, nil, err
	}
	if err := l.CheckNotPaused(); err != nil {
		return nil, nil, err
	}
	st.Nodes = max(0, cmp.Or(o.Nodes, st.Nodes))
	if err := errors.Join(l.Cluster.Check(ctx), st.Save()); err != nil {
		return nil, nil, err
	}
	running, err := l.Host.Running()
	if err != nil || running[lab.ComponentAgent] != nil {
		return l, nil, err
	}
	hold, err := l.Cluster.Reclaim(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("lab %q cannot come back to its addresses%s: %w; `lab up --name %s` again when they are free, or `lab down --name %s` removes it and what it kept, and `lab up` makes it anew elsewhere",
			st.Name, describeSlotTenant(st), err, st.Name, st.Name)
	}
	return l, hold, nil
}

// checkUnchanged is an error if the options ask for another lab than the one that is there.
func checkUnchanged(st *state.Lab, o Options) error {
	has, wanted := cluster.RecordedSettings(st), o.settings()
	for _, p := range []struct{ what, have, want string }{
		{"cluster", cluster.KindName(st.Cluster), o.Cluster},
		{"cloud provider", cmp.Or(st.CloudProvider, cluster.ProviderExternal), o.CloudProvider},
		{"profile", st.Profile, o.Profile},
		{"node image", has.NodeImage, wanted.NodeImage},
		{"pod network", has.PodNetwork, wanted.PodNetwork},
		{"programs of a bundle", st.Bin, o.bin},
		{"kubeconfig", has.Kubeconfig, wanted.KubeconfigPath()},
		{"kubelets' provider IDs", has.KubeletProviderIDs, wanted.KubeletProviderIDs},
	} {
		if p.want != "" && p.want != p.have {
			return fmt.Errorf(
				"lab %q has %s %s and cannot take %s; `lab down --name %s` first, or another --name", st.Name, p.what,
				cmp.Or(p.have, "none"), p.want, st.Name,
			)
		}
	}
	return nil
}

// describeSlotTenant names the lab that lives in the slot of another, as far as this user
// may see; "" if none does.
func describeSlotTenant(st *state.Lab) string {
	processes, err := process.All()
	if err != nil {
		return ""
	}
	for _, p := range processes {
		other, err := state.OpenDir(p.Lab)
		if err == nil && p.Lab != st.Path() && other.Slot == st.Slot && st.Slot != 0 {
			return fmt.Sprintf(", where lab %q of %s lives now", other.Name, filepath.Dir(p.Lab))
		}
	}
	return ""
}

// Options of Up.
type Options struct {
	Name string
	// Cluster is the kind of cluster; "" is the one that the lab has, or
	// cluster.DefaultKind.
	Cluster string
	// CloudProvider is one of cluster.Providers; "" is the one that the lab has,
	// or external. None is for kinds that can do without.
	CloudProvider string
	// Nodes is the number of instances to begin with; 0 is as many as the lab
	// was brought up with before, or as its kind of cluster begins with;
	// NoNodes is none.
	Nodes int
	// Dialect is that of the new lab's CCM, or "".
	Dialect string
	// CloudRegion and CloudZones are those of a new lab's cloud; "" is fakecloud's own.
	CloudRegion string
	CloudZones  []string
	// InstanceQuota is how many instances a new lab's cloud allows; 0 is the cloud's default.
	InstanceQuota int
	// Profile is the cloud's; "" is the one that the lab has, or
	// DefaultProfile.
	Profile string
	// WithoutCCM and WithoutDemo leave the CCM and the demo out.
	WithoutCCM, WithoutDemo bool
	// UseCCM, unless nil, says which program is the CCM, before it starts.
	UseCCM func(context.Context, *lab.Lab) error
	// Fleeting has a new lab that does not come up taken down again.
	Fleeting bool
	// NodeImage and PodNetwork are for kind, Kubeconfig is for external; "" is
	// what the lab has, or the default.
	NodeImage, PodNetwork, Kubeconfig string
	// KubeletProviderIDs is a template of cluster.KubeletProviderID; "" is what the lab has, or none.
	KubeletProviderIDs string
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

// cloudProvider is what a new lab's cluster is to have.
func (o Options) cloudProvider() (string, error) {
	provider := cmp.Or(o.CloudProvider, cluster.ProviderExternal)
	if kind := cluster.KindNamed(o.Cluster); provider == cluster.ProviderNone && (kind == nil ||
		!kind.CloudProviderOptional) {
		return "", fmt.Errorf(
			"a cluster without a cloud provider is embedded only, not of kind %s", cluster.KindName(o.Cluster),
		)
	}
	return provider, nil
}

// settings are those that are for some kinds of clusters only.
func (o Options) settings() cluster.Settings {
	return cluster.Settings{
		NodeImage: o.NodeImage, PodNetwork: o.PodNetwork, Kubeconfig: o.Kubeconfig,
		KubeletProviderIDs: o.KubeletProviderIDs,
	}
}
