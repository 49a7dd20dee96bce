package lifecycle

// What dies while somebody waits for its work is told at once, with the end of
// its log, and not when the wait has reached its bound.

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/agent"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/cluster/local"
	"github.com/ccmlab/ccmlab/lab/timeline"
)

// vigilEvery is how often it is looked whether all still runs.
const vigilEvery = 500 * time.Millisecond

// watched does a step, and ends it when the agent or one of the control plane's
// processes ends, each of which should outlast it.
func (u *up) watched(ctx context.Context, note func(string), do func(context.Context, func(string)) (string, error)) (string, error) {
	if u.kube == nil { // The step that makes the control plane looks after it itself.
		return do(ctx, note)
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		ended <- awaitEnd(ctx, u.ended)
		cancel()
	}()
	said, err := do(ctx, note)
	cancel()
	if died := <-ended; err != nil && died != nil {
		return "", died // What was waited for could not come.
	}
	return said, err
}

// ended is an error that names what does not run though an earlier step saw to it.
func (u *up) ended() error {
	var errs []error
	if c, ok := u.Cluster.(cluster.Supervised); ok {
		errs = append(errs, c.Ended())
	}
	if u.agent {
		errs = append(errs, local.NewSite(u.State, cluster.Binaries{}).Ended(lab.ComponentAgent))
	}
	return errors.Join(errs...)
}

// deathsBound is how often a machine may end by itself while its node is waited
// for; the agent boots it again each time.
const deathsBound = 3

// deaths counts, from the timeline, how often each machine has.
type deaths struct {
	news *timeline.Reader
	of   map[string]int
}

// deaths begins to count now. It is for the caller to close.
func (u *up) deaths() (*deaths, error) {
	news, err := u.Timeline().Open()
	if err != nil {
		return nil, err
	}
	d := &deaths{news, map[string]int{}}
	if _, err := news.Next(); err != nil {
		return nil, errors.Join(err, news.Close())
	}
	return d, nil
}

// often names a machine that ends again and again; "" if none does.
func (d *deaths) often() (machine string, err error) {
	entries, err := d.news.Next()
	for _, e := range entries {
		if name, ok := strings.CutPrefix(e.Subject, agent.MachineSubject); ok && e.What == agent.MachineEnded {
			d.of[name]++
		}
	}
	for name, times := range d.of {
		if times >= deathsBound {
			return name, err
		}
	}
	return "", err
}

// awaitEnd looks until something has ended, or ctx has.
func awaitEnd(ctx context.Context, look func() error) error {
	tick := time.NewTicker(vigilEvery)
	defer tick.Stop()
	for {
		if err := look(); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}
