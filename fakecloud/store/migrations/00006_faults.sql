-- Fault rules, and the instances that an outage took.
-- +goose Up
CREATE TABLE faults (
    id         TEXT    NOT NULL PRIMARY KEY,
    project_id TEXT    NOT NULL REFERENCES projects (id) ON DELETE CASCADE, -- which made it
    spec       TEXT    NOT NULL, -- JSON
    created_at INTEGER NOT NULL,
    matched    INTEGER NOT NULL,
    hits       INTEGER NOT NULL,
    phase      INTEGER NOT NULL -- of a crash or an outage: 0 is to begin, 1 has begun, 2 has ended
) STRICT, WITHOUT ROWID;

CREATE TABLE fault_instances (
    fault_id    TEXT NOT NULL REFERENCES faults (id) ON DELETE CASCADE,
    instance_id TEXT NOT NULL REFERENCES instances (id) ON DELETE CASCADE,
    PRIMARY KEY (fault_id, instance_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX fault_instances_instance ON fault_instances (instance_id);

-- +goose Down
DROP TABLE fault_instances;
DROP TABLE faults;
