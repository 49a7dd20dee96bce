-- What a fakecloud of schema version 3 wrote. Never edited: see upgrade_test.go.

CREATE TABLE goose_db_version (
		id INTEGER PRIMARY KEY AUTOINCREMENT,
		version_id INTEGER NOT NULL,
		is_applied INTEGER NOT NULL,
		tstamp TIMESTAMP DEFAULT (datetime('now'))
	);
CREATE TABLE projects (
    id           TEXT    NOT NULL PRIMARY KEY,
    name         TEXT    NOT NULL UNIQUE,
    default_tags TEXT    NOT NULL,
    created_at   INTEGER NOT NULL
) STRICT;
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
    due_at       INTEGER, source_ranges TEXT NOT NULL DEFAULT '[]', affinity INTEGER NOT NULL DEFAULT 0, health_check TEXT,
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

INSERT INTO goose_db_version (id, version_id, is_applied, tstamp) VALUES (1, 0, 1, '2026-11-21 06:12:03');
INSERT INTO goose_db_version (id, version_id, is_applied, tstamp) VALUES (2, 1, 1, '2026-11-21 06:12:03');
INSERT INTO goose_db_version (id, version_id, is_applied, tstamp) VALUES (3, 2, 1, '2026-11-21 06:12:03');
INSERT INTO goose_db_version (id, version_id, is_applied, tstamp) VALUES (4, 3, 1, '2026-11-21 06:12:03');

INSERT INTO projects (id, name, default_tags, created_at) VALUES ('p-1', 'default', '{"team":"blue"}', 1700000000000);
INSERT INTO projects (id, name, default_tags, created_at) VALUES ('p-2', 'other', '{}', 1700000000001);

INSERT INTO tokens (name, project_id, hash, created_at) VALUES ('ccm', 'p-1', X'00FF10', 1700000000002);

INSERT INTO instances (id, project_id, name, region, zone, type, state, state_reason, address, tags, version, created_at, updated_at, due_at) VALUES ('i-1', 'p-1', 'worker-1', 'nebula-1', 'nebula-1a', 'small', 'running', '', '127.30.16.1', '{"cluster":"lab"}', 2, 1700000000003, 1700000000004, NULL);
INSERT INTO instances (id, project_id, name, region, zone, type, state, state_reason, address, tags, version, created_at, updated_at, due_at) VALUES ('i-2', 'p-1', 'worker-2', 'nebula-1', 'nebula-1b', 'small', 'stopping', '', '127.30.16.2', '{}', 3, 1700000000005, 1700000000006, 1700000000007);
INSERT INTO instances (id, project_id, name, region, zone, type, state, state_reason, address, tags, version, created_at, updated_at, due_at) VALUES ('i-3', 'p-1', 'worker-1', 'nebula-1', 'nebula-1a', 'small', 'terminated', 'it''s gone', NULL, '{}', 4, 1700000000008, 1700000000009, NULL);

INSERT INTO load_balancers (id, project_id, name, region, address, state, state_reason, listeners, tags, version, created_at, updated_at, due_at, source_ranges, affinity, health_check) VALUES ('lb-1', 'p-1', 'web', 'nebula-1', '127.30.64.1', 'active', '', '[{"protocol":"tcp","port":8080,"target_port":30080}]', '{}', 1, 1700000000010, 1700000000011, NULL, '[]', 0, NULL);

INSERT INTO load_balancer_targets (load_balancer_id, position, instance_id) VALUES ('lb-1', 0, 'i-2');
INSERT INTO load_balancer_targets (load_balancer_id, position, instance_id) VALUES ('lb-1', 1, 'i-1');

INSERT INTO events (seq, project_id, time, type, resource, resource_id, name, from_state, to_state, reason, body) VALUES (1795241523347, 'p-1', 1700000000012, 'created', 'instance', 'i-1', 'worker-1', '', 'pending', '', '{}');
INSERT INTO events (seq, project_id, time, type, resource, resource_id, name, from_state, to_state, reason, body) VALUES (1795241523348, 'p-1', 1700000000013, 'updated', 'instance', 'i-1', 'worker-1', 'pending', 'running', '', '{}');

INSERT INTO routes (id, project_id, name, destination, instance_id, state, state_reason, tags, version, created_at, updated_at) VALUES ('r-1', 'p-1', 'pods-1', '10.244.1.0/24', 'i-1', 'active', '', '{}', 1, 1700000000014, 1700000000015);

DELETE FROM sqlite_sequence;
INSERT INTO sqlite_sequence (name, seq) VALUES ('events', 1795241523348);
INSERT INTO sqlite_sequence (name, seq) VALUES ('goose_db_version', 4);
