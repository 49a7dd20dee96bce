-- A load balancer may have an IPv6 address beside its own.

-- +goose Up
-- +goose StatementBegin
ALTER TABLE load_balancers ADD COLUMN address6 TEXT; -- NULL: it has none
CREATE UNIQUE INDEX load_balancers_address6 ON load_balancers (address6) WHERE address6 IS NOT NULL;

-- +goose StatementEnd
-- +goose Down
-- +goose StatementBegin
DROP INDEX load_balancers_address6;
ALTER TABLE load_balancers DROP COLUMN address6;
-- +goose StatementEnd
