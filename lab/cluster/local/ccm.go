package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/ccmlab/ccmlab/lab/atomicfile"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/process"
)

// ComponentCCM is the name of the CCM's process.
const ComponentCCM = "ccm"

// ccmBound is how long the CCM may take to start.
const ccmBound = 30 * time.Second

// ccmMark is there while the CCM should run.
func (s Site) ccmMark() string { return s.Lab.Path("ccm.wanted") }

// CCMWanted reports whether the CCM should run.
func (s Site) CCMWanted() bool {
	_, err := os.Stat(s.ccmMark())
	return !errors.Is(err, fs.ErrNotExist)
}

// KubeconfigFlags are the flags that give a controller of upstream's framework its user.
func KubeconfigFlags(file string) []string {
	return []string{
		"--kubeconfig=" + file, "--authentication-kubeconfig=" + file, "--authorization-kubeconfig=" + file,
	}
}

// Command is the command line of the CCM that spec describes, as cluster.Cluster has it.
func (s Site) Command(spec process.Spec, clusterCIDR string) cluster.CCMCommand {
	return cluster.CCMCommand{
		Path: spec.Path, Args: spec.Args, CloudConfig: s.CloudConfig(), Address: s.Address(),
		Port: s.Lab.Ports[PortCCM], ClusterCIDR: clusterCIDR,
	}
}

// CloudConfig is the file behind the CCM's --cloud-config.
func (s Site) CloudConfig() string { return s.Lab.Path("cloud-config.yaml") }

// CCMConfig is the content of the CCM's configuration file. It has what any CCM of this cloud
// needs and nothing else: a learner's own may take a field that it does not know for an error.
func CCMConfig(url, tokenFile, caFile, project string) string {
	return fmt.Sprintf("url: %s\ntokenFile: %s\ncaFile: %s\nproject: %s\n", url, tokenFile, caFile, project)
}

// MassDeletionEnv says when the mass-deletion guard of the lab's own CCM stops. In a lab people
// delete most of a few Nodes on purpose, and a lesson lasts no half an hour: so five always may
// go, and what is held goes after half a minute.
var MassDeletionEnv = []string{
	"FAKECLOUD_MASS_DELETION_MINIMUM=5", "FAKECLOUD_MASS_DELETION_WINDOW=30s", "FAKECLOUD_MASS_DELETION_HOLD=30s",
}

// MassDeletionConfig is the same for a CCM that has no environment of the lab's.
const MassDeletionConfig = "massDeletion: {minimum: 5, window: 30s, hold: 30s}\n"

// NetworkBalancersConfig has the CCM choose network balancers where a Service does not say. Nodes need a real
// kube-proxy, which takes the packets that these pass on.
const NetworkBalancersConfig = "loadBalancer:\n  defaults:\n    kind: network\n"

// CCMAddress is where the CCM serves health and metrics.
func (s Site) CCMAddress() string { return s.Endpoint(PortCCM) }

// ShortLease are a lab's leader election flags. The framework never releases its lease,
// so a restarted CCM waits until the old lease expires.
var ShortLease = []string{
	"--leader-elect-lease-duration=6s", "--leader-elect-renew-deadline=5s", "--leader-elect-retry-period=1s",
}

// CCM describes the CCM's process. flags hold its access to the cluster.
func (s Site) CCM(flags ...string) process.Spec {
	spec := s.Spec(ComponentCCM, "ccm", append(slices.Concat(flags, ShortLease),
		"--cloud-config="+s.CloudConfig(),
		"--cluster-name="+s.Lab.Name,
		"--bind-address="+s.Address(), "--secure-port="+s.Port(PortCCM),
		"--node-monitor-period=2s",
		// Whoever runs the cluster sees to its pods' network; loopback needs no routes.
		"--configure-cloud-routes=false",
		"--profiling=false",
	)...)
	spec.Env = MassDeletionEnv
	return spec
}

// usedCCM says which program is the CCM, if it is not the lab's own.
func (s Site) usedCCM() string { return s.Lab.Path("ccm.json") }

// UseCCM implements cluster.Cluster.
func (s Site) UseCCM(p *cluster.Program) error {
	if p == nil {
		if err := os.Remove(s.usedCCM()); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	data, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return atomicfile.Write(s.usedCCM(), data)
}

// ProgramInUse is the program that UseCCM set; nil is the lab's own.
func (s Site) ProgramInUse() (*cluster.Program, error) {
	data, err := os.ReadFile(s.usedCCM())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	p := &cluster.Program{}
	if err := json.Unmarshal(data, p); err != nil {
		return nil, fmt.Errorf(
			"%s is damaged: %w; `lab ccm use --own` has the lab's own CCM run again", s.usedCCM(), err,
		)
	}
	return p, nil
}

// StartCCM marks the CCM as wanted, and returns when it serves. The lab's agent starts
// it.
func (s Site) StartCCM(ctx context.Context) error {
	cloud := s.Cloud()
	return s.StartCCMWith(ctx, CCMConfig(cloud.URL, cloud.TokenFile(cluster.CallerCCM), cloud.CAFile, s.Lab.Name))
}

// StartCCMWith is StartCCM with this configuration instead of the one for the site's own cloud.
func (s Site) StartCCMWith(ctx context.Context, config string) error {
	if err := errors.Join(
		atomicfile.Write(s.CloudConfig(), []byte(config)), atomicfile.Write(s.ccmMark(), nil),
	); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, ccmBound, fmt.Errorf("gave up after %s", ccmBound))
	defer cancel()
	if err := cluster.Poll(ctx, "the CCM to serve on "+s.CCMAddress(), s.ccmServes); err != nil {
		return fmt.Errorf("%w\n%s", err, process.LogHint(s.LogFile(ComponentCCM)))
	}
	return nil
}

