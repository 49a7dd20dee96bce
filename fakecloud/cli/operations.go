// This file answers: what of operations from the command line?

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
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

func (a *app) operations() *cobra.Command {
	return group("operations", "What became of changes that take time", `  fakecloud operations list --state running
  fakecloud operations wait op-01jd3n9z6d8s`,
		a.operationsList(), a.operationsGet(), a.operationsWait())
}

const operationHeader = "ID TYPE RESOURCE STATE +TOKEN AGE +TOOK ERROR"

func (a *app) operationRow(op api.Operation) []string {
	took := "-"
	if op.EndedAt != nil {
		took = op.EndedAt.Sub(op.CreatedAt).Round(time.Millisecond).String()
	}
	return []string{op.ID, op.Type, op.ResourceID, string(op.State), orDash(op.Token), a.age(op.CreatedAt), took, orDash(op.Error)}
}

func (a *app) printOperations(cmd *cobra.Command, value any, items []api.Operation) error {
	var rows [][]string
	for _, op := range items {
		rows = append(rows, a.operationRow(op))
	}
	return a.print(cmd.OutOrStdout(), value, operationHeader, rows)
}

func (a *app) operationsList() *cobra.Command {
	var f client.OperationFilter
	var watch bool
	cmd := &cobra.Command{
		Use: "list", Short: "List operations, oldest first", Args: cobra.NoArgs,
		Long: "List operations, oldest first: the newest that the cloud keeps, and those that run.",
		Example: `  fakecloud operations list --state running
  fakecloud operations list --resource i-01jd3n6f0c5w3y -o json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return usageError{err}
			}
			if watch {
				return a.watchOperations(cmd, c, f)
			}
			items, err := c.ListOperations(cmd.Context(), f)
			if err != nil {
				return err
			}
			return a.printOperations(cmd, api.OperationList{Items: orEmpty(items)}, items)
		},
	}
	a.addOutput(cmd)
	addWatch(cmd, &watch)
	cmd.Flags().StringVar(&f.Resource, "resource", "", "only those of the resource of this ID")
	cmd.Flags().StringSliceVar(&f.Types, "type", nil, "only those of these types, such as createInstance")
	noFiles(cmd, map[string][]string{"type": operationTypes()})
	stateFlag(cmd, &f.States, "an operation", api.OperationRunning, api.OperationDone, api.OperationFailed, api.OperationSuperseded)
	return cmd
}

func operationTypes() (types []string) {
	for _, r := range cloud.OperationRules {
		types = append(types, string(r.Type))
	}
	slices.Sort(types)
	return slices.Compact(types)
}

func (a *app) completeOperations(f client.OperationFilter) cobra.CompletionFunc {
	return a.complete(func(ctx context.Context, c *client.Client) (ids []string, err error) {
		items, err := c.ListOperations(ctx, f)
		for _, op := range items {
			ids = append(ids, op.ID)
		}
		return ids, err
	})
}

func (a *app) operationsGet() *cobra.Command {
	cmd := &cobra.Command{
		Use: "get ID...", Short: "Show operations", Args: cobra.MinimumNArgs(1),
		Example: "  fakecloud operations get op-01jd3n9z6d8s -o yaml", ValidArgsFunction: a.completeOperations(client.OperationFilter{}),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.eachOperation(cmd, args, func(c *client.Client, id string) (*api.Operation, error) {
				return c.GetOperation(cmd.Context(), id, 0)
			})
		},
	}
	a.addOutput(cmd)
	return cmd
}

func (a *app) operationsWait() *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "wait ID...", Short: "Wait until operations have ended", Args: cobra.MinimumNArgs(1),
		Long:              "Wait until operations have ended. It fails if one of them ended otherwise than done, or has not ended in time.",
		Example:           "  fakecloud operations wait op-01jd3n9z6d8s --timeout 30s",
		ValidArgsFunction: a.completeOperations(client.OperationFilter{States: []api.OperationState{api.OperationRunning}}),
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			return a.refuseStill(cmd.Context(), "operations wait")
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeoutCause(cmd.Context(), timeout, fmt.Errorf("not ended after %s", timeout))
			defer cancel()
			var bad []error
			err := a.eachOperation(cmd, args, func(c *client.Client, id string) (*api.Operation, error) {
				op, err := c.AwaitOperation(ctx, id)
				switch {
				case ctx.Err() != nil:
					return nil, fmt.Errorf("operation %s: %w", id, context.Cause(ctx))
				case err == nil && op.State != api.OperationDone:
					bad = append(bad, fmt.Errorf("operation %s %s: %s", id, op.State, orDash(op.Error)))
				}
				return op, err
			})
			return errors.Join(append(bad, err)...)
		},
	}
	a.addOutput(cmd)
	cmd.Flags().DurationVar(&timeout, "timeout", 2*time.Minute, "give up after this long")
	return cmd
}

// eachOperation shows what do gives for each of the operations.
func (a *app) eachOperation(cmd *cobra.Command, ids []string, do func(*client.Client, string) (*api.Operation, error)) error {
	c, err := a.client()
	if err != nil {
		return usageError{err}
	}
	found, err := each(ids, func(id string) (*api.Operation, error) { return do(c, id) })
	switch {
	case len(found) == 0:
		return err
	case len(ids) == 1:
		return errors.Join(err, a.printOperations(cmd, found[0], found))
	}
	return errors.Join(err, a.printOperations(cmd, api.OperationList{Items: found}, found))
}
