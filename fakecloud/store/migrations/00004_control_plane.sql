-- The control plane: roles and projects, networks, quotas, idempotency keys,
-- faults, the audit, reserved addresses, options of balancers, operations and the
-- clock.

-- +goose Up
-- +goose StatementBegin

-- Roles, expiry and rotation of tokens; projects that change; what each project
-- uses, counted as it changes; networks.

ALTER TABLE projects ADD COLUMN version INTEGER NOT NULL DEFAULT 1;
ALTER TABLE projects ADD COLUMN updated_at INTEGER NOT NULL DEFAULT 0;
UPDATE projects SET updated_at = created_at;

-- Until now, every token could do everything, and came from the command line.
ALTER TABLE tokens ADD COLUMN role TEXT NOT NULL DEFAULT 'admin';
ALTER TABLE tokens ADD COLUMN origin TEXT NOT NULL DEFAULT 'flag'; -- flag or api
ALTER TABLE tokens ADD COLUMN expires_at INTEGER;
ALTER TABLE tokens ADD COLUMN rotated_at INTEGER;
-- The hash before the last rotation, and until when it is good.
ALTER TABLE tokens ADD COLUMN previous_hash BLOB;
ALTER TABLE tokens ADD COLUMN previous_until INTEGER;
CREATE INDEX tokens_previous_hash ON tokens (previous_hash) WHERE previous_hash IS NOT NULL;
CREATE INDEX tokens_project ON tokens (project_id, name);

-- Limits that differ from the cloud's own.
CREATE TABLE quotas (
    project_id TEXT    NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    kind       TEXT    NOT NULL,
    max        INTEGER NOT NULL,
    PRIMARY KEY (project_id, kind)
) STRICT, WITHOUT ROWID;

-- What a project has, by kind, and of kind live-instances by zone ('' for the
-- others). Kept by triggers, so that a create need not count.
CREATE TABLE usage (
    project_id TEXT    NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    kind       TEXT    NOT NULL,
    zone       TEXT    NOT NULL,
    used       INTEGER NOT NULL,
    PRIMARY KEY (project_id, kind, zone)
) STRICT, WITHOUT ROWID;

-- A default network's cidr is the cloud's --instance-cidr, and empty here.
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
SELECT 'n' || substr(id, 2), id, 'default', '', 1, '{}', 1, created_at, created_at FROM projects;

ALTER TABLE instances ADD COLUMN network_id TEXT NOT NULL DEFAULT '';
UPDATE instances SET network_id = 'n' || substr(project_id, 2);
-- No reference: a route outlives its instance, and so its instance's network.
ALTER TABLE routes ADD COLUMN network_id TEXT NOT NULL DEFAULT '';
UPDATE routes SET network_id = 'n' || substr(project_id, 2);
-- The destination's first address, as a number: of a network's routes, which do
-- not overlap, only the last one before another destination's end can overlap it.
ALTER TABLE routes ADD COLUMN first_address INTEGER NOT NULL DEFAULT 0;
UPDATE routes SET first_address = (
    SELECT (json_extract(octets, '$[0]') << 24) + (json_extract(octets, '$[1]') << 16) + (json_extract(octets, '$[2]') << 8) + json_extract(octets, '$[3]')
    FROM (SELECT '[' || replace(substr(destination, 1, instr(destination, '/') - 1), '.', ',') || ']' AS octets)
);
CREATE INDEX routes_destination ON routes (network_id, first_address);

INSERT INTO usage (project_id, kind, zone, used)
SELECT project_id, 'instances', '', count(*) FROM instances WHERE state <> 'terminated' GROUP BY project_id;
INSERT INTO usage (project_id, kind, zone, used)
SELECT project_id, 'live-instances', zone, count(*) FROM instances WHERE state NOT IN ('terminating', 'terminated') GROUP BY project_id, zone;
INSERT INTO usage (project_id, kind, zone, used)
SELECT project_id, 'load-balancers', '', count(*) FROM load_balancers GROUP BY project_id;
INSERT INTO usage (project_id, kind, zone, used)
SELECT project_id, 'routes', '', count(*) FROM routes GROUP BY project_id;
INSERT INTO usage (project_id, kind, zone, used)
SELECT project_id, 'networks', '', count(*) FROM networks GROUP BY project_id;

