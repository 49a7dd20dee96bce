-- Routes, and what a balancer can be asked for beside listeners and targets.

-- +goose Up
-- +goose StatementBegin
ALTER TABLE load_balancers ADD COLUMN source_ranges TEXT NOT NULL DEFAULT '[]';
ALTER TABLE load_balancers ADD COLUMN affinity INTEGER NOT NULL DEFAULT 0; -- milliseconds
ALTER TABLE load_balancers ADD COLUMN health_check TEXT; -- NULL: targets are not checked

CREATE TABLE routes (
    id           TEXT    NOT NULL PRIMARY KEY,
    project_id   TEXT    NOT NULL REFERENCES projects (id),
    name         TEXT    NOT NULL,
    destination  TEXT    NOT NULL,
    instance_id  TEXT    NOT NULL, -- no reference: a route outlives its instance
    state        TEXT    NOT NULL,
    state_reason TEXT    NOT NULL,
    tags         TEXT    NOT NULL,
    version      INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    updated_at   INTEGER NOT NULL,
    UNIQUE (project_id, name)
) STRICT;
CREATE INDEX routes_project ON routes (project_id, id);
CREATE INDEX routes_instance ON routes (instance_id);

-- +goose StatementEnd
-- +goose Down
-- +goose StatementBegin
DROP TABLE routes;
ALTER TABLE load_balancers DROP COLUMN health_check;
ALTER TABLE load_balancers DROP COLUMN affinity;
ALTER TABLE load_balancers DROP COLUMN source_ranges;
-- +goose StatementEnd
