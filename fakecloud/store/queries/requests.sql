-- name: IdempotencyKey :one
SELECT * FROM idempotency_keys WHERE project_id = ? AND key = ?;

-- name: InsertIdempotencyKey :exec
INSERT INTO idempotency_keys (project_id, key, fingerprint, result, expires_at) VALUES (?, ?, ?, ?, ?);

-- name: PruneIdempotencyKeys :exec
DELETE FROM idempotency_keys WHERE expires_at <= @now;
