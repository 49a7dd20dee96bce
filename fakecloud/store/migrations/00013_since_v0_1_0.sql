-- All that came since v0.1.0, whose schema is 2. A resource is one JSON document (what package cloud makes of it)
-- beside the columns that queries need; views show resources as tables. The schemas 3 to 12 were never released.

-- +goose Up
-- +goose StatementBegin

-- Projects change; tokens have roles, expire and rotate. Those of v0.1.0 can do everything, and come from the command
-- line.
ALTER TABLE projects ADD COLUMN version INTEGER NOT NULL DEFAULT 1;
ALTER TABLE projects ADD COLUMN updated_at INTEGER NOT NULL DEFAULT 0;
UPDATE projects SET updated_at = created_at;
ALTER TABLE tokens ADD COLUMN role TEXT NOT NULL DEFAULT 'admin';
ALTER TABLE tokens ADD COLUMN origin TEXT NOT NULL DEFAULT 'flag'; -- flag or api
ALTER TABLE tokens ADD COLUMN expires_at INTEGER;
ALTER TABLE tokens ADD COLUMN rotated_at INTEGER;
-- The hash before the last rotation, and until when it is good.
ALTER TABLE tokens ADD COLUMN previous_hash BLOB;
ALTER TABLE tokens ADD COLUMN previous_until INTEGER;
CREATE INDEX tokens_previous_hash ON tokens (previous_hash) WHERE previous_hash IS NOT NULL;
CREATE INDEX tokens_project ON tokens (project_id, name);

-- Secrets for a short time, which dialects of clouds with OAuth 2 grant to who shows a token's. They are valid as
-- long as that is: package cloud looks it up. No reference, as the tokens of `serve --token` are written anew at
-- each start.
CREATE TABLE access_tokens (
    hash       BLOB    NOT NULL PRIMARY KEY,
    granted_to BLOB    NOT NULL, -- the hash of the token's secret that was shown
    expires_at INTEGER NOT NULL  -- Unix milliseconds
) STRICT;

-- Public keys of tokens, for dialects of clouds whose clients sign their calls. No reference, as the tokens of
-- `serve --token` are written anew at each start and keep their keys: package cloud removes those of other tokens.
CREATE TABLE token_keys (
    fingerprint TEXT    NOT NULL PRIMARY KEY,
    token       TEXT    NOT NULL, -- its name
    project_id  TEXT    NOT NULL, -- the token's: a name can come back in another project
    public_key  BLOB    NOT NULL, -- DER-encoded SubjectPublicKeyInfo
    created_at  INTEGER NOT NULL  -- Unix milliseconds
) STRICT;
CREATE INDEX token_keys_token ON token_keys (token);

-- Limits that differ from the cloud's own.
CREATE TABLE quotas (
    project_id TEXT    NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    kind       TEXT    NOT NULL,
    max        INTEGER NOT NULL,
    PRIMARY KEY (project_id, kind)
) STRICT, WITHOUT ROWID;

-- What creates with an idempotency key gave, so that a repeated one gives the
-- same again.
CREATE TABLE idempotency_keys (
    project_id  TEXT    NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    key         TEXT    NOT NULL,
    fingerprint BLOB    NOT NULL, -- of the request, to tell a repeated one from another
    result      TEXT    NOT NULL, -- what it gave, JSON
    expires_at  INTEGER NOT NULL,
    PRIMARY KEY (project_id, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX idempotency_keys_expiry ON idempotency_keys (expires_at);
CREATE INDEX idempotency_keys_age ON idempotency_keys (project_id, expires_at);

-- Fault rules.
CREATE TABLE faults (
    id         TEXT    NOT NULL PRIMARY KEY,
    project_id TEXT    NOT NULL REFERENCES projects (id) ON DELETE CASCADE, -- which made it
    spec       TEXT    NOT NULL, -- JSON
    created_at INTEGER NOT NULL,
    matched    INTEGER NOT NULL,
    hits       INTEGER NOT NULL,
    phase      INTEGER NOT NULL -- of a crash or an outage: 0 is to begin, 1 has begun, 2 has ended
) STRICT, WITHOUT ROWID;

-- Who called what. Neither table refers to projects: what was done in one is
-- still told when it is gone.
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
    bytes_out   INTEGER NOT NULL,
    wire        TEXT    NOT NULL DEFAULT '' -- the call of another cloud's dialect that made this one: dialect, method and path
) STRICT;
CREATE INDEX audit_project ON audit (project_id, id);

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

-- What became of each change that takes time.
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
    ended_at    INTEGER,          -- NULL while it runs
    serial      INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE UNIQUE INDEX operations_project ON operations (project_id, id);
CREATE INDEX operations_resource ON operations (resource_id);
CREATE INDEX operations_age ON operations (project_id, seq);
CREATE UNIQUE INDEX operations_serial ON operations (serial);

-- One row, once the data has been under a virtual clock.
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
    document      TEXT    NOT NULL, -- the whole resource, JSON; durations are nanoseconds
    serial        INTEGER NOT NULL DEFAULT 0,
    private_address TEXT            -- of a load balancer that is attached to a network
) STRICT;

