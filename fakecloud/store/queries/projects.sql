-- name: UpsertProject :one
INSERT INTO projects (id, name, default_tags, created_at) VALUES (?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE SET default_tags = excluded.default_tags
RETURNING *;

-- name: DeleteTokens :exec
DELETE FROM tokens WHERE project_id = ?;

-- name: InsertToken :exec
INSERT OR REPLACE INTO tokens (name, project_id, hash, created_at) VALUES (?, ?, ?, ?);

-- name: TokenByHash :one
SELECT sqlc.embed(tokens), sqlc.embed(projects) FROM tokens
JOIN projects ON projects.id = tokens.project_id
WHERE tokens.hash = ?;
