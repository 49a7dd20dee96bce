-- name: AddressesInUse :many
SELECT CAST(address AS TEXT) AS address FROM instances WHERE address IS NOT NULL
UNION ALL
SELECT address FROM load_balancers
UNION ALL
SELECT CAST(address6 AS TEXT) FROM load_balancers WHERE address6 IS NOT NULL
UNION ALL
SELECT ip FROM addresses;

-- name: AddressHolder :one
SELECT 'instance' AS kind, id, name, project_id FROM instances WHERE instances.address = CAST(@address AS TEXT)
UNION ALL
SELECT 'load balancer' AS kind, id, name, project_id FROM load_balancers WHERE load_balancers.address = CAST(@address AS TEXT)
UNION ALL
SELECT 'reserved address' AS kind, id, name, project_id FROM addresses WHERE addresses.ip = CAST(@address AS TEXT);
