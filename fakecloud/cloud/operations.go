package cloud

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"slices"
	"sync"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/store"
	"github.com/ccmlab/ccmlab/fakecloud/store/db"
)

// keepOperations is how many of each project's newest operations are kept, beside those
// that run.
const keepOperations = 10_000

// Operation is a change that takes time. It is made in the transaction of the change, and
// ends in the transaction in which the resource enters the state that decides it.
type Operation = api.Operation

// OperationFilter narrows a list; zero fields do not.
type OperationFilter struct {
	Resource string // the ID
	Types    []string
	States   []string
	Serials  []int64
	// After is the ID of the last item of the page before.
	After string
	// Limit is at least 1.
	Limit int
}

// beginOperation records the operation of a change that was just made and gives
// its ID, which is empty if such a change takes no time. It supersedes a running
// operation of the same type.
func (c *Cloud) beginOperation(
	ctx context.Context,
	tx *changeTx,
	project string,
	resource Resource,
	id string,
	on Action,
) (string, error) {
	at := slices.IndexFunc(OperationRules, func(r OperationRule) bool { return r.Resource == resource && r.On == on })
	if at < 0 {
		return "", nil
	}
	kind := OperationRules[at].Type
	if on != Create { // A new resource has no operations yet.
		running, err := tx.RunningOperations(ctx, id)
		if err != nil {
			return "", err
		}
		for _, row := range running {
			if row.Type != kind {
				continue
			}
			err := endOperation(ctx, tx, row, api.OperationSuperseded, "a later "+kind+" took its place")
			if err != nil {
				return "", err
			}
		}
	}
	return c.insertOperation(ctx, tx, db.InsertOperationParams{
		ProjectID: project, Type: kind, Resource: string(resource), ResourceID: id, State: string(api.OperationRunning),
	})
}

// insertOperation inserts an operation with an identity of its own, and gives its ID.
func (c *Cloud) insertOperation(ctx context.Context, tx *changeTx, row db.InsertOperationParams) (_ string, err error) {
	if row.ID, row.Serial, err = c.newIdentity(ctx, tx, "op"); err != nil {
		return "", err
	}
	row.Token, row.CreatedAt, row.Records = requestOf(ctx).Token, tx.now.UnixMilli(), "{}"
	if _, err := tx.InsertOperation(ctx, row); err != nil {
		return "", err
	}
	return row.ID, tx.PruneRows("operations", row.ProjectID, 1, store.Kept{Rows: keepOperations}, func() error {
		return tx.PruneOperations(ctx, db.PruneOperationsParams{ProjectID: row.ProjectID, Keep: keepOperations})
	})
}

// RecordOperation puts what a dialect calls a change into the operation of it. If that has no ID, as the change took
// no time, it inserts one of op's type and resource that has ended.
func (c *Cloud) RecordOperation(ctx context.Context, p Project, op Operation) (recorded Operation, err error) {
	err = c.change(ctx, func(ctx context.Context, tx *changeTx) (err error) {
		id := op.ID
		if id == "" {
			at := tx.now.UnixMilli()
			id, err = c.insertOperation(ctx, tx, db.InsertOperationParams{
				ProjectID: p.ID, Type: op.Type, Resource: string(op.Resource), ResourceID: op.ResourceID,
				State: string(api.OperationDone), EndedAt: &at,
			})
		}
		if err == nil {
			err = tx.RecordOperation(ctx, db.RecordOperationParams{Records: toJSON(op.Records), ProjectID: p.ID, ID: id})
		}
		if err == nil {
			recorded, err = readOperation(ctx, tx.Tx, p, id)
		}
		return err
	})
	return recorded, err
}

// hasOperations tells whether changes of such resources take time.
func hasOperations(resource Resource) bool {
	return slices.ContainsFunc(OperationRules, func(r OperationRule) bool { return r.Resource == resource })
}

// endDecidedOperations ends the operations that a resource's new state decides.
func endDecidedOperations(ctx context.Context, tx *changeTx, id, state, reason string) error {
	running, err := tx.RunningOperations(ctx, id)
	if err != nil {
		return err
	}
	for _, row := range running {
		end, why := operationResult(row.Type, state, reason)
		if end == api.OperationRunning {
			continue
		}
		if err := endOperation(ctx, tx, row, end, why); err != nil {
			return err
		}
	}
	return nil
}

// operationResult is what becomes of an operation of that type when its resource enters a
// state.
func operationResult(kind string, state, reason string) (api.OperationState, string) {
	at := slices.IndexFunc(OperationRules, func(r OperationRule) bool { return r.Type == kind })
	switch {
	case at < 0:
		return api.OperationSuperseded, "this fakecloud does not know " + kind
	case slices.Contains(OperationRules[at].While, state):
		return api.OperationRunning, ""
	case state == OperationRules[at].Done:
		return api.OperationDone, ""
	case state == OperationRules[at].Failed:
		return api.OperationFailed, reason
	case state == "":
		return api.OperationSuperseded, "the resource is gone"
	}
	return api.OperationSuperseded, "the resource is " + state
}

