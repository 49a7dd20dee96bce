// This file answers: how does --wait wait?

package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

const (
	// pollEvery is how often an instance that is waited for is looked at.
	pollEvery = 100 * time.Millisecond
	// quietFor is how long a wait needs no explanation.
	quietFor = 2 * time.Second
)

// waiter holds the flags of commands that can wait.
type waiter struct {
	wait    bool
	timeout time.Duration
}

func (w *waiter) flags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&w.wait, "wait", false, "wait until it is done")
	cmd.Flags().DurationVar(&w.timeout, "timeout", 2*time.Minute, "with --wait, give up after this long")
}

// await gives the instances as they are when all have reached the state, or as
// far as they came.
func (w *waiter) await(cmd *cobra.Command, c *client.Client, items []api.Instance, final api.InstanceState) ([]api.Instance, error) {
	if !w.wait {
		return items, nil
	}
	ctx, cancel := context.WithTimeoutCause(cmd.Context(), w.timeout, fmt.Errorf("not %s after %s", final, w.timeout))
	defer cancel()
	var errs []error
	for i := range items {
		if err := awaitOne(ctx, cmd, c, &items[i], final); err != nil {
			errs = append(errs, fmt.Errorf("instance %s (%s), now %s: %w", items[i].Name, items[i].ID, items[i].State, err))
		}
	}
	return items, errors.Join(errs...)
}

func awaitOne(ctx context.Context, cmd *cobra.Command, c *client.Client, in *api.Instance, final api.InstanceState) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	speak := time.NewTicker(quietFor)
	defer speak.Stop()
	start := time.Now()
	for in.State != final {
		if ended(in.State, final) {
			return fmt.Errorf("it will not be %s", final)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-speak.C:
			_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "%s is %s, waiting for %s (%ds)\n", in.Name, in.State, final, int(time.Since(start).Seconds()))
			continue
		case <-tick.C:
		}
		now, err := c.GetInstance(ctx, in.ID)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case client.IsNotFound(err) && final == api.InstanceTerminated:
			in.State = final // It was, and is not even kept any more.
		case err != nil:
			return err
		default:
			*in = *now
		}
	}
	return nil
}

// ended tells whether someone else has sent the instance another way.
func ended(state, final api.InstanceState) bool {
	switch state {
	case api.InstanceTerminated, api.InstanceTerminating:
		return final != api.InstanceTerminated
	case api.InstanceError:
		return true
	}
	return false
}
