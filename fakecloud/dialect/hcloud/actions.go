package hcloud

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/dialect"
)

var actionCalls = []dialect.Call{
	dialect.Handle(http.MethodGet, "/v1/actions", []string{"id", "status", "sort", "page", "per_page"}, listActions),
	dialect.Handle(http.MethodGet, "/v1/actions/{id}", nil, getAction),
}

// maxActions is how many actions can be asked for in one call.
const maxActions = 100

// listActions gives the actions of the IDs that are asked for. Those that are not kept any more
// are left out.
func listActions(ctx context.Context, r *dialect.Request, _ struct{}) (any, error) {
	query := r.HTTP.URL.Query()
	ids := query["id"]
	if len(ids) == 0 || len(ids) > maxActions {
		return nil, dialect.Invalid("id", "must be given from 1 to %d times", maxActions)
	}
	for _, id := range ids {
		if n, err := strconv.ParseInt(id, 10, 64); err != nil || n < 1 {
			return nil, dialect.Invalid("id", "%q is no ID of an action", id)
		}
	}
	operations, err := r.ListOperations(ctx, client.OperationFilter{Serials: ids})
	if err != nil {
		return nil, err
	}
	var all []schema.Action
	for _, op := range operations {
		a := actionFromOperation(op)
		if wanted := query["status"]; len(wanted) == 0 || slices.Contains(wanted, a.Status) {
			all = append(all, a)
		}
	}
	slices.SortStableFunc(all, func(a, b schema.Action) int {
		if slices.Contains(query["sort"], "status") {
			return cmp.Or(cmp.Compare(a.Status, b.Status), cmp.Compare(a.ID, b.ID))
		}
		return cmp.Compare(a.ID, b.ID)
	})
	shown, meta, err := page(r, all)
	return &list[schema.Action]{"actions", shown, meta}, err
}

func getAction(ctx context.Context, r *dialect.Request, _ struct{}) (any, error) {
	serial, err := r.Serial()
	if err != nil {
		return nil, err
	}
	found, err := r.ListOperations(ctx, client.OperationFilter{Serials: []string{strconv.FormatInt(serial, 10)}})
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, dialect.NotFound("action with ID %d not found", serial)
	}
	return schema.ActionGetResponse{Action: actionFromOperation(found[0])}, nil
}

// toAction makes an action of what an operation says. An update that a later one took the place
// of has succeeded: what it asked for is in the later one.
func toAction(
	serial int64,
	operation string,
	state api.OperationState,
	failure string,
	began, ended time.Time,
) schema.Action {
	a := schema.Action{
		ID: serial, Command: commandOf(operation), Started: began, Status: "running",
		Resources: []schema.ActionResourceReference{},
	}
	switch state {
	case api.OperationDone, api.OperationSuperseded:
		a.Status = "success"
	case api.OperationFailed:
		a.Status = "error"
		a.Error = &schema.ActionError{Code: "action_failed", Message: failure}
	default:
		return a
	}
	a.Progress, a.Finished = 100, &ended
	return a
}

func actionFromOperation(op api.Operation) schema.Action {
	return toAction(op.Serial, op.Type, op.State, op.Error, op.CreatedAt, api.ValueOf(op.EndedAt))
}

// commandOf makes the name of a command of that of an operation: create_load_balancer of
// createLoadBalancer.
func commandOf(operation string) string {
	var b strings.Builder
	for _, c := range operation {
		if c >= 'A' && c <= 'Z' {
			b.WriteByte('_')
			c += 'a' - 'A'
		}
		b.WriteRune(c)
	}
	return b.String()
}

// finishedAction is the action of a change that takes no time. It has the serial number of what
// was changed for its ID, as there is no operation.
func finishedAction(command string, serial int64, at time.Time) schema.Action {
	return schema.Action{
		ID: serial, Command: command, Status: "success", Progress: 100, Started: at, Finished: &at,
		Resources: []schema.ActionResourceReference{},
	}
}

// actionOf makes the action of a change of a resource: of its operation, or a finished one if it took no time.
func actionOf(
	ctx context.Context,
	r *dialect.Request,
	command, operation string,
	changed schema.ActionResourceReference,
) (schema.Action, error) {
	op, err := r.Operation(ctx, operation)
	if err != nil || op.ID == "" {
		return finishedAction(command, changed.ID, time.Now().UTC()), err
	}
	state := api.OperationState(op.State)
	a := toAction(op.Serial, command, state, op.Error, op.CreatedAt, op.EndedAt)
	a.Resources = append(a.Resources, changed)
	return a, nil
}
