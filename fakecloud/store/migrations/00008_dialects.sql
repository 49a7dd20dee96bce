-- +goose Up
-- +goose StatementBegin
-- What dialects of other clouds need: numbers, and their calls in the audit.

-- Resources, and operations about them, have serial numbers. None is given twice, not even
-- after a snapshot of before was restored (see Store.Restore): clients of clouds that call
-- things by a number keep it.
CREATE TABLE serials (
    one  INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    last INTEGER NOT NULL
) STRICT;
ALTER TABLE resources ADD COLUMN serial INTEGER NOT NULL DEFAULT 0;
ALTER TABLE operations ADD COLUMN serial INTEGER NOT NULL DEFAULT 0;
UPDATE resources SET serial = rowid;
UPDATE operations SET serial = seq + (SELECT coalesce(max(serial), 0) FROM resources);
INSERT INTO serials (one, last) VALUES (1, max(
    (SELECT coalesce(max(serial), 0) FROM resources), (SELECT coalesce(max(serial), 0) FROM operations)));
-- The call of another cloud's dialect that made a call: dialect, method and path.
ALTER TABLE audit ADD COLUMN wire TEXT NOT NULL DEFAULT '';
CREATE UNIQUE INDEX resources_serial ON resources (serial);
CREATE UNIQUE INDEX operations_serial ON operations (serial);
-- +goose StatementEnd
-- +goose Down
-- +goose StatementBegin
DROP INDEX resources_serial;
DROP INDEX operations_serial;
ALTER TABLE resources DROP COLUMN serial;
ALTER TABLE operations DROP COLUMN serial;
DROP TABLE serials;
ALTER TABLE audit DROP COLUMN wire;
-- +goose StatementEnd
