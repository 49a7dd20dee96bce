package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/bench/machine"
)

// unreachableRate is a rate limit that no client here reaches: the limiter counts, but refuses
// nothing.
const unreachableRate = "1000000"

// rateLimitFlags are the flags that set the rate limiter to unreachableRate, if the binary has
// them.
func rateLimitFlags(ctx context.Context, binary string) ([]string, error) {
	help, err := exec.CommandContext(ctx, binary, "serve", "--help").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%s serve --help: %w: %.500s", binary, err, help)
	}
	var flags []string
	for _, flag := range []string{"--rate-limit", "--rate-burst"} {
		if bytes.Contains(help, []byte(flag+" ")) {
			flags = append(flags, flag, unreachableRate)
		}
	}
	return flags, nil
}

func (b *bench) startCloud(ctx context.Context) (err error) {
	b.cloud, err = machine.StartCloud(ctx, b.binary, b.dir, b.rateLimitFlags...)
	return err
}

// restartCloud kills the cloud and starts it again. It returns the time from that start until
// the cloud answers that it is ready.
func (b *bench) restartCloud(ctx context.Context) (time.Duration, error) {
	b.cloud.Kill()
	begin := time.Now()
	if err := b.cloud.Restart(); err != nil {
		return 0, err
	}
	err := b.cloud.Await(ctx, 2*time.Millisecond, func() bool { return b.isReady(ctx) })
	return time.Since(begin), err
}

func (b *bench) isReady(ctx context.Context) bool {
	_, err := callOnce(ctx, b.cloud.Address, call{request: b.getRequest("/readyz"), want: http.StatusOK})
	return err == nil
}
