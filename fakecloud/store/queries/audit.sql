-- name: LastAudit :one
SELECT CAST(coalesce(max(id), 0) AS INTEGER) FROM audit;

-- name: InsertAudit :exec
INSERT INTO audit (id, time, request_id, project_id, token, user_agent, operation, resource_id, status, code, fault, duration, bytes_in, bytes_out, wire)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: AmendAudit :exec
UPDATE audit SET duration = @duration, bytes_out = @bytes_out WHERE id = @id AND request_id = @request_id;

-- name: PruneAudit :exec
DELETE FROM audit WHERE audit.project_id = @project_id AND audit.id <= (
    SELECT a.id FROM audit AS a WHERE a.project_id = @project_id ORDER BY a.id DESC LIMIT 1 OFFSET @keep);

-- name: AddAuditSum :exec
INSERT INTO audit_sums (project_id, token, user_agent, operation, calls, errors, faults, throttled, duration, bytes_in, bytes_out)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET
    calls = calls + excluded.calls, errors = errors + excluded.errors, faults = faults + excluded.faults,
    throttled = throttled + excluded.throttled, duration = duration + excluded.duration,
    bytes_in = bytes_in + excluded.bytes_in, bytes_out = bytes_out + excluded.bytes_out;

-- name: ListAudit :many
SELECT * FROM audit
WHERE project_id = @project_id
  AND id < CAST(@before AS INTEGER)
  AND time >= @since
  AND (CAST(@token AS TEXT) = '' OR token = @token)
  AND (CAST(@user_agent AS TEXT) = '' OR substr(user_agent, 1, length(@user_agent)) = @user_agent)
  AND (CAST(@operation AS TEXT) = '' OR operation = @operation)
  AND (CAST(@resource_id AS TEXT) = '' OR resource_id = @resource_id)
  AND (CAST(@class AS INTEGER) < 0 OR status / 100 = @class)
ORDER BY id DESC LIMIT @max;

-- name: AuditSums :many
SELECT * FROM audit_sums
WHERE project_id = @project_id
  AND (CAST(@token AS TEXT) = '' OR token = @token)
  AND (CAST(@user_agent AS TEXT) = '' OR substr(user_agent, 1, length(@user_agent)) = @user_agent)
  AND (CAST(@operation AS TEXT) = '' OR operation = @operation)
ORDER BY token, user_agent, operation;

-- name: AuditAgents :many
SELECT DISTINCT project_id, token, user_agent FROM audit_sums;
