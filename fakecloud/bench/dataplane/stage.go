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
	"github.com/ccmlab/ccmlab/fakecloud/bench/machine"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// contender is a proxy that is measured.
type contender struct {
	name, address string
	process       *machine.Process
	failure       error // the first of those that are counted
}

// stage is what runs while a figure is measured.
type stage struct {
	size       size
	backends   *machine.Process
	cloud      *machine.Cloud
	client     *client.Client
	instances  []string // IDs, of those that the backends are
	contenders []*contender
	asked      []string         // peers that are to be measured
	missing    map[string]error // why one is not measured
	balancers  []string         // addresses of those made for the restart
	dir        string
}

const fakecloud = "fakecloud"

// setUp gives a stage to end even when it fails.
func (b *bench) setUp(ctx context.Context, f figure) (*stage, error) {
	s := &stage{size: b.size, missing: map[string]error{}, dir: filepath.Join(b.dir, f.name)}
	if err := os.Mkdir(s.dir, 0o755); err != nil { // nginx's workers may be somebody else.
		return s, err
	}
	var err error
	if s.backends, err = machine.Start(exec.Command(b.self, append([]string{backendsCommand}, backendAddresses()...)...), filepath.Join(s.dir, "backends.log")); err != nil {
		return s, err
	}
	if _, err = s.backends.Said(ctx, regexp.MustCompile("(backends are ready)")); err != nil {
		return s, err
	}
	if err := s.startCloud(ctx, b.binary); err != nil {
		return s, err
	}
	for _, p := range peers {
		if !slices.Contains(b.peers, p.name) || !slices.Contains(f.peers, p.name) {
			continue
		}
		s.asked = append(s.asked, p.name)
		c, err := p.start(ctx, s.dir)
		if err != nil {
			s.missing[p.name] = err
			continue
		}
		s.contenders = append(s.contenders, c)
	}
	return s, ctx.Err()
}

// end leaves no process behind.
func (s *stage) end() {
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
	if s.cloud, err = machine.StartCloud(ctx, binary, s.dir, "--rate-limit", "0"); err != nil {
		return err
	}
	if s.client, err = client.New(client.Config{URL: "http://" + s.cloud.Address, TokenFile: s.cloud.TokenFile(), UserAgent: "bench-dataplane", Direct: true}); err != nil {
		return err
	}
	for _, address := range backendAddresses() {
		i, err := s.client.CreateInstance(ctx, api.InstanceCreate{Address: &address})
		if err != nil {
			return err
		}
		s.instances = append(s.instances, i.ID)
	}
	address, err := s.balancer(ctx, "bench")
	if err != nil {
		return err
	}
	c := &contender{name: fakecloud, address: address, process: s.cloud.Process}
	s.contenders = append(s.contenders, c)
	return c.await(ctx)
}

// balancer makes one that forwards every port to all backends, without checking
// them, and gives its address.
func (s *stage) balancer(ctx context.Context, name string) (string, error) {
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

// await waits until the proxy forwards: all peers do tcp or udp or both.
func (c *contender) await(ctx context.Context) error {
	return c.process.Await(ctx, 5*time.Millisecond, func() bool {
		return c.name != nginx && ping(c.address) == nil || c.name == nginx && pingUDP(c.address) == nil
	})
}

// sample is what was measured once. Counts of what went wrong are added up over
// the rounds; of all else the median counts.
type sample map[string]float64

// The values that are added up.
const (
	failed = "failed"
	lost   = "lost"
)

// rounds measures each in turn, and all again. One that fails is left out from
// then on, and why is kept.
func (s *stage) rounds(ctx context.Context, f figure) (map[string]sample, error) {
	all := map[string][]sample{}
	for range max(1, min(f.rounds, s.size.Rounds)) {
		for _, c := range s.contenders {
			if s.missing[c.name] != nil {
				continue
			}
			took, err := s.measure(ctx, f, c)
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if err != nil {
				s.missing[c.name] = fmt.Errorf("failed: %w%s", err, s.lastWords(c))
				continue
			}
			all[c.name] = append(all[c.name], took)
		}
	}
	medians := map[string]sample{}
	for name, samples := range all {
		if s.missing[name] == nil {
			medians[name] = median(samples)
		}
	}
	return medians, nil
}

func (s *stage) lastWords(c *contender) string {
	select {
	case <-c.process.Exited():
		text := c.process.Log()
		return "; it ended: " + text[max(0, len(text)-1000):]
	default:
		return ""
	}
}

// measure also says who had how many cores: what the clients and the backends
// take is the proxies' loss, as the figures mean it; a figure measured while
// others had a part of the machine says less.
func (s *stage) measure(ctx context.Context, f figure, c *contender) (sample, error) {
	begin, proxy, clients, backends, all := time.Now(), c.process.CPU(), machine.OwnCPU(), s.backends.CPU(), machine.Busy(machine.Read("/proc/stat"))
	took, err := f.measure(s, ctx, c)
	if err != nil {
		return nil, err
	}
	elapsed := time.Since(begin).Seconds()
	took["cores"] = max((c.process.CPU()-proxy).Seconds()/elapsed, 0) // After a restart it is another one.
	took["clientCores"] = (machine.OwnCPU() - clients).Seconds() / elapsed
	took["backendCores"] = (s.backends.CPU() - backends).Seconds() / elapsed
	took["otherCores"] = max((machine.Busy(machine.Read("/proc/stat"))-all).Seconds()/elapsed-took["cores"]-took["clientCores"]-took["backendCores"], 0)
	return took, nil
}

func median(samples []sample) sample {
	values := map[string][]float64{}
	for _, s := range samples {
		for k, v := range s {
			values[k] = append(values[k], v)
		}
	}
	m := sample{}
	for k, v := range values {
		slices.Sort(v)
		m[k] = (v[(len(v)-1)/2] + v[len(v)/2]) / 2
		if k == failed || k == lost {
			m[k] = 0
			for _, n := range v {
				m[k] += n
			}
		}
	}
	return m
}

// absent says why some are not in a row.
func (s *stage) absent() []string {
	var notes []string
	for _, name := range slices.Sorted(maps.Keys(s.missing)) {
		notes = append(notes, name+": "+strings.TrimSpace(s.missing[name].Error()))
	}
	return notes
}

var errNotInstalled = errors.New("not installed")
