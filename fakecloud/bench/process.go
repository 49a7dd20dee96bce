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

// abundant is a rate that no client here reaches: the limiter counts, and
// refuses nothing.
const abundant = "1000000"

// limits are the flags that make the rate limiter run without refusing, if this
// binary has one.
func limits(ctx context.Context, binary string) ([]string, error) {
	help, err := exec.CommandContext(ctx, binary, "serve", "--help").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%s serve --help: %w: %.500s", binary, err, help)
	}
	var flags []string
	for _, flag := range []string{"--rate-limit", "--rate-burst"} {
		if bytes.Contains(help, []byte(flag+" ")) {
			flags = append(flags, flag, abundant)
		}
	}
	return flags, nil
}

func (b *bench) startCloud(ctx context.Context) (err error) {
	b.cloud, err = machine.StartCloud(ctx, b.binary, b.dir, b.limits...)
	return err
}

// restart kills the cloud at once and gives the time from the start of the next
// one to its first answer that it is ready.
func (b *bench) restart(ctx context.Context) (time.Duration, error) {
	b.cloud.Kill()
	begin := time.Now()
	if err := b.cloud.Restart(); err != nil {
		return 0, err
	}
	err := b.cloud.Await(ctx, 2*time.Millisecond, func() bool { return b.ready(ctx) })
	return time.Since(begin), err
}

func (b *bench) ready(ctx context.Context) bool {
	_, err := once(ctx, b.cloud.Address, call{request: b.get("/readyz"), want: http.StatusOK})
	return err == nil
}
