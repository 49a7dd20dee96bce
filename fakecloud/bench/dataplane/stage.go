package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/bench/harness"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// contender is what is measured: a balancer of fakecloud, a peer, or no balancer.
type contender struct {
	name, address string
	process       *harness.Process // nil: the kernel alone
	failure       error            // the first failure of a client
}

// cpuTime is the processor time that the contender's process has had.
func (c *contender) cpuTime() time.Duration {
	if c.process == nil {
		return 0
	}
	return c.process.CPU()
}

// stage holds the processes that run while a figure is measured.
type stage struct {
	*machines
	size           size
	backendServers []*harness.Process // one on each of the machines backends
	cloud          *harness.Cloud
	client         *client.Client
	instances      []string // IDs, at the addresses of the backends
	contenders     []*contender
	requestedPeers []string         // names
	missing        map[string]error // by name of the contender: why it is not measured
	balancers      []string         // addresses of the balancers created for the figure restart
	dir            string
}

// The contenders that are no peers: fakecloud's two kinds of balancers, and a backend without any.
const (
	fakecloud = "fakecloud"
	network   = "network"
	direct    = "direct"
)

// setUp starts all processes of a stage. The caller calls killProcesses even after an error.
func (b *bench) setUp(ctx context.Context, f figure) (*stage, error) {
	s := &stage{
		machines: b.machines, size: b.size, missing: map[string]error{}, dir: filepath.Join(b.dir, f.name),
	}
	if err := os.Mkdir(s.dir, 0o755); err != nil { // nginx's workers may run as another user.
		return s, err
	}
	if err := s.startCloud(ctx, b.binary, f); err != nil {
		return s, err
	}
	if err := s.startBackends(ctx, b.self); err != nil {
		return s, err
	}
	for _, c := range s.contenders {
		if err := c.awaitForwarding(ctx); err != nil {
			return s, fmt.Errorf("%s: %w", c.name, err)
		}
	}
	for _, p := range peers {
		if !slices.Contains(b.peers, p.name) || !slices.Contains(f.allPeers(), p.name) {
			continue
		}
		s.requestedPeers = append(s.requestedPeers, p.name)
		c, err := s.startPeer(ctx, p)
		if err != nil {
			s.missing[p.name] = err
			continue
		}
		s.contenders = append(s.contenders, c)
	}
	return s, ctx.Err()
}

// killProcesses kills all processes of the stage.
func (s *stage) killProcesses() {
	for _, c := range s.contenders {
		if c.process != nil {
			c.process.Kill()
		}
	}
	if s.cloud != nil {
		s.cloud.Kill()
	}
	for _, p := range s.backendServers {
		p.Kill()
	}
}

// startBackends starts a process on each backend's machine, which listens on the machine's address and on those of
// balancers that pass packets on.
func (s *stage) startBackends(ctx context.Context, self string) error {
	passing := []string{ipvsAddress()}
	for _, c := range s.contenders {
		if c.name == network {
			passing = append(passing, c.address)
		}
	}
	if err := s.takeAddresses(passing...); err != nil {
		return err
	}
	for i, address := range backendAddresses() {
		cmd := exec.Command(self, slices.Concat([]string{backendsCommand, address}, passing)...)
		var p *harness.Process
		var err error
		s.backends[i].Do(func() {
			p, err = harness.Start(cmd, filepath.Join(s.dir, fmt.Sprintf("backend-%d.log", i)))
		})
		if err != nil {
			return err
		}
		s.backendServers = append(s.backendServers, p)
		if _, err = p.AwaitLine(ctx, regexp.MustCompile("(backends are ready)")); err != nil {
			return err
		}
	}
	return nil
}