INSERT INTO resources (id, kind, project_id, name, state, zone, address, network_id, version, due_at, document)
SELECT id, 'instance', project_id, name, state, zone, address, 'n' || substr(project_id, 2), version, due_at, json_object(
    'id', id, 'project', project_id, 'name', name, 'region', region, 'zone', zone, 'type', type,
    'network', 'n' || substr(project_id, 2), 'state', state, 'stateReason', state_reason,
    'address', coalesce(address, ''), 'tags', json(tags), 'version', version,
    'createdAt', strftime('%Y-%m-%dT%H:%M:%fZ', created_at / 1000.0, 'unixepoch'),
    'updatedAt', strftime('%Y-%m-%dT%H:%M:%fZ', updated_at / 1000.0, 'unixepoch'))
FROM instances;

INSERT INTO resources (id, kind, project_id, name, state, zone, address, version, due_at, document)
SELECT id, 'load-balancer', project_id, name, state, '', address, version, due_at, json_object(
    'id', id, 'project', project_id, 'name', name, 'region', region, 'address', address, 'state', state,
    'stateReason', state_reason, 'listeners', json(listeners),
    'targets', (SELECT json_group_array(instance_id) FROM (
        SELECT instance_id FROM load_balancer_targets AS t WHERE t.load_balancer_id = load_balancers.id ORDER BY position)),
    'scheme', 'public', 'algorithm', 'round-robin', 'tags', json(tags), 'version', version,
    'createdAt', strftime('%Y-%m-%dT%H:%M:%fZ', created_at / 1000.0, 'unixepoch'),
    'updatedAt', strftime('%Y-%m-%dT%H:%M:%fZ', updated_at / 1000.0, 'unixepoch'))
FROM load_balancers;

-- A default network's cidr is the cloud's --instance-cidr, and empty here.
INSERT INTO resources (id, kind, project_id, name, state, zone, version, document)
SELECT 'n' || substr(id, 2), 'network', id, 'default', '', '', 1, json_object(
    'id', 'n' || substr(id, 2), 'project', id, 'name', 'default', 'cidr', '', 'default', json('true'),
    'tags', json('{}'), 'version', 1,
    'createdAt', strftime('%Y-%m-%dT%H:%M:%fZ', created_at / 1000.0, 'unixepoch'),
    'updatedAt', strftime('%Y-%m-%dT%H:%M:%fZ', created_at / 1000.0, 'unixepoch'))
FROM projects;

DROP TABLE load_balancer_targets;
DROP TABLE load_balancers;
DROP TABLE instances;

-- Resources, and operations about them, have serial numbers. None is given twice, not even after a snapshot was
-- restored (see Store.Restore): clients of clouds that call things by a number keep it.
UPDATE resources SET serial = rowid;
CREATE TABLE serials (
    one  INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    last INTEGER NOT NULL
) STRICT;
INSERT INTO serials (one, last) SELECT 1, coalesce(max(serial), 0) FROM resources;
CREATE UNIQUE INDEX resources_serial ON resources (serial);

