-- name: IdempotencyKey :one
SELECT * FROM idempotency_keys WHERE project_id = ? AND key = ?;

-- name: InsertIdempotencyKey :exec
INSERT INTO idempotency_keys (project_id, key, fingerprint, result, expires_at) VALUES (?, ?, ?, ?, ?);

-- name: PruneIdempotencyKeys :exec
DELETE FROM idempotency_keys WHERE expires_at <= @now;

-- name: BoundIdempotencyKeys :exec
DELETE FROM idempotency_keys WHERE (project_id, key) IN (
    SELECT project_id, key FROM (
        SELECT project_id, key, row_number() OVER (PARTITION BY project_id ORDER BY expires_at DESC) AS newest
        FROM idempotency_keys)
    WHERE newest > CAST(@most AS INTEGER));
