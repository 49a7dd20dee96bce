package main

import (
	"context"
	"fmt"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/bench/machine"
)

// restart kills the cloud and gives the time from when the next one says that
// it is ready until each balancer forwards again, on the address it had. Asking
// them all is in that time.
func (s *stage) restart(ctx context.Context, c *contender) (sample, error) {
	addresses, err := s.addresses(ctx)
	if err != nil {
		return nil, err
	}
	s.cloud.Kill()
	begin := time.Now()
	if err := s.cloud.Restart(); err != nil {
		return nil, err
	}
	c.process = s.cloud.Process
	if err := s.cloud.Await(ctx, time.Millisecond, func() bool { return s.client.Ready(ctx) == nil }); err != nil {
		return nil, err
	}
	ready := time.Now()
	err = forAll(ctx, len(addresses), len(addresses), func(i int) error { return listening(ctx, addresses[i]) })
	return sample{"ready": ready.Sub(begin).Seconds(), "late": time.Since(ready).Seconds(), "balancers": float64(len(addresses))}, err
}

// addresses are those of the balancers, as many of them as the size says.
func (s *stage) addresses(ctx context.Context) ([]string, error) {
	for i := len(s.balancers); i < s.size.Balancers; i++ {
		address, err := s.balancer(ctx, fmt.Sprintf("restart-%d", i))
		if err != nil {
			return nil, err
		}
		s.balancers = append(s.balancers, address)
		if err := listening(ctx, address); err != nil {
			return nil, err
		}
	}
	return s.balancers, nil
}

// listening returns when a balancer forwards.
func listening(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := ping(address)
		if err == nil {
			return nil
		}
		if stop := machine.Sleep(ctx, time.Millisecond); stop != nil {
			return fmt.Errorf("%s does not listen: %w", address, err)
		}
	}
}
