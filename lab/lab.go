// Package lab brings up a cloud, a cluster and a cloud controller manager
// together, shows what happens, and takes them down again.
package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab/cluster/embedded"
	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/lab/state"
	"github.com/ccmlab/ccmlab/lab/timeline"
)

// Tags that the CCM puts on its balancers, and that mark a cluster's
// instances. They are the CCM's documented contract; the lab does not import
// the CCM.
const (
	tagCluster    = "kubernetes-cluster"
	tagServiceUID = "kubernetes-service-uid"
	tagService    = "kubernetes-service"
)

const (
	componentAgent = "lab-agent"
	componentCCM   = "ccm"
	componentCloud = "fakecloud"
)

// downGrace is how long processes have to end by themselves when everything
// they hold is about to be deleted.
const downGrace = 1500 * time.Millisecond

// ccmBound is how long the CCM may take to start.
const ccmBound = 30 * time.Second

// reclaimBound is how long a lab that comes back waits for its addresses.
const reclaimBound = 3 * time.Second

// Lab is one lab, up or half-way.
type Lab struct {
	State   *state.Lab
	Cluster *embedded.Cluster
	bin     embedded.Binaries
	host    process.Host
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

func attach(st *state.Lab) (*Lab, error) {
	bin, err := embedded.FindBinaries(st.KubeBin)
	if err != nil {
		return nil, err
	}
	if os.Getenv("LAB_KUBE_BIN") != "" {
		st.KubeBin = bin.Kube
	}
	return &Lab{State: st, bin: bin, Cluster: embedded.New(st, bin), host: process.Host{Lab: st.Path()}}, nil
}

// Tag marks this cluster's instances in the cloud.
func (l *Lab) Tag() string { return tagCluster + "=" + l.State.Name }

// Timeline is the lab's record of what happened.
func (l *Lab) Timeline() timeline.Log {
	return timeline.Log{File: l.State.Path("timeline.jsonl"), Start: l.State.StartedAt}
}

// Cloud is a client in the name of the lab, or of the operator.
func (l *Lab) Cloud(caller string) (*client.Client, error) {
	return client.New(client.Config{URL: l.Cluster.CloudURL(), TokenFile: l.Cluster.TokenFile(caller), UserAgent: "lab/" + caller})
}

// BinDirs are the folders to put into PATH.
func (l *Lab) BinDirs() []string { return []string{l.bin.Dir, l.bin.Kube} }

// Options of Up.
type Options struct {
	Name string
	// Nodes is the number of instances to begin with; 0 is as many as the lab
	// was brought up with before, or DefaultNodes.
	Nodes int
	// Profile is the cloud's; "" is the one that the lab has, or
	// DefaultProfile.
	Profile    string
	WithoutCCM bool
}

// What a new lab is like.
const (
	DefaultNodes   = 3
	DefaultProfile = "fast"
)

// create records a new lab in a slot of its own. The slot's lock must be
// passed on to the agent or closed.
func create(o Options) (*Lab, *net.TCPListener, error) {
	st, err := state.Create(o.Name)
	if err != nil {
		return nil, nil, err
	}
	slot, err := embedded.ClaimSlot()
	if err != nil {
		return nil, nil, errors.Join(err, st.Remove())
	}
	st.Slot, st.Ports = slot.Number, slot.Ports
	st.Profile, st.Nodes = cmp.Or(o.Profile, DefaultProfile), cmp.Or(o.Nodes, DefaultNodes)
	st.StartedAt = time.Now()
	l, err := attach(st)
	if err == nil {
		err = errors.Join(l.Cluster.CheckFolder(), st.Save(), l.Timeline().Create())
	}
	if err != nil {
		return nil, nil, errors.Join(err, slot.Lock.Close(), st.Remove())
	}
	return l, slot.Lock, nil
}

// resume takes hold of a lab that is there, whole or in pieces. lock is nil
// if the agent still holds the slot.
func resume(ctx context.Context, st *state.Lab, o Options) (*Lab, *net.TCPListener, error) {
	if o.Profile != "" && o.Profile != st.Profile {
		return nil, nil, fmt.Errorf("lab %q has profile %s and cannot take %s; `lab down --name %s` first", st.Name, st.Profile, o.Profile, st.Name)
	}
	if err := st.Lock(); err != nil {
		return nil, nil, err
	}
	l, err := attach(st)
	if err != nil {
		return nil, nil, err
	}
	st.Nodes = cmp.Or(o.Nodes, st.Nodes)
	if err := st.Save(); err != nil {
		return nil, nil, err
	}
	running, err := l.host.Running()
	if err != nil || running[componentAgent] != nil {
		return l, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, reclaimBound)
	defer cancel()
	slot, err := embedded.ReclaimSlot(ctx, st.Slot, st.Ports, len(running) > 0)
	if err != nil {
		return nil, nil, fmt.Errorf("lab %q cannot come back to its addresses: %w; `lab down --name %s` removes it, then `lab up` makes it anew elsewhere", st.Name, err, st.Name)
	}
	return l, slot.Lock, nil
}

// Down ends every process of the lab and deletes its folder. It also works on
// what a crash left, and on a lab that is not there (then it says so).
func Down(ctx context.Context, name string) (stopped int, err error) {
	dir, err := state.Dir(name)
	if err != nil {
		return 0, err
	}
	host := process.Host{Lab: dir}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		running, err := host.Running()
		if err != nil {
			return 0, err
		}
		if len(running) == 0 {
			return 0, fmt.Errorf("%w: %q (looked in %s)", state.ErrNone, name, dir)
		}
		return stopAll(ctx, host, nil)
	}
	recorded, err := state.OpenDir(dir)
	if err != nil {
		recorded = nil // Damaged, or cut short: it is to go all the same.
	}
	st, err := state.Create(name) // Takes the lock; the folder is there already.
	if err != nil {
		return 0, err
	}
	defer st.Unlock()
	if stopped, err = stopAll(ctx, host, recorded); err != nil {
		return stopped, err
	}
	return stopped, st.Remove()
}

