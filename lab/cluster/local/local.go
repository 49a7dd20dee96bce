// Package local runs processes of a lab on this machine's loopback, whatever its
// cluster is: a cloud, and a CCM that is kept running. It knows nothing of the cluster
// itself. Begin with Site.
package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/ccmlab/ccmlab/fakecloud/identity"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/lab/state"
)

// reclaimBound is how long a lab that comes back waits for its addresses.
const reclaimBound = 3 * time.Second

const (
	// downGrace is how long processes may take to end when their data is about to be
	// deleted. An API server would take longer than all else that a reset does.
	downGrace = 200 * time.Millisecond
	// pauseGrace is how long they may take when their data is kept.
	pauseGrace = 1500 * time.Millisecond
)

// Site is one lab's slot of loopback, and the processes in it.
type Site struct {
	Lab  *state.Lab
	Bin  cluster.Binaries
	Host process.Host
}

// NewSite describes the lab's site. It starts nothing.
func NewSite(lab *state.Lab, bin cluster.Binaries) Site {
	return Site{Lab: lab, Bin: bin, Host: process.Host{Lab: lab.Path()}}
}

// Address is the address of the control plane and the cloud.
func (s Site) Address() string { return slotAddress(s.Lab.Slot) }

// Port is a component's port on Address.
func (s Site) Port(name string) string { return strconv.Itoa(s.Lab.Ports[name]) }

// Endpoint is ADDRESS:PORT of a component.
func (s Site) Endpoint(name string) string { return net.JoinHostPort(s.Address(), s.Port(name)) }

// InstanceCIDR is the range of the cloud's instances.
func (s Site) InstanceCIDR() string { return fmt.Sprintf("127.%d.16.0/20", s.Lab.Slot) }

// LoadBalancerCIDR is the range of the cloud's balancers.
func (s Site) LoadBalancerCIDR() string { return fmt.Sprintf("127.%d.64.0/18", s.Lab.Slot) }

// Spec describes a component's process.
func (s Site) Spec(component, program string, args ...string) process.Spec {
	return process.Spec{Component: component, Path: s.Bin.Program(program), Args: args, LogFile: s.LogFile(component)}
}

// LogFile is where a component's output goes.
func (s Site) LogFile(component string) string {
	component, _, _ = strings.Cut(component, "@")
	return s.Lab.Path("logs", strings.ReplaceAll(component, "/", "-")+".log")
}

// Ensure starts a component unless it runs.
func (s Site) Ensure(spec process.Spec) (*process.Process, error) {
	running, err := s.Host.Running()
	if err != nil {
		return nil, err
	}
	if p := running[spec.Component]; p != nil {
		p.LogFile = spec.LogFile
		return p, nil
	}
	return s.Host.Start(spec)
}

// Serve starts the components that do not run. It returns when ready, which asks the
// last one, returns nil. A process that was already running and ends meanwhile is
// started anew, because it was ending when it was found.
func (s Site) Serve(ctx context.Context, what string, ready func(context.Context) error, specs ...process.Spec) error {
	for {
		all := make([]*process.Process, len(specs))
		for i, spec := range specs {
			var err error
			if all[i], err = s.Ensure(spec); err != nil {
				return err
			}
		}
		needs, last := all[:len(all)-1], all[len(all)-1]
		err := Await(ctx, last, what, ready, needs...)
		if err == nil || ctx.Err() != nil || !slices.ContainsFunc(all, func(p *process.Process) bool {
			return p.IsAdopted() && !p.Alive()
		}) {
			return err
		}
	}
}

// awaitInterval is how often Await asks.
const awaitInterval = 50 * time.Millisecond

// Await polls ready until it returns nil. When the process p, a process that it needs, or
// ctx ends first, the error says what was waited for.
func Await(
	ctx context.Context,
	p *process.Process,
	what string,
	ready func(context.Context) error,
	needs ...*process.Process,
) error {
	var last error
	err := wait.PollUntilContextCancel(ctx, awaitInterval, true, func(ctx context.Context) (bool, error) {
		err := ready(ctx)
		if err == nil {
			return true, nil
		}
		if last == nil || err.Error() != last.Error() {
			slog.Debug("waiting for "+what, "so far", err)
		}
		last = err
		for _, needed := range append(needs, p) {
			if !needed.Alive() {
				return false, exitedEarlyError(needed)
			}
		}
		return false, nil
	})
	if wait.Interrupted(err) {
		err = errors.Join(context.Cause(ctx), last)
		return fmt.Errorf("waited for %s: %w\n%s", what, err, process.LogHint(p.LogFile))
	}
	return err
}

