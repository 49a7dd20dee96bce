-- name: InsertFault :exec
INSERT INTO faults (id, project_id, spec, created_at, matched, hits, phase) VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: AllFaults :many
SELECT * FROM faults ORDER BY created_at, id;

-- name: CountFault :exec
UPDATE faults SET matched = ?, hits = ? WHERE id = ?;

-- name: SetFaultPhase :execrows
UPDATE faults SET phase = ? WHERE id = ?;

-- name: DeleteFault :exec
DELETE FROM faults WHERE id = ?;

-- name: FaultProject :one
SELECT id FROM projects WHERE id = ?;

-- name: FaultableInstances :many
SELECT * FROM instances WHERE project_id = ? AND state IN ('pending', 'running') ORDER BY id;

-- name: InsertFaultInstance :exec
INSERT OR IGNORE INTO fault_instances (fault_id, instance_id) VALUES (?, ?);

-- name: InstancesOfFault :many
SELECT instances.* FROM instances JOIN fault_instances ON instance_id = instances.id WHERE fault_id = ? ORDER BY instances.id;

-- name: OutageOrphans :many
SELECT * FROM instances
WHERE state = 'error' AND state_reason = 'zone ' || zone || ' has an outage'
  AND NOT EXISTS (SELECT 1 FROM fault_instances WHERE instance_id = instances.id)
ORDER BY id;

-- name: DeleteFaultInstances :exec
DELETE FROM fault_instances WHERE fault_id = ?;

-- name: ReleaseInstances :exec
UPDATE instances SET due_at = @now
WHERE due_at = @held AND project_id NOT IN (SELECT p.value FROM json_each(CAST(@but AS TEXT)) AS p);

-- name: ReleaseLoadBalancers :exec
UPDATE load_balancers SET due_at = @now
WHERE due_at = @held AND project_id NOT IN (SELECT p.value FROM json_each(CAST(@but AS TEXT)) AS p);

-- name: SetInstanceDue :exec
UPDATE instances SET due_at = ? WHERE id = ?;

-- name: SetLoadBalancerDue :exec
UPDATE load_balancers SET due_at = ? WHERE id = ?;
