// Command fakecloud is the simulated cloud and its command line.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/ccmlab/ccmlab/fakecloud/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // The second signal kills.
	os.Exit(cli.Run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}
