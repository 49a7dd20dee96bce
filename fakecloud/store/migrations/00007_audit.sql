-- Who called what. Neither table refers to projects: what was done in one is
-- still told when it is gone.

-- +goose Up
CREATE TABLE audit (
    id          INTEGER NOT NULL PRIMARY KEY, -- in the order in which answers began
    time        INTEGER NOT NULL,
    request_id  TEXT    NOT NULL,
    project_id  TEXT    NOT NULL,
    token       TEXT    NOT NULL,
    user_agent  TEXT    NOT NULL,
    operation   TEXT    NOT NULL,
    resource_id TEXT    NOT NULL,
    status      INTEGER NOT NULL, -- 0: broken off
    code        TEXT    NOT NULL,
    fault       TEXT    NOT NULL,
    duration    INTEGER NOT NULL, -- microseconds
    bytes_in    INTEGER NOT NULL,
    bytes_out   INTEGER NOT NULL
) STRICT;

CREATE TABLE audit_sums (
    project_id TEXT    NOT NULL,
    token      TEXT    NOT NULL,
    user_agent TEXT    NOT NULL,
    operation  TEXT    NOT NULL,
    calls      INTEGER NOT NULL,
    errors     INTEGER NOT NULL,
    faults     INTEGER NOT NULL,
    throttled  INTEGER NOT NULL,
    duration   INTEGER NOT NULL, -- microseconds
    bytes_in   INTEGER NOT NULL,
    bytes_out  INTEGER NOT NULL,
    PRIMARY KEY (project_id, token, user_agent, operation)
) STRICT, WITHOUT ROWID;

-- +goose Down
DROP TABLE audit_sums;
DROP TABLE audit;
