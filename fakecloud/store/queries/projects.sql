-- name: ProjectByName :one
SELECT * FROM projects WHERE name = ?;

-- name: UpsertProject :one
INSERT INTO projects (id, name, default_tags, created_at) VALUES (?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE SET default_tags = excluded.default_tags
RETURNING *;

-- name: UpsertToken :exec
INSERT INTO tokens (name, project_id, hash, created_at) VALUES (?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE SET project_id = excluded.project_id, hash = excluded.hash;

-- name: TokenByHash :one
SELECT sqlc.embed(tokens), sqlc.embed(projects) FROM tokens
JOIN projects ON projects.id = tokens.project_id
WHERE tokens.hash = ?;

-- name: TokenNameByHash :one
SELECT name FROM tokens WHERE hash = ?;
