-- name: InsertOperation :one
INSERT INTO operations (id, project_id, type, resource, resource_id, state, error, token, created_at, ended_at, serial, records)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
RETURNING seq;

-- name: GetOperation :one
SELECT * FROM operations WHERE project_id = ? AND id = ?;

-- name: RunningOperations :many
SELECT * FROM operations WHERE resource_id = ? AND ended_at IS NULL ORDER BY seq;

-- name: FirstOperation :one
SELECT id FROM operations WHERE resource_id = ? AND type = ? ORDER BY seq LIMIT 1;

-- name: EndOperation :exec
UPDATE operations SET state = ?, error = ?, ended_at = ? WHERE seq = ?;

-- name: RecordOperation :exec
UPDATE operations SET records = ? WHERE project_id = ? AND id = ?;

-- name: ListOperations :many
SELECT * FROM operations
WHERE project_id = @project_id AND id > @after
  AND (CAST(@resource_id AS TEXT) = '' OR resource_id = CAST(@resource_id AS TEXT))
  AND (CAST(@types AS TEXT) = '[]' OR type IN (SELECT t.value FROM json_each(CAST(@types AS TEXT)) AS t))
  AND (CAST(@states AS TEXT) = '[]' OR state IN (SELECT s.value FROM json_each(CAST(@states AS TEXT)) AS s))
  AND (CAST(@serials AS TEXT) = '[]' OR serial IN (SELECT n.value FROM json_each(CAST(@serials AS TEXT)) AS n))
ORDER BY id LIMIT @max;

-- name: PruneOperations :exec
DELETE FROM operations WHERE operations.project_id = @project_id AND ended_at IS NOT NULL AND operations.seq <= (
    SELECT o.seq FROM operations AS o WHERE o.project_id = @project_id ORDER BY o.seq DESC LIMIT 1 OFFSET @keep);
