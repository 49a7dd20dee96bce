-- name: InsertRoute :exec
INSERT INTO routes (id, project_id, network_id, name, destination, first_address, instance_id, state, state_reason, tags, version, created_at, updated_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: UpdateRoute :exec
UPDATE routes SET state = ?, state_reason = ?, version = ?, updated_at = ? WHERE id = ?;

-- name: RenameRoute :exec
UPDATE routes SET name = ?, tags = ?, version = ?, updated_at = ? WHERE id = ?;

-- name: DeleteRoute :exec
DELETE FROM routes WHERE id = ?;

-- name: GetRoute :one
SELECT * FROM routes WHERE id = ?;

-- name: ListRoutes :many
SELECT * FROM routes
WHERE project_id = @project_id AND id > @after
  AND (CAST(@name AS TEXT) = '' OR name = CAST(@name AS TEXT))
  AND NOT EXISTS (
    SELECT 1 FROM json_each(CAST(@tags AS TEXT)) AS want
    WHERE NOT EXISTS (
      SELECT 1 FROM json_each(routes.tags) AS have
      WHERE have.key = json_extract(want.value, '$.key')
        AND (json_extract(want.value, '$.value') IS NULL OR have.value = json_extract(want.value, '$.value'))
    )
  )
ORDER BY id LIMIT @max;

-- name: RouteNamed :one
SELECT id FROM routes WHERE project_id = ? AND name = ?;

-- name: LastRouteUpTo :one
SELECT id, name, destination FROM routes
WHERE network_id = @network_id AND first_address <= @address
ORDER BY first_address DESC LIMIT 1;

-- name: RoutesVia :many
SELECT * FROM routes WHERE instance_id = ? ORDER BY id;
