package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// quietPeriod is the time between two lines that say what is waited for.
const quietPeriod = 2 * time.Second

// waiter holds the flags of commands that can wait, and the operations to wait for.
type waiter struct {
	wait    bool
	timeout time.Duration
	// operations are the IDs of the operations begun, by the ID of their resource.
	operations map[string]string
}

func (w *waiter) addFlags(a *app, cmd *cobra.Command) {
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if !w.wait {
			return nil
		}
		return a.refuseVirtualClock(cmd.Context(), "--wait")
	}
	cmd.Flags().BoolVar(&w.wait, "wait", false, "wait until it is done")
	cmd.Flags().DurationVar(&w.timeout, "timeout", 2*time.Minute, "with --wait, give up after this long")
}

// recordOperation runs a change and remembers the operation that it began. The change returns
// the ID of its resource.
func (w *waiter) recordOperation(ctx context.Context, change func(context.Context) (id string, err error)) error {
	var op string
	id, err := change(client.OperationInto(ctx, &op))
	if w.operations == nil {
		w.operations = map[string]string{}
	}
	w.operations[id] = op
	return err
}

// awaitedResource is a resource that is waited for. reread reads its state again; a resource
// that does not exist any more is no error.
type awaitedResource struct {
	kind, name, id, state string
	reread                func(context.Context) (state string, err error)
}

func (w *waiter) awaitInstances(cmd *cobra.Command, c *client.Client, items []api.Instance) error {
	return awaitAll(w, cmd, c, items, func(in *api.Instance) awaitedResource {
		// One that is not found was terminated, and its record has expired.
		reread := rereader(in, in.ID, &in.State, api.InstanceTerminated, c.GetInstance)
		return awaitedResource{"instance", in.Name, in.ID, string(in.State), reread}
	})
}

func (w *waiter) awaitBalancers(cmd *cobra.Command, c *client.Client, items []api.LoadBalancer) error {
	return awaitAll(w, cmd, c, items, func(lb *api.LoadBalancer) awaitedResource {
		reread := rereader(lb, lb.ID, &lb.State, "deleted", c.GetLoadBalancer)
		return awaitedResource{"load balancer", lb.Name, lb.ID, string(lb.State), reread}
	})
}

// rereader reads a resource again, whose state is gone if it is not found.
func rereader[T any, S ~string](
	one *T,
	id string,
	state *S,
	gone S,
	get func(context.Context, string) (*T, error),
) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		now, err := get(ctx, id)
		switch {
		case client.IsNotFound(err):
			*state = gone
		case err != nil:
			return "", err
		default:
			*one = *now
		}
		return string(*state), nil
	}
}

// awaitAll waits until the operations of all items have ended, if --wait was given. It
// updates the items to their last state.
func awaitAll[T any](w *waiter, cmd *cobra.Command, c *client.Client, items []T, of func(*T) awaitedResource) error {
	if !w.wait {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(cmd.Context(), w.timeout, fmt.Errorf("not done after %s", w.timeout))
	defer cancel()
	var errs []error
	for i := range items {
		s := of(&items[i])
		if err := w.awaitOne(ctx, cmd, c, &s); err != nil {
			errs = append(errs, fmt.Errorf("%s %s (%s), now %s: %w", s.kind, s.name, s.id, s.state, err))
		}
	}
	return errors.Join(errs...)
}

func (w *waiter) awaitOne(ctx context.Context, cmd *cobra.Command, c *client.Client, s *awaitedResource) error {
	id, err := w.operationFor(ctx, c, s.id)
	if err != nil || id == "" {
		return cmp.Or(context.Cause(ctx), err)
	}
	start := time.Now()
	for {
		op, err := c.GetOperation(ctx, id, quietPeriod)
		if err == nil {
			s.state, err = s.reread(ctx)
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return err
		case op.State == api.OperationRunning:
			_, _ = fmt.Fprintf(
				cmd.ErrOrStderr(), "%s is %s, waiting for %s (%ds)\n", s.name, s.state, op.Type,
				int(time.Since(start).Seconds()),
			)
		case op.State == api.OperationDone:
			return nil
		default:
			return fmt.Errorf("%s %s: %s", op.Type, op.State, op.Error)
		}
	}
}

// operationFor is the ID of the operation that the change began or, if it began none, of the
// newest one that is running; empty if there is nothing to wait for.
func (w *waiter) operationFor(ctx context.Context, c *client.Client, resource string) (string, error) {
	if op := w.operations[resource]; op != "" {
		return op, nil
	}
	running, err := c.ListOperations(
		ctx, client.OperationFilter{Resource: resource, States: []api.OperationState{api.OperationRunning}},
	)
	if err != nil || len(running) == 0 {
		return "", err
	}
	return running[len(running)-1].ID, nil
}