// exitedEarlyError is the error for a process that ended while it was waited for.
func exitedEarlyError(p *process.Process) error {
	hint := process.LogHint(p.LogFile)
	if p.IsAdopted() {
		return fmt.Errorf("%s ended\n%s", p.Component, hint)
	}
	how := "exit status 0"
	if err := p.Exit(); err != nil {
		how = err.Error()
	}
	return fmt.Errorf("%s ended at its start (%s)\n%s", p.Component, how, hint)
}

// targetRangeFlag is fakecloud's flag for machines that it has not made.
const targetRangeFlag = "--target-range="

// ComponentCloud is the name of the cloud's process.
const ComponentCloud = "fakecloud"

// Cloud says how to reach the lab's cloud. It speaks TLS although only this machine can reach it: when it has died,
// another user of the machine may listen on its port, and must get no caller's token.
func (s Site) Cloud() cluster.Cloud {
	dir := s.Lab.Path("cloud")
	c := cluster.Cloud{
		URL: "https://" + s.Endpoint(PortCloud), Dir: dir, CAFile: dir + "/ca.crt", // The cloud makes it.
		Dialects:      map[string]string{},
		BalancerRange: netip.MustParsePrefix(s.LoadBalancerCIDR()),
	}
	for _, dialect := range identity.Dialects() { // Each has a port of its name.
		if s.Lab.Ports[dialect] != 0 { // A lab of an earlier version has none.
			c.Dialects[dialect] = "https://" + s.Endpoint(dialect)
		}
	}
	return c
}

// Fakecloud describes the process of the lab's cloud, which writes the token files. The cloud's balancers may send to
// instances of its own, and to the targets.
func (s Site) Fakecloud(tag string, targets ...netip.Addr) process.Spec {
	spec := s.Spec(ComponentCloud, "fakecloud", "serve",
		"--listen="+s.Endpoint(PortCloud),
		"--data="+s.Lab.Path("cloud", "cloud.db"),
		"--tls-self-signed",
		"--project="+s.Lab.Name,
		"--profile="+s.Lab.Profile,
		"--default-tag="+tag,
		"--instance-cidr="+s.InstanceCIDR(),
		"--load-balancer-cidr="+s.LoadBalancerCIDR(),
	)
	for _, a := range targets {
		spec.Args = append(spec.Args, targetRangeFlag+netip.PrefixFrom(a, a.BitLen()).String())
	}
	spec.Args = append(spec.Args, s.Cloud().DialectFlags()...)
	spec.Args = append(spec.Args, cluster.QuotaFlags(s.Lab)...)
	spec.Args = append(spec.Args, cluster.RegionFlags(s.Lab)...)
	for _, caller := range cluster.Callers {
		spec.Args = append(spec.Args, cluster.TokenFlag(caller, s.Cloud().TokenFile(caller)))
	}
	return spec
}

// StartCloud starts the cloud and returns when it is ready.
func (s Site) StartCloud(ctx context.Context, tag string, note func(string)) error {
	return s.StartCloudFor(ctx, tag, note)
}

// StartCloudFor is StartCloud for machines that are there already, at these addresses. A cloud that runs
// without one of them is started anew.
func (s Site) StartCloudFor(ctx context.Context, tag string, note func(string), targets ...netip.Addr) error {
	spec := s.Fakecloud(tag, targets...)
	if err := s.stopOutdatedCloud(ctx, spec); err != nil {
		return err
	}
	note("waiting for it to be ready")
	return s.Serve(ctx, "fakecloud to be ready on "+s.Cloud().URL, s.Cloud().Ready, spec)
}

// stopOutdatedCloud ends a cloud that runs without one of the target ranges.
func (s Site) stopOutdatedCloud(ctx context.Context, spec process.Spec) error {
	running, err := s.Host.Running()
	p := running[spec.Component]
	if err != nil || p == nil {
		return err
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID))
	if err != nil {
		return nil //nolint:nilerr // It has ended since.
	}
	has := strings.Split(string(line), "\x00")
	if slices.ContainsFunc(spec.Args, func(arg string) bool {
		return strings.HasPrefix(arg, targetRangeFlag) && !slices.Contains(has, arg)
	}) {
		return process.Stop(ctx, storeGrace, p)
	}
	return nil
}

