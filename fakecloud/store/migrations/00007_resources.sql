-- A resource is one JSON document (what package cloud makes of it) beside the columns
-- that queries need. Views show resources as tables.

-- +goose Up
-- +goose StatementBegin
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
) STRICT;

INSERT INTO resources (id, kind, project_id, name, state, zone, address, network_id, version, due_at, document)
SELECT id, 'instance', project_id, name, state, zone, address, network_id, version, due_at, json_object(
    'id', id, 'project', project_id, 'name', name, 'region', region, 'zone', zone, 'type', type,
    'network', network_id, 'state', state, 'stateReason', state_reason, 'address', coalesce(address, ''),
    'external', json(external), 'tags', json(tags), 'version', version,
    'createdAt', strftime('%Y-%m-%dT%H:%M:%fZ', created_at / 1000.0, 'unixepoch'),
    'updatedAt', strftime('%Y-%m-%dT%H:%M:%fZ', updated_at / 1000.0, 'unixepoch'))
FROM instances;

INSERT INTO resources (id, kind, project_id, name, state, zone, address, address6, version, due_at, document)
SELECT id, 'load-balancer', project_id, name, state, '', address, address6, version, due_at, json_patch('{}', json_object(
    'id', id, 'project', project_id, 'name', name, 'region', region, 'address', address, 'addressId', address_id,
    'address6', address6, 'state', state, 'stateReason', state_reason, 'stateReasonCode', state_reason_code,
    'listeners', json(listeners),
    'targets', (SELECT json_group_array(instance_id) FROM (
        SELECT instance_id FROM load_balancer_targets AS t WHERE t.load_balancer_id = load_balancers.id ORDER BY position)),
    'scheme', scheme, 'algorithm', algorithm, 'sourceRanges', json(source_ranges), 'affinity', affinity * 1000000,
    'idleTimeout', idle_timeout * 1000000, 'drain', drain * 1000000, 'healthCheck', json(health_check),
    'tags', json(tags), 'version', version,
    'createdAt', strftime('%Y-%m-%dT%H:%M:%fZ', created_at / 1000.0, 'unixepoch'),
    'updatedAt', strftime('%Y-%m-%dT%H:%M:%fZ', updated_at / 1000.0, 'unixepoch')))
FROM load_balancers;

INSERT INTO resources (id, kind, project_id, name, state, zone, address, refers_to, version, document)
SELECT id, 'address', project_id, name, state, '', ip, nullif(holder_id, ''), version, json_object(
    'id', id, 'project', project_id, 'name', name, 'region', region, 'ip', ip, 'state', state,
    'holder', json_object('kind', holder_kind, 'id', holder_id), 'tags', json(tags), 'version', version,
    'createdAt', strftime('%Y-%m-%dT%H:%M:%fZ', created_at / 1000.0, 'unixepoch'),
    'updatedAt', strftime('%Y-%m-%dT%H:%M:%fZ', updated_at / 1000.0, 'unixepoch'))
FROM addresses;

INSERT INTO resources (id, kind, project_id, name, state, zone, network_id, refers_to, first_address, version, document)
SELECT id, 'route', project_id, name, state, '', network_id, instance_id, first_address, version, json_object(
    'id', id, 'project', project_id, 'name', name, 'network', network_id, 'destination', destination,
    'instance', instance_id, 'state', state, 'stateReason', state_reason, 'tags', json(tags), 'version', version,
    'createdAt', strftime('%Y-%m-%dT%H:%M:%fZ', created_at / 1000.0, 'unixepoch'),
    'updatedAt', strftime('%Y-%m-%dT%H:%M:%fZ', updated_at / 1000.0, 'unixepoch'))
FROM routes;

INSERT INTO resources (id, kind, project_id, name, state, zone, version, document)
SELECT id, 'network', project_id, name, '', '', version, json_object(
    'id', id, 'project', project_id, 'name', name, 'cidr', cidr, 'default', json(iif(is_default, 'true', 'false')),
    'tags', json(tags), 'version', version,
    'createdAt', strftime('%Y-%m-%dT%H:%M:%fZ', created_at / 1000.0, 'unixepoch'),
    'updatedAt', strftime('%Y-%m-%dT%H:%M:%fZ', updated_at / 1000.0, 'unixepoch'))