func endOperation(ctx context.Context, tx *changeTx, row db.Operation, end api.OperationState, why string) error {
	tx.endedOperations = append(tx.endedOperations, row.ID)
	at := tx.now.UnixMilli()
	return tx.EndOperation(ctx, db.EndOperationParams{State: string(end), Error: why, EndedAt: &at, Seq: row.Seq})
}

// operationWaiters are the callers that wait for operations, by the operations' IDs.
type operationWaiters struct {
	mu   sync.Mutex
	byID map[string]*operationWait
}

type operationWait struct {
	ended   chan struct{}
	waiting int
}

// waitFor gives a channel that is closed when the operation ends from now on. The caller
// calls leave when it is done with the channel.
func (w *operationWaiters) waitFor(id string) (ended <-chan struct{}, leave func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	one, ok := w.byID[id]
	if !ok {
		one = &operationWait{ended: make(chan struct{})}
		w.byID[id] = one
	}
	one.waiting++
	return one.ended, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if one.waiting--; one.waiting == 0 && w.byID[id] == one {
			delete(w.byID, id)
		}
	}
}

// Waiting is how many callers wait for an operation now.
func (c *Cloud) Waiting(operation string) int {
	c.waiters.mu.Lock()
	defer c.waiters.mu.Unlock()
	if one, ok := c.waiters.byID[operation]; ok {
		return one.waiting
	}
	return 0
}

func (w *operationWaiters) notifyEnded(ids []string) {
	if len(ids) == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ids {
		if one, ok := w.byID[id]; ok {
			close(one.ended)
			delete(w.byID, id)
		}
	}
}

// GetOperation reads one operation.
func (c *Cloud) GetOperation(ctx context.Context, p Project, id string) (Operation, error) {
	return readOne(ctx, c, func(tx *store.Tx) (Operation, error) { return readOperation(ctx, tx, p, id) })
}

func readOperation(ctx context.Context, tx *store.Tx, p Project, id string) (Operation, error) {
	row, err := tx.GetOperation(ctx, db.GetOperationParams{ProjectID: p.ID, ID: id})
	if errors.Is(err, sql.ErrNoRows) {
		return Operation{}, refuse(
			NotFound, "no operation %q in project %q: the newest %d are kept, and those that run", id, p.Name,
			keepOperations,
		)
	}
	if err != nil {
		return Operation{}, err
	}
	return operationFrom(row)
}

// AwaitOperation gives an operation when it has ended, or as it is when until is closed.
func (c *Cloud) AwaitOperation(ctx context.Context, p Project, id string, until <-chan struct{}) (Operation, error) {
	ended, leave := c.waiters.waitFor(id)
	defer leave()
	op, err := c.GetOperation(ctx, p, id)
	if err != nil || op.State != api.OperationRunning {
		return op, err
	}
	select {
	case <-ended:
	case <-until:
	}
	return c.GetOperation(ctx, p, id)
}

// ListOperations gives one page, oldest first, and whether more follow.
func (c *Cloud) ListOperations(
	ctx context.Context,
	p Project,
	f OperationFilter,
) (page []Operation, more bool, err error) {
	return readPage(ctx, c, f.Limit, operationFrom, func(tx *store.Tx) ([]db.Operation, error) {
		return tx.ListOperations(ctx, db.ListOperationsParams{
			ProjectID: p.ID, After: f.After, ResourceID: f.Resource, Types: listJSON(f.Types),
			States: listJSON(f.States), Serials: listJSON(f.Serials), Max: int64(f.Limit) + 1,
		})
	})
}

// firstOperation gives the ID of a resource's first operation of a type, for a
// create that is repeated. It is empty if that operation is not kept any more.
func firstOperation(ctx context.Context, tx *store.Tx, id string, kind string) (string, error) {
	op, err := tx.FirstOperation(ctx, db.FirstOperationParams{ResourceID: id, Type: kind})
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	return op, err
}

func operationFrom(row db.Operation) (Operation, error) {
	op := Operation{
		ID: row.ID, Serial: row.Serial, Project: row.ProjectID, Type: row.Type,
		Resource: Resource(row.Resource), ResourceID: row.ResourceID,
		State: api.OperationState(row.State), Error: row.Error, Token: row.Token, CreatedAt: fromMillis(row.CreatedAt),
		EndedAt: timeOrNil(row.EndedAt),
	}
	return op, json.Unmarshal([]byte(row.Records), &op.Records)
}