// ccmServes is an error while it does not. Where another program serves, if it does
// so at all, only that program knows: it is to run.
func (s Site) ccmServes(ctx context.Context) error {
	if used, err := s.ProgramInUse(); err != nil || used != nil {
		running, notSeen := s.Host.Running()
		if err = errors.Join(err, notSeen); err == nil && running[ComponentCCM] == nil {
			err = fmt.Errorf("%s does not run", used.Path)
		}
		return err
	}
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", s.CCMAddress())
	if err != nil {
		return err
	}
	return conn.Close()
}

// StopCCM marks the CCM as not wanted, and ends it.
func (s Site) StopCCM(ctx context.Context) error {
	if err := os.Remove(s.ccmMark()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for {
		running, err := s.Host.Running()
		if err != nil || running[ComponentCCM] == nil {
			return err
		}
		if err := process.Stop(ctx, pauseGrace, running[ComponentCCM]); err != nil {
			return err
		}
	}
}

// KeepCCM restarts a CCM that ends by itself, as a Deployment would: upstream's
// exits whenever it loses its lease, after a laptop's sleep for one.
func (s Site) KeepCCM(ctx context.Context, spec process.Spec, log *slog.Logger) error {
	return Keeper{
		Mark: s.ccmMark(), Log: log, Delay: restartDelay,
		Running: func() (*process.Process, error) {
			running, err := s.Host.Running()
			return running[ComponentCCM], err
		},
		Start: func() (*process.Process, error) {
			used, err := s.ProgramInUse()
			if err != nil {
				return nil, err
			}
			spec := spec
			if used != nil {
				spec.Path, spec.Args, spec.HostsFile = used.Path, used.Args, used.HostsFile
				if used.Env != nil {
					spec.Env = used.Env
				}
			}
			return s.Ensure(spec)
		},
	}.Run(ctx)
}

const (
	// healthyRun is how long a process must have lived for its end not to
	// count as a failure of its start.
	healthyRun = 10 * time.Second
	maxDelay   = 30 * time.Second
)

// restartDelay is the first delay before a restart. It prevents a tight loop when a
// process ends at once.
const restartDelay = time.Second

// stopGrace is how long a process may take to end by itself.
const stopGrace = 3 * time.Second

// Keeper keeps one process running as long as a file, the mark, exists. To start the
// process, create the mark; to stop it, remove the mark and end the process.
type Keeper struct {
	Mark    string
	Running func() (*process.Process, error) // nil if it does not run
	Start   func() (*process.Process, error)
	Log     *slog.Logger
	// Delay is how long a process that ended stays away at first.
	Delay time.Duration
}

// Run works until ctx ends, and then leaves the process as it is. The restart delay
// grows while the process ends soon after each start.
func (k Keeper) Run(ctx context.Context) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer func() { _ = watcher.Close() }()
	if err := watcher.Add(filepath.Dir(k.Mark)); err != nil {
		return err
	}
	delay := k.Delay
	for ctx.Err() == nil {
		began, marked := time.Now(), k.markedAt()
		p, err := k.findOrStart(ctx)
		if err != nil {
			k.Log.Error("keeping the CCM running", "error", err)
		}
		if p == nil && err == nil { // Not wanted.
			delay = k.Delay
			k.waitForMark(ctx, watcher, k.isWanted, nil)
			continue
		}
		if p != nil && p.Wait(ctx) != nil {
			return nil
		}
		if time.Since(began) > healthyRun {
			delay = k.Delay
		}
		k.Log.Info("the CCM ended", "again", k.isWanted(), "after", delay)
		// Whoever stops it, or starts it anew, does not wait.
		changed := func() bool { return !k.markedAt().Equal(marked) }
		if k.waitForMark(ctx, watcher, changed, time.After(delay)) {
			delay = k.Delay
		} else {
			delay = min(2*delay, maxDelay)
		}
	}
	return nil
}

// markedAt is when the mark was made; zero without one.
func (k Keeper) markedAt() time.Time {
	info, err := os.Stat(k.Mark)
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

func (k Keeper) isWanted() bool { return !k.markedAt().IsZero() }

// findOrStart returns the process, started if need be; nil if it is not wanted.
func (k Keeper) findOrStart(ctx context.Context) (*process.Process, error) {
	p, err := k.Running()
	if err != nil || p != nil || !k.isWanted() {
		return p, err
	}
	if p, err = k.Start(); err != nil {
		return nil, err
	}
	k.Log.Info("started the CCM", "pid", p.PID)
	if !k.isWanted() { // It was removed just now, by somebody who saw nothing running.
		return nil, process.Stop(ctx, stopGrace, p)
	}
	return p, nil
}

// waitForMark waits until is says that the mark is so. It returns false if ctx ends before, or the time is over.
func (k Keeper) waitForMark(ctx context.Context, w *fsnotify.Watcher, is func() bool, over <-chan time.Time) bool {
	for !is() {
		select {
		case <-w.Events:
		case err := <-w.Errors:
			k.Log.Error("watching for the CCM's mark", "error", err)
		case <-over:
			return false
		case <-ctx.Done():
			return false
		}
	}
	return true
}
