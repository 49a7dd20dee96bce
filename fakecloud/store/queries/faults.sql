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

-- name: InsertFaultInstance :exec
INSERT OR IGNORE INTO fault_instances (fault_id, instance_id) VALUES (?, ?);

-- name: InstancesOfFault :many
SELECT document, due_at, serial FROM resources JOIN fault_instances ON instance_id = resources.id
WHERE fault_id = ? ORDER BY resources.id;

-- name: OutageOrphans :many
SELECT document, due_at, serial FROM resources
WHERE kind = 'instance' AND state = 'error'
  AND json_extract(document, '$.stateReason') = 'zone ' || zone || ' has an outage'
  AND NOT EXISTS (SELECT 1 FROM fault_instances WHERE instance_id = resources.id)
ORDER BY id;

-- name: DeleteFaultInstances :exec
DELETE FROM fault_instances WHERE fault_id = ?;
