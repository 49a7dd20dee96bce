-- name: InsertAddress :exec
INSERT INTO addresses (id, project_id, name, region, ip, state, holder_kind, holder_id, tags, version, created_at, updated_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: UpdateAddress :exec
UPDATE addresses SET name = ?, state = ?, holder_kind = ?, holder_id = ?, tags = ?, version = ?, updated_at = ? WHERE id = ?;

-- name: DeleteAddress :exec
DELETE FROM addresses WHERE id = ?;

-- name: GetAddress :one
SELECT * FROM addresses WHERE id = ?;

-- name: AddressByIP :one
SELECT * FROM addresses WHERE ip = ?;

-- name: AddressNamed :one
SELECT id FROM addresses WHERE project_id = ? AND name = ?;

-- name: AddressesHeldBy :many
SELECT * FROM addresses WHERE holder_id = ? AND holder_id <> '' ORDER BY id;

-- name: ListAddresses :many
SELECT * FROM addresses
WHERE project_id = @project_id AND id > @after
  AND (CAST(@name AS TEXT) = '' OR name = CAST(@name AS TEXT))
  AND (CAST(@states AS TEXT) = '[]' OR state IN (SELECT s.value FROM json_each(CAST(@states AS TEXT)) AS s))
  AND NOT EXISTS (
    SELECT 1 FROM json_each(CAST(@tags AS TEXT)) AS want
    WHERE NOT EXISTS (
      SELECT 1 FROM json_each(addresses.tags) AS have
      WHERE have.key = json_extract(want.value, '$.key')
        AND (json_extract(want.value, '$.value') IS NULL OR have.value = json_extract(want.value, '$.value'))
    )
  )
ORDER BY id LIMIT @max;

-- name: SetExternal :exec
UPDATE instances SET external = ? WHERE id = ?;
