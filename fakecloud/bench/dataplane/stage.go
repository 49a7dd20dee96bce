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

// contender is a proxy that is measured: fakecloud or a peer.
type contender struct {
	name, address string
	process       *harness.Process
	failure       error // the first failure of a client
}

// stage holds the processes that run while a figure is measured.
type stage struct {
	size           size
	backends       *harness.Process
	cloud          *harness.Cloud
	client         *client.Client
	instances      []string // IDs, at the addresses of the backends
	contenders     []*contender
	requestedPeers []string         // names
	missing        map[string]error // by name of the peer: why it is not measured
	balancers      []string         // addresses of the balancers created for the figure restart
	dir            string
}

const fakecloud = "fakecloud"

// setUp starts all processes of a stage. The caller calls killProcesses even after an error.
func (b *bench) setUp(ctx context.Context, f figure) (*stage, error) {
	s := &stage{size: b.size, missing: map[string]error{}, dir: filepath.Join(b.dir, f.name)}
	if err := os.Mkdir(s.dir, 0o755); err != nil { // nginx's workers may run as another user.
		return s, err
	}
	var err error
	if s.backends, err = harness.Start(
		exec.Command(b.self, append([]string{backendsCommand}, backendAddresses()...)...),
		filepath.Join(s.dir, "backends.log"),
	); err != nil {
		return s, err
	}
	if _, err = s.backends.AwaitLine(ctx, regexp.MustCompile("(backends are ready)")); err != nil {
		return s, err
	}
	if err := s.startCloud(ctx, b.binary); err != nil {
		return s, err
	}
	for _, p := range peers {
		if !slices.Contains(b.peers, p.name) || !slices.Contains(f.peers, p.name) {
			continue
		}
		s.requestedPeers = append(s.requestedPeers, p.name)
		c, err := p.startPeer(ctx, s.dir)
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
		if c.name != fakecloud {
			c.process.Kill()
		}
	}
	if s.cloud != nil {
		s.cloud.Kill()
	}
	if s.backends != nil {
		s.backends.Kill()
	}
}

func (s *stage) startCloud(ctx context.Context, binary string) (err error) {
	if s.cloud, err = harness.StartCloud(ctx, binary, s.dir, "--rate-limit", "0"); err != nil {
		return err
	}
	if s.client, err = s.cloud.NewClient("bench-dataplane"); err != nil {
		return err
	}
	for _, address := range backendAddresses() {
		i, err := s.client.CreateInstance(ctx, api.InstanceCreate{Address: &address})
		if err != nil {
			return err
		}
		s.instances = append(s.instances, i.ID)
	}
	address, err := s.createBalancer(ctx, "bench")
	if err != nil {
		return err
	}
	c := &contender{name: fakecloud, address: address, process: s.cloud.Process}
	s.contenders = append(s.contenders, c)
	return c.awaitForwarding(ctx)
}

// createBalancer creates a load balancer that forwards every port to all backends, without health
// checks, and returns its address.
func (s *stage) createBalancer(ctx context.Context, name string) (string, error) {
	lb := api.LoadBalancerCreate{Name: name, HealthCheck: &api.HealthCheck{Protocol: api.HealthCheckNone}}
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

// awaitForwarding waits until the proxy forwards: UDP for nginx, TCP for the others.
func (c *contender) awaitForwarding(ctx context.Context) error {
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
		"cores": func() time.Duration { return c.process.CPU() }, "clientCores": harness.OwnCPU,
		"backendCores": s.backends.CPU,
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
