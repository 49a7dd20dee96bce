-- What was last deleted with a serial number. Events are few thousands.
-- name: DeletedResource :one
SELECT body FROM events
WHERE project_id = @project_id AND resource = @resource AND type = 'deleted'
  AND json_extract(body, '$.serial') = CAST(@serial AS INTEGER)
ORDER BY seq DESC LIMIT 1;

-- name: InsertEvent :one
INSERT INTO events (project_id, time, type, resource, resource_id, name, from_state, to_state, reason, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
RETURNING seq;

-- name: PruneEvents :exec
DELETE FROM events WHERE seq <= @through;

-- name: OldestEvent :one
SELECT seq FROM events ORDER BY seq LIMIT 1;

-- name: EventsAfter :many
SELECT * FROM events WHERE project_id = @project_id AND seq > @after ORDER BY seq LIMIT @max;

-- name: AllEventsAfter :many
SELECT * FROM events WHERE seq > @after ORDER BY seq LIMIT @max;
