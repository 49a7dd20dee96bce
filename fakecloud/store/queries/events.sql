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
DELETE FROM events WHERE project_id = @project_id AND seq <= @through;

-- The newest event of a project beyond a number of newer ones.
-- name: EventBeyond :one
SELECT seq FROM events WHERE project_id = @project_id ORDER BY seq DESC LIMIT 1 OFFSET @keep;

-- The newest event of a project whose body, with those of newer ones, is beyond a number of bytes.
-- name: EventBeyondBytes :one
SELECT seq FROM (
    SELECT seq, sum(octet_length(body)) OVER (ORDER BY seq DESC) AS bytes FROM events WHERE project_id = @project_id)
WHERE bytes > CAST(@keep AS INTEGER) ORDER BY seq DESC LIMIT 1;

-- name: EventBytes :one
SELECT CAST(coalesce(sum(octet_length(body)), 0) AS INTEGER) FROM events WHERE project_id = @project_id;

-- name: SetRemovedEvents :exec
INSERT INTO removed_events (project_id, through) VALUES (@project_id, @through)
ON CONFLICT (project_id) DO UPDATE SET through = excluded.through;

-- Through which number events of a project were removed, or of any if it is empty.
-- name: RemovedEvents :one
SELECT CAST(max(through) AS INTEGER) FROM removed_events
WHERE CAST(@project_id AS TEXT) = '' OR project_id IN ('', CAST(@project_id AS TEXT));

-- name: EventsAfter :many
SELECT * FROM events WHERE project_id = @project_id AND seq > @after ORDER BY seq LIMIT @max;

-- name: AllEventsAfter :many
SELECT * FROM events WHERE seq > @after ORDER BY seq LIMIT @max;
