-- name: InsertResource :exec
INSERT INTO resources (id, kind, project_id, name, state, zone, address, address6, private_address, network_id, refers_to, first_address, version, due_at, document, serial)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: NextSerial :one
UPDATE serials SET last = last + 1 RETURNING last;

-- name: ResourceOfSerial :one
SELECT id FROM resources WHERE serial = ? AND kind = ? AND project_id = ?;

-- name: UpdateResource :exec
UPDATE resources SET name = ?, state = ?, address = ?, private_address = ?, network_id = ?, refers_to = ?, version = ?,
    due_at = ?, document = ? WHERE id = ?;

-- The default networks have the CIDR that the cloud has now.
-- name: SetDefaultCIDR :exec
UPDATE resources SET document = json_set(document, '$.cidr', CAST(@cidr AS TEXT))
WHERE kind = 'network' AND json_extract(document, '$.default') AND json_extract(document, '$.cidr') <> CAST(@cidr AS TEXT);

-- name: DeleteResource :exec
DELETE FROM resources WHERE id = ?;

-- name: GetResource :one
SELECT document, due_at, serial FROM resources WHERE id = ? AND kind = ?;

-- name: ListResources :many
SELECT document, due_at, serial FROM resources
WHERE project_id = @project_id AND kind = @kind AND id > @after
  AND (CAST(@name AS TEXT) = '' OR name = CAST(@name AS TEXT) COLLATE NOCASE)
  AND (CAST(@zone AS TEXT) = '' OR zone = CAST(@zone AS TEXT))
  AND (CAST(@serial AS INTEGER) = 0 OR serial = CAST(@serial AS INTEGER))
  AND (CAST(@states AS TEXT) = '[]' OR state IN (SELECT s.value FROM json_each(CAST(@states AS TEXT)) AS s))
  AND NOT EXISTS (
    SELECT 1 FROM json_each(CAST(@tags AS TEXT)) AS want
    WHERE NOT EXISTS (
      SELECT 1 FROM json_each(resources.document, '$.tags') AS have
      WHERE have.key = json_extract(want.value, '$.key')
        AND (json_extract(want.value, '$.value') IS NULL OR have.value = json_extract(want.value, '$.value'))
    )
  )
ORDER BY id LIMIT @max;

-- name: AllLoadBalancers :many
SELECT id, state FROM resources WHERE kind = 'load-balancer' ORDER BY id;

-- A terminated instance has given up its name.
-- name: ResourceNamed :one
SELECT id FROM resources WHERE project_id = ? AND kind = ? AND name = ? COLLATE NOCASE AND state <> 'terminated';

-- name: ResourcesReferringTo :many
SELECT document, due_at, serial FROM resources WHERE refers_to = ? AND kind = ? ORDER BY id;

-- name: ResourcesDue :many
SELECT id, kind, version FROM resources WHERE due_at <= @now ORDER BY due_at, id;

-- name: NextDue :one
SELECT due_at FROM resources WHERE due_at IS NOT NULL ORDER BY due_at LIMIT 1;

-- name: DueAfter :one
SELECT CAST(coalesce(min(due_at), 0) AS INTEGER) AS due_at FROM resources WHERE due_at > CAST(@now AS INTEGER);

-- name: SetDue :exec
UPDATE resources SET due_at = ? WHERE id = ?;

-- name: BoundDueTimes :exec
UPDATE resources SET due_at = @now
WHERE due_at <> @held
AND due_at > CASE state WHEN 'terminated' THEN CAST(@retained AS INTEGER) ELSE CAST(@latest AS INTEGER) END;

-- name: ReleaseHeld :exec
UPDATE resources SET due_at = @now
WHERE due_at = @held AND project_id NOT IN (SELECT p.value FROM json_each(CAST(@but AS TEXT)) AS p);

-- name: CountResources :many
SELECT kind, state, count(*) AS count FROM resources GROUP BY kind, state;

-- name: CountResourcesOf :one
SELECT count(*) FROM resources WHERE project_id = ? AND kind = ?;

-- name: InstancesOf :many
SELECT id, state, address, network_id FROM resources
WHERE id IN (SELECT t.value FROM json_each(CAST(@ids AS TEXT)) AS t)
ORDER BY id;

-- name: ResourceInNetwork :one
SELECT id FROM resources
WHERE project_id = @project_id AND kind IN ('instance', 'load-balancer')
  AND state NOT IN ('terminating', 'terminated') AND network_id = @network
LIMIT 1;

-- name: LoadBalancersTargeting :many
SELECT document, due_at, serial FROM resources JOIN load_balancer_targets ON load_balancer_id = resources.id
WHERE instance_id = ? ORDER BY resources.id;

-- name: CheckedLoadBalancers :many
SELECT id, name FROM resources
WHERE kind = 'load-balancer' AND (json_extract(document, '$.healthCheck') IS NOT NULL OR EXISTS (
    SELECT 1 FROM json_each(document, '$.listeners') WHERE json_extract(value, '$.healthCheck.protocol') <> 'none'))
ORDER BY id LIMIT 3;

-- name: LastRouteUpTo :one
SELECT document, due_at, serial FROM resources
WHERE network_id = @network AND first_address <= @address
ORDER BY first_address DESC LIMIT 1;

-- name: AddressByIP :one
SELECT document, due_at, serial FROM resources WHERE address = ? AND kind = 'address';

-- name: HeldAddresses :many
SELECT id FROM resources WHERE kind = 'address' AND refers_to IS NOT NULL ORDER BY id;

-- name: AddressesInUse :many
SELECT CAST(address AS TEXT) AS address FROM resources WHERE address IS NOT NULL
UNION ALL
SELECT CAST(address6 AS TEXT) FROM resources WHERE address6 IS NOT NULL
UNION ALL
SELECT CAST(private_address AS TEXT) FROM resources WHERE private_address IS NOT NULL
UNION ALL
SELECT address FROM secondary_addresses;

-- A balancer comes before the reserved address that it holds.
-- name: AddressHolder :one
SELECT kind, id, name, project_id FROM resources
WHERE address = CAST(@address AS TEXT) OR private_address = CAST(@address AS TEXT)
   OR id IN (SELECT instance_id FROM secondary_addresses AS s WHERE s.address = CAST(@address AS TEXT))
ORDER BY kind = 'address' LIMIT 1;

-- name: DueTerminating :many
SELECT id FROM resources
WHERE id IN (SELECT t.value FROM json_each(CAST(@ids AS TEXT)) AS t)
  AND kind = 'instance' AND state = 'terminating' AND due_at <= @now;

-- How often instances are targets.
-- name: CountTargets :one
SELECT count(*) FROM load_balancer_targets
WHERE instance_id IN (SELECT t.value FROM json_each(CAST(@ids AS TEXT)) AS t);

-- name: LoadBalancersTargetingAny :many
SELECT document, due_at, serial FROM resources WHERE id IN (
    SELECT load_balancer_id FROM load_balancer_targets
    WHERE instance_id IN (SELECT t.value FROM json_each(CAST(@ids AS TEXT)) AS t))
ORDER BY id LIMIT @max;