-- A terminated instance has given up its name. Names that differ in case only are the same.
CREATE UNIQUE INDEX resources_name ON resources (project_id, kind, name COLLATE NOCASE) WHERE state <> 'terminated';
-- A balancer and the reserved address that it holds have the same one.
CREATE UNIQUE INDEX resources_address ON resources (address, kind) WHERE address IS NOT NULL;
CREATE UNIQUE INDEX resources_address6 ON resources (address6) WHERE address6 IS NOT NULL;
-- Lists are filtered before the rows are read.
CREATE INDEX resources_project ON resources (project_id, kind, id, name, zone, state);
CREATE INDEX resources_due ON resources (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX resources_refers_to ON resources (refers_to) WHERE refers_to IS NOT NULL;
CREATE INDEX resources_destination ON resources (network_id, first_address) WHERE first_address IS NOT NULL;
-- No other resource has one of these: package cloud sees to that across the columns.
CREATE UNIQUE INDEX resources_private_address ON resources (private_address) WHERE private_address IS NOT NULL;

-- The targets of the documents, to be found by instance. Kept by triggers.
CREATE TABLE load_balancer_targets (
    load_balancer_id TEXT NOT NULL REFERENCES resources (id) ON DELETE CASCADE,
    instance_id      TEXT NOT NULL REFERENCES resources (id),
    PRIMARY KEY (load_balancer_id, instance_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX load_balancer_targets_instance ON load_balancer_targets (instance_id);
INSERT INTO load_balancer_targets (load_balancer_id, instance_id)
SELECT resources.id, value FROM resources, json_each(document, '$.targets') WHERE kind = 'load-balancer';

CREATE TRIGGER targets_made AFTER INSERT ON resources WHEN NEW.kind = 'load-balancer' BEGIN
    INSERT INTO load_balancer_targets (load_balancer_id, instance_id)
    SELECT NEW.id, value FROM json_each(NEW.document, '$.targets') WHERE type = 'text';
END;
-- Of a thousand targets, one that goes is one row.
CREATE TRIGGER targets_changed AFTER UPDATE OF document ON resources
WHEN NEW.kind = 'load-balancer' AND json_extract(NEW.document, '$.targets') IS NOT json_extract(OLD.document, '$.targets') BEGIN
    DELETE FROM load_balancer_targets WHERE load_balancer_id = NEW.id AND instance_id NOT IN (
        SELECT value FROM json_each(NEW.document, '$.targets') WHERE type = 'text'
    );
    INSERT OR IGNORE INTO load_balancer_targets (load_balancer_id, instance_id)
    SELECT NEW.id, value FROM json_each(NEW.document, '$.targets') WHERE type = 'text';
END;

-- The instances that an outage took.
CREATE TABLE fault_instances (
    fault_id    TEXT NOT NULL REFERENCES faults (id) ON DELETE CASCADE,
    instance_id TEXT NOT NULL REFERENCES resources (id) ON DELETE CASCADE,
    PRIMARY KEY (fault_id, instance_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX fault_instances_instance ON fault_instances (instance_id);

-- The further addresses of instances' documents. No other resource has one of them: package cloud
-- sees to that across the tables. Kept by triggers.
CREATE TABLE secondary_addresses (
    address     TEXT NOT NULL PRIMARY KEY,
    instance_id TEXT NOT NULL REFERENCES resources (id) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
CREATE INDEX secondary_addresses_instance ON secondary_addresses (instance_id);
CREATE TRIGGER secondary_addresses_taken AFTER INSERT ON resources WHEN NEW.kind = 'instance' BEGIN
    INSERT INTO secondary_addresses (address, instance_id)
    SELECT value, NEW.id FROM json_each(NEW.document, '$.secondary') WHERE type = 'text';
END;
CREATE TRIGGER secondary_addresses_freed AFTER UPDATE OF state ON resources
WHEN NEW.kind = 'instance' AND NEW.state = 'terminated' AND OLD.state <> 'terminated' BEGIN
    DELETE FROM secondary_addresses WHERE instance_id = NEW.id;
END;

-- What a project has, by kind, and of kind live-instances by zone ('' for the
-- others). Kept by triggers, so that a create need not count.
CREATE TABLE usage (
    project_id TEXT    NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    kind       TEXT    NOT NULL,
    zone       TEXT    NOT NULL,
    used       INTEGER NOT NULL,
    PRIMARY KEY (project_id, kind, zone)
) STRICT, WITHOUT ROWID;
INSERT INTO usage (project_id, kind, zone, used)
SELECT project_id, kind || 's', '', count(*) FROM resources WHERE state <> 'terminated' GROUP BY project_id, kind;
INSERT INTO usage (project_id, kind, zone, used)
SELECT project_id, 'live-instances', zone, count(*) FROM resources
WHERE kind = 'instance' AND state NOT IN ('terminating', 'terminated') GROUP BY project_id, zone;

-- An instance is counted until it is terminated, and lives until it terminates.
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

-- The number through which events of a project were removed: a reader who has not read as far has missed some. The
-- row of project '' is for all of them, and says what was removed before this table was made. No reference, as what
-- was removed stays so when the project is gone.
CREATE TABLE removed_events (
    project_id TEXT    NOT NULL PRIMARY KEY,
    through    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO removed_events (project_id, through)
SELECT '', coalesce((SELECT min(seq) - 1 FROM events), seq) FROM sqlite_sequence WHERE name = 'events';

-- For people. Durations are milliseconds here.
CREATE VIEW instances AS SELECT
    id, project_id, name, json_extract(document, '$.region') AS region, zone,
    json_extract(document, '$.type') AS type, json_extract(document, '$.network') AS network_id, state,
    coalesce(json_extract(document, '$.stateReason'), '') AS state_reason, address,
    json_extract(document, '$.external') AS external, due_at, json_extract(document, '$.tags') AS tags, version,
    json_extract(document, '$.createdAt') AS created_at, json_extract(document, '$.updatedAt') AS updated_at, document
FROM resources WHERE kind = 'instance';
CREATE VIEW load_balancers AS SELECT
    id, project_id, name, json_extract(document, '$.region') AS region, address,
    json_extract(document, '$.addressId') AS address_id, json_extract(document, '$.address6') AS address6, state,
    coalesce(json_extract(document, '$.stateReason'), '') AS state_reason,
    coalesce(json_extract(document, '$.stateReasonCode'), '') AS state_reason_code,
    json_extract(document, '$.scheme') AS scheme, json_extract(document, '$.algorithm') AS algorithm,
    json_extract(document, '$.listeners') AS listeners,
    json_extract(document, '$.targets') AS targets, coalesce(json_extract(document, '$.sourceRanges'), '[]') AS source_ranges,
    coalesce(json_extract(document, '$.affinity'), 0) / 1000000 AS affinity,
    coalesce(json_extract(document, '$.idleTimeout'), 0) / 1000000 AS idle_timeout,
    coalesce(json_extract(document, '$.drain'), 0) / 1000000 AS drain,
    json_extract(document, '$.healthCheck') AS health_check, due_at, json_extract(document, '$.tags') AS tags,
    version, json_extract(document, '$.createdAt') AS created_at,
    json_extract(document, '$.updatedAt') AS updated_at, document
FROM resources WHERE kind = 'load-balancer';
CREATE VIEW addresses AS SELECT
    id, project_id, name, json_extract(document, '$.region') AS region, json_extract(document, '$.ip') AS ip,
    state, json_extract(document, '$.holder.kind') AS holder_kind,
    json_extract(document, '$.holder.id') AS holder_id, json_extract(document, '$.tags') AS tags, version,
    json_extract(document, '$.createdAt') AS created_at, json_extract(document, '$.updatedAt') AS updated_at, document
FROM resources WHERE kind = 'address';
CREATE VIEW routes AS SELECT
    id, project_id, name, json_extract(document, '$.network') AS network_id,
    json_extract(document, '$.destination') AS destination, first_address,
    json_extract(document, '$.instance') AS instance_id, state,
    coalesce(json_extract(document, '$.stateReason'), '') AS state_reason, json_extract(document, '$.tags') AS tags, version,
    json_extract(document, '$.createdAt') AS created_at, json_extract(document, '$.updatedAt') AS updated_at, document
FROM resources WHERE kind = 'route';
CREATE VIEW networks AS SELECT
    id, project_id, name, json_extract(document, '$.cidr') AS cidr,
    json_extract(document, '$.default') AS is_default, json_extract(document, '$.tags') AS tags, version,
    json_extract(document, '$.createdAt') AS created_at, json_extract(document, '$.updatedAt') AS updated_at, document
FROM resources WHERE kind = 'network';
-- +goose StatementEnd
