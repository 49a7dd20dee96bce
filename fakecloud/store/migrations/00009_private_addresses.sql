-- +goose Up
-- +goose StatementBegin
-- A load balancer that is attached to a network has an address there too. No other resource has
-- it: package cloud sees to that across the columns.
ALTER TABLE resources ADD COLUMN private_address TEXT;
CREATE UNIQUE INDEX resources_private_address ON resources (private_address) WHERE private_address IS NOT NULL;
-- +goose StatementEnd
-- +goose Down
-- +goose StatementBegin
DROP INDEX resources_private_address;
ALTER TABLE resources DROP COLUMN private_address;
-- +goose StatementEnd