FROM networks;

-- What refers to a resource refers to the new table.
CREATE TABLE targets_before AS SELECT load_balancer_id, instance_id FROM load_balancer_targets;
CREATE TABLE faults_before AS SELECT fault_id, instance_id FROM fault_instances;
DROP TABLE load_balancer_targets;
DROP TABLE fault_instances;
DROP TABLE instances;
DROP TABLE load_balancers;
DROP TABLE addresses;
DROP TABLE routes;
DROP TABLE networks;

-- The targets of the documents, to be found by instance. Kept by triggers.
CREATE TABLE load_balancer_targets (
    load_balancer_id TEXT NOT NULL REFERENCES resources (id) ON DELETE CASCADE,
    instance_id      TEXT NOT NULL REFERENCES resources (id),
    PRIMARY KEY (load_balancer_id, instance_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX load_balancer_targets_instance ON load_balancer_targets (instance_id);
INSERT INTO load_balancer_targets (load_balancer_id, instance_id) SELECT load_balancer_id, instance_id FROM targets_before;
DROP TABLE targets_before;

CREATE TABLE fault_instances (
    fault_id    TEXT NOT NULL REFERENCES faults (id) ON DELETE CASCADE,
    instance_id TEXT NOT NULL REFERENCES resources (id) ON DELETE CASCADE,
    PRIMARY KEY (fault_id, instance_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX fault_instances_instance ON fault_instances (instance_id);
INSERT INTO fault_instances (fault_id, instance_id) SELECT fault_id, instance_id FROM faults_before;
DROP TABLE faults_before;

-- A terminated instance has given up its name.
CREATE UNIQUE INDEX resources_name ON resources (project_id, kind, name) WHERE state <> 'terminated';
-- A balancer and the reserved address that it holds have the same one.
CREATE UNIQUE INDEX resources_address ON resources (address, kind) WHERE address IS NOT NULL;
CREATE UNIQUE INDEX resources_address6 ON resources (address6) WHERE address6 IS NOT NULL;
-- Lists are filtered before the rows are read.
CREATE INDEX resources_project ON resources (project_id, kind, id, name, zone, state);
CREATE INDEX resources_due ON resources (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX resources_refers_to ON resources (refers_to) WHERE refers_to IS NOT NULL;
CREATE INDEX resources_destination ON resources (network_id, first_address) WHERE first_address IS NOT NULL;

CREATE TRIGGER targets_made AFTER INSERT ON resources WHEN NEW.kind = 'load-balancer' BEGIN
    INSERT INTO load_balancer_targets (load_balancer_id, instance_id)
    SELECT NEW.id, value FROM json_each(NEW.document, '$.targets') WHERE type = 'text';
END;
CREATE TRIGGER targets_changed AFTER UPDATE OF document ON resources
WHEN NEW.kind = 'load-balancer' AND json_extract(NEW.document, '$.targets') IS NOT json_extract(OLD.document, '$.targets') BEGIN
    DELETE FROM load_balancer_targets WHERE load_balancer_id = NEW.id;
    INSERT INTO load_balancer_targets (load_balancer_id, instance_id)
    SELECT NEW.id, value FROM json_each(NEW.document, '$.targets') WHERE type = 'text';
END;

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
-- +goose Down
-- +goose StatementBegin
CREATE TABLE instances_after AS SELECT * FROM instances;
CREATE TABLE load_balancers_after AS SELECT * FROM load_balancers;
CREATE TABLE addresses_after AS SELECT * FROM addresses;
CREATE TABLE routes_after AS SELECT * FROM routes;
CREATE TABLE networks_after AS SELECT * FROM networks;
CREATE TABLE targets_after AS
SELECT load_balancers_after.id AS load_balancer_id, t.key AS position, t.value AS instance_id
FROM load_balancers_after, json_each(targets) AS t;
CREATE TABLE faults_after AS SELECT fault_id, instance_id FROM fault_instances;
DROP VIEW instances;
DROP VIEW load_balancers;
DROP VIEW addresses;
DROP VIEW routes;
DROP VIEW networks;
DROP TABLE load_balancer_targets;
DROP TABLE fault_instances;
DROP TABLE resources;

CREATE TABLE instances (
    id           TEXT    NOT NULL PRIMARY KEY,
    project_id   TEXT    NOT NULL REFERENCES projects (id),
    name         TEXT    NOT NULL,
    region       TEXT    NOT NULL,
    zone         TEXT    NOT NULL,
    type         TEXT    NOT NULL,
    state        TEXT    NOT NULL,
    state_reason TEXT    NOT NULL,
    address      TEXT,
    tags         TEXT    NOT NULL,
    version      INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    updated_at   INTEGER NOT NULL,
    due_at       INTEGER,
    network_id   TEXT    NOT NULL DEFAULT '',
    external     TEXT
) STRICT;
CREATE UNIQUE INDEX instances_live_name ON instances (project_id, name) WHERE state <> 'terminated';
CREATE UNIQUE INDEX instances_address ON instances (address) WHERE address IS NOT NULL;
CREATE INDEX instances_project ON instances (project_id, id);
CREATE INDEX instances_due ON instances (due_at) WHERE due_at IS NOT NULL;
INSERT INTO instances (id, project_id, name, region, zone, type, state, state_reason, address, tags, version,
    created_at, updated_at, due_at, network_id, external)
SELECT id, project_id, name, region, zone, type, state, state_reason, address, tags, version,
    CAST(round(unixepoch(created_at, 'subsec') * 1000) AS INTEGER),
    CAST(round(unixepoch(updated_at, 'subsec') * 1000) AS INTEGER), due_at, network_id, external
FROM instances_after;
DROP TABLE instances_after;

CREATE TABLE load_balancers (
    id                TEXT    NOT NULL PRIMARY KEY,
    project_id        TEXT    NOT NULL REFERENCES projects (id),
    name              TEXT    NOT NULL,
    region            TEXT    NOT NULL,
    address           TEXT    NOT NULL UNIQUE,
    state             TEXT    NOT NULL,
    state_reason      TEXT    NOT NULL,
    listeners         TEXT    NOT NULL,
    tags              TEXT    NOT NULL,
    version           INTEGER NOT NULL,
    created_at        INTEGER NOT NULL,
    updated_at        INTEGER NOT NULL,
    due_at            INTEGER,
    source_ranges     TEXT    NOT NULL DEFAULT '[]',
    affinity          INTEGER NOT NULL DEFAULT 0,
    health_check      TEXT,
    address_id        TEXT,
    scheme            TEXT    NOT NULL DEFAULT 'public',
    algorithm         TEXT    NOT NULL DEFAULT 'round-robin',
    idle_timeout      INTEGER NOT NULL DEFAULT 0,
    drain             INTEGER NOT NULL DEFAULT 0,
    address6          TEXT,
    state_reason_code TEXT    NOT NULL DEFAULT '',
    UNIQUE (project_id, name)
) STRICT;
CREATE INDEX load_balancers_project ON load_balancers (project_id, id);
CREATE INDEX load_balancers_due ON load_balancers (due_at) WHERE due_at IS NOT NULL;
CREATE UNIQUE INDEX load_balancers_address6 ON load_balancers (address6) WHERE address6 IS NOT NULL;
INSERT INTO load_balancers (id, project_id, name, region, address, state, state_reason, listeners, tags,
    version, created_at, updated_at, due_at, source_ranges, affinity, health_check, address_id, scheme,
    algorithm, idle_timeout, drain, address6, state_reason_code)
SELECT id, project_id, name, region, address, state, state_reason, listeners, tags, version,
    CAST(round(unixepoch(created_at, 'subsec') * 1000) AS INTEGER),
    CAST(round(unixepoch(updated_at, 'subsec') * 1000) AS INTEGER), due_at, source_ranges, affinity, health_check, address_id, scheme, algorithm,
    idle_timeout, drain, address6, state_reason_code
FROM load_balancers_after;
DROP TABLE load_balancers_after;

CREATE TABLE addresses (
    id          TEXT    NOT NULL PRIMARY KEY,
    project_id  TEXT    NOT NULL REFERENCES projects (id),
    name        TEXT    NOT NULL,
    region      TEXT    NOT NULL,
    ip          TEXT    NOT NULL UNIQUE,
    state       TEXT    NOT NULL,
    holder_kind TEXT    NOT NULL,
    holder_id   TEXT    NOT NULL,
    tags        TEXT    NOT NULL,
    version     INTEGER NOT NULL,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    UNIQUE (project_id, name)
) STRICT;
CREATE INDEX addresses_project ON addresses (project_id, id);
CREATE INDEX addresses_holder ON addresses (holder_id) WHERE holder_id <> '';
INSERT INTO addresses (id, project_id, name, region, ip, state, holder_kind, holder_id, tags, version,
    created_at, updated_at)
SELECT id, project_id, name, region, ip, state, holder_kind, holder_id, tags, version,
    CAST(round(unixepoch(created_at, 'subsec') * 1000) AS INTEGER),
    CAST(round(unixepoch(updated_at, 'subsec') * 1000) AS INTEGER)
FROM addresses_after;
DROP TABLE addresses_after;

CREATE TABLE routes (
    id            TEXT    NOT NULL PRIMARY KEY,
    project_id    TEXT    NOT NULL REFERENCES projects (id),
    name          TEXT    NOT NULL,
    destination   TEXT    NOT NULL,
    instance_id   TEXT    NOT NULL,
    state         TEXT    NOT NULL,
    state_reason  TEXT    NOT NULL,
    tags          TEXT    NOT NULL,
    version       INTEGER NOT NULL,
    created_at    INTEGER NOT NULL,
    updated_at    INTEGER NOT NULL,
    network_id    TEXT    NOT NULL DEFAULT '',
    first_address INTEGER NOT NULL DEFAULT 0,
    UNIQUE (project_id, name)
) STRICT;
CREATE INDEX routes_project ON routes (project_id, id);
CREATE INDEX routes_instance ON routes (instance_id);
CREATE INDEX routes_destination ON routes (network_id, first_address);
INSERT INTO routes (id, project_id, name, destination, instance_id, state, state_reason, tags, version,
    created_at, updated_at, network_id, first_address)
SELECT id, project_id, name, destination, instance_id, state, state_reason, tags, version,
    CAST(round(unixepoch(created_at, 'subsec') * 1000) AS INTEGER),
    CAST(round(unixepoch(updated_at, 'subsec') * 1000) AS INTEGER), network_id, first_address
FROM routes_after;
DROP TABLE routes_after;

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
INSERT INTO networks (id, project_id, name, cidr, is_default, tags, version, created_at, updated_at)
SELECT id, project_id, name, cidr, is_default, tags, version, CAST(round(unixepoch(created_at, 'subsec') * 1000)
    AS INTEGER), CAST(round(unixepoch(updated_at, 'subsec') * 1000) AS INTEGER)
FROM networks_after;
DROP TABLE networks_after;

CREATE TABLE load_balancer_targets (
    load_balancer_id TEXT    NOT NULL REFERENCES load_balancers (id) ON DELETE CASCADE,
    position         INTEGER NOT NULL,
    instance_id      TEXT    NOT NULL REFERENCES instances (id),
    PRIMARY KEY (load_balancer_id, instance_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX load_balancer_targets_instance ON load_balancer_targets (instance_id);
INSERT INTO load_balancer_targets (load_balancer_id, position, instance_id)
SELECT load_balancer_id, position, instance_id
FROM targets_after;
DROP TABLE targets_after;

CREATE TABLE fault_instances (
    fault_id    TEXT    NOT NULL REFERENCES faults (id) ON DELETE CASCADE,
    instance_id TEXT    NOT NULL REFERENCES instances (id) ON DELETE CASCADE,
    PRIMARY KEY (fault_id, instance_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX fault_instances_instance ON fault_instances (instance_id);
INSERT INTO fault_instances (fault_id, instance_id)
SELECT fault_id, instance_id
FROM faults_after;
DROP TABLE faults_after;

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
-- +goose StatementEnd
