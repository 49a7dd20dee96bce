-- name: InsertProject :exec
INSERT INTO projects (id, name, default_tags, version, created_at, updated_at) VALUES (?, ?, ?, ?, ?, ?);

-- name: UpdateProject :exec
UPDATE projects SET name = ?, default_tags = ?, version = ?, updated_at = ? WHERE id = ?;

-- name: GetProject :one
SELECT * FROM projects WHERE id = ?;

-- name: ProjectNamed :one
SELECT * FROM projects WHERE name = ?;

-- name: ListProjects :many
SELECT * FROM projects
WHERE id > @after AND (CAST(@name AS TEXT) = '' OR name = CAST(@name AS TEXT))
ORDER BY id LIMIT @max;

-- name: DeleteProjectResources :exec
DELETE FROM resources WHERE project_id = ?;

-- name: DeleteProjectTokens :exec
DELETE FROM tokens WHERE project_id = ?;

-- name: DeleteProject :exec
DELETE FROM projects WHERE id = ?;
