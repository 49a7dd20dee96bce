package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/clikit"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

func (a *app) operationsCommand() *cobra.Command {
	return groupCommand("operations", "What became of changes that take time", `  fakecloud operations list --state running
  fakecloud operations wait op-01jd3n9z6d8s`,
		a.operationsList(),
		a.operationKind(client.OperationFilter{}).
			getCommand("Show operations", "  fakecloud operations get op-01jd3n9z6d8s -o yaml"),
		a.operationsWait())
}

// operationKind is the kind of operations. Completion offers those that pass the filter.
func (a *app) operationKind(offered client.OperationFilter) resourceKind[api.Operation] {
	return resourceKind[api.Operation]{
		app: a, refs: "ID",
		list: func(ctx context.Context, c *client.Client, _ map[string]any) ([]api.Operation, error) {
			return c.ListOperations(ctx, offered)
		},
		get: func(c *client.Client, ctx context.Context, id string) (*api.Operation, error) {
			return c.GetOperation(ctx, id, 0)
		},
		cells: map[string]func(api.Operation) string{"TOOK": operationTook},
		version: func(op api.Operation) int64 {
			if op.EndedAt != nil {
				return 1
			}
			return 0
		},
	}
}

func (a *app) operationsList() *cobra.Command {
	var f client.OperationFilter
	cmd := a.operationKind(f).listCommandOf(
		"List operations, oldest first", `  fakecloud operations list --state running
  fakecloud operations list --resource i-01jd3n6f0c5w3y -o json`,
		func(ctx context.Context, c *client.Client) ([]api.Operation, error) { return c.ListOperations(ctx, f) },
		// Operations have no events of their own. They begin and end with an event of
		// their resource, so its operations are listed at each of those.
		func(ctx context.Context, c *client.Client, ev api.Event) ([]api.Operation, error) {
			if ev.Instance == nil && ev.LoadBalancer == nil || f.Resource != "" && ev.ID != f.Resource {
				return nil, nil
			}
			all, err := c.ListOperations(ctx, client.OperationFilter{Resource: ev.ID, Types: f.Types})
			return slices.DeleteFunc(all, func(op api.Operation) bool {
				return op.EndedAt != nil && op.EndedAt.Before(ev.Time)
			}), err
		})
	cmd.Long = "List operations, oldest first: the newest that the cloud keeps, and those that run."
	cmd.Flags().StringVar(&f.Resource, "resource", "", "only those of the resource of this ID")
	cmd.Flags().StringSliceVar(&f.Types, "type", nil, "only those of these types, such as createInstance")
	clikit.CompleteFlag(cmd, "type", operationTypes()...)
	addStateFlag(cmd, &f.States, resourceStates["Operation"]...)
	return cmd
}

func operationTook(op api.Operation) string {
	if op.EndedAt == nil {
		return "-"
	}
	return op.EndedAt.Sub(op.CreatedAt).Round(time.Millisecond).String()
}

func operationTypes() (types []string) {
	for _, r := range cloud.OperationRules {
		types = append(types, r.Type)
	}
	slices.Sort(types)
	return slices.Compact(types)
}

func (a *app) operationsWait() *cobra.Command {
	var timeout time.Duration
	k := a.operationKind(client.OperationFilter{States: []api.OperationState{api.OperationRunning}})
	cmd := &cobra.Command{
		Use: "wait ID...", Short: "Wait until operations have ended", Args: clikit.RequireArguments(1, 0),
		Long:              "Wait until operations have ended. It fails if one of them does not end as done, or not in time.",
		Example:           "  fakecloud operations wait op-01jd3n9z6d8s --timeout 30s",
		ValidArgsFunction: k.completeRefs(),
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			return a.refuseVirtualClock(cmd.Context(), "operations wait")
		},
		RunE: k.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
			ctx, cancel := context.WithTimeoutCause(cmd.Context(), timeout, fmt.Errorf("not ended after %s", timeout))
			defer cancel()
			var bad []error
			ended, err := doForEach(args, func(id string) (*api.Operation, error) {
				op, err := c.AwaitOperation(ctx, id)
				switch {
				case ctx.Err() != nil:
					return nil, fmt.Errorf("operation %s: %w", id, context.Cause(ctx))
				case err == nil && op.State != api.OperationDone:
					bad = append(bad, fmt.Errorf("operation %s %s: %s", id, op.State, orDash(op.Error)))
				}
				return op, err
			})
			return errors.Join(append(bad, k.printFound(cmd, ended, len(args), err))...)
		}),
	}
	a.addOutput(cmd)
	cmd.Flags().DurationVar(&timeout, "timeout", 2*time.Minute, "give up after this long")
	return cmd
}
