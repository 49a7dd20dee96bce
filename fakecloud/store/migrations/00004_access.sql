-- Roles, expiry and rotation of tokens; projects that change; what each project
-- uses, counted as it changes; networks.

-- +goose Up
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
-- +goose StatementBegin
CREATE TRIGGER instances_made AFTER INSERT ON instances BEGIN
    INSERT INTO usage (project_id, kind, zone, used) VALUES (NEW.project_id, 'instances', '', 1)
    ON CONFLICT (project_id, kind, zone) DO UPDATE SET used = used + 1;
    INSERT INTO usage (project_id, kind, zone, used) VALUES (NEW.project_id, 'live-instances', NEW.zone, 1)
    ON CONFLICT (project_id, kind, zone) DO UPDATE SET used = used + 1;
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER instances_terminating AFTER UPDATE OF state ON instances
WHEN NEW.state IN ('terminating', 'terminated') AND OLD.state NOT IN ('terminating', 'terminated') BEGIN
    UPDATE usage SET used = used - 1 WHERE project_id = NEW.project_id AND kind = 'live-instances' AND zone = NEW.zone;
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER instances_terminated AFTER UPDATE OF state ON instances
WHEN NEW.state = 'terminated' AND OLD.state <> 'terminated' BEGIN
    UPDATE usage SET used = used - 1 WHERE project_id = NEW.project_id AND kind = 'instances' AND zone = '';
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER load_balancers_made AFTER INSERT ON load_balancers BEGIN
    INSERT INTO usage (project_id, kind, zone, used) VALUES (NEW.project_id, 'load-balancers', '', 1)
    ON CONFLICT (project_id, kind, zone) DO UPDATE SET used = used + 1;
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER load_balancers_gone AFTER DELETE ON load_balancers BEGIN
    UPDATE usage SET used = used - 1 WHERE project_id = OLD.project_id AND kind = 'load-balancers' AND zone = '';
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER routes_made AFTER INSERT ON routes BEGIN
    INSERT INTO usage (project_id, kind, zone, used) VALUES (NEW.project_id, 'routes', '', 1)
    ON CONFLICT (project_id, kind, zone) DO UPDATE SET used = used + 1;
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER routes_gone AFTER DELETE ON routes BEGIN
    UPDATE usage SET used = used - 1 WHERE project_id = OLD.project_id AND kind = 'routes' AND zone = '';
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER networks_made AFTER INSERT ON networks BEGIN
    INSERT INTO usage (project_id, kind, zone, used) VALUES (NEW.project_id, 'networks', '', 1)
    ON CONFLICT (project_id, kind, zone) DO UPDATE SET used = used + 1;
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER networks_gone AFTER DELETE ON networks BEGIN
    UPDATE usage SET used = used - 1 WHERE project_id = OLD.project_id AND kind = 'networks' AND zone = '';
END;
-- +goose StatementEnd

-- +goose Down
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
