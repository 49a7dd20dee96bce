package hcloud

import (
	"cmp"
	"context"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dialect"
)

type references = []schema.ActionResourceReference

var actionQuery = []string{"id", "status", "sort", "page", "per_page"}

var actionCalls = []dialect.Call{
	dialect.Handle(http.MethodGet, "/v1/actions", actionQuery, listActions),
	dialect.Handle(http.MethodGet, "/v1/actions/{id}", nil,
		func(ctx context.Context, r *dialect.Request, _ struct{}) (any, error) {
			return findAction(ctx, r, r.Var("id"), func(schema.Action) bool { return true })
		}),
}

// actionCalls are the calls that read the actions of a kind of resources, and of one of them. They come before the
// others of the kind, as "actions" is no ID.
func (c collection[N, T]) actionCalls() []dialect.Call {
	isAbout := func(serial int64) func(a schema.Action) bool {
		return func(a schema.Action) bool {
			return slices.ContainsFunc(a.Resources, func(of schema.ActionResourceReference) bool {
				return of.Type == c.one && (serial == 0 || of.ID == serial)
			})
		}
	}
	return []dialect.Call{
		dialect.Handle(http.MethodGet, c.path()+"/actions", actionQuery,
			func(ctx context.Context, r *dialect.Request, _ struct{}) (any, error) {
				return answerActions(ctx, r, isAbout(0))
			}),
		dialect.Handle(http.MethodGet, c.path()+"/actions/{id}", nil,
			func(ctx context.Context, r *dialect.Request, _ struct{}) (any, error) {
				return findAction(ctx, r, r.Var("id"), isAbout(0))
			}),
		dialect.Handle(http.MethodGet, c.path()+"/{id}/actions", actionQuery,
			func(ctx context.Context, r *dialect.Request, _ struct{}) (any, error) {
				serial, err := r.Serial()
				if err == nil {
					_, err = r.ResourceID(ctx, c.kind, serial)
				}
				if err != nil && c.kind == api.ResourceAddress { // One of IPv6 is a record.
					_, err = r.ResourceID(ctx, api.ResourceDialectRecord, serial)
				}
				if err != nil {
					return nil, err
				}
				return answerActions(ctx, r, isAbout(serial))
			}),
		dialect.Handle(http.MethodGet, c.path()+"/{id}/actions/{action_id}", nil,
			func(ctx context.Context, r *dialect.Request, _ struct{}) (any, error) {
				serial, err := r.Serial()
				if err != nil {
					return nil, err
				}
				return findAction(ctx, r, r.Var("action_id"), isAbout(serial))
			}),
	}
}

// maxActions is how many actions can be asked for in one call.
const maxActions = 100

// listActions gives the actions of the IDs that are asked for. Those that are not kept any more
// are left out.
func listActions(ctx context.Context, r *dialect.Request, _ struct{}) (any, error) {
	if len(r.HTTP.URL.Query()["id"]) == 0 {
		return nil, dialect.Invalid("id", "must be given from 1 to %d times", maxActions)
	}
	return answerActions(ctx, r, func(schema.Action) bool { return true })
}

// answerActions gives a page of the actions that a request asks for, of those that are wanted.
func answerActions(ctx context.Context, r *dialect.Request, wanted func(schema.Action) bool) (any, error) {
	query := r.HTTP.URL.Query()
	ids := query["id"]
	if len(ids) > maxActions {
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
		a, err := actionFromOperation(op)
		if err != nil {
			return nil, err
		}
		if states := query["status"]; wanted(a) && (len(states) == 0 || slices.Contains(states, a.Status)) {
			all = append(all, a)
		}
	}
	if err := sortBy(all, query["sort"], actionOrders); err != nil {
		return nil, err
	}
	shown, numbers, err := page(r, all)
	if err != nil {
		return nil, err
	}
	return answerList(r, "actions", shown, numbers), nil
}

// actionOrders are what actions can be sorted by.
var actionOrders = map[string]func(a, b schema.Action) int{
	"id":      func(a, b schema.Action) int { return cmp.Compare(a.ID, b.ID) },
	"command": func(a, b schema.Action) int { return cmp.Compare(a.Command, b.Command) },
	"status":  func(a, b schema.Action) int { return cmp.Compare(a.Status, b.Status) },
	"started": func(a, b schema.Action) int { return a.Started.Compare(b.Started) },
	"finished": func(a, b schema.Action) int {
		return api.ValueOf(a.Finished).Compare(api.ValueOf(b.Finished))
	},
}

func findAction(ctx context.Context, r *dialect.Request, id string, wanted func(schema.Action) bool) (any, error) {
	if _, err := strconv.ParseUint(id, 10, 63); err != nil {
		return nil, dialect.NotFound("nothing has the ID %q", id)
	}
	found, err := r.ListOperations(ctx, client.OperationFilter{Serials: []string{id}})
	if err != nil {
		return nil, err
	}
	for _, op := range found {
		if a, err := actionFromOperation(op); err != nil || wanted(a) {
			return schema.ActionGetResponse{Action: a}, err
		}
	}
	return nil, dialect.NotFound("action with ID %s not found", id)
}

// actionRecord is what an operation is at Hetzner. Its form is kept, so that fields are only ever added.
type actionRecord struct {
	Version   int                              `json:"version"`
	Command   string                           `json:"command"`
	Resources []schema.ActionResourceReference `json:"resources"`
}

// actionFromOperation makes an action of an operation. One that was begun otherwise has the operation's name, and no
// resources. An update that a later one took the place of has succeeded: what it asked for is in the later one.
func actionFromOperation(op api.Operation) (schema.Action, error) {
	kept := actionRecord{Command: commandOf(op.Type), Resources: []schema.ActionResourceReference{}}
	if err := dialect.ReadRecord(name, op.Records, &kept); err != nil {
		return schema.Action{}, err
	}
	a := schema.Action{
		ID: op.Serial, Command: kept.Command, Resources: kept.Resources, Started: op.CreatedAt, Finished: op.EndedAt,
		Status: "running",
	}
	switch op.State {
	case api.OperationDone, api.OperationSuperseded:
		a.Status, a.Progress = "success", 100
	case api.OperationFailed:
		a.Status, a.Progress = "error", 100
		a.Error = &schema.ActionError{Code: "action_failed", Message: op.Error}
	}
	return a, nil
}

// commandOf makes the name of a command of that of an operation: create_load_balancer of
// createLoadBalancer.
func commandOf(operation string) string {
	return upperLetter.ReplaceAllStringFunc(operation, func(c string) string { return "_" + strings.ToLower(c) })
}

var upperLetter = regexp.MustCompile(`[A-Z]`)

// recordAction gives the action of a change of a resource, which is found from now on. It is the native operation that
// the change began, or one that has ended if the change took no time and began none.
func (c collection[N, T]) recordAction(
	ctx context.Context,
	r *dialect.Request,
	command, operation string,
	native *N,
	about ...schema.ActionResourceReference,
) (schema.Action, error) {
	meta, kind := metaOf(native), c.kind
	if isRecord(meta.ID) {
		kind = api.ResourceDialectRecord
	}
	about = append(references{{ID: meta.Serial, Type: c.one}}, about...)
	op, err := r.RecordOperation(ctx, cloud.Operation{
		ID: operation, Type: name + " " + command, Resource: kind, ResourceID: meta.ID,
		Records: dialect.WithRecord(name, nil, actionRecord{Version: recordVersion, Command: command, Resources: about}),
	})
	if err != nil {
		return schema.Action{}, err
	}
	return actionFromOperation(op)
}
