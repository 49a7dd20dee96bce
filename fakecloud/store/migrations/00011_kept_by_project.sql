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

-- Of a thousand targets, one that goes is one row.
DROP TRIGGER targets_changed;
CREATE TRIGGER targets_changed AFTER UPDATE OF document ON resources
WHEN NEW.kind = 'load-balancer' AND json_extract(NEW.document, '$.targets') IS NOT json_extract(OLD.document, '$.targets') BEGIN
    DELETE FROM load_balancer_targets WHERE load_balancer_id = NEW.id AND instance_id NOT IN (
        SELECT value FROM json_each(NEW.document, '$.targets') WHERE type = 'text'
    );
    INSERT OR IGNORE INTO load_balancer_targets (load_balancer_id, instance_id)
    SELECT NEW.id, value FROM json_each(NEW.document, '$.targets') WHERE type = 'text';
END;
-- +goose StatementEnd
-- +goose Down
-- +goose StatementBegin
DROP TRIGGER targets_changed;
CREATE TRIGGER targets_changed AFTER UPDATE OF document ON resources
WHEN NEW.kind = 'load-balancer' AND json_extract(NEW.document, '$.targets') IS NOT json_extract(OLD.document, '$.targets') BEGIN
    DELETE FROM load_balancer_targets WHERE load_balancer_id = NEW.id;
    INSERT INTO load_balancer_targets (load_balancer_id, instance_id)
    SELECT NEW.id, value FROM json_each(NEW.document, '$.targets') WHERE type = 'text';
END;
DROP INDEX idempotency_keys_age;
DROP INDEX operations_age;
DROP INDEX audit_project;
DROP TABLE removed_events;
-- +goose StatementEnd
