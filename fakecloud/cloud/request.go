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

// Request goes with a call's context: what holds for any kind of change.
type Request struct {
	// Key, unless empty, makes a create happen once.
	Key string
	// Fingerprint tells a repeated request from another one with the same key.
	Fingerprint []byte
	// IfMatch, unless nil, is the version that the resource must have.
	IfMatch *int64
	// Token is the name of the token that asks, if one does.
	Token string
	// Replayed is set when the result is that of an earlier request.
	Replayed bool
	// Operation is set to the ID of the operation that the change began; empty
	// when it changed nothing, or nothing that takes time.
	Operation string
}

type requestKey struct{}

// WithRequest gives a context whose changes keep to r, and set what it says of
// the result.
func WithRequest(ctx context.Context, r *Request) context.Context {
	return context.WithValue(ctx, requestKey{}, r)
}

func requestOf(ctx context.Context) *Request {
	if r, ok := ctx.Value(requestKey{}).(*Request); ok {
		return r
	}
	return &Request{}
}

const (
	// maxKeys is how many keys of a project are remembered at most.
	maxKeys = 100_000
	// keysBetween is how many may come before the keys are bounded again: that
	// reads all of them.
	keysBetween = 1000
)

// keys bounds the idempotency keys.
type keys struct {
	most, between int64
	since         atomic.Int64 // how many came since the process began
}

// prune makes room for one more key. Those of before this process are bounded
// with its first.
func (k *keys) prune(ctx context.Context, tx *store.Tx, now time.Time) error {
	if err := tx.PruneIdempotencyKeys(ctx, now.UnixMilli()); err != nil {
		return err
	}
	if k.since.Add(1)%k.between != 1 {
		return nil
	}
	return tx.BoundIdempotencyKeys(ctx, k.most-k.between)
}

// once runs create, which sets result, or sets result to what the first request
// with the same idempotency key got. A create that fails leaves its key unused.
func once[T any](ctx context.Context, c *Cloud, tx *store.Tx, p Project, now time.Time, result *T, create func() error) error {
	r := requestOf(ctx)
	if r.Key == "" {
		return create()
	}
	if err := c.keys.prune(ctx, tx, now); err != nil {
		return err
	}
	row, err := tx.IdempotencyKey(ctx, db.IdempotencyKeyParams{ProjectID: p.ID, Key: r.Key})
	switch {
	case errors.Is(err, sql.ErrNoRows):
	case err != nil:
		return err
	case !bytes.Equal(row.Fingerprint, r.Fingerprint):
		return refuse(IdempotencyKeyReused, "the idempotency key %q was used for another request: use a new key for each thing that is to be created", r.Key).
			at("Idempotency-Key", "was used for another request")
	default:
		r.Replayed = true
		if err := json.Unmarshal([]byte(row.Result), result); err != nil {
			return fmt.Errorf("stored result of idempotency key %q: %w", r.Key, err)
		}
		return nil
	}
	if err := create(); err != nil {
		return err
	}
	return tx.InsertIdempotencyKey(ctx, db.InsertIdempotencyKeyParams{
		ProjectID: p.ID, Key: r.Key, Fingerprint: r.Fingerprint, Result: toJSON(result), ExpiresAt: now.Add(KeyLifetime).UnixMilli(),
	})
}

// unchanged refuses a change that was meant for another version of the resource.
func unchanged(ctx context.Context, id string, version int64) error {
	want := requestOf(ctx).IfMatch
	if want == nil || *want == version {
		return nil
	}
	return refuse(PreconditionFailed, "%s is at version %d by now, not %d: read it again, and decide anew", id, version, *want).
		at("If-Match", "is not the present version")
}
