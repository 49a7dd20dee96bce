package cloud

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
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
	// Replayed tells that the result is that of an earlier request with the same
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

const (
	// maxKeys is how many keys of a project are remembered at most.
	maxKeys = 100_000
	// keysBetween is how many may come before the keys are bounded again: that
	// reads all of them.
	keysBetween = 1000
)

// idempotencyKeys bounds how many idempotency keys are stored.
type idempotencyKeys struct {
	most, between int64
	// since is how many keys were added since the process started.
	since atomic.Int64
}

// makeRoom removes expired keys, and with the first key of a process and every between
// keys also the oldest beyond the bound.
func (k *idempotencyKeys) makeRoom(ctx context.Context, tx *store.Tx, now time.Time) error {
	if err := tx.PruneIdempotencyKeys(ctx, now.UnixMilli()); err != nil {
		return err
	}
	if k.since.Add(1)%k.between != 1 {
		return nil
	}
	return tx.BoundIdempotencyKeys(ctx, k.most-k.between)
}

// createOnce runs create, or gives what the first request with the same
// idempotency key got; replayed tells which. A create that fails leaves its key
// unused.
func createOnce[T any](
	ctx context.Context,
	c *Cloud,
	tx *changeTx,
	p Project,
	now time.Time,
	create func() (T, error),
) (result T, replayed bool, err error) {
	r := requestOf(ctx)
	if r.Key == "" {
		result, err = create()
		return result, false, err
	}
	if err := c.idempotencyKeys.makeRoom(ctx, tx.Tx, now); err != nil {
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
			"the idempotency key %q was used for another request: use a new key for each thing that is to be created",
			r.Key,
		).
			withField("Idempotency-Key", "was used for another request")
	default:
		if err := json.Unmarshal([]byte(row.Result), &result); err != nil {
			return result, true, fmt.Errorf("stored result of idempotency key %q: %w", r.Key, err)
		}
		return result, true, nil
	}
	if result, err = create(); err != nil {
		return result, false, err
	}
	return result, false, tx.InsertIdempotencyKey(ctx, db.InsertIdempotencyKeyParams{
		ProjectID: p.ID, Key: r.Key, Fingerprint: r.Fingerprint, Result: toJSON(result),
		ExpiresAt: now.Add(KeyLifetime).UnixMilli(),
	})
}

// changeFunc is Cloud.change or a method that wraps it.
type changeFunc func(ctx context.Context, fn func(ctx context.Context, tx *changeTx, now time.Time) error) error

// createResource makes a resource of the project in a change of its own, once for
// each idempotency key. It is for creates that take no time.
func createResource[T any](
	ctx context.Context,
	change changeFunc,
	c *Cloud,
	p Project,
	newResource func(context.Context, *changeTx, time.Time) (T, error),
) (created T, outcome Outcome, err error) {
	err = change(ctx, func(ctx context.Context, tx *changeTx, now time.Time) (err error) {
		created, outcome.Replayed, err = createOnce(ctx, c, tx, p, now, func() (T, error) {
			return newResource(ctx, tx, now)
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
	kind OperationType,
	newResource func(context.Context, *changeTx, time.Time) (T, error),
) (created T, outcome Outcome, err error) {
	err = c.change(ctx, func(ctx context.Context, tx *changeTx, now time.Time) (err error) {
		created, outcome.Replayed, err = createOnce(ctx, c, tx, p, now, func() (T, error) {
			made, err := newResource(ctx, tx, now)
			if err != nil {
				return made, err
			}
			d := made.describe()
			outcome.Operation, err = c.beginOperation(ctx, tx, p.ID, d.kind(), d.row.ID, Create, now)
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
		PreconditionFailed, "%s is at version %d by now, not %d: read it again, and decide anew", id, version, *want,
	).
		withField("If-Match", "is not the present version")
}
