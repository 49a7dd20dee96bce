-- The cloud's state and its event log. Times are Unix milliseconds in UTC;
-- due_at is when a transitional row moves on, NULL when it rests.

-- +goose Up
-- +goose StatementBegin
CREATE TABLE projects (
    id           TEXT    NOT NULL PRIMARY KEY,
    name         TEXT    NOT NULL UNIQUE,
    default_tags TEXT    NOT NULL,
    created_at   INTEGER NOT NULL
) STRICT;

-- Only the SHA-256 of a token is kept: who reads this file gets no access.
CREATE TABLE tokens (
    name       TEXT    NOT NULL PRIMARY KEY,
    project_id TEXT    NOT NULL REFERENCES projects (id),
    hash       BLOB    NOT NULL UNIQUE,
    created_at INTEGER NOT NULL
) STRICT;

CREATE TABLE instances (
    id           TEXT    NOT NULL PRIMARY KEY,
    project_id   TEXT    NOT NULL REFERENCES projects (id),
    name         TEXT    NOT NULL,
    region       TEXT    NOT NULL,
    zone         TEXT    NOT NULL,
    type         TEXT    NOT NULL,
    state        TEXT    NOT NULL,
    state_reason TEXT    NOT NULL,
    address      TEXT, -- NULL once terminated
    tags         TEXT    NOT NULL,
    version      INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    updated_at   INTEGER NOT NULL,
    due_at       INTEGER
) STRICT;
CREATE UNIQUE INDEX instances_live_name ON instances (project_id, name) WHERE state <> 'terminated';
CREATE UNIQUE INDEX instances_address ON instances (address) WHERE address IS NOT NULL;
CREATE INDEX instances_project ON instances (project_id, id);
CREATE INDEX instances_due ON instances (due_at) WHERE due_at IS NOT NULL;

CREATE TABLE load_balancers (
    id           TEXT    NOT NULL PRIMARY KEY,
    project_id   TEXT    NOT NULL REFERENCES projects (id),
    name         TEXT    NOT NULL,
    region       TEXT    NOT NULL,
    address      TEXT    NOT NULL UNIQUE,
    state        TEXT    NOT NULL,
    state_reason TEXT    NOT NULL,
    listeners    TEXT    NOT NULL,
    tags         TEXT    NOT NULL,
    version      INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    updated_at   INTEGER NOT NULL,
    due_at       INTEGER,
    UNIQUE (project_id, name)
) STRICT;
CREATE INDEX load_balancers_project ON load_balancers (project_id, id);
CREATE INDEX load_balancers_due ON load_balancers (due_at) WHERE due_at IS NOT NULL;

CREATE TABLE load_balancer_targets (
    load_balancer_id TEXT    NOT NULL REFERENCES load_balancers (id) ON DELETE CASCADE,
    position         INTEGER NOT NULL, -- keeps the caller's order
    instance_id      TEXT    NOT NULL REFERENCES instances (id),
    PRIMARY KEY (load_balancer_id, instance_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX load_balancer_targets_instance ON load_balancer_targets (instance_id);

-- AUTOINCREMENT: a sequence number is never given twice, pruned or not.
CREATE TABLE events (
    seq         INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    project_id  TEXT    NOT NULL REFERENCES projects (id),
    time        INTEGER NOT NULL,
    type        TEXT    NOT NULL,
    resource    TEXT    NOT NULL,
    resource_id TEXT    NOT NULL,
    name        TEXT    NOT NULL,
    from_state  TEXT    NOT NULL,
    to_state    TEXT    NOT NULL,
    reason      TEXT    NOT NULL,
    body        TEXT    NOT NULL -- the resource after the change, JSON
) STRICT;
CREATE INDEX events_project ON events (project_id, seq);

-- +goose StatementEnd
-- +goose Down
-- +goose StatementBegin
DROP TABLE events;
DROP TABLE load_balancer_targets;
DROP TABLE load_balancers;
DROP TABLE instances;
DROP TABLE tokens;
DROP TABLE projects;
-- +goose StatementEnd
