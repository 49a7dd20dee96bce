package main

import (
	"context"
	"net"

	"github.com/ccmlab/ccmlab/fakecloud/bench/harness"
)

// measureIdle opens connections, uses each once, and compares the proxy's resident memory and open
// files before and after. It does not include the kernel's memory for the sockets, which is at
// least as much.
func (s *stage) measureIdle(ctx context.Context, c *contender) (sample, error) {
	before, _, err := c.process.Memory()
	filesBefore := c.process.Files()
	if err != nil {
		return nil, err
	}
	conns, err := dialAll(ctx, c.address, portEcho, s.size.Idle)
	if err != nil {
		return nil, err
	}
	defer closeAll(conns)
	if err := pingAll(ctx, conns); err != nil {
		return nil, err
	}
	if err := harness.Sleep(ctx, s.size.Warm); err != nil { // Memory needed only for opening may be freed.
		return nil, err
	}
	after, _, err := c.process.Memory()
	if err != nil {
		return nil, err
	}
	n := float64(len(conns))
	return sample{
		"connections": n, "bytesPerConnection": float64(after-before) / n,
		"filesPerConnection": float64(c.process.Files()-filesBefore) / n,
	}, pingAll(ctx, conns) // All of them are still open.
}

func pingAll(ctx context.Context, conns []*net.TCPConn) error {
	return harness.ForAll(ctx, len(conns), 16, func(_ context.Context, i int) error {
		return exchangeRequest(conns[i], uint64(i), make([]byte, requestSize+answerSize))
	})
}
