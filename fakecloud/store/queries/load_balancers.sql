-- name: InsertLoadBalancer :exec
INSERT INTO load_balancers (id, project_id, name, region, address, address_id, address6, state, state_reason, state_reason_code, scheme, algorithm, listeners, source_ranges, affinity, idle_timeout, drain, health_check, tags, version, created_at, updated_at, due_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: UpdateLoadBalancer :exec
UPDATE load_balancers SET name = ?, state = ?, state_reason = ?, state_reason_code = ?, scheme = ?, algorithm = ?, listeners = ?, source_ranges = ?, affinity = ?, idle_timeout = ?, drain = ?, health_check = ?, tags = ?, version = ?, updated_at = ?, due_at = ? WHERE id = ?;

-- name: DeleteLoadBalancer :exec
DELETE FROM load_balancers WHERE id = ?;

-- name: GetLoadBalancer :one
SELECT * FROM load_balancers WHERE id = ?;

-- name: ListLoadBalancers :many
SELECT * FROM load_balancers
WHERE project_id = @project_id AND id > @after
  AND (CAST(@name AS TEXT) = '' OR name = CAST(@name AS TEXT))
  AND (CAST(@states AS TEXT) = '[]' OR state IN (SELECT s.value FROM json_each(CAST(@states AS TEXT)) AS s))
  AND NOT EXISTS (
    SELECT 1 FROM json_each(CAST(@tags AS TEXT)) AS want
    WHERE NOT EXISTS (
      SELECT 1 FROM json_each(load_balancers.tags) AS have
      WHERE have.key = json_extract(want.value, '$.key')
        AND (json_extract(want.value, '$.value') IS NULL OR have.value = json_extract(want.value, '$.value'))
    )
  )
ORDER BY id LIMIT @max;

-- name: AllLoadBalancerIDs :many
SELECT id FROM load_balancers ORDER BY id;

-- name: LoadBalancerNamed :one
SELECT id FROM load_balancers WHERE project_id = ? AND name = ?;

-- name: LoadBalancersDue :many
SELECT id FROM load_balancers WHERE due_at <= @now ORDER BY due_at, id;

-- name: NextLoadBalancerDue :one
SELECT due_at FROM load_balancers WHERE due_at IS NOT NULL ORDER BY due_at LIMIT 1;

-- name: InsertTarget :exec
INSERT INTO load_balancer_targets (load_balancer_id, position, instance_id) VALUES (?, ?, ?);

-- name: DeleteTargets :exec
DELETE FROM load_balancer_targets WHERE load_balancer_id = ?;

-- name: DeleteTargetInstance :exec
DELETE FROM load_balancer_targets WHERE instance_id = ?;

-- name: TargetsOf :many
SELECT instance_id FROM load_balancer_targets WHERE load_balancer_id = ? ORDER BY position;

-- name: LoadBalancersTargeting :many
SELECT load_balancer_id FROM load_balancer_targets WHERE instance_id = ? ORDER BY load_balancer_id;
