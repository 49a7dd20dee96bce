-- name: InsertInstance :exec
INSERT INTO instances (id, project_id, name, region, zone, type, network_id, state, state_reason, address, tags, version, created_at, updated_at, due_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: UpdateInstance :exec
UPDATE instances SET state = ?, state_reason = ?, address = ?, version = ?, updated_at = ?, due_at = ? WHERE id = ?;

-- name: RenameInstance :exec
UPDATE instances SET name = ?, tags = ?, version = ?, updated_at = ? WHERE id = ?;

-- name: DeleteInstance :exec
DELETE FROM instances WHERE id = ?;

-- name: GetInstance :one
SELECT * FROM instances WHERE id = ?;

-- name: ListInstances :many
SELECT * FROM instances
WHERE project_id = @project_id AND id > @after
  AND (CAST(@name AS TEXT) = '' OR name = CAST(@name AS TEXT))
  AND (CAST(@zone AS TEXT) = '' OR zone = CAST(@zone AS TEXT))
  AND (CAST(@states AS TEXT) = '[]' OR state IN (SELECT s.value FROM json_each(CAST(@states AS TEXT)) AS s))
  AND NOT EXISTS (
    SELECT 1 FROM json_each(CAST(@tags AS TEXT)) AS want
    WHERE NOT EXISTS (
      SELECT 1 FROM json_each(instances.tags) AS have
      WHERE have.key = json_extract(want.value, '$.key')
        AND (json_extract(want.value, '$.value') IS NULL OR have.value = json_extract(want.value, '$.value'))
    )
  )
ORDER BY id LIMIT @max;

-- name: LiveInstanceNamed :one
SELECT id FROM instances WHERE project_id = ? AND name = ? AND state <> 'terminated';

-- name: InstancesDue :many
SELECT id FROM instances WHERE due_at <= @now ORDER BY due_at, id;

-- name: NextInstanceDue :one
SELECT due_at FROM instances WHERE due_at IS NOT NULL ORDER BY due_at LIMIT 1;

-- name: InstanceStates :many
SELECT id, state FROM instances
WHERE id IN (SELECT t.value FROM json_each(CAST(@ids AS TEXT)) AS t);

-- name: RunningAddresses :many
SELECT id, address FROM instances
WHERE state = 'running' AND address IS NOT NULL
  AND id IN (SELECT t.value FROM json_each(CAST(@ids AS TEXT)) AS t)
ORDER BY id;
