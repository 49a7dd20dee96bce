-- A new log's numbers start at the time of its creation, in Unix milliseconds:
-- none of an older log, whose data this one replaces, is among them.

-- +goose Up
-- +goose StatementBegin
INSERT INTO sqlite_sequence (name, seq)
SELECT 'events', CAST(unixepoch('subsec') * 1000 AS INTEGER)
WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'events');

-- +goose StatementEnd
-- +goose Down
-- +goose StatementBegin
SELECT 1; -- Numbers that were given stay given.
-- +goose StatementEnd
