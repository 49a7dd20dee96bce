-- name: DeleteFlagTokens :exec
DELETE FROM tokens WHERE project_id = ? AND origin = 'flag';

-- name: ReplaceToken :exec
INSERT OR REPLACE INTO tokens (name, project_id, hash, role, origin, created_at) VALUES (?, ?, ?, ?, 'flag', ?);

-- name: InsertToken :exec
INSERT INTO tokens (name, project_id, hash, role, origin, expires_at, created_at) VALUES (?, ?, ?, ?, 'api', ?, ?);

-- name: RotateToken :exec
UPDATE tokens SET hash = ?, rotated_at = ?, previous_hash = ?, previous_until = ? WHERE name = ?;

-- name: DeleteToken :exec
DELETE FROM tokens WHERE name = ?;

-- name: GetToken :one
SELECT * FROM tokens WHERE name = ?;

-- name: ListTokens :many
SELECT * FROM tokens
WHERE project_id = @project_id AND name > @after AND (CAST(@name AS TEXT) = '' OR name = CAST(@name AS TEXT))
ORDER BY name LIMIT @max;

-- name: OtherAdmins :one
SELECT count(*) FROM tokens
WHERE role = 'admin' AND name <> @name AND (expires_at IS NULL OR expires_at > @now);

-- name: TokenByHash :one
SELECT sqlc.embed(tokens), sqlc.embed(projects) FROM tokens
JOIN projects ON projects.id = tokens.project_id
WHERE tokens.hash = ?1 OR tokens.previous_hash = ?1
ORDER BY tokens.hash = ?1 DESC LIMIT 1;

-- name: InsertAccessToken :exec
INSERT INTO access_tokens (hash, granted_to, expires_at) VALUES (?, ?, ?);

-- The secret that an access token was granted to, and when it ends.
-- name: AccessToken :one
SELECT granted_to, expires_at FROM access_tokens WHERE hash = ?;

-- What has expired, and the oldest of those granted to one secret, beyond a number.
-- name: PruneAccessTokens :exec
DELETE FROM access_tokens WHERE access_tokens.expires_at <= @now OR access_tokens.hash IN (
    SELECT a.hash FROM access_tokens AS a WHERE a.granted_to = @granted_to ORDER BY a.expires_at DESC LIMIT -1 OFFSET @keep);

-- name: InsertTokenKey :exec
INSERT INTO token_keys (fingerprint, token, project_id, public_key, created_at) VALUES (?, ?, ?, ?, ?);

-- name: DeleteTokenKey :execrows
DELETE FROM token_keys WHERE token = ? AND fingerprint = ?;

-- name: ListTokenKeys :many
SELECT * FROM token_keys WHERE token = ? ORDER BY created_at, fingerprint;

-- name: TokenKey :one
SELECT sqlc.embed(token_keys), sqlc.embed(tokens), sqlc.embed(projects) FROM token_keys
JOIN tokens ON tokens.name = token_keys.token
JOIN projects ON projects.id = tokens.project_id
WHERE token_keys.fingerprint = ?;

-- Keys whose token is gone, or is in another project now.
-- name: PruneTokenKeys :exec
DELETE FROM token_keys WHERE NOT EXISTS (
    SELECT 1 FROM tokens WHERE tokens.name = token_keys.token AND tokens.project_id = token_keys.project_id);
