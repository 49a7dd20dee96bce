-- Reserved addresses, and the options of load balancers.

-- +goose Up
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

-- +goose StatementBegin
CREATE TRIGGER addresses_made AFTER INSERT ON addresses BEGIN
    INSERT INTO usage (project_id, kind, zone, used) VALUES (NEW.project_id, 'addresses', '', 1)
    ON CONFLICT (project_id, kind, zone) DO UPDATE SET used = used + 1;
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER addresses_gone AFTER DELETE ON addresses BEGIN
    UPDATE usage SET used = used - 1 WHERE project_id = OLD.project_id AND kind = 'addresses' AND zone = '';
END;
-- +goose StatementEnd

ALTER TABLE instances ADD COLUMN external TEXT; -- the reserved addresses it holds, JSON; NULL: none

ALTER TABLE load_balancers ADD COLUMN address_id TEXT; -- the reserved address it holds; NULL: its own
ALTER TABLE load_balancers ADD COLUMN scheme TEXT NOT NULL DEFAULT 'public';
ALTER TABLE load_balancers ADD COLUMN algorithm TEXT NOT NULL DEFAULT 'round-robin';
ALTER TABLE load_balancers ADD COLUMN idle_timeout INTEGER NOT NULL DEFAULT 0; -- milliseconds
ALTER TABLE load_balancers ADD COLUMN drain INTEGER NOT NULL DEFAULT 0; -- milliseconds

-- +goose Down
DROP TRIGGER addresses_gone;
DROP TRIGGER addresses_made;
ALTER TABLE load_balancers DROP COLUMN drain;
ALTER TABLE load_balancers DROP COLUMN idle_timeout;
ALTER TABLE load_balancers DROP COLUMN algorithm;
ALTER TABLE load_balancers DROP COLUMN scheme;
ALTER TABLE load_balancers DROP COLUMN address_id;
ALTER TABLE instances DROP COLUMN external;
DROP TABLE addresses;
