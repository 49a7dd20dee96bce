package client

import (
	"context"
	"net/http"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// maxWait is the longest time that one call may wait for an operation.
const maxWait = time.Minute

type operationKey struct{}

// OperationInto returns a context in which a change sets id to the ID of the operation that
// it began, or to "" if it began none.
func OperationInto(ctx context.Context, id *string) context.Context {
	return context.WithValue(ctx, operationKey{}, id)
}

// OperationFilter filters a list. Zero fields match everything.
type OperationFilter struct {
	Resource string // its ID
	Types    []string
	States   []api.OperationState
}

// ListOperations lists all operations that match.
func (c *Client) ListOperations(ctx context.Context, f OperationFilter) ([]api.Operation, error) {
	params := api.ListOperationsParams{
		Resource: optionalParam(f.Resource), Type: optionalListParam(f.Types), State: optionalListParam(f.States),
		Limit: new(pageSize),
	}
	return readAllPages(func(token *string) (*api.OperationList, error) {
		params.PageToken = token
		return readWithRetries[api.OperationList](ctx, c, func(ctx context.Context) (*http.Response, error) {
			return c.raw.ListOperations(ctx, &params)
		})
	}, func(list *api.OperationList) ([]api.Operation, *string) { return list.Items, list.NextPageToken })
}

// GetOperation returns one operation by its ID. If it has not ended, GetOperation waits for
// that up to the given time, truncated to whole seconds and a minute at most.
func (c *Client) GetOperation(ctx context.Context, id string, wait time.Duration) (*api.Operation, error) {
	wait = min(wait, maxWait).Truncate(time.Second)
	params := api.GetOperationParams{Wait: optionalParam(int(wait.Seconds()))}
	longer := *c
	longer.timeout += wait
	return readWithRetries[api.Operation](ctx, &longer, callWithID(id, func(
		ctx context.Context,
		id string,
		edit ...api.RequestEditorFn,
	) (*http.Response, error) {
		return c.raw.GetOperation(ctx, id, &params, edit...)
	}))
}

// AwaitOperation waits until an operation has ended, in success or not, and returns it.
func (c *Client) AwaitOperation(ctx context.Context, id string) (*api.Operation, error) {
	for {
		op, err := c.GetOperation(ctx, id, maxWait)
		if err != nil || op.State != api.OperationRunning {
			return op, err
		}
	}
}
