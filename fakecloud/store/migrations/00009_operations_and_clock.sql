-- What became of each change that takes time, and where a virtual clock stands.

-- +goose Up
CREATE TABLE operations (
    seq         INTEGER NOT NULL PRIMARY KEY,
    id          TEXT    NOT NULL,
    project_id  TEXT    NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    type        TEXT    NOT NULL,
    resource    TEXT    NOT NULL,
    resource_id TEXT    NOT NULL, -- no reference: an operation outlives its resource
    state       TEXT    NOT NULL,
    error       TEXT    NOT NULL,
    token       TEXT    NOT NULL, -- the name of the token that asked
    created_at  INTEGER NOT NULL,
    ended_at    INTEGER           -- NULL while it runs
) STRICT;
CREATE UNIQUE INDEX operations_project ON operations (project_id, id);
CREATE INDEX operations_resource ON operations (resource_id);

-- One row, once the data has been under a virtual clock.
CREATE TABLE clock (
    one     INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    virtual INTEGER NOT NULL, -- 1 while the data is under a virtual clock
    now     INTEGER NOT NULL, -- the latest time a virtual clock has shown
    starts  INTEGER NOT NULL  -- how often a virtual clock was started here
) STRICT;

-- +goose Down
DROP TABLE clock;
DROP TABLE operations;
