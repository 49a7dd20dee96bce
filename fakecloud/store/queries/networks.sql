-- name: InsertNetwork :exec
INSERT INTO networks (id, project_id, name, cidr, is_default, tags, version, created_at, updated_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: UpdateNetwork :exec
UPDATE networks SET name = ?, tags = ?, version = ?, updated_at = ? WHERE id = ?;

-- name: DeleteNetwork :exec
DELETE FROM networks WHERE id = ?;

-- name: GetNetwork :one
SELECT * FROM networks WHERE id = ?;

-- name: DefaultNetwork :one
SELECT * FROM networks WHERE project_id = ? AND is_default = 1;

-- name: NetworkNamed :one
SELECT id FROM networks WHERE project_id = ? AND name = ?;

-- name: NetworksOf :many
SELECT * FROM networks WHERE project_id = ? ORDER BY id;

-- name: ListNetworks :many
SELECT * FROM networks
WHERE project_id = @project_id AND id > @after
  AND (CAST(@name AS TEXT) = '' OR name = CAST(@name AS TEXT))
  AND NOT EXISTS (
    SELECT 1 FROM json_each(CAST(@tags AS TEXT)) AS want
    WHERE NOT EXISTS (
      SELECT 1 FROM json_each(networks.tags) AS have
      WHERE have.key = json_extract(want.value, '$.key')
        AND (json_extract(want.value, '$.value') IS NULL OR have.value = json_extract(want.value, '$.value'))
    )
  )
ORDER BY id LIMIT @max;

-- name: InstanceInNetwork :one
SELECT id FROM instances WHERE network_id = ? AND state <> 'terminated' LIMIT 1;
