package cloud

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/store"
	"github.com/ccmlab/ccmlab/fakecloud/store/db"
)

// KeyLifetime is how long an idempotency key is remembered.
const KeyLifetime = 24 * time.Hour

// Request is who asks for a change, and on which conditions. It goes with the
// call's context, as it holds for any kind of change. What came of the change is
// in the Outcome that the change returns.
type Request struct {
	// Key, unless empty, makes a create happen once.
	Key string
	// Fingerprint tells a repeated request from another one with the same key.
	Fingerprint []byte
	// IfMatch, unless nil, is the version that the resource must have.
	IfMatch *int64
	// Token is the name of the token that asks, if one does.
	Token string
}

// Outcome is what a change did beside changing a resource.
type Outcome struct {
	// Operation is the ID of the operation that the change began. It is empty when
	// nothing was changed, or nothing that takes time.
	Operation string
	// Replayed tells that the result comes from an earlier request with the same
	// idempotency key, and Operation is that request's.
	Replayed bool
}

type requestKey struct{}

// WithRequest gives a context whose changes keep to r.
func WithRequest(ctx context.Context, r Request) context.Context {
	return context.WithValue(ctx, requestKey{}, r)
}

func requestOf(ctx context.Context) Request {
	r, _ := ctx.Value(requestKey{}).(Request)
	return r
}

// keptKeys bounds the idempotency keys of each project. So a key is remembered for
// KeyLifetime, unless the project has used as many newer ones, or newer ones whose results
// take as much: then its oldest are forgotten before that, and no other project's. As no
// result is much larger than a request may be, dozens of keys are remembered in any case.
var keptKeys = store.Kept{Rows: 100_000, Bytes: 64 << 20}

// rememberKey stores the result of a create, and forgets the project's oldest keys beyond
// what is kept.
func (c *Cloud) rememberKey(ctx context.Context, tx *store.Tx, row db.InsertIdempotencyKeyParams) error {
	if err := tx.InsertIdempotencyKey(ctx, row); err != nil {
		return err
	}
	forget := func(keep int64) error {
		return tx.PruneOldestKeys(ctx, db.PruneOldestKeysParams{ProjectID: row.ProjectID, Keep: keep})
	}
	err := tx.PruneRows("idempotency_keys", row.ProjectID, 1, c.keptKeys, func() error {
		return forget(c.keptKeys.Rows)
	})
	if err != nil {
		return err
	}
	return tx.PruneBytes("idempotency_keys", row.ProjectID, int64(len(row.Result)), c.keptKeys,
		func() (int64, error) { return tx.IdempotencyBytes(ctx, row.ProjectID) },
		func(keep int64) error {
			n, err := tx.KeysWithinBytes(ctx, db.KeysWithinBytesParams{ProjectID: row.ProjectID, Keep: keep})
			if err != nil {
				return err
			}
			return forget(n)
		})
}

// createOnce runs create, or gives what the first request with the same
// idempotency key got; replayed tells which. A create that fails leaves its key
// unused.
func createOnce[T any](
	ctx context.Context,
	c *Cloud,
	tx *changeTx,
	p Project,
	create func() (T, error),
) (result T, replayed bool, err error) {
	r := requestOf(ctx)
	if r.Key == "" {
		result, err = create()
		return result, false, err
	}
	if err := tx.PruneIdempotencyKeys(ctx, tx.now.UnixMilli()); err != nil {
		return result, false, err
	}
	row, err := tx.IdempotencyKey(ctx, db.IdempotencyKeyParams{ProjectID: p.ID, Key: r.Key})
	switch {
	case errors.Is(err, sql.ErrNoRows):
	case err != nil:
		return result, false, err
	case !bytes.Equal(row.Fingerprint, r.Fingerprint):
		return result, false, refuse(
			IdempotencyKeyReused,
			"the idempotency key %q was used for another request: use a new key for each resource to create",
			r.Key,
		).withField("Idempotency-Key", "was used for another request")
	default:
		if err := json.Unmarshal([]byte(row.Result), &result); err != nil {
			return result, true, fmt.Errorf("stored result of idempotency key %q: %w", r.Key, err)
		}
		return result, true, nil
	}
	if result, err = create(); err != nil {
		return result, false, err
	}
	return result, false, c.rememberKey(ctx, tx.Tx, db.InsertIdempotencyKeyParams{
		ProjectID: p.ID, Key: r.Key, Fingerprint: r.Fingerprint, Result: toJSON(result),
		ExpiresAt: tx.now.Add(KeyLifetime).UnixMilli(),
	})
}

// changeFunc is Cloud.change or a method that wraps it.
type changeFunc func(ctx context.Context, fn func(ctx context.Context, tx *changeTx) error) error

// createResource makes a resource of the project in a change of its own, once for
// each idempotency key. It is for creates that take no time.
func createResource[T any](
	ctx context.Context,
	change changeFunc,
	c *Cloud,
	p Project,
	newResource func(context.Context, *changeTx) (T, error),
) (created T, outcome Outcome, err error) {
	err = change(ctx, func(ctx context.Context, tx *changeTx) (err error) {
		created, outcome.Replayed, err = createOnce(ctx, c, tx, p, func() (T, error) {
			return newResource(ctx, tx)
		})
		return err
	})
	return created, outcome, err
}

// createWithOperation is createResource for creates that take time. A repeated
// create has the operation of the first.
func createWithOperation[T resource](
	ctx context.Context,
	c *Cloud,
	p Project,
	kind string,
	newResource func(context.Context, *changeTx) (T, error),
) (created T, outcome Outcome, err error) {
	err = c.change(ctx, func(ctx context.Context, tx *changeTx) (err error) {
		created, outcome.Replayed, err = createOnce(ctx, c, tx, p, func() (T, error) {
			made, err := newResource(ctx, tx)
			if err != nil {
				return made, err
			}
			d := made.describe()
			outcome.Operation, err = c.beginOperation(ctx, tx, p.ID, d.kind(), d.row.ID, Create)
			return made, err
		})
		if err == nil && outcome.Replayed {
			outcome.Operation, err = firstOperation(ctx, tx.Tx, created.describe().row.ID, kind)
		}
		return err
	})
	return created, outcome, err
}

// checkIfMatch refuses a change that was meant for another version of the resource.
func checkIfMatch(ctx context.Context, id string, version int64) error {
	want := requestOf(ctx).IfMatch
	if want == nil || *want == version {
		return nil
	}
	return refuse(
		PreconditionFailed, "%s is at version %d by now, not %d: read it again, then retry", id, version, *want,
	).withField("If-Match", "is not the current version")
}
