-- What a fakecloud of schema version 6 wrote. Never edited: see upgrade_test.go.

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
, version INTEGER NOT NULL DEFAULT 1, updated_at INTEGER NOT NULL DEFAULT 0) STRICT;
CREATE TABLE tokens (
    name       TEXT    NOT NULL PRIMARY KEY,
    project_id TEXT    NOT NULL REFERENCES projects (id),
    hash       BLOB    NOT NULL UNIQUE,
    created_at INTEGER NOT NULL
, role TEXT NOT NULL DEFAULT 'admin', origin TEXT NOT NULL DEFAULT 'flag', expires_at INTEGER, rotated_at INTEGER, previous_hash BLOB, previous_until INTEGER) STRICT;
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
, network_id TEXT NOT NULL DEFAULT '', external TEXT) STRICT;
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
    due_at       INTEGER, source_ranges TEXT NOT NULL DEFAULT '[]', affinity INTEGER NOT NULL DEFAULT 0, health_check TEXT, address_id TEXT, scheme TEXT NOT NULL DEFAULT 'public', algorithm TEXT NOT NULL DEFAULT 'round-robin', idle_timeout INTEGER NOT NULL DEFAULT 0, drain INTEGER NOT NULL DEFAULT 0, address6 TEXT, state_reason_code TEXT NOT NULL DEFAULT '',
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
    updated_at   INTEGER NOT NULL, network_id TEXT NOT NULL DEFAULT '', first_address INTEGER NOT NULL DEFAULT 0,
    UNIQUE (project_id, name)
) STRICT;
CREATE INDEX routes_project ON routes (project_id, id);
CREATE INDEX routes_instance ON routes (instance_id);
CREATE INDEX tokens_previous_hash ON tokens (previous_hash) WHERE previous_hash IS NOT NULL;
CREATE INDEX tokens_project ON tokens (project_id, name);
CREATE TABLE quotas (
    project_id TEXT    NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    kind       TEXT    NOT NULL,
    max        INTEGER NOT NULL,
    PRIMARY KEY (project_id, kind)
) STRICT, WITHOUT ROWID;
CREATE TABLE usage (
    project_id TEXT    NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    kind       TEXT    NOT NULL,
    zone       TEXT    NOT NULL,
    used       INTEGER NOT NULL,
    PRIMARY KEY (project_id, kind, zone)
) STRICT, WITHOUT ROWID;
CREATE TABLE networks (
    id         TEXT    NOT NULL PRIMARY KEY,
    project_id TEXT    NOT NULL REFERENCES projects (id),
    name       TEXT    NOT NULL,
    cidr       TEXT    NOT NULL,
    is_default INTEGER NOT NULL,
    tags       TEXT    NOT NULL,
    version    INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    UNIQUE (project_id, name)
) STRICT;
CREATE INDEX networks_project ON networks (project_id, id);
CREATE INDEX routes_destination ON routes (network_id, first_address);
CREATE TABLE idempotency_keys (
    project_id  TEXT    NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    key         TEXT    NOT NULL,
    fingerprint BLOB    NOT NULL, -- of the request, to tell a repeated one from another
    result      TEXT    NOT NULL, -- what it gave, JSON
    expires_at  INTEGER NOT NULL,
    PRIMARY KEY (project_id, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX idempotency_keys_expiry ON idempotency_keys (expires_at);
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
CREATE TABLE addresses (
    id          TEXT    NOT NULL PRIMARY KEY,
    project_id  TEXT    NOT NULL REFERENCES projects (id),
    name        TEXT    NOT NULL,
    region      TEXT    NOT NULL,
    ip          TEXT    NOT NULL UNIQUE,
    state       TEXT    NOT NULL,
    holder_kind TEXT    NOT NULL, -- with holder_id: whose it is now; empty while it is available
    holder_id   TEXT    NOT NULL,
    tags        TEXT    NOT NULL,
    version     INTEGER NOT NULL,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    UNIQUE (project_id, name)
) STRICT;
CREATE INDEX addresses_project ON addresses (project_id, id);
CREATE INDEX addresses_holder ON addresses (holder_id) WHERE holder_id <> '';
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
CREATE TABLE clock (
    one     INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    virtual INTEGER NOT NULL, -- 1 while the data is under a virtual clock
    now     INTEGER NOT NULL, -- the latest time a virtual clock has shown
    starts  INTEGER NOT NULL  -- how often a virtual clock was started here
) STRICT;
CREATE UNIQUE INDEX load_balancers_address6 ON load_balancers (address6) WHERE address6 IS NOT NULL;

INSERT INTO goose_db_version (id, version_id, is_applied, tstamp) VALUES (1, 0, 1, '2026-11-23 04:52:52');
INSERT INTO goose_db_version (id, version_id, is_applied, tstamp) VALUES (2, 1, 1, '2026-11-23 04:52:52');
INSERT INTO goose_db_version (id, version_id, is_applied, tstamp) VALUES (3, 2, 1, '2026-11-23 04:52:52');
INSERT INTO goose_db_version (id, version_id, is_applied, tstamp) VALUES (4, 3, 1, '2026-11-23 04:52:52');
INSERT INTO goose_db_version (id, version_id, is_applied, tstamp) VALUES (5, 4, 1, '2026-11-23 04:52:52');
INSERT INTO goose_db_version (id, version_id, is_applied, tstamp) VALUES (6, 5, 1, '2026-11-23 04:52:52');
INSERT INTO goose_db_version (id, version_id, is_applied, tstamp) VALUES (7, 6, 1, '2026-11-23 04:52:52');

INSERT INTO projects (id, name, default_tags, created_at, version, updated_at) VALUES ('p-1', 'default', '{"team":"blue"}', 1700000000000, 1, 0);
INSERT INTO projects (id, name, default_tags, created_at, version, updated_at) VALUES ('p-2', 'other', '{}', 1700000000001, 1, 0);

INSERT INTO tokens (name, project_id, hash, created_at, role, origin, expires_at, rotated_at, previous_hash, previous_until) VALUES ('ccm', 'p-1', X'00FF10', 1700000000002, 'admin', 'flag', NULL, NULL, NULL, NULL);

INSERT INTO instances (id, project_id, name, region, zone, type, state, state_reason, address, tags, version, created_at, updated_at, due_at, network_id, external) VALUES ('i-1', 'p-1', 'worker-1', 'nebula-1', 'nebula-1a', 'small', 'running', '', '127.30.16.1', '{"cluster":"lab"}', 2, 1700000000003, 1700000000004, NULL, '', NULL);
INSERT INTO instances (id, project_id, name, region, zone, type, state, state_reason, address, tags, version, created_at, updated_at, due_at, network_id, external) VALUES ('i-2', 'p-1', 'worker-2', 'nebula-1', 'nebula-1b', 'small', 'stopping', '', '127.30.16.2', '{}', 3, 1700000000005, 1700000000006, 1700000000007, '', NULL);
INSERT INTO instances (id, project_id, name, region, zone, type, state, state_reason, address, tags, version, created_at, updated_at, due_at, network_id, external) VALUES ('i-3', 'p-1', 'worker-1', 'nebula-1', 'nebula-1a', 'small', 'terminated', 'it''s gone', NULL, '{}', 4, 1700000000008, 1700000000009, NULL, '', NULL);

INSERT INTO load_balancers (id, project_id, name, region, address, state, state_reason, listeners, tags, version, created_at, updated_at, due_at, source_ranges, affinity, health_check, address_id, scheme, algorithm, idle_timeout, drain, address6, state_reason_code) VALUES ('lb-1', 'p-1', 'web', 'nebula-1', '127.30.64.1', 'active', '', '[{"protocol":"tcp","port":8080,"target_port":30080}]', '{}', 1, 1700000000010, 1700000000011, NULL, '[]', 0, NULL, NULL, 'public', 'round-robin', 0, 0, NULL, '');
INSERT INTO load_balancers (id, project_id, name, region, address, state, state_reason, listeners, tags, version, created_at, updated_at, due_at, source_ranges, affinity, health_check, address_id, scheme, algorithm, idle_timeout, drain, address6, state_reason_code) VALUES ('lb-2', 'p-1', 'both', 'nebula-1', '127.30.64.2', 'active', '', '[{"protocol":"udp","port":53,"target_port":30053}]', '{}', 1, 1700000000010, 1700000000011, NULL, '[]', 0, NULL, NULL, 'public', 'round-robin', 0, 0, 'fd00:30::1', '');
INSERT INTO load_balancers (id, project_id, name, region, address, state, state_reason, listeners, tags, version, created_at, updated_at, due_at, source_ranges, affinity, health_check, address_id, scheme, algorithm, idle_timeout, drain, address6, state_reason_code) VALUES ('lb-3', 'p-1', 'stuck', 'nebula-1', '127.30.64.3', 'error', 'cannot listen on 127.30.64.3:80', '[{"protocol":"tcp","port":80,"target_port":30080}]', '{}', 2, 1700000000010, 1700000000011, 1700000000012, '[]', 0, NULL, NULL, 'public', 'round-robin', 0, 0, NULL, 'cannot-listen');

INSERT INTO load_balancer_targets (load_balancer_id, position, instance_id) VALUES ('lb-1', 0, 'i-2');
INSERT INTO load_balancer_targets (load_balancer_id, position, instance_id) VALUES ('lb-1', 1, 'i-1');

INSERT INTO events (seq, project_id, time, type, resource, resource_id, name, from_state, to_state, reason, body) VALUES (1795409572409, 'p-1', 1700000000012, 'created', 'instance', 'i-1', 'worker-1', '', 'pending', '', '{}');
INSERT INTO events (seq, project_id, time, type, resource, resource_id, name, from_state, to_state, reason, body) VALUES (1795409572410, 'p-1', 1700000000013, 'updated', 'instance', 'i-1', 'worker-1', 'pending', 'running', '', '{}');

INSERT INTO routes (id, project_id, name, destination, instance_id, state, state_reason, tags, version, created_at, updated_at, network_id, first_address) VALUES ('r-1', 'p-1', 'pods-1', '10.244.1.0/24', 'i-1', 'active', '', '{}', 1, 1700000000014, 1700000000015, '', 0);

INSERT INTO quotas (project_id, kind, max) VALUES ('p-1', '{}', 1);

INSERT INTO usage (project_id, kind, zone, used) VALUES ('p-1', 'addresses', '', 1);
INSERT INTO usage (project_id, kind, zone, used) VALUES ('p-1', 'instances', '', 3);
INSERT INTO usage (project_id, kind, zone, used) VALUES ('p-1', 'live-instances', 'nebula-1a', 2);
INSERT INTO usage (project_id, kind, zone, used) VALUES ('p-1', 'live-instances', 'nebula-1b', 1);
INSERT INTO usage (project_id, kind, zone, used) VALUES ('p-1', 'load-balancers', '', 3);
INSERT INTO usage (project_id, kind, zone, used) VALUES ('p-1', 'networks', '', 1);
INSERT INTO usage (project_id, kind, zone, used) VALUES ('p-1', 'routes', '', 1);

INSERT INTO networks (id, project_id, name, cidr, is_default, tags, version, created_at, updated_at) VALUES ('{}', 'p-1', '{}', '{}', 1, '{}', 1, 1, 1);

INSERT INTO idempotency_keys (project_id, key, fingerprint, result, expires_at) VALUES ('p-1', '{}', X'01', '{}', 1);

INSERT INTO faults (id, project_id, spec, created_at, matched, hits, phase) VALUES ('{}', 'p-1', '{}', 1, 1, 1, 1);

INSERT INTO fault_instances (fault_id, instance_id) VALUES ('{}', 'i-1');

INSERT INTO audit (id, time, request_id, project_id, token, user_agent, operation, resource_id, status, code, fault, duration, bytes_in, bytes_out) VALUES (1, 1, '{}', '{}', '{}', '{}', '{}', '{}', 1, '{}', '{}', 1, 1, 1);

INSERT INTO audit_sums (project_id, token, user_agent, operation, calls, errors, faults, throttled, duration, bytes_in, bytes_out) VALUES ('{}', '{}', '{}', '{}', 1, 1, 1, 1, 1, 1, 1);

INSERT INTO addresses (id, project_id, name, region, ip, state, holder_kind, holder_id, tags, version, created_at, updated_at) VALUES ('{}', 'p-1', '{}', '{}', '{}', '{}', '{}', '{}', '{}', 1, 1, 1);

INSERT INTO operations (seq, id, project_id, type, resource, resource_id, state, error, token, created_at, ended_at) VALUES (1, '{}', 'p-1', '{}', '{}', '{}', '{}', '{}', '{}', 1, 1);

INSERT INTO clock (one, virtual, now, starts) VALUES (1, 1, 1, 1);

DELETE FROM sqlite_sequence;
INSERT INTO sqlite_sequence (name, seq) VALUES ('events', 1795409572410);
INSERT INTO sqlite_sequence (name, seq) VALUES ('goose_db_version', 7);
CREATE TRIGGER instances_made AFTER INSERT ON instances BEGIN
    INSERT INTO usage (project_id, kind, zone, used) VALUES (NEW.project_id, 'instances', '', 1)
    ON CONFLICT (project_id, kind, zone) DO UPDATE SET used = used + 1;
    INSERT INTO usage (project_id, kind, zone, used) VALUES (NEW.project_id, 'live-instances', NEW.zone, 1)
    ON CONFLICT (project_id, kind, zone) DO UPDATE SET used = used + 1;
END;
CREATE TRIGGER instances_terminating AFTER UPDATE OF state ON instances
WHEN NEW.state IN ('terminating', 'terminated') AND OLD.state NOT IN ('terminating', 'terminated') BEGIN
    UPDATE usage SET used = used - 1 WHERE project_id = NEW.project_id AND kind = 'live-instances' AND zone = NEW.zone;
END;
CREATE TRIGGER instances_terminated AFTER UPDATE OF state ON instances
WHEN NEW.state = 'terminated' AND OLD.state <> 'terminated' BEGIN
    UPDATE usage SET used = used - 1 WHERE project_id = NEW.project_id AND kind = 'instances' AND zone = '';
END;
CREATE TRIGGER load_balancers_made AFTER INSERT ON load_balancers BEGIN
    INSERT INTO usage (project_id, kind, zone, used) VALUES (NEW.project_id, 'load-balancers', '', 1)
    ON CONFLICT (project_id, kind, zone) DO UPDATE SET used = used + 1;
END;
CREATE TRIGGER load_balancers_gone AFTER DELETE ON load_balancers BEGIN
    UPDATE usage SET used = used - 1 WHERE project_id = OLD.project_id AND kind = 'load-balancers' AND zone = '';
END;
CREATE TRIGGER routes_made AFTER INSERT ON routes BEGIN
    INSERT INTO usage (project_id, kind, zone, used) VALUES (NEW.project_id, 'routes', '', 1)
    ON CONFLICT (project_id, kind, zone) DO UPDATE SET used = used + 1;
END;
CREATE TRIGGER routes_gone AFTER DELETE ON routes BEGIN
    UPDATE usage SET used = used - 1 WHERE project_id = OLD.project_id AND kind = 'routes' AND zone = '';
END;
CREATE TRIGGER networks_made AFTER INSERT ON networks BEGIN
    INSERT INTO usage (project_id, kind, zone, used) VALUES (NEW.project_id, 'networks', '', 1)
    ON CONFLICT (project_id, kind, zone) DO UPDATE SET used = used + 1;
END;
CREATE TRIGGER networks_gone AFTER DELETE ON networks BEGIN
    UPDATE usage SET used = used - 1 WHERE project_id = OLD.project_id AND kind = 'networks' AND zone = '';
END;
CREATE TRIGGER addresses_made AFTER INSERT ON addresses BEGIN
    INSERT INTO usage (project_id, kind, zone, used) VALUES (NEW.project_id, 'addresses', '', 1)
    ON CONFLICT (project_id, kind, zone) DO UPDATE SET used = used + 1;
END;
CREATE TRIGGER addresses_gone AFTER DELETE ON addresses BEGIN
    UPDATE usage SET used = used - 1 WHERE project_id = OLD.project_id AND kind = 'addresses' AND zone = '';
END;
