package client

import (
	"context"
	"net/http"
	"strconv"
)

type (
	ifMatchKey     struct{}
	idempotencyKey struct{}
)

// IfMatch gives a context in which changes are made only to that version of the
// resource; HasCode(err, api.PreconditionFailed) tells that it has another.
func IfMatch(ctx context.Context, version int64) context.Context {
	return context.WithValue(ctx, ifMatchKey{}, version)
}

// IdempotencyKey gives a context in which a create happens once, however often
// it is sent within the cloud's 24 hours: one that fails on the way is sent
// again, as reads are.
func IdempotencyKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, idempotencyKey{}, key)
}

func setHeaders(req *http.Request) {
	if version, ok := req.Context().Value(ifMatchKey{}).(int64); ok {
		req.Header.Set("If-Match", `"`+strconv.FormatInt(version, 10)+`"`)
	}
	if key, ok := req.Context().Value(idempotencyKey{}).(string); ok {
		req.Header.Set("Idempotency-Key", key)
	}
}

// create sends a create: once, unless an idempotency key makes it safe to repeat.
func create[T any](ctx context.Context, c *Client, do call) (*T, error) {
	if _, ok := ctx.Value(idempotencyKey{}).(string); ok {
		return read[T](ctx, c, do)
	}
	return write[T](ctx, c, do)
}
