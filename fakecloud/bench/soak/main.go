// soak sends a million small connections, and datagrams between them, through
// load balancers on loopback, while targets come, go and crash. It fails if a
// connection failed for which no crash accounts, or if files, goroutines or
// memory were not given back. `make soak` calls it.
//
// Clients, balancers and targets share one process, so that whatever is left
// over is counted, whoever left it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	o := options{progress: os.Stderr}
	flag.IntVar(&o.connections, "connections", 1_000_000, "how many connections to make")
	flag.IntVar(&o.datagrams, "datagrams", 200_000, "how many datagrams to send, spread over the connections")
	flag.IntVar(&o.clients, "clients", 64, "how many clients connect at a time, each from an address of its own; at most 250")
	flag.DurationVar(&o.limit, "for", 10*time.Minute, "stop after so long, however many were made")
	flag.DurationVar(&o.every, "every", 5*time.Second, "how often to say how far it is")
	flag.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixNano()), "of the changes and of what is sent; their times differ all the same")
	flag.Parse()
	if err := o.check(); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	r, err := run(ctx, o)
	if ctx.Err() != nil {
		err = errors.Join(err, errors.New("interrupted"))
	}
	stop()
	r.print(os.Stdout)
	if err := errors.Join(err, r.verdict()); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
}

// options say how long a soak is.
type options struct {
	connections, datagrams, clients int
	limit, every                    time.Duration
	seed                            uint64
	progress                        io.Writer
}

func (o options) check() error {
	switch {
	case o.connections < 1:
		return fmt.Errorf("-connections %d: there must be one at least", o.connections)
	case o.datagrams < 0:
		return fmt.Errorf("-datagrams %d: cannot be fewer than none", o.datagrams)
	case o.clients < 1 || o.clients > 250:
		return fmt.Errorf("-clients %d: choose from 1 to 250", o.clients)
	case o.limit <= 0 || o.every <= 0:
		return errors.New("-for and -every must be above 0")
	case flag.NArg() > 0:
		return fmt.Errorf("%q: there are flags only", flag.Arg(0))
	}
	return nil
}