-- An instance is counted until it is terminated, and lives until it terminates.
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

-- Fault rules, and the instances that an outage took.

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

-- Reserved addresses, and the options of load balancers.

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

CREATE TRIGGER addresses_made AFTER INSERT ON addresses BEGIN
    INSERT INTO usage (project_id, kind, zone, used) VALUES (NEW.project_id, 'addresses', '', 1)
    ON CONFLICT (project_id, kind, zone) DO UPDATE SET used = used + 1;
END;
CREATE TRIGGER addresses_gone AFTER DELETE ON addresses BEGIN
    UPDATE usage SET used = used - 1 WHERE project_id = OLD.project_id AND kind = 'addresses' AND zone = '';
END;

ALTER TABLE instances ADD COLUMN external TEXT; -- the reserved addresses it holds, JSON; NULL: none

ALTER TABLE load_balancers ADD COLUMN address_id TEXT; -- the reserved address it holds; NULL: its own
ALTER TABLE load_balancers ADD COLUMN scheme TEXT NOT NULL DEFAULT 'public';
ALTER TABLE load_balancers ADD COLUMN algorithm TEXT NOT NULL DEFAULT 'round-robin';
ALTER TABLE load_balancers ADD COLUMN idle_timeout INTEGER NOT NULL DEFAULT 0; -- milliseconds
ALTER TABLE load_balancers ADD COLUMN drain INTEGER NOT NULL DEFAULT 0; -- milliseconds

-- What became of each change that takes time, and where a virtual clock stands.

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

-- +goose StatementEnd
-- +goose Down
-- +goose StatementBegin
DROP TABLE clock;
DROP TABLE operations;
DROP TRIGGER addresses_gone;
DROP TRIGGER addresses_made;
ALTER TABLE load_balancers DROP COLUMN drain;
ALTER TABLE load_balancers DROP COLUMN idle_timeout;
ALTER TABLE load_balancers DROP COLUMN algorithm;
ALTER TABLE load_balancers DROP COLUMN scheme;
ALTER TABLE load_balancers DROP COLUMN address_id;
ALTER TABLE instances DROP COLUMN external;
DROP TABLE addresses;
DROP TABLE audit_sums;
DROP TABLE audit;
DROP TABLE fault_instances;
DROP TABLE faults;
DROP TABLE idempotency_keys;
DROP TRIGGER networks_gone;
DROP TRIGGER networks_made;
DROP TRIGGER routes_gone;
DROP TRIGGER routes_made;
DROP TRIGGER load_balancers_gone;
DROP TRIGGER load_balancers_made;
DROP TRIGGER instances_terminated;
DROP TRIGGER instances_terminating;
DROP TRIGGER instances_made;
DROP INDEX routes_destination;
ALTER TABLE routes DROP COLUMN first_address;
ALTER TABLE routes DROP COLUMN network_id;
ALTER TABLE instances DROP COLUMN network_id;
DROP TABLE networks;
DROP TABLE usage;
DROP TABLE quotas;
DROP INDEX tokens_project;
DROP INDEX tokens_previous_hash;
ALTER TABLE tokens DROP COLUMN previous_until;
ALTER TABLE tokens DROP COLUMN previous_hash;
ALTER TABLE tokens DROP COLUMN rotated_at;
ALTER TABLE tokens DROP COLUMN expires_at;
ALTER TABLE tokens DROP COLUMN origin;
ALTER TABLE tokens DROP COLUMN role;
ALTER TABLE projects DROP COLUMN updated_at;
ALTER TABLE projects DROP COLUMN version;
-- +goose StatementEnd