// startCloud starts the cloud and creates the balancers that the figure is about.
func (s *stage) startCloud(ctx context.Context, binary string, f figure) (err error) {
	s.balancer.Do(func() {
		s.cloud, err = harness.StartCloud(
			ctx, binary, s.dir, "--rate-limit", "0", "--instance-cidr", addressPrefix+"1.0/24",
			"--load-balancer-cidr", addressPrefix+balancerRange, "--load-balancer-interface", "eth0",
		)
	})
	if err != nil {
		return err
	}
	if s.client, err = s.cloud.NewClient("bench-dataplane", s.newTransport()); err != nil {
		return err
	}
	for _, address := range backendAddresses() {
		i, err := s.client.CreateInstance(ctx, api.InstanceCreate{Address: &address})
		if err != nil {
			return err
		}
		s.instances = append(s.instances, i.ID)
	}
	address, err := s.createBalancer(ctx, "bench", api.KindProxy)
	if err != nil {
		return err
	}
	s.contenders = append(s.contenders, &contender{name: fakecloud, address: address, process: s.cloud.Process})
	if !f.passing {
		return nil
	}
	s.contenders = append(s.contenders, &contender{name: direct, address: backendAddresses()[0]})
	if address, err = s.createBalancer(ctx, "network", api.KindNetwork); err != nil {
		s.missing[network] = err
		return nil
	}
	s.contenders = append(s.contenders, &contender{name: network, address: address, process: s.cloud.Process})
	return nil
}

// createBalancer creates a load balancer that forwards every port to all backends, without health
// checks, and returns its address.
func (s *stage) createBalancer(ctx context.Context, name string, kind api.LoadBalancerKind) (string, error) {
	lb := api.LoadBalancerCreate{
		Name: name, Kind: &kind, HealthCheck: &api.HealthCheck{Protocol: api.HealthCheckNone},
	}
	for _, port := range tcpPorts {
		lb.Listeners = append(lb.Listeners, api.Listener{Protocol: api.ProtocolTCP, Port: port, TargetPort: port})
	}
	lb.Listeners = append(lb.Listeners, api.Listener{Protocol: api.ProtocolUDP, Port: portUDP, TargetPort: portUDP})
	var targets api.Targets
	for _, id := range s.instances {
		targets = append(targets, api.Target{InstanceID: id})
	}
	lb.Targets = &targets
	made, err := s.client.CreateLoadBalancer(ctx, lb)
	if err != nil {
		return "", err
	}
	return made.Address, nil
}

// awaitForwarding waits until the contender answers: UDP for nginx, TCP for the others.
func (c *contender) awaitForwarding(ctx context.Context) error {
	if c.process == nil {
		return awaitForwarding(ctx, c.address)
	}
	return c.process.Await(ctx, 5*time.Millisecond, func() bool {
		return c.name != nginx && pingTCP(c.address) == nil || c.name == nginx && pingUDP(c.address) == nil
	})
}

// sample holds the values of one measurement.
type sample map[string]float64

// Values of a sample that figures share.
const (
	failed = "failed"
	lost   = "lost"
)

// measureContenders measures all contenders in turn. One that fails has no sample; the reason is in
// s.missing.
func (s *stage) measureContenders(ctx context.Context, f figure) (map[string]sample, error) {
	samples := map[string]sample{}
	for _, c := range s.contenders {
		took, err := s.measureContender(ctx, f, c)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil:
			s.missing[c.name] = fmt.Errorf("failed: %w%s", err, s.lastLogOf(c))
		default:
			samples[c.name] = took
		}
	}
	return samples, nil
}

func (s *stage) lastLogOf(c *contender) string {
	if c.process == nil {
		return ""
	}
	select {
	case <-c.process.Exited():
		text := c.process.Log()
		return "; it ended: " + text[max(0, len(text)-1000):]
	default:
		return ""
	}
}

// measureContender measures one contender. It adds how many cores the proxy, the clients, the
// backends and other programs had: cores that others take are missing to the proxy.
func (s *stage) measureContender(ctx context.Context, f figure, c *contender) (sample, error) {
	cores := harness.StartCoreMeter(map[string]func() time.Duration{
		"cores": c.cpuTime, "clientCores": harness.OwnCPU,
		"backendCores": func() (sum time.Duration) {
			for _, p := range s.backendServers {
				sum += p.CPU()
			}
			return sum
		},
	})
	took, err := f.measure(s, ctx, c)
	if err != nil {
		return nil, err
	}
	cores.Add(took)
	return took, nil
}

// missingNotes says why contenders are missing in a row.
func (s *stage) missingNotes() []string {
	var notes []string
	for _, name := range slices.Sorted(maps.Keys(s.missing)) {
		notes = append(notes, name+": "+strings.TrimSpace(s.missing[name].Error()))
	}
	return notes
}

var errNotInstalled = errors.New("not installed")
