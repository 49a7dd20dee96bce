-- name: Room :one
SELECT
  CAST(coalesce((SELECT used FROM usage WHERE usage.project_id = projects.id AND usage.kind = @kind AND usage.zone = ''), 0) AS INTEGER) AS used,
  CAST(coalesce((SELECT quotas.max FROM quotas WHERE quotas.project_id = projects.id AND quotas.kind = @kind), CAST(@default_max AS INTEGER)) AS INTEGER) AS max
FROM projects WHERE projects.id = @project_id;

-- name: UsageOf :many
SELECT kind, used FROM usage WHERE project_id = ? AND zone = '' ORDER BY kind;

-- name: LiveInstancesPerZone :many
SELECT zone, used AS live FROM usage WHERE project_id = ? AND kind = 'live-instances';

-- name: SetQuota :exec
INSERT INTO quotas (project_id, kind, max) VALUES (?, ?, ?)
ON CONFLICT (project_id, kind) DO UPDATE SET max = excluded.max;
