-- The newest events, operations and calls of the audit are kept of each project, so that no project removes another's.

-- +goose Up
-- +goose StatementBegin
-- The number through which events of a project were removed: a reader who has not read as far has missed some. The
-- row of project '' is for all of them, and says what was removed before this table was made. No reference, as what
-- was removed stays so when the project is gone.
CREATE TABLE removed_events (
    project_id TEXT    NOT NULL PRIMARY KEY,
    through    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO removed_events (project_id, through)
SELECT '', coalesce((SELECT min(seq) - 1 FROM events), seq) FROM sqlite_sequence WHERE name = 'events';
CREATE INDEX audit_project ON audit (project_id, id);
CREATE INDEX operations_age ON operations (project_id, seq);
CREATE INDEX idempotency_keys_age ON idempotency_keys (project_id, expires_at);
-- +goose StatementEnd
-- +goose Down
-- +goose StatementBegin
DROP INDEX idempotency_keys_age;
DROP INDEX operations_age;
DROP INDEX audit_project;
DROP TABLE removed_events;
-- +goose StatementEnd
