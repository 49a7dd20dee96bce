-- Instances have further internal addresses, and names with capitals.

-- +goose Up
-- +goose StatementBegin
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

-- Names that differ in case only are the same. Until now there were no capitals.
DROP INDEX resources_name;
CREATE UNIQUE INDEX resources_name ON resources (project_id, kind, name COLLATE NOCASE) WHERE state <> 'terminated';
-- +goose StatementEnd
-- +goose Down
-- +goose StatementBegin
DROP INDEX resources_name;
CREATE UNIQUE INDEX resources_name ON resources (project_id, kind, name) WHERE state <> 'terminated';
DROP TRIGGER secondary_addresses_freed;
DROP TRIGGER secondary_addresses_taken;
DROP TABLE secondary_addresses;
-- +goose StatementEnd
