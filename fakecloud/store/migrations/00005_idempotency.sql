-- What creates with an idempotency key gave, so that a repeated one gives the
-- same again.
-- +goose Up
CREATE TABLE idempotency_keys (
    project_id  TEXT    NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    key         TEXT    NOT NULL,
    fingerprint BLOB    NOT NULL, -- of the request, to tell a repeated one from another
    result      TEXT    NOT NULL, -- what it gave, JSON
    expires_at  INTEGER NOT NULL,
    PRIMARY KEY (project_id, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX idempotency_keys_expiry ON idempotency_keys (expires_at);

-- +goose Down
DROP TABLE idempotency_keys;
