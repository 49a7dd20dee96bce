package client

import (
	"context"
	"net/http"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// maxWait is the longest that one call may wait for an operation.
const maxWait = time.Minute

type operationKey struct{}

// OperationInto gives a context in which a change sets id to that of the
// operation it began, or to "" if it changed nothing that takes time.
func OperationInto(ctx context.Context, id *string) context.Context {
	return context.WithValue(ctx, operationKey{}, id)
}

// OperationFilter narrows a list; zero fields do not.
type OperationFilter struct {
	Resource string // the ID of one
	Types    []string
	States   []api.OperationState
}

// ListOperations lists all pages, or fails.
func (c *Client) ListOperations(ctx context.Context, f OperationFilter) ([]api.Operation, error) {
	params := api.ListOperationsParams{
		Resource: optional(f.Resource), Type: optionalList(f.Types), State: optionalList(f.States), Limit: new(pageSize),
	}
	return pages(func(token *string) (*api.OperationList, error) {
		params.PageToken = token
		return read[api.OperationList](ctx, c, func(ctx context.Context) (*http.Response, error) { return c.raw.ListOperations(ctx, &params) })
	}, func(list *api.OperationList) ([]api.Operation, *string) { return list.Items, list.NextPageToken })
}

// GetOperation asks for one operation by its ID. It waits for its end for so
// long, in whole seconds and at most a minute; 0 does not wait.
func (c *Client) GetOperation(ctx context.Context, id string, wait time.Duration) (*api.Operation, error) {
	wait = min(wait, maxWait).Truncate(time.Second)
	params := api.GetOperationParams{Wait: optional(int(wait.Seconds()))}
	patient := *c
	patient.timeout += wait
	return read[api.Operation](ctx, &patient, of(id, func(ctx context.Context, id string, edit ...api.RequestEditorFn) (*http.Response, error) {
		return c.raw.GetOperation(ctx, id, &params, edit...)
	}))
}

// AwaitOperation gives an operation once it has ended, however that was.
func (c *Client) AwaitOperation(ctx context.Context, id string) (*api.Operation, error) {
	for {
		op, err := c.GetOperation(ctx, id, maxWait)
		if err != nil || op.State != api.OperationRunning {
			return op, err
		}
	}
}
