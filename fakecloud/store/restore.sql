-- What a data file ("live") keeps when the content of another file takes its place.

-- Tokens stay as they are, so that none opens the cloud again that was deleted or rotated since. Those of a project
-- that the other file does not have go with it. A live database without projects is a new one, and has none to keep.
DELETE FROM tokens WHERE EXISTS (SELECT 1 FROM live.projects);
INSERT INTO tokens (name, project_id, hash, role, origin, expires_at, rotated_at, previous_hash, previous_until, created_at)
SELECT name, project_id, hash, role, origin, expires_at, rotated_at, previous_hash, previous_until, created_at
FROM live.tokens WHERE project_id IN (SELECT id FROM main.projects);

-- Keys stay beside their tokens.
DELETE FROM token_keys WHERE EXISTS (SELECT 1 FROM live.projects);
INSERT INTO token_keys (fingerprint, token, project_id, public_key, created_at)
SELECT fingerprint, token, project_id, public_key, created_at
FROM live.token_keys WHERE project_id IN (SELECT id FROM main.projects);

-- Private keys are in no backup.
INSERT INTO certificate_keys (project_id, fingerprint, private_key)
SELECT project_id, fingerprint, private_key FROM live.certificate_keys
WHERE project_id IN (SELECT id FROM main.projects) ON CONFLICT DO NOTHING;

-- Clients go on with their access tokens until these expire. What they open is up to the secrets that they were
-- granted to.
DELETE FROM access_tokens;
INSERT INTO access_tokens (hash, granted_to, expires_at) SELECT hash, granted_to, expires_at FROM live.access_tokens;

-- What was numbered since the other file was saved keeps its number for itself.
UPDATE serials SET last = max(last, (SELECT last FROM live.serials));

-- The event log is empty, and none of the numbers given before is in it: readers list anew (see migration 2).
DELETE FROM events;
UPDATE sqlite_sequence SET seq = 1 + max(seq, (SELECT seq FROM live.sqlite_sequence WHERE name = 'events'),
    CAST(unixepoch('subsec') * 1000 AS INTEGER)) WHERE name = 'events';
DELETE FROM removed_events;
INSERT INTO removed_events (project_id, through) SELECT '', seq FROM sqlite_sequence WHERE name = 'events';
