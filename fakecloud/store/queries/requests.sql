-- name: IdempotencyKey :one
SELECT * FROM idempotency_keys WHERE project_id = ? AND key = ?;

-- name: InsertIdempotencyKey :exec
INSERT INTO idempotency_keys (project_id, key, fingerprint, result, expires_at) VALUES (?, ?, ?, ?, ?);

-- name: PruneIdempotencyKeys :exec
DELETE FROM idempotency_keys WHERE expires_at <= @now;

-- name: PruneOldestKeys :exec
DELETE FROM idempotency_keys WHERE idempotency_keys.project_id = @project_id AND idempotency_keys.key IN (
    SELECT k.key FROM idempotency_keys AS k WHERE k.project_id = @project_id
    ORDER BY k.expires_at DESC, k.key LIMIT -1 OFFSET @keep);

-- name: IdempotencyBytes :one
SELECT CAST(coalesce(sum(octet_length(result)), 0) AS INTEGER) FROM idempotency_keys WHERE project_id = @project_id;

-- How many of a project's newest keys have results that are together not beyond a number of bytes.
-- name: KeysWithinBytes :one
SELECT count(*) FROM (
    SELECT sum(octet_length(result)) OVER (ORDER BY expires_at DESC, key) AS bytes
    FROM idempotency_keys WHERE project_id = @project_id)
WHERE bytes <= CAST(@keep AS INTEGER);