// Claim takes a free slot for a new lab.
func (s Site) Claim(context.Context) (cluster.Hold, error) {
	kept, err := keptSlots()
	if err != nil {
		return nil, err
	}
	slot, err := ClaimSlot(kept...)
	if err != nil {
		return nil, err
	}
	s.Lab.Slot, s.Lab.Ports = slot.Number, slot.Ports
	return slot.Lock, nil
}

// Reclaim claims the lab's own slot again.
func (s Site) Reclaim(ctx context.Context) (cluster.Hold, error) {
	running, err := s.Host.Running()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, reclaimBound)
	defer cancel()
	slot, err := ReclaimSlot(ctx, s.Lab.Slot, s.Lab.Ports, len(running) > 0)
	if err != nil {
		return nil, err
	}
	return slot.Lock, nil
}

// Down ends every process of the lab. It holds the slot until the last one has ended,
// so that no other lab takes it meanwhile.
func (s Site) Down(ctx context.Context) (ended int, err error) {
	if s.Lab.Slot != 0 {
		// Not to be had if somebody else was faster after a crash.
		if slot, err := HoldSlot(s.Lab.Slot, s.Lab.Ports); err == nil {
			defer func() { _ = slot.Lock.Close() }()
		}
	}
	for {
		running, err := s.Host.Running()
		if err != nil || len(running) == 0 {
			return ended, err
		}
		all := make([]*process.Process, 0, len(running))
		for _, p := range running {
			all = append(all, p)
		}
		if err := errors.Join(process.Stop(ctx, downGrace, all...), ctx.Err()); err != nil {
			return ended, err
		}
		ended += len(all)
	}
}

// Components reports for each name whether its process runs. The person decides whether
// the CCM should.
func (s Site) Components(names ...string) ([]cluster.Component, error) {
	running, err := s.Host.Running()
	if err != nil {
		return nil, err
	}
	var all []cluster.Component
	for _, name := range names {
		c := cluster.Component{Name: name, State: cluster.StateStopped, Wanted: name != ComponentCCM || s.CCMWanted()}
		if p := running[name]; p != nil {
			c.PID, c.State = p.PID, cluster.StateRunning
		}
		all = append(all, c)
	}
	return all, nil
}

// Logs are the files in the lab's folder of logs.
func (s Site) Logs(context.Context) ([]cluster.Log, error) { return FileLogs(s.Lab.Path("logs")) }

// Ended returns an error that names the components that do not run, with the end of
// their logs.
func (s Site) Ended(components ...string) error {
	running, err := s.Host.Running()
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range components {
		if running[name] == nil {
			errs = append(errs, fmt.Errorf("%s has ended\n%s", name, process.LogHint(s.LogFile(name))))
		}
	}
	return errors.Join(errs...)
}

// storeGrace is how long what keeps the state has to end by itself, once nobody
// asks it for anything any more.
const storeGrace = 5 * time.Second

// stores keep what a lab knows.
var stores = []string{ComponentCloud, PortEtcd}

// Pause ends every process of the lab, those that hold its state last.
func (s Site) Pause(ctx context.Context) (ended int, err error) {
	running, err := s.Host.Running()
	if err != nil {
		return 0, err
	}
	var others, keepers []*process.Process
	for name, p := range running {
		if slices.Contains(stores, name) {
			keepers = append(keepers, p)
		} else {
			others = append(others, p)
		}
	}
	if err = errors.Join(process.Stop(ctx, pauseGrace, others...), ctx.Err()); err != nil {
		return len(others), err
	}
	if err = errors.Join(process.Stop(ctx, storeGrace, keepers...), ctx.Err()); err != nil {
		return len(others), err
	}
	rest, err := s.Down(ctx) // What was started in between.
	return len(running) + rest, err
}

// keptSlots are those of this user's labs, running or not: a lab that is stopped
// comes back to its own.
func keptSlots() ([]int, error) {
	names, err := state.List()
	if err != nil {
		return nil, err
	}
	var kept []int
	for _, name := range names {
		if lab, err := state.Open(name); err == nil { // A damaged one does not come back.
			kept = append(kept, lab.Slot)
		}
	}
	return kept, nil
}
