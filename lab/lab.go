// Package lab brings up a cloud, a cluster and a cloud controller manager
// together, shows what happens, and takes them down again.
package lab

import (
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
	bin, err := embedded.FindBinaries()
	if err != nil {
		return nil, err
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
	Name       string
	Nodes      int
	Profile    string
	WithoutCCM bool
}

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
	st.Profile = o.Profile
	st.StartedAt = time.Now()
	if err := st.Save(); err != nil {
		return nil, nil, errors.Join(err, slot.Lock.Close(), st.Remove())
	}
	l, err := attach(st)
	return l, slot.Lock, err
}

// resume takes hold of a lab that is there, whole or in pieces. lock is nil
// if the agent still holds the slot.
func resume(ctx context.Context, st *state.Lab) (*Lab, *net.TCPListener, error) {
	if err := st.Lock(); err != nil {
		return nil, nil, err
	}
	l, err := attach(st)
	if err != nil {
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
		return stopAll(ctx, host)
	}
	st, err := state.Create(name) // Takes the lock; the folder is there already.
	if err != nil {
		return 0, err
	}
	defer st.Unlock()
	if stopped, err = stopAll(ctx, host); err != nil {
		return stopped, err
	}
	return stopped, st.Remove()
}

// stopAll ends the agent first: it would boot again what ends.
func stopAll(ctx context.Context, host process.Host) (int, error) {
	stopped := 0
	for {
		running, err := host.Running()
		if err != nil || len(running) == 0 {
			return stopped, err
		}
		batch := []*process.Process{}
		if agent := running[componentAgent]; agent != nil {
			batch = append(batch, agent)
		} else {
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

// StartCCM starts the CCM of a lab that is up.
func (l *Lab) StartCCM(ctx context.Context) error {
	running, err := l.host.Running()
	if err != nil {
		return err
	}
	if running["kube-apiserver"] == nil {
		return fmt.Errorf("lab %q has no API server running; `lab up --name %s` completes it", l.State.Name, l.State.Name)
	}
	p, err := l.startCCM()
	if err != nil {
		return err
	}
	return p.Await(ctx, "the CCM to live through its start", l.ccmServes)
}

// StopCCM ends the CCM; the cluster stays as it is.
func (l *Lab) StopCCM(ctx context.Context) error {
	running, err := l.host.Running()
	if err != nil {
		return err
	}
	if p := running[componentCCM]; p != nil {
		return process.Stop(ctx, downGrace, p)
	}
	return nil
}

func (l *Lab) startCCM() (*process.Process, error) {
	file := l.State.Path("cloud-config.yaml")
	config := fmt.Sprintf("url: %s\ntokenFile: %s\nproject: %s\n", l.Cluster.CloudURL(), l.Cluster.TokenFile("ccm"), l.State.Name)
	if err := state.WriteFile(file, []byte(config)); err != nil {
		return nil, err
	}
	return l.Cluster.StartCCM(file)
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
