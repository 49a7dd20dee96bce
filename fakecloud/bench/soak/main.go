// soak sends a million small connections, and datagrams between them, through load balancers
// on loopback, while targets come, go and crash. It fails if a connection fails for which no
// crash accounts, if datagrams are no longer answered, or if files, goroutines or memory are
// left over. It stops when its time is over, and says in its last line if that was before
// all connections were made. `make soak` calls it.
//
// Clients, balancers and targets share one process, so that everything left over is counted.
//
// Begin with run in soak.go. client.go has the clients, session_group.go the sessions of
// datagrams that are open when a target crashes, target.go the targets, report.go the result.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/pprof"
	"syscall"
	"time"
)

func main() {
	o := options{changeEvery: 500, progress: os.Stderr}
	flag.IntVar(&o.connections, "connections", 1_000_000, "how many connections to make, if -for allows")
	flag.IntVar(&o.datagrams, "datagrams", 200_000, "how many datagrams to send, spread over the connections")
	flag.IntVar(
		&o.sessions, "sessions", 300,
		"how many clients keep a session of datagrams open, so that crashes meet many; at most 500",
	)
	flag.IntVar(
		&o.clients, "clients", 64, "how many clients connect at a time, each from an address of its own; at most 250",
	)
	flag.DurationVar(
		&o.limit, "for", 10*time.Minute, "stop after so long, however many were made; that is no failure, and said",
	)
	flag.DurationVar(&o.every, "every", 5*time.Second, "how often to say how far it is")
	flag.Uint64Var(&o.seed, "seed", uint64(time.Now().
		UnixNano()), "of the changes and of what is sent; their times differ all the same")
	flag.Parse()
	if err := o.validate(); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	r, err := run(ctx, o)
	if ctx.Err() != nil {
		err = errors.Join(err, errors.New("interrupted"))
	}
	stop()
	if errors.Is(err, errStuck) {
		_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
	}
	r.printReport(os.Stdout)
	err = errors.Join(err, r.verdict())
	fmt.Printf("\n%s\n", r.closingLine(err))
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
}

const (
	// maxClients is how many different addresses clientAddress has.
	maxClients = 250
	// maxSessions leaves room for the clients' sessions: a listener may have 1024.
	maxSessions = 500
)

// options are the flags.
type options struct {
	connections, datagrams, clients int
	sessions                        int
	changeEvery                     int // connections
	limit, every                    time.Duration
	seed                            uint64
	progress                        io.Writer
}

func (o options) validate() error {
	switch {
	case o.connections < 1:
		return fmt.Errorf("-connections %d: there must be one at least", o.connections)
	case o.datagrams < 0:
		return fmt.Errorf("-datagrams %d: cannot be fewer than none", o.datagrams)
	case o.clients < 1 || o.clients > maxClients:
		return fmt.Errorf("-clients %d: choose from 1 to %d", o.clients, maxClients)
	case o.sessions < 0 || o.sessions > maxSessions:
		return fmt.Errorf("-sessions %d: choose from 0 to %d", o.sessions, maxSessions)
	case o.limit <= 0 || o.every <= 0:
		return errors.New("-for and -every must be above 0")
	case flag.NArg() > 0:
		return fmt.Errorf("%q: there are flags only", flag.Arg(0))
	}
	return nil
}