// stopAll ends the agent first: it would boot again what ends. With it goes
// its hold on the slot; that of a lab that is given is kept until the rest has
// ended, so that no other lab moves in beside it.
func stopAll(ctx context.Context, host process.Host, lab *state.Lab) (int, error) {
	stopped := 0
	var slot *embedded.Slot
	defer func() {
		if slot != nil {
			_ = slot.Lock.Close()
		}
	}()
	for {
		running, err := host.Running()
		if err != nil || len(running) == 0 {
			return stopped, err
		}
		batch := []*process.Process{}
		if agent := running[componentAgent]; agent != nil {
			batch = append(batch, agent)
		} else {
			if slot == nil && lab != nil {
				// Not to be had if somebody else was faster after a crash.
				slot, _ = embedded.HoldSlot(lab.Slot, lab.Ports)
			}
			for _, p := range running {
				batch = append(batch, p)
			}
		}
		if err := process.Stop(ctx, downGrace, batch...); err != nil {
			return stopped, err
		}
		stopped += len(batch)
		if ctx.Err() != nil {
			return stopped, ctx.Err()
		}
	}
}

// StartCCM has the agent start the CCM, and keep it running, and returns when
// it serves.
func (l *Lab) StartCCM(ctx context.Context) error {
	running, err := l.host.Running()
	if err != nil {
		return err
	}
	if running["kube-apiserver"] == nil || running[componentAgent] == nil {
		return fmt.Errorf("lab %q is not whole; `lab up --name %s` completes it", l.State.Name, l.State.Name)
	}
	config := fmt.Sprintf("url: %s\ntokenFile: %s\nproject: %s\n", l.Cluster.CloudURL(), l.Cluster.TokenFile("ccm"), l.State.Name)
	if err := state.WriteFile(l.State.Path("cloud-config.yaml"), []byte(config)); err != nil {
		return err
	}
	if err := state.WriteFile(l.ccmMark(), nil); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, ccmBound, fmt.Errorf("gave up after %s", ccmBound))
	defer cancel()
	if err := poll(ctx, "the CCM to serve on "+l.Cluster.CCMAddress(), l.ccmServes); err != nil {
		return fmt.Errorf("%w\n%s", err, process.LogHint(l.Cluster.LogFile(componentCCM)))
	}
	return nil
}

// ccmMark is there while the CCM should run.
func (l *Lab) ccmMark() string { return l.State.Path("ccm.wanted") }

func (l *Lab) ccmWanted() bool {
	_, err := os.Stat(l.ccmMark())
	return err == nil
}

// StopCCM ends the CCM; the cluster stays as it is.
func (l *Lab) StopCCM(ctx context.Context) error {
	if err := os.Remove(l.ccmMark()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for {
		running, err := l.host.Running()
		if err != nil || running[componentCCM] == nil {
			return err
		}
		if err := process.Stop(ctx, downGrace, running[componentCCM]); err != nil {
			return err
		}
	}
}

// startAgent hands the slot's lock to the agent, which holds it from then on.
func (l *Lab) startAgent(lock *net.TCPListener) error {
	running, err := l.host.Running()
	if err != nil || running[componentAgent] != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	fd, err := lock.File()
	if err != nil {
		return err
	}
	defer func() { _ = fd.Close() }()
	_, err = l.host.Start(process.Spec{
		Component: componentAgent, Path: self, Args: []string{"agent", "--dir", l.State.Path()},
		LogFile: l.Cluster.LogFile(componentAgent), Inherit: []*os.File{fd},
	})
	return err
}

// Logs lists the components that have a log, and where it is.
func (l *Lab) Logs() (map[string]string, error) {
	files, err := filepath.Glob(l.State.Path("logs", "*.log"))
	if err != nil {
		return nil, err
	}
	logs := map[string]string{}
	for _, f := range files {
		name := filepath.Base(f)
		logs[name[:len(name)-len(".log")]] = f
	}
	return logs, nil
}
