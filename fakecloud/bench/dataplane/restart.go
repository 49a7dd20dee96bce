package main

import (
	"context"
	"fmt"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/bench/harness"
)

// measureRestart kills the cloud and starts it again. It measures the time from when the cloud is
// ready until each balancer forwards again at its address, which includes asking all of them.
func (s *stage) measureRestart(ctx context.Context, c *contender) (sample, error) {
	addresses, err := s.restartBalancers(ctx)
	if err != nil {
		return nil, err
	}
	s.cloud.Kill()
	begin := time.Now()
	s.balancer.Do(func() { err = s.cloud.Restart() })
	if err != nil {
		return nil, err
	}
	c.process = s.cloud.Process
	if err := s.cloud.Await(ctx, time.Millisecond, func() bool { return s.client.Ready(ctx) == nil }); err != nil {
		return nil, err
	}
	ready := time.Now()
	err = harness.ForAll(ctx, len(addresses), len(addresses), func(ctx context.Context, i int) error {
		return awaitForwarding(ctx, addresses[i])
	})
	return sample{"ready": ready.Sub(begin).Seconds(), "late": time.Since(ready).
		Seconds(), "balancers": float64(len(addresses))}, err
}

// restartBalancers creates the balancers, as many as the size says, unless they exist. It returns
// their addresses.
func (s *stage) restartBalancers(ctx context.Context) ([]string, error) {
	for i := len(s.balancers); i < s.size.Balancers; i++ {
		address, err := s.createBalancer(ctx, fmt.Sprintf("restart-%d", i), api.KindProxy)
		if err != nil {
			return nil, err
		}
		s.balancers = append(s.balancers, address)
		if err := awaitForwarding(ctx, address); err != nil {
			return nil, err
		}
	}
	return s.balancers, nil
}

// awaitForwarding waits until a balancer forwards.
func awaitForwarding(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, ioTimeout)
	defer cancel()
	for {
		err := pingTCP(address)
		if err == nil {
			return nil
		}
		if stop := harness.Sleep(ctx, time.Millisecond); stop != nil {
			return fmt.Errorf("%s does not listen: %w", address, err)
		}
	}
}
