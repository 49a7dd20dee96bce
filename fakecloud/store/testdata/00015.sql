-- What a fakecloud of schema version 15 wrote. Never edited: see upgrade_test.go.

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
, wire TEXT NOT NULL DEFAULT '') STRICT;
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
, serial INTEGER NOT NULL DEFAULT 0, records TEXT NOT NULL DEFAULT '{}') STRICT;
CREATE UNIQUE INDEX operations_project ON operations (project_id, id);
CREATE INDEX operations_resource ON operations (resource_id);
CREATE TABLE clock (
    one     INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    virtual INTEGER NOT NULL, -- 1 while the data is under a virtual clock
    now     INTEGER NOT NULL, -- the latest time a virtual clock has shown
    starts  INTEGER NOT NULL  -- how often a virtual clock was started here
) STRICT;
CREATE TABLE resources (
    id            TEXT    NOT NULL PRIMARY KEY,
    kind          TEXT    NOT NULL, -- instance, load-balancer, address, route or network
    project_id    TEXT    NOT NULL REFERENCES projects (id),
    name          TEXT    NOT NULL,
    state         TEXT    NOT NULL, -- empty for a network
    zone          TEXT    NOT NULL, -- an instance's
    address       TEXT,             -- IPv4, of whatever has one now
    address6      TEXT,             -- IPv6, a load balancer's
    network_id    TEXT,             -- an instance's or a route's; no reference: it is checked when one is made
    refers_to     TEXT,             -- a route's instance, or an address's holder; no reference: a route outlives its instance
    first_address INTEGER,          -- of a route's destination, as a number
    version       INTEGER NOT NULL,
    due_at        INTEGER,          -- Unix milliseconds; NULL: it rests
    document      TEXT    NOT NULL  -- the whole resource, JSON; durations are nanoseconds
, serial INTEGER NOT NULL DEFAULT 0, private_address TEXT) STRICT;
CREATE TABLE load_balancer_targets (
    load_balancer_id TEXT NOT NULL REFERENCES resources (id) ON DELETE CASCADE,
    instance_id      TEXT NOT NULL REFERENCES resources (id),
    PRIMARY KEY (load_balancer_id, instance_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX load_balancer_targets_instance ON load_balancer_targets (instance_id);
CREATE TABLE fault_instances (
    fault_id    TEXT NOT NULL REFERENCES faults (id) ON DELETE CASCADE,
    instance_id TEXT NOT NULL REFERENCES resources (id) ON DELETE CASCADE,
    PRIMARY KEY (fault_id, instance_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX fault_instances_instance ON fault_instances (instance_id);
CREATE UNIQUE INDEX resources_address ON resources (address, kind) WHERE address IS NOT NULL;
CREATE UNIQUE INDEX resources_address6 ON resources (address6) WHERE address6 IS NOT NULL;
CREATE INDEX resources_project ON resources (project_id, kind, id, name, zone, state);
CREATE INDEX resources_due ON resources (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX resources_refers_to ON resources (refers_to) WHERE refers_to IS NOT NULL;
CREATE INDEX resources_destination ON resources (network_id, first_address) WHERE first_address IS NOT NULL;
CREATE VIEW instances AS SELECT
    id, project_id, name, json_extract(document, '$.region') AS region, zone,
    json_extract(document, '$.type') AS type, json_extract(document, '$.network') AS network_id, state,
    coalesce(json_extract(document, '$.stateReason'), '') AS state_reason, address,
    json_extract(document, '$.external') AS external, due_at, json_extract(document, '$.tags') AS tags, version,
    json_extract(document, '$.createdAt') AS created_at, json_extract(document, '$.updatedAt') AS updated_at, document
FROM resources WHERE kind = 'instance';
CREATE VIEW load_balancers AS SELECT
    id, project_id, name, json_extract(document, '$.region') AS region, address,
    json_extract(document, '$.addressId') AS address_id, json_extract(document, '$.ipv6Address') AS address6, state,
    coalesce(json_extract(document, '$.stateReason'), '') AS state_reason,
    coalesce(json_extract(document, '$.stateReasonCode'), '') AS state_reason_code,
    json_extract(document, '$.scheme') AS scheme, json_extract(document, '$.algorithm') AS algorithm,
    json_extract(document, '$.listeners') AS listeners,
    (SELECT json_group_array(coalesce(json_extract(value, '$.instanceId'), json_extract(value, '$.ip')))
        FROM json_each(document, '$.targets')) AS targets,
    json_extract(document, '$.sourceRanges') AS source_ranges,
    CAST(json_extract(document, '$.clientAffinitySeconds') * 1000 AS INTEGER) AS affinity,
    CAST(json_extract(document, '$.idleTimeoutSeconds') * 1000 AS INTEGER) AS idle_timeout,
    CAST(json_extract(document, '$.drainSeconds') * 1000 AS INTEGER) AS drain,
    json_extract(document, '$.healthCheck') AS health_check, due_at, json_extract(document, '$.tags') AS tags,
    version, json_extract(document, '$.createdAt') AS created_at,
    json_extract(document, '$.updatedAt') AS updated_at, document
FROM resources WHERE kind = 'load-balancer';
CREATE VIEW addresses AS SELECT
    id, project_id, name, json_extract(document, '$.region') AS region, json_extract(document, '$.ip') AS ip,
    state, coalesce(json_extract(document, '$.holder.kind'), '') AS holder_kind,
    coalesce(json_extract(document, '$.holder.id'), '') AS holder_id, json_extract(document, '$.tags') AS tags, version,
    json_extract(document, '$.createdAt') AS created_at, json_extract(document, '$.updatedAt') AS updated_at, document
FROM resources WHERE kind = 'address';
CREATE VIEW routes AS SELECT
    id, project_id, name, json_extract(document, '$.networkId') AS network_id,
    json_extract(document, '$.destination') AS destination, first_address,
    json_extract(document, '$.instanceId') AS instance_id, state,
    coalesce(json_extract(document, '$.stateReason'), '') AS state_reason, json_extract(document, '$.tags') AS tags, version,
    json_extract(document, '$.createdAt') AS created_at, json_extract(document, '$.updatedAt') AS updated_at, document
FROM resources WHERE kind = 'route';
CREATE VIEW networks AS SELECT
    id, project_id, name, json_extract(document, '$.cidr') AS cidr,
    json_extract(document, '$.default') AS is_default, json_extract(document, '$.tags') AS tags, version,
    json_extract(document, '$.createdAt') AS created_at, json_extract(document, '$.updatedAt') AS updated_at, document
FROM resources WHERE kind = 'network';
CREATE TABLE serials (
    one  INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    last INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX resources_serial ON resources (serial);
CREATE UNIQUE INDEX operations_serial ON operations (serial);
CREATE UNIQUE INDEX resources_private_address ON resources (private_address) WHERE private_address IS NOT NULL;
CREATE TABLE access_tokens (
    hash       BLOB    NOT NULL PRIMARY KEY,
    granted_to BLOB    NOT NULL, -- the hash of the token's secret that was shown
    expires_at INTEGER NOT NULL  -- Unix milliseconds
) STRICT;
CREATE TABLE removed_events (
    project_id TEXT    NOT NULL PRIMARY KEY,
    through    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX audit_project ON audit (project_id, id);
CREATE INDEX operations_age ON operations (project_id, seq);
CREATE INDEX idempotency_keys_age ON idempotency_keys (project_id, expires_at);
CREATE TABLE secondary_addresses (
    address     TEXT NOT NULL PRIMARY KEY,
    instance_id TEXT NOT NULL REFERENCES resources (id) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
CREATE INDEX secondary_addresses_instance ON secondary_addresses (instance_id);
CREATE UNIQUE INDEX resources_name ON resources (project_id, kind, name COLLATE NOCASE) WHERE state <> 'terminated';
CREATE TABLE certificate_keys (
    project_id TEXT NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    fingerprint TEXT NOT NULL, -- the certificate's
    private_key TEXT NOT NULL, -- PEM
    PRIMARY KEY (project_id, fingerprint)
) STRICT, WITHOUT ROWID;
CREATE TABLE token_keys (
    fingerprint TEXT    NOT NULL PRIMARY KEY,
    token       TEXT    NOT NULL, -- its name
    project_id  TEXT    NOT NULL, -- the token's: a name can come back in another project
    public_key  BLOB    NOT NULL, -- DER-encoded SubjectPublicKeyInfo
    created_at  INTEGER NOT NULL  -- Unix milliseconds
) STRICT;
CREATE INDEX token_keys_token ON token_keys (token);

INSERT INTO goose_db_version (id, version_id, is_applied, tstamp) VALUES (1, 0, 1, '2026-11-28 19:04:12');
INSERT INTO goose_db_version (id, version_id, is_applied, tstamp) VALUES (10, 9, 1, '2026-11-28 19:04:12');
INSERT INTO goose_db_version (id, version_id, is_applied, tstamp) VALUES (11, 10, 1, '2026-11-28 19:04:12');
INSERT INTO goose_db_version (id, version_id, is_applied, tstamp) VALUES (12, 11, 1, '2026-11-28 19:04:12');
INSERT INTO goose_db_version (id, version_id, is_applied, tstamp) VALUES (13, 12, 1, '2026-11-28 19:04:12');
INSERT INTO goose_db_version (id, version_id, is_applied, tstamp) VALUES (14, 13, 1, '2026-11-28 19:04:12');
INSERT INTO goose_db_version (id, version_id, is_applied, tstamp) VALUES (15, 14, 1, '2026-11-28 19:04:12');
INSERT INTO goose_db_version (id, version_id, is_applied, tstamp) VALUES (16, 15, 1, '2026-11-30 11:20:00');
INSERT INTO goose_db_version (id, version_id, is_applied, tstamp) VALUES (2, 1, 1, '2026-11-28 19:04:12');
INSERT INTO goose_db_version (id, version_id, is_applied, tstamp) VALUES (3, 2, 1, '2026-11-28 19:04:12');
INSERT INTO goose_db_version (id, version_id, is_applied, tstamp) VALUES (4, 3, 1, '2026-11-28 19:04:12');
INSERT INTO goose_db_version (id, version_id, is_applied, tstamp) VALUES (5, 4, 1, '2026-11-28 19:04:12');
INSERT INTO goose_db_version (id, version_id, is_applied, tstamp) VALUES (6, 5, 1, '2026-11-28 19:04:12');
INSERT INTO goose_db_version (id, version_id, is_applied, tstamp) VALUES (7, 6, 1, '2026-11-28 19:04:12');
INSERT INTO goose_db_version (id, version_id, is_applied, tstamp) VALUES (8, 7, 1, '2026-11-28 19:04:12');
INSERT INTO goose_db_version (id, version_id, is_applied, tstamp) VALUES (9, 8, 1, '2026-11-28 19:04:12');

INSERT INTO projects (id, name, default_tags, created_at, version, updated_at) VALUES ('p-1', 'default', '{"team":"blue"}', 1700000000000, 1, 0);
INSERT INTO projects (id, name, default_tags, created_at, version, updated_at) VALUES ('p-2', 'other', '{}', 1700000000001, 1, 0);

INSERT INTO tokens (name, project_id, hash, created_at, role, origin, expires_at, rotated_at, previous_hash, previous_until) VALUES ('ccm', 'p-1', X'00FF10', 1700000000002, 'admin', 'flag', NULL, NULL, NULL, NULL);

INSERT INTO events (seq, project_id, time, type, resource, resource_id, name, from_state, to_state, reason, body) VALUES (1795892652855, 'p-1', 1700000000012, 'created', 'instance', 'i-1', 'worker-1', '', 'pending', '', '{}');
INSERT INTO events (seq, project_id, time, type, resource, resource_id, name, from_state, to_state, reason, body) VALUES (1795892652856, 'p-1', 1700000000013, 'updated', 'instance', 'i-1', 'worker-1', 'pending', 'running', '', '{}');

INSERT INTO quotas (project_id, kind, max) VALUES ('p-1', '{}', 1);

INSERT INTO usage (project_id, kind, zone, used) VALUES ('p-1', 'addresses', '', 1);
INSERT INTO usage (project_id, kind, zone, used) VALUES ('p-1', 'instances', '', 3);
INSERT INTO usage (project_id, kind, zone, used) VALUES ('p-1', 'live-instances', 'nebula-1a', 2);
INSERT INTO usage (project_id, kind, zone, used) VALUES ('p-1', 'live-instances', 'nebula-1b', 1);
INSERT INTO usage (project_id, kind, zone, used) VALUES ('p-1', 'load-balancers', '', 1);
INSERT INTO usage (project_id, kind, zone, used) VALUES ('p-1', 'networks', '', 1);
INSERT INTO usage (project_id, kind, zone, used) VALUES ('p-1', 'routes', '', 1);
INSERT INTO usage (project_id, kind, zone, used) VALUES ('p-1', '{}', '{}', 1);

INSERT INTO idempotency_keys (project_id, key, fingerprint, result, expires_at) VALUES ('p-1', '{}', X'01', '{}', 1);

INSERT INTO faults (id, project_id, spec, created_at, matched, hits, phase) VALUES ('{}', 'p-1', '{}', 1, 1, 1, 1);

INSERT INTO audit (id, time, request_id, project_id, token, user_agent, operation, resource_id, status, code, fault, duration, bytes_in, bytes_out, wire) VALUES (1, 1, '{}', '{}', '{}', '{}', '{}', '{}', 1, '{}', '{}', 1, 1, 1, '{}');

INSERT INTO audit_sums (project_id, token, user_agent, operation, calls, errors, faults, throttled, duration, bytes_in, bytes_out) VALUES ('{}', '{}', '{}', '{}', 1, 1, 1, 1, 1, 1, 1);

INSERT INTO operations (seq, id, project_id, type, resource, resource_id, state, error, token, created_at, ended_at, serial, records) VALUES (1, '{}', 'p-1', '{}', '{}', '{}', '{}', '{}', '{}', 1, 1, 1, '{}');

INSERT INTO clock (one, virtual, now, starts) VALUES (1, 1, 1, 1);

INSERT INTO resources (id, kind, project_id, name, state, zone, address, address6, network_id, refers_to, first_address, version, due_at, document, serial, private_address) VALUES ('a-1', 'address', 'p-1', 'kept', 'in-use', '', '127.30.64.9', NULL, NULL, 'i-1', NULL, 2, NULL, '{"id":"a-1","project":"p-1","name":"kept","region":"nebula-1","ip":"127.30.64.9","state":"in-use","holder":{"kind":"instance","id":"i-1"},"tags":{},"version":2,"createdAt":"2023-11-14T22:13:20.012Z","updatedAt":"2023-11-14T22:13:20.013Z"}', 6, NULL);
INSERT INTO resources (id, kind, project_id, name, state, zone, address, address6, network_id, refers_to, first_address, version, due_at, document, serial, private_address) VALUES ('i-1', 'instance', 'p-1', 'worker-1', 'running', 'nebula-1a', '127.30.16.1', NULL, 'n-1', NULL, NULL, 2, NULL, '{"id":"i-1","project":"p-1","name":"worker-1","region":"nebula-1","zone":"nebula-1a","type":"small","network":"n-1","state":"running","address":"127.30.16.1","secondary":["127.30.16.7","fd00:16::1"],"external":["127.30.64.9"],"tags":{"cluster":"lab"},"version":2,"createdAt":"2023-11-14T22:13:20.003Z","updatedAt":"2023-11-14T22:13:20.004Z"}', 2, NULL);
INSERT INTO resources (id, kind, project_id, name, state, zone, address, address6, network_id, refers_to, first_address, version, due_at, document, serial, private_address) VALUES ('i-2', 'instance', 'p-1', 'worker-2', 'stopping', 'nebula-1b', '127.30.16.2', NULL, 'n-1', NULL, NULL, 3, 1700000000007, '{"id":"i-2","project":"p-1","name":"worker-2","region":"nebula-1","zone":"nebula-1b","type":"small","network":"n-1","state":"stopping","address":"127.30.16.2","tags":{},"version":3,"createdAt":"2023-11-14T22:13:20.005Z","updatedAt":"2023-11-14T22:13:20.006Z"}', 3, NULL);
INSERT INTO resources (id, kind, project_id, name, state, zone, address, address6, network_id, refers_to, first_address, version, due_at, document, serial, private_address) VALUES ('i-3', 'instance', 'p-1', 'worker-1', 'terminated', 'nebula-1a', NULL, NULL, 'n-1', NULL, NULL, 4, NULL, '{"id":"i-3","project":"p-1","name":"worker-1","region":"nebula-1","zone":"nebula-1a","type":"small","network":"n-1","state":"terminated","stateReason":"it''s gone","address":"","tags":{},"version":4,"createdAt":"2023-11-14T22:13:20.008Z","updatedAt":"2023-11-14T22:13:20.009Z"}', 4, NULL);
INSERT INTO resources (id, kind, project_id, name, state, zone, address, address6, network_id, refers_to, first_address, version, due_at, document, serial, private_address) VALUES ('lb-1', 'load-balancer', 'p-1', 'web', 'active', '', '127.30.64.1', 'fd00:30::1', NULL, NULL, NULL, 1, NULL, '{"id":"lb-1","project":"p-1","name":"web","region":"nebula-1","address":"127.30.64.1","state":"active","listeners":[{"protocol":"tcp","port":8080,"targetPort":30080}],"targets":[{"instanceId":"i-2"},{"instanceId":"i-1"}],"scheme":"public","algorithm":"round-robin","tags":{},"version":1,"createdAt":"2023-11-14T22:13:20.01Z","updatedAt":"2023-11-14T22:13:20.011Z","ipFamilies":["ipv4","ipv6"],"ipv6Address":"fd00:30::1","type":"unlimited","kind":"proxy","sourceRanges":[],"clientAffinitySeconds":0.0,"idleTimeoutSeconds":0.0,"drainSeconds":1.5,"deletionProtection":false}', 5, NULL);
INSERT INTO resources (id, kind, project_id, name, state, zone, address, address6, network_id, refers_to, first_address, version, due_at, document, serial, private_address) VALUES ('n-1', 'network', 'p-1', 'default', '', '', NULL, NULL, NULL, NULL, NULL, 1, NULL, '{"id":"n-1","project":"p-1","name":"default","cidr":"","default":true,"tags":{},"version":1,"createdAt":"2023-11-14T22:13:20Z","updatedAt":"2023-11-14T22:13:20Z"}', 1, NULL);
INSERT INTO resources (id, kind, project_id, name, state, zone, address, address6, network_id, refers_to, first_address, version, due_at, document, serial, private_address) VALUES ('r-1', 'route', 'p-1', 'pods-1', 'active', '', NULL, NULL, 'n-1', 'i-1', 183763200, 1, NULL, '{"id":"r-1","project":"p-1","name":"pods-1","destination":"10.244.1.0/24","state":"active","tags":{},"version":1,"createdAt":"2023-11-14T22:13:20.014Z","updatedAt":"2023-11-14T22:13:20.015Z","networkId":"n-1","instanceId":"i-1"}', 7, NULL);

INSERT INTO load_balancer_targets (load_balancer_id, instance_id) VALUES ('lb-1', 'i-1');
INSERT INTO load_balancer_targets (load_balancer_id, instance_id) VALUES ('lb-1', 'i-2');

INSERT INTO fault_instances (fault_id, instance_id) VALUES ('{}', 'a-1');

INSERT INTO serials (one, last) VALUES (1, 7);

INSERT INTO access_tokens (hash, granted_to, expires_at) VALUES (X'01', X'01', 1);

INSERT INTO removed_events (project_id, through) VALUES ('', 1795892652854);

INSERT INTO secondary_addresses (address, instance_id) VALUES ('127.30.16.7', 'i-1');
INSERT INTO secondary_addresses (address, instance_id) VALUES ('fd00:16::1', 'i-1');

INSERT INTO token_keys (fingerprint, token, project_id, public_key, created_at) VALUES ('{}', '{}', '{}', X'01', 1);

DELETE FROM sqlite_sequence;
INSERT INTO sqlite_sequence (name, seq) VALUES ('events', 1795892652856);
INSERT INTO sqlite_sequence (name, seq) VALUES ('goose_db_version', 15);
CREATE VIEW targeted_instances AS
SELECT resources.id AS load_balancer_id, json_extract(t.value, '$.instanceId') AS instance_id
FROM resources, json_each(document, '$.targets') AS t
WHERE kind = 'load-balancer' AND json_type(t.value, '$.instanceId') = 'text'
UNION
SELECT resources.id, json_extract(t.value, '$.instanceId')
FROM resources, json_each(document, '$.listeners') AS l, json_each(document, l.fullkey || '.targets') AS t
WHERE kind = 'load-balancer' AND json_type(t.value, '$.instanceId') = 'text';
CREATE TRIGGER targets_made AFTER INSERT ON resources WHEN NEW.kind = 'load-balancer' BEGIN
    INSERT INTO load_balancer_targets (load_balancer_id, instance_id)
    SELECT load_balancer_id, instance_id FROM targeted_instances WHERE load_balancer_id = NEW.id;
END;
CREATE TRIGGER instances_made AFTER INSERT ON resources WHEN NEW.kind = 'instance' BEGIN
    INSERT INTO usage (project_id, kind, zone, used) VALUES (NEW.project_id, 'instances', '', 1)
    ON CONFLICT (project_id, kind, zone) DO UPDATE SET used = used + 1;
    INSERT INTO usage (project_id, kind, zone, used) VALUES (NEW.project_id, 'live-instances', NEW.zone, 1)
    ON CONFLICT (project_id, kind, zone) DO UPDATE SET used = used + 1;
END;
CREATE TRIGGER instances_terminating AFTER UPDATE OF state ON resources
WHEN NEW.kind = 'instance' AND NEW.state IN ('terminating', 'terminated') AND OLD.state NOT IN ('terminating', 'terminated') BEGIN
    UPDATE usage SET used = used - 1 WHERE project_id = NEW.project_id AND kind = 'live-instances' AND zone = NEW.zone;
END;
CREATE TRIGGER instances_terminated AFTER UPDATE OF state ON resources
WHEN NEW.kind = 'instance' AND NEW.state = 'terminated' AND OLD.state <> 'terminated' BEGIN
    UPDATE usage SET used = used - 1 WHERE project_id = NEW.project_id AND kind = 'instances' AND zone = '';
END;
CREATE TRIGGER resources_made AFTER INSERT ON resources WHEN NEW.kind <> 'instance' BEGIN
    INSERT INTO usage (project_id, kind, zone, used)
    VALUES (NEW.project_id, CASE NEW.kind WHEN 'address' THEN 'addresses' ELSE NEW.kind || 's' END, '', 1)
    ON CONFLICT (project_id, kind, zone) DO UPDATE SET used = used + 1;
END;
CREATE TRIGGER resources_gone AFTER DELETE ON resources WHEN OLD.kind <> 'instance' BEGIN
    UPDATE usage SET used = used - 1
    WHERE project_id = OLD.project_id AND kind = CASE OLD.kind WHEN 'address' THEN 'addresses' ELSE OLD.kind || 's' END AND zone = '';
END;
CREATE TRIGGER targets_changed AFTER UPDATE OF document ON resources
WHEN NEW.kind = 'load-balancer' AND (
    json_extract(NEW.document, '$.targets') IS NOT json_extract(OLD.document, '$.targets')
    OR json_extract(NEW.document, '$.listeners') IS NOT json_extract(OLD.document, '$.listeners')
) BEGIN
    DELETE FROM load_balancer_targets WHERE load_balancer_id = NEW.id AND instance_id NOT IN (
        SELECT instance_id FROM targeted_instances WHERE load_balancer_id = NEW.id
    );
    INSERT OR IGNORE INTO load_balancer_targets (load_balancer_id, instance_id)
    SELECT load_balancer_id, instance_id FROM targeted_instances WHERE load_balancer_id = NEW.id;
END;
CREATE TRIGGER secondary_addresses_taken AFTER INSERT ON resources WHEN NEW.kind = 'instance' BEGIN
    INSERT INTO secondary_addresses (address, instance_id)
    SELECT value, NEW.id FROM json_each(NEW.document, '$.secondary') WHERE type = 'text';
END;
CREATE TRIGGER secondary_addresses_freed AFTER UPDATE OF state ON resources
WHEN NEW.kind = 'instance' AND NEW.state = 'terminated' AND OLD.state <> 'terminated' BEGIN
    DELETE FROM secondary_addresses WHERE instance_id = NEW.id;
END;
